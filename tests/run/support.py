"""What the tests of this folder share: engines that do as they are told, a projection, a store that goes away."""

import json
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any

from antiphon.core.chunks import Chunk, Finish, FinishReason, Token
from antiphon.core.errors import AntiphonError, StoreError
from antiphon.core.events import Event, Finished, TextDelta, TextEnded
from antiphon.core.items import Message, Role, TextPart
from antiphon.core.turn import Turn
from antiphon.engines.engine import Engine, Generation, ModelCard, Prompt
from antiphon.engines.scripted import ScriptedEngine
from antiphon.run.model import Model
from antiphon.run.service import Service
from antiphon.store.records import ItemRecord, ResponseStatus
from antiphon.store.store import Store

STOP = Finish(FinishReason.STOP)
PROMPT = Prompt("Q:", (1, 2))


def turn(text: str = "Hi", **options: Any) -> Turn:
    return Turn("scripted", (Message(Role.USER, (TextPart(text),)),), **options)


def chunk(text: str, *ids: int, finish: Finish | None = None, **more: Any) -> Chunk:
    """A chunk with these tokens, of which the last stands for the text; without any, one of its own."""
    ids = ids or (sum(map(ord, text)),)
    tokens = (*(Token(token, "") for token in ids[:-1]), Token(ids[-1], text))
    return Chunk(text, tokens, finish, **more)


def chunks(text: str) -> list[Chunk]:
    """A chunk for each character, the last with the end."""
    *first, last = text
    return [*map(chunk, first), chunk(last, finish=STOP)]


def generation(**options: Any) -> Generation:
    return Generation(PROMPT, **{"max_tokens": 100, **options})


class Speaker:
    """An engine that says these batches, one generation after the other. `asked` is what it was asked for."""

    card = ModelCard("speaker", 1000)

    def __init__(self, *answers: Iterable[Sequence[Chunk] | Exception]) -> None:
        self._answers = [list(answer) for answer in answers]
        self.asked: list[Generation] = []
        self.closed = 0

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def tokenize(self, text: str) -> list[int]:
        return [ord(char) for char in text]

    async def detokenize(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    async def generate(self, generation: Generation) -> AsyncGenerator[list[Chunk], None]:
        self.asked.append(generation)
        try:
            for said in self._answers[len(self.asked) - 1]:
                if isinstance(said, Exception):
                    raise said
                yield list(said)
        finally:
            self.closed += 1


async def scripted(*lines: dict[str, Any], **options: Any) -> Model:
    """A model that plays these lines."""
    return await served(ScriptedEngine(lines, **options))


async def served(engine: Engine) -> Model:
    service = Service(engine, names=("scripted",), dialect="hermes")
    await service.start()
    return service.model("scripted")


class Diary:
    """A projection that writes one line for each delta of text, as simple as may be."""

    def __init__(self) -> None:
        self.status = ResponseStatus.IN_PROGRESS
        self.done = 0
        self.text = ""
        self._number = 0

    def _line(self, **fields: Any) -> bytes:
        line = json.dumps({"n": self._number, **fields}).encode()
        self._number += 1
        return line

    def begin(self) -> list[bytes]:
        return [self._line(begins=True)]

    def count_prompt(self, tokens: int) -> None:
        self.prompt_tokens = tokens

    def push(self, events: list[Event]) -> list[bytes]:
        lines = []
        for event in events:
            match event:
                case TextDelta(text):
                    self.text += text
                    lines.append(self._line(text=text))
                case TextEnded():
                    self.done += 1
                    lines.append(self._line(item=self.text))
                case Finished(reason):
                    lines.append(self._line(ends=reason))
        return lines

    def _end(self, status: ResponseStatus, **fields: Any) -> list[bytes]:
        self.status = status
        return [self._line(status=status, **fields)]

    def finish(self) -> list[bytes]:
        return self._end(ResponseStatus.COMPLETED)

    def fail(self, error: Exception) -> list[bytes]:
        told = error.message if isinstance(error, AntiphonError) else "?"
        return self._end(ResponseStatus.FAILED, error=told)

    def cancel(self) -> list[bytes]:
        return self._end(ResponseStatus.CANCELLED)

    def body(self) -> bytes:
        return json.dumps({"status": self.status, "text": self.text}).encode()

    def output(self) -> tuple[ItemRecord, ...]:
        return (ItemRecord("item", "message", self.text.encode(), 0.0),) if self.text else ()


class Outage:
    """A store that can be taken away: `away` refuses all, `writes` counts what came to it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.away = False
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        part = getattr(self._store, name)
        return _Part(self, name, part) if name in ("responses", "log", "jobs") else part

    async def close(self) -> None:
        """Whoever made the store closes it: several workers may share it."""


class _Part:
    def __init__(self, outage: Outage, name: str, part: Any) -> None:
        self._outage = outage
        self._name = name
        self._part = part

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._part, name)

        async def call(*args: Any) -> Any:
            self._outage.calls.append(f"{self._name}.{name}")
            if self._outage.away:
                raise StoreError
            return await method(*args)

        return call
