"""The decoder's laws, and what its table-driven states make of texts by name."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.chunks import Chunk, Finish, FinishReason, Token
from antiphon.core.events import CallEnded, Finished, Malformed, Markup, ReasoningDelta, TextDelta
from antiphon.core.grammar import AcceptedNames, Grammar, Name, Span, SpanKind, TextArguments
from antiphon.core.items import FunctionCall, Message, Reasoning, Status
from antiphon.decode.decoder import Decoder, start_after, state_after
from antiphon.decode.event_builder import MAX_PROVISIONAL
from antiphon.decode.headers import plain_name
from antiphon.decode.ids import ids_by
from antiphon.decode.lexer import MAX_SPACE
from antiphon.decode.table import Table
from antiphon.dialects.hermes import HERMES
from antiphon.dialects.plain import PLAIN
from antiphon.dialects.registry import find
from antiphon.dialects.think import THINK
from tests.laws import check, cuts, decode, fold, model_text
from tests.search import examples

hermes = Table(HERMES.grammar)
tables = {"hermes": hermes, "think": Table(THINK.grammar), "plain": Table(PLAIN.grammar)}

PIECES = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool", "_call>", "\n", " ", "\n\n", "hello", "<",
    '{"name": "f", "arguments": {"a": 1}}', '{"name": "f"', '"arguments": {', '{"arguments":{},"name":"g"}',
    "{", "}", "[", "]", ",", ":", '"', '"name"', '"f"', "null", "\\", "é", '"x\n"', "STOP", "ST",
]  # fmt: skip


def answer(text: str, table: Table = hermes, **options: object) -> list[object]:
    """The items of a text, short: strings for messages, (name, arguments, status) for calls."""
    short: list[object] = []
    for item in fold(decode(table, [text], **options)).items:
        match item:
            case Message():
                short.append(item.text)
            case Reasoning():
                short.append({"reasoning": item.text})
            case FunctionCall():
                short.append((item.name, item.arguments, item.status.value))
    return short


@pytest.mark.parametrize("name", tables)
@given(text=model_text(PIECES), at=cuts, stop=st.sampled_from([(), ("ZZ",), ("\x00", "qq")]))
@settings(max_examples=examples(300))
def test_keeps_the_laws(name: str, text: str, at: list[int], stop: tuple[str, ...]) -> None:
    if not any(word in text for word in stop):
        check(tables[name], text, at, stop=stop)


@given(text=model_text(PIECES), at=cuts)
@settings(max_examples=examples(300))
def test_stop_strings_do_not_depend_on_the_cuts(text: str, at: list[int]) -> None:
    def visible(pieces: list[str]) -> tuple[object, ...]:
        decoder = Decoder(hermes, stop=("STOP", "\n\nh"), ids=lambda name, index: str(index))
        events = []
        for piece in pieces:
            events += decoder.feed(Chunk(piece))
            if decoder.stopped:
                break
        events += decoder.finish(Finish(FinishReason.LENGTH))
        output = fold(events)
        return output.items, output.reason, output.stop

    borders = sorted({0, len(text), *(offset % (len(text) + 1) for offset in at)})
    pieces = [text[a:b] for a, b in itertools.pairwise(borders)]

    assert visible([text]) == visible(pieces) == visible(list(text))


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("", []),
        ("  Hi \n", ["  Hi \n"]),
        ("<think>\nhm\n</think>\n\nHi", [{"reasoning": "hm"}, "Hi"]),
        ("<think>\n\n</think>\n\nHi", ["Hi"]),
        ("</think>\n\nHi", ["Hi"]),
        ("I <think> so", ["I <think> so"]),
        ('<tool_call>\n{"name": "f", "arguments": {"a": [1, {}]}}\n</tool_call>', [("f", '{"a": [1, {}]}', "completed")]),
        ('<tool_call>{"arguments": {"a":1}, "name": "f"}</tool_call>', [("f", '{"a":1}', "completed")]),
        ('<tool_call>{"name": "f"}</tool_call>', [("f", "{}", "completed")]),
        ('<tool_call>{"name": "f", "arguments": null}</tool_call>', [("f", "{}", "completed")]),
        ('<tool_call>{"name": "f", "parameters": {}}</tool_call>', [("f", "{}", "completed")]),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', [("f", '{"a": 1}', "completed")]),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}', [("f", '{"a": 1}', "completed")]),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}', [("f", '{"a": 1}', "completed")]),
        ('<tool_call>{"name": "f", "arguments": {"a": 1', [("f", '{"a": 1', "incomplete")]),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', [("f", "[1]", "incomplete")]),
        ('<tool_call>{"name": "f", "arguments": {"a": tru}}</tool_call>ok', [("f", '{"a": tru}}', "incomplete"), "ok"]),
        ('<tool_call>{"name": "f", "arguments": {"t": "</tool_call>"}}</tool_call>', [("f", '{"t": "</tool_call>"}', "completed")]),
        ('<tool_call>[{"name": "f"}, {"name": "g"}]</tool_call>', [("f", "{}", "completed"), ("g", "{}", "completed")]),
        ('A\n<tool_call>{"name": "f"}</tool_call>\nB\n<tool_call>{"name": "g"}</tool_call>\nC',
         ["A", ("f", "{}", "completed"), "B", ("g", "{}", "completed"), "C"]),
        ('<tool_call>{"name": "f"}<tool_call>{"name": "g"}', [("f", "{}", "completed"), ("g", "{}", "completed")]),
        ('<think>I call <tool_call>{"name": "f"}</tool_call>', [{"reasoning": "I call"}, ("f", "{}", "completed")]),
        ("<think>not a <tool_call> here</think>ok", [{"reasoning": "not a <tool_call> here"}, "ok"]),
        ('<think>Hm <tool_call>{"name": "f"}</tool_call> more</think>\n\nHi',
         [{"reasoning": "Hm"}, ("f", "{}", "completed"), {"reasoning": "more"}, "Hi"]),
        ('<think>Hm<tool_call>{"name": "f"}</tool_call><think></think>Hi',
         [{"reasoning": "Hm"}, ("f", "{}", "completed"), "Hi"]),
        ('<think>Hm<tool_call>{"name": "f"} more</think>Hi',
         [{"reasoning": "Hm"}, ("f", "{}", "completed"), {"reasoning": "more"}, "Hi"]),
        ('<think>Hm<tool_call>{"name": "f"}<tool_call>no</think>Hi',
         [{"reasoning": "Hm"}, ("f", "{}", "completed"), {"reasoning": "<tool_call>no"}, "Hi"]),
        ('<think>Hm<tool_call>[{"name": "f"}, 1]</tool_call></think>Hi',
         [{"reasoning": "Hm"}, ("f", "{}", "completed"), {"reasoning": " 1]</tool_call>"}, "Hi"]),
        ('<think>a</think><tool_call>{"name": "f"}</tool_call>Hi',
         [{"reasoning": "a"}, ("f", "{}", "completed"), "Hi"]),
        ("<think>a</think>Hi<think>b</think>c", [{"reasoning": "a"}, "Hi", {"reasoning": "b"}, "c"]),
        ("Use <tool_call> tags.", ["Use <tool_call> tags."]),
        ('<tool_call>{"nam', ['<tool_call>{"nam']),
        ('<tool_call>{"x": 1}</tool_call>', ['<tool_call>{"x": 1}</tool_call>']),
        ('<tool_call>{"name": ""}</tool_call>', ['<tool_call>{"name": ""}</tool_call>']),
    ],
)  # fmt: skip
def test_hermes(text: str, items: list[object]) -> None:
    check(hermes, text)

    assert answer(text) == items


def test_reasoning_that_the_prompt_opened() -> None:
    assert answer("hm\n</think>\nHi", state="reasoning") == [{"reasoning": "hm"}, "Hi"]
    assert answer("never closed", state="reasoning") == [{"reasoning": "never closed"}]


@pytest.mark.parametrize(
    ("tail", "state"),
    [("", "text"), ("<think>\n", "reasoning"), ("<think>\n\n</think>\n\n", "text"), ("<tool_call>", "text")],
)
def test_the_end_of_the_prompt_decides_where_the_answer_begins(tail: str, state: str) -> None:
    assert state_after(hermes, tail) == state


@pytest.mark.parametrize(
    ("tail", "start"),
    [
        ("<tool_call>", ("text", "<tool_call>")),
        ('Sure.\n<tool_call>\n{"na', ("text", '\n<tool_call>\n{"na')),
        ("<think>Hm.<tool_call>", ("reasoning", "<tool_call>")),
        ('<think>Hm.<tool_call>{"name": "f"}</tool_call>', ("reasoning", "")),
        ('<think>Hm.<tool_call>{"name": "f"}', ("reasoning", "")),
        ('<tool_call>{"name": "f"}</tool_call><tool_call>{', ("text", "<tool_call>{")),
        ('<tool_call>{"name": "f"}<tool_call>{', ("text", '<tool_call>{"name": "f"}<tool_call>{')),
        ('<tool_call>{"name": "f"}</tool_call>', ("text", "")),
        ("<tool_call>no", ("text", "")),
    ],
)  # fmt: skip
def test_a_call_may_be_open_where_the_answer_begins(tail: str, start: tuple[str, str]) -> None:
    found = start_after(hermes, tail)
    assert (found.state, found.call_prefix) == start


CALLS = 'Hm.<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>\n<tool_call>{"name": "g"}</tool_call>'


@given(begun=st.integers(0, len(CALLS)), at=cuts)
def test_a_call_that_the_prompt_opened_is_whole_and_only_the_rest_of_its_text_is_new(
    begun: int, at: list[int]
) -> None:
    start = start_after(hermes, CALLS[:begun])
    check(hermes, CALLS[begun:], at, state=start.state, call_prefix=start.call_prefix)
    whole = fold(decode(hermes, [CALLS])).calls
    rest = fold(decode(hermes, [CALLS[begun:]], state=start.state, call_prefix=start.call_prefix)).calls
    assert [(call.name, call.arguments) for call in rest] == [
        (call.name, call.arguments) for call in whole[len(whole) - len(rest) :]
    ]
    assert bool(rest) >= bool(start.call_prefix)


@given(length=st.integers(1, 30), text=model_text(PIECES), at=cuts)
@settings(max_examples=examples(300))
def test_the_laws_hold_behind_an_opened_call(length: int, text: str, at: list[int]) -> None:
    check(hermes, text, at, state="text", call_prefix='<tool_call>\n{"name": "f", "arg'[:length])


def test_a_call_that_the_prompt_opened_may_come_to_nothing() -> None:
    assert answer("it is.", state="text", call_prefix="<tool_call>\n") == ["it is."]
    assert answer('"f"}', state="text", call_prefix='<tool_call>{"x": ') == ['"f"}']


@pytest.mark.parametrize(
    ("tail", "mid_text"),
    [
        ("", False),
        ("\n", False),
        ("<think>\n", False),
        ("<think>\n\n</think>\n\n", False),
        ("<think>Hm,", True),
        ("Once", True),
        ("Once ", True),
        ("<think>a</think>Once", True),
    ],
)
def test_an_answer_may_begin_in_the_middle_of_what_is_said(tail: str, mid_text: bool) -> None:
    assert start_after(hermes, tail).mid_text is mid_text


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("[[use f]] 1 [[end]]", [("f", '{"a": "1"}', "completed")]),
        ("Write [[use tag]] to begin, [[end]] to end.", ["Write [[use tag]] to begin, [[end]] to end."]),
        ("Write [[use tag]], then [[use f]] 1 [[end]]", ["Write [[use tag]], then", ("f", '{"a": "1"}', "completed")]),
    ],
)  # fmt: skip
def test_a_dialect_may_demand_that_the_name_is_declared(text: str, items: list[object]) -> None:
    states = {
        "text": Span(SpanKind.TEXT, on={"[[use ": "name"}),
        "name": Name(on={"]] ": "value"}, parse=plain_name, names=AcceptedNames.DECLARED),
        "value": TextArguments(on={" [[end]]": "text"}, key="a"),
    }
    table = Table(Grammar(states))
    check(table, text, tools={"f": {}})
    assert answer(text, table, tools={"f": {}}) == items


def test_without_tools_a_call_is_text() -> None:
    text = '<think>a</think>b <tool_call>{"name": "f"}</tool_call>'

    assert answer(text, Table(HERMES.grammar.without_calls())) == [
        {"reasoning": "a"},
        'b <tool_call>{"name": "f"}</tool_call>',
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ernie45", '<response>A<tool_call>{"name": "f"}</tool_call>B</response>'),
        ("hunyuan_a13b", '<answer>A<tool_calls>[{"name": "f"}]</tool_calls>B</answer>'),
    ],
)
def test_text_between_tags_goes_on_after_a_call(name: str, text: str) -> None:
    assert answer(text, Table(find(name).grammar)) == ["A", ("f", "{}", "completed"), "B"]


def test_stop_string_ends_the_visible_text_only() -> None:
    decoder = Decoder(hermes, stop=("END",))

    events = decoder.feed(Chunk("<think>no END here</think>said EN"))
    assert not decoder.stopped
    events += decoder.feed(Chunk("D and more"))
    assert decoder.stopped
    events += decoder.finish(Finish(FinishReason.LENGTH))

    output = fold(events)
    assert (output.reasoning, output.text) == ("no END here", "said ")
    assert (output.reason, output.stop) == (FinishReason.STOP, "END")


@given(
    st.text("abé", max_size=20),
    st.lists(st.text("ab", min_size=1, max_size=3), min_size=1),
    st.integers(0, 9),
)
def test_no_stop_string_ends_in_the_first_tokens(text: str, stop: list[str], least: int) -> None:
    written = ["<think>", "ab", "a", "</think>", *text]
    first = max(0, least - 4)
    found = [text.find(each, max(0, first - len(each) + 1)) for each in stop]
    begins = min((start for start in found if start >= 0), default=len(text))

    for size in (1, 2, 5):  # tokens in a chunk
        decoder, events = Decoder(hermes, stop=stop, least=least), []
        for at in range(0, len(written), size):
            tokens = tuple(Token(0, piece) for piece in written[at : at + size])
            events += decoder.feed(Chunk("".join(token.text for token in tokens), tokens))
            if decoder.stopped:
                break
        output = fold(events + decoder.finish(Finish(FinishReason.STOP)))
        assert output.text == text[:begins]
        assert output.usage.completion_tokens >= min(least, len(written))


def test_tokens_that_an_engine_does_not_tell_are_chunks() -> None:
    decoder = Decoder(hermes, stop=("b",), least=2)
    events = [event for piece in ("ab", "ab", "ab") for event in decoder.feed(Chunk(piece))]
    assert decoder.stopped
    assert fold(events + decoder.finish(Finish(FinishReason.STOP))).text == "ababa"


def test_a_name_that_never_ends_becomes_text() -> None:
    text = '<tool_call>{"name": "' + "x" * (MAX_PROVISIONAL + 1)
    decoder = Decoder(hermes)

    events = decoder.feed(Chunk(text))

    assert any(isinstance(event, Malformed) for event in events)
    assert fold(events + decoder.finish(Finish(FinishReason.LENGTH))).text == text


def test_space_before_a_marker_is_held_up_to_a_limit() -> None:
    space = " " * (MAX_SPACE + 10)

    check(hermes, f"a{space}<tool_call>")
    assert answer("a" + space + '<tool_call>{"name":"f"}')[0] == "a" + " " * 10


def test_tokens_belong_to_the_first_visible_text_in_them() -> None:
    decoder = Decoder(hermes)
    texts = ["<think>", "", "hm", "a</think>", "\n\nHi", ""]
    events = []
    for index, text in enumerate(texts):
        events += decoder.feed(Chunk(text, (Token(index, text),)))
    events += decoder.finish(Finish(FinishReason.STOP))

    def ids(kind: type) -> list[int]:
        return [token.id for event in events if isinstance(event, kind) for token in event.tokens]

    assert ids(ReasoningDelta) == [1, 2]  # 1 has no text: it belongs to what follows
    assert ids(Markup) == [0, 3]  # 3 ends in the marker
    assert ids(TextDelta) == [4]  # though "\n\nHi" begins as space
    assert ids(Finished) == [5]
    assert fold(events).usage.completion_tokens == 6
    assert fold(events).usage.reasoning_tokens == 3  # the marker that opens a thought counts, too


def test_several_tokens_in_one_chunk_are_told_apart() -> None:
    pieces = ["a", "<think>", "b"]
    decoder = Decoder(tables["think"])

    events = decoder.feed(Chunk("".join(pieces), tuple(Token(i, p) for i, p in enumerate(pieces))))
    events += decoder.finish(Finish(FinishReason.STOP))

    assert fold(events).text == "a<think>b"
    assert [token.id for event in events for token in event.tokens] == [0, 1, 2]


def test_ids_count_the_calls_of_the_whole_conversation() -> None:
    events = decode(
        hermes, ['<tool_call>[{"name":"f"},{"name":"g"}]'], ids=ids_by(lambda _, n, i: f"{n}:{i}", 3)
    )

    assert [call.call_id for call in fold(events).calls] == ["f:3", "g:4"]


def test_an_incomplete_call_is_marked() -> None:
    events = decode(hermes, ['<tool_call>{"name":"f","arguments":{"a":'], Finish(FinishReason.LENGTH))

    assert [event.complete for event in events if isinstance(event, CallEnded)] == [False]
    assert fold(events).calls[0].status is Status.INCOMPLETE
    assert fold(events).reason is FinishReason.LENGTH


def test_of_a_list_that_is_cut_the_whole_calls_are_shown() -> None:
    text = '<tool_call>[{"name": "f"}, {"na'

    output = fold(decode(hermes, [text], Finish(FinishReason.LENGTH)))
    assert ([call.name for call in output.calls], output.text) == (["f"], "")
    assert answer(text) == [("f", "{}", "completed"), ' {"na']


def test_calls_of_one_answer_have_ids_of_their_own() -> None:
    """Clients and templates find a call's result by its id; models write one twice."""
    one = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    table = Table(find("kimi_k2").grammar)
    calls = decode(table, [f"<|tool_calls_section_begin|>{one}{one}<|tool_calls_section_end|>"])
    first, second = fold(calls).calls
    assert first.call_id == "functions.f:0"
    assert second.call_id not in ("", first.call_id)
