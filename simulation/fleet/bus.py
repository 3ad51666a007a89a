"""The events of caches on their way from replicas to servers: late, lost, and in any order across replicas.

Those of one replica keep their order, as on a connection. The bytes are those of vLLM's publisher, which
repeats what it is asked for from a buffer. A replica that is another process counts from 0 again.
"""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from antiphon.engines.cache_views import EventsView
from antiphon.engines.kv_events import END, SEQUENCE_BYTES, CacheEvents
from antiphon.engines.kv_sources import Source
from simulation.loop import Process, SimulatedLoop

if TYPE_CHECKING:
    from simulation.fleet.laws import FleetLaws

BUFFER = 10_000
"""Messages that a publisher can repeat."""
TRIP = 0.01
"""Seconds that a replay takes to each side, at most."""

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

    def subscribe(self, subscription: "Subscription") -> None:
        """Send it all from now on."""
        self._subscriptions.append(subscription)

    def repeat(self, start: int) -> list[Frames]:
        """What it has of the messages from this number on, and the end."""
        kept = [frames for frames in self._buffer if int.from_bytes(frames[1], "big") >= start]
        return [*kept, (b"", END.to_bytes(SEQUENCE_BYTES, "big"), b"")]

    def _publish(self, event: dict[str, Any]) -> None:
        frames = (b"", self._next.to_bytes(SEQUENCE_BYTES, "big"), _encode([0.0, [event], 0]))
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
        self._rank: CacheEvents = view.add_rank()
        self._at = 0.0  # when the last message comes
        self._last = -1
        self._stored = 0  # blocks that were told of since the cache was known to be empty
        publisher.subscribe(self)

    def send(self, frames: Frames) -> None:
        """A message is on its way; it does not overtake the one before."""
        loop, rng = self._bus.loop, self._bus.rng
        self._at = max(self._at, loop.time() + rng.random() * self._bus.delay)
        loop.call_at(self._at, self._receive, frames, context=self._process.context())

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
        wait = self._bus.rng.random() * TRIP
        self._bus.loop.call_later(wait, self._replay, start, context=self._process.context())

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

    def follow(self, source: Source, view: EventsView) -> None:
        """See `EventFollower`."""
        Subscription(self._bus, self._bus.publishers[source.endpoint], view, self._process)

    async def stop(self) -> None:
        """See `EventFollower`."""
