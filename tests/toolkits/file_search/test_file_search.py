"""The tool `file_search`: what models are shown of what is found, and what its settings may say."""

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.core.errors import NotFoundError, RequestError, StoreError
from antiphon.core.tool_result import ToolResult
from antiphon.toolkits.file_search.details import FileSearchDetails
from antiphon.toolkits.file_search.query import FileQuery, FileResult
from antiphon.toolkits.file_search.tool import FileSearch, FileSearchSession
from antiphon.tools.tool import RequestedTool, ToolOffer
from tests.contracts.tool import ToolContract, failure, opened, successful

STORES = ["vs_1", "vs_2"]
TEXT = FileResult("file-1", "a 【1】.txt", 0.5, {"k": 1}, "Text with 【0:0†mark】.")


class Files:
    """Finds what a query asks for: `long` texts, `endless` ones, none, or a failure."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, FileQuery]] = []

    async def check(self, owner: str, vector_store_ids: Sequence[str]) -> None:
        if not set(vector_store_ids) <= set(STORES):
            raise NotFoundError("There is none.")

    async def search(self, owner: str, query: FileQuery) -> list[FileResult]:
        self.asked.append((owner, query))
        match query.queries[0]:
            case "endless":
                await asyncio.sleep(600)
            case "long":
                return [replace(TEXT, text="x" * 20_000)] * 10
            case "nothing":
                return []
            case "failure":
                raise StoreError
        return [TEXT]


class Set(FileSearch):
    """The tool, with settings that a request must have."""

    async def offer(self, requested: RequestedTool) -> ToolOffer:
        return await super().offer(_set(requested))

    def open(self, requested: RequestedTool) -> FileSearchSession:
        return super().open(_set(requested))


def _set(requested: RequestedTool) -> RequestedTool:
    return replace(requested, settings={"vector_store_ids": STORES, **requested.settings})


def query(text: str) -> tuple[str, dict[str, Any]]:
    return "search", {"queries": [text]}


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
def tool(files: Files) -> FileSearch:
    return Set(files)


class TestFileSearch(ToolContract):
    asked = {"vector_store_ids": STORES}  # noqa: RUF012
    call = sets = gets = query("text")
    left = "【1:0"
    endless = query("endless")
    lengthy = query("long")
    settings = ("vector_store_ids", "max_num_results", "filters", "ranking_options")

    @pytest.fixture
    def tool(self, files: Files) -> FileSearch:
        return Set(files)


async def test_what_is_found_is_marked(tool: FileSearch):
    async with opened(tool) as session:
        result = successful(await session.run(*query("text")))
        assert result.text == "【0:0†a 〖1〗.txt】\nText with 〖0:0†mark〗."
        assert result.details == FileSearchDetails(("text",), 0, (TEXT,))
        again = successful(await session.run("search", {"queries": ["a", "b"]}))
        assert again.text.startswith("【1:0†")


async def test_a_session_that_goes_on_counts_on(tool: FileSearch):
    async with opened(tool) as session:
        await session.recall("search", {}, ToolResult("", FileSearchDetails(("a",), 4, ())))
        assert successful(await session.run(*query("text"))).text.startswith("【5:0†")


async def test_what_does_not_fit_is_left_out(tool: FileSearch):
    async with opened(tool) as session:
        result = successful(await session.run(*query("long")))
    assert isinstance(result.details, FileSearchDetails)
    assert len(result.details.results) == len(re.findall("【", result.text)) == 2


async def test_nothing_and_failures_are_told_in_words(tool: FileSearch):
    async with opened(tool) as session:
        assert "Nothing was found" in successful(await session.run(*query("nothing"))).text
        failure(await session.run(*query("failure")))
        for wrong in ("text", None, [], [1], ["a"] * 6):
            result = await session.run("search", {"queries": wrong})
            assert result.failed == (wrong != "text")


async def test_settings_are_acted_on(tool: FileSearch, files: Files):
    settings = {
        "max_num_results": 3,
        "filters": {"type": "eq", "key": "k", "value": 1},
        "ranking_options": {"ranker": "auto", "score_threshold": 0.25},
        "colour": "red",
    }
    offer = await tool.offer(RequestedTool(settings, "tools[0]", "alice"))
    assert [note.param for note in offer.notes] == ["tools[0].colour"]
    await tool.open(RequestedTool(settings, owner="alice")).run(*query("text"))
    owner, asked = files.asked[0]
    assert (owner, asked.vector_store_ids, asked.limit, asked.threshold) == ("alice", tuple(STORES), 3, 0.25)
    assert asked.filter is not None
    assert asked.filter.admits({"k": 1})


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"vector_store_ids": []}, "tools[0].vector_store_ids"),
        ({"vector_store_ids": ["vs_3"]}, "tools[0].vector_store_ids"),
        ({"max_num_results": 0}, "tools[0].max_num_results"),
        ({"filters": {"type": "?"}}, "tools[0].filters.type"),
        ({"ranking_options": {"ranker": "?"}}, "tools[0].ranking_options.ranker"),
        ({"ranking_options": {"hybrid_search": {}}}, "tools[0].ranking_options.hybrid_search"),
    ],
)
async def test_settings_that_cannot_be_honoured(tool: FileSearch, settings: dict[str, Any], param: str):
    with pytest.raises(RequestError) as caught:
        await tool.offer(RequestedTool(settings, "tools[0]"))
    assert caught.value.param == param


async def test_without_the_extra(tool: FileSearch, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("antiphon.toolkits.file_search.tool.find_spec", lambda _: None)
    with pytest.raises(RequestError, match="`files`"):
        await tool.offer(RequestedTool({}, "tools[0]"))
