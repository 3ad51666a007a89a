"""Answers whose parts a server separates, in any order, and malformed in any way."""

import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.chunks import ChatChunk, Finish, FinishReason, Piece, PieceKind, Token, merge_chunks
from antiphon.core.events import ArgumentsDelta, CallStarted, Event, Finished, Malformed, TextDelta, Usage
from antiphon.core.items import FunctionCall, Message, Reasoning, Status
from antiphon.decode.chat_decoder import ChatDecoder
from tests.laws import essence, fold, merge

STOP = Finish(FinishReason.STOP)
CUT = Finish(FinishReason.LENGTH)


def text(said: str, *tokens: Token) -> Piece:
    return Piece(PieceKind.TEXT, said, tokens)


def thought(said: str) -> Piece:
    return Piece(PieceKind.REASONING, said)


def call(arguments: str, key: str = "0", id_: str = "", name: str = "") -> Piece:
    return Piece(PieceKind.CALL, arguments, (), key, id_, name)


def decode(pieces: Iterable[Piece], finish: Finish = STOP, **options: object) -> list[Event]:
    """The events of these pieces, one in each chunk."""
    options.setdefault("ids", lambda name, index: f"call_{index}")
    decoder, events = ChatDecoder(**options), []  # type: ignore[arg-type]
    for piece in pieces:
        events += decoder.feed(ChatChunk(pieces=(piece,)))
    return events + decoder.finish(finish)


def items(pieces: Iterable[Piece], finish: Finish = STOP) -> tuple[object, ...]:
    return fold(decode(pieces, finish)).items


def names(pieces: Iterable[Piece]) -> list[tuple[str, str, str]]:
    """The calls, as (id, name, arguments)."""
    return [
        (item.call_id, item.name, item.arguments) for item in items(pieces) if isinstance(item, FunctionCall)
    ]


def test_reasoning_text_and_calls() -> None:
    said = [
        thought("Let me "),
        thought("see."),
        text("Well: "),
        text("this."),
        call("", "0", "a", "f"),
        call('{"x"'),
        call(": 1}"),
        call("{}", "1", "b", "g"),
    ]
    reasoning, message, first, second = items(said)
    assert isinstance(reasoning, Reasoning)
    assert isinstance(message, Message)
    assert (reasoning.text, message.text) == ("Let me see.", "Well: this.")
    assert first == FunctionCall("a", "f", '{"x": 1}')
    assert second == FunctionCall("b", "g", "{}")


def test_arguments_are_passed_on_as_they_come() -> None:
    said = [call('{"x', "0", "a", "f"), call('": "long'), call(' text"}')]
    deltas = [event.text for event in decode(said) if isinstance(event, ArgumentsDelta)]
    assert deltas == ['{"x', '": "long', ' text"}']


def test_a_call_without_arguments_has_an_empty_object() -> None:
    assert names([call("", "0", "a", "f")]) == [("a", "f", "{}")]
    assert names([call("", "0", "a", "f"), call("", "1", "b", "g")]) == [("a", "f", "{}"), ("b", "g", "{}")]


@pytest.mark.parametrize(
    "said",
    [
        [call('{"x":', "0", "a", "f"), call('{"y":', "1", "b", "g"), call("1}", "0"), call("2}", "1")],
        [call("", "0", "a", "f"), call("", "1", "b", "g"), call('{"x":1}', "0"), call('{"y":2}', "1")],
        [call('{"x":1}', "0", "a"), call("", "0", "", "f"), call('{"y":2}', "1", "b", "g")],
    ],
)
def test_calls_whose_fragments_are_mixed(said: list[Piece]) -> None:
    assert names(said) == [("a", "f", '{"x":1}'), ("b", "g", '{"y":2}')]


def test_text_behind_a_call_waits_for_its_end() -> None:
    said = [
        call('{"x":', "0", "a", "f"),
        text("So "),
        text("far."),
        thought("Hm."),
        call("1}", "0"),
        text("!"),
    ]
    found = items(said)
    assert [type(item) for item in found] == [FunctionCall, Message, Reasoning, Message]
    assert found[0] == FunctionCall("a", "f", '{"x":1}')
    assert [item.text for item in found if isinstance(item, Message)] == ["So far.", "!"]


def test_a_repeated_or_missing_id_is_made_anew() -> None:
    assert names([call("{}", "0", "a", "f"), call("{}", "1", "a", "f"), call("{}", "2", "", "f")]) == [
        ("a", "f", "{}"),
        ("call_1", "f", "{}"),
        ("call_2", "f", "{}"),
    ]


@pytest.mark.parametrize(
    ("said", "finish", "arguments"),
    [
        ([call('{"x":', "0", "a", "f")], CUT, '{"x":'),
        ([call('{"x":', "0", "a", "f")], STOP, '{"x":'),
        ([call("[1]", "0", "a", "f")], STOP, "[1]"),
        ([call('{"x": nonsense', "0", "a", "f"), call(" and more")], STOP, '{"x": nonsense and more'),
    ],
)
def test_a_broken_call_is_shown_as_it_is_and_incomplete(
    said: list[Piece], finish: Finish, arguments: str
) -> None:
    assert items(said, finish) == (FunctionCall("a", "f", arguments, Status.INCOMPLETE),)


def test_a_call_that_was_cut_before_its_arguments_is_none() -> None:
    events = decode([call("", "0", "a", "f")], CUT)
    assert not any(isinstance(event, CallStarted) for event in events)
    assert any(isinstance(event, Malformed) for event in events)


def test_a_call_without_a_name_is_text() -> None:
    [message] = items([call('{"x":1}', "0", "a")])
    assert isinstance(message, Message)
    assert message.text == '{"x":1}'


def test_what_follows_the_arguments_of_a_call_is_not_shown() -> None:
    events = decode([call('{"x":1}', "0", "a", "f"), call('{"x":1}'), text("!"), call("late", "0")])
    assert fold(events).items[0] == FunctionCall("a", "f", '{"x":1}')
    assert len([event for event in events if isinstance(event, Malformed)]) == 2


def test_a_stop_string_ends_the_text_and_is_named() -> None:
    decoder = ChatDecoder(stop=("END",), prompt_tokens=7)
    events = decoder.feed(ChatChunk(pieces=(text("one E"),)))
    events += decoder.feed(ChatChunk(pieces=(text("ND two"), call("{}", "0", "a", "f"))))
    assert decoder.stopped
    output = fold(events + decoder.finish(STOP))
    assert (output.text, output.stop, output.reason) == ("one ", "END", FinishReason.STOP)
    assert output.usage == Usage(4, 0, 0, 7)  # 13 bytes, and what the prompt was estimated at


def test_an_answer_ends_where_it_is_too_long_to_be_kept() -> None:
    decoder = ChatDecoder(max_bytes=10)
    events = [event for _ in range(3) for event in decoder.feed(ChatChunk(pieces=(text("word "),)))]
    assert decoder.stopped
    assert fold(events + decoder.finish(STOP)).reason is FinishReason.LENGTH


def test_what_the_server_counted_counts() -> None:
    decoder = ChatDecoder()
    events = decoder.feed(ChatChunk(pieces=(text("a"),)))
    events += decoder.feed(ChatChunk(cached_tokens=3))
    usage = fold(events + decoder.finish(Finish(FinishReason.STOP, None, 9, 4, 20))).usage
    assert usage == Usage(completion_tokens=9, reasoning_tokens=4, cached_tokens=3, prompt_tokens=20)


def test_tokens_go_with_their_text() -> None:
    one, two = Token(-1, "a", -0.1), Token(-1, "b", -0.2)
    deltas = [event for event in decode([text("a", one), text("b", two)]) if isinstance(event, TextDelta)]
    assert [event.tokens for event in deltas] == [(one,), (two,)]


KEYS = st.sampled_from("012")
PIECES = st.lists(
    st.one_of(
        st.builds(text, st.text(max_size=4)),
        st.builds(thought, st.text(max_size=4)),
        st.builds(
            call,
            st.sampled_from(["", "{", '"a":', "1", "}", "{}", " ", "x"]),
            KEYS,
            KEYS,
            st.sampled_from(["", "f"]),
        ),
    ),
    max_size=12,
)


@given(PIECES, st.sampled_from([STOP, CUT, Finish(FinishReason.ERROR)]))
def test_the_laws(pieces: list[Piece], finish: Finish) -> None:
    """Nothing raises, nothing is lost, and it does not matter how the pieces came."""
    events = decode(pieces, finish)
    assert isinstance(events[-1], Finished)
    assert sorted("".join(event.raw for event in events)) == sorted("".join(piece.text for piece in pieces))
    decoder = ChatDecoder(ids=lambda name, index: f"call_{index}")
    whole = merge_chunks([ChatChunk(), *(ChatChunk(pieces=(piece,)) for piece in pieces)])
    assert essence(decoder.feed(whole) + decoder.finish(finish)) == essence(events)
    for item in fold(events).items:
        if isinstance(item, FunctionCall) and item.status is Status.COMPLETED:
            assert isinstance(json.loads(item.arguments), dict)
    assert merge(events)[-1] == events[-1]
