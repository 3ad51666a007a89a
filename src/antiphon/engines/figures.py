"""The figures that schedulers read: how full an engine's cache of keys and values is, which adapters run.

An engine that knows some of them is `Measured`. What it does not know is None, and nothing is written for
it: an invented number misleads a scheduler more than a missing one. The meanings are those of vLLM's metrics,
under whose names `app/metrics.py` writes them.

To have an engine give its figures: the method of `Measured`; `tests/contracts/engine.py` then checks them.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from msgspec import Struct, field
from msgspec.structs import replace

T = TypeVar("T")


class AdapterFigures(Struct, frozen=True):
    """The adapters of running generations, and those of waiting ones, by the names of requests.

    At most `maximum` adapters can be in use at the same time. `updated` is the Unix time of this, in seconds.
    """

    running: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()
    maximum: int = 0
    updated: float = field(default_factory=time.time)


class PoolFigures(Struct, frozen=True):
    """What a pool has foreseen of the caches of its replicas, and what came of it, since it started.

    `predicted` counts the tokens of prompts that it expected in the cache of the chosen replica, and `cached`
    those that the replicas found there, by their own count. `messages` of events were read; `gaps` counts how
    often some were missing, and `losses` how often they could not be had again. `blocks` are known now.
    """

    predicted: int = 0
    cached: int = 0
    messages: int = 0
    gaps: int = 0
    losses: int = 0
    blocks: int = 0


class CacheFigures(Struct, frozen=True):
    """How an engine uses its cache of keys and values. None: unknown.

    `usage` is the share of the cache, from 0 to 1, that running generations take. What is kept of others, for
    prompts that begin like them, is free. The cache has `blocks` blocks with `block_size` tokens each, one if
    the engine has no blocks. `queries` counts the tokens of prompts that were looked up in the cache since
    the engine started, and `hits` those that were found. `config` has other settings of the cache, by vLLM's
    names. `adapters` is None if the engine takes none. What an engine has `told` is the same for each process
    that asks it; otherwise it was counted here. `pool` is that of several engines.
    """

    usage: float | None = None
    block_size: int | None = None
    blocks: int | None = None
    queries: int | None = None
    hits: int | None = None
    config: Mapping[str, str] = {}
    adapters: AdapterFigures | None = None
    told: bool = False
    pool: PoolFigures | None = None

    @property
    def tokens(self) -> int | None:
        """The tokens for which the cache has room."""
        return None if self.block_size is None or self.blocks is None else self.block_size * self.blocks


UNKNOWN = CacheFigures()


@runtime_checkable
class Measured(Protocol):
    """An engine that knows how full its cache is."""

    async def cache_figures(self) -> CacheFigures:
        """The current figures; only after `start`. It is called for each scrape of the metrics.

        It returns within a second, and raises nothing: what cannot be found out is unknown.
        """
        ...


def completed(figures: CacheFigures, others: CacheFigures) -> CacheFigures:
    """The figures, with those of `others` in the place of unknown ones."""
    known = {
        name: value
        for name in CacheFigures.__struct_fields__
        if (value := getattr(figures, name)) != getattr(UNKNOWN, name)
    }
    return replace(others, **known)


def combined(all_figures: Sequence[CacheFigures]) -> CacheFigures:
    """The figures of several caches as those of one: for a scheduler, they are one server.

    The usage is the mean of those that are known, weighted by the tokens that the caches hold if these are
    known, too. Blocks of different sizes cannot be added up.
    """
    used = [figures for figures in all_figures if figures.usage is not None]
    sizes = {figures.block_size for figures in all_figures if figures.block_size is not None}
    one_size = len(sizes) == 1
    return CacheFigures(
        usage=_mean_usage(used),
        block_size=sizes.pop() if one_size else None,
        blocks=_sum(figures.blocks for figures in all_figures) if one_size else None,
        queries=_sum(figures.queries for figures in all_figures),
        hits=_sum(figures.hits for figures in all_figures),
        config=_common(figures.config for figures in all_figures),
        adapters=combined_adapters(figures.adapters for figures in all_figures),
        told=any(figures.told for figures in all_figures),
    )


def combined_adapters(all_figures: Iterable[AdapterFigures | None]) -> AdapterFigures | None:
    """The adapters of several engines; None if none takes any."""
    known = [figures for figures in all_figures if figures is not None]
    if not known:
        return None
    running = frozenset[str]().union(*(figures.running for figures in known))
    waiting = frozenset[str]().union(*(figures.waiting for figures in known))
    maximum = sum(figures.maximum for figures in known)
    return AdapterFigures(running, waiting, maximum, max(figures.updated for figures in known))


def _mean_usage(used: Sequence[CacheFigures]) -> float | None:
    if not used:
        return None
    sizes = [figures.tokens or 0 for figures in used]
    weights = sizes if all(sizes) else [1] * len(used)
    shares = ((figures.usage or 0) * weight for figures, weight in zip(used, weights, strict=True))
    return sum(shares) / sum(weights)


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _common(mappings: Iterable[Mapping[str, str]]) -> Mapping[str, str]:
    """The entries that are the same in all."""
    first, *others = [*mappings] or [{}]
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}
