"""The work of replicas that several servers share: what each tells the others, and for how long it counts.

A server tells how much it has at each replica a few times a second, while it has any and that changes, and
at least once a second. What it told counts for `LEASE_SECONDS`: that of a server that was killed, no longer.
All times of the database are by its own clock, and servers measure only how long ago something was told.

Which replicas are drained is told, too, and holds until they are resumed, whatever servers do.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from msgspec import Struct

LEASE_SECONDS = 3.0
"""How long the work that a process has told of is counted by others."""
_PORTS = {"http": 80, "https": 443}


class Drain(Struct, frozen=True):
    """Who has drained a replica, and when, in seconds since 1970."""

    by: str
    at: float


class ToldLoads(Struct, frozen=True):
    """What a process of another server told `age` seconds ago: its generations, by replica."""

    process: str
    age: float
    loads: Mapping[str, int]


class SharedReplicas(Struct, frozen=True):
    """What the database knows: the loads of other servers, and the replicas that are drained."""

    others: Sequence[ToldLoads] = ()
    drained: Mapping[str, Drain] = {}


class OtherLoads:
    """What other servers have told, as long as it counts. Times are those of any clock of this process."""

    def __init__(self) -> None:
        self._told: list[tuple[float, ToldLoads]] = []  # each until when

    def hear(self, others: Sequence[ToldLoads], asked: float) -> None:
        """The database was `asked` at this time, and knows this."""
        self._told = [(asked + LEASE_SECONDS - told.age, told) for told in others]

    def sums(self, now: float) -> Mapping[str, int]:
        """The generations of all others, by replica; what is too old is forgotten."""
        self._told = [(until, told) for until, told in self._told if until > now]
        total = Counter[str]()
        for _, told in self._told:
            total.update(told.loads)
        return total

    @property
    def processes(self) -> frozenset[str]:
        """Those whose generations are counted."""
        return frozenset(told.process for _, told in self._told)

    @property
    def until(self) -> float | None:
        """When the first is too old; None if there are no others."""
        return min((until for until, _ in self._told), default=None)


def shared_name(name: str, host: str) -> str | None:
    """The name of a replica among all servers, where `name` is the one at the machine `host`.

    Spellings of one URL, which may differ between servers, have one name. A loopback address is another
    server at each machine. None if it is not a URL: it runs in this server.
    """
    try:
        parts = urlsplit(name)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not parts.hostname:
        return None
    address = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    shared = f"{parts.scheme}://{address}:{port}{parts.path.rstrip('/')}"
    return f"{shared} {host}" if _is_loopback(parts.hostname) else shared


def _is_loopback(hostname: str) -> bool:
    try:
        return ip_address(hostname).is_loopback
    except ValueError:
        return hostname == "localhost" or hostname.endswith(".localhost")
