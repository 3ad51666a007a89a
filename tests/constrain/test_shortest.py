"""Law: from any place of any answer that fits a form, the form is ended by a way of known length."""

from collections.abc import Iterator
from math import isinf
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.constrain.analysis import without_unused_rules
from antiphon.constrain.compile import OutputRequirements, compile_constraint
from antiphon.constrain.grammar_ir import Alternation, GrammarIR
from antiphon.constrain.growth import Farthest, growth_in, growth_of
from antiphon.constrain.matcher import Matcher, matches
from antiphon.constrain.shortest import Shortest
from antiphon.constrain.way_out import WaysOut
from antiphon.core.constraint import Format, GrammarFormat, JsonObject, JsonSchema, OneOf, Regex
from antiphon.core.errors import RequestError
from antiphon.core.turn import CallMode, ToolChoice
from antiphon.dialects.registry import DIALECTS, find
from tests.constrain.language import Language
from tests.constrain.sampler import Sampler
from tests.constrain.schemas import SCHEMAS
from tests.constrain.test_dialects import TOOLS
from tests.constrain.test_json_schema import schemas
from tests.search import CI, share

FORMATS: dict[str, Format] = {
    "object": JsonObject(),
    "regex": Regex("(a|bc)*[0-9]{3,}(x|yyyyyyyyyy)"),
    "choice": OneOf(("yes", "no", "certainly not, whatever you say")),
    "grammar": GrammarFormat('root ::= "(" root ")" root | ""'),
}
TEXTS = 2 if CI else 5


def faults(grammar_ir: GrammarIR, random: Random, texts: int = TEXTS) -> Iterator[str]:
    """What does not hold of the ways out at the places of some texts of this grammar."""
    shortest, farthest = Shortest(grammar_ir.rules), Farthest(grammar_ir.rules)
    whole, ways = growth_of(grammar_ir, farthest), WaysOut(grammar_ir.rules, shortest)
    sampler, language = Sampler(grammar_ir, random), Language(grammar_ir)
    for _ in range(texts):
        text = sampler.draw()
        matcher, bound, growth = Matcher(grammar_ir), _bound(grammar_ir, farthest), whole
        looks = {random.randrange(len(text) + 1) for _ in range(3)}
        for place, char in enumerate(text[:300]):
            if place in looks:  # as the server does, when the bound has become too high
                rest_grammar = without_unused_rules(matcher.residual())
                bound, growth = _bound(rest_grammar, farthest), growth_of(rest_grammar, farthest)
            matcher.feed(char)
            bound += growth_in(growth, char)
            rest = matcher.residual().start
            size = shortest.size(rest)
            if size > bound:
                yield f"{size} bytes after {text[: place + 1]!r}, not {bound}"
            if place % 7 and place + 1 not in looks:
                continue
            way = shortest.text(rest)
            if text[: place + 1] + way not in language:
                yield f"{way!r} does not end {text[: place + 1]!r}"
            if len(way.encode()) != size:
                yield f"{way!r} has not {size} bytes"
            yield from _narrow(ways, Sampler(ways.of(rest)[0], random).draw(), rest, grammar_ir, way)


def _narrow(ways: WaysOut, drawn: str, rest: Any, grammar_ir: GrammarIR, way: str) -> Iterator[str]:
    narrow, longest = ways.of(rest)
    if not matches(GrammarIR(rest, grammar_ir.rules), drawn):
        yield f"{drawn!r} is not in the form"
    if len(drawn.encode()) > longest:
        yield f"{drawn!r} has more than {longest} bytes"
    if not matches(narrow, way):
        yield f"{way!r} is no way out"


def _bound(grammar_ir: GrammarIR, farthest: Farthest) -> int:
    start = grammar_ir.start
    options = start.options if isinstance(start, Alternation) else (start,)
    return max(int(size) for size in map(farthest.size, options) if not isinf(size))


def grammar_of(
    format_: Format | None, dialect: str = "hermes", tools: Any = (), must: bool = False
) -> GrammarIR:
    choice = ToolChoice(CallMode.REQUIRED) if must else ToolChoice()
    required = OutputRequirements(tools, choice, format_)
    grammar_ir = compile_constraint(required, find(dialect).grammar).whole
    assert grammar_ir is not None
    return grammar_ir


@pytest.mark.parametrize("name", share(SCHEMAS))
def test_every_schema_is_ended_from_every_place(name: str) -> None:
    grammar_ir = grammar_of(JsonSchema(SCHEMAS[name]))
    assert not [*faults(grammar_ir, Random(0))]


ENDLESS = {"type": "object", "properties": {"next": {"$ref": "#/$defs/endless"}}, "required": ["next"]}
DEAD_ENDS: dict[str, Any] = {
    "member": {"type": "object", "properties": {"a": {"const": 1}, "b": {"$ref": "#/$defs/endless"}}},
    "element": {"type": "array", "items": {"$ref": "#/$defs/endless"}},
    "alternative": {"anyOf": [{"$ref": "#/$defs/endless"}, {"type": "boolean"}]},
}


@pytest.mark.parametrize("name", DEAD_ENDS)
def test_what_has_no_end_is_not_begun(name: str) -> None:
    grammar_ir = grammar_of(JsonSchema({**DEAD_ENDS[name], "$defs": {"endless": ENDLESS}}))
    matcher = Matcher(grammar_ir)
    for begun in ('{"b":', '[{"next":', '{"next":'):
        assert not Matcher(grammar_ir).feed(begun)
    assert matcher.feed({"member": '{"a":1}', "element": "[]", "alternative": "true"}[name])
    assert not [*faults(grammar_ir, Random(0))]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_ended_from_every_place(name: str) -> None:
    assert not [*faults(grammar_of(FORMATS[name]), Random(0))]


@pytest.mark.parametrize("dialect", share([each.names[0] for each in DIALECTS]))
def test_a_call_is_ended_from_every_place(dialect: str) -> None:
    try:
        grammar_ir = grammar_of(None, dialect, TOOLS, must=True)
    except AssertionError:  # no calls
        return
    assert not [*faults(grammar_ir, Random(0), 1)]


@given(schemas(), st.randoms(use_true_random=False))
def test_any_schema_is_ended_from_every_place(schema: Any, random: Random) -> None:
    try:
        grammar_ir = grammar_of(JsonSchema(schema, strict=False))
    except (RequestError, AssertionError):
        return
    assert not [*faults(grammar_ir, random, 1)]
