"""The quotas of owners: how many bytes they may still store, as far as that has to be looked up.

New objects are refused if there is no room. The end of an answer is always stored: an answer must not be
lost because of what was stored while it was generated.
"""

from collections import Counter

from sqlalchemy import Connection, bindparam, case, func, select

from antiphon.core.errors import RequestError
from antiphon.core.limits import LIMIT_EXCEEDED, Limits
from antiphon.store.schema import usage

ENOUGH_BYTES = 1024**3
"""Bytes: more than is stored within `ENOUGH_SECONDS` seconds."""
ENOUGH_SECONDS = 1.0
"""Seconds for which it is remembered that so much is left: a lookup costs a write as much as storing."""

EnoughUntil = dict[str, float]
"""Until when owners have enough left for certain, by the clock of the event loop."""

_OWN = func.sum(case((usage.c.owner == bindparam("owner"), usage.c.bytes), else_=0))
_SUMS = select(func.coalesce(_OWN, 0), func.coalesce(func.sum(usage.c.bytes), 0))  # as many rows as keys

_REFUSALS = {
    "response_bytes": ("This response", "Send less, or send it with 'store: false'."),
    "conversation_bytes": ("This conversation", "Delete some of its items, or begin another."),
    "stored_bytes": ("The data that you have stored", "Delete what you no longer need."),
    "all_stored_bytes": ("The data that all clients have stored", "Inform the operator of the server."),
}


def refusal(limit: str, limits: Limits, param: str | None) -> RequestError:
    """The error for exceeding a limit."""
    what, remedy = _REFUSALS[limit]
    max_bytes = getattr(limits, limit)
    message = f"{what} would have more than {max_bytes} bytes, the limit '{limit}' of this server. {remedy}"
    return RequestError(message, param=param, code=LIMIT_EXCEEDED)


class Quota:
    """The bytes that owners may still store, at the time `now`.

    `grown` are the bytes by which the objects of owners have grown in the transaction, or shrunk: the
    counters do not include them yet. `enough_until` outlives the transaction, and is shared by all.
    """

    def __init__(self, connection: Connection, limits: Limits, enough_until: EnoughUntil, now: float) -> None:
        self.limits = limits
        self.grown = Counter[str]()
        self._connection = connection
        self._enough_until = enough_until
        self._now = now
        self._found: dict[str, tuple[int, int]] = {}

    def exceeded(self, owner: str, adding: int = 0) -> str | None:
        """The name of the limit that an owner would exceed with this number of additional bytes."""
        if self._now < self._enough_until.get(owner, 0.0):
            return None
        own, total = self._remaining(owner)
        if own - self.grown[owner] < adding:
            return "stored_bytes"
        return "all_stored_bytes" if total - self.grown.total() < adding else None

    def check(self, owner: str, adding: int = 0, param: str | None = None) -> None:
        """Raise RequestError if an owner is over a limit."""
        over = self.exceeded(owner, adding)
        if over is not None:
            raise refusal(over, self.limits, param)

    def _remaining(self, owner: str) -> tuple[int, int]:
        """What is left before the transaction: for the owner's own limit, and for the total of all owners."""
        if owner not in self._found:
            own, total = self._connection.execute(_SUMS, {"owner": owner}).one()
            left = self.limits.stored_bytes - int(own), self.limits.all_stored_bytes - int(total)
            self._found[owner] = left
            if min(left) > ENOUGH_BYTES:
                self._enough_until[owner] = self._now + ENOUGH_SECONDS
        return self._found[owner]
