"""With keys, all is closed to strangers but /health, /ready and /version."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2 as httpx
import pytest
from starlette.requests import Request

from antiphon.http.auth import ANYONE, KeyMiddleware
from antiphon.http.request import owner_of
from tests.server import NO_TLS, running

SCRIPT = [{"output": "Hi"}]
PATHS = ["/tokenize", "/", "/v1/models", "/v1/models/scripted", "/v1/nothing", "/v1/chat/completions"]


@asynccontextmanager
async def guarded(headers: dict[str, str]) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server with two keys."""
    async with (
        running(SCRIPT, keys=("secret", "other")) as server,
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
        {"x-api-key": "secret", "authorization": "Bearer placeholder"},
        {"x-api-key": "placeholder", "authorization": "Bearer secret"},
    ],
)
async def test_a_known_key_opens(headers: dict[str, str]) -> None:
    async with guarded(headers) as client:
        assert (await client.get("/v1/models")).status_code == 200
        assert (await client.get("/v1/nothing")).status_code == 404


async def test_the_request_carries_the_identity_of_its_key_and_not_the_key() -> None:
    owners = [await _owner(keys, given) for keys, given in [(["a", "b"], "a"), (["a", "b"], "b"), ([], "a")]]

    assert owners[0] != owners[1]
    assert owners[2] == ANYONE
    assert await _owner(["b", "a"], "a") == owners[0]
    assert "a" != owners[0] != "b"


async def _owner(keys: list[str], given: str) -> str:
    seen: list[str] = []

    async def app(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        seen.append(owner_of(Request(scope)))

    header = (b"authorization", b"Bearer " + given.encode())
    await KeyMiddleware(app, keys)({"type": "http", "path": "/v1/x", "headers": [header]}, None, None)  # type: ignore[arg-type]
    return seen[0]
