"""What is refused, what is left to be checked, and what a demand comes to."""

import json
from contextlib import suppress
from typing import Any

import pytest

from antiphon.constrain import structural_tag
from antiphon.constrain.compile import CompiledConstraint, OutputRequirements, compile_constraint
from antiphon.constrain.matcher import matches
from antiphon.core.constraint import GrammarFormat, JsonSchema, OneOf, Regex
from antiphon.core.errors import RequestError
from antiphon.core.turn import CallMode, Function, ToolChoice
from antiphon.dialects.registry import find

HERMES = find("hermes").grammar
HARD = {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 3}}, "required": ["a"]}
F = Function("f", None, {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
G = Function("g", None, {})
REQUIRED = ToolChoice(CallMode.REQUIRED)


def compiled(*tools: Function, **more: Any) -> CompiledConstraint:
    return compile_constraint(OutputRequirements(tools, **more), HERMES)


def lets(found: CompiledConstraint, text: str) -> bool:
    assert found.grammar_ir is not None
    return matches(found.grammar_ir, text)


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def test_nothing_is_enforced_where_nothing_is_demanded() -> None:
    assert compiled(F, G) == CompiledConstraint()
    assert compiled() == CompiledConstraint()
    assert compiled(F, tool_choice=ToolChoice(CallMode.NONE)) == CompiledConstraint()


def test_a_strict_schema_that_cannot_be_enforced_is_refused_by_keyword_and_place() -> None:
    with pytest.raises(RequestError, match=r"/properties/a: multipleOf") as refused:
        compiled(G, Function("h", None, HARD, strict=True, source="tools[1].parameters"))
    assert refused.value.param == "tools[1].parameters"
    with pytest.raises(RequestError, match="multipleOf") as refused:
        compiled(format=JsonSchema(HARD))
    assert refused.value.param == "format"


def test_a_loose_schema_is_enforced_as_far_as_it_goes() -> None:
    found = compiled(format=JsonSchema(HARD, strict=False))
    assert [(each.param, each.pointer) for each in found.unenforced] == [("format", "/properties/a")]
    assert lets(found, '{"a": 4}')
    assert not lets(found, '{"a": "x"}')
    found = compiled(Function("h", None, HARD), tool_choice=REQUIRED)
    assert [str(each) for each in found.unenforced] == ["/properties/a: multipleOf: it cannot be enforced"]


def test_a_call_that_must_come_comes_alone_or_with_others() -> None:
    found = compiled(F, G, tool_choice=REQUIRED)
    assert lets(found, call("f", '{"a": 1}'))
    assert lets(found, "<think>\nHm.\n</think>\n\n" + call("g", "{}") + "\n" + call("f", '{"a": 2}'))
    for text in ("Hello", call("f", "{}"), call("h", "{}"), "Well: " + call("g", "{}"), "", "<think>Hm."):
        assert not lets(found, text)


def test_only_the_functions_that_may_be_called_are_let_through() -> None:
    found = compiled(F, G, tool_choice=ToolChoice(CallMode.REQUIRED, frozenset({"g"})))
    assert lets(found, call("g", "{}"))
    assert not lets(found, call("f", '{"a": 1}'))


def test_after_one_call_there_is_only_the_end() -> None:
    found = compiled(F, G, tool_choice=ToolChoice(CallMode.REQUIRED, parallel=False))
    assert lets(found, call("g", "{}"))
    assert not lets(found, call("g", "{}") + call("g", "{}"))


def test_a_function_that_is_not_strict_may_be_called_with_anything() -> None:
    found = compiled(F, tool_choice=ToolChoice(names=frozenset({"f"})))
    assert found.triggers == ("<tool_call>",)
    assert lets(found, call("f", '{"b": [null]}'))
    assert not lets(found, call("g", "{}"))


def test_a_thought_that_the_prompt_opened_is_ended_first() -> None:
    found = compiled(format=OneOf(("yes", "no")), state="reasoning")
    assert lets(found, "Is it? yes, <b> no</think>\n\nno")
    assert not lets(found, "no")
    assert not lets(compiled(format=OneOf(("yes", "no")), state="text"), "<think>x</think>no")


def test_space_that_would_be_said_is_not_let_through() -> None:
    found = compiled(format=Regex("[a-z]+"))
    assert lets(found, "abc")
    assert not lets(found, " abc")
    assert not lets(found, "abc\n")


@pytest.mark.parametrize(
    "format_",
    [
        Regex("(?=a)"),
        GrammarFormat("start: x", "lark"),
        GrammarFormat("root ::= root"),
        JsonSchema({"enum": []}),
    ],
)
def test_a_format_that_cannot_be_enforced_is_refused(format_: Any) -> None:
    with pytest.raises(RequestError) as refused:
        compiled(format=format_)
    assert refused.value.param == "format"


def test_arguments_that_nothing_fits_are_refused() -> None:
    with pytest.raises(RequestError) as refused:
        compiled(G, Function("h", None, {"type": "array"}, source="functions[1]"), tool_choice=REQUIRED)
    assert refused.value.param == "functions[1]"


@pytest.mark.parametrize("circle", [{"$ref": "#"}, {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}])
@pytest.mark.parametrize(
    "dialect", ["hermes", "qwen3_coder", "deepseek_v32", "gemma4", "minimax_m3", "olmo3"]
)
def test_arguments_that_refer_only_to_themselves_are_refused(dialect: str, circle: Any) -> None:
    with pytest.raises(RequestError):
        compile_constraint(
            OutputRequirements((Function("h", None, circle),), REQUIRED), find(dialect).grammar
        )
    inner = {"c": {"$ref": "#/$defs/c"}}
    inside = {"type": "object", "properties": {"a": {"$ref": "#/$defs/c"}}, "$defs": inner}
    with suppress(RequestError):  # a format that separates types has no such error
        compile_constraint(
            OutputRequirements((Function("h", None, inside),), REQUIRED), find(dialect).grammar
        )


def test_a_call_without_functions_is_refused() -> None:
    with pytest.raises(RequestError):
        compiled(F, tool_choice=ToolChoice(CallMode.REQUIRED, frozenset({"nobody"})))


def test_structural_tags_hold_from_the_start_or_from_triggers_on() -> None:
    whole = compiled(F, tool_choice=REQUIRED)
    lazy = compiled(F, tool_choice=ToolChoice(parallel=False))
    assert whole.grammar_ir is not None
    assert lazy.grammar_ir is not None
    assert json.loads(structural_tag.write(whole.grammar_ir).text)["format"]["type"] == "grammar"
    tag = json.loads(structural_tag.write(lazy.grammar_ir, lazy.triggers).text)["format"]
    assert tag["triggers"] == ["<tool_call>"]
    assert [each["begin"] for each in tag["tags"]] == ["<tool_call>"]


def test_a_request_that_takes_too_much_work_is_refused_by_its_part() -> None:
    huge = {"type": "object", "properties": {"a": {"enum": [f"value {i}" for i in range(300_000)]}}}
    with pytest.raises(RequestError, match="too complex") as refused:
        compiled(G, Function("h", None, huge, source="tools[1].parameters"), tool_choice=REQUIRED)
    assert refused.value.param == "tools[1].parameters"


def test_a_text_that_the_prompt_has_begun_is_continued_without_space() -> None:
    after_marker = compiled(format=Regex("yes"), state="text")
    assert lets(after_marker, "\n\nyes")
    mid_text = compiled(format=Regex("yes"), state="text", mid_text=True)
    assert not lets(mid_text, "\n\nyes")
    assert lets(mid_text, "yes")
