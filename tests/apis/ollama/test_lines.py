"""Law: the lines of a stream add up to the full answer, whatever a model writes."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon.apis.envelope import PresentationOptions
from antiphon.apis.ollama.answer import LineBuilder
from antiphon.apis.ollama.lines import chat_line, generate_line
from antiphon.apis.ollama.stream import LineStream
from antiphon.core.accumulator import Accumulator
from antiphon.core.chunks import FinishReason
from antiphon.core.errors import EngineError
from antiphon.core.events import CallStarted, Event
from antiphon.core.hosts import Note
from tests.apis.chat.support import ENVELOPE, said
from tests.apis.chat.test_stream import PIECES, WRITTEN
from tests.apis.ollama.support import folded, lines, read
from tests.contracts.dialect import TOOLS, table_of
from tests.laws import cut, cuts
from tests.search import examples

KINDS = {"chat": chat_line, "generate": generate_line}
SHOWN = {
    "plain": PresentationOptions(),
    "details": PresentationOptions(logprobs=1, notes=(Note("num_ctx", "It has no effect."),)),
}


def both(events: Sequence[Event], kind: str, shown: str) -> tuple[Any, Any]:
    """What the stream adds up to, and the full answer."""
    stream = LineStream(ENVELOPE, lines(KINDS[kind], SHOWN[shown]))
    builder = LineBuilder(ENVELOPE, lines(KINDS[kind], SHOWN[shown]))
    sent = stream.begin()
    for event in Accumulator().extend(events):
        sent += stream.push(0, [event])
    builder.push(0, Accumulator().extend(events))
    return folded(read(b"".join(sent + stream.finish()))), json.loads(builder.body())


def same(events: Sequence[Event], kind: str, shown: str) -> Any:
    stream, full = both(events, kind, shown)
    stream.setdefault("logprobs", full.get("logprobs"))  # an answer without text has none, or an empty list
    full.setdefault("logprobs", None)
    assert stream == full
    return full


@pytest.mark.parametrize("shown", SHOWN)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(100))
@given(st.lists(st.sampled_from(PIECES), max_size=14), st.sampled_from([*FinishReason]))
def test_a_stream_adds_up_to_the_full_answer(
    kind: str, shown: str, pieces: list[str], reason: FinishReason
) -> None:
    same(said(pieces, reason), kind, shown)


@given(written=st.sampled_from(WRITTEN), at=cuts, hosted=st.sampled_from([frozenset(), frozenset({"now"})]))
@settings(max_examples=examples(200))
def test_so_it_does_in_every_dialect(written: Any, at: Any, hosted: frozenset[str]) -> None:
    dialect, text, state = written
    events = [
        replace(event, hosted=True) if isinstance(event, CallStarted) and event.name in hosted else event
        for event in said(cut(text, at), table=table_of(dialect), state=state, tools=TOOLS)
    ]
    same(events, "chat", "details")


def test_a_call_is_a_line_with_an_object() -> None:
    text = '<think>hm</think>Well:<tool_call>{"name": "f", "arguments": {"a": [1]}}</tool_call>'
    full = same(said([text]), "chat", "plain")
    [call] = full["message"]["tool_calls"]
    assert call == {"id": "call_0", "function": {"index": 0, "name": "f", "arguments": {"a": [1]}}}
    assert (full["message"]["thinking"], full["message"]["content"]) == ("hm", "Well:")
    assert (full["done_reason"], full["eval_count"], full["prompt_eval_count"]) == ("stop", 1, 2)


def test_a_stream_that_fails_ends_with_the_error() -> None:
    [line] = LineStream(ENVELOPE, lines(chat_line)).fail(EngineError(param="x"))
    assert json.loads(line) == {"error": "x: The model failed to answer. Try again."}
    assert line.endswith(b"\n")
