"""Common parts of tests of answers: turns, chunks, engines that push them, outputs that keep events."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from antiphon.core.accumulator import Accumulator, Output
from antiphon.core.chunks import Chunk, Finish, FinishReason, Token
from antiphon.core.errors import AntiphonError
from antiphon.core.events import Event, ReasoningDelta, TextDelta
from antiphon.core.items import Message, Role, TextPart
from antiphon.core.plain_tokens import DeltaWriter
from antiphon.core.turn import Turn
from antiphon.engines.engine import Engine, GenerationRequest, Load, ModelCard, Prompt, Receiver, Work
from antiphon.engines.scripted import ScriptedEngine
from antiphon.render.renderer import CHATML
from antiphon.run.answer_source import AnswerSource
from antiphon.run.model import Model
from antiphon.run.replay import ReplayContext
from antiphon.run.token_model import TokenModel
from tests.server import served_model

LONGEST_WAIT = 60.0
"""Seconds until a condition that must come true counts as missed: a busy machine begins a process in many."""

STOP = Finish(FinishReason.STOP)
PROMPT = Prompt("Q:", (1, 2))


async def until(condition: Callable[[], Any]) -> None:
    """Wait for a condition that comes true by itself."""
    async with asyncio.timeout(LONGEST_WAIT):
        while not condition():
            await asyncio.sleep(0.001)


def turn(text: str = "Hi", **options: Any) -> Turn:
    return Turn("scripted", (Message(Role.USER, (TextPart(text),)),), **options)


def chunk(text: str, *ids: int, finish: Finish | None = None, **more: Any) -> Chunk:
    """A chunk with these tokens, of which the last has the text; without any, one of its own."""
    ids = ids or (sum(map(ord, text)),)
    tokens = (*(Token(token, "") for token in ids[:-1]), Token(ids[-1], text))
    return Chunk(text, tokens, finish, **more)


def chunks(text: str) -> list[Chunk]:
    """A chunk for each character, the last with the end."""
    *first, last = text
    return [*map(chunk, first), chunk(last, finish=STOP)]


def request(**options: Any) -> GenerationRequest:
    return GenerationRequest(PROMPT, **{"max_tokens": 100, **options})


def fold(events: Iterable[Event]) -> Output:
    """The answer that these events make."""
    folded = Accumulator()
    folded.extend(events)
    return folded.output


def raw(events: Iterable[Event]) -> str:
    """The model's text of these events."""
    return "".join(event.raw for event in events)


# Engines


class _Tokenizer:
    """What both engines have: every character is a token."""

    card = ModelCard("speaker", 100_000, CHATML)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def tokenize(self, pieces: Sequence[str]) -> list[int]:
        return [ord(char) for piece in pieces for char in piece]

    async def token_texts(self, ids: Sequence[int]) -> list[str]:
        return [*map(chr, ids)]

    async def detokenize(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


class Speaker(_Tokenizer):
    """An engine that pushes these steps, one generation after the other; an error is a failure.

    `asked` is what it was asked for. `over` counts the generations that ended, or were cancelled.
    """

    def __init__(self, *answers: Iterable[Sequence[Chunk] | AntiphonError]) -> None:
        self._answers = [deque(answer) for answer in answers]
        self.asked: list[GenerationRequest] = []
        self.over = 0

    @property
    def load(self) -> Load:
        return Load(running=len(self.asked) - self.over)

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        self.asked.append(request)
        return _Speech(self, self._answers[len(self.asked) - 1], receiver)


class _Speech:
    """One generation of a speaker: a step in each turn of the event loop."""

    def __init__(
        self, engine: Speaker, steps: deque[Sequence[Chunk] | AntiphonError], receiver: Receiver
    ) -> None:
        self._engine = engine
        self._steps = steps
        self._receiver = receiver
        self._over = False
        asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        if self._over or not self._steps:
            return
        said = self._steps.popleft()
        if isinstance(said, AntiphonError):
            self.cancel()
            self._receiver.fail(said)
            return
        if said[-1].finish is not None:
            self.cancel()
        asyncio.get_running_loop().call_soon(self._step)
        self._receiver.push(list(said))

    def cancel(self) -> None:
        if not self._over:
            self._over = True
            self._engine.over += 1


class Handheld(_Tokenizer):
    """An engine whose generations are pushed by the test: `receivers` are theirs, in order."""

    def __init__(self) -> None:
        self.asked: list[GenerationRequest] = []
        self.receivers: list[Receiver] = []
        self.working: set[int] = set()

    @property
    def load(self) -> Load:
        return Load(running=len(self.working))

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        number = len(self.asked)
        self.asked.append(request)
        self.receivers.append(receiver)
        self.working.add(number)
        return _Held(self, number)


class _Held:
    def __init__(self, engine: Handheld, number: int) -> None:
        self._engine = engine
        self._number = number

    def cancel(self) -> None:
        self._engine.working.discard(self._number)


async def scripted(*lines: dict[str, Any], **options: Any) -> TokenModel:
    """A model that plays these lines."""
    return await served(ScriptedEngine(lines, **options))


async def served(engine: Engine) -> TokenModel:
    return await served_model(engine, dialect="hermes").load()


# What keeps events


class Heard:
    """An output that keeps its events: `batches` in their order. `hold` and `resume` as a client does.

    `leave_after` is the number of events after which it stops the answer.
    """

    def __init__(self, leave_after: float = float("inf")) -> None:
        self.paused = False
        self.prompts: list[Prompt] = []
        self.batches: list[tuple[int, list[Event]]] = []
        self.enough = asyncio.Event()
        self.calls_begun = 0
        self._leave_after = leave_after
        self._waiting: list[Callable[[], None]] = []
        self._on_pause: set[Callable[[], None]] = set()

    @property
    def has_begun(self) -> bool:
        return bool(self.batches)

    def set_prompts(self, prompts: Sequence[Prompt]) -> None:
        self.prompts += prompts

    def push(self, choice: int, events: list[Event]) -> None:
        self.batches.append((choice, [*events]))
        if len(self.events) >= self._leave_after:
            self.enough.set()

    def delta_writer(self, choice: int, delta: type[TextDelta | ReasoningDelta]) -> DeltaWriter:
        return lambda text, tokens: self.push(choice, [delta(text, text, tokens)])

    async def calls_begin(self, count: int) -> None:
        self.calls_begun = count

    def on_pause(self, call: Callable[[], None]) -> None:
        self._on_pause.add(call)

    def on_resume(self, call: Callable[[], None]) -> None:
        self._waiting.append(call)

    def hold(self) -> None:
        self.paused = True
        while self._on_pause:
            self._on_pause.pop()()

    def resume(self) -> None:
        self.paused = False
        while self._waiting:
            self._waiting.pop(0)()

    @property
    def events(self) -> list[Event]:
        return [event for _, events in self.batches for event in events]

    @property
    def choices(self) -> dict[int, list[Event]]:
        """The events of each choice."""
        said: dict[int, list[Event]] = {}
        for choice, events in self.batches:
            said.setdefault(choice, []).extend(events)
        return said


async def answered(
    asked: Turn | Sequence[Turn],
    model: Model,
    context: ReplayContext = ReplayContext(),  # noqa: B008 (frozen)
    leave_after: float = float("inf"),
) -> Heard:
    """The result of these turns. The output stops the answer after this number of events."""
    heard = Heard(leave_after)
    turns = [asked] if isinstance(asked, Turn) else asked
    running = asyncio.create_task(AnswerSource(turns, model, context).run(heard))
    leaving = asyncio.create_task(heard.enough.wait())
    try:
        await asyncio.wait((running, leaving), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        for task in (running, leaving):
            task.cancel()
        await asyncio.gather(running, leaving, return_exceptions=True)
    return heard
