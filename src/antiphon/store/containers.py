"""Containers and their files, whose content is in blobs. Expired ones are not found."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, func, insert, select, update

from antiphon.core.errors import NotFoundError, RequestError
from antiphon.core.limits import LIMIT_EXCEEDED
from antiphon.store.blobs import BlobHold, hold, missing
from antiphon.store.database import Database, ResultRow, one_by_one
from antiphon.store.delete import delete_container_files, delete_parent
from antiphon.store.pages import Listing, existing, filled, page, sifted
from antiphon.store.records import ContainerFileRecord, ContainerRecord, Page, Paging
from antiphon.store.schema import container_files, containers
from antiphon.store.transaction import Transaction


class _Use(Struct, frozen=True):
    owner: str
    id: str
    interpreter: str
    now: float


class _Named(Struct, frozen=True):
    owner: str
    container_id: str
    file_id: str


def missing_container(container_id: str) -> NotFoundError:
    """There is no such container: it has expired, or is someone else's."""
    return NotFoundError(f"Container with id '{container_id}' not found.", param="container_id")


def _missing_file(file_id: str) -> NotFoundError:
    return NotFoundError(f"There is no file '{file_id}' in this container.", param="file_id")


def _exists(owner: str, container_id: str) -> ColumnElement[bool]:
    condition = (containers.c.id == container_id) & (containers.c.owner == owner)
    return condition & (containers.c.expires_at > time.time())


def _container(row: ResultRow) -> ContainerRecord:
    return ContainerRecord(**row._mapping)


def _file(row: ResultRow) -> ContainerFileRecord:
    return ContainerFileRecord(**row._mapping)


def _values(record: Struct, table: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in table.c.keys()}  # noqa: SIM118


@one_by_one
def _create(transaction: Transaction, record: ContainerRecord) -> None:
    transaction.execute(insert(containers).values(**_values(record, containers)))
    condition = (containers.c.owner == record.owner) & (containers.c.expires_at > record.created_at)
    count = select(func.count()).select_from(containers).where(condition)
    limit = transaction.quota.limits.containers
    if transaction.execute(count).scalar_one() > limit:
        message = (
            f"You have {limit} containers, the limit 'containers' of this server. Delete those not needed."
        )
        raise RequestError(message, code=LIMIT_EXCEEDED)


@one_by_one
def _use(transaction: Transaction, use: _Use) -> ContainerRecord | None:
    condition = _exists(use.owner, use.id)
    row = transaction.execute(select(containers).where(condition).with_for_update()).first()
    if row is None:
        return None
    record = _container(row)
    values = {"last_active_at": use.now, "expires_at": use.now + record.minutes * 60}
    transaction.execute(update(containers).where(condition).values(**values, interpreter=use.interpreter))
    return record


@one_by_one
def _put(transaction: Transaction, record: ContainerFileRecord) -> None:
    there = select(containers.c.id).where(_exists(record.owner, record.container_id)).with_for_update()
    if transaction.execute(there).first() is None:
        raise missing_container(record.container_id)
    condition = container_files.c.container_id == record.container_id
    same = select(container_files.c.id).where(condition & (container_files.c.path == record.path))
    delete_container_files(transaction, transaction.execute(same).scalars().all())
    if not hold(transaction, BlobHold(record.owner, record.digest, record.id, None)):
        raise missing(record.digest)
    transaction.execute(insert(container_files).values(**_values(record, container_files)))
    count = select(func.count()).select_from(container_files).where(condition)
    limit = transaction.quota.limits.container_files
    if transaction.execute(count).scalar_one() > limit:
        message = f"A container has at most {limit} files, the limit 'container_files' of this server."
        raise RequestError(message, code=LIMIT_EXCEEDED)


@one_by_one
def _delete_file(transaction: Transaction, named: _Named) -> bool:
    file = _find_file(transaction.connection, named)
    if file is None:
        return False
    delete_container_files(transaction, [file.id])
    return True


def _find(connection: Connection, owner: str, container_id: str) -> ContainerRecord | None:
    row = connection.execute(select(containers).where(_exists(owner, container_id))).first()
    return _container(row) if row else None


def _listing(owner: str, name: str | None) -> Listing:
    """The ids of an owner's containers. Expired ones are there until they are swept."""
    query = select(containers.c.id).where(containers.c.owner == owner)
    unfiltered = Listing(query, (containers.c.created_at, containers.c.id))
    rows = query if name is None else query.where(containers.c.name == name)
    return Listing(rows, unfiltered.keys, unfiltered, sieve=containers.c.expires_at > time.time())


def _records(connection: Connection, ids: Sequence[str]) -> list[ContainerRecord]:
    """Those that are still there."""
    rows = connection.execute(select(containers).where(containers.c.id.in_(ids)))
    records = {row.id: _container(row) for row in rows}
    return [records[container_id] for container_id in ids if container_id in records]


def _require(connection: Connection, owner: str, container_id: str) -> None:
    if _find(connection, owner, container_id) is None:
        raise missing_container(container_id)


def _find_file(connection: Connection, named: _Named) -> ContainerFileRecord | None:
    _require(connection, named.owner, named.container_id)
    condition = (container_files.c.id == named.file_id) & (
        container_files.c.container_id == named.container_id
    )
    row = connection.execute(select(container_files).where(condition)).first()
    return _file(row) if row else None


def _files(
    connection: Connection, owner: str, container_id: str, paging: Paging
) -> Page[ContainerFileRecord]:
    query = select(container_files).where(container_files.c.container_id == container_id)
    with existing(lambda: _require(connection, owner, container_id)):
        listing = Listing(query, (container_files.c.created_at, container_files.c.id))
        row_page = page(connection, listing, paging)
    return Page([_file(row) for row in row_page.data], row_page.has_more)


class SqlContainers:
    """`Containers`, on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, record: ContainerRecord) -> None:
        await self._database.write(_create, record)

    async def get(self, owner: str, container_id: str) -> ContainerRecord | None:
        return await self._database.read(_find, owner, container_id)

    async def list(self, owner: str, name: str | None, paging: Paging) -> Page[ContainerRecord]:
        listing = _listing(owner, name)
        return await filled(
            partial(sifted, self._database, listing, paging), partial(self._database.read, _records)
        )

    async def use(
        self, owner: str, container_id: str, interpreter: str, now: float
    ) -> ContainerRecord | None:
        return await self._database.write(_use, _Use(owner, container_id, interpreter, now))

    async def delete(self, owner: str, container_id: str) -> bool:
        return await delete_parent(self._database, containers, _exists(owner, container_id))

    async def put_file(self, record: ContainerFileRecord) -> None:
        await self._database.write(_put, record)

    async def get_file(self, owner: str, container_id: str, file_id: str) -> ContainerFileRecord:
        record = await self._database.read(_find_file, _Named(owner, container_id, file_id))
        if record is None:
            raise _missing_file(file_id)
        return record

    async def list_files(self, owner: str, container_id: str, paging: Paging) -> Page[ContainerFileRecord]:
        return await self._database.read(_files, owner, container_id, paging)

    async def delete_file(self, owner: str, container_id: str, file_id: str) -> None:
        if not await self._database.write(_delete_file, _Named(owner, container_id, file_id)):
            raise _missing_file(file_id)
