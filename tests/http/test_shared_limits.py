"""Servers that share a database share the limits of its keys, in every API."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx2 as httpx
import pytest
from structlog.testing import capture_logs

from antiphon.core import shared_limits
from antiphon.core.errors import StoreError
from antiphon.core.shared_limits import Held, Taken
from antiphon.store.key_limits import SqlKeyLimits
from tests.server import NO_TLS, Running, running

pytest_plugins = ("tests.postgresql",)

SAID = [{"role": "user", "content": "Hi"}]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": SAID},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": SAID, "max_tokens": 9},
    "/v1/completions": {"prompt": "Hi"},
    "/api/chat": {"messages": SAID},
}
SCRIPT = [{"when": "slow", "output": "word " * 200, "split": 5, "delay_ms": 20}, {"output": "Hi"}]
OWNER = "0" * 32
"""That of the key, whose hash begins so."""
KEY = """
[[keys]]
name = "ann"
identity = "0000000000000000000000000000000000000000000000000000000000000000"
value = "ann's"
scopes = ["inference", "stored", "metrics"]
"""


@asynccontextmanager
async def servers(count: int, store: str, folder: Path, rules: str) -> AsyncIterator[list[Running]]:
    """Servers of one database, on which the key has these rules."""
    file = folder / "keys.toml"
    file.write_text(KEY + rules)
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(running(SCRIPT, keys=file, store=store, model_name=("scripted",)))
            for _ in range(count)
        ]


@asynccontextmanager
async def clients(servers: Sequence[Running]) -> AsyncIterator[list[httpx.AsyncClient]]:
    """A client of each, with the key."""
    headers = {"authorization": "Bearer ann's"}
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                httpx.AsyncClient(verify=NO_TLS, base_url=server.url, headers=headers, timeout=30)
            )
            for server in servers
        ]


@asynccontextmanager
async def two(store: str, folder: Path, rules: str) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Clients of two servers of one database."""
    async with servers(2, store, folder, rules) as both, clients(both) as asking:
        yield asking


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return str(request.getfixturevalue("postgresql_url"))


async def asked(client: httpx.AsyncClient, path: str, **more: Any) -> httpx.Response:
    return await client.post(path, json={"model": "scripted", **ASKED[path], **more})


def check_refused(path: str, answer: httpx.Response, since: float) -> None:
    """It is a 429 in the form of its API, and says when to come again."""
    body = answer.json()
    assert answer.status_code == 429
    if path == "/v1/messages":
        assert (body["type"], body["error"]["type"]) == ("error", "rate_limit_error")
        assert answer.headers["anthropic-ratelimit-requests-remaining"] == "0"
    elif path == "/api/chat":
        assert "Try again" in body["error"]
    else:
        assert body["error"]["code"] == "rate_limit_exceeded"
    if path != "/v1/messages":
        assert answer.headers["x-ratelimit-limit-requests"] == "5"
        assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    # A fifth of a minute, of which some is over since the first was admitted.
    assert 12 - (perf_counter() - since) <= int(answer.headers["retry-after"]) <= 12


@pytest.mark.parametrize("stream", [False, True])
async def test_requests_per_minute_are_of_all_servers(store: str, tmp_path: Path, stream: bool) -> None:
    async with two(store, tmp_path, "requests_per_minute = 5") as both:
        since = perf_counter()
        codes = [
            (await asked(both[turn % 2], path, stream=stream)).status_code for turn, path in enumerate(ASKED)
        ]
        assert codes == [200] * 5
        for client in both:
            for path in ASKED:
                check_refused(path, await asked(client, path, stream=stream), since)


async def test_tokens_per_minute_are_of_all_servers(store: str, tmp_path: Path) -> None:
    async with two(store, tmp_path, "tokens_per_minute = 1000") as (one, other):
        assert (await asked(one, "/v1/chat/completions", max_tokens=600)).status_code == 200
        # What was reserved and not used is soon there for both.
        async with asyncio.timeout(10):
            while (await asked(other, "/v1/responses", max_output_tokens=800)).status_code == 429:
                await asyncio.sleep(0.1)
        answer = await asked(one, "/v1/chat/completions", max_tokens=900)
        assert answer.headers["x-ratelimit-limit-tokens"] == "1000"


async def test_tokens_that_are_taken_are_missing_on_the_other(store: str, tmp_path: Path) -> None:
    slow = {"max_tokens": 900, "stream": True, "messages": [{"role": "user", "content": "slow"}]}
    async with two(store, tmp_path, "tokens_per_minute = 1000") as (one, other):
        body = {"model": "scripted", **slow}
        async with one.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200
            refused = await asked(other, "/v1/responses", max_output_tokens=500)
        assert refused.status_code == 429
        assert 20 <= int(refused.headers["retry-after"]) <= 30
        assert int(refused.headers["x-ratelimit-remaining-tokens"]) < 500


async def test_answers_at_a_time_are_of_all_servers(store: str, tmp_path: Path) -> None:
    slow = {"model": "scripted", "stream": True, "messages": [{"role": "user", "content": "slow"}]}
    async with two(store, tmp_path, "concurrent = 1") as (one, other):
        async with one.stream("POST", "/v1/chat/completions", json=slow) as answer:
            assert answer.status_code == 200
            for path in ASKED:
                refused = await asked(other, path)
                assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        async with asyncio.timeout(10):
            while (await asked(other, "/v1/messages")).status_code == 429:
                await asyncio.sleep(0.1)
        for turn in range(6):  # a client that has one answer after the other, of any server
            answered = await asked((one, other)[turn % 2], "/v1/chat/completions")
            assert answered.status_code == 200


async def test_places_of_a_server_that_was_killed_come_back(store: str, tmp_path: Path) -> None:
    async with servers(1, store, tmp_path, "concurrent = 1") as [server], clients([server]) as [client]:
        await server.app.storage.store.key_limits.hold("killed", OWNER, 1, 1, 3)
        assert (await asked(client, "/v1/messages")).status_code == 429
        async with asyncio.timeout(10):
            while (await asked(client, "/v1/messages")).status_code == 429:
                await asyncio.sleep(0.1)


async def test_a_server_that_stops_gives_back_what_it_has(store: str, tmp_path: Path) -> None:
    rules = "concurrent = 1\ntokens_per_minute = 600"
    async with servers(2, store, tmp_path, rules) as both, clients(both) as (before, client):
        assert (await asked(before, "/v1/completions", max_tokens=5)).status_code == 200
        await both[0].app.keys.close()
        assert (await asked(client, "/v1/completions", max_tokens=580)).status_code == 200


async def test_most_requests_do_not_ask_the_database(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = []
    take = SqlKeyLimits.take

    async def counted(self: SqlKeyLimits, *args: Any) -> Taken:
        questions.append(args)
        return await take(self, *args)

    monkeypatch.setattr(SqlKeyLimits, "take", counted)
    rules = "requests_per_minute = 1000\ntokens_per_minute = 100000"
    async with servers(1, store, tmp_path, rules) as [server], clients([server]) as [client]:
        for _ in range(50):
            assert (await asked(client, "/v1/completions", max_tokens=5)).status_code == 200
        metrics = (await client.get("/metrics")).text
        number = len(questions)
    assert f'antiphon:limit_questions_total{{outcome="answered"}} {number}.0' in metrics
    assert number <= 4


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_database_that_is_away_refuses_nobody_who_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """And each server goes on with its part: half of the limit, as there are two."""

    async def away(*_: Any) -> Any:
        if hangs:
            await asyncio.sleep(60)
        raise StoreError

    rules = "requests_per_minute = 8\ntokens_per_minute = 10000\nconcurrent = 4"
    store = f"sqlite:///{tmp_path}/store.db"
    async with servers(2, store, tmp_path, rules) as both, clients(both) as (one, other):
        for client in (one, other):  # each knows of the other
            assert (await asked(client, "/v1/completions")).status_code == 200
        for server in both:  # a quarter of a minute later
            bucket: Any = server.app.keys.of_owner(OWNER).requests
            bucket._own_end -= 45
            bucket._room_at -= 45
            bucket._servers = 2
        monkeypatch.setattr(shared_limits, "QUESTION_SECONDS", 0.2)
        monkeypatch.setattr("antiphon.app.limit_ledger.QUESTION_SECONDS", 0.2)
        monkeypatch.setattr(SqlKeyLimits, "take", away)
        monkeypatch.setattr(SqlKeyLimits, "hold", away)
        with capture_logs() as logs:
            began = perf_counter()
            for client in (one, other):
                codes = [(await asked(client, "/v1/completions")).status_code for _ in range(5)]
                assert sorted(codes) == [200] * 3 + [429] * 2
            assert perf_counter() - began < 10
        monkeypatch.undo()
    warned = [log for log in logs if log["log_level"] == "warning" and "limits of keys" in log["event"]]
    assert len(warned) == 2  # once a server


async def test_places_go_on_without_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: Any) -> Held:
        raise StoreError

    monkeypatch.setattr(SqlKeyLimits, "hold", away)
    store = f"sqlite:///{tmp_path}/store.db"
    async with servers(1, store, tmp_path, "concurrent = 1") as one, clients(one) as [client]:
        for path in ASKED:
            assert (await asked(client, path)).status_code == 200
        monkeypatch.undo()
