"""Chooses the generations that run now; the others wait: by priority, then in fair shares, then in order.

Engines never hold more requests than they can work on: a request that waits inside an engine cannot be
cancelled, one that waits here can. A client cannot take all places in the queue.

Shares are fair by tokens: each client has a virtual token counter (Sheng et al. 2024), to which the tokens
of its prompts are added, and twice those of its answers, which take longer. A slot that becomes free goes to
the client with the least. A client that begins to wait is lifted to the least of those that wait, as it was
before the answers that run, so that it cannot save up turns. How long an answer becomes is not known when it
begins: it counts as the last ones of its client did, and when it has ended, as what it was. So two clients
that always wait are served the same, up to the answers that the slots hold. Where several processes share the
slots, see `shared_admission.py`.
"""

from collections.abc import Callable

from antiphon.core.errors import AntiphonError, EngineBusyError
from antiphon.core.limits import CLIENT, DEFAULTS, Limits
from antiphon.core.permits import Permit, Permits, own_priority
from antiphon.engines.engine import Load

GENERATED_WEIGHT = 2.0
"""What a token of an answer counts, where one of a prompt counts 1."""
FIRST_GUESS = 100.0
"""The tokens of the first answer of a client, until they are known."""
LEARNED = 0.5
"""How much the last answer is of the guess for the next one."""
UNKNOWN = 100
"""The tokens of work that is not counted, such as scores."""
KEPT_CLIENTS = 10_000
"""With more clients than these, those that would be lifted anyway are forgotten."""


class Slot(Permit):
    """A permit of an engine. What was `generated` is counted when it is left."""

    def __init__(self, admission: "Admission", start: Callable[[], object], priority: int) -> None:
        super().__init__(admission, start, CLIENT.get(), own_priority(priority))
        self.prompt_tokens = UNKNOWN
        self.max_tokens = 0
        self.generated = 0
        self.charged = 0.0
        """What was added to the counter of its client."""


class Admission(Permits):
    """The slots of an engine: so many generations run, and as many requests wait as the limits allow.

    A client is a key or, without keys, an address. All background responses count as one client, and so do
    the batches of each key.
    """

    def __init__(self, slots: int, limits: Limits = DEFAULTS) -> None:
        super().__init__(slots, queue=limits.waiting, owner_queue=limits.client_waiting)
        self._counters: dict[str, float] = {}
        self._begun: dict[str, float] = {}  # the part of the counters that is of answers which run
        self._guesses: dict[str, float] = {}  # the tokens of the next answer of a client
        self._floor = 0.0  # the least of those that wait, or waited last

    @property
    def load(self) -> Load:
        """How busy the engine is."""
        return Load(self.running, self.waiting, self.capacity)

    def enter(
        self, start: Callable[[], object], priority: int = 0, tokens: tuple[int, int] = (UNKNOWN, 0)
    ) -> Slot:
        """See `Permits.enter`. `tokens` are those of the prompt, and the most of the answer."""
        slot = Slot(self, start, priority)
        slot.prompt_tokens, slot.max_tokens = tokens
        self._lift(slot.owner)
        self._admit(slot)
        return slot

    def leave(self, permit: Permit) -> None:
        if isinstance(permit, Slot) and permit.given:
            self._settle(permit)
        super().leave(permit)
        if not self.running and not self.waiting:
            self._forget_all()

    def refusal(self, *, of_owner: bool) -> AntiphonError:
        if of_owner:
            return EngineBusyError("Too many requests of this client are waiting. Try again in a moment.")
        return EngineBusyError()

    def _forget_all(self) -> None:
        """Nobody runs or waits."""
        self._counters.clear()
        self._begun.clear()
        self._guesses.clear()
        self._floor = 0.0

    def _lift(self, owner: str) -> None:
        """A client that has none waiting begins to wait: not before those that waited all the time."""
        if owner in self._waiting:
            return
        self._floor = min(map(self._ended, self._waiting), default=self._floor)
        self._counters[owner] = max(self._counters.get(owner, 0.0), self._floor)
        if len(self._counters) > KEPT_CLIENTS:
            kept = {*self._waiting, *self._running, owner}
            self._counters = {
                name: count for name, count in self._counters.items() if count > self._floor or name in kept
            }
            self._guesses = {name: self._guesses[name] for name in self._guesses.keys() & self._counters}
            self._begun = {name: self._begun[name] for name in self._begun.keys() & self._counters}

    def _ended(self, owner: str) -> float:
        """The counter of a client without its answers that run."""
        return self._counters[owner] - self._begun.get(owner, 0.0)

    def _share(self, owner: str) -> tuple[float, ...]:
        return self._counters[owner], *super()._share(owner)

    def _give(self, permit: Permit) -> None:
        if isinstance(permit, Slot):
            self._floor = max(self._floor, self._ended(permit.owner))
            self._charge(permit)
        super()._give(permit)

    def _charge(self, slot: Slot) -> None:
        """Count an answer that begins, by a guess."""
        guess = min(self._guesses.get(slot.owner, FIRST_GUESS), slot.max_tokens)
        slot.charged = slot.prompt_tokens + GENERATED_WEIGHT * guess
        self._counters[slot.owner] += slot.charged
        self._begun[slot.owner] = self._begun.get(slot.owner, 0.0) + slot.charged

    def _settle(self, slot: Slot) -> None:
        """Count what was generated, in place of what was guessed."""
        used = slot.prompt_tokens + GENERATED_WEIGHT * slot.generated
        self._counters[slot.owner] += used - slot.charged
        self._begun[slot.owner] -= slot.charged
        if slot.max_tokens:
            guess = self._guesses.get(slot.owner, float(slot.generated))
            self._guesses[slot.owner] = guess + LEARNED * (slot.generated - guess)
