"""The slots of an engine that several processes of a server share, and the shares of clients in all of them.

Each process tells what it has served each client, and who waits with it (`core/shared_queue.py`). The counter
of a client is the sum. A slot that becomes free is for the one with the least who waits with any process: if
that is this one it gives the slot, otherwise it rings. All decide by what all are told, in one order
(priority, counter, time of coming), so that they do not ring each other in a circle.

Who comes while a slot is on its way to another process waits, too; or else clients with many requests would
get what is meant for others. A process that does not react holds a slot up for a moment only: until it says
something again, those who wait with it are left out.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.permits import Permit, Permits
from antiphon.core.shared_queue import SharedQueue, Standing, checksum
from antiphon.engines.admission import UNKNOWN, Admission, Slot

OTHERS = "\0others"
"""The owner of what clients ask for whom a process has no room: they count as one client."""
_LARGEST = 2**63 - 1


class _Turn(NamedTuple):
    """A client that waits with a process; the least is the next. `ended` is its counter without what runs."""

    priority: int
    counter: int
    since: int
    process: int
    client: int
    ended: int


class SharedAdmission(Admission):
    """The slots of an engine, of which other processes have some. See `Admission`."""

    def __init__(self, slots: int, queue: SharedQueue, limits: Limits = DEFAULTS) -> None:
        super().__init__(slots, limits)
        self._shared = queue
        self._shared.on_free = self._fill
        self._checksums: dict[str, int] = {}  # of the owners that are told of
        self._since: dict[Permit, int] = {}  # when those came that wait
        self._awaited: tuple[int, int] | None = None  # a process that was rung, and how often it had told
        self._silent: dict[int, int] = {}  # those that have told nothing since so often
        for process, standing in queue.standings():  # of the engine before it was stopped
            if process == queue.own:
                queue.forget(standing.client)

    def enter(
        self, start: Callable[[], object], priority: int = 0, tokens: tuple[int, int] = (UNKNOWN, 0)
    ) -> Slot:
        slot = Slot(self, start, priority)
        slot.owner = self._account_of(slot.owner)
        slot.priority = min(slot.priority, _LARGEST)  # 64 bits are told
        slot.prompt_tokens, slot.max_tokens = tokens
        self._lift(slot.owner)
        self._admit(slot)
        return slot

    @property
    def _is_free(self) -> bool:
        return self.running + self._shared.running < self.capacity

    # Who is next

    def _admit(self, permit: Permit) -> None:
        if self._lines or self._shared.waiting:
            self._line_up(permit)
        else:
            super()._admit(permit)

    def _line_up(self, permit: Permit) -> None:
        self._since[permit] = time.monotonic_ns()
        try:
            super()._line_up(permit)
        except BaseException:
            del self._since[permit]
            raise
        finally:
            self._publish(permit.owner)
        self._fill()

    def _fill(self) -> None:
        self._shared.tell(self.running, self.waiting)
        while self._is_free and (self._lines or self._shared.waiting):
            turns = self._turns()
            first = min(filter(self._reacts, turns) if self._silent else turns, default=None)
            if first is None:  # they will come in a moment
                return
            turn = _Turn._make(first)
            if turn.process != self._shared.own:
                self._shared.ring(turn.process)
                self._give_time(turn.process)
                return
            self._serve(turn)

    def _turns(self) -> list[tuple[int, ...]]:
        """The clients that wait, with each process: see `_Turn`, which takes longer to make."""
        standings = self._shared.standings()
        counters: dict[int, int] = {}
        ended: dict[int, int] = {}
        for _, (client, counter, begun, *_) in standings:
            counters[client] = counters.get(client, 0) + counter
            ended[client] = ended.get(client, 0) + counter - begun
        return [
            (priority, counters[client], since, process, client, ended[client])
            for process, (client, _, _, waiting, priority, since) in standings
            if waiting
        ]

    def _serve(self, turn: _Turn) -> None:
        owner = next(owner for owner in self._waiting if self._checksums[owner] == turn.client)
        first = next(iter(self._lines[turn.priority, owner]))
        self._shared.raise_floor(turn.ended)
        self._leave_line(first)
        self._give(first)

    def _give_time(self, process: int) -> None:
        """Let another process take the slot that is free."""
        if self._awaited is None:
            self._awaited = process, self._shared.told(process)
            self._shared.later(self._go_on)

    def _go_on(self) -> None:
        """If another process has not reacted, go on without it."""
        assert self._awaited is not None
        (process, told), self._awaited = self._awaited, None
        if self._shared.told(process) == told:
            self._silent[process] = told
        self._fill()

    def _reacts(self, turn: tuple[int, ...]) -> bool:
        """Whether the process of a turn has told something since it was left out."""
        process = _Turn._make(turn).process
        if process in self._silent and self._silent[process] != self._shared.told(process):
            del self._silent[process]
        return process not in self._silent

    # What is told

    def _publish(self, owner: str) -> None:
        priority, since = 0, 0
        if owner in self._waiting:
            line = min(line for line in self._lines if line[1] == owner)
            priority, since = line[0], self._since[next(iter(self._lines[line]))]
        self._shared.publish(
            Standing(
                self._checksums[owner],
                round(self._counters[owner]),
                round(self._begun.get(owner, 0.0)),
                self._waiting.get(owner, 0),
                priority,
                since,
            )
        )

    def _leave_line(self, permit: Permit) -> None:
        super()._leave_line(permit)
        del self._since[permit]
        self._publish(permit.owner)
        self._shared.tell(self.running, self.waiting)

    def _lift(self, owner: str) -> None:
        if owner in self._waiting:
            return
        counter, begun = self._shared.total(self._checksums[owner])
        if self._lines or self._shared.waiting:
            level = min((ended for *_, ended in self._turns()), default=self._shared.floor)
        else:
            level = self._shared.floor
            self._shared.raise_floor(counter - begun)  # it is served
        self._counters[owner] = self._counters.get(owner, 0.0) + max(0, level - counter)

    def _give(self, permit: Permit) -> None:
        if isinstance(permit, Slot):
            self._charge(permit)
            self._publish(permit.owner)
        self._shared.tell(self.running + 1, self.waiting)
        Permits._give(self, permit)

    def _settle(self, slot: Slot) -> None:
        super()._settle(slot)
        self._publish(slot.owner)

    def _forget_all(self) -> None:
        """Others may still be served."""

    def _account_of(self, owner: str) -> str:
        """The owner, or `OTHERS` if there is no room."""
        if owner not in self._counters:
            if len(self._counters) >= self._shared.clients - 1:
                self._forget_idle()
            if len(self._counters) >= self._shared.clients - 1:
                owner = OTHERS
            self._checksums[owner] = checksum(owner)
        return owner

    def _forget_idle(self) -> None:
        """Forget half of the clients that nobody serves: those with the least. The floor rises to them."""
        counters: dict[int, int] = {}
        served: set[int] = set()
        for _, standing in self._shared.standings():
            counters[standing.client] = counters.get(standing.client, 0) + standing.counter
            if standing.waiting or standing.begun:
                served.add(standing.client)
        idle = self._counters.keys() - self._waiting.keys() - self._running.keys()
        known = sorted(
            (counters[client], owner) for owner in idle if (client := self._checksums[owner]) not in served
        )
        for counter, owner in known[: -(-len(known) // 2)]:
            self._shared.raise_floor(counter)
            self._shared.forget(self._checksums.pop(owner))
            del self._counters[owner]
            self._begun.pop(owner, None)
            self._guesses.pop(owner, None)


def admission(slots: int, limits: Limits, queue: SharedQueue | None) -> Admission:
    """The slots of an engine, which processes share if there is a queue for all of them."""
    return Admission(slots, limits) if queue is None else SharedAdmission(slots, queue, limits)
