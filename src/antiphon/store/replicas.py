"""The work of replicas over all servers, and which are drained: see `core/shared_loads.py`.

A process has a row while it has work, with all of its loads, so that it is written and read at once. The
clock is the database's, see `store/key_limits.py`.
"""

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, bindparam, delete, select, text

from antiphon.core.errors import StoreError
from antiphon.core.shared_loads import Drain, SharedReplicas, ToldLoads
from antiphon.store.database import Database, apart, one_by_one
from antiphon.store.key_limits import database_time
from antiphon.store.schema import drained_replicas, replica_loads
from antiphon.store.store import REPLICAS
from antiphon.store.transaction import Transaction

KEPT_SECONDS = 60.0
"""How long the row of a process is kept that was killed."""

_loads: msgspec.json.Decoder[dict[str, int]] = msgspec.json.Decoder(dict[str, int])
_encode = msgspec.json.Encoder().encode

_TELL = text(
    "INSERT INTO replica_loads (process, server, told_at, loads) VALUES (:process, :server, :now, :loads)"
    " ON CONFLICT (process) DO UPDATE SET told_at = excluded.told_at, loads = excluded.loads"
)
_DRAIN = text(
    "INSERT INTO drained_replicas (replica, drained_by, drained_at) VALUES (:replica, :by, :now)"
    " ON CONFLICT (replica) DO NOTHING"
)
_OTHERS = select(replica_loads.c.process, replica_loads.c.told_at, replica_loads.c.loads).where(
    replica_loads.c.server != bindparam("server")
)
_DRAINED = select(drained_replicas.c.replica, drained_replicas.c.drained_by, drained_replicas.c.drained_at)


class _Telling(Struct, frozen=True):
    server: str
    process: str
    loads: Mapping[str, int]
    begins: bool


def _shared(connection: Connection, server: str, now: float | None = None) -> SharedReplicas:
    """What servers have told besides this one."""
    now = database_time(connection) if now is None else now
    others = connection.execute(_OTHERS, {"server": server})
    return SharedReplicas(
        [ToldLoads(process, max(0.0, now - at), _loads.decode(loads)) for process, at, loads in others],
        {replica: Drain(by, at) for replica, by, at in connection.execute(_DRAINED)},
    )


@apart
def _tell(transaction: Transaction, tellings: Sequence[_Telling]) -> list[SharedReplicas]:
    """Each row is written by its own process only: none waits for another."""
    connection = transaction.connection
    if connection.dialect.name == "postgresql":  # after a crash, it is told again
        connection.execute(text("SET LOCAL synchronous_commit = off"))
    answers = []
    for telling in tellings:
        now = database_time(connection)
        if telling.loads:
            values: dict[str, Any] = {"process": telling.process, "server": telling.server, "now": now}
            connection.execute(_TELL, {**values, "loads": _encode(telling.loads)})
        else:
            _forget(transaction, telling.process)
        if telling.begins:
            transaction.wake(REPLICAS)
        answers.append(_shared(connection, telling.server, now))
    return answers


def _forget(transaction: Transaction, process: str) -> None:
    transaction.execute(delete(replica_loads).where(replica_loads.c.process == process))


@one_by_one
def _leave(transaction: Transaction, process: str) -> None:
    _forget(transaction, process)


class _Change(Struct, frozen=True):
    """Drain a replica or, without `by`, resume it. After `deadline` nobody expects it any more."""

    replica: str
    deadline: float
    by: str | None = None


@one_by_one
def _change(transaction: Transaction, change: _Change) -> bool:
    """Whether it was made in time."""
    now = database_time(transaction.connection)  # waits for a database that is away
    if monotonic() > change.deadline:
        return False
    if change.by is None:
        transaction.execute(delete(drained_replicas).where(drained_replicas.c.replica == change.replica))
    else:
        transaction.execute(_DRAIN, {"replica": change.replica, "by": change.by, "now": now})
    transaction.wake(REPLICAS)
    return True


def forget_replica_loads(transaction: Transaction, now: float) -> None:
    """Delete rows of processes that were killed."""
    transaction.execute(delete(replica_loads).where(replica_loads.c.told_at < now - KEPT_SECONDS))


class SqlReplicas:
    """`Replicas`, on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def tell(
        self, server: str, process: str, loads: Mapping[str, int], *, begins: bool
    ) -> SharedReplicas:
        return await self._database.write(_tell, _Telling(server, process, loads, begins))

    async def read(self, server: str) -> SharedReplicas:
        return await self._database.read(_shared, server)

    async def leave(self, process: str) -> None:
        await self._database.write(_leave, process)

    async def drain(self, replica: str, by: str, within: float) -> None:
        await self._make(_Change(replica, monotonic() + within, by))

    async def resume(self, replica: str, within: float) -> None:
        await self._make(_Change(replica, monotonic() + within))

    async def _make(self, change: _Change) -> None:
        if not await self._database.write(_change, change):
            raise StoreError("The database did not answer in time.")
