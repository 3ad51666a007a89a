"""Message batches: many requests, answered in the background."""

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.apis.messages.batch import read_entry
from antiphon.app import message_batches, worker
from antiphon.run.endings import CancelRequestedError
from antiphon.store.open import open_store
from antiphon.store.records import ResponseKind
from antiphon.store.store import Store
from tests.apis.messages.support import ANTHROPIC, request
from tests.http.messages_api import MessagesApi, asking, texts
from tests.openai_schema import validate
from tests.run.support import until

BATCHES = "/v1/messages/batches"
SCRIPT: list[dict[str, Any]] = [
    {"when": "breaks", "output": "word word", "fail_after": 1},
    {"when": "endless", "output": "word ", "tokens": 20_000, "delay_ms": 5},
    {"output": "Hello there!"},
]


def entry(custom_id: str, said: str = "Hi", **fields: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "params": request(said, **fields)}


async def made(api: MessagesApi, *entries: Any) -> Any:
    """A new batch."""
    batch = await api.post(BATCHES, {"requests": [*entries]})
    validate("MessageBatch", batch, ANTHROPIC)
    return batch


async def ended(api: MessagesApi, batch: Any) -> Any:
    """A batch, once it has ended."""
    async with asyncio.timeout(20):
        while True:
            now = (await api.http.get(f"{BATCHES}/{batch['id']}")).json()
            validate("MessageBatch", now, ANTHROPIC)
            if now["processing_status"] == "ended":
                return now
            await asyncio.sleep(0.02)


async def results(api: MessagesApi, batch: Any) -> dict[str, Any]:
    """The results, by the ids of their requests."""
    response = await api.http.get(batch["results_url"])
    assert response.status_code == 200, response.text
    lines = [json.loads(line) for line in response.text.splitlines()]
    for line in lines:
        validate("MessageBatchIndividualResponse", line, ANTHROPIC)
    return {line["custom_id"]: line["result"] for line in lines}


async def test_a_batch_is_answered_in_the_background() -> None:
    async with asking(SCRIPT) as api:
        batch = await made(
            api,
            entry("a", stream=True),
            entry("b", "breaks"),
            entry("c", max_tokens="many"),
            entry("d", model="nobody"),
        )
        assert (batch["processing_status"], batch["request_counts"]["processing"]) == ("in_progress", 4)
        done = await ended(api, batch)
        found = await results(api, done)
        listed = (await api.http.get(BATCHES)).json()
        deleted = (await api.http.delete(f"{BATCHES}/{batch['id']}")).json()
        gone = await api.http.get(f"{BATCHES}/{batch['id']}")

    counts = {"processing": 0, "succeeded": 1, "errored": 3, "canceled": 0, "expired": 0}
    assert (done["request_counts"], done["ended_at"] > done["created_at"]) == (counts, True)
    assert done["cancel_initiated_at"] is None
    assert texts(found["a"]["message"]) == "Hello there!"
    kinds = {
        custom_id: result["error"]["error"]["type"] for custom_id, result in found.items() if custom_id != "a"
    }
    assert kinds == {"b": "api_error", "c": "invalid_request_error", "d": "not_found_error"}
    assert {custom_id: found[custom_id]["error"]["request_id"] for custom_id in kinds} == {
        custom_id: f"{batch['id']}/{custom_id}" for custom_id in kinds
    }
    assert (listed["data"], listed["first_id"], listed["has_more"]) == ([done], batch["id"], False)
    assert deleted == {"id": batch["id"], "type": "message_batch_deleted"}
    assert (gone.status_code, gone.json()["error"]["type"]) == (404, "not_found_error")


async def test_a_batch_that_is_cancelled_keeps_what_it_has() -> None:
    async with asking(SCRIPT) as api:
        batch = await made(api, entry("a"), *(entry(f"e{index}", "endless") for index in range(9)))
        await until(lambda: len(api.server.engine.seen) > 8)
        early = await api.http.get(f"{BATCHES}/{batch['id']}/results")
        kept = await api.http.delete(f"{BATCHES}/{batch['id']}")
        await api.post(f"{BATCHES}/{batch['id']}/cancel", {})
        done = await ended(api, batch)
        found = await results(api, done)
        again = await api.post(f"{BATCHES}/{batch['id']}/cancel", {})
        await until(lambda: not api.server.engine.load.running)

    assert (early.status_code, kept.status_code) == (400, 400)
    assert (done["request_counts"]["succeeded"], done["request_counts"]["canceled"]) == (1, 9)
    assert found["a"]["type"] == "succeeded"
    assert {found[f"e{index}"]["type"] for index in range(9)} == {"canceled"}
    assert again == done
    assert done["created_at"] < done["cancel_initiated_at"] <= done["ended_at"]


async def test_a_batch_that_no_worker_has_is_cancelled_at_once() -> None:
    async with asking(SCRIPT) as api:
        api.server.worker.drain()
        await asyncio.sleep(0)
        batch = await made(api, entry("a"), entry("b"))
        done = await api.post(f"{BATCHES}/{batch['id']}/cancel", {})
        found = await results(api, done)

    assert done["processing_status"] == "ended"
    assert found == {"a": {"type": "canceled"}, "b": {"type": "canceled"}}


@pytest.mark.parametrize(
    ("reason", "result"), [(CancelRequestedError(), "canceled"), (ValueError("broken"), "errored")]
)
async def test_a_batch_that_ends_before_its_first_request_has_a_result_of_each(
    monkeypatch: pytest.MonkeyPatch, reason: Exception, result: str
) -> None:
    async def prepare(*_: Any) -> Any:
        raise reason

    kind = ResponseKind.MESSAGE_BATCH
    monkeypatch.setitem(worker._KINDS, kind, replace(worker._KINDS[kind], prepare=prepare))  # type: ignore[arg-type]
    async with asking(SCRIPT) as api:
        done = await ended(api, await made(api, entry("a"), entry("b")))
        found = await results(api, done)

    assert done["request_counts"][result] == 2
    assert [each["type"] for each in found.values()] == [result, result]


class Kept:
    """A store that outlives servers."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def close(self) -> None:
        pass


async def test_a_batch_that_a_server_gave_back_is_cancelled_with_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_batches, "PARALLEL", 1)
    store = await open_store("memory")

    async def opened() -> Any:
        return Kept(store)

    async with asking(SCRIPT, open_store=opened) as api:
        batch = await made(api, entry("a"), entry("b", "endless"))
        await until(lambda: len(api.server.engine.seen) == 2)
        await asyncio.sleep(0.1)  # the first result is written
        api.server.worker.drain()
        await api.server.worker.stop()
        done = await api.post(f"{BATCHES}/{batch['id']}/cancel", {})
        found = await results(api, done)
    await store.close()

    assert done["processing_status"] == "ended"
    assert (done["request_counts"]["succeeded"], done["request_counts"]["canceled"]) == (1, 1)
    assert [found[each]["type"] for each in "ab"] == ["succeeded", "canceled"]


async def test_another_server_goes_on_with_what_has_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_batches, "PARALLEL", 1)
    store = await open_store("memory")

    async def opened() -> Any:
        return Kept(store)

    async with asking(
        [{"when": "slow", "output": "word ", "tokens": 2000, "delay_ms": 5}, {"output": "first"}],
        open_store=opened,
    ) as api:
        batch = await made(api, entry("a"), entry("b", "slow"), entry("c"))
        await until(lambda: len(api.server.engine.seen) == 2)
        await asyncio.sleep(0.1)  # the first result is written
    async with asking([{"output": "second"}], open_store=opened) as api:
        found = await results(api, await ended(api, batch))
    await store.close()

    assert {custom_id: texts(result["message"]) for custom_id, result in found.items()} == {
        "a": "first", "b": "second", "c": "second",
    }  # fmt: skip


async def test_what_was_not_answered_in_a_day_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_batches, "LIFETIME", -1)
    async with asking(SCRIPT) as api:
        found = await results(api, await ended(api, await made(api, entry("a"))))

    assert found == {"a": {"type": "expired"}}


@pytest.mark.parametrize(
    ("requests", "param"),
    [
        ([], "requests"),
        ([{"custom_id": "a b", "params": {}}], "requests[0].custom_id"),
        ([{"custom_id": "a"}], "requests[0].params"),
        ([entry("a"), entry("a")], "requests[1].custom_id"),
    ],
)
async def test_what_is_wrong_with_a_batch_is_refused(requests: Any, param: str) -> None:
    async with asking(SCRIPT) as api:
        refused = await api.post(BATCHES, {"requests": requests}, 400)

    assert param in refused["error"]["message"]


async def test_a_batch_belongs_to_its_key_and_is_no_response() -> None:
    async with asking(SCRIPT, {"x-api-key": "mine"}, api_key=("mine", "other")) as api:
        batch = await made(api, entry("a"))
        await ended(api, batch)
        path = f"{BATCHES}/{batch['id']}"
        theirs = await api.http.get(path, headers={"x-api-key": "other"})
        page = (await api.http.get(BATCHES, headers={"x-api-key": "other"})).json()
        response = await api.http.get(f"/v1/responses/{batch['id']}")

    assert (theirs.status_code, response.status_code) == (404, 404)
    assert page == {"data": [], "has_more": False, "first_id": None, "last_id": None}


async def test_pages_of_batches() -> None:
    async with asking(SCRIPT) as api:
        ids = [(await made(api, entry("a")))["id"] for _ in range(3)][::-1]

        async def page(**query: Any) -> list[int]:
            body = (await api.http.get(BATCHES, params=query)).json()
            return [ids.index(batch["id"]) for batch in body["data"]]

        pages = [
            await page(),
            await page(limit=1),
            await page(after_id=ids[0]),
            await page(before_id=ids[2], limit=1),
        ]
        missing = await api.http.get(BATCHES, params={"after_id": "nobody"})

    assert pages == [[0, 1, 2], [0], [1, 2], [1]]
    assert missing.status_code == 404


def test_results_are_read_as_they_were_written() -> None:
    result = message_batches.result_of("a", "expired")

    begun = message_batches.calls_begun("a", 2)

    assert [read_entry(entry.line) for entry in (result, begun)] == [result, begun]
    assert message_batches.results_in(begun.line + b"\n" + result.line) == result.line + b"\n"
