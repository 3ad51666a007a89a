"""The program that runs an engine for all processes of a server, started by `antiphon.processes.hosts`.

It runs until nobody holds the pipe that it has the end of: the supervisor and the processes do. If its engine
ends before, it says so, and ends, too.
"""

import asyncio
import os
import socket
from collections.abc import Coroutine
from typing import IO, Any

import structlog

from antiphon.core.errors import AntiphonError
from antiphon.core.links import CoreFacts
from antiphon.engines.engine import Host
from antiphon.log import configure
from antiphon.processes.channel import Channel, Failed, Forget, Loaded, Started, encoded
from antiphon.processes.start import HostStart, read

log = structlog.get_logger()


def main(pipe: IO[bytes]) -> int:
    """Run the engine. The exit code."""
    start = read(pipe, HostStart)
    for descriptor in start.descriptors:
        os.set_inheritable(descriptor, False)
    configure(start.logging.level, start.logging.format)
    end = socket.socket(fileno=start.channel)
    try:
        host: Host = start.options.host(start.link, start.inputs, start.outputs)
    except AntiphonError as error:
        end.sendall(encoded(Failed(error.message)))
        return 1
    return asyncio.run(_run(host, Channel(end, Forget), start.life))


async def _run(host: Host, channel: Channel, life: int) -> int:
    loop, released = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(life, released.set)

    def started(core: CoreFacts) -> None:
        loop.call_soon_threadsafe(channel.send, Started(core))

    async with channel:
        try:
            await asyncio.to_thread(host.load, started)
            channel.send(Loaded())
            listening = asyncio.create_task(_listen(host, channel))
            await _until_either(host.run(), released.wait())
            listening.cancel()
        except AntiphonError as error:
            channel.send(Failed(error.message))
            return 1
        finally:
            loop.remove_reader(life)
            await asyncio.to_thread(host.close)
    return 0


async def _until_either(*work: Coroutine[Any, Any, Any]) -> None:
    """Wait until one has ended, and cancel the others. Raises what it raises."""
    tasks = [asyncio.create_task(one) for one in work]
    done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    for task in done:
        await task


async def _listen(host: Host, channel: Channel) -> None:
    """Do what the supervisor asks for."""
    async with asyncio.TaskGroup() as tasks:
        async for message in channel.messages():
            tasks.create_task(_forget(host, message.number))


async def _forget(host: Host, number: int) -> None:
    try:
        await host.forget(number)
    except Exception:
        log.exception("the requests of a process that has ended run on")
