"""Dialects made of response templates: what they read, what is refused, when they are chosen."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.errors import EngineError
from antiphon.core.grammar import CallHeader, Key, Name, SpelledParser
from antiphon.core.items import FunctionCall, Message, Reasoning
from antiphon.decode.ids import mistral_call_id
from antiphon.decode.table import Table
from antiphon.dialects.detection.detect import Evidence, choose, detect
from antiphon.dialects.detection.scorers import opening_markers
from antiphon.dialects.response_template.builder import build
from tests.contracts.dialect import TOOLS
from tests.dialects import response_templates as templates
from tests.dialects.response_templates import ALL, FUNCTION, NAMED, TAGGED, THINK, template
from tests.dialects.templates import CODER, MISTRAL, TAGS, TEACHING
from tests.laws import check, cuts, decode, fold, model_text
from tests.search import examples

TABLES = {name: Table(build(json.dumps(spec)).grammar) for name, spec in ALL.items()}
ROME = ("get_weather", {"city": "Rome"})
ROME_3 = ("get_weather", {"city": "Rome", "days": 3})
NOW = ("now", {})


def answer(name: str, text: str) -> list[object]:
    """The items of a text: reasoning after an `@`, calls with their arguments."""
    check(TABLES[name], text, tools=TOOLS)
    short: list[object] = []
    for item in fold(decode(TABLES[name], [text], tools=TOOLS)).items:
        match item:
            case Message():
                short.append(item.text)
            case Reasoning():
                short.append(f"@{item.text}")
            case FunctionCall():
                whole = item.status == "completed"
                short.append((item.name, json.loads(item.arguments)) if whole else item.arguments)
    return short


@pytest.mark.parametrize(
    ("name", "text", "items"),
    [
        ("hermes", "Sunny.<|im_end|>", ["Sunny."]),
        ("hermes", "<think>\nhm\n</think>\n\nSunny.", ["@hm", "Sunny."]),
        ("hermes", 'Wait.\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>', ["Wait.", NOW, ROME]),
        ("hermes", "A <tool_call> is a tag.", ["A <tool_call> is a tag."]),
        ("coder", "<think>hm</think><tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call><|im_end|>", ["@hm", ROME_3]),
        ("coder", "<tool_call><function=now\n></function></tool_call>ok", [NOW, "ok"]),
        ("bare coder", "ok<tool_call>\n<function=now>\n</function>\n</tool_call>", ["ok", NOW]),
        ("bare coder", "<tool_call>\n<function=now now>\n</function>\n</tool_call>", ["<tool_call>\n<function=now now>\n</function>\n</tool_call>"]),
        ("cohere", '<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[\n{"tool_call_id": "0", "tool_name": "now", "parameters": {}},\n{"tool_call_id": "1", "tool_name": "get_weather", "parameters": {"city": "Rome"}}]<|END_ACTION|><|END|>', ["@hm", NOW, ROME]),
        ("cohere", "noise<|START_RESPONSE|>Sunny.<|END_RESPONSE|>noise", ["Sunny."]),
        ("channels", '<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Rome"}<|call|>', ["@hm", ROME]),
        ("channels", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Sunny.", ["@hm", "Sunny."]),
        ("gemma", '<|channel>thought\nhm<channel|>ok<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:3}<tool_call|><turn|>', ["@hm", "ok", ROME_3]),
        ("ernie", 'hm\n</think>\n\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n', ["@hm", NOW]),
        ("ernie", "hm</think>\n<response>\nSunny.\n</response>\n", ["@hm", "Sunny."]),
        ("addressed", "to=self<|msg|>hm<|eom|><|start|>assistant to=user<|msg|>Sunny.<|eot|>", ["@hm", "Sunny."]),
        ("addressed", 'to=weather<|msg|><calls><invoke id="1" name="get_weather"><param name="city">Rome</param><param string="no" name="days">3</param></invoke></calls><|eom|>', [ROME_3]),
        ("addressed", "to=user<|msg|>a<|eom|>to=all<|msg|>b", ["a", "b"]),
        ("brackets", '[THINK]hm[/THINK]ok[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}</s>', ["@hm", "ok", NOW, ROME]),
        ("grouped", 'ok\n\n<calls>\n<call name="get_weather">\n<arg name="city" string="true">Rome</arg><arg name="days" string="false">3</arg></call>\n<call name="now">\n</call>\n</calls>bye', ["ok", ROME_3, NOW, "bye"]),
        ("keyed", "<think>hm</think>ok<tool_call>get_weather\n<key>city</key>\n<value>Rome</value>\n<key>days</key><value>3</value>\n</tool_call><tool_call>now</tool_call><|end|>", ["@hm", "ok", ROME_3, NOW]),
        ("unclosed", "<call get_weather><arg=city>Rome<arg=days>3</arg></call><call now></call><|end|>", [ROME_3, NOW]),
        ("grouped", '<call name="f"><arg name="x" string="false">{"a": [1]}</arg><arg name="y" string="true">a b</arg></call>', [("f", {"x": {"a": [1]}, "y": "a b"})]),
    ],
)  # fmt: skip
def test_reads(name: str, text: str, items: list[object]) -> None:
    assert answer(name, text) == items


def test_ids_of_the_model_are_read() -> None:
    text = '<|START_ACTION|>[{"tool_call_id": "7", "tool_name": "now", "parameters": {}}]'

    assert fold(decode(TABLES["cohere"], [text])).calls[0].call_id == "7"


@pytest.mark.parametrize("name", ALL)
@given(data=st.data(), at=cuts)
@settings(max_examples=examples(60))
def test_keeps_the_laws(name: str, data: st.DataObject, at: list[int]) -> None:
    pieces = [
        *TABLES[name].grammar.markers,
        '{"name": "f", "arguments": {',
        "f",
        "}",
        "{",
        '"',
        ">",
        " ",
        "\n",
        "x",
    ]
    text = data.draw(model_text(pieces))
    check(TABLES[name], text, at, tools={"f": {}})
    check(Table(TABLES[name].grammar.without_calls()), text, at)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ([], "no `fields`"),
        ({"fields": {}}, "no `fields`"),
        ({"version": 2, "fields": {"content": {}}}, "version is 2"),
        (template(content={}, citations={"open": "<co>"}), "the field 'citations'"),
        (template(content=[]), "'content' is not an object"),
        (template(content={"upon": "a"}), "'content' has an unknown key, `upon`"),
        (template(content={"content": "json"}), "'content' has `content` 'json'"),
        (template(content={"close": 3}), "'content' has a `close` that is not a string"),
        (template(content={"close_pattern": "a("}), "'content' has the pattern 'a\\(': it does not compile"),
        (template(content={"close_pattern": "<a>.*<b>"}), "'content' has the pattern .* not a fixed marker"),
        (template(content={"open": " \n"}), "'content' has a marker of only whitespace"),
        (template(content={}, thinking={"close": "</think>"}), "the field 'thinking' has no opening marker"),
        (template(content={"open": "<a>"}, thinking={"open": "<a>"}), "the marker '<a>', which another field uses differently"),
        (template(tool_calls={**TAGGED, "transform": None}), "'tool_calls' has no `transform`"),
        (template(tool_calls={**TAGGED, "transform": {"function": {"name": "f"}}}), "`transform` that is not supported"),
        (template(tool_calls={**TAGGED, "transform": {"function": {"name": "f", "arguments": "{content}"}}}), "`transform` that is not supported"),
        (template(tool_calls={**ALL["unclosed"]["fields"]["tool_calls"], "content_args": {"tag_pattern": r"<a=(?P<key>\w+)>(?P<value>.*?)(?:</a>|(?=<b>))"}}), "lookahead"),
        (template(tool_calls={**TAGGED, "content": "kv-lines"}), "`content` `kv-lines`"),
        (template(tool_calls={**TAGGED, "transform": NAMED}), "not just markers and a name"),
        (template(tool_calls={**TAGGED, "content_args": {"unquoted_keys": True}}), "`content` `json`"),
        (template(tool_calls={**ALL["gemma"]["fields"]["tool_calls"], "content_args": {"unquoted_keys": True}}), "bare keys"),
        (template(tool_calls={**TAGGED, "open_pattern": r"(?P<fn>\w+)!"}), "not just markers and a name"),
        (template(tool_calls={**TAGGED, "open_pattern": r"<(?P<fn>\w+)>", "transform": NAMED}), "no group 'name'"),
        (template(tool_calls={**ALL["coder"]["fields"]["tool_calls"], "content_args": {}}), "'tool_calls' has the pattern None"),
        (template(tool_calls={**ALL["coder"]["fields"]["tool_calls"], "content_args": {"tag_pattern": "<a>"}}), "`tag_pattern`"),
        (template(tool_calls={**TAGGED, "open_pattern": r"<(?P<name>\w*\w*\w*\w*\w*)>", "transform": NAMED}), "too many repetitions"),
        (template(tool_calls={**TAGGED, "transform_each": "yes"}), "`transform_each` that is not a bool"),
    ],
)  # fmt: skip
def test_what_no_grammar_can_express_is_rejected_and_named(spec: Any, message: str) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        build(json.dumps(spec))
    assert "--dialect" in str(caught.value)


@pytest.mark.parametrize("text", ["no JSON", "[" * 100_000])
def test_text_that_is_not_json_is_rejected(text: str) -> None:
    with pytest.raises(EngineError, match="not JSON"):
        build(text)


def test_every_template_opens_its_calls_from_text() -> None:
    for spec in ALL.values():
        assert opening_markers(build(json.dumps(spec)))


@pytest.mark.parametrize("name", ALL)
def test_the_headers_of_calls_can_be_spelled(name: str) -> None:
    for state in TABLES[name].grammar.states.values():
        if isinstance(state, Name):
            assert isinstance(state.parse, SpelledParser)
            assert state.parse(state.parse.spellings[0].replace("NAME", "f")) == CallHeader("f")
        if isinstance(state, Key):
            assert isinstance(state.parse, SpelledParser)
            assert state.parse(state.parse.spellings[0].text.replace("KEY", "a")).key == "a"


def found(chat_template: str, spec: Any) -> str:
    return detect(Evidence(chat_template, response_template=json.dumps(spec))).name


def test_it_wins_where_others_read_as_much() -> None:
    assert found(TAGS, templates.HERMES) == "hf"
    assert found(CODER, templates.CODER) == "hf"
    assert (
        "response template is the best, too"
        in detect(Evidence(TAGS, response_template=json.dumps(templates.HERMES))).reason
    )


def test_it_does_not_win_where_it_reads_less() -> None:
    assert found(TAGS, templates.CODER) == "hermes"
    assert found(TAGS, template(content={"close": "<|im_end|>"})) == "hermes"


def test_one_that_is_not_supported_is_still_scored() -> None:
    refused = template(content={}, citations={"open": "<co>"})

    assert found(TAGS, refused) == "hermes"


def test_it_is_told_of_where_a_template_shows_no_calls() -> None:
    assert found(TEACHING, templates.CODER) == "hf"


def test_what_else_is_known_of_the_family_is_kept() -> None:
    spec = template(
        "[/INST]",
        tool_calls={"open": "[TOOL_CALLS]", "content": "json", "transform_each": True,
                    "transform": {"function": {"name": "{name}", "arguments": "{arguments}"}}},
        content={"close": "</s>"},
    )  # fmt: skip
    evidence = Evidence(MISTRAL, (), "<s>", "</s>", json.dumps(spec))

    for detection in (detect(evidence), choose("hf", evidence)):
        assert detection.name == "hf"
        assert detection.dialect.ids is mistral_call_id


def test_it_can_be_named() -> None:
    evidence = Evidence(TAGS, response_template=json.dumps(templates.CODER))

    assert choose("hf", evidence).name == "hf"
    assert choose("hf+hermes", evidence).dialect.reasoning == choose("qwen3", evidence).dialect.reasoning
    with pytest.raises(EngineError, match=r"no tokenizer_config\.json"):
        choose("hf", Evidence(TAGS))
    with pytest.raises(EngineError, match="hf, "):
        choose("nope", evidence)


def test_fields_have_other_names_too() -> None:
    for name in ("thinking", "reasoning", "reasoning_content"):
        dialect = build(
            json.dumps({"fields": {name: THINK, "tool_calls": {**TAGGED, "transform": FUNCTION}}})
        )
        assert dialect.reasoning
