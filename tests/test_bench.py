"""The bench runs, and says what it measured. What the figures are is never tested."""

import html
import json
import re
from datetime import date
from types import SimpleNamespace

import msgspec
import pytest

from antiphon.apis.chat.schema import ChatRequest
from bench import calls, chart, frontend, in_process, measure
from bench.scenario import CASES, MIN_TOKENS, Case

LENGTHS = (MIN_TOKENS, 2 * MIN_TOKENS)


@pytest.fixture(scope="module")
def report() -> frontend.Report:
    """What the bench says; nothing changes it."""
    with pytest.MonkeyPatch.context() as patch:
        # In a process with all tests, to look for garbage takes longer than what is measured.
        patch.setattr(measure, "gc", SimpleNamespace(collect=lambda: None))
        return frontend.build(in_process.measure(lengths=LENGTHS, rounds=1, sample=1))


def test_report_has_every_figure(report):
    report = json.loads(msgspec.json.encode(report))

    assert set(report) == {"machine", "targets", "in_process"}
    assert {target["name"][:2] for target in report["targets"]} == {"1:"}
    rows = report["in_process"]["rows"]
    assert {(row["case"], row["tokens"]) for row in rows} == {
        (case.name, length) for case in CASES for length in LENGTHS
    }
    for row in rows:
        ratios = {"stream_to_floor", "fold_to_floor", "messages_to_stream"}
        paths = {"stream", "fold", "messages", "floor"}
        assert set(row) == {"case", "tokens", *paths, *ratios}
        for path in paths:
            assert set(row[path]) == {"best", "median"}
    assert [growth["case"] for growth in report["in_process"]["growth"]] == [case.name for case in CASES]


def test_table_names_every_case(report):
    table = "\n".join(frontend.table(report))
    assert all(case.name in table for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("length", [MIN_TOKENS, 500])
def test_what_is_measured_is_a_whole_answer(case: Case, length: int):
    request = msgspec.json.decode(case.request(stream=True), type=ChatRequest)
    chunks = case.chunks(length)
    body = json.loads(in_process.answer(request, chunks))
    sent = b"".join(in_process.payloads(request, chunks)).split(b"\n\n")
    reason = "tool_calls" if case.tools else "stop"

    assert len(chunks) == length == body["usage"]["completion_tokens"]
    assert body["choices"][0]["finish_reason"] == reason
    assert sent[-2:] == [b"data: [DONE]", b""]
    assert json.loads(sent[-3].removeprefix(b"data: "))["choices"][0]["finish_reason"] == reason
    events = b"".join(in_process.messages(request, chunks)).split(b"\n\n")
    end = json.loads(events[-3].partition(b"data: ")[2])
    assert end["delta"]["stop_reason"] == ("tool_use" if case.tools else "end_turn")
    assert end["usage"]["output_tokens"] == length
    if case.tools:
        assert json.loads(body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])


def test_calls_are_counted_from_the_engine_to_the_transport():
    rows = calls.measure((64, 128))
    report = json.loads(msgspec.json.encode(frontend.build(counted=rows)))

    assert [row.mode for row in rows] == [mode.name for mode in calls.MODES]
    assert {target["name"][:2] for target in report["targets"]} == {"5:"}
    for row in rows:
        called = {function.function: function for function in row.functions}
        assert "GenerationRun.push" in called
        assert called.keys() & {"_TextWriter.write", "ChunkedBody.write"}, "the transport was not reached"
        assert row.files == len({function.file for function in row.functions})
        assert 0.9 <= called["GenerationRun.push"].calls <= 1.1, "a step was not one token"


def test_the_chart_shows_the_figures_that_are_kept():
    charts = chart.kept()

    assert chart.FILE.read_text() == chart.svg(charts)
    for kept in charts:
        date.fromisoformat(kept.date)


def test_bars_are_as_long_as_their_figures():
    bars = (chart.Bar("Antiphon", 10.0), chart.Bar("<other>", 40.0))
    drawn = chart.svg([chart.Chart("a & b", "µs", "2026-11-29", bars)])

    ours, other = (float(width) for width in re.findall(r'<rect [^>]*width="([0-9.]+)"', drawn))
    assert other == pytest.approx(4 * ours, rel=0.01)
    texts = re.findall(r"<text [^>]*>([^<]*)</text>", drawn)
    assert [html.unescape(text) for text in texts] == [
        "a & b (2026-11-29)",
        "Antiphon",
        "10 µs",
        "<other>",
        "40 µs",
    ]
