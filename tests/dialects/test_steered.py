"""Where an answer that is steered may end: laws over all dialects. Their samples are those of the contract."""

import pytest

from antiphon.core.chunks import Chunk, Finish, FinishReason, Token
from antiphon.core.events import Malformed
from antiphon.core.items import Message, Reasoning, Status
from antiphon.decode.decoder import Decoder
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.registry import DIALECTS
from tests.contracts.dialect import TOOLS, answers, table_of
from tests.dialects.test_incomplete import SAMPLES, STEP, shown
from tests.laws import decode, fold

STEERED = Finish(FinishReason.STEERED)
PROSE = "Rome is a town, and older than it looks; so is the road to it"

each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.names[0])


def may_end(dialect: Dialect, text: str, state: str | None) -> list[bool]:
    """Whether the answer may end after each character."""
    decoder = Decoder(table_of(dialect.names[0]), tools=TOOLS, state=state)
    places = []
    for index, char in enumerate(text):
        decoder.feed(Chunk(char, (Token(index, char),)))
        places.append(decoder.can_end)
    return places


@each_dialect
@pytest.mark.parametrize("sample", SAMPLES)
def test_all_that_was_begun_is_whole(dialect: Dialect, sample: str) -> None:
    """No call is cut or lost, no marker is shown, and nothing is malformed that is not malformed in the whole."""
    name = dialect.names[0]
    answer = answers(name)[sample]
    if "output" not in answer:
        return
    table, text, options = table_of(name), answer["output"], {"tools": TOOLS, "state": answer.get("state")}
    events = decode(table, [text], **options)
    whole = fold(events)
    places = may_end(dialect, text, answer.get("state"))
    broken = sum(isinstance(event, Malformed) for event in events)
    for length in range(1 + len(text) % STEP, len(text) + 1, STEP):
        if not places[length - 1]:
            continue
        ended = decode(table, list(text[:length]), STEERED, **options)
        items = fold(ended)
        assert sum(isinstance(event, Malformed) for event in ended) <= broken, text[:length]
        assert [(call.name, call.arguments) for call in items.calls] == [
            (call.name, call.arguments) for call in whole.calls[: len(items.calls)]
        ]
        assert all(call.status is Status.COMPLETED for call in items.calls), text[:length]
        for kind in (Message, Reasoning):
            assert shown(whole.items, kind).startswith(shown(items.items, kind)), text[:length]


@each_dialect
def test_a_text_may_end_soon(dialect: Dialect) -> None:
    """At any character but those that a marker may begin with, which are few."""
    places = may_end(dialect, PROSE, dialect.grammar.text)[8:]
    assert all(any(places[index : index + 3]) for index in range(len(places) - 3))
    assert sum(places) > 0.8 * len(places)


@each_dialect
@pytest.mark.parametrize("sample", ["parallel", "single"])
def test_no_call_is_cut(dialect: Dialect, sample: str) -> None:
    """In the arguments of a call an answer never ends, and after the last one it may."""
    answer = answers(dialect.names[0])[sample]
    if "output" not in answer:
        return
    text = answer["output"]
    places = may_end(dialect, text, answer.get("state"))
    for city in ("Rome", "CET"):
        at = text.find(city)
        assert at < 0 or not any(places[at : at + len(city)])
