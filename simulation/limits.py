"""Keys with limits in simulations: the laws of what clients get that ask for too much.

The laws look from outside: at the answers that clients got, and when they had asked for them. They hold as
long as the database answers: without, each server goes on with its part.
"""

from random import Random
from typing import TYPE_CHECKING

from msgspec import Struct

from antiphon.core.accounts import Permissions
from antiphon.core.shared_limits import MINUTE
from simulation.laws import law

if TYPE_CHECKING:
    from simulation.world import Plan, World

LIMITING = 0.08
"""The share of simulations in which keys have limits."""
OF_THE_DATABASE = {"away", "all away", "slow", "full", "unsure"}
"""The failures with which servers go on alone, or do not know what was stored."""
REFUSED = "rate_limit_exceeded"
"""The code of what is refused."""


class KeyRules(Struct, frozen=True):
    """The limits of every key."""

    requests: int
    tokens: int
    concurrent: int

    @property
    def permissions(self) -> Permissions:
        """Those of a key."""
        return Permissions(
            requests_per_minute=self.requests, tokens_per_minute=self.tokens, concurrent=self.concurrent
        )


def key_rules(seed: int) -> KeyRules | None:
    """The limits of keys, or None. The seed's own number decides: other simulations stay what they were."""
    rng = Random(f"limits {seed}")
    if rng.random() >= LIMITING:
        return None
    return KeyRules(rng.choice((4, 8, 40)), rng.choice((3000, 100_000)), rng.choice((1, 2, 4)))


class Admitted:
    """The answers that clients of each key got: when each was asked for, and was there."""

    def __init__(self, rules: KeyRules, plan: "Plan", skew: float) -> None:
        self.rules = rules
        self.is_exact = not OF_THE_DATABASE & {*plan.troubles}
        self._skew = skew  # of clocks: that of a SQLite file is the machine's
        self._times: dict[str, list[tuple[float, float]]] = {}

    def add(self, name: str, asked: float, answered: float) -> None:
        """An answer was given: no more may be in any time than the limit, and what is refilled in it."""
        times = self._times.setdefault(name, [])
        times.append((asked, answered))
        for begin, _ in times:
            number = sum(begin <= asked for asked, _ in times)
            most = self.rules.requests * (1 + (answered - begin + self._skew) / MINUTE)
            law(not self.is_exact or number <= most + 1e-6, f"{name} gets {number} answers, not {most:.1f}")


def check_running(world: "World") -> None:
    """All servers together have no more answers of a key under way than it may have."""
    if world.admitted is None or not world.admitted.is_exact:
        return
    for name in world.names:
        accounts = [server.app.keys.find(f"key-{name}") for server in world.servers]
        running = sum(account._running for account in accounts if account is not None)
        law(running <= world.admitted.rules.concurrent, f"{name} has {running} answers at a time")
