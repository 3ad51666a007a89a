"""Which of the processes of a server takes a connection: here all of them are in one loop, on one socket."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

from antiphon.http.accept import FRESH_SECONDS, TURN_SECONDS, TURNS, Acceptor, CountedTasks
from antiphon.processes.table import Share, State, Table, create


class Sink(asyncio.Protocol):
    """A connection that is counted."""

    def __init__(self, accepted: list["Sink"]) -> None:
        self._accepted = accepted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._accepted.append(self)


@contextmanager
def table(rows: int) -> Iterator[Table]:
    descriptor = create(rows)
    try:
        yield Table(descriptor)
    finally:
        os.close(descriptor)


class Stage:
    """Processes with a socket, and the connections of each."""

    def __init__(self, listener: socket.socket, shares: list[Share]) -> None:
        self.shares = shares
        self.accepted: list[list[Sink]] = [[] for _ in shares]
        self.address = listener.getsockname()
        self.acceptors: list[Acceptor] = []
        self._listener = listener
        self._clients = ExitStack()

    def accept(self, row: int, state: State = State.READY) -> None:
        """Let a process accept connections."""

        def make() -> Sink:
            return Sink(self.accepted[row])

        self.acceptors.append(
            Acceptor(self._clients.enter_context(self._listener.dup()), self.shares[row], make)
        )
        self.shares[row].enter(state)

    def connect(self) -> None:
        client = self._clients.enter_context(socket.socket())
        client.setblocking(False)
        client.connect_ex(self.address)

    @property
    def counts(self) -> list[int]:
        return [len(sinks) for sinks in self.accepted]

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not what():
                await asyncio.sleep(0.001)

    async def close(self) -> None:
        for acceptor in self.acceptors:
            acceptor.close()
            await acceptor.wait_closed()
        for sinks in self.accepted:
            for sink in sinks:
                sink.transport.close()  # type: ignore[attr-defined]
        self._clients.close()


@asynccontextmanager
async def stage(*loads: int) -> AsyncIterator[Stage]:
    """Processes that have so much to do, none of which accepts connections yet."""
    with table(len(loads)) as shared, socket.create_server(("127.0.0.1", 0)) as listener:
        shares = [Share(shared, row) for row in range(len(loads))]
        for share, load in zip(shares, loads, strict=True):
            share.run(load)
            share.enter(State.READY)
        stage = Stage(listener, shares)
        try:
            yield stage
        finally:
            await stage.close()


async def test_the_process_with_the_least_to_do_takes_all_until_it_has_as_much() -> None:
    async with stage(5, 0) as processes:
        processes.accept(0)
        processes.accept(1)
        for _ in range(5):
            processes.connect()
        await processes.until(lambda: sum(processes.counts) == 5)
        assert processes.counts == [0, 5]
        for _ in range(4):
            processes.connect()
        await processes.until(lambda: sum(processes.counts) == 9)
        assert processes.counts == [2, 7]


async def test_a_process_that_does_not_look_holds_nobody_up() -> None:
    async with stage(5, 0) as processes:
        processes.accept(0)  # the other one computes
        processes.connect()
        await asyncio.sleep(TURN_SECONDS)
        assert processes.counts == [0, 0]
        await processes.until(lambda: processes.counts == [1, 0])
        assert TURNS * TURN_SECONDS < FRESH_SECONDS


async def test_a_process_that_loads_leaves_connections_to_one_that_is_ready() -> None:
    async with stage(0, 0) as processes:
        processes.accept(0, State.LOADING)
        processes.connect()
        await asyncio.sleep(10 * TURN_SECONDS)
        assert processes.counts == [0, 0]
        processes.shares[1].enter(State.CLOSED)  # which was there all the time
        await processes.until(lambda: processes.counts == [1, 0])


async def test_a_process_that_accepts_no_more_leaves_the_socket_to_the_others() -> None:
    async with stage(0, 0) as processes:
        processes.accept(0)
        processes.accept(1)
        processes.acceptors[0].close()
        for _ in range(5):
            processes.connect()
        await processes.until(lambda: processes.counts == [0, 5])


async def test_a_new_connection_counts_until_its_request_does() -> None:
    async with stage(0, 0) as processes:
        processes.accept(0)
        processes.accept(1)
        for number in range(1, 5):
            processes.connect()
            await processes.until(lambda number=number: sum(processes.counts) == number)  # type: ignore[misc]
        assert processes.counts == [2, 2]
        await asyncio.sleep(2 * FRESH_SECONDS)
        assert [share.is_least for share in processes.shares] == [True, True]


async def test_the_load_is_the_number_of_running_requests() -> None:
    with table(1) as shared:
        tasks = CountedTasks(Share(shared, 0))
        running = [asyncio.create_task(asyncio.sleep(0)) for _ in range(3)]
        for task in running:
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        assert shared.running == 3
        await asyncio.gather(*running)
        await asyncio.sleep(0)
        assert shared.running == 0
        tasks.discard(running[0])
        assert shared.running == 0
