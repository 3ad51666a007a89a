"""Lets a request wait whose prompt begins like one that is being computed.

llama.cpp finds the beginning of a prompt in slots that are idle, so of two such requests that come together
it would compute both. The second waits here until the first has ended, and then gets its slot. But after the
first prompt was computed, the second waits no longer than the common part took: computing it again is then
no slower than the waiting was, however long the first answer becomes. If an idle slot has as much of the
prompt, it does not wait.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import copy_context

from msgspec import Struct

from antiphon.core.turn import Adapter
from antiphon.engines.engine import GenerationRequest, NextTokenRequest

SHARED_TOKENS = 256
"""Prompts that have fewer tokens in common do not wait for each other: a batch of llama.cpp's."""


class _Content(Struct, frozen=True):
    """The tokens in a slot, computed with these adapters."""

    lora: tuple[Adapter, ...] | None
    ids: tuple[int, ...]

    def shared(self, other: "_Content") -> int:
        """The number of tokens that both begin with; 0 if there are few."""
        begin = slice(SHARED_TOKENS)
        if self.lora != other.lora or self.ids[begin] != other.ids[begin]:
            return 0
        shared = common_length(self.ids, other.ids)
        return shared if shared >= SHARED_TOKENS else 0


class PromptTicket:
    """The prompt of one request. It waits for that of its `leader`, if it has one."""

    def __init__(self, prompts: "SharedPrompts", content: _Content, start: Callable[[], None]) -> None:
        self._prompts = prompts
        self._timer: asyncio.TimerHandle | None = None
        self._until = 0.0  # the time until which it waits
        self._since: float | None = None  # the time at which the engine got it
        self._seconds: float | None = None  # the time that the engine took for it
        self._start: Callable[[], None] | None = start
        self._context = copy_context()  # another request's end may start this one
        self.content = content
        self.leader: PromptTicket | None = None

    def enter(self) -> None:
        """Be computed, now or later."""
        self._prompts.enter(self)

    @property
    def in_slot(self) -> bool:
        """The engine has it."""
        return self._since is not None

    @property
    def is_computed(self) -> bool:
        """A slot contains it."""
        return self._seconds is not None

    def mark_in_slot(self) -> None:
        """The engine has it now."""
        self._since = asyncio.get_running_loop().time()
        self._prompts.started += 1

    def mark_computed(self) -> None:
        """The engine has computed the prompt."""
        assert self._since is not None
        self._seconds = asyncio.get_running_loop().time() - self._since
        for other in self._prompts.waiting_for(self):
            other.follow(self)

    def follow(self, leader: "PromptTicket") -> None:
        """Wait until this leader's prompt is computed, and then as long as is worth it."""
        self.leader = leader
        if self._timer is not None:
            self._timer.cancel()
        if leader._since is not None and leader._seconds is not None:
            part = self.content.shared(leader.content) / len(leader.content.ids)
            self._until = max(self._until, leader._since + leader._seconds * (1 + part))
            self._timer = asyncio.get_running_loop().call_at(self._until, self._prompts.begin, self)

    def start(self) -> None:
        """Compute it, unless it was started before."""
        start = self.stop()
        if start is not None:
            self._context.run(start)

    def stop(self) -> Callable[[], None] | None:
        """Wait no longer; returns what would have started it."""
        self.leader = None
        if self._timer is not None:
            self._timer.cancel()
        start, self._start = self._start, None
        return start

    def leave(self) -> None:
        """It is over, or not wanted any more."""
        self._prompts.leave(self)


class SharedPrompts:
    """The prompts of the requests of an engine with this number of slots. As many may wait."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self.found = True
        """The engine looks for prompts in its slots."""
        self.started = 0
        """How many prompts the engine has got."""
        self._tickets: dict[PromptTicket, None] = {}  # in the order of their coming
        self._idle: list[_Content] = []  # of slots that are not in use; the last that became so is the last

    @property
    def waiting(self) -> int:
        """How many tickets wait for another."""
        return sum(ticket.leader is not None for ticket in self._tickets)

    @property
    def in_slots(self) -> bool:
        """Whether the engine has any of the requests."""
        return any(ticket.in_slot for ticket in self._tickets)

    def ticket(self, request: GenerationRequest, start: Callable[[], None]) -> PromptTicket:
        """A ticket that calls `start` when the prompt of this request should be computed."""
        # A seed costs the cache (`llama_request`), and prompts with media are sent as text.
        cached = self.found and request.sampling.seed is None and not request.prompt.media
        return PromptTicket(
            self, _Content(request.sampling.lora, request.prompt.ids if cached else ()), start
        )

    def enter(self, ticket: PromptTicket) -> None:
        """Start it, or let it wait."""
        leader = self._leader_of(ticket.content)
        self._tickets[ticket] = None
        if leader is None:
            self.begin(ticket)
        else:
            ticket.follow(leader)

    def _leader_of(self, content: _Content) -> PromptTicket | None:
        """The request to wait for: mostly for the common part of both prompts."""
        if self.waiting >= self._slots:
            return None
        cached = max((content.shared(idle) for idle in self._idle), default=0)
        for ticket in self._tickets:
            shared = content.shared(ticket.content)
            if ticket.in_slot and shared > cached and 2 * shared >= len(ticket.content.ids):
                return ticket
        return None

    def waiting_for(self, leader: PromptTicket) -> list[PromptTicket]:
        """The tickets that wait for this one."""
        return [ticket for ticket in self._tickets if ticket.leader is leader]

    def begin(self, ticket: PromptTicket) -> None:
        """Compute this one, which gets the slot that has most of it. The others that waited wait for it.

        If it has to wait for a slot, they do, too: in the order of the queue, which is fair to their clients.
        """
        others = [] if ticket.leader is None else self.waiting_for(ticket.leader)
        best = max(self._idle, key=ticket.content.shared, default=None)
        if best is not None and ticket.content.shared(best):
            self._idle.remove(best)
        ticket.start()
        for other in others:
            if other is not ticket and ticket.in_slot:
                other.follow(ticket)
            elif other is not ticket:
                other.start()

    def leave(self, ticket: PromptTicket) -> None:
        """It is over: the first that waits for it gets its slot."""
        self._tickets.pop(ticket, None)
        if ticket.is_computed:
            self._keep(ticket.content)
        ticket.stop()
        if waiting := self.waiting_for(ticket):
            self.begin(waiting[0])

    def keep(self, request: NextTokenRequest) -> None:
        """An idle slot has the beginning of these prompts now."""
        self._keep(_Content(request.sampling.lora, request.beginning.ids))

    def _keep(self, content: _Content) -> None:
        self._idle = [*self._idle, content][-self._slots :]


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of tokens that both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
