"""Counters and histograms of the server, for Prometheus to read at /metrics.

Metrics that have the same meaning as in vLLM have vLLM's name, `vllm:…`, so that its dashboards, alerts and
autoscalers work; others are called `antiphon:…`. Requests are counted when they end, from their
`Observation`, never per token. Labels come from closed sets: models, paths of routes, tools, reasons; never
from text of clients.

What is counted for each request is a plain number or list, and converted when it is read, in a thread:
`prometheus_client` takes a lock for each of a dozen, 8 µs of a full answer (target 3 of the bench). It counts
all else itself.

To add a metric: here, and a panel that shows it, in `deploy/grafana.json`; `tests/http/test_observing.py`;
the table in `docs/observability.md`.
"""

import asyncio
import time
from bisect import bisect_left
from collections import Counter as Counts
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import partial

from msgspec import Struct
from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.registry import Collector

from antiphon.core.observation import Observation, ObservedDecision, ObservedGeneration
from antiphon.core.permits import Permits
from antiphon.engines.engine import Load
from antiphon.engines.figures import CacheFigures, combined_adapters
from antiphon.processes.sums import Family, Snapshot, total

_FIRST = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
    *(160, 640, 2560),
)
_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_WHOLE = (*(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680),)
_HTTP = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_TOKENS = tuple(step * 10**power for power in range(6) for step in (1, 2, 5))
"""Upper bounds of the buckets: vLLM's, in seconds and tokens."""


disable_created_metrics()  # type: ignore[no-untyped-call]


class _QuickHistogram:
    """How many observed values there are up to each bound, and their sum."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Iterable[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: tuple[str, ...]) -> None:
        """Write it into a family of Prometheus, whose buckets are cumulative."""
        below, buckets = 0, []
        names = (*(str(float(bound)) for bound in self._bounds), "+Inf")
        for name, count in zip(names, [*self._counts], strict=True):
            below += count
            buckets.append((name, below))
        family.add_metric(labels, buckets, self._sum)


class _HistogramSpec(Struct, frozen=True):
    """A histogram of generations: its name, and its buckets."""

    name: str
    help: str
    bounds: tuple[float, ...]


_KINDS = (
    _HistogramSpec(
        "vllm:time_to_first_token_seconds",
        "Seconds from the start of a generation to its first event.",
        _FIRST,
    ),
    _HistogramSpec(
        "vllm:request_time_per_output_token_seconds",
        "Mean seconds between the tokens of a generation.",
        _TOKEN,
    ),
    _HistogramSpec("vllm:e2e_request_latency_seconds", "Seconds that a generation took.", _WHOLE),
    _HistogramSpec(
        "vllm:request_decode_time_seconds",
        "Seconds from the first event of a generation to its end.",
        _WHOLE,
    ),
    _HistogramSpec("vllm:request_prompt_tokens", "Tokens of a prompt.", _TOKENS),
    _HistogramSpec("vllm:request_generation_tokens", "Tokens of a generation.", _TOKENS),
)


_COUNTED = {
    "vllm:prompt_tokens": ("prompt_tokens", "Tokens of prompts."),
    "vllm:prompt_tokens_cached": ("cached_tokens", "Tokens of prompts that were cached."),
    "vllm:generation_tokens": ("generated_tokens", "Tokens that were generated."),
    "antiphon:reasoning_tokens": ("reasoning_tokens", "Tokens that were generated as reasoning."),
    "antiphon:malformed": ("malformed", "Places of broken markup in what models wrote."),
}
"""Counters of a model: their names in `_ModelCounts`, and their descriptions."""


_MASSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1)
"""Upper bounds of the buckets of label masses."""

_DECIDED = {
    "antiphon:decision_reads": ("reads", "Prompts whose next token was read for a decision."),
    "antiphon:decision_unlabelled": ("unlabelled", "Answers whose likeliest token was no label."),
    "antiphon:decision_truncated": ("truncated", "Answers with probabilities that were not told."),
}
"""Counters of the decisions of a model: their names in `_DecisionCounts`, and their descriptions."""


class _DecisionCounts:
    """The counts of the decisions of one model."""

    __slots__ = ("kinds", "masses", "reads", "truncated", "unlabelled")

    def __init__(self) -> None:
        self.reads = self.unlabelled = self.truncated = 0
        self.kinds = defaultdict[str, int](int)  # questions that were answered, by their kind
        self.masses = _QuickHistogram(_MASSES)

    def add(self, decision: ObservedDecision) -> None:
        """Count a decision."""
        self.reads += decision.answers.reads
        self.unlabelled += decision.unlabelled
        for question, verdict in zip(decision.questions, decision.answers.verdicts, strict=True):
            self.kinds[question.kind] += 1
            self.truncated += verdict.truncated
            if verdict.label_mass is not None:
                self.masses.observe(verdict.label_mass)


_PREFIXES = {
    "vllm:prefix_cache_queries": ("queries", "Tokens of prompts that were looked up in the prefix cache."),
    "vllm:prefix_cache_hits": ("hits", "Tokens of prompts that were found in the prefix cache."),
}
"""Counters of the caches of prefixes: their names in `CacheFigures`, and their descriptions."""


_PERMITS = {
    "slots": "How much of this work may be done at a time.",
    "running": "How much is.",
    "waiting": "How much waits for that.",
}
"""Gauges of the permits of work: their names in a `Load`, and their descriptions."""


class _ModelCounts:
    """The counts of one model, and its histograms, one for each of `_KINDS`."""

    __slots__ = (
        *("ends", "histograms"),
        *("cached_tokens", "generated_tokens", "looked_up", "malformed", "prompt_tokens", "reasoning_tokens"),
    )

    def __init__(self) -> None:
        self.prompt_tokens = self.looked_up = self.cached_tokens = 0
        self.generated_tokens = self.reasoning_tokens = self.malformed = 0
        self.ends = defaultdict[str, int](int)  # generations by the reason of their end
        self.histograms = [_QuickHistogram(kind.bounds) for kind in _KINDS]

    def add(self, generation: ObservedGeneration) -> None:
        """Count a generation."""
        usage, prompt_tokens = generation.end.usage, generation.prompt_tokens
        generated_tokens = usage.completion_tokens
        self.prompt_tokens += prompt_tokens
        self.looked_up += prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.generated_tokens += generated_tokens
        self.reasoning_tokens += usage.reasoning_tokens
        self.malformed += generation.malformed
        self.ends[generation.end.reason] += 1
        started, ended, first = generation.started, generation.ended, generation.first
        to_first, per_token, whole, decode, prompt, generated = self.histograms
        if first is not None:
            to_first.observe(first - started)
            decode.observe(ended - first)
            if generated_tokens > 1:
                per_token.observe((ended - first) / (generated_tokens - 1))
        whole.observe(ended - started)
        prompt.observe(prompt_tokens)
        generated.observe(generated_tokens)


_OF_ANSWERS: Mapping[str, tuple[Callable[[Observation], int], str]] = {
    "antiphon:unmet_demands": (lambda answer: len(answer.unmet), "Demands that answers did not meet."),
    "antiphon:failovers": (
        lambda answer: answer.failovers,
        "Generations that another replica continued.",
    ),
    "antiphon:given_back": (
        lambda answer: answer.given_back,
        "Slots that lines of batches gave to requests that waited, in the middle of an answer.",
    ),
    "antiphon:closed_generations": (
        lambda answer: answer.closed,
        "Generations that were cut, and ended in their form.",
    ),
}
"""Counters of answers: how many an answer adds, and their descriptions."""

_LIMITS, _REPLICAS = "antiphon:limit_questions", "antiphon:replica_questions"
_QUESTIONS = {_LIMITS: "the limits of keys", _REPLICAS: "the work of replicas"}
"""Counters of questions to the database: what is asked for."""

CLIENT_CLOSED = 499
"""nginx's status of a request whose client disconnected before it was answered. It is never sent."""


class _RouteCounts:
    """The counts of one method of a route."""

    __slots__ = ("seconds", "statuses")

    def __init__(self) -> None:
        # By class, as in 2xx; and 499, which is no error of a client.
        self.statuses = defaultdict[str, int](int)
        self.seconds = _QuickHistogram(_HTTP)


class LoopDelay:
    """The delay of the event loop: how late its timers were at worst, in the last one to two minutes.

    On a shared machine a loop is also late because other processes use the processor. `own` is the part that
    the server itself may have caused: at most the delay, and at most its CPU time in it.
    """

    STEP = 0.05
    """Seconds between two timers of a busy server: the accuracy of the measurement."""
    LONGEST_STEP = 0.8
    """The same for a server with little to do: each timer wakes it up, which takes 0.1 to 0.2 ms of CPU."""
    WINDOW = 60.0

    def __init__(self, computed: Callable[[], float] = time.process_time) -> None:
        """`computed` are the seconds of processor that the server has used."""
        self._longest = self._before = self._own = self._own_before = self._until = 0.0
        self._computing = computed
        self._computed = computed()
        self._step = self.STEP

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Measure this loop for as long as it runs."""
        self._until = loop.time() + self.WINDOW
        self._wait(loop)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + self._step
        loop.call_at(due, self._measure, loop, due)

    def _measure(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        now, computed = loop.time(), self._computing()
        if now > self._until:
            self._before, self._longest, self._until = self._longest, 0.0, now + self.WINDOW
            self._own_before, self._own = self._own, 0.0
        late = now - due
        self._longest = max(self._longest, late)
        cpu_seconds, self._computed = computed - self._computed, computed
        self._own = max(self._own, min(late, cpu_seconds))
        # A process that used so little CPU cannot have blocked the loop for long.
        self._step = min(2 * self._step, self.LONGEST_STEP) if cpu_seconds < self.STEP / 2 else self.STEP
        self._wait(loop)

    @property
    def seconds(self) -> float:
        """The longest delay."""
        return max(self._longest, self._before)

    @property
    def own(self) -> float:
        """The longest that the server itself may have caused, in seconds."""
        return max(self._own, self._own_before)


class ServerState(Struct, frozen=True):
    """What is so now, and is not counted.

    `loads` and `caches` are those of the engines, by model, and `permits` the loads of other work. `tasks` is
    the number of tasks on the event loop.
    """

    loads: Mapping[str, Load] = {}
    caches: Mapping[str, CacheFigures] = {}
    permits: Mapping[str, Load] = {}
    tasks: int = 0


class Metrics:
    """The counts of one server."""

    def __init__(self) -> None:
        self._models = defaultdict[str, _ModelCounts](_ModelCounts)
        self._decisions = defaultdict[str, _DecisionCounts](_DecisionCounts)
        self._moderations = Counts[tuple[str, str, str]]()  # by guard, subject and outcome
        self._requests = defaultdict[tuple[str, str], _RouteCounts](_RouteCounts)  # by route and method
        self._registry = registry = CollectorRegistry(auto_describe=False)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=registry)
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        self._answers = counter(
            "antiphon:answers_ended", "Answers that did not come to their own end.", ["reason"]
        )
        self._of_answers = [(counter(name, help_), count) for name, (count, help_) in _OF_ANSWERS.items()]
        self._calls = counter("antiphon:tool_calls", "Calls of tools.", ["tool", "outcome"])
        self._call_seconds = histogram(
            "antiphon:tool_call_seconds", "Seconds of a call.", ["tool"], buckets=_WHOLE
        )
        self._writes = histogram(
            "antiphon:store_write_seconds", "Seconds of a write to the store.", buckets=_HTTP
        )
        self._store_failures = counter("antiphon:store_failures", "Tries that the store did not answer.")
        self._questions = {
            name: counter(name, f"Questions to the database for {what} that servers share.", ["outcome"])
            for name, what in _QUESTIONS.items()
        }
        for questions in self._questions.values():
            for outcome in ("answered", "unanswered"):
                questions.labels(outcome)
        self.background = 0
        """Background responses that are being worked on here."""
        self.permits: dict[str, Permits] = {}
        """Of work that waits for its turn, by its kind."""
        self.delay = LoopDelay()

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request that was answered, or aborted."""
        counts = self._requests[route, method]
        counts.statuses["499" if status == CLIENT_CLOSED else f"{status // 100}xx"] += 1
        counts.seconds.observe(seconds)

    def answer(self, observation: Observation) -> None:
        """Count the work for a request, or a background response."""
        for generation in observation.generations:
            self._models[generation.model].add(generation)
        if observation.read and observation.served is not None:
            self._models[observation.served].prompt_tokens += observation.read
        if observation.decision is not None:
            self._decisions[observation.decision.model].add(observation.decision)
        for checked in observation.moderations:
            self._moderations[checked.model, checked.subject, checked.outcome] += 1
            self._models[checked.model].prompt_tokens += checked.tokens
        for call in observation.calls:
            self._calls.labels(call.type, "failed" if call.failed else "completed").inc()
            self._call_seconds.labels(call.type).observe(call.ended - call.started)
        if observation.failure is not None:
            self._answers.labels(observation.failure).inc()
        for counter, count_of in self._of_answers:
            if count := count_of(observation):
                counter.inc(count)

    def store_wrote(self, seconds: float) -> None:
        """Count a write to the store; the time includes retries."""
        self._writes.observe(seconds)

    def store_failed(self) -> None:
        """Count a try that the store did not answer."""
        self._store_failures.inc()

    def asked_for_limits(self, *, answers: bool) -> None:
        """Count a question to the database for the limits of keys, which it has answered, or not."""
        self._ask(_LIMITS, answers=answers)

    def asked_for_replicas(self, *, answers: bool) -> None:
        """Count a question to the database for the work of replicas, which it has answered, or not."""
        self._ask(_REPLICAS, answers=answers)

    def _ask(self, name: str, *, answers: bool) -> None:
        self._questions[name].labels("answered" if answers else "unanswered").inc()

    def tokens(self, model: str) -> tuple[int, int]:
        """The tokens of all prompts of a model, and those that it generated, in generations that are over."""
        counts = self._models.get(model)
        return (0, 0) if counts is None else (counts.prompt_tokens, counts.generated_tokens)

    def text(self, accept: str, now: ServerState) -> tuple[bytes, str]:
        """All metrics of a server of one process: see `text_of`."""
        return text_of(accept, [self.snapshot(now)])

    def snapshot(self, now: ServerState) -> Snapshot:
        """All metrics as plain data. This takes milliseconds: call it in a thread."""
        told = {model: figures for model, figures in now.caches.items() if figures.told}
        counted = {model: figures for model, figures in now.caches.items() if not figures.told}
        families = (
            *self._gauges(now),
            *_cache_gauges(counted),
            *_pool_families(now.caches),
            *self._families(counted, told),
            *self._registry.collect(),
        )
        of_engines = (*_cache_gauges(told), *_prefix_counters(told, {}))
        return Snapshot([*map(_plain, families)], [*map(_plain, of_engines)])

    def _gauges(self, now: ServerState) -> Iterator[Metric]:
        running = GaugeMetricFamily("vllm:num_requests_running", "Generations under way.", labels=_MODEL)
        waiting = GaugeMetricFamily("vllm:num_requests_waiting", "Generations that wait.", labels=_MODEL)
        for model, load in now.loads.items():
            running.add_metric((model, _ENGINE), load.running)
            waiting.add_metric((model, _ENGINE), load.waiting)
        yield from (running, waiting)
        for field, help_ in _PERMITS.items():
            gauge = GaugeMetricFamily(f"antiphon:permits_{field}", help_, labels=("work",))
            for work, load in now.permits.items():
                gauge.add_metric((work,), getattr(load, field))
            yield gauge
        yield GaugeMetricFamily(
            "antiphon:background_running", "Background responses under way.", self.background
        )
        yield GaugeMetricFamily("antiphon:tasks", "Tasks of the event loop.", now.tasks)
        yield GaugeMetricFamily(
            "antiphon:loop_delay_seconds",
            "Longest time that the event loop was held in the last one to two minutes.",
            self.delay.seconds,
        )
        yield GaugeMetricFamily(
            "antiphon:loop_held_seconds",
            "As much of it, at most, as the server itself has caused, not others on its machine.",
            self.delay.own,
        )

    def _families(self, caches: Mapping[str, CacheFigures], told: Container[str]) -> Iterator[Metric]:
        # Copies, because the event loop continues to count.
        models = self._models.copy()
        for name, (field, help_) in _COUNTED.items():
            counter = CounterMetricFamily(name, help_, labels=_MODEL)
            for model, counts in models.items():
                counter.add_metric((model, _ENGINE), getattr(counts, field))
            yield counter
        counted = {model: counts for model, counts in models.items() if model not in told}
        yield from _prefix_counters(caches, counted)
        success = CounterMetricFamily(
            "vllm:request_success", "Generations by how they ended.", labels=(*_MODEL, "finished_reason")
        )
        for model, counts in models.items():
            for reason, count in counts.ends.copy().items():
                success.add_metric((model, _ENGINE, str(reason)), count)
        yield success
        for index, kind in enumerate(_KINDS):
            family = HistogramMetricFamily(kind.name, kind.help, labels=_MODEL)
            for model, counts in models.items():
                counts.histograms[index].add_to(family, (model, _ENGINE))
            yield family
        yield from _decision_families(self._decisions.copy())
        moderations = CounterMetricFamily(
            "antiphon:moderations",
            "Texts that a guard model has checked.",
            labels=(*_MODEL, "subject", "outcome"),
        )
        for (model, subject, outcome), count in self._moderations.copy().items():
            moderations.add_metric((model, _ENGINE, subject, outcome), count)
        yield moderations
        requests = CounterMetricFamily("http_requests", "Requests.", labels=("handler", "method", "status"))
        durations = HistogramMetricFamily(
            "http_request_duration_seconds", "Seconds of a request.", labels=("handler", "method")
        )
        for labels, of_route in self._requests.copy().items():
            for status, count in of_route.statuses.copy().items():
                requests.add_metric((*labels, status), count)
            of_route.seconds.add_to(durations, labels)
        yield from (requests, durations)


_MODEL = ("model_name", "engine")
_ENGINE = "0"
"""vLLM numbers the engines of a model. Here each has one."""


def _cache_gauges(caches: Mapping[str, CacheFigures]) -> Iterator[Metric]:
    """What schedulers read of the caches, with the labels of vLLM. Nothing is written of what is unknown."""
    usage = GaugeMetricFamily(
        "vllm:kv_cache_usage_perc", "Share of the KV cache that generations use, from 0 to 1.", labels=_MODEL
    )
    config = GaugeMetricFamily("vllm:cache_config_info", "The settings of the KV cache, as labels.")
    for model, figures in caches.items():
        if figures.usage is not None:
            usage.add_metric((model, _ENGINE), figures.usage)
        sizes = {"block_size": figures.block_size, "num_gpu_blocks": figures.blocks}
        known = {name: str(size) for name, size in sizes.items() if size is not None}
        if known or figures.config:
            # Several models may have the same settings: only their names make series of them.
            labels = {**figures.config, **known, **dict(zip(_MODEL, (model, _ENGINE), strict=True))}
            config.add_sample(config.name, labels, 1)
    yield from (usage, config)
    # vLLM writes no model here; the names of adapters are those of one model each.
    adapters = GaugeMetricFamily(
        "vllm:lora_requests_info",
        "The adapters of generations, as labels; the value is the time.",
        labels=("max_lora", "waiting_lora_adapters", "running_lora_adapters"),
    )
    if (used := combined_adapters(figures.adapters for figures in caches.values())) is not None:
        names = (",".join(sorted(used.waiting)), ",".join(sorted(used.running)))
        adapters.add_metric((str(used.maximum), *names), used.updated)
    yield adapters


_POOLED = {
    "antiphon:predicted_cached_tokens": (
        "predicted",
        "Tokens of prompts expected in the cache of a replica.",
    ),
    "antiphon:pool_cached_tokens": ("cached", "Tokens of the same prompts that replicas found there."),
    "antiphon:kv_event_messages": ("messages", "Messages of events of caches that were read."),
    "antiphon:kv_event_gaps": ("gaps", "Gaps in the events of caches."),
    "antiphon:kv_event_losses": ("losses", "Gaps for which a cache was forgotten."),
}


def _pool_families(caches: Mapping[str, CacheFigures]) -> Iterator[Metric]:
    """What pools know of the caches of their replicas, and how right it was."""
    pools = {model: figures.pool for model, figures in caches.items() if figures.pool is not None}
    for name, (field, help_) in _POOLED.items():
        counter = CounterMetricFamily(name, help_, labels=_MODEL)
        for model, pool in pools.items():
            counter.add_metric((model, _ENGINE), getattr(pool, field))
        yield counter
    blocks = GaugeMetricFamily("antiphon:kv_event_blocks", "Blocks that events tell of.", labels=_MODEL)
    for model, pool in pools.items():
        blocks.add_metric((model, _ENGINE), pool.blocks)
    yield blocks


def _prefix_counters(
    caches: Mapping[str, CacheFigures], models: Mapping[str, _ModelCounts]
) -> Iterator[Metric]:
    """The counters of the engines or, of an engine without, what the answers have reported, if they do."""
    of_answers = {
        model: CacheFigures(queries=counts.looked_up, hits=counts.cached_tokens)
        for model, counts in models.items()
        if counts.cached_tokens
    }
    of_engines = {model: figures for model, figures in caches.items() if figures.queries is not None}
    for name, (field, help_) in _PREFIXES.items():
        counter = CounterMetricFamily(name, help_, labels=_MODEL)
        for model, figures in (of_answers | of_engines).items():
            if (count := getattr(figures, field)) is not None:
                counter.add_metric((model, _ENGINE), count)
        yield counter


def _decision_families(models: Mapping[str, _DecisionCounts]) -> Iterator[Metric]:
    """What was decided, by model."""
    for name, (field, help_) in _DECIDED.items():
        counter = CounterMetricFamily(name, help_, labels=_MODEL)
        for model, counts in models.items():
            counter.add_metric((model, _ENGINE), getattr(counts, field))
        yield counter
    questions = CounterMetricFamily(
        "antiphon:decision_questions", "Questions that were answered.", labels=(*_MODEL, "kind")
    )
    masses = HistogramMetricFamily(
        "antiphon:decision_label_mass", "Probability that an answer is one of the labels.", labels=_MODEL
    )
    for model, counts in models.items():
        for kind, count in counts.kinds.copy().items():
            questions.add_metric((model, _ENGINE, str(kind)), count)
        counts.masses.add_to(masses, (model, _ENGINE))
    yield from (questions, masses)


def _plain(metric: Metric) -> Family:
    samples = [(sample.name, tuple(sample.labels.items()), sample.value) for sample in metric.samples]
    return Family(metric.name, metric.documentation, metric.type, samples)


def text_of(accept: str, snapshots: Iterable[Snapshot]) -> tuple[bytes, str]:
    """All metrics of a server, and their media type, in the format of Prometheus that `accept` selects.

    This takes milliseconds: call it in a thread.
    """
    encode, media_type = _encoder(accept)
    return encode(_Summed(total(snapshots))), media_type


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """The encoder for the format that `accept` selects, and its media type.

    All names here are valid in each format. `prometheus_client` escapes them nevertheless: in OpenMetrics, as
    Prometheus 2 asks for it, samples of `vllm:…` would be called `vllm_…`.
    """
    encode, media_type = choose_encoder(accept)
    unescaped = partial(encode, escaping=ALLOWUTF8) if isinstance(encode, partial) else encode
    return unescaped, media_type


class _Summed(Collector):
    """Metrics that were gathered before."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            metric = Metric(family.name, family.help, family.kind)
            for name, labels, value in family.samples:
                metric.add_sample(name, dict(labels), value)
            yield metric
