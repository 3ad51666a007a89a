"""What is seen of a request: one log line, the counts at /metrics, and the spans of its trace."""

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, MutableMapping
from functools import partial
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio
import structlog
from msgspec.structs import replace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs
from websockets.asyncio.client import connect

from antiphon.app.metrics import LoopDelay, Metrics, ServerState
from antiphon.app.tracing import OpenTelemetryTracing
from antiphon.core.chunks import FinishReason
from antiphon.core.events import Finished, Usage
from antiphon.core.observation import NoTracing, Observation, ObservedGeneration
from antiphon.engines.figures import AdapterFigures, CacheFigures
from antiphon.engines.scripted import ScriptedEngine
from antiphon.http.app import ROUTES
from antiphon.http.observing import ObservingMiddleware
from antiphon.http.routes import ApiTable
from antiphon.log import configure, with_request
from antiphon.run.models import Models
from tests.acting import TakingTurns
from tests.http.picker import Picked, picked
from tests.server import NO_TLS, Running, running, served_model
from tests.toolkits.dice import Dice

pytestmark = pytest.mark.asyncio(loop_scope="module")

Line = MutableMapping[str, Any]

CALL = '<tool_call>\n{"name": "roll", "arguments": {}}\n</tool_call>'
SCRIPT: list[Mapping[str, Any]] = [
    {"when": "broken", "output": "<tool_call>\n{nothing"},
    {"when": "fails", "output": "one two three", "fail_after": 2},
    {"when": "slow", "output": "word", "tokens": 100_000, "delay_ms": 5},
    {"output": "Hello there"},
]
CHAT = "/v1/chat/completions"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
KEY = "a-key-of-the-tests"


@pytest.fixture(scope="module")
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(spans: InMemorySpanExporter) -> AsyncIterator[Running]:
    tracing = OpenTelemetryTracing(SimpleSpanProcessor(spans))
    async with running(SCRIPT, api_key=(KEY,), tracing=tracing) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(server: Running) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(verify=NO_TLS, base_url=server.url, headers=headers) as http:
        yield http


@pytest.fixture
def lines() -> Iterator[list[Line]]:
    with capture_logs(processors=[with_request]) as lines:
        yield lines


def chat(content: str, **more: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": content}], **more}


async def line_of(lines: list[Line], request_id: str) -> Line:
    """The line of a request: its client may have the answer a moment before."""
    while True:
        found = [line for line in lines if line["event"] == "request" and line["request_id"] == request_id]
        if found:
            [line] = found
            return line
        await asyncio.sleep(0.001)


# The line


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_has_a_line(http: httpx.AsyncClient, lines: list[Line], stream: bool) -> None:
    response = await http.post(CHAT, json=chat("Hi", stream=stream), headers={"x-request-id": "mine"})
    line = await line_of(lines, "mine")
    assert line.pop("first_ms") <= line.pop("total_ms")
    assert len(line.pop("key")) == 8
    assert line == {
        "event": "request",
        "log_level": "info",
        "request_id": "mine",
        "method": "POST",
        "path": CHAT,
        "route": CHAT,
        "status": 200,
        "answer": "chatcmpl-mine",
        "model": "scripted",
        "dialect": "hermes",
        "prompt_tokens": line["prompt_tokens"],
        "completion_tokens": 2,
        "finish": "stop",
    }
    assert KEY not in str(line)
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/models", (200, "info", "/v1/models")),
        ("/v1/models/none", (404, "info", "/v1/models/{model:path}")),
        ("/nothing?key=secret", (404, "info", "none")),
        ("/health", (200, "debug", "/health")),
    ],
)
async def test_every_request_has_a_line(
    http: httpx.AsyncClient, lines: list[Line], path: str, expected: tuple[Any, ...]
) -> None:
    response = await http.get(path)
    line = await line_of(lines, response.headers["x-request-id"])
    assert (line["status"], line["log_level"], line["route"]) == expected
    assert line["path"] == path.partition("?")[0]
    assert "secret" not in str(line)


async def test_a_request_without_a_key_has_a_line(server: Running, lines: list[Line]) -> None:
    async with httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http:
        response = await http.get("/v1/models", headers={"authorization": "Bearer wrong"})
    line = await line_of(lines, response.headers["x-request-id"])
    assert (response.status_code, line["status"], "key" in line) == (401, 401, False)
    assert "wrong" not in str(line)


async def test_a_line_says_that_a_stream_failed(http: httpx.AsyncClient, lines: list[Line]) -> None:
    response = await http.post(CHAT, json=chat("fails", stream=True))
    line = await line_of(lines, response.headers["x-request-id"])
    assert (line["status"], line["finish"], line["completion_tokens"]) == (200, "engine_error", 2)


async def test_a_line_says_that_the_client_left(http: httpx.AsyncClient, lines: list[Line]) -> None:
    async with http.stream("POST", CHAT, json=chat("slow", stream=True)) as response:
        await anext(response.aiter_lines())
    line = await line_of(lines, response.headers["x-request-id"])
    assert (line["status"], line["finish"]) == (200, "client_left")


async def test_a_line_counts_what_is_wrong_with_an_answer(http: httpx.AsyncClient, lines: list[Line]) -> None:
    tool = {"type": "function", "function": {"name": "roll"}}
    response = await http.post(CHAT, json=chat("broken", tools=[tool], tool_choice="required"))
    line = await line_of(lines, response.headers["x-request-id"])
    assert line["malformed"] >= 1
    assert line["unmet"] == 1
    [verdict] = [each for each in lines if each["event"] == "broken markup"]
    assert verdict["request_id"] == line["request_id"]


async def test_no_line_holds_prompts_or_answers(http: httpx.AsyncClient, lines: list[Line]) -> None:
    response = await http.post(CHAT, json=chat("my secret", store=True))
    await line_of(lines, response.headers["x-request-id"])
    assert "secret" not in str(lines)
    assert "Hello there" not in str(lines)


async def test_lines_hold_prompts_and_answers_where_that_is_asked_for(lines: list[Line]) -> None:
    async with (
        running(SCRIPT, log_content=True) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http,
    ):
        response = await http.post(CHAT, json=chat("my secret"))
    [line] = [line for line in lines if line["event"] == "content"]
    assert line["request_id"] == response.headers["x-request-id"]
    assert "my secret" in line["prompt"]
    assert line["answer"][0].text == "Hello there"


async def test_each_turn_on_a_websocket_has_a_line(server: Running, lines: list[Line]) -> None:
    url = server.url.replace("http", "ws") + "/v1/responses"
    async with connect(url, additional_headers={"authorization": f"Bearer {KEY}"}) as socket:
        for model in ("scripted", "none"):
            await socket.send(json.dumps({"type": "response.create", "model": model, "input": "Hi"}))
            while json.loads(await socket.recv())["type"] not in ("response.completed", "error"):
                pass
    first, second = [line for line in lines if line["event"] == "request"]
    assert first["request_id"] != second["request_id"]
    assert (first["method"], first["status"], first["finish"]) == ("WEBSOCKET", 101, "stop")
    assert (second["model"], second["finish"]) == ("none", "model_not_found")


async def test_a_background_response_has_a_line(http: httpx.AsyncClient, lines: list[Line]) -> None:
    body = {"model": "scripted", "input": "Hi", "background": True}
    created = (await http.post("/v1/responses", json=body)).json()
    while not (found := [line for line in lines if line["event"] == "background response"]):
        await asyncio.sleep(0.001)
    [line] = found
    assert (line["answer"], line["finish"], line["completion_tokens"]) == (created["id"], "stop", 2)


async def test_calls_of_tools_are_counted(lines: list[Line]) -> None:
    engine = TakingTurns(CALL, "You rolled a six.")
    async with (
        running(engine, tools=[Dice()]) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http,
    ):
        body = {"model": "scripted", "input": "Roll", "tools": [{"type": "dice", "sides": 6}]}
        response = await http.post("/v1/responses", json=body)
        assert response.status_code == 200, response.text
        line = await line_of(lines, response.headers["x-request-id"])
        values = await scraped(http)
    assert (line["tool_calls"], line["generations"]) == (1, 2)
    assert values["antiphon:tool_calls_total", "completed", "dice"] == 1
    assert values["antiphon:tool_call_seconds_count", "dice"] == 1


# Counts


async def scraped(http: httpx.AsyncClient) -> dict[tuple[str, ...], float]:
    """The values at /metrics, by name and labels; buckets are left out."""
    response = await http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain"), response.text
    return {
        (sample.name, *(value for name, value in sample.labels.items() if name != "engine")): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }


async def test_what_is_done_is_counted_under_the_names_of_vllm(http: httpx.AsyncClient) -> None:
    before = await scraped(http)
    prompt = (await http.post(CHAT, json=chat("Hi"))).json()["usage"]["prompt_tokens"]
    after = await scraped(http)

    def grown(*labels: str) -> float:
        return after[labels] - before.get(labels, 0)

    assert grown("vllm:prompt_tokens_total", "scripted") == prompt
    assert grown("vllm:generation_tokens_total", "scripted") == 2
    assert grown("vllm:request_success_total", "stop", "scripted") == 1
    assert grown("vllm:request_prompt_tokens_sum", "scripted") == prompt
    for name in ("time_to_first_token", "e2e_request_latency", "request_time_per_output_token"):
        assert grown(f"vllm:{name}_seconds_count", "scripted") == 1
    assert grown("http_requests_total", CHAT, "POST", "2xx") == 1
    assert after["vllm:num_requests_running", "scripted"] == 0
    assert grown("process_cpu_seconds_total") >= 0


async def test_work_that_waits_for_its_turn_is_shown(http: httpx.AsyncClient, server: Running) -> None:
    permits = server.worker.indexer.pool.permits
    held = [permits.enter(lambda: None) for _ in range(3)]  # of one client, who never has all
    shown = {labels[0]: value for labels, value in (await scraped(http)).items() if "indexing" in labels}
    status = (await http.get("/v1/status")).json()
    for each in held:
        each.leave()
    assert shown == {
        "antiphon:permits_slots": 2,
        "antiphon:permits_running": 1,
        "antiphon:permits_waiting": 2,
    }
    assert {"work": "indexing", "slots": 2, "running": 1, "waiting": 2} in status["permits"]
    works = {labels[1] for labels in await scraped(http) if labels[0] == "antiphon:permits_slots"}
    assert works >= {"schemas", "attachments", "indexing", "background", "large_requests", "logs"}


async def test_histograms_count_what_is_below_each_bound(http: httpx.AsyncClient) -> None:
    await http.post(CHAT, json=chat("Hi"))
    text = (await http.get("/metrics")).text
    [family] = [
        each for each in text_string_to_metric_families(text) if each.name == "vllm:request_generation_tokens"
    ]
    buckets = {sample.labels["le"]: sample.value for sample in family.samples if "le" in sample.labels}
    [total] = [sample.value for sample in family.samples if sample.name.endswith("_count")]
    assert 0 <= buckets["1.0"] < buckets["2.0"] <= buckets["+Inf"] == total


class HeldLoop:
    """A loop whose timers are late by a given time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Any]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Any, *args: Any) -> None:
        self.timers.append((when, partial(callback, *args)))

    def go_on(self, late: float) -> None:
        when, callback = self.timers.pop()
        self.now = when + late
        callback()


async def test_how_long_the_event_loop_was_held_is_known_for_a_while() -> None:
    loop, metrics = HeldLoop(), Metrics()
    metrics.delay.watch(loop)  # type: ignore[arg-type]
    for late in (0.001, 0.25, 0.002):
        loop.go_on(late)
    text, _ = metrics.text("text/plain", ServerState())
    shown = float(text.partition(b"\nantiphon:loop_delay_seconds ")[2].split()[0])
    assert shown == metrics.delay.seconds == pytest.approx(0.25)
    for _ in range(round(2 * LoopDelay.WINDOW / LoopDelay.STEP) + 2):
        loop.go_on(0.0)
    assert metrics.delay.seconds == 0


@pytest.mark.parametrize(("computed", "own"), [(0.01, 0.01), (0.2, 0.2), (0.3, 0.25)])
async def test_a_busy_machine_is_told_apart_from_a_busy_server(computed: float, own: float) -> None:
    loop, seconds = HeldLoop(), iter((0.0, 0.0, computed))
    delay = LoopDelay(lambda: next(seconds, computed))
    delay.watch(loop)  # type: ignore[arg-type]
    for late in (0.0, 0.25, 0.0):
        loop.go_on(late)
    assert (delay.seconds, delay.own) == pytest.approx((0.25, own))
    for _ in range(round(2 * LoopDelay.WINDOW / LoopDelay.STEP) + 2):
        loop.go_on(0.0)
    assert delay.own == 0


async def test_metrics_come_as_openmetrics_to_who_wants_them(http: httpx.AsyncClient) -> None:
    response = await http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")


ACCEPTED = (
    "text/plain",
    "text/plain;version=1.0.0;escaping=underscores",
    *(
        f"application/openmetrics-text;version=1.0.0;escaping={how}"
        for how in ("values", "dots", "allow-utf-8")
    ),
    # Prometheus 2 and 3
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain",
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3",
)


@pytest.mark.parametrize("accept", ACCEPTED)
async def test_names_are_the_same_in_every_format(http: httpx.AsyncClient, accept: str) -> None:
    text = (await http.get("/metrics", headers={"accept": accept})).text
    names = {line.partition("{")[0].partition(" ")[0] for line in text.splitlines() if line[0] != "#"}
    assert names >= {"vllm:num_requests_running", "antiphon:tasks", "vllm:generation_tokens_total"}
    assert not {name for name in names if name.startswith(("vllm_", "antiphon_", "U__"))}


async def test_what_clients_make_up_is_no_label(http: httpx.AsyncClient) -> None:
    await http.get("/made/up")
    await http.request("MADEUP", "/v1/models")
    await http.post(CHAT, json=chat("Hi") | {"model": "made-up"})
    assert "made" not in (await http.get("/metrics")).text.lower()


# What schedulers read


KNOWN = CacheFigures(
    *(0.25, 16, 1000, 1500, 1408),
    config={"cache_dtype": "auto", "num_gpu_blocks_override": "None"},
    adapters=AdapterFigures(frozenset({"a", "b"}), frozenset({"c"}), 4),
)
FIELDS: Mapping[str, Mapping[str, Any]] = {
    "all": {},
    "none": dict.fromkeys(("usage", "block_size", "blocks", "queries", "hits", "adapters")) | {"config": {}},
    "no usage": {"usage": None},
    "no blocks": {"block_size": None, "blocks": None},
    "no counters": {"queries": None, "hits": None},
    "no adapters": {"adapters": None},
    "idle adapters": {"adapters": AdapterFigures(maximum=4)},
    "an empty cache": {"usage": 0.0, "queries": 0, "hits": 0},
}


@pytest.mark.parametrize("known", FIELDS)
async def test_schedulers_read_what_the_engine_knows_and_nothing_else(known: str) -> None:
    figures = replace(KNOWN, **FIELDS[known])
    engine = ScriptedEngine(SCRIPT, figures=figures)
    async with (
        running(engine) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http,
    ):
        await http.post(CHAT, json=chat("Hi"))
        text = (await http.get("/metrics")).text
        values = await scraped(http)
    expected = Picked(0, 0, figures.usage, figures.block_size, figures.blocks)
    if (adapters := figures.adapters) is not None:
        expected.active, expected.queued = {*adapters.running}, {*adapters.waiting}
        expected.most, expected.updated = adapters.maximum, adapters.updated
    assert picked(text) == expected
    for name, value in (("queries", figures.queries), ("hits", figures.hits)):
        assert values.get((f"vllm:prefix_cache_{name}_total", "scripted")) == value
    if figures.config:
        assert 'cache_dtype="auto"' in text


async def test_each_model_has_its_cache_and_the_server_one_list_of_adapters() -> None:
    other = replace(KNOWN, usage=0.5, adapters=AdapterFigures(frozenset({"d"}), frozenset(), 1))
    models = [
        served_model(ScriptedEngine(SCRIPT, name=name, figures=figures))
        for name, figures in (("one", KNOWN), ("two", other), ("three", CacheFigures()))
    ]
    async with (
        running(models[0]._engine, models=Models(models)) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http,
    ):
        for accept in ("text/plain", "application/openmetrics-text; version=1.0.0"):
            response = await http.get("/metrics", headers={"accept": accept})
            parse = openmetrics if "openmetrics" in accept else text_string_to_metric_families
            series = {
                (sample.name, sample.labels.get("model_name")): sample
                for family in parse(response.text)
                for sample in family.samples
            }
            shares = [series.get(("vllm:kv_cache_usage_perc", name)) for name in ("one", "two", "three")]
            assert [share and share.value for share in shares] == [0.25, 0.5, None]
            adapters = series["vllm:lora_requests_info", None].labels
            assert adapters["running_lora_adapters"] == "a,b,d"
            assert (adapters["waiting_lora_adapters"], adapters["max_lora"]) == ("c", "5")
            assert {("vllm:cache_config_info", name) in series for name in ("one", "two")} == {True}
            assert ("vllm:cache_config_info", "three") not in series


async def test_an_engine_without_counters_has_those_of_its_answers_if_they_report_any() -> None:
    metrics = Metrics()
    for cached in (0, 0, 7):
        text, _ = metrics.text("text/plain", ServerState())
        assert b"vllm:prefix_cache_hits_total{" not in text
        end = Finished(FinishReason.STOP, Usage(cached_tokens=cached))
        generation = ObservedGeneration("m", 0.0, 1.0, None, prompt_tokens=10, end=end)
        observation = Observation("r")
        observation.generations.append(generation)
        metrics.answer(observation)
    text, _ = metrics.text("text/plain", ServerState())
    assert b'vllm:prefix_cache_queries_total{engine="0",model_name="m"} 30.0' in text
    assert b'vllm:prefix_cache_hits_total{engine="0",model_name="m"} 7.0' in text


# Traces


def tree(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


async def test_a_request_is_a_span_with_its_generations_in_it(
    http: httpx.AsyncClient, spans: InMemorySpanExporter, lines: list[Line]
) -> None:
    spans.clear()
    response = await http.post(CHAT, json=chat("Hi"), headers={"traceparent": PARENT})
    await line_of(lines, response.headers["x-request-id"])
    found = tree(spans)
    request, generation = found[f"POST {CHAT}"], found["chat scripted"]
    assert request.context is not None
    assert request.parent is not None
    assert generation.parent is not None
    assert f"{request.context.trace_id:x}" == "af7651916cd43dd8448eb211c80319c"
    assert f"{request.parent.span_id:x}" == "b7ad6b7169203331"
    assert generation.parent.span_id == request.context.span_id
    assert request.attributes is not None
    assert generation.attributes is not None
    assert request.attributes["http.response.status_code"] == 200
    assert generation.attributes["gen_ai.usage.output_tokens"] == 2
    assert generation.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert "Hello" not in generation.to_json() + request.to_json()
    assert request.start_time is not None
    assert generation.start_time is not None
    assert request.start_time <= generation.start_time


async def test_a_failure_is_an_error_of_its_span(
    http: httpx.AsyncClient, spans: InMemorySpanExporter, lines: list[Line]
) -> None:
    spans.clear()
    response = await http.post(CHAT, json=chat("fails", stream=True))
    await line_of(lines, response.headers["x-request-id"])
    for span in tree(spans).values():
        assert span.attributes is not None
        assert not span.status.is_ok
        assert span.attributes["error.type"] == "engine_error"


@pytest.mark.parametrize(
    ("given", "passed_on"),
    [
        ({"traceparent": PARENT, "tracestate": "a=b"}, {"traceparent": PARENT, "tracestate": "a=b"}),
        ({"traceparent": PARENT, "tracestate": "a" * 513}, {"traceparent": PARENT}),
        ({"traceparent": PARENT.replace("0af", "0AF")}, {}),
        ({"traceparent": "00-" + "0" * 32 + "-b7ad6b7169203331-01"}, {}),
        ({"tracestate": "a=b"}, {}),
    ],
)
async def test_without_a_collector_valid_headers_of_a_trace_go_on_as_they_came(
    given: dict[str, str], passed_on: dict[str, str]
) -> None:
    traces = []

    class Keeping(NoTracing):
        def begin(self, observation: Observation, name: str) -> None:
            traces.append(observation.trace)

    async with (
        running(SCRIPT, tracing=Keeping()) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http,
    ):
        await http.get("/v1/models", headers=given)
    assert traces == [passed_on]


# The form of lines


@pytest.fixture
def restored() -> Iterator[None]:
    before = structlog.get_config()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("restored")
async def test_lines_of_all_libraries_have_one_form(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "json")
    structlog.get_logger().info("ours", number=1)
    its_own = logging.StreamHandler(io.StringIO())  # keeps its output on the record
    logging.getLogger("another.library").addHandler(its_own)
    logging.getLogger("another.library").warning("theirs: %s", 2)
    logging.getLogger("another.library").removeHandler(its_own)
    logging.getLogger("another.library").info("not heard")
    # What other tests have left running may log, too.
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    first, second = [line for line in lines if line["event"] in ("ours", "theirs: 2", "not heard")]
    assert (first["event"], first["number"], first["level"]) == ("ours", 1, "info")
    assert (second["event"], second["level"], second["logger"]) == ("theirs: 2", "warning", "another.library")
    assert "timestamp" in first.keys() & second.keys()
    assert "message" not in second


# A server that stops


async def test_a_request_that_is_cancelled_is_told_that_the_server_is_not_ready(
    server: Running, lines: list[Line]
) -> None:
    """The server cancels requests that are late when it stops: they may wait for a database."""
    sent: list[MutableMapping[str, Any]] = []

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    async def receive() -> Any: ...

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/v1/responses/resp_1", "headers": []}
    answering = asyncio.create_task(
        ObservingMiddleware(waits, server.app, ApiTable(ROUTES))(scope, receive, send)
    )
    await asyncio.sleep(0)
    answering.cancel()
    await answering
    start, body = sent
    assert start["status"] == 503
    assert json.loads(body["body"])["error"]["code"] == "engine_not_ready"
    assert [line["status"] for line in lines if line["event"] == "request"] == [503]
