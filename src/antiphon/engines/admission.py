"""Chooses the generations that run now; the others wait: by priority, then in fair shares, then in order.

Engines never hold more requests than they can work on: a request that waits inside an engine cannot be
cancelled, one that waits here can. A client cannot take all places in the queue.
"""

from antiphon.core.errors import AntiphonError, EngineBusyError
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.permits import Elsewhere, Permits
from antiphon.engines.engine import Load


class Admission(Permits):
    """The slots of an engine: so many generations run, and as many requests wait as the limits allow.

    A client is a key or, without keys, an address. All background responses count as one client, and so do
    the batches of each key.
    """

    def __init__(self, slots: int, limits: Limits = DEFAULTS, elsewhere: Elsewhere | None = None) -> None:
        super().__init__(slots, queue=limits.waiting, owner_queue=limits.client_waiting, elsewhere=elsewhere)

    @property
    def load(self) -> Load:
        """How busy the engine is."""
        return Load(self.running, self.waiting, self.capacity)

    def refusal(self, *, of_owner: bool) -> AntiphonError:
        if of_owner:
            return EngineBusyError("Too many requests of this client are waiting. Try again in a moment.")
        return EngineBusyError()
