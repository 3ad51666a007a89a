"""The examples in the documents work: JSON and TOML can be parsed, commands are answered, Python runs."""

import asyncio
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from antiphon.engines.pool import PoolEngine
from antiphon.engines.scripted import ScriptedEngine
from antiphon.run.models import Models
from tests.deciding import deciding
from tests.files import pdf_of
from tests.http.test_moderation import guard_engine
from tests.server import NO_TLS, running, served_model
from tests.tools.sandboxes import needs_bubblewrap, python_in_bubblewrap

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/howto/*.md"))]
ADDRESS = "http://127.0.0.1:8000"


def snippets(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    """Those of curl, each in one line, without those that are for the reader to fill in."""
    found = [line for path in PAGES for text in snippets(path, "console") for line in _lines(text)]
    return [line for line in found if line.startswith("curl ") and "…" not in line]


def _lines(text: str) -> list[str]:
    return text.replace("\\\n", " ").splitlines()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_what_is_shown_can_be_read(path: Path) -> None:
    for text in snippets(path, "json"):
        json.loads(text if text.startswith(("{", "[")) else f"{{{text}}}")  # it may be a member alone
    for text in snippets(path, "toml"):
        tomllib.loads(text)
    for text in snippets(path, "python"):
        compile(text, path.name, "exec")


def asked(command: str) -> httpx.Request:
    """What curl sends for it: a body without a type is that of a form."""
    _, *words = shlex.split(command.replace("$ADMIN_KEY", "admin"))
    headers: dict[str, str] = {}
    url, body = "", None
    while words:
        word = words.pop(0)
        if word == "-H":
            name, _, value = words.pop(0).partition(": ")
            headers[name.lower()] = value
        elif word == "-d":
            body = words.pop(0)
        else:
            url = word if "://" in word else f"http://{word}"
    if body is not None:
        headers.setdefault("content-type", "application/x-www-form-urlencoded")
    return httpx.Request("GET" if body is None else "POST", url, headers=headers, content=body)


class Adapting(ScriptedEngine):
    """Takes any adapter."""

    @property
    def adapters(self) -> Mapping[str, str]:
        return self._loaded

    def __init__(self, script: list[Mapping[str, Any]]) -> None:
        super().__init__(script)
        self._loaded: dict[str, str] = {}

    async def load_adapter(self, name: str, path: str) -> None:
        self._loaded[name] = path

    async def unload_adapter(self, name: str) -> None:
        del self._loaded[name]


async def test_every_command_of_curl_is_answered() -> None:
    engine = Adapting([{"output": "Hi"}])
    one = served_model(
        engine, model_name=("small", "SmolLM2-135M-Instruct.Q4_1", "embedder", "reranker"), dialect="hermes"
    )
    pool = PoolEngine([(f"http://gpu{number}:8000", ScriptedEngine([])) for number in (1, 2)])
    several = served_model(pool, model_name=("large",), dialect="hermes")
    guard = served_model(guard_engine("llama-guard", told=True), model_name=("guard",), dialect="plain")
    async with (
        running([], models=Models([one, several, guard]), admin_key=("admin",), moderation="guard") as server,
        httpx.AsyncClient(verify=NO_TLS) as client,
    ):
        for command in commands():
            request = asked(command.replace("127.0.0.1:8000", server.url.removeprefix("http://")))
            with deciding():
                answer = await client.send(request)
            assert answer.status_code == 200, f"{command}\n{answer.text}"
    assert len(commands()) > 8


GIVEN = """
from pathlib import Path
from openai import OpenAI
client, model = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none"), "scripted"
file = client.files.create(file=Path("manual.pdf"), purpose="assistants")
store = client.vector_stores.create(name="manuals", file_ids=[file.id])
"""
"""What the pages take for granted."""


@pytest.mark.parametrize(
    "name", ["files.md", "decisions-api.md", pytest.param("tools.md", marks=needs_bubblewrap)]
)
async def test_the_python_of_a_page_runs(name: str, tmp_path: Path) -> None:
    (tmp_path / "manual.pdf").write_bytes(pdf_of("It is cleaned with water."))
    async with running([{"output": "Hi"}], python=python_in_bubblewrap()) as server:
        code = "\n".join([GIVEN, *snippets(ROOT / "docs" / name, "python")]).replace(ADDRESS, server.url)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", "-c", code), cwd=tmp_path, stderr=asyncio.subprocess.PIPE
        )
        with deciding():
            _, err = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, err.decode()) == (0, "")
