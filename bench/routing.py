"""Which replica should get a request? Conversations on real servers, by cost and round robin.

Several conversations continue at the same time on two servers with the bundled model: llama.cpp's own, in
processes. For each way of choosing, it prints how many tokens of prompts were cached, and the time to the
first token, which is only meaningful on a machine with a core for each server.

    .venv/bin/python bench/routing.py
"""

import asyncio
import sys
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parent.parent))

from antiphon.core.turn import Sampling
from antiphon.engines.engine import GenerationRequest, Prompt
from antiphon.engines.models import resolve
from antiphon.engines.pool import Choose, PoolEngine, cheapest
from antiphon.engines.upstream import Options, UpstreamEngine
from tests.contracts.engine import Collected
from tests.engines import llama_http

SERVERS, CONVERSATIONS, TURNS, TOKENS = 2, 4, 5, 8
SYSTEM = "You are the librarian of a small town and know every book in it. " * 8
"""A shared beginning."""


def by_turns() -> Choose:
    """One after the other."""
    turns = count()
    return lambda replicas, _: replicas[next(turns) % len(replicas)]


async def converse(pool: PoolEngine, number: int) -> tuple[int, int, list[float]]:
    """The tokens of the prompts, those that were cached, and the seconds to each first token."""
    text = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n"
    tokens, cached, firsts = 0, 0, []
    for turn in range(TURNS):
        text += f"<|im_start|>user\nQuestion {turn} of reader {number}: which book is next?<|im_end|>\n"
        text += "<|im_start|>assistant\n"
        ids = tuple(await pool.tokenize([text]))
        collected, begun = Collected(), perf_counter()
        pool.generate(GenerationRequest(Prompt(text, ids), TOKENS, Sampling(temperature=0)), collected)
        await collected.begun.wait()
        firsts.append(perf_counter() - begun)
        chunks = await collected.whole()
        tokens, cached = tokens + len(ids), cached + sum(chunk.cached_tokens for chunk in chunks)
        text += "".join(chunk.text for chunk in chunks) + "<|im_end|>\n"
        await asyncio.sleep(0.05)
    return tokens, cached, firsts


async def measure(name: str, choose: Choose) -> None:
    """Print a line for one way of choosing, on servers with empty caches."""
    with ExitStack() as stack:
        urls = [
            stack.enter_context(llama_http.serving(resolve(None), slots=CONVERSATIONS, context=2048))
            for _ in range(SERVERS)
        ]
        engines = [(url, UpstreamEngine(Options(url, upstream_key=llama_http.KEY))) for url in urls]
        pool = PoolEngine(engines, choose)
        await pool.start()
        told = await asyncio.gather(*(converse(pool, number) for number in range(CONVERSATIONS)))
        await pool.stop()
    tokens, cached = sum(each[0] for each in told), sum(each[1] for each in told)
    firsts = sorted(first for each in told for first in each[2])
    late = firsts[int(len(firsts) * 0.9)]
    print(f"{name:12} cached {cached / tokens:5.0%} of {tokens} tokens,", end=" ")
    print(f"first token {median(firsts) * 1000:6.0f} ms (p90 {late * 1000:.0f} ms)", flush=True)


if __name__ == "__main__":
    for name, choose in (
        ("by turns", by_turns()),
        ("by cost", cheapest),
        ("by turns", by_turns()),
        ("by cost", cheapest),
    ):
        asyncio.run(measure(name, choose))
