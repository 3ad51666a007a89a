"""Connections to MCP servers: those that requests name, and those of the operator.

A connection to a server that a request names is for one answer, and is closed with it; the one that its tools
are listed on is kept for the calls for some time. Those of the operator
are opened at the start and shared by all answers (by those of one owner, if the server is stateful). They
are checked, and reopened after failures, with increasing delays.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256

import msgspec
import structlog
from msgspec import Struct

from antiphon.core.hosts import Listing
from antiphon.core.limits import Limits
from antiphon.core.tool_result import RemoteFailure
from antiphon.tools.mcp.connection import Connection, FailureError, Network, Target
from antiphon.tools.mcp.settings import Policy

LISTED = 60.0
"""Seconds for which a listing is good."""
MAX_LISTINGS = 256
SPARE = 30.0
"""Seconds for which the connection of a listing is kept for the calls of its answer."""
MAX_SPARE = 64
UNUSED = 600.0
"""Seconds after which an owner's own connection to a server of the operator's is closed."""
HEALTH = 30.0
"""Seconds between two checks of a connection of the operator's."""
FIRST_DELAY, LAST_DELAY = 1.0, 60.0
"""Seconds until a connection that broke is opened again: twice as long each time."""

log = structlog.get_logger(__name__)


class OperatorServer(Struct, frozen=True):
    """An MCP server of the operator's. Only the owners in `owners` may use it, if there are any.

    A `stateful` one has a connection for each owner. A `default` one is offered to every request.
    """

    target: Target
    policy: Policy = Policy()
    owners: frozenset[str] = frozenset()
    stateful: bool = False
    default: bool = False
    description: str = ""

    @property
    def label(self) -> str:
        """The label of the server, which clients use."""
        return self.target.label

    def admits(self, owner: str) -> bool:
        """Whether this owner may use it."""
        return not self.owners or owner in self.owners


class _KeptConnection(Struct):
    """A connection of the operator's, or the time of the next try. `lock`: one task at a time opens it."""

    lock: asyncio.Lock
    connection: Connection | None = None
    failures: int = 0
    retry_at: float = 0.0
    used_at: float = 0.0


class McpConnections:
    """All connections. `servers` are the operator's, by label."""

    def __init__(self, servers: Mapping[str, OperatorServer], network: Network, limits: Limits) -> None:
        self._servers = servers
        self._network = network
        self._limits = limits
        self._kept: dict[tuple[str, str], _KeptConnection] = {}
        self._listings: dict[str, tuple[float, Listing]] = {}
        self._spare: dict[str, tuple[Connection, asyncio.TimerHandle]] = {}  # by key, as the listings
        self._closing: set[asyncio.Task[None]] = set()
        self._changed_at: dict[str, float] = {}  # by key
        self._maintenance: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the connections of the operator's servers in the background, and check them from now on."""
        self._maintenance = asyncio.create_task(self._maintain())

    async def close(self) -> None:
        """Close all of them."""
        if self._maintenance is not None:
            self._maintenance.cancel()
            await asyncio.gather(self._maintenance, return_exceptions=True)
        connections = [kept.connection for kept in self._kept.values() if kept.connection is not None]
        for key in [*self._spare]:
            self._close_spare(key)
        await asyncio.gather(
            *self._closing, *(connection.close() for connection in connections), return_exceptions=True
        )
        await self._network.close()

    @asynccontextmanager
    async def lease(self, target: Target, owner: str) -> AsyncIterator["ConnectionLease"]:
        """The right to use a connection to the target."""
        lease = ConnectionLease(self, target, owner)
        try:
            yield lease
        finally:
            await lease.close()

    async def listing(self, target: Target, owner: str) -> Listing:
        """The tools of a server, requested or cached. It never raises: a listing may have an error."""
        key = self._key(target, owner)
        until, known = self._listings.get(key, (0.0, None))
        if known is not None and time.monotonic() < until:
            return known
        try:
            connection = await self.take(target, owner)
            try:
                asked = time.monotonic()
                listing = Listing(target.label, await connection.tools())
            except BaseException:
                await self.give(connection)
                raise
        except FailureError as error:
            return Listing(target.label, error=error.failure.message)
        self._keep(key, connection)
        if self._changed_at.get(key, 0.0) < asked:  # else it may be the list from before
            self._listings[key] = time.monotonic() + LISTED, listing
        while len(self._listings) > MAX_LISTINGS:
            del self._listings[next(iter(self._listings))]
        return listing

    async def take(self, target: Target, owner: str) -> Connection:
        """A connection that works. Raises FailureError."""
        if (server := self._operators(target)) is not None:
            return await self._shared(server, owner if server.stateful else "")
        connection, timer = self._spare.pop(self._key(target, owner), (None, None))
        if timer is not None:
            timer.cancel()
        if connection is not None and connection.alive:
            return connection
        connection = Connection(target, self._network, self._limits, self._forgetting(target, owner))
        await connection.open()
        return connection

    async def give(self, connection: Connection) -> None:
        """An answer does not need it any more."""
        if self._operators(connection.target) is None:
            await connection.close()

    def _keep(self, key: str, connection: Connection) -> None:
        """Keep the connection of a listing for the calls: a session for each would cost twice as much."""
        if self._operators(connection.target) is not None:
            return
        self._close_spare(key)
        timer = asyncio.get_running_loop().call_later(SPARE, self._close_spare, key)
        self._spare[key] = connection, timer
        if len(self._spare) > MAX_SPARE:
            self._close_spare(next(iter(self._spare)))

    def _close_spare(self, key: str) -> None:
        connection, timer = self._spare.pop(key, (None, None))
        if connection is not None and timer is not None:
            timer.cancel()
            closing = asyncio.ensure_future(connection.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _forgetting(self, target: Target, owner: str) -> Callable[[], None]:
        """A function that drops the listing of a server, which has changed."""
        key = self._key(target, owner)

        def forget() -> None:
            self._listings.pop(key, None)
            self._changed_at[key] = time.monotonic()
            while len(self._changed_at) > MAX_LISTINGS:
                del self._changed_at[next(iter(self._changed_at))]

        return forget

    def _operators(self, target: Target) -> OperatorServer | None:
        server = self._servers.get(target.label)
        return server if server is not None and server.target is target else None

    def _key(self, target: Target, owner: str) -> str:
        """Equal for owners that may share a listing. It contains no secret."""
        if (server := self._operators(target)) is not None:
            owner = owner if server.stateful else ""
        return sha256(msgspec.msgpack.encode((owner, target))).hexdigest()

    # The operator's

    async def _shared(self, server: OperatorServer, owner: str) -> Connection:
        kept = self._kept.setdefault((server.label, owner), _KeptConnection(asyncio.Lock()))
        kept.used_at = time.monotonic()
        async with kept.lock:
            if kept.connection is not None and kept.connection.alive:
                return kept.connection
            if time.monotonic() < kept.retry_at:
                raise FailureError(
                    RemoteFailure("protocol", -32000, "It is not running. It will be started again soon.")
                )
            await self._open(server, owner, kept)
            assert kept.connection is not None
            return kept.connection

    async def _open(self, server: OperatorServer, owner: str, kept: _KeptConnection) -> None:
        """Open a connection, or remember when to try again. Raises FailureError."""
        if kept.connection is not None:
            await kept.connection.close()
        forget = self._forgetting(server.target, owner)
        forget()  # it may be another version of it
        kept.connection = connection = Connection(
            server.target, self._network, self._limits, forget, listens=True
        )
        try:
            await connection.open()
        except FailureError as error:
            delay = min(LAST_DELAY, FIRST_DELAY * 2**kept.failures)
            kept.failures += 1
            kept.retry_at = time.monotonic() + delay
            log.warning("an MCP server does not start", server=server.label, why=str(error), again_in=delay)
            raise
        kept.failures = 0
        log.info("an MCP server is connected", server=server.label)

    async def _maintain(self) -> None:
        """Open missing connections, check the others, and close unused ones."""
        checked = time.monotonic()
        while True:
            with suppress(FailureError):
                await asyncio.gather(*map(self._start_one, self._servers.values()), return_exceptions=True)
            if time.monotonic() - checked > HEALTH:
                checked = time.monotonic()
                await asyncio.gather(*map(self._check, self._kept.values()), return_exceptions=True)
            await self._close_unused()
            await asyncio.sleep(FIRST_DELAY)

    async def _start_one(self, server: OperatorServer) -> None:
        if not server.stateful:
            await self._shared(server, "")

    async def _check(self, kept: _KeptConnection) -> None:
        """Close a connection that does not answer, unless a call is under way: it is opened again."""
        connection = kept.connection
        if connection is not None and connection.alive:
            try:
                await connection.tools()
            except FailureError as error:
                if connection.working:
                    return
                log.warning("an MCP server does not answer", server=connection.target.label, why=str(error))
                await connection.close()

    async def _close_unused(self) -> None:
        """Close connections of single owners that they do not use any more."""
        old = time.monotonic() - UNUSED
        for key, kept in [*self._kept.items()]:
            if key[1] and kept.used_at < old and not kept.lock.locked():
                del self._kept[key]
                if kept.connection is not None:
                    await kept.connection.close()


class ConnectionLease:
    """A connection for one answer, opened when it is first needed, and again after a failure."""

    def __init__(self, connections: McpConnections, target: Target, owner: str) -> None:
        self._connections = connections
        self._target = target
        self._owner = owner
        self._taken: Connection | None = None
        self._taking = asyncio.Lock()  # calls may run in parallel

    async def connection(self) -> Connection:
        """The connection. Raises FailureError."""
        async with self._taking:
            if self._taken is None or not self._taken.alive:
                await self.close()
                self._taken = await self._connections.take(self._target, self._owner)
            return self._taken

    async def close(self) -> None:
        """Give it back."""
        taken, self._taken = self._taken, None
        if taken is not None:
            await self._connections.give(taken)


def labels(servers: Mapping[str, OperatorServer], owner: str) -> Sequence[str]:
    """The labels that an owner may use."""
    return [label for label, server in servers.items() if server.admits(owner)]
