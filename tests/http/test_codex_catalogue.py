"""The models as Codex reads them. That the real one does is seen in `tests/clients/test_codex.py`."""

from pathlib import Path

import httpx2 as httpx
import pytest
from msgspec.structs import replace

from antiphon.core.errors import AntiphonError
from antiphon.engines.engine import Task
from antiphon.engines.scripted import CAPABILITIES, ScriptedEngine
from antiphon.run.models import Models
from tests.server import NO_TLS, composed, running, served_model

CATALOGUE = {
    *("slug", "display_name", "base_instructions", "supported_reasoning_levels", "shell_type", "visibility"),
    *(
        "supported_in_api",
        "priority",
        "support_verbosity",
        "truncation_policy",
        "experimental_supported_tools",
    ),
}
"""What Codex 0.169 insists on in each entry of its catalogue."""
CODEX = {"client_version": "0.169.0"}


async def test_codex_finds_the_models_that_write(tmp_path: Path) -> None:
    told = tmp_path / "codex.md"
    told.write_text("You code.")
    text = replace(CAPABILITIES, media=frozenset())
    vectors = replace(CAPABILITIES, tasks=frozenset({Task.EMBED}))
    models = [
        served_model(ScriptedEngine([{"output": "Hi"}], name="sees", context=50_000)),
        served_model(ScriptedEngine([{"output": "Hi"}], name="finds", capabilities=vectors)),
        served_model(ScriptedEngine([{"output": "Hi"}], name="reads", context=9000, capabilities=text)),
    ]
    async with (
        running([], models=Models(models), codex_instructions=told) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):
        listed = (await client.get("/v1/models", params=CODEX)).json()
        second = (await client.get("/v1/models", params={**CODEX, "after_id": "sees", "limit": 2})).json()
        others = (await client.get("/v1/models")).json()

    assert {**others, "models": []} == {**listed, "models": []}
    assert all(model.keys() == {"name", "description", "release_date"} for model in others["models"])
    sees, reads = listed["models"]
    assert [model["slug"] for model in second["models"]] == ["reads"]
    assert (sees["slug"], sees["context_window"], sees["input_modalities"]) == (
        "sees",
        50_000,
        ["text", "image"],
    )
    assert (reads["slug"], reads["context_window"], reads["input_modalities"]) == ("reads", 9000, ["text"])
    assert sees["priority"] < reads["priority"]
    assert sees["base_instructions"] == reads["base_instructions"] == "You code."
    assert sees.keys() >= CATALOGUE | {"name", "description", "release_date"}


async def test_codex_is_told_no_instructions_that_nobody_gave() -> None:
    async with (
        running([{"output": "Hi"}]) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):
        [model] = (await client.get("/v1/models", params=CODEX)).json()["models"]
    assert "base_instructions" not in model
    assert model.keys() >= CATALOGUE - {"base_instructions"}


def test_instructions_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    empty = tmp_path / "empty.md"
    empty.write_text(" ")
    for path, why in ((tmp_path / "none.md", "No such file"), (empty, "is empty")):
        with pytest.raises(AntiphonError, match=why):
            composed([], codex_instructions=path)
