"""Traces of prompts, kept with their answers in the memory of this server, to say why a cache missed.

The oldest are forgotten when there are more than the limits allow. Blocks that prompts share are kept, and
counted, once.
"""

from collections.abc import Awaitable, Callable, Sequence
from threading import Lock
from typing import Any

from msgspec.structs import replace

from antiphon.core.cache_trace import (
    CacheMiss,
    CacheResult,
    NotCompared,
    PromptTrace,
    RequestParts,
    compared,
    trace_of,
)
from antiphon.core.limits import Limits
from antiphon.core.observation import observed

TRACE_BYTES = 512
"""About the memory of a trace besides its blocks, and of what a block takes besides its ids."""
BLOCK_BYTES = 256
PART_BYTES = 64
MEDIA_BYTES = 128


class CacheTraces:
    """The traces of the last answers, by owner and id. Threads may share it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._traces: dict[tuple[str, str], PromptTrace] = {}
        self._blocks: dict[bytes, list[Any]] = {}  # hash → the block, and how many traces have it
        self._lock = Lock()
        self.size = 0
        """The bytes of all of them, about."""

    def __len__(self) -> int:
        return len(self._traces)

    def get(self, owner: str, answer: str) -> PromptTrace | None:
        """The trace of an answer."""
        return self._traces.get((owner, answer))

    def put(self, owner: str, answer: str, trace: PromptTrace) -> None:
        """Keep the trace of an answer."""
        with self._lock:
            self._put(owner, answer, trace)

    def forget(self, owner: str, answer: str) -> None:
        """Keep the trace of an answer no longer: it was deleted."""
        with self._lock:
            self._forget((owner, answer))

    def _put(self, owner: str, answer: str, trace: PromptTrace) -> None:
        self._forget((owner, answer))
        blocks = []
        for key, block in zip(trace.hashes, trace.blocks, strict=True):
            entry = self._blocks.setdefault(key, [block, 0])
            if not entry[1]:
                self.size += len(block) + BLOCK_BYTES
            entry[1] += 1
            blocks.append(entry[0])
        self._traces[owner, answer] = replace(trace, blocks=tuple(blocks))
        self.size += _own_size(trace)
        while self._traces and (
            len(self._traces) > self._limits.traced_answers or self.size > self._limits.trace_bytes
        ):
            self._forget(next(iter(self._traces)))

    def _forget(self, key: tuple[str, str]) -> None:
        trace = self._traces.pop(key, None)
        if trace is None:
            return
        self.size -= _own_size(trace)
        for hash_, block in zip(trace.hashes, trace.blocks, strict=True):
            entry = self._blocks[hash_]
            entry[1] -= 1
            if not entry[1]:
                del self._blocks[hash_]
                self.size -= len(block) + BLOCK_BYTES


def _own_size(trace: PromptTrace) -> int:
    parts = trace.parts
    hashes = len(trace.hashes) + len(parts.items) + len(parts.settings)
    return TRACE_BYTES + PART_BYTES * hashes + MEDIA_BYTES * len(trace.media)


class Diagnosis:
    """Compares the prompt of an answer with that of an earlier one, and keeps its trace.

    `parts` are those of its request. Without an `earlier` there is nothing to compare.
    """

    def __init__(
        self,
        traces: CacheTraces,
        owner: str,
        answer: str,
        parts: RequestParts,
        earlier: PromptTrace | NotCompared | None = None,
    ) -> None:
        self._traces = traces
        self._key = owner, answer
        self._parts = parts
        self._earlier = earlier

    def __call__(self, prompts: Sequence[Any]) -> CacheResult | None:
        """What is found of the first of these prompts."""
        prompt, earlier = prompts[0], self._earlier
        before = earlier if isinstance(earlier, PromptTrace) else None
        trace = trace_of(prompt.ids, (media.digest for media in prompt.media), self._parts, before)
        self._traces.put(*self._key, trace)
        if not isinstance(earlier, PromptTrace):
            return earlier
        result = compared(earlier, trace)
        if isinstance(result, CacheMiss):
            observation = observed()
            observation.missed, observation.missed_tokens = result.part, result.lost
        return result


async def earlier_trace(
    traces: CacheTraces,
    owner: str,
    answer: str | None,
    exists: Callable[[str], Awaitable[bool]] | None = None,
) -> PromptTrace | NotCompared | None:
    """The trace of the answer to compare with, None without one. `exists` says whether it is stored."""
    if answer is None:
        return None
    trace = traces.get(owner, answer)
    if trace is not None:
        return trace
    return NotCompared(unknown=not (exists is not None and await exists(answer)))
