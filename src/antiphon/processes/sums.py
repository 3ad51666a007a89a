"""Metrics of several processes as those of one server: sums, without a label for the process.

A `Snapshot` is plain data, so that it can be sent. Counters and histograms are added up, and those of
processes that have ended stay in the sum, so that it never falls. Gauges are added up, too, except those in
`LARGEST` and `LEAST`. What an engine says of itself is the same whichever process has asked, and counts once.

To add a gauge that must not be added up: its name here.
"""

import operator
from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec import Struct
from msgspec.structs import replace

LARGEST = frozenset(
    {
        *("antiphon:loop_delay_seconds", "antiphon:loop_held_seconds"),
        *("vllm:cache_config_info", "python_info", "process_max_fds"),
    }
)
"""Gauges of which the largest value counts."""
LEAST = frozenset({"process_start_time_seconds"})
"""Gauges of which the least value counts."""
ADAPTERS = "vllm:lora_requests_info"
"""Its labels are lists, and its value is a time: the lists of all are joined, and the latest time counts."""

Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float]


class Family(Struct, frozen=True):
    """A metric of this kind of Prometheus's, and its samples: their names, labels and values."""

    name: str
    help: str
    kind: str
    samples: list[Sample]


class Snapshot(Struct, frozen=True):
    """The metrics of one process: those that it has counted, and those that engines say of themselves."""

    counted: list[Family] = []
    told: list[Family] = []

    @property
    def lasting(self) -> "Snapshot":
        """What stays when the process has ended."""
        return Snapshot([family for family in self.counted if family.kind in ("counter", "histogram")])


def encode(snapshot: Snapshot) -> bytes:
    """The bytes of a snapshot."""
    return msgspec.msgpack.encode(snapshot)


_decoder = msgspec.msgpack.Decoder(Snapshot)


def decode(data: bytes) -> Snapshot:
    """The snapshot of these bytes."""
    return _decoder.decode(data)


def lasting(snapshots: Iterable[bytes]) -> bytes:
    """The sum of what stays of processes that have ended."""
    summed = _added(family for data in snapshots for family in decode(data).lasting.counted)
    return encode(Snapshot([*summed]))


def total(snapshots: Iterable[Snapshot]) -> list[Family]:
    """The metrics of a server."""
    snapshots = list(snapshots)
    counted = _added(family for snapshot in snapshots for family in snapshot.counted)
    told = _merged((family for snapshot in snapshots for family in snapshot.told), lambda _: max)
    families: dict[str, Family] = {}
    for family in (*counted, *told):
        first = families.setdefault(family.name, family)
        if first is not family:
            samples = _one_of(family.name, first.samples + family.samples)
            families[family.name] = replace(first, samples=samples)
    return [*families.values()]


def _added(families: Iterable[Family]) -> Iterator[Family]:
    return _merged(families, _way)


def _way(family: Family) -> Callable[[float, float], float]:
    """How two values of one series become one."""
    if family.name in LARGEST:
        return max
    return min if family.name in LEAST else operator.add


def _merged(
    families: Iterable[Family], way: Callable[[Family], Callable[[float, float], float]]
) -> Iterator[Family]:
    """Each family once, with each of its series once."""
    firsts: dict[str, Family] = {}
    values: dict[str, dict[tuple[str, Labels], float]] = {}
    for family in families:
        firsts.setdefault(family.name, family)
        series, combine = values.setdefault(family.name, {}), way(family)
        for name, labels, value in family.samples:
            before = series.get((name, labels))
            series[name, labels] = value if before is None else combine(before, value)
    for name, family in firsts.items():
        samples = [(*key, value) for key, value in values[name].items()]
        yield replace(family, samples=_one_of(name, samples))


def _one_of(family: str, samples: list[Sample]) -> list[Sample]:
    """The samples of a family; of `ADAPTERS` one, with the names that are in any of the lists."""
    if family != ADAPTERS or len(samples) <= 1:
        return samples
    all_labels = [dict(labels) for _, labels, _ in samples]

    def names(label: str) -> str:
        return ",".join(sorted({name for labels in all_labels for name in labels[label].split(",") if name}))

    joined = {
        "max_lora": str(max(int(labels["max_lora"]) for labels in all_labels)),
        "waiting_lora_adapters": names("waiting_lora_adapters"),
        "running_lora_adapters": names("running_lora_adapters"),
    }
    return [(samples[0][0], tuple(joined.items()), max(value for *_, value in samples))]
