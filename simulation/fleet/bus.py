"""The events of caches on their way from replicas to servers: late, lost, and in any order across replicas.

Those of one replica keep their order, as on a connection. The bytes are those of vLLM's publisher, which
repeats what it is asked for from a buffer. A replica that is another process counts from 0 again, and what it
tells before servers have connected again is lost.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from antiphon.engines.cache_views import EventsView
from antiphon.engines.kv_events import END, SEQUENCE_BYTES
from antiphon.engines.kv_sources import Source
from simulation.loop import Process, SimulatedLoop

if TYPE_CHECKING:
    from simulation.fleet.laws import FleetLaws

BUFFER = 10_000
"""Messages that a publisher can repeat."""
TRIP = 0.01
"""Seconds that a replay takes to each side, at most."""
CONNECTING = 1.0
"""Seconds until a connection to another process is there, at most."""

Frames = Sequence[bytes]
_encode = msgspec.msgpack.Encoder().encode


class Bus:
    """All publishers, by their endpoints. Messages take up to `delay` seconds; a share `loss` never comes."""

    def __init__(self, loop: SimulatedLoop, rng: Random, laws: "FleetLaws", delay: float) -> None:
        self.loop = loop
        self.rng = rng
        self.laws = laws
        self.delay = delay
        self.loss = 0.0
        self.publishers: dict[str, Publisher] = {}


class Publisher:
    """The events of one replica."""

    def __init__(self, bus: Bus, name: str, block: int) -> None:
        self.name = name
        self.up = True
        self._bus = bus
        self._block = block
        self._next = 0
        self._buffer: deque[Frames] = deque(maxlen=BUFFER)
        self._subscriptions: list[Subscription] = []
        bus.publishers[name] = self

    def stored(self, hashes: Sequence[int], parent: int | None, ids: Sequence[int]) -> None:
        """Blocks of these tokens were stored, after a parent."""
        self._publish(
            {
                "type": "BlockStored",
                "block_hashes": hashes,
                "parent_block_hash": parent,
                "token_ids": ids,
                "block_size": self._block,
                "medium": "GPU",
            }
        )

    def removed(self, hashes: Sequence[int]) -> None:
        """Blocks were dropped."""
        self._publish({"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"})

    def cleared(self) -> None:
        """All blocks were dropped."""
        self._publish({"type": "AllBlocksCleared"})

    def restart(self) -> None:
        """Another process publishes from now on."""
        self._next = 0
        self._buffer.clear()
        self.up = True
        for subscription in self._subscriptions:
            subscription.connect_again()

    def subscribe(self, subscription: "Subscription") -> None:
        """Send it all from now on."""
        self._subscriptions.append(subscription)

    def unsubscribe(self, subscription: "Subscription") -> None:
        """Send it nothing more."""
        self._subscriptions.remove(subscription)

    def repeat(self, start: int) -> list[Frames]:
        """What it has of the messages from this number on, and the end."""
        kept = [frames for frames in self._buffer if int.from_bytes(frames[1], "big") >= start]
        return [*kept, (b"", END.to_bytes(SEQUENCE_BYTES, "big"), b"")]

    def _publish(self, event: dict[str, Any]) -> None:
        frames = (
            b"",
            self._next.to_bytes(SEQUENCE_BYTES, "big"),
            _encode([self._bus.loop.time(), [event], 0]),
        )
        self._next += 1
        self._buffer.append(frames)
        for subscription in self._subscriptions:
            if self._bus.rng.random() >= self._bus.loss:
                subscription.send(frames)


class Subscription:
    """The messages of one replica for one server. See `kv_reader.py`, which does the same with sockets."""

    def __init__(self, bus: Bus, publisher: Publisher, view: EventsView, process: Process) -> None:
        self._bus = bus
        self._publisher = publisher
        self._view = view
        self._process = process
        [self._rank] = view.begin([Source(publisher.name)])
        self._ended = False
        self._at = 0.0  # when the last message comes
        self._last = -1
        self._stored = 0  # blocks that were told of since the cache was known to be empty
        self._replays: asyncio.TimerHandle | None = None
        self._connecting: asyncio.TimerHandle | None = None
        publisher.subscribe(self)
        self._connected()

    def end(self) -> None:
        """What is under way comes no more."""
        self._ended = True
        self._publisher.unsubscribe(self)

    def connect_again(self) -> None:
        """The replica is another process."""
        if self._connecting is not None:
            self._connecting.cancel()
        self._connecting = self._later(CONNECTING, self._connected)

    def _connected(self) -> None:
        self._connecting = None
        self._deliver(self._begin)

    def _begin(self) -> None:
        """It is known that the connection is new."""
        self._last, self._stored = -1, 0
        self._ask(self._rank.connected())

    def send(self, frames: Frames) -> None:
        """A message is on its way, if there is a connection; it does not overtake the one before."""
        if self._connecting is None:
            self._deliver(self._receive, frames)

    def _deliver(self, do: Callable[..., None], *arguments: Any) -> None:
        loop = self._bus.loop
        self._at = max(self._at, loop.time() + self._bus.rng.random() * self._bus.delay)
        loop.call_at(self._at, self._do, do, *arguments, context=self._process.context())

    def _later(self, most: float, do: Callable[..., None], *arguments: Any) -> asyncio.TimerHandle:
        wait = self._bus.rng.random() * most
        return self._bus.loop.call_later(wait, self._do, do, *arguments, context=self._process.context())

    def _do(self, do: Callable[..., None], *arguments: Any) -> None:
        if not self._ended:
            do(*arguments)

    def _receive(self, frames: Frames) -> None:
        number = int.from_bytes(frames[1], "big")
        if number <= self._last:  # another process of the replica
            self._stored = 0
        self._last = number
        self._take(frames, self._rank.receive)
        self._applied()

    def _applied(self) -> None:
        """What was sent is known, unless messages before it are still to be repeated."""
        self._view.heard()
        claims, name = len(self._rank), self._publisher.name
        known = claims <= self._stored or self._rank._replaying
        self._bus.laws.law(known, f"{claims} blocks of {name} are claimed, not {self._stored}")

    def _take(self, frames: Frames, receive: Callable[[Frames], int | None]) -> None:
        """Let a message be read, and count it if it is applied: not if it was repeated before it came."""
        number = int.from_bytes(frames[1], "big")
        before = self._rank._last
        if (start := receive(frames)) is not None:
            self._ask(start)
        if self._rank._last == number != before:
            self._count(frames)

    def _count(self, frames: Frames) -> None:
        for event in msgspec.msgpack.decode(frames[2])[1]:
            if event["type"] == "BlockStored":
                self._stored += len(event["block_hashes"])
            elif event["type"] == "AllBlocksCleared":
                self._stored = 0

    def _ask(self, start: int) -> None:
        if self._replays is not None:
            self._replays.cancel()
        self._replays = self._later(TRIP, self._replay, start)

    def _replay(self, start: int) -> None:
        if not self._publisher.up:
            self._rank.cannot_replay()
            return
        for frames in self._publisher.repeat(start):
            self._take(frames, self._rank.receive_replayed)
        self._applied()


class Follower:
    """Follows the events of replicas in one server. See `EventFollower`."""

    def __init__(self, bus: Bus, process: Process) -> None:
        self._bus = bus
        self._process = process
        self._subscriptions: dict[EventsView, Subscription] = {}

    def follow(self, sources: Sequence[Source], view: EventsView) -> None:
        """See `EventFollower`."""
        if (before := self._subscriptions.pop(view, None)) is not None:
            before.end()
        [source] = sources
        publisher = self._bus.publishers[source.endpoint]
        self._subscriptions[view] = Subscription(self._bus, publisher, view, self._process)

    async def stop(self) -> None:
        """See `EventFollower`."""
