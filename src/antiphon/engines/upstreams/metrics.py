"""Reads the figures of a server's cache at its `/metrics`, where each kind of server has its own names.

A server is asked when our own metrics are, and at most every few seconds, whoever asks. Nobody waits for it
long: a late answer is used by the next who asks. The size of an answer is bounded, and only lines with names
of `NAMES` are parsed, in a thread. Figures that could not be read, or are old, are unknown. Counters are an
exception: they stay as they were read last, and go on when a server starts again with 0.

To add a kind of server: its names, in `NAMES`.
"""

import asyncio
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import structlog
from msgspec import Struct
from msgspec.structs import replace

from antiphon.engines.figures import UNKNOWN, AdapterFigures, CacheFigures, combined
from antiphon.engines.http_client import HttpClient, HttpError

READ_SECONDS = 2.0
"""The least seconds between two readings of a server."""

TIMEOUT_SECONDS = 5.0
"""How long a server may take to answer."""

PATIENCE_SECONDS = 0.5
"""How long one who asks for figures waits for a reading."""

MAX_BYTES = 4 * 1024 * 1024
"""Bytes of an answer, at most. A large vLLM writes 0.2 MB, and more with every combination of adapters."""

MAX_LINES = 4096
"""Lines with names of `NAMES`, at most."""

MAX_LABELS, MAX_LABEL = 64, 256
"""Labels of the settings of a cache, and characters of each, that are passed on. Longer ones are left out."""

log = structlog.get_logger()


class MetricNames(Struct, frozen=True):
    """The names of a kind of server. Of several for one figure, the first that the server has counts.

    `queries` are added up. `config` has a label each for the size of a block, and for the number of blocks.
    `option` is that with which the server has metrics, if it does not always have them.
    """

    usage: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()
    hits: str = ""
    config: str = ""
    block_size: str = ""
    blocks: str = ""
    adapters: str = ""
    option: str = ""

    @property
    def all(self) -> frozenset[str]:
        """All names."""
        return frozenset({*self.usage, *self.queries, self.hits, self.config, self.adapters} - {""})


NAMES: Mapping[str, MetricNames] = {
    "vllm": MetricNames(
        usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        queries=("vllm:prefix_cache_queries_total",),
        hits="vllm:prefix_cache_hits_total",
        config="vllm:cache_config_info",
        block_size="block_size",
        blocks="num_gpu_blocks",
        adapters="vllm:lora_requests_info",
    ),
    "sglang": MetricNames(
        usage=("sglang:token_usage",),
        queries=("sglang:prompt_tokens_total",),
        hits="sglang:cached_tokens_total",
        config="sglang:cache_config_info",
        block_size="page_size",
        blocks="num_pages",
        option="--enable-metrics",
    ),
    "llama-server": MetricNames(
        usage=("llamacpp:kv_cache_usage_ratio",),  # of older versions
        # It counts the tokens that it computed, and those that it did not have to.
        queries=("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),
        hits="llamacpp:prompt_tokens_cached_total",
        option="--metrics",
    ),
}
"""Kind of server → its names."""


class MetricsReader:
    """Reads the figures of the model `model` at a server with these `names`."""

    def __init__(self, client: HttpClient, names: MetricNames, model: str, url: str) -> None:
        self._client = client
        self._parse = partial(parse, names=names, model=model)
        self._url = url
        self._hint = {"hint": f"Start it with {names.option}."} if names.option else {}
        self._reading: asyncio.Task[None] | None = None
        self._read_at = -math.inf  # when it was last tried, by the loop's clock
        self._figures_at = -math.inf
        self._figures = UNKNOWN
        self._failed = False
        self._queries, self._hits = _Total(), _Total()

    async def figures(self) -> CacheFigures:
        """The figures, at most some seconds old."""
        time_now = asyncio.get_running_loop().time
        if self._reading is None and time_now() - self._read_at >= READ_SECONDS:
            self._reading = asyncio.create_task(self._read())
        if self._reading is not None:
            await asyncio.wait((self._reading,), timeout=PATIENCE_SECONDS)
        fresh = time_now() - self._figures_at < READ_SECONDS + TIMEOUT_SECONDS
        current = self._figures if fresh else UNKNOWN
        return replace(current, queries=self._queries.value, hits=self._hits.value)

    async def close(self) -> None:
        """End a reading."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait((self._reading,))

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                figures = await asyncio.to_thread(self._parse, await self._body())
        except (HttpError, TimeoutError, ValueError) as error:
            self._figures_at = -math.inf
            self._report(str(error) or f"it took {TIMEOUT_SECONDS:g} seconds")
        else:
            self._report(None)
            self._figures, self._figures_at = figures, asyncio.get_running_loop().time()
            self._queries.update(figures.queries)
            self._hits.update(figures.hits)
        finally:
            self._reading, self._read_at = None, asyncio.get_running_loop().time()

    async def _body(self) -> bytes:
        response = await self._client.request("GET", "/metrics", max_bytes=MAX_BYTES)
        if response.status != 200:
            raise HttpError(f"the status of its answer is {response.status}", response.status)
        return response.body

    def _report(self, why: str | None) -> None:
        """Log that the figures cannot be read, or can again; not each time."""
        if why is not None and not self._failed:
            log.warning("the metrics of a server cannot be read", url=self._url, why=why, **self._hint)
        elif why is None and self._failed:
            log.info("the metrics of a server can be read again", url=self._url)
        self._failed = why is not None


class _Total:
    """A counter that goes on where its source begins again with 0; None before the first value."""

    def __init__(self) -> None:
        self.value: int | None = None
        self._last = 0

    def update(self, value: int | None) -> None:
        if value is not None:
            grown = value - self._last if value >= self._last else value
            self.value = (self.value or 0) + grown
            self._last = value


class _Sample(Struct, frozen=True):
    """A line of the text format."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse(body: bytes, *, names: MetricNames, model: str) -> CacheFigures:
    """The figures in a server's metrics. Raises ValueError if they cannot be read."""
    wanted = names.all
    lines = [line for line in body.decode().split("\n") if line.partition("{")[0].partition(" ")[0] in wanted]
    if len(lines) > MAX_LINES:
        raise ValueError(f"more than {MAX_LINES} of its lines are about its cache")
    samples = _of_model([*map(_sample, lines)], model)

    def named(name: str) -> list[_Sample]:
        return [sample for sample in samples if sample.name == name]

    configs = named(names.config)
    usages = next(filter(None, map(named, names.usage)), [])
    engines = [_engine(sample, configs, names) for sample in usages] or [
        _configured(config, names) for config in configs
    ]
    return replace(
        combined(engines),
        queries=_count(map(named, names.queries)),
        hits=_count([named(names.hits)]),
        adapters=_adapters(named(names.adapters)),
    )


_LINE = re.compile(r"(?P<name>[\w:]+)(?:\{(?P<labels>.*)\})?[ \t]+(?P<value>[^ \t\r]+)")
_LABEL = re.compile(r'(?<!\w)(?P<name>[a-zA-Z_]\w*+)\s*+=\s*+"(?P<value>(?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


def _sample(line: str) -> _Sample:
    match = _LINE.match(line)
    if match is None:
        raise ValueError("its metrics are not in the format of Prometheus")
    labels = {label["name"]: _unescaped(label["value"]) for label in _LABEL.finditer(match["labels"] or "")}
    return _Sample(match["name"], labels, float(match["value"]))


def _unescaped(value: str) -> str:
    return _ESCAPE.sub(lambda escaped: "\n" if escaped[1] == "n" else escaped[1], value)


def _of_model(samples: Sequence[_Sample], model: str) -> list[_Sample]:
    """The samples of this model: a server may have several, or may know its own by another name."""
    models = {sample.labels["model_name"] for sample in samples if "model_name" in sample.labels}
    return [
        sample for sample in samples if len(models) < 2 or sample.labels.get("model_name", model) == model
    ]


def _engine(usage: _Sample, configs: Sequence[_Sample], names: MetricNames) -> CacheFigures:
    """The figures of one of the engines of a server, which are told apart by `engine`."""
    engine = usage.labels.get("engine")
    own = [config for config in configs if config.labels.get("engine") == engine] or configs
    share = usage.value if 0 <= usage.value <= 1 else None  # NaN is no share either
    return replace(_configured(own[0], names) if len(own) == 1 else UNKNOWN, usage=share)


def _configured(config: _Sample, names: MetricNames) -> CacheFigures:
    """The settings of a cache."""
    labels = config.labels
    others = {
        name: value
        for name, value in [*labels.items()][:MAX_LABELS]
        if name not in {"engine", "model_name", names.block_size, names.blocks}
        and len(name) + len(value) <= MAX_LABEL
    }
    return CacheFigures(
        block_size=_positive(labels.get(names.block_size)),
        blocks=_positive(labels.get(names.blocks)),
        config=others,
    )


def _positive(value: str | None) -> int | None:
    """The number that a label says, which may also be `None`."""
    return int(value) or None if value and _NUMBER.fullmatch(value) else None


_NUMBER = re.compile(r"[0-9]{1,18}")


def _count(counters: Iterable[Sequence[_Sample]]) -> int | None:
    """The sum of counters; None if one of them is missing."""
    total = 0
    for samples in counters:
        if not samples or not all(0 <= sample.value < _MOST for sample in samples):
            return None
        total += sum(int(sample.value) for sample in samples)
    return total


_MOST = 2.0**63


def _adapters(samples: Sequence[_Sample]) -> AdapterFigures | None:
    """The newest: vLLM writes a line for each combination of adapters that there was."""
    if not samples:
        return None
    newest = max(samples, key=lambda sample: sample.value if math.isfinite(sample.value) else 0.0)
    return AdapterFigures(
        _names(newest.labels.get("running_lora_adapters", "")),
        _names(newest.labels.get("waiting_lora_adapters", "")),
        _positive(newest.labels.get("max_lora")) or 0,
        newest.value if math.isfinite(newest.value) else 0.0,
    )


def _names(listed: str) -> frozenset[str]:
    return frozenset(name.strip() for name in listed.split(",") if name.strip())
