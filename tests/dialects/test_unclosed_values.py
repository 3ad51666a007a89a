"""A value whose closing tag is missing ends where the next argument begins or its call ends, in every dialect."""

from collections.abc import Iterator

import pytest

from antiphon.core.grammar import Span, SpanKind, Value
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.registry import DIALECTS
from tests.contracts.dialect import TOOLS, answers, table_of
from tests.dialects.test_doubled_markers import short
from tests.laws import check, decode, fold

UNTOLD = {"minicpm5"}
"""Where a marker of the next argument is HTML, too: only the end of the call ends a value that is not closed."""


def closing(dialect: Dialect) -> Iterator[str]:
    """The markers that close values and lead back between the arguments."""
    states = dialect.grammar.states
    for state in states.values():
        for marker, to in state.on.items() if isinstance(state, Value) else ():
            target = states[to]
            if isinstance(target, Span) and target.kind is SpanKind.CALL and not marker.startswith("]]"):
                yield marker


CLOSING = [(dialect, marker) for dialect in DIALECTS for marker in closing(dialect)]
each_closing = pytest.mark.parametrize(
    ("dialect", "marker"), CLOSING, ids=lambda each: each.names[0] if isinstance(each, Dialect) else None
)


@each_closing
@pytest.mark.parametrize("sample", ["single", "parallel", "typed"])
def test_a_closing_marker_that_is_missing_changes_nothing(dialect: Dialect, marker: str, sample: str) -> None:
    name = dialect.names[0]
    answer = answers(name).get(sample, {})
    if "output" not in answer or marker not in answer["output"]:
        return
    text, options = answer["output"], {"tools": TOOLS, "state": answer.get("state")}
    expected = fold(decode(table_of(name), [text], **options)).items
    parts = text.split(marker)
    for number in range(1, len(parts)):
        before, after = marker.join(parts[:number]), marker.join(parts[number:])
        if dialect.names[0] in UNTOLD and after.lstrip().startswith("<param"):
            continue
        # The line goes with the tag.
        missing = (before.removesuffix("\n") if after.startswith("\n") else before) + after
        read = fold(check(table_of(name), missing, **options)).items
        assert [short(each) for each in read] == [short(each) for each in expected], missing


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.names[0])
def test_the_last_tag_of_an_answer_may_lack_its_last_character(dialect: Dialect) -> None:
    name = dialect.names[0]
    answer = answers(name)["single"]
    if not answer.get("output", "").endswith(">"):
        return
    text, options = answer["output"], {"tools": TOOLS, "state": answer.get("state")}
    expected = fold(decode(table_of(name), [text], **options)).items
    read = fold(check(table_of(name), text[:-1], **options)).items
    assert [short(each) for each in read] == [short(each) for each in expected]
