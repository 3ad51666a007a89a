"""The limits of keys that all servers share: see `core/shared_limits.py` for what the rows mean.

A row of `key_limits` is locked while it changes, also for the places of its owner. The clock is the
database's: of PostgreSQL its own, of SQLite that of the machine, which all servers of one file have.
"""

import time
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Connection, delete, func, select, text, update

from antiphon.core.shared_limits import MINUTE, Held, Question, Taken
from antiphon.store.database import Database, apart, one_by_one
from antiphon.store.schema import key_limits, key_places, limit_servers
from antiphon.store.transaction import Transaction

SERVER_SECONDS = 600.0
"""How long a server counts that does not ask."""
KEPT_SECONDS = 86_400.0
"""How long rows without effect are kept."""

PLACES = "places"
"""The kind of the row that is locked for places."""

ROUNDING = 1e-6
"""Seconds that a lease may be too long: times since 1970 are not more precise."""

_ROW = text("INSERT INTO key_limits (owner, kind, full_at) VALUES (:owner, :kind, 0) ON CONFLICT DO NOTHING")
_SERVER = text(
    "INSERT INTO limit_servers (server, seen_at) VALUES (:server, :now)"
    " ON CONFLICT (server) DO UPDATE SET seen_at = excluded.seen_at"
)
_PLACES = text(
    "INSERT INTO key_places (owner, server, places, until) VALUES (:owner, :server, :places, :until)"
    " ON CONFLICT (owner, server) DO UPDATE SET places = excluded.places, until = excluded.until"
)


class _Taking(Struct, frozen=True):
    server: str
    question: Question

    @property
    def row(self) -> tuple[str, str]:
        return self.question.owner, self.question.kind


class _Holding(Struct, frozen=True):
    server: str
    owner: str
    limit: int
    places: int
    seconds: float

    @property
    def row(self) -> tuple[str, str]:
        return self.owner, PLACES


def database_time(connection: Connection) -> float:
    """The time of the database."""
    if connection.dialect.name != "postgresql":
        return time.time()
    return float(connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())


def _lock(connection: Connection, owner: str, kind: str) -> float:
    """Lock the row of a limit; the time at which it is full."""
    connection.execute(_ROW, {"owner": owner, "kind": kind})
    row = (key_limits.c.owner == owner) & (key_limits.c.kind == kind)
    return float(connection.execute(select(key_limits.c.full_at).where(row).with_for_update()).scalar_one())


def answer(full_at: float, now: float, question: Question) -> tuple[float, Taken]:
    """When the limit is full, after this question, and the answer to it. Times are in seconds."""
    each = MINUTE / question.limit
    full_at = max(now, max(full_at, now) + question.settle * each)
    room = (now + MINUTE - full_at) / each
    # Of what is asked for in advance, others get their part.
    amount = max(question.least, min(question.most, room / 2))
    if (amount - room) * each > ROUNDING:
        amount = 0.0
    return full_at + amount * each, Taken(amount, room - amount)


@apart
def _asked(transaction: Transaction, questions: Sequence[_Taking | _Holding]) -> list[Taken | Held]:
    """Answer in the order of the rows, in which all servers lock them."""
    connection = transaction.connection
    if connection.dialect.name == "postgresql":  # a crash may forget what was used in a moment
        connection.execute(text("SET LOCAL synchronous_commit = off"))
    names = {question.server for question in questions}
    servers = {name: _servers(connection, name, database_time(connection)) for name in sorted(names)}
    answers: dict[int, Taken | Held] = {}
    for number, question in sorted(enumerate(questions), key=lambda entry: entry[1].row):
        if isinstance(question, _Taking):
            answers[number] = _take(connection, question, servers[question.server])
        else:
            answers[number] = _hold(connection, question, servers[question.server])
    return [answers[number] for number in range(len(questions))]


def _servers(connection: Connection, server: str, now: float) -> int:
    """The number of servers that have asked lately, with this one."""
    connection.execute(_SERVER, {"server": server, "now": now})
    lately = select(func.count()).where(limit_servers.c.seen_at > now - SERVER_SECONDS)
    return int(connection.execute(lately).scalar_one())


def _take(connection: Connection, asked: _Taking, servers: int) -> Taken:
    question = asked.question
    full_at = _lock(connection, question.owner, question.kind)
    now = database_time(connection)  # after the lock was waited for
    full_at, taken = answer(full_at, now, question)
    row = (key_limits.c.owner == question.owner) & (key_limits.c.kind == question.kind)
    connection.execute(update(key_limits).where(row).values(full_at=full_at))
    return replace(taken, servers=servers)


def _hold(connection: Connection, held: _Holding, servers: int) -> Held:
    _lock(connection, held.owner, PLACES)
    now = database_time(connection)
    of_owner = key_places.c.owner == held.owner
    others = of_owner & (key_places.c.server != held.server) & (key_places.c.until > now)
    taken = connection.execute(select(func.sum(key_places.c.places)).where(others)).scalar_one()
    most = held.limit - int(taken or 0)
    places = max(0, min(held.places, most))
    if places:
        values = {"owner": held.owner, "server": held.server, "places": places, "until": now + held.seconds}
        connection.execute(_PLACES, values)
    else:
        connection.execute(delete(key_places).where(of_owner & (key_places.c.server == held.server)))
    return Held(places, max(0, most - places), servers)


@one_by_one
def _leave(transaction: Transaction, server: str) -> None:
    for table in (limit_servers, key_places):
        transaction.execute(delete(table).where(table.c.server == server))


def forget_key_limits(transaction: Transaction, now: float) -> None:
    """Delete rows without effect."""
    before = now - KEPT_SECONDS
    for table, column in (
        (key_limits, key_limits.c.full_at),
        (limit_servers, limit_servers.c.seen_at),
        (key_places, key_places.c.until),
    ):
        transaction.execute(delete(table).where(column < before))


class SqlKeyLimits:
    """`KeyLimits`, on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def take(self, server: str, question: Question) -> Taken:
        taken = await self._database.write(_asked, _Taking(server, question))
        assert isinstance(taken, Taken)
        return taken

    async def hold(self, server: str, owner: str, limit: int, places: int, seconds: float) -> Held:
        held = await self._database.write(_asked, _Holding(server, owner, limit, places, seconds))
        assert isinstance(held, Held)
        return held

    async def leave(self, server: str) -> None:
        await self._database.write(_leave, server)
