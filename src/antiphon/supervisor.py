"""Several processes as one server: starts them behind one socket, and starts those again that die.

The supervisor serves nothing, and loads no model. It holds what outlives a process: the socket, the table of
loads, the metrics of processes that have ended. A process is a program of its own, never a fork, in a session
of its own, so that signals of a terminal come to the supervisor only, which passes them on.

SIGINT, SIGTERM   all processes drain, at the second all stop
SIGHUP            all read the file of keys again
SIGUSR2           all are replaced, one after the other: each old one goes on until the new one is ready

A process that dies is started again, after a pause that grows; when three die within a minute, the server
ends with an error. Over its channel a process asks all of them something, of which the supervisor knows the
name only.
"""

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import count
from typing import Any
from uuid import uuid4

import structlog
from msgspec import Struct

from antiphon.config import OPEN, Settings
from antiphon.core.errors import AntiphonError
from antiphon.core.links import Link
from antiphon.engines.engine import LinkedOptions
from antiphon.log import configure, say
from antiphon.option_sources import unread_variables
from antiphon.processes import sums
from antiphon.processes.channel import (
    METRICS,
    Answer,
    Answers,
    Ask,
    Call,
    Channel,
    Composed,
    Ended,
    Failed,
    FromProcess,
    Ready,
)
from antiphon.processes.hosts import EngineHost, Hosts
from antiphon.processes.listening import finishing, listening
from antiphon.processes.start import Logging, Start, spawn
from antiphon.processes.streams import StreamKeeper
from antiphon.processes.table import Table, create

DEATHS = 3
"""So many deaths within `DEATHS_SECONDS` end the server."""
DEATHS_SECONDS = 60.0
PAUSE_SECONDS = 0.5
"""Seconds before a process that has died is started again; if another has died before, twice as long."""
END_SECONDS = 15.0
"""How much longer than its answers a process may take to end before it is killed."""
READY_SECONDS = 600.0
"""How long a process that replaces another one may take to be ready."""
_REAP_SECONDS = 0.01
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)

log = structlog.get_logger()


def supervise(settings: Settings) -> None:
    """Serve until Ctrl-C, which raises KeyboardInterrupt. Raises AntiphonError if the server cannot serve."""
    settings.check_processes()
    configure(settings.log_level, settings.log_format)
    for warning in unread_variables(settings):
        log.warning(warning)
    if not settings.stores and not settings.secret:  # each process would make one of its own
        settings = replace(settings, secret=(secrets.token_urlsafe(32),))
    if settings.open_to_all:
        log.warning(OPEN, host=settings.host)
    with listening(settings.host, settings.port, settings.unix_socket) as listener:
        received = asyncio.run(Supervisor(settings, listener).run())
    if received is signal.SIGINT:
        raise KeyboardInterrupt


class _Process:
    """A process of the server, at one of its places. It is `kept`: started again when it ends."""

    def __init__(
        self, place: int, row: int, process: subprocess.Popen[bytes], channel: Channel, *, kept: bool
    ) -> None:
        self.place = place
        self.row = row
        self.channel = channel
        self.links: Sequence[Link] = ()
        """To engines with programs of their own."""
        self.kept = kept
        self.send = process.send_signal
        self.code = process.poll
        self.answers = False
        """It has checked its options, and answers calls."""
        self.lines: Sequence[str] | None = None
        """Those for the operator, when it is ready."""
        self.failure: str | None = None
        self.snapshot: bytes | None = None
        """Its last metrics."""
        self.changed = asyncio.Event()
        """It is ready, or has ended."""

    @property
    def ready(self) -> bool:
        """It has loaded its models, and runs."""
        return self.lines is not None and self.code() is None


class _Question(Struct):
    """What a process has asked, and the rows of those that have not answered yet."""

    asker: _Process
    ask: Ask
    missing: set[int]
    answers: list[Answer]


class Supervisor:
    """Starts the processes, and keeps them."""

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        self._settings = settings
        self._listener = listener
        rows = 2 * settings.processes  # while processes are replaced, old and new ones run
        self._bells = [os.pipe() for _ in range(rows)]
        for end in self._descriptors:
            os.set_blocking(end, False)
        self._memory = create(rows)
        self._table = Table(self._memory, [writing for _, writing in self._bells])
        linked = [engine for model in settings.served for engine in model.engines]
        self._hosts = Hosts(
            [engine for engine in linked if isinstance(engine, LinkedOptions)],
            settings.processes,
            Logging(settings.log_level, settings.log_format),
            self._lost_engine,
        )
        self._server = uuid4().hex
        self._processes: dict[int, _Process] = {}  # by row
        self._tasks: set[asyncio.Task[None]] = set()
        self._questions: dict[int, _Question] = {}
        self._numbers = count(1)
        self._last_metrics = sums.lasting(())  # of processes that have ended
        self._deaths: list[float] = []
        self._received: signal.Signals | None = None
        self._failure: str | None = None
        self._greeted = self._draining = self._replacing = self._renewing = False
        self._ended = asyncio.Event()
        self._streams = StreamKeeper()
        tcp, tls = settings.unix_socket is None, settings.tls_certificate is not None
        self._streams_outlive = settings.resume_streams and sys.platform == "linux" and tcp and not tls

    @property
    def _descriptors(self) -> list[int]:
        return [end for ends in self._bells for end in ends]

    async def run(self) -> signal.Signals | None:
        """Run the server; the signal that has ended it. Raises AntiphonError."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, self._stop, signum)
        loop.add_signal_handler(signal.SIGHUP, self._send, signal.SIGHUP)
        loop.add_signal_handler(signal.SIGUSR2, lambda: self._do(self._replace_all()))
        try:
            self._do(self._begin())
            await self._ended.wait()
        finally:
            self._send(signal.SIGKILL)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._hosts.close()
            for descriptor in (self._memory, *self._descriptors):
                os.close(descriptor)
        if self._failure is not None:
            raise AntiphonError(self._failure)
        return self._received

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _send(self, signum: int) -> None:
        for process in self._processes.values():
            process.send(signum)

    # Starting

    async def _begin(self) -> None:
        """Start the engines that have programs of their own, and the first process."""
        try:
            await self._hosts.start()
        except AntiphonError as error:
            self._fail(error.message)
        if not self._draining:
            self._spawn(0)  # the others follow when it has checked the options

    def _spawn(self, place: int, *, kept: bool = True) -> _Process:
        row = next(row for row in range(self._table.rows) if row not in self._processes)
        ours, theirs = socket.socketpair()
        links = self._hosts.links(place)
        passage = self._passage(row)
        with theirs, passage or nullcontext(), _blocked():
            start = Start(
                settings=self._settings,
                place=place,
                count=self._settings.processes,
                row=row,
                server=self._server,
                listener=self._listener.fileno(),
                channel=theirs.fileno(),
                table=self._memory,
                bell=self._bells[row][0],
                bells=[writing for _, writing in self._bells],
                links=links,
                streams=None if passage is None else passage.fileno(),
            )
            spawned = spawn("antiphon.http.process", start)
        channel = Channel(ours, FromProcess)
        self._processes[row] = process = _Process(place, row, spawned, channel, kept=kept)
        process.links = links
        self._do(self._watch(process))
        return process

    def _passage(self, row: int) -> socket.socket | None:
        """The process's end of the socket by which streams are passed on, if they outlive it."""
        if not self._streams_outlive:
            return None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._streams.open(row, ours)
        return theirs

    def _pass_streams(self) -> None:
        """Give the streams of processes that have died to those that are ready."""
        ready = [process for process in self._processes.values() if process.ready]
        staying = [process for process in ready if process.kept]
        self._streams.give({process.row: 0 for process in staying or ready})
        if self._draining and not ready:
            self._streams.drop()

    async def _watch(self, process: _Process) -> None:
        """Read what a process says, until it ends."""
        async with process.channel as channel:
            async for message in channel.messages():
                self._take(process, message)
        await self._wait_end(process)
        del self._processes[process.row]
        self._hosts.forget(process.links)
        self._table.clear(process.row)
        if self._streams_outlive:
            self._streams.close(process.row)
            self._pass_streams()
        for row in self._processes:  # its permits are free
            self._table.ring(row)
        if process.snapshot is not None:
            self._last_metrics = sums.lasting((self._last_metrics, process.snapshot))
        for number in [*self._questions]:
            self._answered(number, process.row)
        process.changed.set()
        if self._draining:
            self._end_if_empty()
        elif process.kept:
            await self._start_again(process)

    @staticmethod
    async def _wait_end(process: _Process) -> None:
        """Wait for the end of a process that has closed its channel."""
        for _ in range(round(END_SECONDS / _REAP_SECONDS)):
            if process.code() is not None:
                return
            await asyncio.sleep(_REAP_SECONDS)
        process.send(signal.SIGKILL)
        while process.code() is None:  # noqa: ASYNC110 - a process that is killed ends at once
            await asyncio.sleep(_REAP_SECONDS)

    async def _start_again(self, process: _Process) -> None:
        """Start a process again that has ended by itself."""
        if not self._greeted and process.failure is not None:
            self._fail(process.failure)
            return
        if process.code() != 0:
            why = process.failure or "unknown"
            log.error("a process has died", place=process.place, code=process.code(), why=why)
            await self._count_death()
        await self._fill(process.place)

    async def _count_death(self) -> None:
        """End the server if too many have died; otherwise wait a while."""
        now = time.monotonic()
        self._deaths = [at for at in (*self._deaths, now) if at > now - DEATHS_SECONDS]
        if len(self._deaths) >= DEATHS:
            self._fail(f"{DEATHS} processes of this server have died within a minute.")
            return
        await asyncio.sleep(PAUSE_SECONDS * 2.0 ** (len(self._deaths) - 1))

    async def _fill(self, place: int) -> None:
        """Start a process at a place that is free."""
        if self._hosts.used_up:
            await self._renew()
        elif not self._draining and not self._renewing:
            self._spawn(place)

    def _lost_engine(self, why: str) -> None:
        """An engine that has a program of its own has ended."""
        if self._draining:
            return
        if not self._greeted:
            self._fail(why)
            return
        log.error("an engine has died", why=why)
        self._do(self._replace_engines())

    async def _replace_engines(self) -> None:
        await self._count_death()
        await self._renew()

    async def _renew(self) -> None:
        """Start engines again that have died, or have no links left, and all processes."""
        if self._draining or self._renewing:
            return
        self._renewing = True
        try:
            await self._hosts.replace(lambda host: host.dead)  # the processes refuse requests meanwhile
            log.warning("all processes are started again when their answers have ended")
            for process in self._processes.values():
                process.kept = False
                process.send(signal.SIGTERM if process.ready else signal.SIGKILL)
            while self._processes:  # noqa: ASYNC110
                await asyncio.sleep(_REAP_SECONDS)
            if not self._draining:
                await self._hosts.replace(EngineHost.used_up)
        except AntiphonError as error:
            self._fail(error.message)
        finally:
            self._renewing = False
        for place in range(0 if self._draining else self._settings.processes):
            self._spawn(place)

    def _fail(self, why: str) -> None:
        """End the server with an error."""
        self._failure = why
        self._drain()
        if not self._greeted:  # they load, and have no answers
            self._send(signal.SIGKILL)

    # Signals

    def _stop(self, signum: signal.Signals) -> None:
        """Drain at the first signal, stop at the second."""
        self._received = signum
        again = self._draining
        say("stopping" if again else finishing(self._table.running, self._settings.drain_seconds))
        self._drain()

    def _drain(self) -> None:
        """Have all processes drain, or stop if they do."""
        longest = END_SECONDS + (0 if self._draining else self._settings.drain_seconds)
        self._draining = True
        self._send(signal.SIGINT)
        asyncio.get_running_loop().call_later(longest, self._send, signal.SIGKILL)
        self._end_if_empty()

    def _end_if_empty(self) -> None:
        if not self._processes:
            self._ended.set()

    async def _replace_all(self) -> None:
        """Replace the processes, one after the other."""
        if self._replacing or self._renewing or self._draining:
            return
        self._replacing = True
        before = sorted(self._processes.values(), key=lambda process: process.place)
        try:
            for process in before:
                if process.ready and not await self._replace(process):
                    log.error("a process could not be replaced", place=process.place)
                    return
            # They may have long answers.
            while not {*before}.isdisjoint(self._processes.values()):  # noqa: ASYNC110
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            self._replacing = False

    async def _replace(self, process: _Process) -> bool:
        """Replace a process by one of the same place; whether that could be done."""
        if self._hosts.used_up:
            self._do(self._renew())
            return True
        process.kept = False
        successor = self._spawn(process.place, kept=False)
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_SECONDS):
                await successor.changed.wait()
        if not successor.ready:
            successor.send(signal.SIGKILL)
            process.kept = True
            if process.code() is not None:  # it has died meanwhile
                await self._fill(process.place)
            return False
        successor.kept = True
        if not self._draining:
            process.send(signal.SIGTERM)
        log.info("a process is replaced", place=process.place)
        return True

    # Messages

    def _take(self, process: _Process, message: FromProcess) -> None:
        match message:
            case Composed():
                process.answers = True
                self._spawn_others()
            case Ready(lines):
                process.lines = lines
                process.changed.set()
                self._pass_streams()
                if self._greeted:
                    log.info("a process is ready", place=process.place)
                self._greet(lines)
            case Failed(why):
                process.failure = why
            case Ended(metrics):
                process.snapshot = metrics
            case Ask():
                self._ask(process, message)
            case Answer(number):
                self._answered(number, process.row, message)

    def _spawn_others(self) -> None:
        """Start the others, when the first has found nothing wrong with the options."""
        if self._draining or self._greeted or len(self._processes) > 1:
            return
        for place in range(1, self._settings.processes):
            self._spawn(place)

    def _greet(self, lines: Sequence[str]) -> None:
        """Say once that the server is ready, when all processes are."""
        places = {process.place for process in self._processes.values() if process.ready}
        if not self._greeted and not self._draining and len(places) == self._settings.processes:
            self._greeted = True
            say(*lines)

    def _ask(self, asker: _Process, ask: Ask) -> None:
        """Call all processes that answer."""
        number = next(self._numbers)
        asked = [process for process in self._processes.values() if process.answers]
        self._questions[number] = _Question(asker, ask, {process.row for process in asked}, [])
        for process in asked:
            process.channel.send(Call(number, ask.name, ask.body))
        asyncio.get_running_loop().call_later(ask.seconds, self._close, number)

    def _answered(self, number: int, row: int, answer: Answer | None = None) -> None:
        """A process has answered, or never will."""
        question = self._questions.get(number)
        if question is None or row not in question.missing:
            return
        question.missing.discard(row)
        if answer is not None:
            question.answers.append(answer)
            if question.ask.name == METRICS and answer.refusal is None:
                self._processes[row].snapshot = answer.body
        if not question.missing:
            self._close(number)

    def _close(self, number: int) -> None:
        """Send the answers to who has asked."""
        question = self._questions.pop(number, None)
        if question is None:
            return
        answers = question.answers
        if question.ask.name == METRICS:  # also of those that are late, and of those that have ended
            snapshots = [process.snapshot for process in self._processes.values()]
            answers = [Answer(0, snapshot) for snapshot in (*snapshots, self._last_metrics) if snapshot]
        question.asker.channel.send(Answers(question.ask.number, answers))


@contextmanager
def _blocked() -> Iterator[None]:
    """Block the signals for a process that is started in the block: until it can handle them, they wait."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
