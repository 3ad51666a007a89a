"""Law: what a delta writer makes of deltas is what their events are projected to: wire events, or a body."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.apis.chat.answer import ChatCompletionBuilder
from antiphon.apis.chat.stream import ChatCompletionStream
from antiphon.apis.completions.accept import ChoiceLayout
from antiphon.apis.completions.answer import CompletionBuilder
from antiphon.apis.completions.infill import InfillBuilder, InfillStream
from antiphon.apis.completions.stream import CompletionStream
from antiphon.apis.envelope import Envelope, PresentationOptions, RenderedPrompt, UsageReports
from antiphon.apis.messages.answer import MessageBuilder
from antiphon.apis.messages.presentation import Presentation, ThinkingShown
from antiphon.apis.messages.stream import MessageStream
from antiphon.apis.ollama.answer import LineBuilder
from antiphon.apis.ollama.lines import chat_line, generate_line
from antiphon.apis.ollama.stream import LineStream
from antiphon.apis.responses.accept import ResponseContext, accept
from antiphon.apis.responses.schema import CreateResponse
from antiphon.apis.responses.stream import ResponseProjection
from antiphon.apis.wire import decode
from antiphon.core.accumulator import Accumulator
from antiphon.core.chunks import Candidate, Chunk, Token
from antiphon.core.events import Event
from antiphon.core.plain_tokens import DeltaEncoder
from antiphon.decode.decoder import Decoder
from antiphon.decode.ids import ids_by, openai_call_id
from antiphon.decode.table import Table
from antiphon.dialects.registry import find
from antiphon.run.drive import Client, Driver, Journal, Projection
from antiphon.run.endings import Ending
from antiphon.run.generation import GenerationRun, Interceptors
from tests.apis.ollama.support import lines
from tests.run.support import PROMPT, STOP, Speaker, request
from tests.search import examples

LAYOUT = ChoiceLayout(prompts=1, best_of=1, n=1)
TABLE = Table(find("hermes").grammar)
ENVELOPE = Envelope("chatcmpl-1", "m", 1_700_000_000, (RenderedPrompt("Hi", (5, 6)),))
PIECES = (
    " a",
    "b",
    "\n",
    " ",
    'é"',
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool",
    "\U0001f600",
)
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": " b"}}\n</tool_call>'


def response(**fields: Any) -> ResponseProjection:
    wire = {
        "model": "m",
        "input": "Hi",
        "tools": [{"type": "function", "name": "f", "parameters": {}}],
        **fields,
    }
    accepted = accept(decode(json.dumps(wire).encode(), CreateResponse), ResponseContext("resp_1", "alice"))
    return ResponseProjection(accepted, 1, lambda: 2.0)


PROJECTIONS: dict[str, Callable[[], Projection]] = {
    "chat": lambda: ChatCompletionStream(ENVELOPE, 1),
    "chat, hidden reasoning": lambda: ChatCompletionStream(ENVELOPE, 1, PresentationOptions(reasoning=())),
    "chat, details": lambda: ChatCompletionStream(
        ENVELOPE, 1, PresentationOptions(usage=UsageReports.EACH, token_ids=True, logprobs=1)
    ),
    "completions": lambda: CompletionStream(ENVELOPE, LAYOUT),
    "completions, details": lambda: CompletionStream(
        ENVELOPE, LAYOUT, PresentationOptions(usage=UsageReports.EACH, token_ids=True, logprobs=1)
    ),
    "infill": lambda: InfillStream(ENVELOPE, None),
    "responses": response,
    "responses, log probabilities": lambda: response(include=["message.output_text.logprobs"]),
    "messages": lambda: MessageStream(ENVELOPE, Presentation(thinking=ThinkingShown.ALL), str),
    "messages, hidden thinking": lambda: MessageStream(
        ENVELOPE, Presentation(thinking=ThinkingShown.SIGNATURE), str
    ),
    "chat, whole": lambda: ChatCompletionBuilder(ENVELOPE, 1),
    "chat, whole, log probabilities": lambda: ChatCompletionBuilder(
        ENVELOPE, 1, PresentationOptions(logprobs=1)
    ),
    "chat, whole, token ids": lambda: ChatCompletionBuilder(ENVELOPE, 1, PresentationOptions(token_ids=True)),
    "completions, whole": lambda: CompletionBuilder(
        ENVELOPE, LAYOUT, PresentationOptions(token_ids=True, logprobs=1)
    ),
    "infill, whole": lambda: InfillBuilder(ENVELOPE, None),
    "ollama": lambda: LineStream(ENVELOPE, lines(chat_line)),
    "ollama, log probabilities": lambda: LineStream(
        ENVELOPE, lines(generate_line, PresentationOptions(logprobs=1))
    ),
    "ollama, whole": lambda: LineBuilder(ENVELOPE, lines(chat_line, PresentationOptions(logprobs=1))),
    "messages, whole": lambda: MessageBuilder(ENVELOPE, Presentation(thinking=ThinkingShown.ALL), str),
}


class EventDriver(Driver):
    """Has an event made of each delta."""

    def delta_writer(self, choice: int, delta: type[Event]) -> None:
        """There is none."""


class OneGeneration:
    """A source."""

    def __init__(self, pieces: Iterable[str]) -> None:
        tokens = [
            Token(index, piece, -0.5, (Candidate(index + 1, "x", -1.5),))
            for index, piece in enumerate(pieces)
        ]
        said = [[Chunk(token.text, (token,))] for token in tokens]
        decoder = Decoder(TABLE, ids=ids_by(openai_call_id, 0, Random(0)))
        engine = Speaker([*said, [Chunk("", finish=STOP)]])
        self._run = GenerationRun(engine, request(), decoder, Interceptors(), Accumulator())

    async def run(self, output: Driver) -> None:
        output.set_prompts([PROMPT])
        await self._run.run(output, 0)

    def abandon(self) -> list[tuple[int, list[Event]]]:
        return [(0, self._run.abandon())]


class Kept(Client):
    """A client that keeps what it gets."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.body = b""

    def write(self, lines: list[bytes]) -> None:
        assert lines
        self.lines += lines

    def end(self, lines: list[bytes], body: Callable[[], bytes]) -> None:
        self.lines += lines
        self.body = body()


class Records(Journal):
    """A journal that opens late, and keeps what it records."""

    def __init__(self, *, needs_events: bool) -> None:
        self._needs_events = needs_events
        self.lines: list[bytes] = []
        self.events: list[Event] = []

    def open(self, stop: Callable[[Exception], None]) -> Awaitable[None]:
        return asyncio.sleep(0)

    def record(self, choice: int, events: Any, lines: list[bytes]) -> list[bytes]:
        self.events += events
        self.lines += lines
        return lines

    def delta_encoder(self, encode: DeltaEncoder) -> DeltaEncoder | None:
        def encode_delta(text: str, tokens: tuple[Token, ...]) -> bytes:
            self.lines.append(encode(text, tokens))
            return self.lines[-1]

        return None if self._needs_events else encode_delta

    async def close(self, ending: Ending, reason: BaseException | None, lines: list[bytes]) -> list[bytes]:
        self.lines += lines
        return lines


@pytest.mark.parametrize("name", PROJECTIONS)
@settings(max_examples=examples(100))
@given(
    st.lists(st.sampled_from(PIECES), max_size=12),
    st.booleans(),
    st.lists(st.sampled_from(PIECES), max_size=6),
)
async def test_a_delta_writer_writes_what_events_come_to(
    name: str, before: list[str], calls: bool, after: list[str]
) -> None:
    pieces = [*before, *(CALL if calls else ""), *after]

    async def answer(driver: type[Driver]) -> tuple[list[bytes], bytes]:
        client = Kept()
        await driver(OneGeneration(pieces), PROJECTIONS[name]()).run(client)
        return [line for line in client.lines if line], client.body

    assert await answer(Driver) == await answer(EventDriver)


@pytest.mark.parametrize("needs_events", [True, False])
async def test_a_journal_records_what_a_delta_writer_writes(needs_events: bool) -> None:
    pieces = [*"Some words.", "<think>", *"More", "</think>", *"The end."]

    async def recorded(driver: type[Driver]) -> Records:
        journal, client = Records(needs_events=needs_events), Kept()
        await driver(OneGeneration(pieces), response(), journal).run(client)
        assert client.lines == journal.lines
        return journal

    direct, by_events = await recorded(Driver), await recorded(EventDriver)
    if needs_events:
        assert direct.events == by_events.events
    else:
        assert direct.lines == by_events.lines
        assert len(direct.events) < len(by_events.events) / 2
