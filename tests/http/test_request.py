"""What every request has in common: its id, what its parameters are called, the model that it is for."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio
from structlog.testing import capture_logs
from websockets.asyncio.client import connect

from antiphon.run.endings import DeadlineError
from antiphon.run.models import Models
from tests.server import NO_TLS, Running, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCRIPT = [
    {"when": "Slowly", "output": "word ", "tokens": 10_000, "delay_ms": 10},
    {"output": "Hello"},
]
MESSAGES = [{"role": "user", "content": "Hi"}]
ANSWERS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/chat/completions/batch": {"messages": [MESSAGES]},
    "/v1/chat/completions/render": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/completions/render": {"prompt": "Hi"},
    "/v1/responses/render": {"input": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/responses/compact": {"input": "Hi"},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": []},
}
"""The endpoints whose requests are for a model, with the least that they take."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Running]:
    async with running(SCRIPT, model_name=("first", "second"), default_model="first") as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(server: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http:
        yield http


# Deadlines

SLOW = [{"role": "user", "content": "Slowly"}]
SLOWLY: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": SLOW},
    "/v1/chat/completions/batch": {"messages": [SLOW]},
    "/v1/completions": {"prompt": "Slowly", "max_tokens": 10_000},
    "/v1/responses": {"input": "Slowly"},
    "/v1/responses/compact": {"input": "Slowly"},
    "/v1/messages": {"messages": SLOW, "max_tokens": 10_000, "model": "first"},
}


@pytest.mark.parametrize("path", SLOWLY)
async def test_a_request_bounds_the_time_of_its_answer(
    server: Running, http: httpx.AsyncClient, path: str
) -> None:
    response = await http.post(path, json=SLOWLY[path] | {"deadline_seconds": 0.05})
    assert response.status_code == 504
    error = response.json()["error"]
    assert error["message"] == DeadlineError().message
    assert error.get("code", "deadline_exceeded") == "deadline_exceeded"
    async with asyncio.timeout(5):
        while server.engine.load.running:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("path", SLOWLY)
async def test_a_deadline_is_above_zero(http: httpx.AsyncClient, path: str) -> None:
    response = await http.post(path, json=SLOWLY[path] | {"deadline_seconds": 0})
    assert response.status_code == 400
    assert "deadline_seconds" in response.json()["error"]["message"]


async def test_a_response_in_the_background_keeps_its_deadline(http: httpx.AsyncClient) -> None:
    body = {"input": "Slowly", "background": True, "deadline_seconds": 0.1}
    queued = (await http.post("/v1/responses", json=body)).json()
    async with asyncio.timeout(10):
        while (shown := (await http.get(f"/v1/responses/{queued['id']}")).json())["status"] != "failed":
            assert shown["status"] in ("queued", "in_progress")
            await asyncio.sleep(0.02)
    assert shown["error"]["message"] == DeadlineError().message


# Ids


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        *(("POST", path, body) for path, body in ANSWERS.items()),
        *(("POST", path, {"temperature": "hot"}) for path in ANSWERS),
        *(("POST", path, body | {"stream": True}) for path, body in ANSWERS.items()),
        ("GET", "/v1/models", None),
        ("GET", "/v1/models/none", None),
        ("GET", "/health", None),
        ("GET", "/nothing", None),
        ("PUT", "/v1/models", None),
        ("GET", "/v1/responses/resp_none", None),
        ("POST", "/v1/conversations", {}),
    ],
)
async def test_every_response_has_the_id_of_its_request(
    http: httpx.AsyncClient, method: str, path: str, body: Any
) -> None:
    response = await http.request(method, path, json=body, headers={"x-request-id": "mine-1"})
    assert response.headers.get_list("x-request-id") == ["mine-1"]
    first, second = [await http.request(method, path, json=body) for _ in range(2)]
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


async def test_an_id_that_no_header_holds_is_replaced(http: httpx.AsyncClient) -> None:
    response = await http.get("/v1/models", headers={"x-request-id": "a" * 129})
    assert response.headers["x-request-id"].startswith("req_")


async def test_a_request_without_a_key_has_an_id_too() -> None:
    async with (
        running(SCRIPT, api_key=("secret",)) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http,
    ):
        response = await http.get("/v1/models", headers={"x-request-id": "mine"})
    assert (response.status_code, response.headers["x-request-id"]) == (401, "mine")


async def test_a_bug_has_an_id_too(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> object:
        raise ZeroDivisionError

    monkeypatch.setattr(Models, "entries", broken)
    with capture_logs():
        response = await http.get("/v1/models", headers={"x-request-id": "mine"})
    assert (response.status_code, response.headers["x-request-id"]) == (500, "mine")


async def test_a_response_that_is_not_stored_goes_by_the_id_of_its_request(http: httpx.AsyncClient) -> None:
    async def created(headers: dict[str, str], **more: Any) -> str:
        body = {"input": "Hi", **more}
        response = await http.post("/v1/responses", json=body, headers=headers)
        assert response.status_code == 200, response.text
        id_: str = response.json()["id"]
        return id_

    assert await created({}, request_id="r-1", store=False) == "resp_r-1"
    assert await created({"x-request-id": "h"}, store=False) == "resp_h"
    assert await created({"x-request-id": "h"}, request_id="r", store=False) == "resp_r"
    assert "r-1" not in await created({}, request_id="r-1")
    refused = await http.post("/v1/responses", json={"input": "Hi", "request_id": "a\tb"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "request_id")


# Names of parameters


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"rep_pen": 0}, "rep_pen"),
        ({"options": {"num_predict": "many"}}, "options.num_predict"),
        ({"banned_strings": ["no"]}, "banned_strings"),  # which the engine cannot do
        ({"guided_regex": "("}, "guided_regex"),
        ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
        ({"tfs_z": -1}, "tfs_z"),
        ({"smoothing_curve": 2.5}, "smoothing_curve"),
    ],
)
async def test_errors_blame_what_was_sent(
    http: httpx.AsyncClient, path: str, more: dict[str, Any], param: str
) -> None:
    for stream in (False, True):
        response = await http.post(path, json=ANSWERS[path] | more | {"stream": stream})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param


async def test_errors_on_a_socket_blame_what_was_sent(server: Running) -> None:
    async with connect(server.url.replace("http", "ws") + "/v1/responses", compression=None) as socket:
        for more, param in [
            ({"rep_pen": 0}, "rep_pen"),
            ({"n": 2}, "n"),
            ({"banned_strings": "a"}, "banned_strings"),
        ]:
            await socket.send(json.dumps({"type": "response.create", "input": "Hi", **more}))
            assert json.loads(await socket.recv())["error"]["param"] == param


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
async def test_unknown_parameters_are_ignored_with_one_line_in_the_log(
    http: httpx.AsyncClient, path: str
) -> None:
    with capture_logs() as logs:
        response = await http.post(path, json=ANSWERS[path] | {"wibble": 1, "options": {"wobble": 2}})
    assert response.status_code == 200
    ignored = [log["names"] for log in logs if log["event"] == "unknown parameters ignored"]
    assert ignored == [["wibble", "options.wobble"]]


async def test_a_background_response_keeps_what_other_names_said(
    http: httpx.AsyncClient, server: Running
) -> None:
    body = {"input": "Hi", "background": True, "stream": True, "rep_pen": 1.5, "max_new_tokens": 7}
    response = await http.post("/v1/responses", json=body)
    assert '"status":"completed"' in response.text or "response.incomplete" in response.text
    sampling = server.engine.seen[-1].sampling
    assert (sampling.repetition_penalty, sampling.max_tokens) == (1.5, 7)


# Models


async def test_a_server_without_a_default_wants_a_model() -> None:
    async with (
        running(SCRIPT) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http,
    ):
        for path, body in ANSWERS.items():
            if path == "/detokenize":  # it is llama-server's, too, whose clients name none
                continue
            missing = await http.post(path, json=body)
            assert (missing.status_code, missing.json()["error"]["param"]) == (400, "model")
            assert (await http.post(path, json=body | {"model": ""})).status_code == 200


@pytest.mark.parametrize("path", ANSWERS)
async def test_a_request_without_a_model_is_for_the_first(http: httpx.AsyncClient, path: str) -> None:
    for model in ({}, {"model": None}, {"model": ""}):
        response = await http.post(path, json=ANSWERS[path] | model)
        assert response.status_code == 200, response.text
        body = response.json()
        first = body[0] if isinstance(body, list) else body
        assert first.get("model", "first") == "first"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
async def test_answers_name_the_model_that_was_requested(http: httpx.AsyncClient, path: str) -> None:
    for name in ("first", "second", "one that the default model answers for"):
        response = await http.post(path, json=ANSWERS[path] | {"model": name})
        assert response.json()["model"] == name


async def test_what_is_not_served_says_what_is(http: httpx.AsyncClient) -> None:
    for path, served in {
        "/v1/images/generations": "/v1/chat/completions",
        "/v1/audio/speech": "/v1/responses",
        "/v1/assistants": "/v1/responses",
        "/v1/threads/runs": "/v1/conversations",
    }.items():
        response = await http.post(path, json={})
        assert response.status_code == 404
        assert response.json()["error"]["type"] == "not_found_error"
        assert served in response.json()["error"]["message"]
    assert "Check the path" in (await http.get("/v1/nothing")).json()["error"]["message"]


# What is misspelt, or wrong


async def test_names_that_an_endpoint_does_not_know_are_logged(http: httpx.AsyncClient) -> None:
    with capture_logs() as logs:
        listed = await http.get("/v1/responses?limit=1&include[]=usage&beta=true")
        made = await http.post("/v1/vector_stores?limt=3", json={"name": "a", "nmae": "b"})
    assert (len(listed.json()["data"]) <= 1, made.json()["name"]) == (True, "a")
    ignored = [log["names"] for log in logs if log["event"] == "unknown parameters ignored"]
    assert ignored == [["beta", "include[]"], ["nmae"], ["limt"]]


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/files?purpos=assistants", "/v1/responses?limt=3", "/v1/responses?model=m"),
        *("/v1/chat/completions?metadata=x", "/v1/conversations/conv_1/items?type=message"),
        *("/v1/vector_stores?name=x", "/v1/containers?user=x"),
    ],
)
async def test_what_would_make_a_list_shorter_is_not_ignored(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.get(path)
    name = path.partition("?")[2].partition("=")[0]
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


@pytest.mark.parametrize("tier", ["standard", "gold", 1])
async def test_a_service_tier_that_there_is_not(http: httpx.AsyncClient, tier: object) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 9}),
    ):
        answer = await http.post(path, json=body | {"service_tier": tier})
        assert answer.status_code == 400
        assert "service_tier" in answer.text


async def test_the_fingerprint_is_that_of_a_model(http: httpx.AsyncClient) -> None:
    bodies = [
        (await http.post("/v1/chat/completions", json={"messages": MESSAGES, "model": model})).json()
        for model in ("first", "first", "second")
    ]
    first, again, other = (body["system_fingerprint"] for body in bodies)
    assert first == again != other
    completion = (await http.post("/v1/completions", json={"prompt": "Hi", "model": "first"})).json()
    assert completion["system_fingerprint"] == first


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/chat/completions/render", "POST"),
        ("GET", "/v1/chat/completions/batch", "POST"),
        ("GET", "/v1/responses/compact", "POST"),
        ("DELETE", "/v1/messages/batches", "GET, HEAD, POST"),
        ("PUT", "/v1/chat/completions/x", "DELETE, GET, HEAD, POST"),
        ("DELETE", "/v1/models", "GET, HEAD"),
        ("DELETE", "/v1/models/a/b", "GET, HEAD"),
    ],
)
async def test_the_methods_of_a_path_are_named(
    http: httpx.AsyncClient, method: str, path: str, allowed: str
) -> None:
    answer = await http.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize(
    ("path", "body", "param", "known"),
    [
        ("/v1/responses", {"input": "Hi", "truncation": "x"}, "truncation", "'auto', 'disabled'"),
        ("/v1/responses", {"input": "Hi", "reasoning": {"effort": "x"}}, "reasoning.effort", "'low'"),
        (
            "/v1/chat/completions",
            {"messages": MESSAGES, "response_format": {"type": "x"}},
            "response_format.type",
            "'json_object'",
        ),
        ("/v1/uploads", {"filename": "a", "purpose": "x", "bytes": 1}, "purpose", "'assistants'"),
    ],
)
async def test_the_error_of_a_value_that_nobody_knows_has_those_that_are_known(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], param: str, known: str
) -> None:
    response = await http.post(path, json=body | {"mime_type": "text/plain"})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert error["message"].startswith(f"Invalid value for '{param}': 'x' is none of ")
    assert known in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/chat/completions", "GET, HEAD, POST"),
        ("PATCH", "/v1/files/file-1", "DELETE, GET, HEAD"),
        ("GET", "/v1/embeddings", "POST"),
    ],
)
async def test_the_error_of_a_wrong_method_has_those_of_the_path(
    http: httpx.AsyncClient, method: str, path: str, allowed: str
) -> None:
    response = await http.request(method, path)
    assert (response.status_code, response.headers["allow"]) == (405, allowed)
    message = f"This path does not take {method}. Use {allowed.replace(', ', ' or ')}."
    assert response.json()["error"]["message"] == message


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("/v1/files", {}, "Missing required parameter: 'purpose'."),
        ("/v1/files", {"purpose": "x"}, "Invalid value for 'purpose': 'x' is none of "),
        ("/v1/audio/transcriptions", {"stream": "maybe"}, "Invalid value for 'stream': Expected `boolean`"),
    ],
)
async def test_the_fields_of_forms_are_named(
    http: httpx.AsyncClient, path: str, fields: dict[str, str], message: str
) -> None:
    response = await http.post(path, files={"file": ("a", b"x")}, data=fields)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(message)
