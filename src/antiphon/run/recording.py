"""Records generations for people who debug a template or a parser.

Nothing is recorded unless an option of the server requests it: then the `Observation` of a request has a
`record`, and the decoder of each of its generations is a `RecordingDecoder`, which keeps every chunk with
its events. `decoded_again` decodes recorded chunks again, with the same dialect or another one.

To add something to the record of an answer: here; `app/debug.py` shows it; `tests/http/test_debug.py`; the
table in `docs/page.md`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from antiphon.core.chunks import Chunk, Finish, FinishReason
from antiphon.core.events import Event
from antiphon.decode.decoder import Decoder, Start, start_after
from antiphon.decode.lexer import NEVER_PLAIN
from antiphon.decode.table import Table
from antiphon.dialects.dialect import TEXT, Dialect
from antiphon.dialects.registry import find
from antiphon.engines.engine import GenerationRequest
from antiphon.run.generation import AnswerDecoder

LOGPROBS = 5
"""The number of alternatives to each token whose log probabilities are recorded, if the engine returns
them."""

_WORDS = re.compile(r"(?<!^)(?=[A-Z])")

Step = tuple[Chunk, tuple[Event, ...]]
"""A chunk, and the events that it became."""


class DecoderSettings(Struct, frozen=True):
    """How an answer is read: by which dialect, with calls or without.

    `tail` is the end of the prompt that belongs to the answer: a template may have opened the reasoning. No
    stop string counts in the `least` first tokens.
    """

    dialect: str | None = None
    calls: bool = False
    tail: str = ""
    stop: tuple[str, ...] = ()
    stop_shown: bool = False
    least: int = 0
    tools: Mapping[str, Mapping[str, Any]] = {}


class GenerationRecord(Struct):
    """One generation: the request to the engine, and its results, chunk by chunk.

    `media` counts the media of the prompt, which are not recorded. `end` are the events of the end.
    """

    choice: int
    request: GenerationRequest
    media: int
    reading: DecoderSettings
    steps: list[Step] = field(default_factory=list)
    end: tuple[Event, ...] = ()


class RecordingDecoder:
    """Decodes as `decoder` does, and records it. See `AnswerDecoder`."""

    open_delta = None
    """No chunk is plain: the events of each are recorded."""
    plain = NEVER_PLAIN

    def __init__(self, decoder: AnswerDecoder, record: GenerationRecord) -> None:
        self._decoder = decoder
        self._record = record

    @property
    def stopped(self) -> bool:
        return self._decoder.stopped

    @property
    def in_reasoning(self) -> bool:
        return self._decoder.in_reasoning

    @property
    def can_end(self) -> bool:
        return self._decoder.can_end

    @property
    def completion_tokens(self) -> int:
        return self._decoder.completion_tokens

    @property
    def reasoning_tokens(self) -> int:
        return self._decoder.reasoning_tokens

    def count_plain(self, texts: Sequence[str]) -> None:
        """No chunk is plain."""

    def feed(self, chunk: Chunk) -> list[Event]:
        events = self._decoder.feed(chunk)
        self._record.steps.append((chunk, (*events,)))
        return events

    def finish(self, finish: Finish) -> list[Event]:
        events = self._decoder.finish(finish)
        self._record.end = (*events,)
        return events


def record_of(choice: int, request: GenerationRequest, reading: DecoderSettings) -> GenerationRecord:
    """The record of a generation that begins, without the content of media, which may be many megabytes."""
    prompt = replace(request.prompt, media=(), around=())
    return GenerationRecord(choice, replace(request, prompt=prompt), len(request.prompt.media), reading)


def decoded_again(
    reading: DecoderSettings, chunks: Iterable[Chunk], dialect: Dialect | None = None
) -> tuple[list[Step], tuple[Event, ...]]:
    """The events of recorded chunks: those of each chunk, and the last ones.

    They are decoded with this dialect, or that of the record. Raises EngineError if there is no such dialect.
    """
    chosen_dialect = None if reading.dialect is None else dialect or find(reading.dialect)
    grammar = TEXT if chosen_dialect is None else chosen_dialect.grammar
    table = Table(grammar if reading.calls else grammar.without_calls())
    start = start_after(table, reading.tail) if reading.tail else Start()
    decoder = Decoder(
        table,
        state=start.state,
        stop=reading.stop,
        include_stop=reading.stop_shown,
        least=reading.least,
        tools=reading.tools,
        call_prefix=start.call_prefix,
    )
    if start.mid_text:
        decoder.keep_space()
    steps: list[Step] = []
    finish = Finish(FinishReason.STOP)
    for chunk in chunks:
        steps.append((chunk, (*decoder.feed(chunk),)))
        finish = chunk.finish or finish
        if decoder.stopped:
            break
    return steps, (*decoder.finish(finish),)


def name_of(value: Struct) -> str:
    """The displayed name of an event or a constraint: `TextDelta` is `text_delta`."""
    return _WORDS.sub("_", type(value).__name__).lower()
