"""With keys, all is closed to strangers but /health, /ready and /version; each key may do what its rules say."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx2 as httpx
import openai
import pytest
from starlette.routing import Route
from structlog.testing import capture_logs

from antiphon.engines.scripted import ScriptedEngine
from antiphon.http.app import ROUTES
from antiphon.http.auth import scope_of
from antiphon.http.routes import ApiRoute
from antiphon.run.models import Models
from tests.http.api import client as api
from tests.server import NO_TLS, Running, running, served_model

SCRIPT = [{"output": "Hi"}]
PATHS = [
    "/tokenize",
    "/v1/debug",
    "/v1/status",
    "/v1/models",
    "/v1/models/scripted",
    "/v1/nothing",
    "/v1/chat/completions",
]


@asynccontextmanager
async def guarded(headers: dict[str, str]) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server with two keys."""
    async with (
        running(SCRIPT, api_key=("secret", "other")) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url, headers=headers) as client,
    ):
        yield client


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer wrong", "Bearer secre", "Basic secret", "secret"])
async def test_strangers_get_401_on_every_path(header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    async with guarded(headers) as client:
        for path in PATHS:
            response = await client.get(path)

            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            error = response.json()["error"]
            assert (error["code"], error["param"]) == ("invalid_api_key", None)
            assert "secret" not in response.text
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/ready")).status_code == 200
        assert (await client.get("/version")).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer secret"},
        {"authorization": "bearer other"},
        {"x-api-key": "secret"},
        {"api-key": "other"},
        {"x-api-key": "secret", "authorization": "Bearer placeholder"},
        {"x-api-key": "placeholder", "authorization": "Bearer secret"},
    ],
)
async def test_a_known_key_opens(headers: dict[str, str]) -> None:
    async with guarded(headers) as client:
        assert [model["id"] for model in (await client.get("/v1/models")).json()["data"]] == ["scripted"]
        missing = (await client.get("/v1/nothing")).json()["error"]
        assert missing["message"] == "There is nothing here. Check the path and the id."


ANN = """
[[keys]]
name = "ann"
value = "ann's"
"""
HELLO = {"model": "scripted", "messages": [{"role": "user", "content": "Hello!"}]}


@asynccontextmanager
async def serving(tmp_path: Path, rules: str = "", **options: Any) -> AsyncIterator[Running]:
    """A server with a file of keys, in which Ann has these rules."""
    file = tmp_path / "keys.toml"
    file.write_text(ANN + rules)
    options = {"model_name": ("scripted",)} | options
    async with running([{"output": "Hi"}], keys=file, **options) as server:
        yield server


@asynccontextmanager
async def asking(server: Running, key: str = "ann's") -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(verify=NO_TLS, base_url=server.url, headers=headers) as client:
        yield client


def test_every_route_has_a_scope() -> None:
    """What a new route is for has to be thought of: by default, its POST makes answers, its GET is for all."""
    scopes: dict[object, set[str]] = {}
    for route in ROUTES:
        methods = (route.methods or set()) - {"HEAD"} if isinstance(route, Route) else {"POST"}
        for method in methods:
            scopes.setdefault(scope_of(method, route.path), set()).add(f"{method} {route.path}")
    assert scopes["admin"] == {
        "POST /v1/load_lora_adapter",
        "POST /v1/unload_lora_adapter",
        "GET /v1/replicas",
        "POST /v1/replicas/drain",
        "POST /v1/replicas/resume",
    }
    assert scopes["metrics"] == {"GET /metrics"}
    made = ("conversations", "containers", "files", "uploads", "vector_stores")
    kept = {f"POST /v1/{each}" for each in made}
    assert {each for each in scopes["stored"] if each.startswith("POST") and "{" not in each} == kept
    named = {route.path for route in ROUTES if isinstance(route, ApiRoute) and route.api.model_in_path}
    named |= {"/v1/responses/{response_id}/steer"}
    assert all(
        each.startswith("POST ") and ("{" not in each or each.removeprefix("POST ") in named)
        for each in scopes["inference"]
    )
    told = ("/v1/models/", "/page/", "/api/blobs/")  # the last is refused
    assert all("{" not in each or any(part in each for part in told) for each in scopes[None])


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [
        ("inference", [True, False, False]),
        ("stored", [False, True, False]),
        ("metrics", [False, False, True]),
    ],
)
async def test_a_key_is_for_its_scopes(tmp_path: Path, scope: str, allowed: list[bool]) -> None:
    async with serving(tmp_path, f'scopes = ["{scope}"]') as server, asking(server) as client:
        answers = [
            await client.post("/v1/chat/completions", json=HELLO),
            await client.get("/v1/conversations/conv_x"),
            await client.get("/metrics"),
        ]
        models = await client.get("/v1/models")

    assert [answer.status_code != 403 for answer in answers] == allowed
    refused = next(answer for answer in answers if answer.status_code == 403)
    assert refused.json()["error"]["type"] == "permission_error"
    assert "'ann' does not have the scope" in refused.json()["error"]["message"]
    assert models.status_code == 200


async def test_a_key_that_has_expired(tmp_path: Path) -> None:
    async with serving(tmp_path, "expires = 2020-01-01") as server, asking(server) as client:
        answer = await client.get("/v1/models")

    assert answer.status_code == 401
    assert "expired" in answer.json()["error"]["message"]


async def test_a_key_is_for_its_models(tmp_path: Path) -> None:
    names = [("large", "gpt-*"), ("small", "tiny"), ("qwen3",)]
    served = [served_model(ScriptedEngine([{"output": n[0]}]), model_name=n, dialect="hermes") for n in names]
    models = Models(served, default="large")
    rules = 'models = ["small", "qwen*", "nothing*"]'
    async with serving(tmp_path, rules, models=models) as server, asking(server) as client:
        listed = (await client.get("/v1/models")).json()["data"]
        answers = {
            name: await client.post("/v1/chat/completions", json=HELLO | {"model": name})
            for name in ("small", "tiny", "qwen3", "large", "gpt-9", "nothing-here")
        }
        shown = await client.get("/v1/models/large")
        message = {"max_tokens": 9, "messages": HELLO["messages"], "model": "large"}
        batch = {"requests": [{"custom_id": "a", "params": message}]}
        batched = (await client.post("/v1/messages/batches", json=batch)).json()["id"]
        while (state := (await client.get(f"/v1/messages/batches/{batched}")).json())["ended_at"] is None:
            pass

    assert [each["id"] for each in listed] == ["small", "tiny", "qwen3"]
    assert [name for name, answer in answers.items() if answer.status_code == 200] == [
        "small",
        "tiny",
        "qwen3",
    ]
    error = answers["large"].json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert error["message"].endswith("Use one of: small, tiny, qwen3.")
    assert shown.status_code == 404
    assert state["request_counts"]["errored"] == 1


async def test_requests_per_minute(tmp_path: Path) -> None:
    async with serving(tmp_path, "requests_per_minute = 2") as server, asking(server) as client:
        answers = [await client.post("/v1/chat/completions", json=HELLO) for _ in range(3)]
        models = await client.get("/v1/models")
        message = {"max_tokens": 9, **HELLO}
        messages = await client.post("/v1/messages", json=message)
        ollama = await client.post("/api/chat", json=HELLO)

    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["1", "0", "0"]
    assert answers[0].headers["x-ratelimit-limit-requests"] == "2"
    error = answers[2].json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert 0 < int(answers[2].headers["retry-after"]) <= 30
    assert models.status_code == 200  # no model works for it
    assert messages.status_code == 429
    assert messages.json()["error"]["type"] == "rate_limit_error"
    assert messages.headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert "retry-after" in messages.headers
    assert list(ollama.json()) == ["error"]
    assert (ollama.status_code, ollama.headers["x-ratelimit-remaining-requests"]) == (429, "0")


async def test_tokens_per_minute_are_reserved_and_settled(tmp_path: Path) -> None:
    async with serving(tmp_path, "tokens_per_minute = 1000") as server, asking(server) as client:
        free = await client.post("/v1/chat/completions", json=HELLO)
        asked = await client.post("/v1/chat/completions", json=HELLO | {"max_tokens": 700})
        again = await client.post("/v1/chat/completions", json=HELLO | {"max_tokens": 700})
        never = await client.post("/v1/chat/completions", json=HELLO | {"max_tokens": 1000})
        account = server.app.keys.find("ann's")

    assert [answer.status_code for answer in (free, asked, again, never)] == [200, 200, 200, 400]
    assert int(asked.headers["x-ratelimit-remaining-tokens"]) < 300
    assert never.json()["error"]["code"] == "limit_exceeded"
    used = sum(answer.json()["usage"]["total_tokens"] for answer in (free, asked, again))
    assert account is not None
    assert account.tokens is not None
    assert account.tokens.left == pytest.approx(1000 - used, abs=50)


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_that_are_used_up(tmp_path: Path, stream: bool) -> None:
    async with serving(tmp_path, "tokens_per_minute = 600") as server, asking(server) as client:
        account = server.app.keys.find("ann's")
        assert account is not None
        account.settle(0, 1200)
        asked = HELLO | {"max_tokens": 500, "stream": stream}
        refused = await client.post("/v1/chat/completions", json=asked)
        response = await client.post(
            "/v1/responses", json={"model": "scripted", "input": "Hi", "stream": stream}
        )

    assert refused.status_code == response.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert refused.headers["retry-after"] == "60"
    assert refused.headers["x-ratelimit-remaining-tokens"] == "0"


async def test_answers_in_the_background_use_up_tokens(tmp_path: Path) -> None:
    async with serving(tmp_path, "tokens_per_minute = 600") as server, api(server, "ann's") as client:
        response = await client.create("Hi", background=True)
        await client.finished(response["id"])
        account = server.app.keys.find("ann's")
        assert account is not None
        assert account.tokens is not None
        while account.tokens.left > 599:
            await client.get(f"/responses/{response['id']}")


async def test_answers_at_a_time(tmp_path: Path) -> None:
    engine = ScriptedEngine(
        [{"when": "slow", "output": "word " * 500, "split": 5, "delay_ms": 20}, {"output": "Hi"}]
    )
    models = Models([served_model(engine, model_name=("scripted",), dialect="hermes")])
    slow = HELLO | {"messages": [{"role": "user", "content": "slow"}], "stream": True}
    async with serving(tmp_path, "concurrent = 1", models=models) as server, asking(server) as client:
        async with client.stream("POST", "/v1/chat/completions", json=slow) as stream:
            async for _ in stream.aiter_lines():
                break
            refused = await client.post("/v1/chat/completions", json=HELLO)
        while (answer := await client.post("/v1/chat/completions", json=HELLO)).status_code == 429:
            pass  # the server has not yet seen that the client has left

    assert refused.status_code == 429
    assert "1 answers under way" in refused.json()["error"]["message"]
    assert refused.headers["retry-after"] == "1"
    assert answer.status_code == 200


async def test_sdks_see_a_rate_limit(tmp_path: Path) -> None:
    async with serving(tmp_path, "requests_per_minute = 1") as server, asking(server) as http:
        await http.post("/v1/chat/completions", json=HELLO)
        chat = openai.AsyncOpenAI(api_key="ann's", base_url=f"{server.url}/v1", max_retries=0)
        with pytest.raises(openai.RateLimitError) as limited:
            await chat.chat.completions.create(**HELLO)  # type: ignore[call-overload]
        claude = anthropic.AsyncAnthropic(api_key="ann's", base_url=server.url, max_retries=0)
        with pytest.raises(anthropic.RateLimitError) as refused:
            await claude.messages.create(max_tokens=9, **HELLO)  # type: ignore[call-overload]
        await chat.close()
        await claude.close()

    assert limited.value.code == "rate_limit_exceeded"
    assert limited.value.response.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.value.response.headers["anthropic-ratelimit-requests-limit"] == "1"


async def test_the_log_names_the_key(tmp_path: Path) -> None:
    async with serving(tmp_path, "requests_per_minute = 1") as server, asking(server) as client:
        with capture_logs() as logs:
            await client.post("/v1/chat/completions", json=HELLO)
            await client.post("/v1/chat/completions", json=HELLO)

    assert [(each["key"], each["status"]) for each in logs if each["event"] == "request"] == [
        ("ann", 200),
        ("ann", 429),
    ]
    assert "ann's" not in str(logs)
    async with guarded({"authorization": "Bearer secret"}) as client:
        with capture_logs() as logs:
            await client.get("/v1/models")
    assert [len(each["key"]) for each in logs if each["event"] == "request"] == [8]


async def test_what_is_stored_stays_with_a_key_that_moves_to_the_file(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    async with (
        running([{"output": "Hi"}], api_key=("ann's",), model_name=("scripted",), store=store) as server,
        api(server, "ann's") as client,
    ):
        response = await client.create("Hello")
    async with serving(tmp_path, store=store) as server, api(server, "ann's") as client:
        assert (await client.get(f"/responses/{response['id']}"))["id"] == response["id"]
