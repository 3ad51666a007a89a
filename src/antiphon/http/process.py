"""One of several processes of a server, started by `antiphon.supervisor`.

It serves as `http/server.py` does, with these differences. It takes connections of a socket that all
processes have (`accept.py`). SIGINT, which the supervisor sends to all, drains the server; SIGTERM ends this
process only: it accepts no more connections, closes idle ones, and finishes its answers. What concerns the
server, such as its metrics, it asks all processes for, over the channel to the supervisor
(`app/siblings.py`).
"""

import asyncio
import math
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from types import FrameType
from typing import IO, Any

import msgspec
import structlog
from msgspec.structs import replace as replaced

from antiphon.app.app import App
from antiphon.app.debug import KEPT, RECORD, STATUS
from antiphon.app.llama_server import RUNNING
from antiphon.app.metrics import ServerState
from antiphon.app.siblings import Call, Given, Result
from antiphon.compose import Runtime, compose
from antiphon.config import Settings
from antiphon.core.errors import AntiphonError
from antiphon.http.accept import FRESH_SECONDS, Acceptor, CountedTasks
from antiphon.http.models import (
    ADAPTERS,
    DRAIN,
    HEALTH,
    LOAD_ADAPTER,
    REPLICAS,
    UNLOAD_ADAPTER,
    follow_siblings,
)
from antiphon.http.observing import SNAPSHOTS
from antiphon.http.resuming import Recording, Resumer
from antiphon.http.server import (
    HttpServer,
    check_tls,
    possible_connections,
    run,
    tune,
    usual_greeting,
)
from antiphon.log import configure
from antiphon.processes import channel as messages
from antiphon.processes.channel import Answer, Answers, Ask, Channel, Composed, Ended, Failed, Ready, Refusal
from antiphon.processes.listening import url_of
from antiphon.processes.start import Start, read
from antiphon.processes.sums import encode
from antiphon.processes.table import Share, Shares, State, Table

CALLS: Mapping[str, Call[Any, Any]] = {
    call.name: call
    for call in (
        ADAPTERS,
        SNAPSHOTS,
        HEALTH,
        STATUS,
        KEPT,
        RECORD,
        RUNNING,
        DRAIN,
        REPLICAS,
        LOAD_ADAPTER,
        UNLOAD_ADAPTER,
    )
}
"""What the processes of a server ask each other."""
REPLY_SECONDS = 2.0
"""How much longer than the processes the supervisor may take, before a process answers for itself alone."""
SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2})
"""They wait until a process can handle them."""

log = structlog.get_logger()


class SiblingError(AntiphonError):
    """Another process of the server has refused this."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message, param=refusal.param, code=refusal.code)
        self.status = refusal.status
        self.type = refusal.type


class Processes:
    """The processes of this server: see `Siblings`."""

    def __init__(self, start: Start, channel: Channel) -> None:
        self.place = start.place
        self.count = start.count
        self.server = start.server
        self._channel = channel
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[list[Answer]]] = {}

    async def ask(self, app: App, call: Call[Given, Result], given: Given) -> list[Result]:
        """What all processes answer. If the supervisor does not, what this one answers."""
        number = next(self._numbers)
        self._asked[number] = waiting = asyncio.get_running_loop().create_future()
        body = msgspec.msgpack.encode(given)
        self._channel.send(Ask(number, call.name, body, call.seconds))
        answers: list[Answer] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(call.seconds + REPLY_SECONDS):
                answers = await waiting
        self._asked.pop(number, None)
        for answer in answers:
            if answer.refusal is not None:
                raise SiblingError(answer.refusal)
        results = [msgspec.msgpack.decode(answer.body, type=call.gives) for answer in answers]
        return results or [await call.run(app, given)]

    def answered(self, answers: Answers) -> None:
        """The supervisor has collected the answers to a question."""
        waiting = self._asked.get(answers.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answers.answers)


async def answer(app: App, asked: messages.Call) -> Answer:
    """What this process answers to a call."""
    call = CALLS[asked.name]
    try:
        given = msgspec.msgpack.decode(asked.body, type=call.takes)
        result = await call.run(app, given)
    except AntiphonError as error:
        refusal = Refusal(error.status, error.type, error.message, error.param, error.code)
        return Answer(asked.number, refusal=refusal)
    except Exception:
        log.exception("a call of another process failed", call=asked.name)
        unknown = AntiphonError()
        refusal = Refusal(unknown.status, unknown.type, unknown.message, None, None)
        return Answer(asked.number, refusal=refusal)
    return Answer(asked.number, msgspec.msgpack.encode(result))


class ProcessServer(HttpServer):
    """The server of one of several processes."""

    def __init__(self, runtime: Runtime, share: Share, streams: socket.socket | None = None) -> None:
        limits = runtime.app.settings.limit
        super().__init__(runtime, possible_connections(limits), lambda: share.is_crowded)
        self._share = share
        self._leaving = False
        self.server_state.tasks = CountedTasks(share)
        self._streams = streams
        if streams is not None:
            self.config.app = self._recording = Recording(self.config.app)  # type: ignore[arg-type]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections of the shared socket."""
        await self.lifespan.startup()
        [listener] = sockets or []
        protocol: Any = self.config.http_protocol_class
        make = partial(
            protocol,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        if self._streams is not None:
            self._recording.passage = Resumer(make, self._streams).passage
        self.servers = [Acceptor(listener, self._share, make, self.config.ssl)]  # type: ignore[list-item]
        self.started = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal: SIGTERM is for this process only."""
        if sig == signal.SIGTERM and not self.should_exit:
            self.leave()
        else:
            super().handle_exit(sig, frame)

    def tell(self, line: str) -> None:
        """The supervisor tells the operator."""

    def leave(self) -> None:
        """Finish the running answers, and leave new ones to the other processes."""
        self._leaving = True
        self.runtime.worker.drain()
        self.stop()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let running answers end; a process that leaves accepts nothing meanwhile."""
        if self._leaving:
            for acceptor in self.servers:
                acceptor.close()
            await asyncio.sleep(2 * FRESH_SECONDS)  # a request may be on its way on a new connection
            for connection in [*self.server_state.connections]:
                connection.shutdown()  # once its answer has ended, if there is one
        await super().shutdown(sockets)


def main(pipe: IO[bytes]) -> int:
    """Serve until a signal. The exit code."""
    start = read(pipe, Start)
    for descriptor in start.descriptors:
        os.set_inheritable(descriptor, False)
    tune()
    settings = _own(start.settings, start)
    configure(settings.log_level, settings.log_format, start.place)
    end = socket.socket(fileno=start.channel)
    channel = Channel(end, messages.ToProcess)
    shares = Shares(Table(start.table, start.bells), start.row, start.links)
    try:
        check_tls(settings)
        runtime = compose(settings, siblings=Processes(start, channel), shares=shares)
        streams = None if start.streams is None else socket.socket(fileno=start.streams)
        server = ProcessServer(runtime, shares.load, streams)
    except AntiphonError as error:
        end.sendall(messages.encoded(Failed(error.message)))
        return 1
    with (
        server.taking_signals(),
        socket.socket(fileno=start.listener) as listener,
        asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner,
    ):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return runner.run(_serve(server, listener, channel, shares, start.bell))


def _own(settings: Settings, start: Start) -> Settings:
    """The options of one process: what is divided among them is in its part."""
    limits, processes = settings.limit, start.count
    own = math.ceil(limits.work_processes / processes)
    return replace(settings, limit=replaced(limits, work_processes=own))


async def _serve(
    server: ProcessServer, listener: socket.socket, channel: Channel, shares: Shares, bell: int
) -> int:
    app = server.runtime.app
    listening = asyncio.create_task(_listen(server, channel))
    shares.listen(bell)

    def on_ready() -> None:
        shares.load.enter(State.READY)
        lines = [*usual_greeting(app, url_of(listener, tls=server.config.is_ssl))]
        following = asyncio.create_task(follow_siblings(app))
        following.add_done_callback(lambda _: channel.send(Ready(lines)))

    try:
        await run(server, listener, on_ready)
        channel.send(Ended(encode(app.metrics.snapshot(ServerState()))))
    except AntiphonError as error:
        channel.send(Failed(error.message))
        return 1
    finally:
        listening.cancel()  # which closes the channel, after what was sent
        await asyncio.gather(listening, return_exceptions=True)
    return 0


async def _listen(server: ProcessServer, channel: Channel) -> None:
    """Answer what the supervisor asks, for as long as there is one."""
    app, siblings = server.runtime.app, server.runtime.app.siblings
    assert isinstance(siblings, Processes)
    answering: set[asyncio.Task[None]] = set()

    async def reply(asked: messages.Call) -> None:
        channel.send(await answer(app, asked))

    async with channel:
        channel.send(Composed())
        async for message in channel.messages():
            if isinstance(message, Answers):
                siblings.answered(message)
            elif isinstance(message, messages.Call):
                task = asyncio.create_task(reply(message))
                answering.add(task)
                task.add_done_callback(answering.discard)
    log.warning("the supervisor has ended: this process does, too")
    server.leave()
