"""What the tests of steering share: an engine that stops where it is told to, and a client on a WebSocket."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from antiphon.core.chunks import Chunk
from antiphon.core.errors import EngineError
from antiphon.engines.engine import GenerationRequest, Receiver, Work
from antiphon.engines.script import Line, answer_of
from antiphon.engines.scripted import ScriptedEngine
from tests.response_invariants import TERMINAL, check
from tests.server import Running

Event = dict[str, Any]


class Halting(ScriptedEngine):
    """Writes the next of `lines`, the last one for ever; the first generation halts after `after` chunks."""

    def __init__(self, **options: Any) -> None:
        super().__init__([], **options)
        self.lines: list[Line] = []
        self.halted = asyncio.Event()
        self.go = asyncio.Event()
        self.working = 0
        """Generations that are not over."""
        self._after = -1

    def says(self, *outputs: str, after: int | None = None, fails: int | None = None) -> None:
        """What is written next, and where the first halts, and fails; None: nowhere."""
        self.lines = [Line(output, split="chars", fail_after=fails) for output in outputs]
        self.halted, self.go = asyncio.Event(), asyncio.Event()
        self._after = -1 if after is None else after
        self.seen.clear()

    async def reached(self) -> None:
        """Wait until it has halted."""
        async with asyncio.timeout(10):
            await self.halted.wait()

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        self.seen.append(request)
        line = self.lines.pop(0) if len(self.lines) > 1 else self.lines[0]
        after, self._after = self._after, -1
        return _Halting(self, answer_of(line).play(request), receiver, after)


class _Halting:
    """A generation that waits after so many chunks, unless they are fewer than 0."""

    def __init__(self, engine: Halting, chunks: Iterator[Chunk], receiver: Receiver, after: int) -> None:
        self._engine, self._chunks, self._receiver, self._left = engine, chunks, receiver, after
        self.over = False
        engine.working += 1
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._play()
        except EngineError as error:
            self._receiver.fail(error)
        finally:
            self._engine.working -= 1

    async def _play(self) -> None:
        for chunk in self._chunks:
            await asyncio.sleep(0)
            if not self._left:
                self._engine.halted.set()
                await self._engine.go.wait()
            self._left -= 1
            if self.over:
                return
            self._receiver.push([chunk])

    def cancel(self) -> None:
        self.over = True
        self._task.cancel()


class Talk:
    """A client on a WebSocket: sends messages, and reads events, which it sorts by their lanes."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def create(self, given: Any, **more: Any) -> None:
        message = {"type": "response.create", "model": "scripted", "input": given, **more}
        await self.socket.send(json.dumps(message))

    async def steer(self, response_id: str, given: Any, **more: Any) -> None:
        message = {"type": "response.steer", "previous_response_id": response_id, "input": given, **more}
        await self.socket.send(json.dumps(message))

    async def next(self) -> Event:
        async with asyncio.timeout(10):
            event: Event = json.loads(await self.socket.recv())
        return event

    async def until(self, type_: str) -> list[Event]:
        """The events up to the first of this type."""
        events = [await self.next()]
        while events[-1]["type"] != type_:
            events.append(await self.next())
        return events

    async def response(self, begun: list[Event] | None = None) -> Event:
        """The response that the next events make, whole; events of steering among them are left out."""
        events = [*(begun or ())]
        while not events or events[-1]["type"] not in TERMINAL.values():
            event = await self.next()
            if not event["type"].startswith("response.steer."):
                events.append(event)
        response: Event = check([json.dumps(event).encode() for event in events])
        return response


@asynccontextmanager
async def talking(server: Running, **headers: str) -> AsyncIterator[Talk]:
    """A client that is connected."""
    url = server.url.replace("http", "ws") + "/v1/responses"
    async with connect(url, additional_headers=headers, close_timeout=1) as socket:
        yield Talk(socket)
