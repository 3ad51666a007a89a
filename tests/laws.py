"""The laws that every decoding keeps, for tests to check: see `antiphon.core.events`."""

import itertools
import json
from collections.abc import Iterable, Sequence

from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon.core.accumulator import Accumulator, Output
from antiphon.core.chunks import Chunk, Finish, FinishReason, Token
from antiphon.core.events import (
    ArgumentsDelta,
    CallStarted,
    Event,
    Finished,
    Malformed,
    Markup,
    ReasoningDelta,
    TextDelta,
)
from antiphon.core.items import Status
from antiphon.core.json_scanner import JsonScanner
from antiphon.decode.decoder import Decoder
from antiphon.decode.table import Table

STOP = Finish(FinishReason.STOP)


def decode(table: Table, pieces: Iterable[str], finish: Finish = STOP, **options: object) -> list[Event]:
    """All events of a generation in these pieces, one token each."""
    options.setdefault("ids", lambda name, index: f"call_{index}")
    decoder = Decoder(table, **options)  # type: ignore[arg-type]
    events: list[Event] = []
    for index, piece in enumerate(pieces):
        events += decoder.feed(Chunk(piece, (Token(index, piece),)))
    return events + decoder.finish(finish)


def fold(events: Iterable[Event]) -> Output:
    """The full answer."""
    folding = Accumulator()
    for event in events:
        folding.push(event)
    return folding.output


def essence(events: Iterable[Event]) -> list[Event]:
    """The events without what depends on the chunking: the ends of deltas, and the tokens."""
    plain = [replace(event, tokens=()) for event in merge(events)]
    return [replace(e, usage=None) if isinstance(e, Finished) else e for e in plain]


def check(table: Table, text: str, *cuts: Sequence[int], **options: object) -> list[Event]:
    """Decode `text` whole, by characters, and with each of the cuts; check every law; return the merged events."""
    whole = decode(table, [text], **options)
    for pieces in (list(text), *(cut(text, each) for each in cuts or [()])):
        events = decode(table, pieces, **options)
        assert essence(events) == essence(whole)
        assert "".join(event.raw for event in events) == text
        assert [token.id for event in events for token in event.tokens] == list(range(len(pieces)))
        assert shown_tokens(events) == visible_pieces(events, pieces)
        assert fold(events).items == fold(whole).items
        assert isinstance(events[-1], Finished)
        assert events[-1].usage.completion_tokens == len(pieces)
        check_arguments(events)
        for call in fold(events).calls:
            if call.status is Status.COMPLETED:
                assert isinstance(json.loads(call.arguments), dict)
    return essence(whole)


def check_arguments(events: Iterable[Event]) -> None:
    """Arguments are the beginning of an object, of whole characters, up to a verdict on them."""
    scanner, broken = JsonScanner(only_object=True), False
    for event in events:
        match event:
            case CallStarted():
                scanner, broken = JsonScanner(only_object=True), False
            case Malformed(arguments=True):
                broken = True
            case ArgumentsDelta(text=text) if not broken:
                out: list[str] = []
                assert scanner.feed(text, 0, out) == len(text), text
                assert "".join(out) == text


def shown_tokens(events: Iterable[Event]) -> set[int]:
    """The tokens of visible text."""
    return {token.id for event in events if isinstance(event, TextDelta) for token in event.tokens}


def visible_pieces(events: Iterable[Event], pieces: Sequence[str]) -> set[int]:
    """The pieces with visible text, alone or together with other text."""
    owners = [index for index, piece in enumerate(pieces) for _ in piece]
    seen, offset = set(), 0
    for event in events:
        if isinstance(event, TextDelta):
            seen.update(owners[offset : offset + len(event.raw)])
        offset += len(event.raw)
    return seen


def cut(text: str, cuts: Sequence[int]) -> list[str]:
    """`text` in pieces, cut at these offsets."""
    borders = sorted({0, len(text), *(offset % (len(text) + 1) for offset in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(borders)]


def model_text(alphabet: Sequence[str]) -> st.SearchStrategy[str]:
    """Text of pieces that matter to a grammar, mixed with arbitrary text."""
    return st.lists(st.sampled_from(alphabet) | st.text(max_size=3), max_size=25).map("".join)


cuts = st.lists(st.integers(0, 400), max_size=12)


def merge(events: Iterable[Event]) -> list[Event]:
    """Join neighbouring deltas, and neighbouring markup, of the same kind.

    What is left is the same for every chunking of the same model text.
    """
    merged: list[Event] = []
    for event in events:
        last = merged[-1] if merged else None
        if isinstance(event, TextDelta | ReasoningDelta | ArgumentsDelta) and type(last) is type(event):
            assert last is not None
            joined = {"text": last.text + event.text}
        elif isinstance(event, Markup) and isinstance(last, Markup):
            joined = {}
        else:
            merged.append(event)
            continue
        merged[-1] = replace(last, raw=last.raw + event.raw, tokens=last.tokens + event.tokens, **joined)
    return merged
