"""Open WebUI's backend, connected to the API of OpenAI and to that of Ollama.

Set ANTIPHON_TEST_CLIENTS=1 for these: they install it from PyPI, 2.2 GB, in about three minutes.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.engines.scripted import ScriptedEngine
from antiphon.run.models import Models
from tests.clients.asking import KEY, LARGE, called, real_clients
from tests.clients.environments import ENVIRONMENTS, INSTALL_SECONDS
from tests.clients.recorder import Recorder
from tests.render.templates import CHATML
from tests.server import running, served_model

pytestmark = real_clients

SECONDS = 240
"""It takes half a minute, most of which it needs to start."""
NAME = "Bismarck"
SCRIPT: list[dict[str, Any]] = [
    {"when": "sunny, 21", "output": "It is sunny in Rome, 21 degrees."},
    {
        "when": "weather in Rome",
        "output": f"<think>\nI need it.\n</think>\n\n{called('get_weather', {'city': 'Rome'})}",
    },
    {"when": NAME, "output": f"It is {NAME}."},
    {"output": "Hello there, friend!"},
]
PATHS = {"openai": ("/v1/chat/completions", "/v1/embeddings"), "ollama": ("/api/chat", "/api/embed")}


@pytest.mark.timeout(INSTALL_SECONDS + SECONDS)
@pytest.mark.parametrize("connection", PATHS)
async def test_open_webui_answers_with_a_tool_and_with_a_file(connection: str, tmp_path: Path) -> None:
    environment, recorder = ENVIRONMENTS["open-webui"], Recorder()
    environment.ready()
    engine = ScriptedEngine(SCRIPT, name="m", context=LARGE)
    model = served_model(engine, dialect="hermes", template=CHATML)
    async with running([], models=Models([model]), api_key=[KEY], before=recorder.before) as server:
        arguments = (f"{server.url}/v1", "m", connection)
        fact = await environment.run("open_webui", *arguments, key=KEY, home=tmp_path, seconds=SECONDS)

    file = f"The cat of the mayor is called {NAME}."
    assert fact == {
        "models": ["m"],
        "streamed": ["Hello there, friend!", True],
        "tool": {
            "text": "It is sunny in Rome, 21 degrees.",
            "parts": ["reasoning", "function_call", "function_call_output", "message"],
        },
        "knowledge": {"text": f"It is {NAME}.", "shown": [file]},
    }
    chat, embed = PATHS[connection]
    first, second, *_, known, plain = recorder.asked(chat)
    assert all(request["stream"] for request in (first, second, known, plain))
    assert "get_weather" in [tool["function"]["name"] for tool in first["tools"]]
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "tool"]
    assert file in json.dumps(known["messages"])
    assert [file] in [request["input"] for request in recorder.asked(embed)]
    assert {seen.status for seen in recorder.seen} == {200}
    own = {path.split("/")[1] for path in (seen.path for seen in recorder.seen)}
    assert own == {"v1" if connection == "openai" else "api"}
