"""Runs a program for a limited time: its output is read while it runs, then its process group is killed.

The outputs are our own pipes. So a program has ended when its process has, and not when the last process
that it left in the background has closed them.
"""

import asyncio
import os
import signal
from asyncio.subprocess import Process
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, cast

from msgspec import Struct

from antiphon.core.tool_result import OutputCallback, ignore_output
from antiphon.tools.text import Excerpt

DRAIN_SECONDS = 2.0
"""Seconds for reading the rest of a pipe; a process that left its group may hold it open forever."""

END_SECONDS = 10.0
"""Seconds until killed processes must have ended when the server stops: a machine may be busy."""

PIECE_BYTES = 256 * 1024
"""The most bytes of a pipe that are in memory at a time."""

PAUSE_SECONDS = 0.001
"""Seconds between two reads: a program that only prints must not keep the server busy."""

SIGNAL_BASE = 128
"""Shells add this to the number of the signal that ended a program."""

_Utf8 = getincrementaldecoder("utf-8")


class Program(Struct, frozen=True):
    """`words` are the command, `script` is its standard input. `environment` is its whole environment."""

    words: Sequence[str]
    script: str
    directory: Path
    environment: Mapping[str, str]


class ProgramOutput(Struct, frozen=True):
    """What a program printed, and its exit code, which is None if it timed out."""

    stdout: str
    stderr: str
    exit_code: int | None


async def execute(
    program: Program, seconds: float, limit: int, on_output: OutputCallback = ignore_output
) -> ProgramOutput:
    """The output of a program, `limit` characters of each stream, and its end, after at most `seconds`.

    Raises OSError if it cannot be started. Cancelling kills it, too.
    """
    async with (
        _output(limit, lambda text: on_output(stdout=text)) as out,
        _output(limit, lambda text: on_output(stderr=text)) as err,
    ):
        with out.end, err.end, _input(program.script) as script:
            process = await start_process(
                asyncio.create_subprocess_exec(
                    *program.words,
                    stdin=script,
                    stdout=out.end,
                    stderr=err.end,
                    cwd=program.directory,
                    env=program.environment,
                    start_new_session=True,
                )
            )
        try:
            exit_code = await _exit_code(process, seconds)
        finally:
            await end(process)
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await out.ended.wait()
                await err.ended.wait()
    return ProgramOutput(str(out.printed), str(err.printed), exit_code)


async def start_process(beginning: Coroutine[Any, Any, Process]) -> Process:
    """The process that asyncio starts as the leader of a group. Raises OSError.

    Cancelling kills it, with its group, and waits for its end for some time. It does not cancel asyncio,
    which would kill only the process itself, and wait until all its pipes are closed: if the first process
    of a sandbox is killed before the second is set to end with it, that one stays, and keeps its pipes open
    forever.
    """
    task = asyncio.ensure_future(beginning)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await _ended(_end_started(task))
        raise


async def end(process: Process) -> None:
    """Kill a process with its group, and wait for its end for a while."""
    kill_group(process.pid)
    await _ended(_end(process))


async def all_ended() -> None:
    """Wait for killed processes that have not ended: before the event loop is closed."""
    loop = asyncio.get_running_loop()
    if ending := [task for task in _ending if task.get_loop() is loop]:
        await asyncio.wait(ending, timeout=END_SECONDS)


_ending: set[asyncio.Task[None]] = set()
"""Tasks that wait for the ends of processes. They are independent of the callers, which may be cancelled."""


async def _ended(ending: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(ending)
    _ending.add(task)
    task.add_done_callback(_ending.discard)
    await asyncio.wait([task], timeout=DRAIN_SECONDS)


async def _end_started(beginning: asyncio.Task[Process]) -> None:
    with suppress(OSError):  # there is no process then
        process = await beginning
        kill_group(process.pid)
        await _end(process)


async def _end(process: Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    await process.wait()
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            # The loop keeps the pipe until its end was read.
            while process.stdout is not None and await process.stdout.read(PIECE_BYTES):
                pass


class _Output(asyncio.Protocol):
    """One output of a program: the program writes to `end`, `printed` keeps a part of it."""

    def __init__(self, end: IO[bytes], printed: Excerpt) -> None:
        self.end = end
        self.printed = printed
        self.ended = asyncio.Event()
        self._decoder = _Utf8("replace")
        self._transport: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Reading begins."""
        self._transport = cast(asyncio.ReadTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Process output, and pause for a short time."""
        assert self._transport is not None
        self.printed.write(self._decoder.decode(data))
        self._transport.pause_reading()
        asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._resume_reading)

    def connection_lost(self, exc: Exception | None) -> None:
        """All writers have closed the pipe."""
        self.printed.write(self._decoder.decode(b"", final=True))
        self.ended.set()

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()


@asynccontextmanager
async def _output(limit: int, on_output: Callable[[str], None]) -> AsyncIterator[_Output]:
    reading, writing = _pipe()
    with writing:
        output = _Output(writing, Excerpt(limit, on_output))
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: output, reading)
        try:
            yield output
        finally:
            transport.close()


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    reading, writing = os.pipe()
    return open(reading, "rb", 0), open(writing, "wb", 0)


@contextmanager
def _input(script: str) -> Iterator[IO[bytes]]:
    with TemporaryFile() as file:
        file.write(script.encode(errors="replace"))
        file.seek(0)
        yield file


async def _exit_code(process: asyncio.subprocess.Process, seconds: float) -> int | None:
    """The exit code; None after the time limit. A signal gives the code that shells give."""
    try:
        async with asyncio.timeout(seconds):
            code = await process.wait()
    except TimeoutError:
        return None
    return code if code >= 0 else SIGNAL_BASE - code


def kill_group(group: int) -> None:
    """Kill all processes of a group, if there are any, and those that its leader has started.

    While a sandbox starts, there is a time when its second process has left the group, and is not yet set to
    end with the first.
    """
    stopped = _send(group, signal.SIGSTOP)  # so they begin no more
    children = _children_of(group) if stopped else []
    _send(group, signal.SIGKILL)
    for process in children:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


def _send(group: int, what: signal.Signals) -> bool:
    """Send a signal to a group; returns whether there is one."""
    # The number may be that of a process that has ended. It is very unlikely to have been reused: as long as
    # the group has members its number is not reused, and otherwise a new process would have to get just
    # this one of all numbers, and lead a group, in the short time since.
    with suppress(ProcessLookupError, PermissionError):  # no such group; the second on macOS
        os.killpg(group, what)
        return True
    return False


def _children_of(process: int) -> list[int]:
    """The processes that a process has started, and their descendants, if the system has files for that.

    It takes the same time for any number of other processes, because it runs on the event loop.
    """
    processes = [process]
    for number in processes:
        with suppress(OSError):  # else it has ended
            for thread in os.listdir(f"/proc/{number}/task"):
                with open(f"/proc/{number}/task/{thread}/children", "rb") as file:
                    processes += map(int, file.read().split())
    return processes[1:]
