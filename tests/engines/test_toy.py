"""What the protocol requires is all that an engine needs: to pass the contract, and to be served."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import httpx2 as httpx
import pytest
import pytest_asyncio

from antiphon.cli import main
from antiphon.config import Settings
from tests.contracts.engine import EngineContract
from tests.engines import toy
from tests.server_process import serving

NAME = toy.__name__


class TestContract(EngineContract):
    prompt = "abc"
    others = ("a", "g", "x")
    slots = 2

    @pytest_asyncio.fixture
    async def engine(self) -> toy.ToyEngine:
        engine = toy.ToyEngine()
        await engine.start()
        return engine

    @pytest.fixture
    def fresh(self) -> toy.ToyEngine:
        return toy.ToyEngine(parallel=1)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """Runs `antiphon serve`; gives the options of the engine that would be served."""
    served: list[Settings] = []
    monkeypatch.setitem(sys.modules, "antiphon.http.server", SimpleNamespace(serve=served.append))

    def run(*tokens: str) -> object:
        assert main(["serve", *tokens]) == 0
        return served.pop().engine

    return run


def test_its_options_come_from_everywhere(
    chosen: Callable[..., object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert chosen("--engine", NAME) == toy.Options()
    assert chosen("--engine", NAME, "--stride", "3") == toy.Options(stride=3)
    file = tmp_path / "antiphon.toml"
    file.write_text(f'engine = "{NAME}"\nstride = 4\n')
    assert chosen("--config", str(file)) == toy.Options(stride=4)
    monkeypatch.setenv("ANTIPHON_STRIDE", "5")
    assert chosen("--config", str(file)) == toy.Options(stride=5)


def test_its_options_are_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--engine", NAME, "--help-all"]) == 0
    out = capsys.readouterr().out
    assert "--stride" in out
    assert "--threads" not in out


def test_a_wrong_option_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--engine", NAME, "--stride", "far"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "--stride" in line


def test_it_is_served(tmp_path: Path) -> None:
    options = (
        "--engine",
        NAME,
        "--stride",
        "2",
        "--port",
        "0",
        "--store",
        "memory",
        "--chat-template",
        "chatml",
    )
    with serving(tmp_path, *options, PYTHONPATH=str(Path(__file__).parents[2])) as server:
        body = {"model": "toy", "prompt": "abc", "max_tokens": 4}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=30).json()
    assert answer["choices"][0]["text"] == "egik"
    assert answer["usage"]["completion_tokens"] == 4
