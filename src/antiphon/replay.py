"""`antiphon replay`: decodes the recorded text of a model again, with the same dialect or with another.

The record is that of `GET /v1/debug/ID`, from a server, or from a file: a bug report with a record can be
examined without the model.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.chat import WITHOUT_CONTROL_CHARACTERS, ChatClient
from antiphon.core.chunks import Chunk, Finish, FinishReason, Token
from antiphon.core.errors import AntiphonError
from antiphon.core.events import Event
from antiphon.dialects.registry import load
from antiphon.run.recording import DecoderSettings, decoded_again, name_of


class ReplayError(AntiphonError):
    """This is not a record of an answer."""


class _Prompt(Struct):
    text: str
    messages: list[Any] | None = None


class _Token(Struct):
    id: int
    text: str


class _Finish(Struct):
    reason: FinishReason
    stop: str | int | None = None


class ShownEvent(Struct):
    """An event, with the fields that are compared and shown."""

    type: str
    raw: str = ""
    text: str | None = None
    name: str | None = None
    why: str | None = None


class _Step(Struct):
    text: str
    tokens: list[_Token] = []
    finish: _Finish | None = None
    events: list[ShownEvent] = []


class Generation(Struct):
    """A generation of a record."""

    prompt: _Prompt
    reading: DecoderSettings
    text: str
    steps: list[_Step] = []
    end: list[ShownEvent] = []


class Record(Struct):
    """The record of an answer, with the fields that are decoded and shown."""

    id: str
    generations: list[Generation]
    unmet: list[str] = []


def read_record(answer: str, client: ChatClient) -> Record:
    """The record in a file of that name, or else the server's record of the answer with that id.

    Raises AntiphonError.
    """
    path = Path(answer)
    data = path.read_bytes() if path.is_file() else client.get(f"/debug/{quote(answer, safe='')}")
    try:
        return msgspec.json.decode(data, type=Record)
    except msgspec.DecodeError as error:
        raise ReplayError(f"{answer} is not a record of an answer: {error}.") from error


def lines(record: Record, dialect: str | None = None) -> Iterator[str]:
    """A report on a record: each generation decoded again, with this dialect if one is given.

    Raises EngineError if there is no such dialect.
    """
    for number, generation in enumerate(record.generations, 1):
        yield f"# {record.id}, generation {number} of {len(record.generations)}"
        yield from _section("prompt", _prompt(generation))
        yield from _section("raw text", generation.text)
        events, description = _decoded(generation, dialect)
        yield f"## events, {description}"
        yield from map(_line, _joined(events))
        yield ""
        yield from _section("verdicts", "\n".join(event.why for event in events if event.why) or "none")
    if record.unmet:
        yield from _section("unmet demands", "\n".join(record.unmet))


def _section(title: str, text: str) -> Iterator[str]:
    yield from (f"## {title}", text, "")


def _prompt(generation: Generation) -> str:
    messages = generation.prompt.messages
    if messages is None:
        return generation.prompt.text
    return msgspec.json.format(msgspec.json.encode(messages)).decode()


def _decoded(generation: Generation, dialect: str | None) -> tuple[list[ShownEvent], str]:
    """The events, and how they were decoded."""
    recorded = [event for step in generation.steps for event in step.events] + generation.end
    if generation.prompt.messages is not None:
        return recorded, "as they were recorded: the server had already separated the parts of this answer"
    reading = generation.reading
    if dialect is not None:
        reading = replace(reading, dialect=dialect)
    chosen_dialect = None if dialect is None else load(dialect)
    steps, end = decoded_again(reading, map(_chunk, generation.steps), chosen_dialect)
    events = [
        _shown(event) for event in (*(event for _, step_events in steps for event in step_events), *end)
    ]
    dialect_name = reading.dialect or "text"
    if dialect is not None and dialect != generation.reading.dialect:
        return events, f"decoded as {dialect_name} instead of {generation.reading.dialect}"
    is_same = [(event.type, event.raw) for event in events] == [(event.type, event.raw) for event in recorded]
    return events, f"decoded as {dialect_name}, " + (
        "the same as recorded" if is_same else "not the same as recorded"
    )


def _chunk(step: _Step) -> Chunk:
    finish = None if step.finish is None else Finish(step.finish.reason, step.finish.stop)
    return Chunk(step.text, tuple(Token(token.id, token.text) for token in step.tokens), finish)


def _shown(event: Event) -> ShownEvent:
    fields = {name: getattr(event, name, None) for name in ("text", "name", "why")}
    return ShownEvent(name_of(event), event.raw, **fields)


def _joined(events: Sequence[ShownEvent]) -> Iterator[tuple[ShownEvent, int]]:
    """Neighbouring deltas of one kind as one, with their number."""
    for (type_, delta), group in groupby(events, lambda event: (event.type, event.text is not None)):
        group_events = [*group]
        if delta:
            text = "".join(event.text or "" for event in group_events)
            yield ShownEvent(type_, "".join(event.raw for event in group_events), text), len(group_events)
        else:
            yield from ((event, 1) for event in group_events)


def _line(event_and_count: tuple[ShownEvent, int]) -> str:
    event, count = event_and_count
    times = f" x{count}" if count > 1 else ""
    details = [value for value in (event.name, event.why) if value]
    text = event.raw if event.text is None else event.text
    return " ".join([f"  {event.type}{times}", *details, *([_quoted(text)] if text else [])])


def _quoted(text: str) -> str:
    """The text on one line."""
    return msgspec.json.encode(text).decode()


def replay(answer: str, client: ChatClient, dialect: str | None, out: TextIO) -> None:
    """Print an answer, decoded again. Raises AntiphonError."""
    out.writelines(
        line.translate(WITHOUT_CONTROL_CHARACTERS) + "\n"
        for line in lines(read_record(answer, client), dialect)
    )
