"""A program of `programs/` asks a server of tests: what all tests of real clients share.

Set ANTIPHON_TEST_CLIENTS=1 for these: they install clients from PyPI and npm.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from antiphon.engines.engine import Engine
from antiphon.engines.scripted import ScriptedEngine
from tests.clients.environments import ENVIRONMENTS, INSTALL_SECONDS, RUN_SECONDS
from tests.server import running

KEY = "secret"
LARGE = 200_000
"""The context that Claude Code needs: its own prompt has more than 20,000 tokens."""

real_clients = [
    pytest.mark.skipif(
        os.environ.get("ANTIPHON_TEST_CLIENTS") != "1",
        reason="installs clients: set ANTIPHON_TEST_CLIENTS=1",
    ),
    pytest.mark.timeout(INSTALL_SECONDS + RUN_SECONDS),
]
"""The marks of a module of such tests."""


async def run(
    client: str,
    *arguments: str,
    home: Path,
    script: list[dict[str, Any]],
    model: str = "scripted",
    **options: Any,
) -> Any:
    """What the client's program prints, asked of a server that plays `script`."""
    engine = ScriptedEngine(script, name=model, context=LARGE)
    return await ask(client, *arguments, home=home, engine=engine, model=model, **options)


async def ask(
    client: str, *arguments: str, home: Path, engine: list[Any] | Engine, model: str, **options: Any
) -> Any:
    """What the client's program prints, asked of a server with this engine."""
    environment = ENVIRONMENTS[client]
    environment.ready()
    async with running(engine, api_key=[KEY], **options) as server:
        program = client.removesuffix("-0").replace("-", "_")  # an older version runs the same program
        return await environment.run(program, f"{server.url}/v1", model, *arguments, key=KEY, home=home)


def called(name: str, arguments: Any) -> str:
    """A call, as a model of Hermes writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
