"""Text whose space is its own."""

from antiphon.core.grammar import Grammar, JsonCalls, Space, Span, SpanKind
from antiphon.decode.table import Table
from tests.laws import check, decode, fold

TABLE = Table(
    Grammar(
        {
            "text": Span(
                SpanKind.TEXT,
                on={"<c>": "call"},
                first={"<t>": "thought"},
                peek={"{": "call"},
                space=Space.TEXT,
            ),
            "thought": Span(SpanKind.REASONING, on={"</t>": "text"}),
            "call": JsonCalls(then="called"),
            "called": Span(SpanKind.MARKUP, on={"</c>": "text"}),
        }
    )
)
CALL = '<c>{"name": "now", "arguments": {}}</c>'


def texts(written: str) -> list[str | None]:
    check(TABLE, written)
    return [getattr(item, "text", None) for item in fold(decode(TABLE, [written])).items]


def test_space_next_to_markers_is_text() -> None:
    assert texts(f"<t> Hm. </t>\n\nLet me look.\n\n{CALL} \nDone. ") == [
        *("Hm.", "\n\nLet me look.\n\n", None, " \nDone. "),
    ]


def test_space_alone_is_none() -> None:
    assert texts(f"<t>Hm.</t>\n\n{CALL}\n{CALL}\n") == ["Hm.", None, None]


def test_much_space_is_not_held_back() -> None:
    assert texts(f"a{' ' * 5000}{CALL}") == [f"a{' ' * 5000}", None]


def test_a_first_character_starts_a_call_after_space() -> None:
    assert texts('<t>Hm.</t>\n{"name": "now", "arguments": {}}</c>') == ["Hm.", None]
