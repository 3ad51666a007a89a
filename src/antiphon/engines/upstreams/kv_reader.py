"""Reads the events of caches from sockets of ZeroMQ (the extra `kv-events`), in one thread for all replicas.

The thread only receives: messages are applied on the event loop, some at a time, and the thread waits for
that, so that no more come than can be applied. A replay has a socket of its own, as long as it lasts.
"""

import asyncio
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Event, Thread
from time import monotonic

import structlog
import zmq
from msgspec import Struct

from antiphon.engines.cache_views import EventsView
from antiphon.engines.kv_events import END, MAX_PAYLOAD, SEQUENCE_BYTES, CacheEvents
from antiphon.engines.kv_sources import Source

MESSAGES = 256
"""Messages that are applied in one turn of the event loop."""
POLL_MS = 100
"""How long the thread waits for messages before it looks for other work."""
REPLAY_SECONDS = 5.0
"""How long a replay may take to send its next message."""

log = structlog.get_logger()


class _Publisher(Struct, frozen=True, eq=False):
    """A publisher, whose events are applied here."""

    source: Source
    view: EventsView
    rank: CacheEvents


class _Replay(Struct, eq=False):
    publisher: _Publisher
    until: float


class EventReader:
    """Reads the events of all publishers, from the first `follow` to `stop`."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[Callable[[], None]] = SimpleQueue()  # work for the thread
        self._stopped = Event()
        self._thread: Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._live: dict[zmq.Socket[bytes], _Publisher] = {}  # these three belong to the thread
        self._replays: dict[zmq.Socket[bytes], _Replay] = {}
        self._poller = zmq.Poller()

    def follow(self, source: Source, view: EventsView) -> None:
        """Apply the events of a publisher to the view of its replica."""
        publisher = _Publisher(source, view, view.add_rank())
        self._asked.put(lambda: self._subscribe(publisher))
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = Thread(target=self._run, name="kv-events", daemon=True)
            self._thread.start()

    async def stop(self) -> None:
        """Close all sockets."""
        self._stopped.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    # In the thread

    def _run(self) -> None:
        context = self._context = zmq.Context()
        try:
            while not self._stopped.is_set():
                self._do_asked()
                ready = self._poller.poll(POLL_MS)
                for socket, _ in ready:
                    self._receive(socket)
                self._end_late()
        except RuntimeError:  # the event loop is closed
            log.debug("the reader of events ends with its event loop")
        finally:
            context.destroy(linger=0)

    def _do_asked(self) -> None:
        while True:
            try:
                do = self._asked.get_nowait()
            except Empty:
                return
            do()

    def _connect(self, kind: int, endpoint: str) -> zmq.Socket[bytes] | None:
        socket = self._context.socket(kind)
        socket.set(zmq.MAXMSGSIZE, MAX_PAYLOAD)
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            log.warning("events of a cache cannot be read", endpoint=endpoint, error=str(error))
            socket.close(0)
            return None
        self._poller.register(socket, zmq.POLLIN)
        return socket

    def _subscribe(self, publisher: _Publisher) -> None:
        socket = self._connect(zmq.SUB, publisher.source.endpoint)
        if socket is not None:
            socket.subscribe(publisher.source.topic)
            self._live[socket] = publisher

    def _replay(self, publisher: _Publisher, start: int) -> None:
        endpoint = publisher.source.replay
        socket = None if endpoint is None else self._connect(zmq.DEALER, endpoint)
        if socket is None:
            self._on_loop(publisher.rank.cannot_replay)
            return
        self._replays[socket] = _Replay(publisher, monotonic() + REPLAY_SECONDS)
        socket.send_multipart([b"", start.to_bytes(SEQUENCE_BYTES, "big")])

    def _receive(self, socket: "zmq.Socket[bytes]") -> None:
        messages: list[list[bytes]] = []
        try:
            while len(messages) < MESSAGES:
                messages.append(socket.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            pass
        replay = self._replays.get(socket)
        publisher = self._live[socket] if replay is None else replay.publisher
        if replay is not None:
            replay.until = monotonic() + REPLAY_SECONDS
            if messages and END.to_bytes(SEQUENCE_BYTES, "big") in messages[-1]:
                self._close(socket)
        self._on_loop(lambda: self._apply(publisher, messages, replayed=replay is not None))

    def _end_late(self) -> None:
        for socket, replay in [*self._replays.items()]:
            if replay.until < monotonic():
                self._close(socket)
                self._on_loop(replay.publisher.rank.cannot_replay)

    def _close(self, socket: "zmq.Socket[bytes]") -> None:
        del self._replays[socket]
        self._poller.unregister(socket)
        socket.close(0)

    def _on_loop(self, do: Callable[[], None]) -> None:
        """Do it on the event loop, and wait until it is done."""
        assert self._loop is not None
        done = Event()

        def run() -> None:
            try:
                do()
            finally:
                done.set()

        self._loop.call_soon_threadsafe(run)
        while not done.wait(POLL_MS / 1000) and not self._stopped.is_set():
            pass

    # On the event loop

    def _apply(self, publisher: _Publisher, messages: list[list[bytes]], *, replayed: bool) -> None:
        rank = publisher.rank
        receive = rank.receive_replayed if replayed else rank.receive
        for frames in messages:
            if (start := receive(frames)) is not None:
                self._asked.put(lambda start=start: self._replay(publisher, start))  # type: ignore[misc]
        publisher.view.heard()
