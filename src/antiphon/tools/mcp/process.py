"""The transport of an MCP server that is a process of this machine: a line of JSON for each message.

It does as the SDK's own does, and reads within `Bounds`: there a line may be of any length, and any number of
lines is read in one turn of the event loop.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TextIO

import anyio
import mcp_types as types
from anyio.abc import Process
from mcp.client.stdio import get_default_environment
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.shared.message import SessionMessage

from antiphon.tools.mcp.bounds import Bounds, TooMuchError

FLUSH_SECONDS = 0.5
"""Seconds for the last messages to be written."""
EXIT_SECONDS = 2.0
"""Seconds until a process that does not end is terminated, and then until it is killed."""
_POLL_SECONDS = 0.01
_GONE = (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream, OSError)
"""One side has closed its end."""


@asynccontextmanager
async def process_streams(
    command: Sequence[str], environment: Mapping[str, str], errors: TextIO, bounds: Bounds
) -> AsyncIterator[Any]:
    """The streams of messages of and to the process of a server; its standard error is written to `errors`.

    Raises OSError if it cannot be started.
    """
    process = await anyio.open_process(
        [*command],
        env=get_default_environment() | {**environment},
        stderr=errors,
        start_new_session=True,
    )
    incoming, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    written = anyio.Event()

    async def write() -> None:
        assert process.stdin is not None
        try:
            async with outgoing:
                async for item in outgoing:
                    line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                    await process.stdin.send(line.encode() + b"\n")
        except _GONE:
            await incoming.aclose()
        finally:
            written.set()

    async def read() -> None:
        try:
            async with incoming:
                async for message in _messages(process, bounds):
                    await incoming.send(message)
        except _GONE:
            pass
        with suppress(*_GONE):  # a process that cannot write does not end
            while process.stdout is not None:
                await process.stdout.receive()

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        group.start_soon(write)
        try:
            yield received, sent
        finally:
            with anyio.CancelScope(shield=True):
                received.close()
                sent.close()
                with anyio.move_on_after(FLUSH_SECONDS):
                    await written.wait()
                await _stop(process)
                for stream in (received, sent, incoming, outgoing):
                    await stream.aclose()
            group.cancel_scope.cancel()


async def _messages(process: Process, bounds: Bounds) -> AsyncIterator[SessionMessage | Exception]:
    """The messages of the lines that the process writes, or what is wrong with them. One too long ends it."""
    assert process.stdout is not None
    buffer, searched = bytearray(), 0
    async for piece in process.stdout:
        buffer += piece
        start = 0
        try:
            while (end := buffer.find(b"\n", searched)) >= 0:
                line, start = bytes(memoryview(buffer)[start:end]), end + 1
                searched = start
                bounds.take(line)
                yield _message(line)
                await asyncio.sleep(0)
            del buffer[:start]
            searched = len(buffer)
            bounds.check_size(len(buffer))
        except TooMuchError:
            return


def _message(line: bytes) -> SessionMessage | Exception:
    try:
        text = line.decode(errors="replace")
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(text, by_name=False))
    except ValueError as error:
        return error


async def _stop(process: Process) -> None:
    """Close its input, and end it with all its own processes if that is not enough."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(*_GONE):
        await process.stdin.aclose()
    if not await _ended(process):
        await terminate_posix_process_tree(process, EXIT_SECONDS)
        await _ended(process)
    with suppress(*_GONE):
        await process.stdout.aclose()


async def _ended(process: Process) -> bool:
    """Whether it ends in time. Not by `wait`, which also waits for processes that have its output."""
    with anyio.move_on_after(EXIT_SECONDS):
        while process.returncode is None:  # noqa: ASYNC110 - there is no event for it
            await anyio.sleep(_POLL_SECONDS)
    return process.returncode is not None
