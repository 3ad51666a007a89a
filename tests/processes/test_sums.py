"""Metrics of several processes as those of one."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from antiphon.app.metrics import Metrics, ServerState, text_of
from antiphon.engines.engine import Load
from antiphon.engines.figures import AdapterFigures, CacheFigures
from antiphon.processes import sums
from antiphon.processes.sums import ADAPTERS, Family, Snapshot, total


def counted(value: float, name: str = "requests", kind: str = "counter") -> Snapshot:
    return Snapshot([Family(name, "", kind, [(name, (("route", "/a"),), value)])])


def values(snapshots: list[Snapshot]) -> dict[str, list[float]]:
    return {family.name: [value for *_, value in family.samples] for family in total(snapshots)}


def test_counters_and_gauges_are_added_up_and_delays_are_not() -> None:
    assert values([counted(1), counted(2)]) == {"requests": [3]}
    delay = "antiphon:loop_delay_seconds"
    assert values([counted(1, delay, "gauge"), counted(2, delay, "gauge")]) == {delay: [2]}
    started = "process_start_time_seconds"
    assert values([counted(1, started, "gauge"), counted(2, started, "gauge")]) == {started: [1]}


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.booleans()), max_size=20))
def test_a_counter_never_falls_whoever_ends(turns: list[tuple[int, int, bool]]) -> None:
    """As the supervisor does it: the last snapshot of a process that ends is kept."""
    running, ended, before = [0.0, 0.0, 0.0], sums.lasting(()), 0.0
    for row, more, ends in turns:
        running[row] += more
        if ends:
            gauge = counted(7, "tasks", "gauge").counted
            last = Snapshot([*counted(running[row]).counted, *gauge])
            ended, running[row] = sums.lasting((ended, sums.encode(last))), 0.0
        now = values([*map(counted, running), sums.decode(ended)])
        assert now.get("tasks", []) == []
        assert now["requests"][0] >= before
        before = now["requests"][0]
    assert before == sum(more for _, more, _ in turns)


def snapshot(running: int, *, told: bool, adapters: AdapterFigures | None = None) -> Snapshot:
    figures = CacheFigures(
        usage=0.25, block_size=16, blocks=100, queries=50, hits=40, adapters=adapters, told=told
    )
    now = ServerState({"m": Load(running, 1, 8)}, {"m": figures}, {}, 3)
    return sums.decode(sums.encode(Metrics().snapshot(now)))


def series(snapshots: list[Snapshot]) -> dict[str, list[float]]:
    text, _ = text_of("", snapshots)
    return {
        sample.name: [*(other.value for other in family.samples if other.name == sample.name)]
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_what_an_engine_says_of_itself_counts_once() -> None:
    told = series([snapshot(2, told=True), snapshot(3, told=True)])
    assert told["vllm:num_requests_running"] == [5]
    assert told["vllm:kv_cache_usage_perc"] == [0.25]
    assert told["vllm:cache_config_info"] == [1]
    assert told["vllm:prefix_cache_queries_total"] == [50]
    own = series([snapshot(2, told=False), snapshot(3, told=False)])
    assert own["vllm:kv_cache_usage_perc"] == [0.5]  # each process knows of its own generations
    assert own["vllm:prefix_cache_queries_total"] == [100]


def test_one_process_has_the_same_series_as_before() -> None:
    now = ServerState({"m": Load(1, 0, 8)}, {"m": CacheFigures(usage=0.5)}, {"schemas": Load(1, 2, 3)}, 3)
    metrics = Metrics()
    text, media_type = metrics.text("", now)
    assert media_type.startswith("text/plain")
    names = [family.name for family in text_string_to_metric_families(text.decode())]
    assert len(names) == len({*names})
    assert "vllm:kv_cache_usage_perc" in names


def test_the_adapters_of_all_are_in_one_sample() -> None:
    one = AdapterFigures(frozenset({"a"}), frozenset(), 4, 1.0)
    other = AdapterFigures(frozenset({"b"}), frozenset({"c"}), 4, 2.0)
    families = total([snapshot(1, told=False, adapters=one), snapshot(1, told=False, adapters=other)])
    [family] = [family for family in families if family.name == ADAPTERS]
    [(_, labels, value)] = family.samples
    assert dict(labels) == {
        "max_lora": "4",
        "waiting_lora_adapters": "c",
        "running_lora_adapters": "a,b",
    }
    assert value == 2.0
