"""The figures of caches: combined, read from servers of every kind, and written as vLLM writes them.

What servers say here has the names and labels that vLLM 0.33, SGLang 0.5.23 and llama-server b10434 write.
"""

import asyncio
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from antiphon.core.shared_loads import Drain
from antiphon.engines.figures import UNKNOWN, AdapterFigures, CacheFigures, Measured, combined, completed
from antiphon.engines.http_client import HttpClient
from antiphon.engines.pool import PoolEngine
from antiphon.engines.scripted import ScriptedEngine
from antiphon.engines.upstreams import metrics
from antiphon.engines.upstreams.metrics import NAMES, MetricsReader, parse
from tests.contracts.engine import until
from tests.engines.canned import canned

MODEL = "smol"
DRAIN = Drain("ann", 0)
VLLM = """\
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="smol"} 0.25
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="smol"} 1500.0
vllm:prefix_cache_queries_created{engine="0",model_name="smol"} 1.7958e+09
vllm:prefix_cache_hits_total{engine="0",model_name="smol"} 1408.0
vllm:cache_config_info{_block_size_resolved="True",block_size="16",cache_dtype="auto",engine="0",\
num_gpu_blocks="1000",num_gpu_blocks_override="None",sliding_window="None"} 1.0
vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} 1.7958001e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters="c"} 1.7958003e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a",waiting_lora_adapters=""} 1.7958002e+09
"""
OTHERS = {"_block_size_resolved": "True", "cache_dtype": "auto"} | dict.fromkeys(
    ("num_gpu_blocks_override", "sliding_window"), "None"
)
ADAPTERS = AdapterFigures(frozenset("ab"), frozenset("c"), 4, 1.7958003e9)
OF_VLLM = CacheFigures(0.25, 16, 1000, 1500, 1408, OTHERS, ADAPTERS)

SGLANG = """\
# TYPE sglang:token_usage gauge
sglang:token_usage{engine_type="unified",model_name="smol",pp_rank="0",tp_rank="0"} 0.28
sglang:cache_config_info{num_pages="8192",page_size="1"} 1.0
sglang:prompt_tokens_total{model_name="smol"} 700.0
sglang:cached_tokens_total{cache_source="device",model_name="smol"} 600.0
sglang:cached_tokens_total{cache_source="host",model_name="smol"} 99.0
"""

LLAMA = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed, excluding cached tokens
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 40
# TYPE llamacpp:prompt_tokens_cached_total counter
llamacpp:prompt_tokens_cached_total 60
llamacpp:n_busy_slots_per_decode 1.5
"""


def of(kind, text, model=MODEL):
    return parse(text.encode(), names=NAMES[kind], model=model)


@pytest.mark.parametrize(
    ("kind", "text", "figures"),
    [
        ("vllm", VLLM, OF_VLLM),
        ("sglang", SGLANG, CacheFigures(0.28, 1, 8192, 700, 699)),
        ("llama-server", LLAMA, CacheFigures(queries=100, hits=60)),
        ("llama-server", "llamacpp:kv_cache_usage_ratio 0.5\n", CacheFigures(0.5)),
        ("vllm", 'vllm:gpu_cache_usage_perc{model_name="smol"} 0.5\n', CacheFigures(0.5)),
    ],
)
def test_each_kind_of_server_has_its_own_names(kind, text, figures):
    assert of(kind, text) == figures


@pytest.mark.parametrize("kind", NAMES)
def test_what_a_server_does_not_say_is_unknown(kind):
    assert of(kind, "") == of(kind, VLLM.replace("vllm:", "other:")) == UNKNOWN


@pytest.mark.parametrize("value", ["nan", "-0.1", "1.5", "+Inf"])
def test_a_share_that_is_none_is_unknown(value):
    assert of("vllm", f'vllm:kv_cache_usage_perc{{engine="0"}} {value}\n') == UNKNOWN


@pytest.mark.parametrize("number", ["None", "", "0", "-1", "1e3", "9" * 30])
def test_sizes_that_are_none_are_unknown(number):
    text = f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{number}"}} 1.0\n'
    assert of("vllm", text) == CacheFigures(block_size=16)


@pytest.mark.parametrize("count", [nan, inf, -1.0])
def test_counts_that_are_none_are_unknown(count):
    text = f"vllm:prefix_cache_queries_total {count}\nvllm:prefix_cache_hits_total {count}\n"
    assert of("vllm", text) == UNKNOWN


def test_several_engines_of_a_server_are_one_for_schedulers():
    lines = [
        line
        for engine, usage, blocks in ((0, 0.1, 300), (1, 0.5, 100))
        for line in (
            f'vllm:kv_cache_usage_perc{{engine="{engine}",model_name="smol"}} {usage}',
            f'vllm:cache_config_info{{block_size="16",engine="{engine}",num_gpu_blocks="{blocks}"}} 1',
            f'vllm:prefix_cache_queries_total{{engine="{engine}",model_name="smol"}} 10',
            f'vllm:prefix_cache_hits_total{{engine="{engine}",model_name="smol"}} 5',
        )
    ]
    figures = of("vllm", "\n".join(lines))
    assert figures.usage == pytest.approx(0.2)
    assert (figures.blocks, figures.block_size, figures.queries, figures.hits) == (400, 16, 20, 10)


def test_of_several_models_the_own_one_is_read():
    text = VLLM + VLLM.replace("smol", "large").replace("0.25", "0.75")
    assert of("vllm", text, "large").usage == 0.75
    assert of("vllm", text, "smol").usage == 0.25
    assert of("vllm", text, "unknown").usage is None
    assert of("vllm", VLLM, "an-alias").usage == 0.25  # vLLM writes the first of its names


def test_labels_may_have_any_text():
    text = r'vllm:cache_config_info{block_size="16",a="x\"},b=\"1\\",c="\n"} 1' + "\n"
    assert of("vllm", text).config == {"a": 'x"},b="1\\', "c": "\n"}


def test_hostile_metrics_take_linear_time_and_room():
    line = "vllm:cache_config_info{"
    for text in (line + "a" * 10**6, line + 'a="' * 300_000, line + "a =" * 300_000, line + "}" * 10**6):
        with pytest.raises(ValueError, match="not in the format"):
            of("vllm", text)
    many = "".join(f'l{number}="x",' for number in range(10**5))
    assert len(of("vllm", f"{line}{many}}} 1\n").config) <= metrics.MAX_LABELS
    assert of("vllm", f'{line}a="{"x" * 10**6}"}} 1\n').config == {}
    with pytest.raises(ValueError, match="more than"):
        of("vllm", "vllm:kv_cache_usage_perc 0\n" * (metrics.MAX_LINES + 1))


# Combined


SHARES = st.none() | st.floats(0, 1)
COUNTS = st.none() | st.integers(0, 10**6)
SIZES = st.none() | st.sampled_from((1, 16))
FIGURES = st.builds(
    CacheFigures, SHARES, SIZES, st.none() | st.integers(1, 10**6), COUNTS, COUNTS, st.just({}), st.none()
)


@given(st.lists(FIGURES, max_size=4))
def test_the_figures_of_several_caches_lie_between_those_of_each(all_figures):
    one = combined(all_figures)
    shares = [figures.usage for figures in all_figures if figures.usage is not None]
    assert (one.usage is None) is (not shares)
    if one.usage is not None:
        assert min(shares) - 1e-9 <= one.usage <= max(shares) + 1e-9
    for name in ("queries", "hits"):
        known = [value for figures in all_figures if (value := getattr(figures, name)) is not None]
        assert getattr(one, name) == (sum(known) if known else None)
    sizes = {figures.block_size for figures in all_figures} - {None}
    assert one.block_size == (sizes.pop() if len(sizes) == 1 else None)


@given(FIGURES)
def test_one_cache_is_as_it_is(figures):
    one = combined([figures])
    assert one.usage == pytest.approx(figures.usage) if figures.usage is not None else one.usage is None
    assert (one.queries, one.hits, one.block_size) == (figures.queries, figures.hits, figures.block_size)


@given(FIGURES, FIGURES)
def test_unknown_figures_are_completed(figures, others):
    whole = completed(figures, others)
    for name in CacheFigures.__struct_fields__:
        own = getattr(figures, name)
        assert getattr(whole, name) == (getattr(others, name) if own == getattr(UNKNOWN, name) else own)


async def test_a_pool_is_one_cache_without_replicas_that_get_no_requests():
    full = CacheFigures(1.0, 16, 100, 10, 5, adapters=AdapterFigures(frozenset({"a"}), maximum=1))
    empty = CacheFigures(0.0, 16, 300, 30, 5, adapters=AdapterFigures(waiting=frozenset({"b"}), maximum=1))
    engines = [("full", ScriptedEngine([], figures=full)), ("empty", ScriptedEngine([], figures=empty))]
    pool = PoolEngine(engines)
    await pool.start()
    try:
        both = await pool.cache_figures()
        pool.drain("full", DRAIN)
        drained = await pool.cache_figures()
    finally:
        await pool.stop()
    assert isinstance(pool, Measured)
    assert (both.usage, both.blocks, both.queries, both.hits) == (0.25, 400, 40, 10)
    assert both.adapters is not None
    assert (both.adapters.running, both.adapters.waiting, both.adapters.maximum) == ({"a"}, {"b"}, 2)
    assert (drained.usage, drained.blocks) == (0.0, 300)
    assert (drained.queries, drained.hits) == (40, 10)  # counters do not decrease


# Read from a server


def text(body, status=200):
    raw = body.encode()
    return b"HTTP/1.1 %d X\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b" % (
        status,
        len(raw),
        raw,
    )


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """A busy machine answers late."""
    monkeypatch.setattr(metrics, "TIMEOUT_SECONDS", 60.0)
    monkeypatch.setattr(metrics, "PATIENCE_SECONDS", 60.0)


@pytest.fixture
def reading(monkeypatch):
    """A server is read each time."""
    monkeypatch.setattr(metrics, "READ_SECONDS", 0.0)


def reader_of(server):
    return MetricsReader(HttpClient(server.url), NAMES["vllm"], MODEL, server.url)


async def test_a_server_is_asked_now_and_then_whoever_asks(monkeypatch):
    monkeypatch.setattr(metrics, "READ_SECONDS", 60.0)
    async with canned({"/metrics": [text(VLLM)]}) as server:
        reader = reader_of(server)
        assert server.asked == []  # not before somebody does
        answers = await asyncio.gather(*(reader.figures() for _ in range(5)))
        answers.append(await reader.figures())
        await reader.close()
    assert answers == [OF_VLLM] * 6
    assert [asked.path for asked in server.asked] == ["/metrics"]


@pytest.mark.usefixtures("reading")
async def test_counters_go_on_and_the_rest_is_unknown_while_a_server_cannot_be_read():
    async with canned({"/metrics": [text(VLLM)]}) as server:
        reader = reader_of(server)
        with capture_logs() as lines:
            assert await reader.figures() == OF_VLLM
            server.answers["/metrics"] = [text("", 500)]
            failed = [await reader.figures() for _ in range(3)]
            server.answers["/metrics"] = [text(VLLM.replace(" 1500.0", " 100.0").replace(" 1408.0", " 50.0"))]
            again = await reader.figures()
        await reader.close()
    assert failed == [CacheFigures(queries=1500, hits=1408)] * 3
    assert (again.usage, again.queries, again.hits) == (0.25, 1600, 1458)  # it has started again
    assert [line["event"] for line in lines] == [
        "the metrics of a server cannot be read",
        "the metrics of a server can be read again",
    ]


@pytest.mark.parametrize(("kind", "hint"), [("llama-server", "Start it with --metrics."), ("vllm", None)])
async def test_the_log_says_with_which_option_a_server_has_metrics(kind, hint):
    async with canned({}) as server:
        reader = MetricsReader(HttpClient(server.url), NAMES[kind], MODEL, server.url)
        with capture_logs() as lines:
            assert await reader.figures() == UNKNOWN
        await reader.close()
    assert (lines[0]["why"], lines[0].get("hint")) == ("the status of its answer is 404", hint)


@pytest.mark.usefixtures("reading")
@pytest.mark.parametrize(
    "body", ["vllm:kv_cache_usage_perc what\n", "#" * (metrics.MAX_BYTES + 1)], ids=["broken", "long"]
)
async def test_metrics_that_cannot_be_read_are_unknown(body):
    async with canned({"/metrics": [text(body)]}) as server:
        reader = reader_of(server)
        with capture_logs() as lines:
            while not lines:
                assert await reader.figures() == UNKNOWN
        await reader.close()


async def test_nobody_waits_for_a_server_that_hangs(monkeypatch):
    monkeypatch.setattr(metrics, "TIMEOUT_SECONDS", 1.0)
    monkeypatch.setattr(metrics, "PATIENCE_SECONDS", 0.01)
    async with canned({"/metrics": []}, silent={"/metrics"}) as server:
        reader = reader_of(server)
        with capture_logs() as lines:
            assert await reader.figures() == UNKNOWN
            assert not lines  # it is still being read
            await until(lambda: bool(lines))
        assert await reader.figures() == UNKNOWN
        await reader.close()
    assert lines[0]["why"] == "it took 1 seconds"
