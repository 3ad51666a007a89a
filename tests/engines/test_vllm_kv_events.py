"""Three pools follow the caches of two real vLLM servers, one of which is killed: `make test-vllm`."""

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack

import pytest

from antiphon.core.limits import Limits
from antiphon.core.turn import Sampling
from antiphon.engines.block_index import EXPECTED_SECONDS, PromptBlocks
from antiphon.engines.cache_views import EventsView
from antiphon.engines.engine import GenerationRequest, Prompt
from antiphon.engines.pool import PoolEngine, ReplicaStatus
from antiphon.engines.upstream import Options
from tests.contracts.engine import Collected, until
from tests.real_engine import VLLM_MODEL, vllm_server

pytestmark = [
    pytest.mark.skipif(not VLLM_MODEL, reason="vLLM is not here: make test-vllm"),
    pytest.mark.timeout(900),
]

POOLS = 3


def with_events() -> str:
    """The argument of a vLLM that publishes events, at ports that are free."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = one.getsockname()[1], other.getsockname()[1]
    config = {
        "enable_kv_cache_events": True,
        "endpoint": f"tcp://*:{ports[0]}",
        "replay_endpoint": f"tcp://*:{ports[1]}",
    }
    return f"kv_events_config={json.dumps(config)}"


def request_of(ids: tuple[int, ...]) -> GenerationRequest:
    return GenerationRequest(Prompt("", ids), 4, Sampling(temperature=0))


async def cached_by(pool: PoolEngine, ids: tuple[int, ...]) -> int:
    """The cached tokens of a prompt, by the server's own count."""
    collected = Collected()
    pool.generate(request_of(ids), collected)
    return sum(chunk.cached_tokens for chunk in await collected.whole())


def predicted(pool: PoolEngine, ids: tuple[int, ...]) -> list[float]:
    """What the pool knows of each replica."""
    views = [replica.cache for replica in pool._replicas]
    assert all(isinstance(view, EventsView) for view in views)
    return [view.cached_tokens(PromptBlocks(ids)) for view in views]


def serving(_number: int) -> AbstractContextManager[str]:
    """A server that publishes events."""
    arguments = "max_model_len=1024", "max_num_seqs=2", "enable_prompt_tokens_details=true"
    return vllm_server(VLLM_MODEL, *arguments, with_events())


async def test_three_pools_know_what_two_servers_hold() -> None:
    servers = [serving(number) for number in range(2)]
    with ThreadPoolExecutor() as threads:
        urls = [*threads.map(lambda server: server.__enter__(), servers)]
    stops = [ExitStack(), ExitStack()]
    for stop, server in zip(stops, servers, strict=True):
        stop.push(server)
    pools = []
    try:
        options = Options(urls[0], replica=(urls[1],), kv_events="auto")
        for _ in range(POOLS):
            pool = options.build()
            assert isinstance(pool, PoolEngine)
            await pool.start()
            pools.append(pool)
        await check(options, pools, stops)
    finally:
        await asyncio.gather(*(pool.stop() for pool in pools))
        for stop in stops:
            stop.close()


async def check(options: Options, pools: list[PoolEngine], stops: list[ExitStack]) -> None:
    """A prompt that one pool sent is known to all, as the server counts it."""
    ids = tuple(range(1000, 1000 + 600))
    assert await cached_by(pools[0], ids) == 0
    await known_to_all(pools, ids)
    await known_to_a_later_one(options, ids)
    assert [await cached_by(pool, ids) for pool in pools] == [max(predicted(pools[0], ids))] * POOLS
    other = (*ids[:300], *range(2000, 2300))
    part = max(predicted(pools[1], other))
    assert 0 < part <= 300
    assert await cached_by(pools[1], other) == part

    there = predicted(pools[0], ids).index(max(predicted(pools[0], ids)))
    stops[there].close()  # the server is killed
    first, *left = pools
    await first.stop()  # and so is one of those before it
    await until(lambda: all(pool.replicas[there].status is ReplicaStatus.AWAY for pool in left))
    assert max(predicted(left[0], ids)) == 0
    assert await cached_by(left[0], ids) == 0
    await known_to_all(left, ids)
    assert await cached_by(left[1], ids) == max(predicted(left[1], ids)) > 0


async def known_to_a_later_one(options: Options, ids: tuple[int, ...]) -> None:
    """A pool that starts now is told what was published before."""
    pool = options.build()
    assert isinstance(pool, PoolEngine)
    await pool.start()
    await until(lambda: max(predicted(pool, ids)) > 0)
    assert await cached_by(pool, ids) == max(predicted(pool, ids))
    await pool.stop()


async def known_to_all(pools: list[PoolEngine], ids: tuple[int, ...]) -> None:
    """Wait until events, and not what was sent, have told all pools of a prompt."""
    await until(lambda: all(max(predicted(pool, ids)) > 0 for pool in pools))
    await asyncio.sleep(EXPECTED_SECONDS)
    first, *others = [predicted(pool, ids) for pool in pools]
    assert all(known == first for known in others)
    assert max(first) > 0


async def test_a_prompt_goes_to_the_rank_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One server of two data-parallel ranks, each with a cache and events of its own."""
    monkeypatch.setenv("VLLM_CPU_SIM_MULTI_NUMA", "1")  # there may be one node of memory only
    arguments = "max_model_len=1024", "max_num_seqs=2", "enable_prompt_tokens_details=true"
    with vllm_server(VLLM_MODEL, *arguments, with_events(), "data_parallel_size=2") as url:
        options = Options(url, kv_events="auto")
        pool = PoolEngine([("one", options.build_member(Limits()))], follow=options.follow)
        await pool.start()
        [replica] = pool._replicas
        view = replica.cache
        assert isinstance(view, EventsView)
        for rank in (0, 1):
            ids = tuple(range(1000 * rank + 2000, 1000 * rank + 2600))
            replica.at_ranks[1 - rank] = 5  # as if the other one were busy
            assert await cached_by(pool, ids) == 0
            await asyncio.sleep(EXPECTED_SECONDS)
            tokens = view.rank_tokens(PromptBlocks(ids))
            assert [count > 0 for count in tokens] == [rank == 0, rank == 1]
            replica.at_ranks.clear()
            assert await cached_by(pool, ids) == tokens[rank], "it goes there again"
        await pool.stop()
