"""`file_search` in answers: a model that searches real vector stores, and cites what was found."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from tests.http.api import check_body, client
from tests.http.harmony import Said
from tests.server import Running, running

CALL = (
    '<tool_call>\n{"name": "file_search", "arguments": {"queries": ["how long do cats sleep"]}}\n</tool_call>'
)
CITING = "Sixteen hours 【0:0†cats.md】, not more【9:9†x】 【0:0】."
CATS = b"Cats sleep for sixteen hours a day."


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Running]:
    async with running(Said(), api_key=("alice", "eve")) as server:
        yield server


@pytest_asyncio.fixture
async def store(alice: AsyncOpenAI) -> str:
    store = await alice.vector_stores.create(name="pets")
    await alice.vector_stores.files.upload_and_poll(
        vector_store_id=store.id, file=("cats.md", CATS), attributes={"kind": "cat"}, poll_interval_ms=5
    )
    return store.id


def tool(store: str, **settings: Any) -> Any:
    return {"type": "file_search", "vector_store_ids": [store], **settings}


async def test_a_model_searches_and_cites(server: Running, alice: AsyncOpenAI, store: str):
    server.engine.says(CALL, CITING)
    response = await alice.responses.create(
        model="scripted", input="Cats?", tools=[tool(store)], include=["file_search_call.results"]
    )
    check_body(json.loads(response.model_dump_json(exclude_unset=True)))
    call, message = response.output
    assert call.type == "file_search_call"
    assert (call.status, call.queries) == ("completed", ["how long do cats sleep"])
    assert call.results is not None
    assert [(it.filename, it.text, it.attributes) for it in call.results] == [
        ("cats.md", CATS.decode(), {"kind": "cat"})
    ]
    assert message.type == "message"
    text = message.content[0]
    assert text.type == "output_text"
    file_id = call.results[0].file_id
    assert [it.to_dict() for it in text.annotations] == [
        {"type": "file_citation", "file_id": file_id, "filename": "cats.md", "index": CITING.index(mark)}
        for mark in ("【0:0†cats.md】", "【0:0】")
    ]
    assert f"【0:0†cats.md】\n{CATS.decode()}" in server.engine.prompt


async def test_the_stream_says_the_same(server: Running, store: str):
    server.engine.says(CALL, CITING)
    async with client(server, "alice") as api:
        body = await api.streamed("Cats?", tools=[tool(store)])
    assert [item["type"] for item in body["output"]] == ["file_search_call", "message"]
    assert body["output"][0]["results"] is None
    assert len(body["output"][1]["content"][0]["annotations"]) == 2


async def test_what_was_found_is_shown_again_in_the_next_turn(
    server: Running, alice: AsyncOpenAI, store: str
):
    server.engine.says(CALL, "Sixteen.", "Yes.")
    first = await alice.responses.create(
        model="scripted", input="Cats?", tools=[tool(store)], include=["file_search_call.results"]
    )
    await alice.responses.create(
        model="scripted", input="Sure?", tools=[tool(store)], previous_response_id=first.id
    )
    assert CATS.decode() in server.engine.prompt


async def test_a_chat_searches(server: Running, alice: AsyncOpenAI, store: str):
    server.engine.says(CALL, "Sixteen.")
    answer = await alice.chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "Cats?"}], tools=[tool(store)]
    )
    assert answer.choices[0].message.content == "Sixteen."
    assert CATS.decode() in server.engine.prompt


async def test_in_the_background(server: Running, alice: AsyncOpenAI, store: str):
    server.engine.says(CALL, CITING)
    response = await alice.responses.create(
        model="scripted", input="Cats?", tools=[tool(store)], background=True
    )
    async with asyncio.timeout(30):
        while response.status in ("queued", "in_progress"):
            response = await alice.responses.retrieve(response.id)
    assert [item.type for item in response.output] == ["file_search_call", "message"]
    assert response.status == "completed"


async def test_filters_keep_files_out(server: Running, alice: AsyncOpenAI, store: str):
    server.engine.says(CALL, "I do not know.")
    only = {"type": "ne", "key": "kind", "value": "cat"}
    await alice.responses.create(model="scripted", input="Cats?", tools=[tool(store, filters=only)])
    assert CATS.decode() not in server.engine.prompt
    assert "Nothing was found" in server.engine.prompt


async def test_filters_have_another_name_and_none_is_ignored(server: Running, alice: AsyncOpenAI, store: str):
    server.engine.says(CALL, "I do not know.")
    only = {"type": "ne", "key": "kind", "value": "cat"}
    await alice.responses.create(model="scripted", input="Cats?", tools=[tool(store, filter=only)])
    assert CATS.decode() not in server.engine.prompt
    for name in ("where", "file_ids", "score_threshold"):
        with pytest.raises(BadRequestError) as caught:
            await alice.responses.create(model="scripted", input="Cats?", tools=[tool(store, **{name: [1]})])
        assert caught.value.param == f"tools[0].{name}"


async def test_another_owners_vector_store(server: Running, alice: AsyncOpenAI, store: str):
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="eve", max_retries=0) as eve:
        with pytest.raises(NotFoundError) as caught:
            await eve.responses.create(model="scripted", input="Cats?", tools=[tool(store)])
    assert caught.value.param == "tools[0].vector_store_ids"


async def test_settings_that_are_refused(alice: AsyncOpenAI, store: str):
    hybrid = {"hybrid_search": {"embedding_weight": 1, "text_weight": 1}}
    with pytest.raises(BadRequestError, match="embeddings") as caught:
        await alice.responses.create(
            model="scripted", input="Cats?", tools=[tool(store, ranking_options=hybrid)]
        )
    assert caught.value.param == "tools[0].ranking_options.hybrid_search"
