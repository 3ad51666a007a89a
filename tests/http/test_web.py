"""How a server is reached: from web pages of other origins, behind proxies, below a path."""

import re

import httpx2 as httpx
import pytest
from starlette.routing import Route
from structlog.testing import capture_logs
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from antiphon.http.app import ROUTES
from tests.server import NO_TLS, Running, running

SCRIPT = [{"output": "Hi"}]
PAGE = "https://chat.example.com"
HELLO = {"model": "scripted", "messages": [{"role": "user", "content": "Hello!"}]}


def asking(server: Running, **headers: str) -> httpx.AsyncClient:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.AsyncClient(verify=NO_TLS, base_url=server.url, headers=named)


PREFLIGHT = {
    "access_control_request_method": "POST",
    "access_control_request_headers": "authorization,content-type,x-stainless-os",
}


async def test_a_page_of_an_origin_that_is_allowed() -> None:
    async with running(SCRIPT, api_key=("secret",), allow_origin=(PAGE,)) as server:
        async with asking(server, origin=PAGE, **PREFLIGHT) as client:
            preflight = await client.options("/v1/chat/completions")
        async with asking(server, origin=PAGE, authorization="Bearer secret") as client:
            answer = await client.post("/v1/chat/completions", json=HELLO | {"stream": True})
        async with asking(server, origin=PAGE) as client:
            refused = await client.get("/v1/models")
            missing = await client.get("/nothing")

    assert preflight.status_code == 200
    allowed = preflight.headers["access-control-allow-headers"].lower()
    assert all(name in allowed for name in ("authorization", "content-type", "x-stainless-os"))
    assert answer.status_code == 200
    assert answer.text.endswith("data: [DONE]\n\n")
    for response in (preflight, answer, refused, missing):
        assert response.headers["access-control-allow-origin"] == PAGE
    exposed = answer.headers["access-control-expose-headers"]
    assert {"x-request-id", "retry-after", "x-ratelimit-remaining-tokens"} <= set(exposed.split(", "))
    assert refused.status_code == missing.status_code == 401  # and the page can read why
    assert refused.json()["error"]["code"] == "invalid_api_key"


async def test_a_page_of_another_origin() -> None:
    async with (
        running(SCRIPT, allow_origin=(PAGE,)) as server,
        asking(server, origin="https://evil.example") as client,
    ):
        answer = await client.get("/v1/models")
        preflight = await client.options("/v1/models", headers={"access-control-request-method": "GET"})

    assert "access-control-allow-origin" not in answer.headers
    assert preflight.status_code == 400


async def test_by_default_no_page_may() -> None:
    async with running(SCRIPT) as server, asking(server, origin=PAGE) as client:
        answer = await client.get("/v1/models")
        preflight = await client.options("/v1/models", headers={"access-control-request-method": "GET"})

    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert preflight.status_code == 405


@pytest.mark.parametrize("origins", [(PAGE,), ("*",), ()])
async def test_sockets_of_pages_need_an_origin_that_is_allowed(origins: tuple[str, ...]) -> None:
    async with running(SCRIPT, allow_origin=origins) as server:
        url = server.url.replace("http", "ws") + "/v1/responses"
        if origins:
            async with connect(url, origin=PAGE):  # type: ignore[arg-type]
                pass
        else:
            with pytest.raises(InvalidStatus):
                async with connect(url, origin=PAGE):  # type: ignore[arg-type]
                    pass


@pytest.mark.parametrize("prefix", ["/llm", ""])
async def test_below_a_path_that_a_proxy_takes_off_or_not(prefix: str) -> None:
    async with running(SCRIPT, api_key=("secret",), root_path="/llm") as server:
        async with asking(server, authorization="Bearer secret") as client:
            health = await client.get(f"{prefix}/health")
            answer = await client.post(f"{prefix}/v1/chat/completions", json=HELLO)
            params = {"max_tokens": 9, **HELLO}
            batch = {"requests": [{"custom_id": "a", "params": params}]}
            made = (await client.post(f"{prefix}/v1/messages/batches", json=batch)).json()["id"]
            while (shown := (await client.get(f"{prefix}/v1/messages/batches/{made}")).json())[
                "ended_at"
            ] is None:
                pass
            results = await client.get(shown["results_url"].replace("/llm", prefix))
            other = await client.get("/llmx/health")
        async with asking(server) as client:
            closed = await client.get(f"{prefix}/v1/models")

    assert health.status_code == answer.status_code == results.status_code == 200
    assert shown["results_url"].startswith(f"{server.url}/llm/v1/messages/batches/")
    assert (other.status_code, closed.status_code) == (404, 401)


@pytest.mark.parametrize(
    ("proxies", "believed"), [(("127.0.0.0/8",), True), (("10.0.0.1",), False), ((), False)]
)
async def test_what_a_trusted_proxy_says_is_believed(proxies: tuple[str, ...], believed: bool) -> None:
    said = {"x_forwarded_for": "203.0.113.9", "x_forwarded_proto": "https"}
    async with running(SCRIPT, trusted_proxy=proxies) as server, asking(server, **said) as client:
        batch = {"requests": [{"custom_id": "a", "params": {"max_tokens": 9, **HELLO}}]}
        made = (await client.post("/v1/messages/batches", json=batch)).json()["id"]
        while (shown := (await client.get(f"/v1/messages/batches/{made}")).json())["ended_at"] is None:
            pass

    assert shown["results_url"].startswith("https://") == believed


async def test_refused_pages_are_logged_as_every_request() -> None:
    async with (
        running(SCRIPT, api_key=("secret",), allow_origin=(PAGE,)) as server,
        asking(server, origin=PAGE) as client,
    ):
        with capture_logs() as logs:
            await client.get("/v1/models")

    assert [line["status"] for line in logs if line["event"] == "request"] == [401]


@pytest.mark.parametrize("origins", [(PAGE,), ("*",), ()])
async def test_a_preflight_request_for_a_private_network(origins: tuple[str, ...]) -> None:
    wanted = {"access_control_request_method": "POST", "access_control_request_private_network": "true"}
    async with running(SCRIPT, allow_origin=origins) as server:
        for origin in (PAGE, "https://evil.example"):
            allowed = origin in origins or "*" in origins
            async with asking(server, origin=origin, **wanted) as client:
                answers = [await client.options(path) for path in ("/v1/responses", "/v1/messages")]
                plain = await client.post("/v1/chat/completions", json=HELLO)
            for answer in answers:
                names = [name for name in answer.headers if name.startswith("access-control-allow")]
                assert (answer.status_code == 200) is allowed
                assert answer.headers.get("access-control-allow-private-network") == (
                    "true" if allowed else None
                )
                assert "access-control-allow-origin" in names or not allowed
            assert "access-control-allow-private-network" not in plain.headers


@pytest.mark.parametrize("root", ["", "/llm"])
async def test_a_path_may_end_in_a_slash(root: str) -> None:
    """It means the same: to the router, to keys, and to errors."""
    async with running(SCRIPT, api_key=("secret",), admin_key=("admin",), root_path=root) as server:
        async with asking(server, authorization="Bearer secret", x_forwarded_proto="https") as client:
            for route in ROUTES:
                if not isinstance(route, Route):
                    continue
                path = root + re.sub(r"\{.*?\}", "none", route.path)
                for method in route.methods or ():
                    without, with_slash = [
                        await client.request(method, path.removesuffix("/") + end) for end in ("", "/")
                    ]
                    assert without.status_code == with_slash.status_code, (method, path)
                    assert not without.is_redirect
            answer = await client.post(f"{root}/v1/chat/completions/", json=HELLO)
            sloppy = await client.post(f"{root}/v1/chat/completions//", json=HELLO)
            wrong = await client.put(f"{root}/v1/messages/")
        async with asking(server) as client:
            closed = await client.post(f"{root}/v1/load_lora_adapter/", json={})
        async with connect(
            server.url.replace("http", "ws") + f"{root}/v1/responses/",
            additional_headers={"authorization": "Bearer secret"},
        ):
            pass

    assert (answer.status_code, sloppy.status_code, closed.status_code) == (200, 200, 401)
    assert (wrong.status_code, wrong.json()["type"]) == (405, "error")


ODD_IDS = [b"caf\xe9", "café".encode(), b"a\tb", b"y" * 129, b"y" * 5000]


@pytest.mark.parametrize("odd", ODD_IDS)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", HELLO),
        ("/v1/chat/completions/batch", {"model": "scripted", "messages": [HELLO["messages"]]}),
        ("/v1/completions", {"model": "scripted", "prompt": "Hello"}),
        ("/v1/responses", {"model": "scripted", "input": "Hello", "store": False}),
        ("/v1/messages", {**HELLO, "max_tokens": 9}),
        ("/tokenize", {"prompt": "Hello"}),
        ("/v1/messages/count_tokens", HELLO),
        ("/v1/messages", {}),
        ("/nothing", {}),
    ],
)
async def test_an_id_of_a_request_that_cannot_be_used_is_replaced(
    odd: bytes, path: str, body: object
) -> None:
    async with running(SCRIPT) as server, httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client:
        plain = await client.post(path, json=body)
        answer = await client.post(path, json=body, headers=[(b"x-request-id", odd)])
        kept = await client.post(path, json=body, headers={"x-request-id": "y" * 128})
    assert answer.status_code == plain.status_code == kept.status_code
    for name in ("x-request-id", "request-id"):
        assert answer.headers[name].startswith("req_")
        assert kept.headers[name] == "y" * 128
