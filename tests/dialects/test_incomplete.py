"""What a client sees while a call is not complete: of answers that are cut, and of prose with a marker in it.

Both are laws over all dialects; their samples are those of the contract.
"""

from collections.abc import Iterator

import pytest

from antiphon.core.chunks import Chunk, Finish, FinishReason, Token
from antiphon.core.grammar import Span, SpanKind
from antiphon.core.items import FunctionCall, Message, OutputItem, Reasoning, Status
from antiphon.decode.decoder import PIECE, Decoder
from antiphon.decode.event_builder import MAX_SKIPPED
from antiphon.decode.lexer import Lexer
from antiphon.decode.readers import MIN_CUT_MARKER
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.registry import DIALECTS
from tests.contracts.dialect import TOOLS, answers, table_of
from tests.laws import decode, fold
from tests.search import CI

CUT = Finish(FinishReason.LENGTH)
STEP = 3 if CI else 1
"""Characters between two places where an answer is cut."""
SAMPLES = (
    "single",
    "parallel",
    "empty_arguments",
    "text_before",
    "text_between",
    "text_after",
    "reasoning_then_call",
)

MOST_HELD = MAX_SKIPPED + 8
"""Characters of prose after a marker that may be held back because a call could still follow."""
PROSE = (
    " tag opens a block, and the reader waits until a closing one follows. Then it goes on as before." * 4,
    " `name` tag, or rather `other`: whoever writes it closes it." * 6,
    "标签打开一个块。读者等待。" * 20,
)

each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.names[0])


def shown(items: tuple[OutputItem, ...], kind: type[Message | Reasoning]) -> str:
    return "".join("".join(item.text.split()) for item in items if type(item) is kind)


@each_dialect
@pytest.mark.parametrize("sample", SAMPLES)
def test_an_answer_that_is_cut_shows_the_beginning_of_what_the_whole_answer_shows(
    dialect: Dialect, sample: str
) -> None:
    """Wherever it is cut: no marker, and no call without its name. A single character may yet be text."""
    name = dialect.names[0]
    answer = answers(name)[sample]
    if "output" not in answer:
        return
    table, text, options = table_of(name), answer["output"], {"tools": TOOLS, "state": answer.get("state")}
    whole = fold(decode(table, [text], **options))
    for length in range(len(text) % STEP, len(text), STEP):
        # By characters, too, but not always: it takes long.
        for pieces in ([text[:length]], list(text[:length]))[: 1 + (length % 5 == 0)]:
            cut = fold(decode(table, pieces, CUT, **options))
            for kind in (Message, Reasoning):
                seen = shown(cut.items, kind)
                assert any(
                    shown(whole.items, kind).startswith(seen[: len(seen) - extra])
                    for extra in range(MIN_CUT_MARKER)
                ), (text[:length], seen)
            for call, expected in zip(cut.calls, whole.calls, strict=False):
                assert call.name == expected.name, text[:length]
                assert call.status is Status.INCOMPLETE or call.arguments == expected.arguments
            assert len(cut.calls) <= len(whole.calls)


def openers(dialect: Dialect) -> Iterator[str]:
    """The markers that end plain text."""
    for state in dialect.grammar.states.values():
        if isinstance(state, Span) and state.kind in (SpanKind.TEXT, SpanKind.REASONING):
            yield from (*state.on, *state.peek, *state.habits.on)


@each_dialect
@pytest.mark.parametrize("prose", PROSE)
def test_prose_with_a_marker_is_not_held_back(dialect: Dialect, prose: str) -> None:
    for marker in sorted(set(openers(dialect))):
        written = f"The {marker}{prose}"
        decoder = Decoder(table_of(dialect.names[0]), state=dialect.grammar.text, tools=TOOLS)
        seen = 0
        for index, char in enumerate(written):
            seen += sum(len(event.raw) for event in decoder.feed(Chunk(char, (Token(index, char),))))
            assert index + 1 - seen <= len(marker) + MOST_HELD, (marker, written[seen : index + 1])


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.STOP])
def test_text_that_only_begins_like_a_marker_is_kept_where_the_model_stops(reason: FinishReason) -> None:
    """It meant it, if it stopped there. If it was cut, nobody knows."""
    output = fold(decode(table_of("hermes"), ["Write <tool_"], Finish(reason), tools=TOOLS))

    assert output.text == ("Write <tool_" if reason is FinishReason.STOP else "Write")
    assert not any(isinstance(item, FunctionCall) for item in output.items)


def searched(dialect: Dialect, text: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The characters in which a decoder looks for markers, when the whole text comes in one chunk."""
    lengths: list[int] = []
    find = Lexer.find
    monkeypatch.setattr(Lexer, "find", lambda self, text: (lengths.append(len(text)), find(self, text))[1])
    decode(table_of(dialect.names[0]), [text], tools=TOOLS)
    monkeypatch.undo()
    return sum(lengths)


@each_dialect
def test_a_chunk_of_any_size_is_read_in_linear_time(
    dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    for marker in sorted(dialect.grammar.markers):
        text = f"{marker} " * (2 * PIECE // len(marker))
        few, many = (searched(dialect, text * times, monkeypatch) for times in (1, 4))
        assert many <= 6 * few, marker
