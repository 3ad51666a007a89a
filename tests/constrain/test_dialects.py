"""The dialect's decoder reads every text that a constraint allows, with the demanded result."""

import json
from itertools import product
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from msgspec.structs import replace

from antiphon.constrain.compile import OutputRequirements, compile_constraint
from antiphon.core.accumulator import Output
from antiphon.core.constraint import JsonSchema, Regex
from antiphon.core.grammar import Grammar, Habits, Header, Name, Span, SpanKind
from antiphon.core.items import Message, Status
from antiphon.core.turn import CallMode, Function, ToolChoice
from antiphon.decode.table import Table
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.registry import DIALECTS
from tests.constrain.language import Language
from tests.constrain.sampler import samples
from tests.contracts.dialect import TOOLS as OFFERED
from tests.contracts.dialect import answers, table_of
from tests.laws import check, decode, fold
from tests.search import CI, share

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["C", "F", 'it\'s "K" <b>']},
        "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
        "note": {"type": ["string", "null"]},
        "height": {"type": "number", "minimum": -0.5},
        "now": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "area": {
            "type": "object",
            "properties": {
                "radius": {"type": "integer"},
                "points": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"name": {"type": "string", "minLength": 2}},
                        "required": ["name"],
                    },
                },
            },
            "required": ["radius"],
        },
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TREE = {
    "type": "object",
    "properties": {"leaf": {"type": "string", "format": "date"}, "node": {"$ref": "#/$defs/node"}},
    "required": ["leaf"],
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"node": {"$ref": "#/$defs/node"}, "value": {"type": "integer"}},
            "required": ["value"],
        }
    },
}
TOOLS = (
    Function("get_weather", None, WEATHER, strict=True),
    Function("now", None, {}),
    Function("plant", None, TREE),
)
SCHEMAS: dict[str, Any] = {tool.name: tool.parameters for tool in TOOLS}
VALIDATORS = {name: jsonschema_rs.validator_for(schema) for name, schema in SCHEMAS.items()}
FORMAT = JsonSchema(
    {"type": "object", "properties": {"answer": {"enum": ["yes", "no"]}}, "required": ["answer"]}
)

NO_CALLS = dict.fromkeys(("plain", "think", "kimi_vl"), "the dialect has no calls")
"""Dialects in which a call cannot be demanded, and why."""

REQUIRED = ToolChoice(CallMode.REQUIRED)
CHOICES = {
    "required": REQUIRED,
    "named": ToolChoice(CallMode.REQUIRED, frozenset({"get_weather"})),
    "one only": ToolChoice(CallMode.REQUIRED, parallel=False),
    "auto, strict": ToolChoice(),
    "auto, allowed": ToolChoice(CallMode.AUTO, frozenset({"get_weather", "plant"})),
    "auto, one only": ToolChoice(CallMode.AUTO, parallel=False),
}
CALLING = [dialect for dialect in DIALECTS if dialect.names[0] not in NO_CALLS]


def named(dialect: Dialect) -> str:
    return dialect.names[0]


SAMPLES = 2 if CI else 6
"""Answers that a constraint lets through, which are tried."""


def states(dialect: Dialect) -> list[str | None]:
    """Where an answer may begin: at the start, inside of a thought, and after it."""
    states = dialect.grammar.states
    thoughts = [
        name for name, state in states.items() if isinstance(state, Span) and state.kind is SpanKind.REASONING
    ]
    headers = any(isinstance(states[name], Header) for name in (dialect.grammar.start,))
    return [None, *thoughts, *([] if headers else [dialect.grammar.text])]


def answer(dialect: Dialect, text: str, state: str | None) -> Output:
    return fold(decode(table_of(named(dialect)), [text], tools=SCHEMAS, state=state))


def faults(output: Output, choice: ToolChoice) -> list[str]:
    """What of an answer's calls is not as it was demanded. Functions that are not strict may be called with anything."""
    found = []
    for call in output.calls:
        if call.status is not Status.COMPLETED:
            found.append(f"{call.name} is incomplete: {call.arguments}")
        elif call.name not in (choice.names or SCHEMAS):
            found.append(f"{call.name} may not be called")
        elif call.name == "get_weather" or choice.calling is CallMode.REQUIRED:
            found += [
                error.message for error in VALIDATORS[call.name].iter_errors(json.loads(call.arguments))
            ]
    if len(output.calls) > 1 and not choice.parallel:
        found.append("more than one call")
    if choice.calling is CallMode.REQUIRED and not output.calls:
        found.append("no call")
    return found


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize("dialect", share(CALLING), ids=named)
def test_what_is_let_through_is_what_was_demanded(dialect: Dialect, choice: ToolChoice) -> None:
    for state in states(dialect):
        compiled = compile_constraint(OutputRequirements(TOOLS, choice, state=state), dialect.grammar)
        assert compiled.unenforced == ()
        assert compiled.grammar_ir is not None
        language = Language(compiled.grammar_ir)
        for text in samples(compiled.grammar_ir, SAMPLES):
            assert faults(answer(dialect, text, state), choice) == [], text
            assert text in language
            if compiled.triggers:
                assert text.startswith(compiled.triggers)


@pytest.mark.parametrize("dialect", share(CALLING), ids=named)
def test_the_laws_of_decoding_hold_for_what_is_let_through(dialect: Dialect) -> None:
    compiled = compile_constraint(OutputRequirements(TOOLS, REQUIRED), dialect.grammar)
    assert compiled.grammar_ir is not None
    for text in samples(compiled.grammar_ir, 4):
        check(table_of(named(dialect)), text, [3, 10, 40, 41], tools=SCHEMAS)


@pytest.mark.parametrize("dialect", share(CALLING), ids=named)
def test_the_end_of_a_thought_that_was_cut_leads_to_what_is_demanded(dialect: Dialect) -> None:
    """The server writes it after a number of tokens."""
    either = OutputRequirements(TOOLS, ToolChoice(), FORMAT)
    demands = [
        (dialect.reasoning_end_before_call, OutputRequirements(TOOLS, REQUIRED)),
        (dialect.reasoning_end, OutputRequirements(format=FORMAT)),
        (dialect.reasoning_end, either),
    ]
    thoughts = [state for state in states(dialect) if state not in (None, dialect.grammar.text)]
    for (end, required), state in product(demands, thoughts):
        if end is not None:
            compiled = compile_constraint(msgspec.structs.replace(required, state=state), dialect.grammar)
            assert compiled.after(f"Hm.{end}") is not None, (end, required)


@pytest.mark.parametrize("dialect", share(DIALECTS), ids=named)
def test_a_format_is_what_is_said(dialect: Dialect) -> None:
    for state in states(dialect):
        compiled = compile_constraint(OutputRequirements(format=FORMAT, state=state), dialect.grammar)
        assert compiled.grammar_ir is not None
        for text in samples(compiled.grammar_ir, SAMPLES):
            said = [item for item in answer(dialect, text, state).items if isinstance(item, Message)]
            shown = "".join(part.text for item in said for part in item.parts)
            assert json.loads(shown.removeprefix("<think>"))["answer"] in ("yes", "no")


@pytest.mark.parametrize("dialect", share(DIALECTS), ids=named)
def test_nothing_else_is_said_than_the_format_not_even_space(dialect: Dialect) -> None:
    for state in states(dialect):
        compiled = compile_constraint(OutputRequirements(format=Regex("yes"), state=state), dialect.grammar)
        assert compiled.grammar_ir is not None
        for text in samples(compiled.grammar_ir, 4 * SAMPLES):
            said = [item for item in answer(dialect, text, state).items if isinstance(item, Message)]
            assert "".join(item.text for item in said).removeprefix("<think>") == "yes", text


@pytest.mark.parametrize("dialect", share(CALLING), ids=named)
def test_with_a_format_and_tools_the_answer_is_either(dialect: Dialect) -> None:
    compiled = compile_constraint(OutputRequirements(TOOLS, ToolChoice(), FORMAT), dialect.grammar)
    assert compiled.grammar_ir is not None
    seen = set()
    for text in samples(compiled.grammar_ir, 20):
        output = answer(dialect, text, None)
        assert faults(output, ToolChoice()) == [], text
        seen.add(bool(output.calls))
    assert seen == {True, False}


@pytest.mark.parametrize("name", NO_CALLS)
def test_what_a_dialect_cannot_write_is_left_to_be_checked(name: str) -> None:
    dialect = next(dialect for dialect in DIALECTS if named(dialect) == name)
    compiled = compile_constraint(OutputRequirements(TOOLS, REQUIRED), dialect.grammar)
    assert compiled.grammar_ir is None
    assert [each.param for each in compiled.unenforced] == ["tool_choice"]


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize("name", NO_CALLS)
def test_where_there_are_no_calls_a_format_next_to_tools_is_what_is_said(
    name: str, choice: ToolChoice
) -> None:
    dialect = next(dialect for dialect in DIALECTS if named(dialect) == name)
    compiled = compile_constraint(OutputRequirements(TOOLS, choice, FORMAT), dialect.grammar)
    assert compiled.grammar_ir is not None
    assert bool(compiled.unenforced) == (choice.calling is CallMode.REQUIRED)
    for text in samples(compiled.grammar_ir, SAMPLES):
        assert json.loads(answer(dialect, text, None).items[-1].text)["answer"] in ("yes", "no")


@pytest.mark.parametrize("choice", [REQUIRED, ToolChoice(parallel=False)], ids=["required", "auto"])
def test_tools_that_a_family_was_trained_with_are_called_in_their_own_place(choice: ToolChoice) -> None:
    dialect = next(dialect for dialect in DIALECTS if named(dialect) == "openai")
    assert dialect.renderer is not None
    tools = [tool for tools in dialect.renderer(None).native_tools.values() for tool in tools]
    compiled = compile_constraint(OutputRequirements((*tools, TOOLS[0]), choice), dialect.grammar)
    assert compiled.grammar_ir is not None
    seen = set()
    for text in samples(compiled.grammar_ir, 40):
        for call in answer(dialect, text, None).calls:
            assert call.status is Status.COMPLETED, text
            assert (f" to={call.name} json" in text) == (call.name != "get_weather")
            seen.add(call.name)
    assert seen == {tool.name for tool in (*tools, TOOLS[0])}


NOT_AS_TAUGHT = {
    ("inkling", "reasoning_then_call"): "an empty text stands between",
    ("kimi_k2", "empty_arguments"): "the empty object is left out",
    (
        "minimax_m2_append_think",
        "reasoning_then_call",
    ): "thoughts that are text come before no call that must come",
    ("muse_glimmer", "single"): "the recipient is not the function",
    ("muse_glimmer", "parallel"): "the recipient is not the function",
    ("muse_glimmer", "empty_arguments"): "the recipient is not the function",
    ("muse_glimmer", "reasoning_then_call"): "the recipient is not the function",
    **{
        ("muse", case): "the recipient is not the function"
        for case in ("single", "parallel", "empty_arguments", "reasoning_then_call")
    },
    ("beam", "parallel"): "a call that may be the last one ends with another token",
    ("openai", "parallel"): "a header from an older template",
    ("openai", "empty_arguments"): "the channel is wrong",
}
"""Golden outputs that show what a decoder forgives."""


@pytest.mark.parametrize("case", ["single", "parallel", "empty_arguments", "reasoning_then_call"])
@pytest.mark.parametrize("dialect", share(CALLING), ids=named)
def test_what_models_write_is_let_through(dialect: Dialect, case: str) -> None:
    found = answers(named(dialect))[case]
    if (named(dialect), case) in NOT_AS_TAUGHT:
        pytest.skip(NOT_AS_TAUGHT[named(dialect), case])
    if "output" not in found:
        pytest.skip(
            found.get("not_applicable", "tests/dialects/test_contract.py says that there is no answer")
        )
    tools = tuple(Function(name, None, schema or {"type": "object"}) for name, schema in OFFERED.items())
    compiled = compile_constraint(OutputRequirements(tools, REQUIRED), dialect.grammar)
    assert compiled.grammar_ir is not None
    assert found["output"] in Language(compiled.grammar_ir)


def without_habits(grammar: Grammar) -> Grammar:
    """The grammar as the format has it, without what models write against it, and states for that alone."""
    states = {}
    for name, state in grammar.states.items():
        if isinstance(state, Span):
            states[name] = replace(state, habits=Habits(), closes=(), quotes=())
        else:
            states[name] = replace(state, habits={}) if isinstance(state, Name) else state
    return replace(grammar, states=states)


@pytest.mark.parametrize("choice", [REQUIRED, ToolChoice(parallel=False)], ids=["required", "auto"])
@pytest.mark.parametrize("dialect", share(DIALECTS), ids=named)
def test_what_a_constraint_allows_is_read_without_habits(dialect: Dialect, choice: ToolChoice) -> None:
    compiled = compile_constraint(OutputRequirements(TOOLS, choice), dialect.grammar)
    if compiled.grammar_ir is None:
        return
    plain = Table(without_habits(dialect.grammar))
    for text in samples(compiled.grammar_ir, 4):
        read = [fold(decode(table, [text], tools=SCHEMAS)) for table in (table_of(named(dialect)), plain)]
        assert read[0].items == read[1].items
