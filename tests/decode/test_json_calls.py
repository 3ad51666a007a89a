"""Calls written as JSON: by fields or by key, with the model's ids, and headers that end where JSON begins."""

import re
from random import SystemRandom

import pytest

from antiphon.core.grammar import (
    AcceptedNames,
    Grammar,
    JsonArguments,
    JsonCalls,
    KeyedCalls,
    Name,
    Span,
    SpanKind,
    State,
)
from antiphon.decode.event_builder import MAX_PROVISIONAL
from antiphon.decode.headers import MAX_HEADER, mistral_name, tagged_key
from antiphon.decode.ids import kimi_call_id, mistral_call_id
from antiphon.decode.table import Table
from tests.laws import check, fold

TEXT = Span(SpanKind.TEXT, on={"@": "call"})
DONE = Span(SpanKind.MARKUP, on={"@": "call", "#": "text"})


def table(**states: State) -> Table:
    return Table(Grammar({"text": TEXT, "done": DONE, **states}))


def calls(using: Table, text: str, **options: object) -> list[tuple[str, str, str]]:
    output = fold(check(using, text, [3, 7, 11], **options))
    return [(call.name, call.arguments, call.status.value) for call in output.calls]


keyed = table(call=KeyedCalls(then="done"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('@{"f": {"a": 1}}#', [("f", '{"a": 1}', "completed")]),
        ('@[{"f": {}}, {"g": {"b": []}}]#', [("f", "{}", "completed"), ("g", '{"b": []}', "completed")]),
        ('@{"f": {}, "g": {}}', [("f", "{}", "completed"), ("g", "{}", "completed")]),
        ('@{"f": null}', [("f", "{}", "completed")]),
        ('@{"f": [1]}#', [("f", "[1]", "incomplete")]),
        ('@{"f": {"a": ', [("f", '{"a": ', "incomplete")]),
        ('@{"": {}}', []),
        ("@{}", []),
        ("@[]", []),
        ('@{"f', []),
    ],
)
def test_a_key_is_a_call(text: str, expected: list[tuple[str, str, str]]) -> None:
    assert calls(keyed, text) == expected


def test_a_key_that_is_no_call_is_text() -> None:
    declared = table(call=KeyedCalls(then="done", names=AcceptedNames.DECLARED))

    assert calls(declared, '@{"f": {}}', tools={"f": {}}) == [("f", "{}", "completed")]
    assert fold(check(declared, '@{"f": {}}')).text == '@{"f": {}}'
    endless = '@{"' + "x" * (MAX_PROVISIONAL + 1)
    assert fold(check(keyed, endless)).text == endless


def test_the_models_id_counts_if_it_comes_before_the_name() -> None:
    using = table(call=JsonCalls(then="done", ids=("tool_call_id",)))
    text = '@[{"tool_call_id": "7", "name": "f"}, {"name": "g", "tool_call_id": "8"}, {"tool_call_id": 9, "name": "h"}]'

    assert [call.call_id for call in fold(check(using, text)).calls] == ["7", "call_1", "call_2"]


def test_an_opening_may_have_other_text_read_by_another_state() -> None:
    using = table(
        call=Span(SpanKind.OPENING, peek={"{": "json"}, otherwise="name"),
        json=JsonCalls(then="done"),
        name=Name(on={":": "arguments"}, peek={"{": "arguments"}, parse=mistral_name),
        arguments=JsonArguments(then="done"),
    )

    assert calls(using, '@ {"name": "f"}@g{"a": 1}@h: {}') == [
        ("f", "{}", "completed"),
        ("g", '{"a": 1}', "completed"),
        ("h", "{}", "completed"),
    ]
    for prose in ("@ home", "@", "a @ b", "@" + "x" * (MAX_HEADER + 1), "@no name{}"):
        assert fold(check(using, prose)).text == prose


def test_tokens_inside_of_headers_are_kept() -> None:
    grammar = Grammar({"text": Span(SpanKind.TEXT, on={"<a>": "text"})}, tokens=("<b>",))

    assert grammar.markers == {"<a>", "<b>"}


def test_mistral_headers() -> None:
    assert mistral_name(" f ") == ("f", None)
    assert mistral_name("f[CALL_ID]a1B2c3D4e") == ("f", "a1B2c3D4e")
    assert mistral_name("f[CALL_ID]short") == ("f", None)  # the templates would refuse it later
    assert mistral_name("two words") is None


def test_keys_with_types() -> None:
    form = tagged_key("</k>", "<t>", "</t>")

    assert form("a</k>\n") == ("a", None)
    assert form("a</k>\n<t>string</t>\n") == ("a", "string")
    assert form("</k>") is None


def test_ids() -> None:
    assert re.fullmatch("[A-Za-z0-9]{9}", mistral_call_id(SystemRandom(), "f", 0))
    assert kimi_call_id(SystemRandom(), "f", 3) == "functions.f:3"
