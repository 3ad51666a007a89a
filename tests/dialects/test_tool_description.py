"""Every dialect that reads calls can describe how they are written, and write them."""

import json
from time import perf_counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.constrain.arguments import UnsupportedSyntaxError
from antiphon.constrain.call_writer import MAX_FORM, CallWriter
from antiphon.core.chunks import Finish, FinishReason
from antiphon.core.grammar import CallStart, Grammar
from antiphon.core.items import FunctionCall
from antiphon.decode.table import Table
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.hermes import HERMES
from antiphon.dialects.registry import DIALECTS
from antiphon.dialects.tool_description import EXAMPLE_ARGUMENTS, EXAMPLE_NAME, tool_prompt_of
from antiphon.render.renderer import CHATML, ChatTemplateRenderer
from tests.laws import decode, fold
from tests.render.support import WEATHER, call, output, say, turn
from tests.search import examples


def has_calls(dialect: Dialect) -> bool:
    return any(isinstance(state, CallStart) for state in dialect.calls.states.values())


CALLING = [dialect for dialect in DIALECTS if has_calls(dialect)]
NAMES = [dialect.names[0] for dialect in DIALECTS]
WORDS = st.text("abc éß漢🙂019.,:;!?'\"\\/()-+*=&%$#@\n", min_size=1, max_size=20).map(str.strip).filter(bool)
VALUES = st.fixed_dictionaries(
    {"text": WORDS},
    optional={
        "count": st.integers(-1000, 1000),
        "flag": st.booleans(),
        "parts": st.lists(st.integers(0, 9), min_size=1, max_size=3),
        "more": st.fixed_dictionaries({"deep": WORDS}),
    },
)
TYPES = {"text": "string", "count": "integer", "flag": "boolean"}
SCHEMA = {
    "type": "object",
    "properties": {
        **{name: {"type": type_} for name, type_ in TYPES.items()},
        "parts": {"type": "array", "items": {"type": "integer"}},
        "more": {"type": "object", "properties": {"deep": {"type": "string"}}},
    },
}


def read(grammar: Grammar, text: str, tools: dict[str, Any]) -> list[tuple[str, Any]]:
    """The calls in an answer."""
    start = grammar.states[grammar.start]
    if grammar.has_message_headers and text.startswith("<|start|>assistant"):
        text = text.removeprefix("<|start|>assistant")  # the prompt ends so
    assert start
    events = decode(Table(grammar), [text], Finish(FinishReason.STOP), tools=tools)
    calls = [item for item in fold(events).items if isinstance(item, FunctionCall)]
    return [(item.name, json.loads(item.arguments)) for item in calls]


@pytest.mark.parametrize("dialect", DIALECTS, ids=NAMES)
def test_the_example_of_the_description_is_a_call(dialect: Dialect) -> None:
    prompt = tool_prompt_of(dialect)
    assert (prompt is not None) == has_calls(dialect)
    if prompt is None or dialect is HERMES:
        return
    made = ChatTemplateRenderer(CHATML, bos="<s>", eos="</s>", tool_prompt=prompt)
    text = made.render(turn(say("user", "Hi"), tools=(WEATHER,)))
    assert '"name": "get_weather"' in text
    example = text.partition("once for each call:\n")[2].partition("<|im_end|>")[0]
    assert read(dialect.grammar, example, {EXAMPLE_NAME: {}}) == [(EXAMPLE_NAME, EXAMPLE_ARGUMENTS)]


@pytest.mark.parametrize("dialect", CALLING, ids=lambda dialect: dialect.names[0])
@settings(max_examples=examples(30), derandomize=True)
@given(values=VALUES)
def test_what_is_written_is_read_back(dialect: Dialect, values: dict[str, Any]) -> None:
    text = CallWriter(dialect.calls)("spend_time", values)
    assert read(dialect.grammar, text, {"spend_time": SCHEMA}) == [("spend_time", values)]


@pytest.mark.parametrize("dialect", CALLING, ids=lambda dialect: dialect.names[0])
def test_earlier_calls_are_written_in_the_format(dialect: Dialect) -> None:
    made = ChatTemplateRenderer(CHATML, bos="<s>", eos="</s>", tool_prompt=tool_prompt_of(dialect))
    items = say("user", "Hi"), call(), output(), call("b", arguments="broken"), output("b", "rain")
    text = made.render(turn(*items, tools=(WEATHER,)))
    written = text.partition("Hi<|im_end|>\n<|im_start|>assistant\n")[2].partition("<|im_end|>")[0]
    assert read(dialect.grammar, written, {WEATHER.name: WEATHER.parameters}) == [
        (WEATHER.name, {"city": "Zürich"})
    ]
    assert "sunny" in text
    assert "broken" in text


def test_what_cannot_be_written_becomes_json() -> None:
    writer = CallWriter(next(dialect for dialect in DIALECTS if dialect.names[0] == "glm45").calls)
    for arguments in ({"a b": 1}, "broken", {"list": [1] * MAX_FORM}):
        assert json.loads(writer("f", arguments)) == {"name": "f", "arguments": arguments}


@pytest.mark.parametrize("dialect", CALLING, ids=lambda dialect: dialect.names[0])
def test_no_arguments_take_long_or_fail(dialect: Dialect) -> None:
    writer = CallWriter(dialect.calls)
    deep = json.loads('{"a": ' * 200 + "1" + "}" * 200)
    many = {f"key_{number}": number for number in range(MAX_FORM // 16)}
    for arguments in (deep, many, {"list": [1] * (MAX_FORM // 4)}, {"text": "x" * 2**20}):
        begun = perf_counter()
        assert "f" in writer("f", arguments)
        assert perf_counter() - begun < 1


def test_a_table_without_calls_cannot_write_any() -> None:
    plain = next(dialect for dialect in DIALECTS if not has_calls(dialect))
    with pytest.raises(UnsupportedSyntaxError):
        CallWriter(plain.calls)
