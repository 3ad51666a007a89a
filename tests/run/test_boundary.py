"""What crosses the boundary of the bounded processes: every demand, in every dialect, and every type of it.

A plan that is made in another process must be the one that would have been made in this one.
"""

import re
import typing
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any

import msgspec
import pytest

from antiphon.constrain.compile import OutputRequirements
from antiphon.core.constraint import (
    Constraint,
    Format,
    Gbnf,
    GrammarFormat,
    JsonObject,
    JsonSchema,
    OneOf,
    Regex,
    StructuralTag,
    TagFormat,
)
from antiphon.core.errors import AntiphonError, RequestError
from antiphon.core.grammar import (
    Grammar,
    HeaderSpelling,
    HeaderSpellings,
    KeySpelling,
    Span,
    SpanKind,
    SpelledParser,
)
from antiphon.core.turn import CallMode, Function, Hosted, ToolChoice
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.registry import DIALECTS
from antiphon.engines.engine import Capabilities
from antiphon.run import bounded, documents, media
from antiphon.run.bounded import BoundedPool
from antiphon.run.check import CheckedParts, violations
from antiphon.run.constraints import (
    ConstraintPlan,
    Demands,
    constraint_out,
    demands_of,
    is_whole,
    plan_after,
    plan_for,
    plan_to_check,
    plans_after,
    ways_out,
)
from antiphon.run.tool_search import matching_places
from tests.endless import echo, unsendable
from tests.search import share

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
HOSTED = Hosted("mcp", "call_tool", {"server_label": "maps"}, label="maps")
TOOLS = (
    Function("get_weather", "The weather", CITY, strict=True),
    Function("now", None, {}),
    Function("find", None, CITY, hosted=HOSTED),
)
CHOICES = {
    "strict": ToolChoice(),
    "required": ToolChoice(CallMode.REQUIRED),
    "named": ToolChoice(CallMode.REQUIRED, frozenset({"now"}), named=True),
    "allowed, required": ToolChoice(CallMode.REQUIRED, frozenset({"now", "find"})),
    "allowed": ToolChoice(CallMode.AUTO, frozenset({"now", "find"})),
    "single": ToolChoice(CallMode.AUTO, parallel=False),
}
FORMATS: dict[str, Format | None] = {
    "no format": None,
    "schema": JsonSchema(CITY),
    "object": JsonObject(),
    "regex": Regex("[a-z]+"),
    "choice": OneOf(("yes", "no")),
    "grammar": GrammarFormat('root ::= "a"'),
    "structural tag": TagFormat({"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}),
}
DEMANDS = [
    *(OutputRequirements(TOOLS, choice) for choice in CHOICES.values()),
    *(OutputRequirements((), ToolChoice(), each) for each in FORMATS.values() if each),
    *(OutputRequirements(TOOLS, ToolChoice(), each) for each in FORMATS.values() if each),
]
NOTATIONS = ((Gbnf,), (StructuralTag,), ())


def named(dialect: Dialect) -> str:
    return dialect.names[0]


def made(plan: ConstraintPlan) -> Any:
    """A plan that can be compared: pickles of equal demands need not be equal bytes."""
    demands = demands_of(plan)
    return plan.constraint, plan.has_unenforced, demands.enforced, demands.schemas, demands.form


def planned(required: OutputRequirements, grammar: Grammar, able: Capabilities) -> Any:
    try:
        return made(plan_for(required, grammar, able))
    except RequestError as error:
        return error


@pytest.mark.parametrize("dialect", share(DIALECTS, 3), ids=named)
async def test_each_dialect_and_demand_is_planned_there_as_it_is_here(dialect: Dialect) -> None:
    pool = BoundedPool()
    grammars = (dialect.grammar, dialect.calls, dialect.grammar.without_calls())  # as `TokenModel` has them
    reasoning = [
        n for n, s in dialect.grammar.states.items() if isinstance(s, Span) and s.kind is SpanKind.REASONING
    ]
    place = DIALECTS.index(dialect)
    for number, required in enumerate(DEMANDS):
        # So each pair of a dialect, a demand, a grammar and a notation comes at least once.
        notation = NOTATIONS[(place + number) % 3]
        grammar, able = grammars[(place // 3 + number // 3) % 3], Capabilities(constraints=notation)
        state = reasoning[0] if reasoning and grammar is dialect.grammar and number % 2 else None
        demand = msgspec.structs.replace(required, state=state)
        expected = planned(demand, grammar, able)
        if isinstance(expected, RequestError):
            with pytest.raises(RequestError) as refused:
                await pool.run("tools", plan_for, demand, grammar, able)
            assert vars(refused.value) == vars(expected)
            continue
        plan = await pool.run("tools", plan_for, demand, grammar, able)
        assert made(plan) == expected
        assert await pool.run("tools", plan_after, plan, "") is not None
        answer = CheckedParts((("tools", "get_weather", "{}"),), "a", "format")
        assert await pool.run("tools", violations, plan, answer) == violations(plan, answer)


async def test_demands_on_another_server_are_planned_there_as_they_are_here() -> None:
    for required in DEMANDS:
        there = await BoundedPool().run("tools", plan_to_check, required)
        assert made(there) == made(plan_to_check(required))


# The law: a value of each type that is sent comes back as it was.

CALLS = (
    *(plan_for, plan_after, plan_to_check, violations),
    *(plans_after, ways_out, constraint_out, is_whole),
    *(documents.document_of, documents._chunks, media.check_audio, media.open_image, media.draw_page),
    matching_places,
)
"""The functions that are run there."""


def types_in(annotation: Any, seen: set[type]) -> None:
    """All types of Antiphon's that a value of this type may hold."""
    for each in typing.get_args(annotation):
        types_in(each, seen)
    if (
        isinstance(annotation, type)
        and annotation.__module__.startswith("antiphon")
        and annotation not in seen
    ):
        seen.add(annotation)
        for each in _fields(annotation).values():
            types_in(each, seen)


def _fields(kind: type) -> Mapping[str, Any]:
    return {} if issubclass(kind, Enum) else typing.get_type_hints(kind)


def sample(annotation: Any) -> Any:
    """The simplest value of a type."""
    origin = typing.get_origin(annotation) or annotation
    if origin in (typing.Union, UnionType):
        return sample(typing.get_args(annotation)[0])
    if origin is Callable:
        return echo
    if not isinstance(origin, type):  # anything
        return "any"
    if issubclass(origin, Enum):
        return next(iter(origin))
    if not origin.__module__.startswith("antiphon"):
        return {} if issubclass(origin, Mapping) else origin()
    return origin(*map(sample, _fields(origin).values()))


def sent() -> list[type]:
    """Every type of what these functions take and return."""
    found: set[type] = {Demands}
    for call in CALLS:
        for annotation in typing.get_type_hints(call).values():
            types_in(annotation, found)
    for each in (
        SpelledParser,
        KeySpelling,
        HeaderSpelling,
        HeaderSpellings,
    ):  # behind the protocols of parsers
        types_in(each, found)
    return sorted(found, key=lambda each: each.__qualname__)


@pytest.mark.parametrize("kind", sent(), ids=lambda kind: kind.__qualname__)
async def test_each_type_that_is_sent_comes_back(kind: type) -> None:
    value = kind if kind in typing.get_args(Constraint) else sample(kind)
    assert await BoundedPool().run("a", echo, value) == value


def test_what_is_run_there_is_known_here() -> None:
    """A new piece of work has to be added to `CALLS`."""
    run = re.compile(r"pool\.run\(\s*[^,]+,\s*(\w+)")
    texts = [path.read_text() for path in Path(bounded.__file__).parents[1].rglob("*.py")]
    found = {name for text in texts for name in run.findall(text)}
    assert found == {call.__name__ for call in CALLS}


def _errors(kind: type[AntiphonError]) -> Iterator[type[AntiphonError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _errors(each)


@pytest.mark.parametrize("kind", [*_errors(AntiphonError)], ids=lambda kind: kind.__name__)
async def test_each_error_comes_back_with_all_that_it_says(kind: type[AntiphonError]) -> None:
    error = kind.__new__(kind, "No.")
    AntiphonError.__init__(error, "No.", param="tools", code="no")
    found = await BoundedPool().run("a", echo, error)
    assert (type(found), vars(found)) == (kind, vars(error))


async def test_an_error_that_cannot_be_sent_is_told_in_words() -> None:
    with pytest.raises(RuntimeError, match="UnsendableError: wrong"):
        await BoundedPool().run("a", unsendable)
