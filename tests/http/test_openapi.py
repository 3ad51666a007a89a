"""The document at /openapi.json: it is valid, has every route, and the server's real answers match it."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import msgspec
import pytest
import pytest_asyncio
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from starlette.routing import Route

from antiphon.engines.script import token_id
from antiphon.http.app import ROUTES
from antiphon.http.openapi import OPERATIONS, document
from tests.apis.decision_requests import OPENAI, SYSTEMONE
from tests.deciding import deciding
from tests.server import NO_TLS, running

pytestmark = pytest.mark.asyncio(loop_scope="module")
Json = dict[str, Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with (
        running([{"output": "Hi"}], root_path="/llm", model_name=("scripted",), debug_answers=9) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http,
    ):
        yield http


@pytest.fixture(scope="module")
def spec() -> Json:
    spec: Json = json.loads(msgspec.json.encode(document(ROUTES)))
    return spec


async def test_it_is_valid(spec: Json) -> None:
    validate(spec)


async def test_it_has_every_route_and_no_other(spec: Json) -> None:
    routes = {
        f"{method} {route.path.replace(':path', '')}"
        for route in ROUTES
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    told = {f"{method.upper()} {path}" for path, methods in spec["paths"].items() for method in methods}
    assert told == routes
    assert set(OPERATIONS) <= routes
    silent = [
        f"{method} {path}"
        for path, methods in spec["paths"].items()
        for method, operation in methods.items()
        if not operation["summary"].endswith(".") or "Raises" in operation["summary"]
    ]
    assert silent == [], "give them their types in OPERATIONS, in src/antiphon/http/openapi.py"


async def test_every_answer_and_every_body_has_a_type(spec: Json) -> None:
    silent = [
        f"{method} {path}"
        for path, methods in spec["paths"].items()
        for method, operation in methods.items()
        if operation["responses"]["200"]["content"].get("application/json", {"schema": True})["schema"] == {}
        or (method == "post" and not path.endswith("/cancel") and "requestBody" not in operation)
    ]
    assert silent == [], "give them their types in OPERATIONS, in src/antiphon/http/openapi.py"


async def test_the_server_gives_it_without_a_key(http: httpx.AsyncClient, spec: Json) -> None:
    async with (
        running([{"output": "Hi"}], api_key=("secret",)) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as guarded,
    ):
        response = await guarded.get("/openapi.json")
        page = await guarded.get("/docs")

    assert response.json() == spec
    assert (await http.get("/openapi.json")).json()["servers"] == [{"url": "/llm"}]
    assert page.status_code == 200
    assert 'src="page/vendor/swagger-ui.js"' in page.text
    assert "connect-src 'self'" in page.headers["content-security-policy"]
    assert "http" not in page.headers["content-security-policy"]


TOKENS = [token_id("Hi")]
HELLO = {"model": "scripted", "messages": [{"role": "user", "content": "Hello!"}]}
ASKED: list[tuple[str, Json]] = [
    ("/v1/chat/completions", HELLO | {"logprobs": True, "store": True}),
    ("/v1/chat/completions/render", HELLO),
    ("/v1/completions/render", {"model": "scripted", "prompt": "Hello"}),
    ("/v1/responses/render", {"model": "scripted", "input": "Hello"}),
    ("/v1/messages/render", HELLO | {"max_tokens": 9}),
    ("/inference/v1/generate", {"token_ids": TOKENS, "sampling_params": {"logprobs": 1}}),
    ("/v1/decisions", OPENAI | {"model": "scripted", "x_diagnostics": True}),
    ("/v1/systemone", SYSTEMONE | {"model": "scripted", "x_diagnostics": True}),
    ("/v1/completions", {"model": "scripted", "prompt": "Hello"}),
    ("/v1/responses", {"model": "scripted", "input": "Hello"}),
    ("/v1/responses/input_tokens", {"model": "scripted", "input": "Hello"}),
    ("/v1/messages", HELLO | {"max_tokens": 9}),
    ("/v1/messages/count_tokens", HELLO),
    ("/v1/messages/batches", {"requests": [{"custom_id": "a", "params": HELLO | {"max_tokens": 9}}]}),
    ("/v1/conversations", {"metadata": {"a": "b"}}),
    ("/v1/vector_stores", {"name": "files"}),
    ("/tokenize", {"model": "scripted", "prompt": "Hello"}),
]


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/models", "/v1/models/scripted", "/health", "/ready", "/version", "/v1/status", "/v1/files"),
        *("/v1/debug", "/v1/responses", "/v1/chat/completions", "/v1/containers", "/v1/vector_stores"),
        *("/v1/messages/batches", "/v1/debug/chatcmpl-1", "/v1/conversations/CONVERSATION/items"),
    ],
)
async def test_what_is_read_is_as_it_tells(http: httpx.AsyncClient, spec: Json, path: str) -> None:
    """Where there is something to read."""
    said = {"model": "scripted", "input": "Hi"}
    await http.post("/v1/responses", json=said)
    await http.post("/v1/chat/completions", json=HELLO | {"store": True})
    await http.post("/v1/chat/completions", json=HELLO | {"request_id": "1"})
    items = [{"type": "message", "role": "user", "content": "Hi"}]
    conversation = (await http.post("/v1/conversations", json={"items": items})).json()["id"]

    answer = await http.get(path.replace("CONVERSATION", conversation))
    assert answer.status_code == 200, answer.text
    known = path.replace("scripted", "{model}").replace("chatcmpl-1", "{answer_id}")
    operation = spec["paths"][known.replace("CONVERSATION", "{conversation_id}")]["get"]
    check(answer.json(), operation["responses"]["200"]["content"], spec)


@pytest.mark.parametrize(("path", "body"), ASKED, ids=[path for path, _ in ASKED])
async def test_requests_and_answers_are_as_it_tells(
    http: httpx.AsyncClient, spec: Json, path: str, body: Json
) -> None:
    operation = spec["paths"][path]["post"]
    with deciding():
        answer = await http.post(path, json=body)
    wrong = await http.post(path, json=[])

    assert answer.status_code == 200, answer.text
    check(body, operation["requestBody"]["content"], spec)
    check(answer.json(), operation["responses"]["200"]["content"], spec)
    check(wrong.json(), operation["responses"]["default"]["content"], spec)


def check(value: Any, content: Json, spec: Json) -> None:
    schema = {**content["application/json"]["schema"], "components": spec["components"]}
    assert [*Draft202012Validator(schema).iter_errors(value)] == []


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/v1/model", "/v1/models"),
        ("/responses", "/v1/responses"),
    ],
)
async def test_a_path_that_is_not_there_names_the_nearest(
    http: httpx.AsyncClient, path: str, near: str
) -> None:
    response = await http.post(path, json={})
    assert response.status_code == 404
    assert response.json()["error"]["message"] == f"There is nothing at {path}. Did you mean {near}?"


@pytest.mark.parametrize("path", ["/nonsense", "/v1/" + "x" * 3000])
async def test_one_that_is_near_to_none(http: httpx.AsyncClient, path: str) -> None:
    message = (await http.get(path)).json()["error"]["message"]
    assert message.startswith("There is nothing here.")
