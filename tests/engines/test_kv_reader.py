"""Events of caches from real sockets: publishers like vLLM's, which repeat what was missed, and start again."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from threading import Event, Thread
from time import sleep
from typing import Any

import msgspec
import pytest

from antiphon.engines.block_index import BlockIndex, PromptBlocks
from antiphon.engines.cache_views import EventsView
from antiphon.engines.engine import GenerationRequest, Prompt
from antiphon.engines.kv_events import END
from antiphon.engines.kv_sources import Source
from antiphon.engines.pool import PoolEngine
from tests.contracts.engine import Collected, until
from tests.run.support import Handheld

zmq: Any = pytest.importorskip("zmq", reason="the extra kv-events is not installed")

from antiphon.engines.upstreams import kv_reader  # noqa: E402 - it needs the extra
from antiphon.engines.upstreams.kv_reader import EventReader  # noqa: E402

BLOCK = 16
TOPIC = b"kv"


class Publisher:
    """Publishes at ports that stay the same, and repeats the last messages in a thread, as vLLM does."""

    def __init__(self, context: Any, kept: int = 1000, ports: Sequence[int] = (0, 0)) -> None:
        self._events, self._replays = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        for socket, port in zip((self._events, self._replays), ports, strict=True):
            socket.set(zmq.LINGER, 0)
            _bind(socket, f"tcp://127.0.0.1:{port or '*'}")
        endpoints = [socket.get(zmq.LAST_ENDPOINT).decode() for socket in (self._events, self._replays)]
        self.ports = [int(endpoint.rpartition(":")[2]) for endpoint in endpoints]
        self.source = Source(*endpoints, TOPIC.decode())
        self._kept = kept
        self._sent: list[list[bytes]] = []
        self.replays: list[int] = []
        self._ended = Event()
        self._thread = Thread(target=self._serve)
        self._thread.start()

    def publish(self, *events: Any, lost: bool = False) -> None:
        frames = [TOPIC, len(self._sent).to_bytes(8, "big"), msgspec.msgpack.encode([next(_times), events])]
        self._sent.append(frames)
        if not lost:
            self.send(*frames)

    def send(self, *frames: bytes) -> None:
        self._events.send_multipart(frames)

    def _serve(self) -> None:
        while not self._ended.is_set():
            if not self._replays.poll(10):
                continue
            client, _, start = self._replays.recv_multipart()
            first = int.from_bytes(start, "big")
            for frames in self._sent[-self._kept :]:
                if int.from_bytes(frames[1], "big") >= first:
                    self._replays.send_multipart([client, b"", *frames])
            self._replays.send_multipart([client, b"", b"", END.to_bytes(8, "big"), b""])
            self.replays.append(first)

    def close(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join()
            self._events.close(0)
            self._replays.close(0)


def _bind(socket: Any, endpoint: str) -> None:
    """The threads of ZeroMQ may not have closed the socket that was there before."""
    for _ in range(500):
        try:
            return socket.bind(endpoint)
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                raise
            sleep(0.01)
    raise TimeoutError(endpoint)


_times = count(1.0)
Start = Callable[..., Publisher]


@pytest.fixture
def start() -> Iterator[Start]:
    context = zmq.Context()
    started: list[Publisher] = []

    def start(**options: Any) -> Publisher:
        started.append(Publisher(context, **options))
        return started[-1]

    yield start
    for publisher in started:
        publisher.close()
    context.destroy(0)


class Reading:
    """A view of one replica, with the events of its ranks."""

    def __init__(self) -> None:
        self.index = BlockIndex()
        self.view = EventsView(self.index)
        self.reader = EventReader()

    def known(self, *tokens: int) -> list[float]:
        """How many blocks of prompts of one block of these tokens each are there."""
        return [
            sum(self.index.look_up(PromptBlocks([token] * BLOCK).chain(BLOCK)).values()) for token in tokens
        ]

    async def knows(self, tokens: Sequence[int], missing: Sequence[int] = ()) -> None:
        """Wait until it knows these, and not the missing ones."""
        await until(lambda: all(self.known(*tokens)) and not any(self.known(*missing)))


@asynccontextmanager
async def reading(*sources: Source) -> AsyncIterator[Reading]:
    reading = Reading()
    reading.reader.follow(sources, reading.view)
    yield reading
    await reading.reader.stop()


def stored(token: int) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": [token],
        "parent_block_hash": None,
        "token_ids": [token] * BLOCK,
        "block_size": BLOCK,
    }


async def test_what_an_idle_engine_holds_is_known_at_once(start: Start) -> None:
    publisher = start()
    publisher.publish(stored(1), lost=True)  # before anybody listens
    publisher.publish(stored(2), lost=True)
    async with reading(publisher.source) as there:
        await there.knows([1, 2])
        publisher.publish(stored(3))
        await there.knows([1, 2, 3])
        assert (publisher.replays, there.view.ranks[0].gaps) == ([0], 0)


async def test_what_is_missing_is_replayed(start: Start) -> None:
    publisher = start()
    publisher.publish(stored(0), lost=True)
    async with reading(publisher.source) as there:
        await there.knows([0])
        for token in range(1, 6):
            publisher.publish(stored(token), lost=token < 5)
        await there.knows(range(6))
        assert publisher.replays == [0, 0]
        rank = there.view.ranks[0]
        assert (rank.gaps, rank.losses) == (1, 0)


async def test_what_is_missing_for_good_makes_the_cache_unknown(start: Start) -> None:
    publisher = start(kept=2)
    publisher.publish(stored(0), lost=True)
    async with reading(publisher.source) as there:
        await there.knows([0])
        for token in range(1, 6):
            publisher.publish(stored(token), lost=token < 5)
        await there.knows([4, 5], missing=[0, 1, 2, 3])
        assert there.view.ranks[0].losses == 1


@pytest.mark.parametrize("before", [1, 3, 6])
async def test_an_engine_that_starts_again_is_noticed_by_its_connection(start: Start, before: int) -> None:
    """Its first events are missing, and the next one may have just the number that is expected."""
    publisher = start()
    for token in range(before):
        publisher.publish(stored(token), lost=True)
    async with reading(publisher.source) as there:
        await there.knows(range(before))
        publisher.close()
        publisher = start(ports=publisher.ports)
        for token in range(100, 103):
            publisher.publish(stored(token), lost=True)
        await there.knows(range(100, 103), missing=range(before))
        publisher.publish(stored(103))
        await there.knows(range(100, 104), missing=range(before))


class Line:
    """A connection to a publisher's port that can break."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self) -> str:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        return f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += writer, back
        with suppress(ConnectionError):
            await asyncio.gather(self._copy(reader, back), self._copy(there, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65_536):
            writer.write(piece)
        writer.close()

    def cut(self) -> None:
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    async def close(self) -> None:
        self._server.close()
        self.cut()
        await self._server.wait_closed()


async def test_a_connection_that_breaks_costs_nothing(start: Start) -> None:
    """The engine is the same: what it has, and what was published meanwhile, is known."""
    publisher = start()
    publisher.publish(stored(1), lost=True)
    line = Line(publisher.ports[0])
    async with reading(Source(await line.open(), publisher.source.replay)) as there:
        await there.knows([1])
        publisher.publish(stored(2), lost=True)
        line.cut()
        await there.knows([1, 2])
        rank = there.view.ranks[0]
        assert (publisher.replays, rank.gaps, rank.losses) == ([0, 0], 0, 0)
    await line.close()


async def test_each_rank_is_another_cache(start: Start) -> None:
    publishers = [start(), start(), start()]
    async with reading(*(publisher.source for publisher in publishers)) as there:
        await until(lambda: all(publisher.replays for publisher in publishers))
        for number, publisher in enumerate(publishers):
            publisher.publish(stored(7))
            publisher.publish(stored(number))
        await until(lambda: there.known(7, 0, 1, 2) == [3, 1, 1, 1])
        there.reader.follow([publishers[1].source], there.view)  # the server has started again with one rank
        await until(lambda: there.known(7, 0, 1, 2) == [1, 0, 1, 0])
        [rank] = there.view.ranks
        before = rank.messages
        publishers[0].publish(stored(8))
        await asyncio.sleep(0.05)  # nobody waits for it
        publishers[1].publish(stored(9))
        await there.knows([9], missing=[8])
        assert rank.messages == before + 1


async def test_without_a_replay_only_what_comes_is_known(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_reader, "REPLAY_SECONDS", 0.1)
    publisher = start()
    publisher.publish(stored(0), lost=True)
    dead = Source(publisher.source.endpoint, "tcp://127.0.0.1:9", "kv")
    for source in (Source(publisher.source.endpoint), dead, Source(publisher.source.endpoint, "nothing://")):
        async with reading(source) as there:
            [rank], token = there.view.ranks, 0
            while len(rank) < 3:
                token += 1
                publisher.publish(stored(token))
                await asyncio.sleep(0.01)
            assert there.known(0) == [0]
    assert not publisher.replays


async def test_garbage_is_left_out_and_endpoints_that_are_none(start: Start) -> None:
    publisher = start()
    async with reading(Source("nothing://x"), publisher.source) as there:
        await until(lambda: bool(publisher.replays))
        publisher.send(b"kv")
        publisher.send(b"kv", b"1", b"")
        publisher.publish(stored(1))
        await there.knows([1])


# The pool


class Telling(Handheld):
    """An engine that publishes what it stores."""

    def __init__(self, publisher: Publisher) -> None:
        super().__init__()
        self.publisher = publisher
        self.away = False

    async def event_sources(self) -> Sequence[Source]:
        return [self.publisher.source]

    async def probe(self) -> None:
        if self.away:
            raise TimeoutError


async def test_a_replica_that_is_back_at_other_ports_is_followed_there(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.engines.pool.PROBE_SECONDS", 0.05)
    engine = Telling(start())
    engine.publisher.publish(stored(1))
    pool = PoolEngine([("one", engine), ("two", Handheld())], follow=EventReader)
    await pool.start()
    replica = pool._replicas[0]
    await until(lambda: replica.cache.size == BLOCK)
    engine.away = True
    await until(lambda: replica.cache.size == 0)
    engine.publisher.close()
    engine.publisher = start()
    engine.publisher.publish(stored(2))
    engine.publisher.publish(stored(3))
    engine.away = False
    await until(lambda: replica.cache.size == 2 * BLOCK)
    pool.generate(GenerationRequest(Prompt("", (3,) * BLOCK), 5), Collected()).cancel()
    assert len(engine.asked) == 1
    await pool.stop()
