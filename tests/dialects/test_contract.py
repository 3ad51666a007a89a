"""Every dialect answers every case of the contract, however the text is cut."""

import gc
import random
import weakref
from typing import Any

import pytest

from antiphon.core.chunks import Chunk, Finish, FinishReason, Token
from antiphon.core.events import Event
from antiphon.core.items import FunctionCall, Message, OutputItem, Reasoning
from antiphon.decode.decoder import Decoder
from antiphon.decode.ids import ids_by
from antiphon.decode.table import Table
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.registry import DIALECTS, find
from tests.contracts.dialect import CASES, FOLDER, TOOLS, answers, table_of
from tests.laws import check, decode, fold
from tests.rows import every_row
from tests.search import share

MATRIX = [(dialect, case) for dialect in DIALECTS for case in CASES]
NAMES = [f"{dialect.names[0]}-{case}" for dialect, case in MATRIX]


def written(item: OutputItem, expected: dict[str, Any]) -> dict[str, Any]:
    """An item as the case files write it; an id only where one is expected."""
    match item:
        case Message():
            return {"text": item.text}
        case Reasoning():
            return {"reasoning": item.text}
        case FunctionCall():
            call: dict[str, Any] = {"call": item.name, "arguments": item.arguments}
            if item.status != "completed":
                call["status"] = item.status.value
            if "id" in expected:
                call["id"] = item.call_id
            return call


def without_tokens(table: Table, pieces: list[str], finish: Finish, **options: Any) -> list[Event]:
    decoder = Decoder(table, **options)
    events = [event for piece in pieces for event in decoder.feed(Chunk(piece))]
    return events + decoder.finish(finish)


def with_special_tokens(table: Table, text: str, finish: Finish, **options: Any) -> list[Event]:
    """Each marker is one token, as where it is a special token of the vocabulary."""
    markers = sorted(table.grammar.markers, key=len, reverse=True)
    pieces, rest = [], text
    while rest:
        marker = next((marker for marker in markers if rest.startswith(marker)), rest[0])
        pieces.append(marker)
        rest = rest[len(marker) :]
    return decode(table, pieces, finish, **options)


@pytest.mark.parametrize(("dialect", "case"), MATRIX, ids=NAMES)
def test_answers_the_case(dialect: Dialect, case: str) -> None:
    answer = answers(dialect.names[0])[case]
    assert answer, f"write the case [{case}] in tests/cases/{dialect.names[0]}.toml: {CASES[case]}"
    if reason := answer.get("not_applicable"):
        assert len(reason) > 10, "say why the case cannot occur"
        assert answer.keys() == {"not_applicable"}
        return
    table, text = table_of(dialect.names[0]), answer["output"]
    finish = Finish(FinishReason(answer.get("finish", "stop")))
    options = {"tools": TOOLS, "state": answer.get("state")}
    for events in (
        decode(table, [text], finish, ids=ids_by(dialect.ids), **options),
        decode(table, list(text), finish, ids=ids_by(dialect.ids), **options),
        with_special_tokens(table, text, finish, ids=ids_by(dialect.ids), **options),
        without_tokens(table, list(text), finish, ids=ids_by(dialect.ids), **options),
    ):
        items = fold(events).items
        wanted = [*answer["items"], *({} for _ in items)]
        short = [written(item, want) for item, want in zip(items, wanted, strict=False)]
        if "known_broken" in answer:
            assert short != answer["items"], "this works now: upgrade the answer"
        else:
            assert short == answer["items"]


@pytest.mark.parametrize("dialect", share(DIALECTS), ids=lambda dialect: dialect.names[0])
def test_arguments_that_are_cut_are_the_beginning_of_the_whole(dialect: Dialect) -> None:
    """Also where a closing marker, or the name of the next argument, is cut."""
    table = table_of(dialect.names[0])
    for case in ("single", "typed", "nested", "parallel"):
        text = answers(dialect.names[0])[case].get("output", "")
        whole = fold(decode(table, [text], tools=TOOLS)).calls
        for length in range(len(text)):
            events = decode(table, [text[:length]], Finish(FinishReason.LENGTH), tools=TOOLS)
            for cut, call in zip(fold(events).calls, whole, strict=False):
                assert call.arguments.startswith(cut.arguments) or cut.arguments[0] != "{", text[:length]


@pytest.mark.parametrize(("dialect", "case"), share(MATRIX), ids=share(NAMES))
def test_the_laws_hold_however_the_answer_is_cut(dialect: Dialect, case: str) -> None:
    answer = answers(dialect.names[0]).get(case, {})
    if "output" not in answer:
        return  # the test above says whether it may be so
    table, text = table_of(dialect.names[0]), answer["output"]
    rng = random.Random(text)
    places = [[rng.randrange(1000) for _ in range(6)] for _ in range(3)]
    check(table, text, *places, tools=TOOLS, state=answer.get("state"))


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.names[0])
def test_nothing_is_left_of_an_answer_for_the_garbage_collector(dialect: Dialect) -> None:
    """Neither if it is cut anywhere."""
    table = table_of(dialect.names[0])
    gc.disable()
    try:
        for case, answer in answers(dialect.names[0]).items():
            text = answer.get("output", "")
            for end in {len(text), *range(0, len(text), 7)}:
                decoder = Decoder(table, tools=TOOLS, state=answer.get("state"))
                left = weakref.ref(decoder._builder)
                for piece in text[:end]:
                    decoder.feed(Chunk(piece))
                decoder.finish(Finish(FinishReason.STOP if end == len(text) else FinishReason.LENGTH))
                del decoder
                assert left() is None, (case, text[:end])
    finally:
        gc.enable()


@pytest.mark.parametrize("dialect", [d for d in DIALECTS if "output" in answers(d.names[0])["single"]])
@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_a_call_that_ends_anywhere_is_shown_only_with_arguments(
    dialect: Dialect, reason: FinishReason
) -> None:
    """After its name and before its arguments nothing is shown: it is text, or, if it was cut, dropped."""
    answer, table = answers(dialect.names[0])["single"], table_of(dialect.names[0])
    text, finish = answer["output"], Finish(reason)
    for end in range(len(text)):
        shown = [
            [written(item, {}) for item in fold(decode(table, pieces, finish, **options)).items]
            for options in [{"tools": TOOLS, "state": answer.get("state")}]
            for pieces in ([text[:end]], list(text[:end]))
        ]
        assert shown[0] == shown[1]
        assert all(item.get("arguments", "{") for item in shown[0])
        assert sum("call" in item for item in shown[0]) <= 1


def test_every_case_file_belongs_to_a_dialect_and_every_answer_to_a_case() -> None:
    names = {dialect.names[0] for dialect in DIALECTS}
    files = {path.stem for path in FOLDER.glob("*.toml")}

    every_row(files, names, "the files of tests/cases/")
    for name in names:
        every_row(answers(name), CASES, f"tests/cases/{name}.toml")


def test_no_two_dialects_share_a_name() -> None:
    names = [name for dialect in DIALECTS for name in dialect.names]

    assert len(names) == len(set(names))


def test_special_tokens_are_tokens_of_the_text() -> None:
    events = with_special_tokens(
        Table(find("hermes").grammar), "<think>a</think>b", Finish(FinishReason.STOP)
    )

    assert [type(token) for event in events for token in event.tokens] == [Token] * 4
