"""What the schedulers of vLLM's core count, which comes with the outputs of a step.

A core with several clients tells each step's figures to one of them. So they are added up in the memory that
the clients share.
"""

import time
from typing import Any

from antiphon.core.links import Notes

_PARTS = 10**9
"""The parts of 1 in which a share is written."""


class Statistics:
    """What the schedulers of the core count; there is one for each rank of data parallelism."""

    def __init__(self) -> None:
        self._usage: dict[int, float] = {}
        self._queries = self._hits = 0

    def add(self, outputs: Any) -> None:
        """Add those in the outputs of a step, if it has any."""
        statistics = outputs.scheduler_stats
        if statistics is not None:
            self._usage[outputs.engine_index] = statistics.kv_cache_usage
            self._queries += statistics.prefix_cache_stats.queries
            self._hits += statistics.prefix_cache_stats.hits

    @property
    def total(self) -> tuple[float, int, int]:
        """The share of the cache that is in use, as of the last step, and two numbers of tokens of prompts.

        Those that were looked up in the cache since the start, and those that were there.
        """
        usage = self._usage.values()
        return sum(usage) / len(usage) if usage else 0.0, self._queries, self._hits


class SharedStatistics(Statistics):
    """Those that all clients of a core were told."""

    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self._notes = notes

    def add(self, outputs: Any) -> None:
        """Add them, and write down what this client was told."""
        super().add(outputs)
        if outputs.scheduler_stats is not None:
            usage, queries, hits = super().total
            self._notes.tell((time.monotonic_ns(), round(usage * _PARTS), queries, hits))

    @property
    def total(self) -> tuple[float, int, int]:
        """The usage that the client knows that was told last, and the sums of the others."""
        figures = [tuple(told[:4]) for told in self._notes.figures()]
        _, usage, _, _ = max(figures)
        return usage / _PARTS, sum(told[2] for told in figures), sum(told[3] for told in figures)


class NoLogger:
    """A logger of vLLM's that does nothing: without one the schedulers count nothing."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        pass

    def record(self, *arguments: Any, **more: Any) -> None:
        """The figures are read with the outputs."""

    def log_engine_initialized(self) -> None:
        """Nothing is logged."""

    def log(self) -> None:
        """The same."""
