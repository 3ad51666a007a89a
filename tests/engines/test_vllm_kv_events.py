"""Three pools follow the caches of two real vLLM servers, one of which is killed: `make test-vllm`."""

import asyncio
import json
import socket
from contextlib import ExitStack

import pytest

from antiphon.core.turn import Sampling
from antiphon.engines.block_index import PromptBlocks
from antiphon.engines.cache_views import EXPECTED_SECONDS, EventsView
from antiphon.engines.engine import GenerationRequest, Prompt
from antiphon.engines.pool import PoolEngine
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


async def test_three_pools_know_what_two_servers_hold() -> None:
    with ExitStack() as stack:
        serving = [
            stack.enter_context(
                vllm_server(
                    VLLM_MODEL,
                    "max_model_len=1024",
                    "max_num_seqs=2",
                    "enable_prompt_tokens_details=true",
                    with_events(),
                )
            )
            for _ in range(2)
        ]
        options = Options(serving[0], replica=(serving[1],), kv_events="auto")
        pools = [options.build() for _ in range(POOLS)]
        assert all(isinstance(pool, PoolEngine) for pool in pools)
        await asyncio.gather(*(pool.start() for pool in pools))
        try:
            await check(pools)  # type: ignore[arg-type]
        finally:
            await asyncio.gather(*(pool.stop() for pool in pools))


async def check(pools: list[PoolEngine]) -> None:
    """A prompt that one pool sent is known to all, as the server counts it."""
    ids = tuple(range(1000, 1000 + 600))
    assert await cached_by(pools[0], ids) == 0
    await until(lambda: all(max(predicted(pool, ids)) > 0 for pool in pools))
    await asyncio.sleep(EXPECTED_SECONDS)  # now only what events tell counts
    known = [predicted(pool, ids) for pool in pools]
    assert known[0] == known[1] == known[2]
    assert [await cached_by(pool, ids) for pool in pools] == [max(known[0])] * POOLS
    other = (*ids[:300], *range(2000, 2300))
    part = max(predicted(pools[1], other))
    assert 0 < part <= 300
    assert await cached_by(pools[1], other) == part
    [events] = {
        tuple(len(rank) for replica in pool._replicas for rank in replica.cache.ranks) for pool in pools
    }  # type: ignore[attr-defined]
    assert min(events) == 0, "all went where the beginning was"
