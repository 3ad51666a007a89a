"""Pages of the web that an answer cites: a model that searches a folder of pages, in each API."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from antiphon.toolkits.web_search import Options
from tests.acting import TakingTurns, harmony_turns, hermes_turns
from tests.files import pdf_of
from tests.http.api import Api, ask, client, items_of
from tests.http.chat_api import chatting
from tests.http.messages_api import asking
from tests.server import running
from tests.toolkits.parts import PARTS

CITING = "Two 【0†L5】 choirs, 👍 and more 【1†L3-L4】【9†L1】."
CITED = [("https://a.example/", "【0†L5】"), ("https://a.example/", "【1†L3-L4】")]
OPEN = '<|end|><|start|>assistant<|channel|>analysis to=browser.open code<|message|>{"id": 0}<|call|>'
FAMILIES: dict[str, Any] = {
    "hermes": (
        hermes_turns,
        '<tool_call>\n{"name": "web_search", "arguments": {"query": "antiphon"}}\n</tool_call>',
        'Let me see 【0†L5】.<tool_call>\n{"name": "web_open", "arguments": {"id": 0}}\n</tool_call>',
        CITING,
    ),
    "openai": (
        harmony_turns,
        '<|channel|>analysis to=browser.search code<|message|>{"query": "antiphon"}<|call|>',
        f"<|channel|>commentary<|message|>Let me see 【0†L5】.{OPEN}",
        f"<|channel|>final<|message|>{CITING}<|return|>",
    ),
}


@pytest.fixture
def pages(tmp_path: Path) -> str:
    (tmp_path / "a.example").mkdir()
    (tmp_path / "a.example" / "index.html").write_text(
        "<title>Choirs</title><h1>Antiphons</h1><p>An antiphon is sung by two choirs.</p>"
    )
    return str(tmp_path)


def engine(family: str) -> TakingTurns:
    turns, *lines = FAMILIES[family]
    return TakingTurns(*lines, turns=turns)


@pytest_asyncio.fixture(params=FAMILIES)
async def api(request: pytest.FixtureRequest, pages: str) -> AsyncIterator[Api]:
    tool = Options(web_search=pages).open(PARTS)
    async with (
        running(engine(request.param), dialect=request.param, date="2025-06-28", tools=[tool]) as server,
        client(server) as api,
    ):
        yield api


def cited(text: str, annotations: Any) -> list[tuple[str, str]]:
    return [(it["url"], text[it["start_index"] : it["end_index"]]) for it in annotations]


async def test_responses_have_annotations_streamed_or_whole(api: Api) -> None:
    fields = {"tools": [{"type": "web_search"}], "include": ["web_search_call.action.sources"]}

    whole = await api.create("Hi", **fields)
    streamed = await api.streamed("Hi", **fields)

    for response in (whole, streamed):
        first, last = [item["content"][0] for item in items_of(response, "message")]
        assert cited(first["text"], first["annotations"]) == CITED[:1]
        assert (last["text"], cited(last["text"], last["annotations"])) == (CITING, CITED)
        assert {it["title"] for it in last["annotations"]} == {"Choirs"}
        search, opened = items_of(response, "web_search_call")
        assert search["action"]["sources"] == [{"type": "url", "url": "https://a.example/"}]
        assert opened["action"] == {"type": "open_page", "url": "https://a.example/"}


async def test_later_turns_are_shown_what_was_found_where_the_items_hold_it(api: Api) -> None:
    tools = [{"type": "web_search"}]
    whole = await api.create("Hi", tools=tools, include=["web_search_call.results"])
    search, opened = items_of(whole, "web_search_call")
    assert [(it["url"], it["title"]) for it in search["results"]] == [("https://a.example/", "Choirs")]
    assert "An antiphon is sung by two choirs." in opened["results"][0]["text"]
    sourced = await api.create("Hi", tools=tools, include=["web_search_call.action.sources"])
    plain = await api.create("Hi", tools=tools)

    counted = [
        (await api.post("/responses/input_tokens", ask(response["output"], tools=tools)))["input_tokens"]
        for response in (whole, sourced, plain)
    ]

    assert counted == sorted(counted, reverse=True)
    assert len({*counted}) == 3


@pytest.mark.parametrize("family", FAMILIES)
async def test_chat_completions_have_annotations_streamed_or_whole(family: str, pages: str) -> None:
    tool = Options(web_search=pages).open(PARTS)
    async with chatting(engine(family), tools=[tool], dialect=family) as api:
        choice = await api.choice("Hi", tools=[{"type": "web_search"}])  # streamed, too
    message = choice["message"]
    assert {it["type"] for it in message["annotations"]} == {"url_citation"}
    annotations = [it["url_citation"] for it in message["annotations"]]
    assert cited(message["content"], annotations)[-2:] == CITED
    assert message["content"].endswith(CITING)


@pytest.mark.parametrize("family", FAMILIES)
async def test_messages_have_citations_streamed_or_whole(family: str, pages: str) -> None:
    tool = Options(web_search=pages).open(PARTS)
    async with asking(engine(family), tools=[tool], dialect=family) as api:
        tools = [{"type": "web_search_20250305", "name": "web_search"}]
        message = await api.ask("Hi", tools=tools)
        deltas = [event.get("delta", {}).get("type") for event in await api.stream("Hi", tools=tools)]

    assert deltas.count("citations_delta") == 3
    first, last = [block for block in message["content"] if block["type"] == "text"]
    assert first["citations"][0]["cited_text"].startswith("* 【0†Choirs†a.example】")
    assert last["text"] == CITING
    assert [(it["type"], it["url"], it["title"]) for it in last["citations"]] == [
        ("web_search_result_location", "https://a.example/", "Choirs")
    ] * 2
    assert last["citations"][1]["cited_text"] == "# Antiphons"


async def test_pages_of_a_pdf_and_parts_of_other_files_are_cited() -> None:
    async with asking([{"output": "Old 【doc0†L1】, and new 【doc1†L1】."}]) as api:
        upload = {"file": ("b.txt", b"A new one. It is new.", "text/plain")}
        stored = (await api.http.post("/v1/files", files=upload, data={"purpose": "user_data"})).json()
        pdf = base64.b64encode(pdf_of("First.", "An old one.")).decode()
        sources = [
            {"type": "base64", "media_type": "application/pdf", "data": pdf},
            {"type": "file", "file_id": stored["id"]},
        ]
        documents = [
            {"type": "document", "source": source, "citations": {"enabled": True}} for source in sources
        ]
        message = await api.ask([{"role": "user", "content": documents}])
        prompt = api.prompt
        refused = []
        for data in (b"%PDF-1", pdf_of("")):
            source = {**sources[0], "data": base64.b64encode(data).decode()}
            broken = {**documents[0], "source": source}
            refused.append((await api.refused([{"role": "user", "content": [broken]}]))["message"])

    assert "L0: First.\nL1: An old one.\n</document>" in prompt
    [block] = message["content"]
    assert block["citations"] == [
        {
            "type": "page_location",
            "cited_text": "An old one.",
            "document_index": 0,
            "document_title": None,
            "start_page_number": 2,
            "end_page_number": 3,
            "file_id": None,
        },
        {
            "type": "char_location",
            "cited_text": "It is new.",
            "document_index": 1,
            "document_title": None,
            "start_char_index": 11,
            "end_char_index": 21,
            "file_id": stored["id"],
        },
    ]
    assert refused[0].startswith("messages[0].content[0]: This file is damaged")
    assert refused[1].startswith(
        "Invalid value for 'messages[0].content[0].citations': This file has no text"
    )
