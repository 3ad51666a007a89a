"""Containers without HTTP: created, listed and deleted, with their files; kept for the programs in them."""

import time
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import suppress
from pathlib import PurePosixPath

import msgspec

from antiphon.apis.containers.schema import (
    Container,
    ContainerFile,
    CreateContainer,
    CreateContainerFile,
    DeletedContainer,
    DeletedContainerFile,
    ExpiresAfter,
)
from antiphon.apis.lists import encode_objects
from antiphon.app.app import App
from antiphon.app.files import hold
from antiphon.app.ids import random_id
from antiphon.app.storage import Storage
from antiphon.core.errors import NotFoundError, RequestError
from antiphon.core.hosts import Note
from antiphon.core.limits import Limits
from antiphon.store.containers import missing_container
from antiphon.store.files import missing_file
from antiphon.store.records import ContainerFileRecord, ContainerRecord, FileRecord, Page, Paging
from antiphon.toolkits.code_interpreter.whole_python import HeldFile, Interpreters
from antiphon.tools.containers import WORKSPACE
from antiphon.tools.settings import check_container

USER, ASSISTANT = "user", "assistant"
AUTO = "auto"
"""The name of a container that was made for an answer."""


class ContainerKeeper:
    """Containers of the store: a `Keeper` for the programs in them."""

    def __init__(self, storage: Storage, limits: Limits) -> None:
        self._storage = storage
        self._minutes = limits.container_minutes

    async def check(self, owner: str, container: str | None, file_ids: Sequence[str]) -> None:
        if container is not None and await self._storage.store.containers.get(owner, container) is None:
            raise missing_container(container)
        await self._uploaded(owner, file_ids)

    async def has(self, owner: str, container: str, file_ids: Sequence[str]) -> bool:
        if await self._storage.store.containers.get(owner, container) is None:
            return False
        held = {file.digest for file in await self.files(owner, container)}
        return held.issuperset(file.digest for file in await self._uploaded(owner, file_ids))

    async def use(
        self, owner: str, container: str, interpreter: str, create: Sequence[str] | None
    ) -> str | None:
        containers = self._storage.store.containers
        record = await containers.use(owner, container, interpreter, time.time())
        if record is not None:
            return record.interpreter
        if create is None:
            raise missing_container(container)
        made = new_container(owner, container, AUTO, self._minutes)
        await self.create(msgspec.structs.replace(made, interpreter=interpreter), create)
        return None

    async def create(self, record: ContainerRecord, file_ids: Sequence[str]) -> None:
        """Make a container with copies of files. Raises NotFoundError, RequestError."""
        uploaded = await self._uploaded(record.owner, file_ids)
        await self._storage.store.containers.create(record)
        taken: set[str] = set()
        for file in uploaded:
            taken.add(path := _unused_name(file.filename, taken))
            await self.copy(record.owner, record.id, file, path)

    async def copy(self, owner: str, container: str, file: FileRecord, path: str) -> ContainerFileRecord:
        """Have an uploaded file in a container, too. Raises NotFoundError, RequestError."""
        record = ContainerFileRecord(
            id=random_id("cfile_", 24),
            owner=owner,
            container_id=container,
            created_at=time.time(),
            path=path,
            source=USER,
            digest=file.digest,
            size=file.size,
        )
        await self._storage.store.containers.put_file(record)
        return record

    async def files(self, owner: str, container: str) -> Sequence[HeldFile]:
        every = Paging("asc", limit=1_000_000)  # `container_files` is the limit that counts
        page = await self._storage.store.containers.list_files(owner, container, every)
        return [HeldFile(file.id, file.path, file.digest, file.size) for file in page.data]

    def content(self, owner: str, file: HeldFile) -> AsyncIterator[bytes]:
        return self._storage.store.blobs.read(owner, file.digest)

    async def write(self, owner: str, container: str, path: str, content: AsyncIterable[bytes]) -> HeldFile:
        file = await self.add(owner, container, path, content, ASSISTANT)
        return HeldFile(file.id, file.path, file.digest, file.size)

    async def add(
        self, owner: str, container: str, path: str, content: AsyncIterable[bytes], source: str
    ) -> ContainerFileRecord:
        """Store a file. Raises NotFoundError, RequestError."""
        file_id, now = random_id("cfile_", 24), time.time()
        blob = await hold(self._storage.store, owner, file_id, content)
        record = ContainerFileRecord(
            id=file_id,
            owner=owner,
            container_id=container,
            created_at=now,
            path=path,
            source=source,
            digest=blob.digest,
            size=blob.size,
        )
        try:
            await self._storage.store.containers.put_file(record)
        except BaseException:
            with suppress(NotFoundError):  # else a write whose caller is cancelled has been done
                await self._storage.store.containers.delete_file(owner, container, file_id)
            await self._storage.store.blobs.release(owner, file_id)
            raise
        return record

    async def remove(self, owner: str, container: str, file: HeldFile) -> None:
        await self._storage.store.containers.delete_file(owner, container, file.id)

    async def delete(self, owner: str, container: str) -> None:
        await self._storage.store.containers.delete(owner, container)

    async def _uploaded(self, owner: str, file_ids: Sequence[str]) -> list[FileRecord]:
        uploaded = []
        for file_id in file_ids:
            record = await self._storage.store.files.get(owner, file_id)
            if record is None:
                raise missing_file(file_id, "file_ids")
            uploaded.append(record)
        return uploaded


def new_container(owner: str, container: str, name: str, minutes: int) -> ContainerRecord:
    """A container without files, as of now."""
    now = time.time()
    return ContainerRecord(
        id=container,
        owner=owner,
        name=name,
        created_at=now,
        last_active_at=now,
        minutes=minutes,
        expires_at=now + minutes * 60,
    )


def _unused_name(name: str, taken: set[str]) -> str:
    """The name, with a number if it is taken."""
    path, number = PurePosixPath(name), 2
    while name in taken:
        name, number = f"{path.stem} ({number}){path.suffix}", number + 1
    return name


# Requests of clients


async def create(app: App, owner: str, wire: CreateContainer) -> bytes:
    """Make a container. Raises NotFoundError, RequestError."""
    _interpreters(app)
    given = {name: getattr(wire, name) for name in ("file_ids", "memory_limit", "network_policy", "skills")}
    try:
        notes = check_container(given, "", files=True)
    except RequestError as error:  # names fields of an object, which is not there in this request
        error.param = (error.param or "").removeprefix(".")
        error.message = error.message.replace("'.", "'")
        raise
    app.log_notes([Note(note.param.removeprefix("."), note.message) for note in notes])
    longest = app.limits.container_minutes
    minutes = longest if wire.expires_after is None else wire.expires_after.minutes
    app.limits.check_number("container_minutes", minutes, "expires_after.minutes")
    keeper = ContainerKeeper(app.storage, app.limits)
    record = new_container(owner, random_id("cntr_", 48), wire.name, minutes)
    await keeper.create(record, wire.file_ids or ())
    return msgspec.json.encode(_resource(record))


async def list_containers(app: App, owner: str, name: str | None, paging: Paging) -> bytes:
    """A page of containers. Raises NotFoundError for ids in `paging`."""
    page = await app.storage.store.containers.list(owner, name, paging)
    return encode_objects([_resource(record) for record in page.data], has_more=page.has_more)


async def retrieve(app: App, owner: str, container_id: str) -> bytes:
    """One container. Raises NotFoundError."""
    record = await app.storage.store.containers.get(owner, container_id)
    if record is None:
        raise missing_container(container_id)
    return msgspec.json.encode(_resource(record))


async def delete(app: App, owner: str, container_id: str) -> bytes:
    """Delete a container with its files, and end its programs. Raises NotFoundError."""
    if not await app.storage.store.containers.delete(owner, container_id):
        raise missing_container(container_id)
    if app.interpreters is not None:
        await app.interpreters.kill(container_id)
    return msgspec.json.encode(DeletedContainer(container_id))


async def copy_file(app: App, owner: str, container_id: str, wire: CreateContainerFile) -> bytes:
    """Copy an uploaded file into a container. Raises NotFoundError, RequestError."""
    file = await app.storage.store.files.get(owner, wire.file_id)
    if file is None:
        raise missing_file(wire.file_id)
    keeper = ContainerKeeper(app.storage, app.limits)
    return msgspec.json.encode(_shown_file(await keeper.copy(owner, container_id, file, file.filename)))


async def create_file(
    app: App, owner: str, container_id: str, filename: str, content: AsyncIterable[bytes]
) -> bytes:
    """Store a file in a container; it replaces one of its name. Raises NotFoundError, RequestError."""
    await retrieve(app, owner, container_id)
    keeper = ContainerKeeper(app.storage, app.limits)
    return msgspec.json.encode(_shown_file(await keeper.add(owner, container_id, filename, content, USER)))


async def list_files(app: App, owner: str, container_id: str, paging: Paging) -> bytes:
    """A page of the files of a container. Raises NotFoundError."""
    page: Page[ContainerFileRecord] = await app.storage.store.containers.list_files(
        owner, container_id, paging
    )
    return encode_objects([_shown_file(record) for record in page.data], has_more=page.has_more)


async def retrieve_file(app: App, owner: str, container_id: str, file_id: str) -> bytes:
    """One file. Raises NotFoundError."""
    return msgspec.json.encode(_shown_file(await find_file(app, owner, container_id, file_id)))


async def delete_file(app: App, owner: str, container_id: str, file_id: str) -> bytes:
    """Delete a file. Raises NotFoundError."""
    await app.storage.store.containers.delete_file(owner, container_id, file_id)
    return msgspec.json.encode(DeletedContainerFile(file_id))


async def find_file(app: App, owner: str, container_id: str, file_id: str) -> ContainerFileRecord:
    """The record of a file. Raises NotFoundError."""
    return await app.storage.store.containers.get_file(owner, container_id, file_id)


def file_content(app: App, record: ContainerFileRecord) -> AsyncIterator[bytes]:
    """The bytes of a file, in pieces. Raises NotFoundError if it is deleted meanwhile."""
    return app.storage.store.blobs.read(record.owner, record.digest)


def _interpreters(app: App) -> Interpreters:
    """The interpreters of containers. Raises RequestError if there are none."""
    if app.interpreters is None:
        raise RequestError("This server has no containers. Start it with --python COMMAND.")
    return app.interpreters


def _resource(record: ContainerRecord) -> Container:
    return Container(
        id=record.id,
        name=record.name,
        created_at=int(record.created_at),
        last_active_at=int(record.last_active_at),
        expires_after=ExpiresAfter("last_active_at", record.minutes),
    )


def _shown_file(record: ContainerFileRecord) -> ContainerFile:
    return ContainerFile(
        id=record.id,
        container_id=record.container_id,
        created_at=int(record.created_at),
        bytes=record.size,
        path=f"{WORKSPACE}/{record.path}",
        source=record.source,
    )
