"""Messages with headers: what routes lead to, and what becomes of headers that are none."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.chunks import Chunk, Finish, FinishReason
from antiphon.core.events import CallEnded, Malformed, TextStarted
from antiphon.core.grammar import CallHeader, Route
from antiphon.decode.decoder import Decoder, state_after
from antiphon.decode.headers import MAX_HEADER, harmony_router
from antiphon.decode.table import Table
from antiphon.dialects.inkling import INKLING
from antiphon.dialects.muse_glimmer import MUSE_GLIMMER
from antiphon.dialects.openai import OPENAI
from tests.laws import check, cuts, decode, fold, model_text
from tests.search import examples

table = Table(OPENAI.grammar)
route = harmony_router({"analysis": "A", "commentary": "C", "final": "F"}, "F", "call", "code")
TOOLS = {"f": {}}
PIECES = [*OPENAI.grammar.markers, "<|constrain|>", "assistant", "analysis", "final", "commentary",
          " to=functions.f", " to=f", " to=g", " to=python", " json", '{"a": 1}', "{}", "{", "x", " ", "\n"]  # fmt: skip


@given(text=model_text(PIECES), at=cuts)
@settings(max_examples=examples(400))
def test_keeps_the_laws(text: str, at: list[int]) -> None:
    check(table, text, at, tools=TOOLS)


@given(text=model_text(PIECES), at=cuts, state=st.sampled_from(["reasoning", "final", "between"]))
@settings(max_examples=examples(100))
def test_keeps_the_laws_without_tools(text: str, at: list[int], state: str) -> None:
    check(Table(OPENAI.grammar.without_calls()), text, at, state=state)


@pytest.mark.parametrize(
    ("header", "to"),
    [
        ("<|channel|>analysis", Route("A")),
        ("analysis", Route("A")),
        ("assistant", Route("F")),
        ("", Route("F")),
        ("<|channel|>thoughts", Route("F")),
        ("a sentence without any", None),
        ("a<|end|>final", None),
        ("<|channel|>commentary to=functions.f <|constrain|>json", Route("call", CallHeader("f"))),
        (" to=functions.f<|channel|>analysis", Route("call", CallHeader("f"))),
        (" to=functions.f<|constrain|>json<|channel|>final", Route("call", CallHeader("f"))),
        ("<|channel|>commentary to=f json", Route("call", CallHeader("f"), "C")),
        ("<|channel|>analysis to=functions.", Route("A")),
        ("<|channel|>commentary to=browser.open", Route("call", CallHeader("browser.open"))),
        ("<|channel|>commentary to=container.exec", Route("call", CallHeader("container.exec"))),
        ("<|channel|>analysis to=python_tool", Route("call", CallHeader("python_tool"), "A")),
        ("<|channel|>analysis to=python code", Route("code", CallHeader("python"))),
        ("<|channel|>analysis to=python <|constrain|>json", Route("call", CallHeader("python"))),
    ],
)
def test_harmony_routes(header: str, to: Route | None) -> None:
    assert route(header) == to


def test_a_bare_recipient_is_a_function_only_if_it_is_offered() -> None:
    text = "<|channel|>commentary to=f<|message|>{}<|call|>"

    assert [call.name for call in fold(decode(table, [text], tools=TOOLS)).calls] == ["f"]
    assert fold(decode(table, [text])).text == "{}"


def test_phases() -> None:
    text = "<|channel|>commentary<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b"

    phases = [event.phase for event in check(table, text) if isinstance(event, TextStarted)]

    assert phases == ["commentary", "final_answer"]


@pytest.mark.parametrize(
    ("text", "said", "broken"),
    [
        ("<|channel|>analysis", "", True),
        ("<|channel|>commentary to=functions.f <|constrain|>js", "", True),
        ("<|channel|>final<|message|>Hi.<|end|><|start|>", "Hi.", True),
        ("<|channel|>final<|message|>Hi.<|end|><|start|>assist", "Hi.", True),
        ("<|channel|>final<|message|>Hi.<|start|>assistant<|channel|>final", "Hi.", True),
        ("Hello", "Hello", True),  # no header at all
        ("<|channel|>a word that goes on", "a word that goes on", True),
        ("<|channel|>final<|message|>Hi.<|end|><|start|>assistant<|chan", "Hi.", True),
        ("<|channel|>final<|message|>Hi.<|end|><|start|>assistant<|channel|>final<", "Hi.", True),
        (" to=functions.get_wea", "", True),
        ("<|channel|>final<|message|>", "", False),
    ],
)
def test_a_header_that_was_cut_is_no_text(text: str, said: str, broken: bool) -> None:
    events = check(table, text)

    assert fold(events).text == said
    assert any(isinstance(event, Malformed) for event in events) == broken


def test_an_empty_answer_is_not_malformed() -> None:
    assert not any(isinstance(event, Malformed) for event in check(table, ""))


@pytest.mark.parametrize(
    "length", [MAX_HEADER - 5, MAX_HEADER, MAX_HEADER + 1, MAX_HEADER + 9, 3 * MAX_HEADER]
)
def test_a_header_is_bounded_and_its_text_is_kept(length: int) -> None:
    header = "<|channel|>" + "x" * (length - 11)

    said = fold(check(table, header + "<|message|>b")).text

    assert said == ("b" if length <= MAX_HEADER else header.removeprefix("<|channel|>") + "b")


def test_a_text_that_has_no_header_comes_once_it_is_too_long_for_one() -> None:
    decoder = Decoder(table)

    assert decoder.feed(Chunk("x" * MAX_HEADER)) == []
    assert decoder.feed(Chunk("x")) != []


def test_code_ends_with_the_answer_but_not_with_the_limit() -> None:
    text = "<|channel|>analysis to=python code<|message|>1 + 1"

    for reason, complete, arguments in (
        (FinishReason.STOP, True, '{"code": "1 + 1"}'),
        (FinishReason.LENGTH, False, '{"code": "1 + 1'),
    ):
        events = decode(table, [text], Finish(reason))
        assert fold(events).calls[0].arguments == arguments
        assert [event.complete for event in events if isinstance(event, CallEnded)] == [complete]


@pytest.mark.parametrize(
    ("tail", "state"),
    [("", "header"), ("<|start|>assistant", "header"), ("<|channel|>analysis<|message|>", "reasoning")],
)
def test_where_an_answer_begins(tail: str, state: str) -> None:
    assert state_after(table, tail) == state


def test_a_table_without_calls_takes_a_call_for_text() -> None:
    text = "<|channel|>commentary to=functions.f<|message|>{}"

    assert fold(check(Table(OPENAI.grammar.without_calls()), text)).text == "{}"


@pytest.mark.parametrize(
    "text",
    [
        "<|channel|>analysis<|message|>Hm.<|end|>assistant<|channel|>final<|message|>Hi",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|start|>assistant<|channel|>final<|message|>Hi",
        "<|start|>assistant<|channel|>analysis? <|message|>Hm.<|end|>final<|message|>Hi",
        "<|channel|>analysis<|message|>Hm.<|end|><|message|>Hi",
    ],
)
def test_headers_without_their_start_or_with_two(text: str) -> None:
    output = fold(check(table, text))

    assert (output.reasoning, output.text) == ("Hm.", "Hi")


def test_a_namespace_is_that_of_a_tool_and_words_glued_to_a_name_are_not_part_of_it() -> None:
    text = "<|channel|>commentary to={}<|message|>{{}}<|call|>"
    names = {
        "repo.list": "repo.list",
        "functions.fjson": "f",
        "fcode": "f",
        "functions.g": "g",
        "functions.f": "f",
    }

    for recipient, name in names.items():
        assert [call.name for call in fold(check(table, text.format(recipient), tools=TOOLS)).calls] == [name]
    assert not fold(check(table, text.format("nobody"), tools=TOOLS)).calls


muse = Table(MUSE_GLIMMER.grammar)
CALL = '<|message|><atem:function_calls>\n<atem:invoke name="f"></atem:invoke>\n</atem:function_calls>'


@pytest.mark.parametrize(
    "between", ["<|eom|> ", "<|eom|>", "<|eom|><|start|>assistant ", "\n", " ", "<|eom|>assistant "]
)
@pytest.mark.parametrize("last", [f"to=f{CALL}", "to=user<|message|>Hi"])
def test_muse_begins_messages_in_many_ways(between: str, last: str) -> None:
    output = fold(check(muse, f" to=self<|message|>Hm.{between}{last}", tools=TOOLS))

    assert output.reasoning == "Hm."
    assert (output.text, len(output.calls)) == (("Hi", 0) if "user" in last else ("", 1))


@pytest.mark.parametrize("text", ["set x to=5 and", "Hello you", "to=5, or not"])
def test_muse_does_not_take_prose_for_a_header(text: str) -> None:
    assert fold(check(muse, text)).text == text
    assert fold(check(muse, f" to=self<|message|>{text}<|eom|>")).reasoning == text


@given(
    text=model_text(
        [*MUSE_GLIMMER.grammar.markers, "assistant", " to=", "\nto=f", "to=user", "x", " ", "\n"]
    ),
    at=cuts,
)
@settings(max_examples=examples(200))
def test_muse_keeps_the_laws(text: str, at: list[int]) -> None:
    check(muse, text, at, tools=TOOLS)


INKLING_CALL = '<|content_invoke_tool_json|>{{"name":"{0}","args":{{}}}}<|end_message|>'


@pytest.mark.parametrize(
    "before", ["", "<|message_model|>", "<|content_text|>Hi<|end_message|><|message_model|>"]
)
def test_a_name_before_the_marker_of_a_call_is_not_content(before: str) -> None:
    table = Table(INKLING.grammar)
    output = fold(
        check(table, f"{before}f{INKLING_CALL.format('f')}<|message_model|>g{INKLING_CALL.format('g')}")
    )

    assert [call.name for call in output.calls] == ["f", "g"]
    assert output.text == ("Hi" if "Hi" in before else "")
    entities = (
        "f<|content_invoke_tool_json|>{&quot;name&quot;:&quot;f&quot;,&quot;args&quot;:{&quot;a&quot;:1}}"
    )
    assert [call.arguments for call in fold(check(table, entities)).calls] == ['{"a":1}']
    assert fold(check(table, "The <|content_invoke_tool_json|> token")).text.startswith("The <|")
    assert fold(check(table, "Hello")).text == "Hello"
