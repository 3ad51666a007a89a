"""/v1/batches: files of requests, answered in the background."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import httpx2 as httpx
import pytest
from msgspec.structs import replace

from antiphon.app import batch_work
from antiphon.core.errors import RequestError
from antiphon.core.limits import DEFAULTS
from antiphon.store.open import open_store
from tests.apis.decision_requests import OPENAI as DECISION
from tests.deciding import deciding
from tests.http.batches_api import CHAT, BatchesApi, asking, body, line, lines_of, texts
from tests.http.test_message_batches import Kept
from tests.run.support import until
from tests.server import NO_TLS

SCRIPT: list[dict[str, Any]] = [
    {"when": "breaks", "output": "word word", "fail_after": 1},
    {"when": "endless", "output": "word ", "tokens": 20_000, "delay_ms": 5},
    {"when": "long", "output": "word ", "tokens": 300, "delay_ms": 2},
    {"output": "Hello there!"},
]

WORDS = "word " * 150
"""The text of a long answer, which has 300 tokens."""

ENDPOINTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    CHAT: (body(), body(temperature=-1), "temperature"),
    "/v1/responses": (
        {"model": "scripted", "input": "Hi"},
        {"model": "scripted", "input": "Hi", "previous_response_id": "resp_1"},
        "previous_response_id",
    ),
    "/v1/completions": (
        {"model": "scripted", "prompt": "Hi"},
        {"model": "scripted", "prompt": "Hi", "n": 0},
        "n",
    ),
    "/v1/embeddings": (
        {"model": "scripted", "input": ["Hi", "there"]},
        {"model": "scripted", "input": "Hi", "dimensions": 1000},
        "dimensions",
    ),
    "/v1/decisions": (
        {**DECISION, "model": "scripted"},
        {**DECISION, "model": "scripted", "questions": []},
        "questions",
    ),
}
"""Endpoint → a request, another that is refused, and for which parameter."""

OURS = frozenset({"id", "created", "created_at", "completed_at", "output"})
"""What differs between two answers to one request: times and ids."""


def essence(answer: Any) -> Any:
    return {name: value for name, value in answer.items() if name not in OURS}


@pytest.fixture
def decided() -> Iterator[None]:
    """Decisions need no model."""
    with deciding():
        yield


@pytest.mark.usefixtures("decided")
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_lines_are_answered_as_over_http(endpoint: str, keyed: bool) -> None:
    request, wrong, param = ENDPOINTS[endpoint]
    given = {"key": "mine", "api_key": ("mine", "other")} if keyed else {}
    async with asking(SCRIPT, **given) as api:
        done = await api.run(
            line("a", request, endpoint), line("b", wrong, endpoint), line("c", request, endpoint),
            endpoint=endpoint, metadata={"for": "tests"},
        )  # fmt: skip
        answers, errors = await api.answers(done), await api.errors(done)
        over_http = await api.http.post(endpoint, json=request)
        refused = await api.http.post(endpoint, json=wrong)

    usage = over_http.json()["usage"]
    read = usage["prompt_tokens"] if "prompt_tokens" in usage else usage["input_tokens"]
    assert (done["status"], done["model"], done["metadata"]) == ("completed", "scripted", {"for": "tests"})
    assert done["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert done["usage"]["input_tokens"] == 2 * read
    assert done["created_at"] <= done["in_progress_at"] <= done["finalizing_at"] <= done["completed_at"]
    assert [essence(answers[each]) for each in "ac"] == [essence(over_http.json())] * 2
    assert errors == {"b": (refused.status_code, refused.json()["error"])}
    assert errors["b"][1]["param"].startswith(param)


async def test_what_the_model_cannot_answer_is_in_the_file_of_errors() -> None:
    async with asking(SCRIPT) as api:
        done = await api.run(line("a"), line("b", body("breaks")))
        answers, errors = await api.answers(done), await api.errors(done)

    assert texts(answers) == {"a": "Hello there!"}
    assert (errors["b"][0], errors["b"][1]["type"]) == (500, "server_error")


async def test_files_of_results_are_files() -> None:
    async with asking(SCRIPT) as api:
        done = await api.run(line("a"), output_expires_after={"anchor": "created_at", "seconds": 3600})
        file = await api.get(f"/v1/files/{done['output_file_id']}")
        listed = await api.get("/v1/files", purpose="batch_output")
        wrong = await api.http.post(
            "/v1/files", files={"file": ("a", b"x")}, data={"purpose": "batch_output"}
        )

    assert (file["purpose"], file["filename"]) == ("batch_output", f"{done['id']}_output.jsonl")
    assert file["expires_at"] == pytest.approx(file["created_at"] + 3600, abs=1)
    assert listed["data"] == [file]
    assert done["error_file_id"] is None
    assert wrong.status_code == 400


# Files that are wrong

GOOD = lines_of(line("good"))
LONG = b'{"custom_id": "' + b"x" * 200_000 + b'"}'

WRONG: dict[str, tuple[bytes, list[tuple[int | None, str, str | None]]]] = {
    "nothing": (b"", [(None, "empty_file", None)]),
    "only empty lines": (b"\n \r\n\n", [(None, "empty_file", None)]),
    "no JSON": (b"{]\n" + GOOD, [(1, "invalid_json_line", None)]),
    "no object": (GOOD + b"[1]\n", [(2, "invalid_line", None)]),
    "no UTF-8": (GOOD.replace(b"Hi", b"\xff\xfe"), [(1, "invalid_json_line", None)]),
    "a long line": (LONG + b"\n" + GOOD, [(1, "line_too_long", None)]),
    "a long last line": (GOOD + LONG, [(2, "line_too_long", None)]),
    "no id": (lines_of({**line("a"), "custom_id": ""}), [(1, "invalid_line", "custom_id")]),
    "a missing id": (
        lines_of({"method": "POST", "url": CHAT, "body": {}}), [(1, "missing_required_parameter", "custom_id")],
    ),
    "an id twice": (
        lines_of(line("a"), line("b"), line("a"), line("a")),
        [(3, "duplicate_custom_id", "custom_id"), (4, "duplicate_custom_id", "custom_id")],
    ),
    "another method": (lines_of(line("a", method="GET")), [(1, "invalid_method", "method")]),
    "another url": (lines_of(line("a", url="/v1/responses")), [(1, "invalid_url", "url")]),
    "a body that is no object": (lines_of(line("a", [1])), [(1, "invalid_request", "body")]),
    "no model": (lines_of(line("a", {"messages": []})), [(1, "missing_required_parameter", "body.model")]),
    "two models": (
        lines_of(line("a"), line("b", body(model="other"))), [(2, "mismatched_model", "body.model")],
    ),
    "an unknown model": (lines_of(line("a", body(model="nobody"))), [(None, "model_not_found", "body.model")]),
    "a stream": (
        lines_of(line("a", body(stream=True)), line("b")), [(1, "invalid_request", "body.stream")],
    ),
    "in the background": (
        lines_of(line("a", body(background=True))), [(1, "invalid_request", "body.background")],
    ),
    "too many lines": (
        lines_of(*(line(f"{number}") for number in range(6))),
        [(5, "too_many_lines", None), (6, "too_many_lines", None)],
    ),
    "endless empty lines": (b"\n" * 100 + GOOD, [(None, "too_many_lines", None)]),
    "several faults": (
        b"{\n\n" + lines_of(line("a", method="PUT"), line("b")) + b"nothing",
        [(1, "invalid_json_line", None), (3, "invalid_method", "method"), (5, "invalid_json_line", None)],
    ),
}  # fmt: skip
"""What is wrong with a file: its lines, the codes and the parameters of its errors."""


@pytest.mark.parametrize("fault", WRONG)
async def test_every_wrong_line_is_listed_and_nothing_is_run(fault: str) -> None:
    content, expected = WRONG[fault]
    limits = replace(DEFAULTS, batch_lines=4, body_bytes=100_000)
    async with asking(SCRIPT, limit=limits) as api:
        batch = await api.create(content)
        again = await api.batch(batch)
        seen = len(api.server.engine.seen)

    errors = batch["errors"]["data"]
    assert sorted((each["line"] or 0, each["code"], each["param"]) for each in errors) == sorted(
        (number or 0, code, param) for number, code, param in expected
    )
    assert batch["status"] == "failed"
    assert batch["failed_at"] is not None
    assert again == batch
    assert seen == 0


async def test_lines_may_be_written_in_several_ways() -> None:
    first, second = line("a"), line("ü 😀" + "x" * 500)
    content = b"\xef\xbb\xbf" + json.dumps(first).encode() + b"\r\n\n  " + json.dumps(second).encode()
    async with asking(SCRIPT) as api:
        done = await api.ended(await api.create(content))
        answers = await api.answers(done)

    assert texts(answers) == {"a": "Hello there!", second["custom_id"]: "Hello there!"}


@pytest.mark.usefixtures("decided")
@pytest.mark.parametrize("named", [None, "", "jev-latest"])
async def test_decisions_may_leave_the_model_to_the_server(named: str | None) -> None:
    url = "/v1/decisions"
    request = {**DECISION, "model": named}
    if named is None:
        del request["model"]
    async with asking(SCRIPT) as api:
        done = await api.run(line("a", request, url), line("b", request, url), endpoint=url)
        mixed = [
            await api.create(lines_of(*lines), url)
            for lines in itertools.permutations([
                line("a", request, url), line("b", {**DECISION, "model": "scripted"}, url)
            ])
        ]  # fmt: skip

    assert (done["status"], done["model"]) == ("completed", "scripted")
    assert done["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
    codes = [[(each["line"], each["code"]) for each in batch["errors"]["data"]] for batch in mixed]
    assert codes == [[(2, "mismatched_model")]] * 2  # in either order


async def test_a_file_with_more_inputs_than_openai_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.apis.batches.lines.MOST_INPUTS", 4)
    url = "/v1/embeddings"
    inputs: list[Any] = ["one text", [1, 2, 3, 4, 5], ["two", "texts"], "one more"]
    lines = [line(f"{at}", {"model": "scripted", "input": each}, url) for at, each in enumerate(inputs)]
    async with asking(SCRIPT) as api:
        batch = await api.create(lines_of(*lines), url)
        done = await api.run(*lines[:3], endpoint=url)

    assert [(each["line"], each["code"]) for each in batch["errors"]["data"]] == [(4, "too_many_inputs")]
    assert done["status"] == "completed"


# Requests that are refused


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/messages"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {f"{number}": "" for number in range(17)}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"input_file_id": 3}, "input_file_id"),
    ],
)
async def test_what_is_wrong_with_a_request_is_named(fields: Any, param: str) -> None:
    async with asking(SCRIPT) as api:
        file = await api.uploaded(GOOD)
        given = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h", **fields}
        error = (await api.post("/v1/batches", given, 400))["error"]

    assert error["param"] == param


async def test_only_own_files_with_the_purpose_are_batches() -> None:
    async with asking(SCRIPT, key="mine", api_key=("mine", "other")) as api:
        theirs = {"authorization": "Bearer other"}
        others = await api.uploaded(GOOD, "user_data")
        batch = await api.create(GOOD)
        missing = (await api.create_of("file-none", status=404))["error"]
        purpose = (await api.create_of(others, status=400))["error"]
        taken = await api.http.post(
            "/v1/batches",
            headers=theirs,
            json={"input_file_id": batch["input_file_id"], "endpoint": CHAT, "completion_window": "24h"},
        )
        hidden = [
            await api.http.request(method, f"/v1/batches/{batch['id']}{path}", headers=theirs)
            for method, path in (("GET", ""), ("POST", "/cancel"))
        ]
        done = await api.ended(batch)
        hidden.append(await api.http.get(f"/v1/files/{done['output_file_id']}/content", headers=theirs))
        listed = (await api.http.get("/v1/batches", headers=theirs)).json()
        no_response = await api.http.get(f"/v1/responses/{batch['id']}")

    assert {missing["param"], purpose["param"]} == {"input_file_id"}
    assert "'batch'" in purpose["message"]
    assert [taken.status_code, *(each.status_code for each in hidden), no_response.status_code] == [404] * 5
    assert listed["data"] == []


async def test_what_a_key_may_do(tmp_path: Any) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(
        "".join(
            f'[[keys]]\nname = "{name}"\nvalue = "{name}"\nscopes = {scopes}\n{more}\n'
            for name, scopes, more in (
                ("both", '["inference", "stored"]', ""),
                ("stored", '["stored"]', ""),
                ("narrow", '["inference", "stored"]', 'models = ["other"]'),
            )
        )
    )
    async with asking(SCRIPT, key="both", keys=keys) as api:
        done = await api.run(line("a"))
        wanted = {"input_file_id": "file-1", "endpoint": CHAT, "completion_window": "24h"}
        stored = {"authorization": "Bearer stored"}
        refused = await api.http.post("/v1/batches", json=wanted, headers=stored)
        listed = await api.http.get("/v1/batches", headers=stored)
        api.http.headers["authorization"] = "Bearer narrow"
        narrow = await api.create(GOOD)

    assert done["request_counts"]["completed"] == 1
    assert (refused.status_code, listed.status_code) == (403, 200)
    assert [each["code"] for each in narrow["errors"]["data"]] == ["model_not_found"]


async def test_pages_of_batches() -> None:
    async with asking(SCRIPT) as api:
        ids = [(await api.create(GOOD))["id"] for _ in range(3)][::-1]

        async def page(**query: Any) -> tuple[list[int], bool]:
            found = await api.get("/v1/batches", **query)
            return [ids.index(batch["id"]) for batch in found["data"]], found["has_more"]

        pages = [await page(), await page(limit=2), await page(after=ids[1])]
        await api.get("/v1/batches", 400, before_id="failed")
        await api.get("/v1/batches/batch_none", 404)
        await api.get("/v1/batches", 404, after="batch_none")

    assert pages == [([0, 1, 2], False), ([0, 1], True), ([2], False)]


# How a batch ends


async def test_a_batch_that_is_cancelled_keeps_what_it_has() -> None:
    lines = [line("a"), *(line(f"e{number}", body("endless")) for number in range(9))]
    async with asking(SCRIPT, parallel=5) as api:
        batch = await api.create(lines_of(*lines))
        await until(lambda: api.server.engine.load.running == 5)
        while (running := await api.batch(batch))["request_counts"]["completed"] < 1:
            await asyncio.sleep(0)
        cancelled = await api.post(f"/v1/batches/{batch['id']}/cancel")
        done = await api.ended(batch)
        again = await api.post(f"/v1/batches/{batch['id']}/cancel")
        answers = await api.answers(done)
        await until(lambda: not api.server.engine.load.running)

    assert running["status"] == "in_progress"
    assert cancelled["status"] in ("cancelling", "cancelled")
    assert (done["status"], again) == ("cancelled", done)
    assert done["cancelling_at"] <= done["cancelled_at"]
    assert texts(answers) == {"a": "Hello there!"}
    assert done["request_counts"] == {"total": 10, "completed": 1, "failed": 0}


async def test_a_batch_that_no_worker_has_is_cancelled_at_once() -> None:
    async with asking(SCRIPT) as api:
        api.server.worker.drain()
        await asyncio.sleep(0)
        batch = await api.create(GOOD)
        done = await api.post(f"/v1/batches/{batch['id']}/cancel")

    assert (batch["status"], done["status"], done["output_file_id"]) == ("validating", "cancelled", None)


async def test_a_batch_that_has_ended_is_not_cancelled() -> None:
    async with asking(SCRIPT) as api:
        done, failed = await api.run(line("a")), await api.create(b"")
        errors = [
            (await api.post(f"/v1/batches/{each['id']}/cancel", status=400))["error"]["message"]
            for each in (done, failed)
        ]

    assert "'completed'" in errors[0]
    assert "'failed'" in errors[1]


@pytest.mark.parametrize("window", [-1.0, 0.3], ids=["before it began", "in the middle"])
async def test_what_was_not_answered_in_time_has_expired(
    monkeypatch: pytest.MonkeyPatch, window: float
) -> None:
    monkeypatch.setattr(batch_work, "WINDOW", window)
    lines = [line("a"), *(line(f"e{number}", body("endless")) for number in range(5))]
    async with asking(SCRIPT, parallel=3) as api:
        done = await api.run(*lines)
        answers, errors = await api.answers(done), await api.errors(done)
        await until(lambda: not api.server.engine.load.running)

    answered = texts(answers)
    assert answered in (({}, {"a": "Hello there!"}) if window > 0 else ({},))
    assert errors == {
        each["custom_id"]: "batch_expired" for each in lines if each["custom_id"] not in answered
    }
    counts = {"total": 6, "completed": len(answered), "failed": 6 - len(answered)}
    assert (done["status"], done["request_counts"]) == ("expired", counts)
    assert done["expired_at"] is not None


async def test_the_file_may_be_deleted_while_the_batch_runs() -> None:
    async with asking(SCRIPT, parallel=1) as api:
        batch = await api.create(lines_of(line("long", body("long")), line("a"), line("b")))
        await api.http.delete(f"/v1/files/{batch['input_file_id']}")
        done = await api.ended(batch)
        gone = await api.create_of(batch["input_file_id"], status=404)

    assert done["request_counts"]["completed"] == 3
    assert gone["error"]["param"] == "input_file_id"


async def test_a_batch_that_cannot_be_run_any_more_lets_its_file_go(monkeypatch: pytest.MonkeyPatch) -> None:
    async def removed(*_: Any) -> None:
        raise RequestError("The model was removed.")

    monkeypatch.setattr(batch_work.BatchLines, "open", removed)
    content = lines_of(line("a"))
    async with asking(SCRIPT) as api:
        batch = await api.create(content)
        done = await api.ended(batch)
        await api.http.delete(f"/v1/files/{batch['input_file_id']}")
        store, digest = api.server.app.storage.store, sha256(content).hexdigest()
        async with asyncio.timeout(20):
            while await store.blobs.get("anyone", digest) is not None:
                await asyncio.sleep(0.005)

    assert done["status"] == "failed"


async def test_results_for_which_there_is_no_room_are_not_passed_over() -> None:
    limits = replace(DEFAULTS, files=1)
    async with asking(SCRIPT, limit=limits) as api:
        done = await api.run(line("a"))

    [error] = done["errors"]["data"]
    assert (done["status"], error["code"]) == ("failed", "limit_exceeded")
    assert "'files'" in error["message"]


# Servers that come and go


async def test_another_server_answers_only_what_has_no_answer() -> None:
    store = await open_store("memory")

    async def opened() -> Any:
        return Kept(store)

    slow = {"when": "slow", "output": "word ", "tokens": 20_000, "delay_ms": 5}
    lines = [line("a"), line("b", body("slow")), line("c", body("slow, too"))]
    async with asking([slow, {"output": "first"}], open_store=opened, parallel=1) as api:
        batch = await api.create(lines_of(*lines))
        while (await api.batch(batch))["request_counts"]["completed"] < 1:
            await asyncio.sleep(0)
        await until(lambda: len(api.server.engine.seen) == 2)
    async with asking([{"output": "second"}], open_store=opened) as api:
        done = await api.ended(batch)
        answers = await api.answers(done)
        seen = len(api.server.engine.seen)
    await store.close()

    assert texts(answers) == {"a": "first", "b": "second", "c": "second"}
    assert seen == 2
    assert done["request_counts"] == {"total": 3, "completed": 3, "failed": 0}


@pytest.mark.parametrize("window", [60.0, -1.0], ids=["in time", "when the window is over"])
async def test_a_server_that_stops_while_it_writes_the_files_loses_none(
    monkeypatch: pytest.MonkeyPatch, window: float
) -> None:
    store = await open_store("memory")

    async def opened() -> Any:
        return Kept(store)

    write, writing = batch_work._write, asyncio.Event()

    async def stuck(*args: Any) -> str:
        await write(*args)
        writing.set()
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(batch_work, "_write", stuck)
    async with asking(SCRIPT, open_store=opened) as api:
        batch = await api.create(lines_of(line("a"), line("b", body(n=0))))
        async with asyncio.timeout(20):
            await writing.wait()
        finalizing = await api.batch(batch)
    monkeypatch.setattr(batch_work, "_write", write)
    monkeypatch.setattr(batch_work, "WINDOW", window)  # all lines have a result: nothing has expired
    async with asking(SCRIPT, open_store=opened) as api:
        done = await api.ended(batch)
        answers, errors = await api.answers(done), await api.errors(done)
        files = (await api.get("/v1/files", purpose="batch_output"))["data"]
        seen = len(api.server.engine.seen)
    await store.close()

    assert finalizing["status"] == "finalizing"
    assert (done["status"], [*answers], [*errors], seen) == ("completed", ["a"], ["b"], 0)
    assert {each["id"] for each in files} == {done["output_file_id"], done["error_file_id"]}


# Who is first


async def test_who_waits_gets_the_slot_of_a_line_which_then_goes_on() -> None:
    async with asking(SCRIPT, parallel=1) as api:
        batch = await api.create(lines_of(line("long", body("long")), line("a")))
        asked = []
        for steps in (20, 40, 80):  # in the middle of the long answer
            await until(lambda steps=steps: api.server.engine.steps > steps)
            asked.append(await api.post(CHAT, body()))
        still = await api.batch(batch)
        done = await api.ended(batch)
        answers = await api.answers(done)
        metrics = (await api.http.get("/metrics")).text

    assert {each["choices"][0]["message"]["content"] for each in asked} == {"Hello there!"}
    assert still["status"] == "in_progress"  # nobody has waited until the long line had ended
    assert texts(answers) == {"long": WORDS, "a": "Hello there!"}
    assert answers["long"]["usage"]["completion_tokens"] == 300
    given_back = [each for each in metrics.splitlines() if each.startswith("antiphon:given_back_total")]
    assert float(given_back[0].split()[-1]) >= 1


async def test_a_background_response_does_not_wait_for_batches() -> None:
    async with asking(SCRIPT, parallel=2, jobs=1) as api:
        batches = [await api.create(lines_of(line("e", body("endless")))) for _ in range(6)]
        await until(lambda: api.server.engine.load.running == 2)
        created = await api.post("/v1/responses", {"model": "scripted", "input": "Hi", "background": True})
        async with asyncio.timeout(20):
            while (await api.get(f"/v1/responses/{created['id']}"))["status"] != "completed":
                await asyncio.sleep(0.005)
        for batch in batches:
            await api.post(f"/v1/batches/{batch['id']}/cancel")


async def test_lines_that_begin_alike_run_next_to_each_other() -> None:
    beginnings = [f"{letter} " * 500 for letter in "abc"]
    lines = [line(f"{at}", body(beginnings[at % 3] + f"{at}")) for at in range(12)]
    async with asking(SCRIPT, parallel=1) as api:
        await api.run(*lines)
        prompts = [request.prompt.text for request in api.server.engine.seen]

    asked = [next(letter for letter in "abc" if f"{letter} {letter} " in prompt) for prompt in prompts]
    assert asked == ["a"] * 4 + ["b"] * 4 + ["c"] * 4


# Responses that may take hours


async def response(api: BatchesApi, said: str = "Hi", status: int = 200, **fields: Any) -> Any:
    return await api.post("/v1/responses", {"model": "scripted", "input": said, **fields}, status)


WINDOW = {"completion_window": "2h"}


@pytest.mark.parametrize(
    "fields",
    [
        {"background_options": WINDOW},
        {"background_options": WINDOW, "background": True, "stream": True},
        {"background_options": WINDOW, "background": True, "service_tier": "priority"},
        {"background_options": {"completion_window": "1h"}, "background": True},
    ],
)
async def test_a_window_is_for_background_responses(fields: Any) -> None:
    async with asking(SCRIPT) as api:
        error = (await response(api, status=400, **fields))["error"]

    assert error["param"] == "background_options.completion_window"


async def test_a_response_that_may_take_hours_lets_others_go_first() -> None:
    async with asking(SCRIPT, parallel=1) as api:
        patient = await response(api, "long", background=True, background_options=WINDOW)
        await until(lambda: api.server.engine.steps > 20)
        await response(api)
        still = await api.get(f"/v1/responses/{patient['id']}")
        async with asyncio.timeout(20):
            while (done := await api.get(f"/v1/responses/{patient['id']}"))["status"] != "completed":
                await asyncio.sleep(0.005)

    assert (patient["background_options"], still["status"]) == (WINDOW, "in_progress")
    assert done["output"][0]["content"][0]["text"] == WORDS


async def test_a_response_whose_window_is_over_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.apis.responses.schema._WINDOWS", {"2h": 0.2})
    async with asking(SCRIPT) as api:
        patient = await response(api, "endless", background=True, background_options=WINDOW)
        async with asyncio.timeout(20):
            while (done := await api.get(f"/v1/responses/{patient['id']}"))["status"] != "failed":
                await asyncio.sleep(0.005)

    assert "longer" in done["error"]["message"]


async def test_what_has_no_effect_is_noted() -> None:
    async with asking(SCRIPT) as api:
        options = {"continuation_id": "c", "completion_window": "soonest"}
        done = await response(api, background_options=options)

    assert [note["param"] for note in done["notes"]] == ["background_options.continuation_id"]
    assert done["background_options"] == options


# Clients that leave


async def test_a_client_that_leaves_while_its_file_is_checked_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = asyncio.Event()

    async def slow(*_: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("antiphon.app.batches.scan", slow)
    async with asking(SCRIPT) as api:
        file = await api.uploaded(GOOD)
        content = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
        async with httpx.AsyncClient(verify=NO_TLS, base_url=api.server.url) as other:
            asked = asyncio.ensure_future(other.post("/v1/batches", json=content))
            async with asyncio.timeout(20):
                await begun.wait()
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        await api.http.delete(f"/v1/files/{file}")
        store, owner = api.server.app.storage.store, "anyone"
        listed = await api.get("/v1/batches")
        async with asyncio.timeout(20):
            while await store.usage.of(owner):
                await store.sweep(4e9)  # blobs that nobody holds
                await asyncio.sleep(0.005)

    assert listed["data"] == []
