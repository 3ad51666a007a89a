"""A marker around a call that is written twice counts once, in every dialect."""

from collections.abc import Iterator

import pytest

from antiphon.core.grammar import CallStart, Header, Span, SpanKind
from antiphon.core.items import FunctionCall, Message, OutputItem, Reasoning
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.registry import DIALECTS
from tests.contracts.dialect import TOOLS, answers, table_of
from tests.laws import check, decode, fold

each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.names[0])


def around_calls(dialect: Dialect) -> Iterator[str]:
    """The markers that begin calls or groups of them, and those that end them."""
    states = dialect.grammar.states
    for state in states.values():
        if not isinstance(state, Span) or state.kind is SpanKind.REASONING:
            continue
        for marker, to in state.on.items():
            target = states[to]
            begins = isinstance(target, CallStart) and not isinstance(target, Header)
            is_call = isinstance(target, Span) and target.kind in (SpanKind.OPENING, SpanKind.CALL)
            if begins or is_call or state.kind in (SpanKind.CALL, SpanKind.MARKUP):
                yield marker.strip()


def short(item: OutputItem) -> object:
    """The text of an item, or the call that it is: its raw text and its id may differ."""
    if isinstance(item, FunctionCall):
        return item.name, item.arguments, item.status
    assert isinstance(item, Message | Reasoning)
    return item.text


@each_dialect
@pytest.mark.parametrize("sample", ["single", "parallel", "text_after"])
def test_a_marker_that_is_written_twice_counts_once(dialect: Dialect, sample: str) -> None:
    name = dialect.names[0]
    answer = answers(name)[sample]
    if "output" not in answer:
        return
    if isinstance(dialect.grammar.states[dialect.grammar.start], Header):
        return  # messages begin and end with these, and may be empty
    text, options = answer["output"], {"tools": TOOLS, "state": answer.get("state")}
    expected = fold(decode(table_of(name), [text], **options)).items
    tags = {marker for marker in around_calls(dialect) if marker.endswith((">", "]")) and len(marker) > 1}
    for marker in (each for each in tags if each in text):
        doubled = text.replace(marker, marker * 2)
        read = fold(check(table_of(name), doubled, **options)).items
        assert [short(each) for each in read] == [short(each) for each in expected], doubled
