"""The server's side of one Python in its sandbox: sends files, runs code, and receives results.

The output of the other side is untrusted: an invalid answer ends the interpreter. Nothing is read between
two calls, so a program that prints then has to wait.
"""

import asyncio
import os
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.core.errors import ToolError
from antiphon.core.untrusted_json import UNREADABLE
from antiphon.toolkits.code_interpreter.sandbox import environment
from antiphon.tools.process import PAUSE_SECONDS, PIECE_BYTES, end, kill_group, start_process
from antiphon.tools.text import Excerpt

LINE_BYTES = 1024 * 1024
"""The longest line of an answer."""

TRANSFER_SECONDS = 60.0
"""The most seconds for files, in either direction."""

END_SECONDS = 2.0
"""Seconds until a killed process must have ended."""

_CPU_ENDED = (152, 137 + 15, -24)
"""How a process ends whose time on the processor is used up: the signal XCPU."""

_Utf8 = getincrementaldecoder("utf-8")

Content = AsyncIterator[bytes]
Receive = Callable[[str, int, Content], Awaitable[None]]
"""Processes a file that a program has written: its name, its size, and its bytes."""


class FileRoom(Struct, frozen=True):
    """The most files that a call may return, and their most bytes together."""

    files: int
    bytes: int


class RunResult(Struct, frozen=True):
    """The result of a call, besides written files: deleted files, omitted ones, and figures, by name."""

    gone: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()


class _Answer(Struct, frozen=True):
    """A line of the other side. One of `ran`, `file` and `done` is set."""

    ran: bool = False
    file: str | None = None
    size: int = 0
    done: bool = False
    gone: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()


_decode = msgspec.json.Decoder(_Answer).decode


class InterpreterLostError(ToolError):
    """The interpreter has ended, and its variables are lost: the message says why."""


class Interpreter:
    """A process. Its calls run one after the other. After a LostError it cannot be used."""

    def __init__(self, process: asyncio.subprocess.Process, output: int) -> None:
        self._process = process
        self._output = output
        self._decoder = _Utf8("replace")
        self._printed = Excerpt(0)
        self._working = False  # a call is under way
        self._reading = False

    @classmethod
    async def begin(cls, words: list[str]) -> "Interpreter":
        """Start it. Raises OSError."""
        reading, writing = os.pipe()
        try:
            process = await start_process(
                asyncio.create_subprocess_exec(
                    *words,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=writing,
                    env=environment(),
                    start_new_session=True,
                    limit=LINE_BYTES,
                )
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        os.set_blocking(reading, False)
        return cls(process, reading)

    async def put(self, name: str, size: int, content: Content) -> None:
        """Write a file of this number of bytes. Raises LostError, and the errors of reading the content."""
        await self._send({"put": name, "size": size})
        async for piece in content:
            await self._write(piece)

    async def drop(self, name: str) -> None:
        """Delete a file. Raises LostError."""
        await self._send({"drop": name})

    async def run(
        self, code: str, seconds: float, room: FileRoom, printed: Excerpt, receive: Receive
    ) -> RunResult:
        """Run code. Output is written to `printed`, and changed files are passed to `receive`.

        Raises LostError, and the errors of `receive`.
        """
        self._printed = printed
        self._working = True
        self._read_output()
        try:
            await self._send({"run": code, "files": room.files, "bytes": room.bytes})
            async with _at_most(seconds, f"it took more than {seconds:g} seconds"):
                await self._answer()
            async with _at_most(TRANSFER_SECONDS, "its files took too long"):
                return await self._files(room, receive)
        finally:
            self._working = False
            self._stop_reading()

    async def close(self) -> None:
        """Kill it, with all processes that it has started."""
        self._working = False
        self._stop_reading()
        if self._output >= 0:
            os.close(self._output)
            self._output = -1
        await end(self._process)

    async def _files(self, room: FileRoom, receive: Receive) -> RunResult:
        count, left = 0, room.bytes
        while not (answer := await self._answer()).done:
            name = answer.file
            count, left = count + 1, left - answer.size
            if name is None or not answer.size >= 0 or left < 0 or count > room.files:
                raise InterpreterLostError("The interpreter sent an unexpected answer.")
            content = self._pieces(answer.size)
            await receive(name, answer.size, content)
            async for _ in content:  # skip the rest
                pass
        self._take()  # all of its output has arrived
        return RunResult(answer.gone, answer.left_out, answer.figures)

    async def _pieces(self, size: int) -> AsyncIterator[bytes]:
        assert self._process.stdout is not None
        while size > 0:
            piece = await self._process.stdout.read(min(size, PIECE_BYTES))
            if not piece:
                raise await self._ended()
            size -= len(piece)
            yield piece

    async def _answer(self) -> _Answer:
        assert self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
        except ValueError as error:  # the line is too long
            raise InterpreterLostError("The interpreter sent an unexpected answer.") from error
        if not line.endswith(b"\n"):
            raise await self._ended()
        try:
            return _decode(line)
        except UNREADABLE as error:
            raise InterpreterLostError("The interpreter sent an unexpected answer.") from error

    async def _ended(self) -> InterpreterLostError:
        """The process is about to end, or has closed its output: why."""
        kill_group(self._process.pid)
        code: int | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                code = await self._process.wait()
        self._take()
        if code in _CPU_ENDED:
            return InterpreterLostError("Its CPU time is used up.")
        return InterpreterLostError("The interpreter has ended: by the code itself, or for lack of memory.")

    async def _send(self, request: dict[str, Any]) -> None:
        await self._write(msgspec.json.encode(request) + b"\n")

    async def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            async with _at_most(TRANSFER_SECONDS, "it does not read its input"):
                await self._process.stdin.drain()
        except (ConnectionError, RuntimeError) as error:
            raise await self._ended() from error

    # Output

    def _read_output(self) -> None:
        if self._working and not self._reading:
            self._reading = True
            asyncio.get_running_loop().add_reader(self._output, self._readable)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            asyncio.get_running_loop().remove_reader(self._output)

    def _readable(self) -> None:
        self._stop_reading()
        if self._take():  # a program that only prints must not keep the server busy
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._read_output)

    def _take(self) -> bool:
        """Read new output; returns whether there may be more."""
        try:
            data = os.read(self._output, LINE_BYTES)
        except BlockingIOError:
            return True
        self._printed.write(self._decoder.decode(data))
        return bool(data)


@asynccontextmanager
async def _at_most(seconds: float, why: str) -> AsyncIterator[None]:
    """So much time, after which the interpreter is lost."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise InterpreterLostError(f"The code was stopped: {why}.") from error
