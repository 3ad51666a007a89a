"""Reads the events of caches from sockets of ZeroMQ (the extra `kv-events`), in one thread for all replicas.

The thread only receives: messages are applied on the event loop, some at a time, and the thread waits for
that, so that no more come than can be applied. A replay has a socket of its own, as long as it lasts. There
is one whenever a connection is new: it shows what the engine has, or whether it is another one now.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
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
BYTES = 256 * 1024
"""After so many bytes of messages, no further one is applied in the same turn."""
ROUNDS = 8
"""So often messages are applied that came before a connection was there again: as many as wait at most."""
REPLAYED = 20_000
"""Messages of a replay that wait: twice as many as vLLM keeps, which drops what does not fit."""
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
        self._live: dict[zmq.Socket[bytes], _Publisher] = {}  # these four belong to the thread
        self._monitors: dict[zmq.Socket[bytes], zmq.Socket[bytes]] = {}  # of the connections of live ones
        self._replays: dict[zmq.Socket[bytes], _Replay] = {}
        self._poller = zmq.Poller()

    def follow(self, sources: Sequence[Source], view: EventsView) -> None:
        """See `EventFollower`."""
        ranks = view.begin(sources)
        publishers = [_Publisher(source, view, rank) for source, rank in zip(sources, ranks, strict=True)]
        self._asked.put(lambda: self._follow(view, publishers))
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
                self._read({socket for socket, _ in self._poller.poll(POLL_MS)})
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

    def _read(self, ready: "set[zmq.Socket[bytes]]") -> None:
        """Apply what has come: of a connection that is gone before that it is there again."""
        for socket in ready & (self._live.keys() | self._replays.keys()):
            self._receive(socket)
        for monitor in ready & self._monitors.keys():
            monitor.recv_multipart()
            socket = self._monitors[monitor]
            for _ in range(ROUNDS):
                if not self._receive(socket):
                    break
            self._on_loop(partial(self._connected, self._live[socket]))

    def _connect(self, socket: "zmq.Socket[bytes]", endpoint: str) -> bool:
        socket.set(zmq.MAXMSGSIZE, MAX_PAYLOAD)
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            log.warning("events of a cache cannot be read", endpoint=endpoint, error=str(error))
            return False
        self._poller.register(socket, zmq.POLLIN)
        return True

    def _follow(self, view: EventsView, publishers: Sequence[_Publisher]) -> None:
        """Follow these instead of those that the view had."""
        for socket, publisher in [*self._live.items()]:
            if publisher.view is view:
                self._leave(socket)
        for publisher in publishers:
            self._subscribe(publisher)

    def _subscribe(self, publisher: _Publisher) -> None:
        socket = self._context.socket(zmq.SUB)
        socket.subscribe(publisher.source.topic)
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        if not self._connect(socket, publisher.source.endpoint):
            self._end(socket, monitor)
            return
        self._live[socket] = publisher
        self._monitors[monitor] = socket
        self._poller.register(monitor, zmq.POLLIN)

    def _leave(self, socket: "zmq.Socket[bytes]") -> None:
        publisher = self._live.pop(socket)
        self._end_replay(publisher)
        [monitor] = [monitor for monitor, other in self._monitors.items() if other is socket]
        del self._monitors[monitor]
        self._poller.unregister(monitor)
        self._poller.unregister(socket)
        self._end(socket, monitor)

    @staticmethod
    def _end(socket: "zmq.Socket[bytes]", monitor: "zmq.Socket[bytes]") -> None:
        socket.disable_monitor()
        monitor.close(0)
        socket.close(0)

    def _end_replay(self, publisher: _Publisher) -> None:
        for socket, replay in [*self._replays.items()]:
            if replay.publisher is publisher:
                self._close(socket)

    def _replay(self, publisher: _Publisher, start: int) -> None:
        if publisher not in self._live.values():
            return
        self._end_replay(publisher)
        endpoint, socket = publisher.source.replay, self._context.socket(zmq.DEALER)
        socket.set(zmq.RCVHWM, REPLAYED)
        if endpoint is None or not self._connect(socket, endpoint):
            socket.close(0)
            self._on_loop(publisher.rank.cannot_replay)
            return
        self._replays[socket] = _Replay(publisher, monotonic() + REPLAY_SECONDS)
        socket.send_multipart([b"", start.to_bytes(SEQUENCE_BYTES, "big")])

    def _receive(self, socket: "zmq.Socket[bytes]") -> int:
        """Apply some of the messages that have come; returns how many."""
        messages: list[list[bytes]] = []
        size = 0
        with suppress(zmq.Again):
            while len(messages) < MESSAGES and size < BYTES:
                messages.append(socket.recv_multipart(zmq.NOBLOCK))
                size += sum(map(len, messages[-1]))
        replay = self._replays.get(socket)
        publisher = self._live[socket] if replay is None else replay.publisher
        if replay is not None:
            replay.until = monotonic() + REPLAY_SECONDS
            if messages and END.to_bytes(SEQUENCE_BYTES, "big") in messages[-1]:
                self._close(socket)
        if messages:
            self._on_loop(lambda: self._apply(publisher, messages, replayed=replay is not None))
        return len(messages)

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

    def _ask(self, publisher: _Publisher, start: int) -> None:
        self._asked.put(lambda: self._replay(publisher, start))

    def _connected(self, publisher: _Publisher) -> None:
        self._ask(publisher, publisher.rank.connected())

    def _apply(self, publisher: _Publisher, messages: list[list[bytes]], *, replayed: bool) -> None:
        rank = publisher.rank
        receive = rank.receive_replayed if replayed else rank.receive
        for frames in messages:
            if (start := receive(frames)) is not None:
                self._ask(publisher, start)
        publisher.view.heard()
