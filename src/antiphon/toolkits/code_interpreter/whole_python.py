"""`code_interpreter` with a whole Python, in containers.

A container is a record with files, which expires after a time without use. Its interpreter runs on this
server: it is started with the first call, gets the files of the container, and the files that it writes
become files of the container. Variables are only in the interpreter: if it has ended, or another server has
used the container since, the next call starts a new one, and the model is told so.

A request names a container, or says `auto`: then the answer has its own. If the answer has no id, so that
later requests cannot name the container, this is deleted with the answer.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import PurePosixPath
from typing import Any, Protocol
from uuid import uuid4

import structlog
from msgspec import Struct

from antiphon.core.errors import AntiphonError, NotFoundError, ToolError
from antiphon.core.hosts import unread
from antiphon.core.limits import Limits
from antiphon.core.tool_result import OutputCallback, ToolResult, ignore_output
from antiphon.core.turn import Function, Hosted
from antiphon.toolkits.code_interpreter.cell import ACTION, BROKEN, BUSY, SILENT, code_of
from antiphon.toolkits.code_interpreter.details import TYPE, ProgramDetails, WrittenFile
from antiphon.toolkits.code_interpreter.interpreter import (
    Content,
    FileRoom,
    Interpreter,
    InterpreterLostError,
    RunResult,
)
from antiphon.toolkits.code_interpreter.sandbox import Sandbox
from antiphon.tools.containers import WORKSPACE, container_id
from antiphon.tools.process import all_ended
from antiphon.tools.settings import check_container, invalid_setting
from antiphon.tools.text import Excerpt
from antiphon.tools.tool import RequestedTool, ToolOffer

NAME_CHARACTERS = 512
"""The longest path of a file in a container."""

MOST_PICTURES = 8
PICTURE_BYTES = 1024 * 1024
"""The most figures of a call that are shown, and the most bytes of each; others are files only."""

_ANEW = "[The interpreter was restarted: variables are lost, files are kept.]"
_NEXT = "Its variables and the files of this call are lost. The next call starts a new interpreter."
_EXPIRED = "The container has expired, and its files with it. Continue without it."

log = structlog.get_logger()


class HeldFile(Struct, frozen=True):
    """A file of a container, at this path in the workspace. Its content is that of the digest."""

    id: str
    path: str
    digest: str
    size: int


class Keeper(Protocol):
    """Keeps containers and their files. Those of other owners are not found."""

    async def has(self, owner: str, container: str, file_ids: Sequence[str]) -> bool:
        """Whether this container exists, and these files."""
        ...

    async def check(self, owner: str, container: str | None, file_ids: Sequence[str]) -> None:
        """Raise NotFoundError unless the owner has this container, and these files to copy into one."""
        ...

    async def use(
        self, owner: str, container: str, interpreter: str, create: Sequence[str] | None
    ) -> str | None:
        """Register the interpreter that works in a container; returns the previous one, if there is one.

        With `create` a missing container is made, with copies of these files. Raises NotFoundError,
        RequestError.
        """
        ...

    async def files(self, owner: str, container: str) -> Sequence[HeldFile]:
        """All files of a container. Raises NotFoundError."""
        ...

    def content(self, owner: str, file: HeldFile) -> AsyncIterator[bytes]:
        """The bytes of a file. Raises NotFoundError."""
        ...

    async def write(self, owner: str, container: str, path: str, content: Content) -> HeldFile:
        """Store a file that a program wrote, replacing an older one. Raises NotFoundError, RequestError."""
        ...

    async def remove(self, owner: str, container: str, file: HeldFile) -> None:
        """Delete a file. Raises NotFoundError."""
        ...

    async def delete(self, owner: str, container: str) -> None:
        """Delete a container, if it exists."""
        ...


class _RequestedContainer(Struct, frozen=True):
    """A container as an answer has it. With `create` it may have to be made, with these files."""

    owner: str
    id: str
    create: tuple[str, ...] | None = None


class _Worker(Struct, eq=False):
    """An interpreter in a container, with the files that it has.

    `restarted`: an earlier interpreter of the container had variables.
    """

    id: str
    interpreter: Interpreter
    restarted: bool
    files: dict[str, HeldFile] = {}


class Interpreters:
    """The interpreters of this server, one for each container in use."""

    def __init__(self, sandbox: Sandbox, limits: Limits, keeper: Keeper) -> None:
        self.sandbox = sandbox
        self.limits = limits
        self.keeper = keeper
        self._workers: dict[str, _Worker] = {}  # by container, the least recently used first
        self._starting = 0  # interpreters that will be there soon
        self._locks: dict[str, asyncio.Lock] = {}  # of containers that are in use, or requested
        self._users: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def containers(self) -> frozenset[str]:
        """The containers that have an interpreter here."""
        return frozenset(self._workers)

    @asynccontextmanager
    async def working(self, requested: _RequestedContainer) -> AsyncIterator[_Worker]:
        """The interpreter of a container, with its current files; it is locked for the block.

        If the block raises, the interpreter is ended. Raises AntiphonError.
        """
        async with self._locked(requested.id):
            try:
                worker = await self._ready(requested)
                yield worker
            except BaseException:
                await self._end(requested.id)
                raise
            idle = self.limits.container_minutes * 60
            self._timers[requested.id] = asyncio.get_running_loop().call_later(
                idle, self._expire, requested.id
            )

    async def end(self, container: str) -> None:
        """End the interpreter of a container, after its current call."""
        async with self._locked(container):
            await self._end(container)

    async def kill(self, container: str) -> None:
        """End the interpreter of a container, also during a call."""
        await self._end(container)

    async def close(self) -> None:
        """End all of them, also during calls."""
        for container in list(self._workers):
            await self._end(container)
        await asyncio.gather(*self._ending)
        await all_ended()

    @asynccontextmanager
    async def _locked(self, container: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(container, asyncio.Lock())
        self._users[container] = self._users.get(container, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[container] -= 1
            if not self._users[container]:
                del self._users[container], self._locks[container]

    async def _ready(self, requested: _RequestedContainer) -> _Worker:
        if (timer := self._timers.pop(requested.id, None)) is not None:
            timer.cancel()
        worker = self._workers.pop(requested.id, None)
        name = worker.id if worker else uuid4().hex
        if worker is not None:
            self._workers[requested.id] = worker  # now the most recently used
        before = await self.keeper.use(requested.owner, requested.id, name, requested.create)
        if worker is None or before != name:
            await self._end(requested.id)
            worker = await self._begin(requested, name, restarted=before is not None)
        await self._send_files(requested, worker)
        return worker

    async def _begin(self, requested: _RequestedContainer, name: str, *, restarted: bool) -> _Worker:
        while len(self._workers) + self._starting >= self.limits.python_interpreters:
            idle = next((container for container in self._workers if container not in self._users), None)
            if idle is None:  # nobody waits for one: so it is no case for `core/permits.py`
                raise ToolError(BUSY)
            await self._end(idle)
        self._starting += 1
        try:
            interpreter = await Interpreter.begin(self.sandbox.words)
        except OSError as error:
            log.exception("Python does not start")
            raise ToolError(BROKEN) from error
        finally:
            self._starting -= 1
        worker = self._workers[requested.id] = _Worker(name, interpreter, restarted)
        return worker

    async def _send_files(self, requested: _RequestedContainer, worker: _Worker) -> None:
        """Send an interpreter the files that it does not have, and delete those that are gone."""
        there = {file.path: file for file in await self.keeper.files(requested.owner, requested.id)}
        for path in worker.files.keys() - there.keys():
            await worker.interpreter.drop(path)
            del worker.files[path]
        for path, file in there.items():
            has = worker.files.get(path)
            if has is None or has.digest != file.digest:
                content = self.keeper.content(requested.owner, file)
                await worker.interpreter.put(path, file.size, content)
            worker.files[path] = file

    async def _end(self, container: str) -> None:
        worker, timer = self._workers.pop(container, None), self._timers.pop(container, None)
        if timer is not None:
            timer.cancel()
        if worker is not None:
            await worker.interpreter.close()

    def _expire(self, container: str) -> None:
        task = asyncio.create_task(self.end(container))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


class PythonInterpreter:
    """The tool: a `ServerTool`."""

    type = TYPE
    aliases = ()

    def __init__(self, interpreters: Interpreters) -> None:
        self.interpreters = interpreters
        self._function = _function(interpreters.sandbox, interpreters.limits)

    async def offer(self, requested: RequestedTool) -> ToolOffer:
        notes = unread(requested.settings, requested.where, ("type", "container"))
        container, where = requested.settings.get("container"), f"{requested.where}.container"
        if isinstance(container, Mapping) and container.get("type", "auto") == "auto":
            notes += check_container(container, where, files=True)
            container = None
            where += ".file_ids"
        elif container is not None and not isinstance(container, str):
            raise invalid_setting(where, "Use the id of a container, or {'type': 'auto'}.")
        keeper, file_ids = self.interpreters.keeper, _file_ids(requested.settings)
        try:
            await keeper.check(requested.owner, container, file_ids)
        except NotFoundError as error:
            error.param = where
            raise
        settings, last = None, requested.container
        if container is None and last is not None and await keeper.has(requested.owner, last, file_ids):
            settings = {**requested.settings, "container": last}
        return ToolOffer((self._function,), notes, settings=settings)

    def open(self, requested: RequestedTool) -> "ContainerSession":
        return ContainerSession(self.interpreters, requested)

    async def close(self) -> None:
        await self.interpreters.close()


class ContainerSession:
    """The use of a container for one answer: a `Session`."""

    def __init__(self, interpreters: Interpreters, requested: RequestedTool) -> None:
        self._interpreters = interpreters
        self._limits = interpreters.limits
        given = requested.settings.get("container")
        own = container_id(TYPE, requested.answer or uuid4().hex)
        self._container = _RequestedContainer(
            requested.owner,
            given if isinstance(given, str) else own,
            None if isinstance(given, str) else tuple(_file_ids(requested.settings)),
        )
        self._persistent = isinstance(given, str) or bool(requested.answer)
        self._used = False

    async def run(
        self, action: str, arguments: Mapping[str, Any], on_output: OutputCallback = ignore_output
    ) -> ToolResult:
        """An exception in the program is no failure: the model can correct it."""
        code = code_of(action, arguments)
        if isinstance(code, ToolResult):
            return code
        self._used = True
        printed = Excerpt(self._limits.python_characters, on_output)
        try:
            async with self._interpreters.working(self._container) as worker:
                return await self._run(worker, code, printed)
        except InterpreterLostError as error:
            printed.write_line(f"[{error.message} {_NEXT}]")
            return ToolResult(str(printed), ProgramDetails(str(printed), self._container.id), failed=True)
        except NotFoundError:
            return ToolResult(_EXPIRED, failed=True)
        except AntiphonError as error:
            return ToolResult(error.message, failed=True)

    async def recall(self, action: str, arguments: Mapping[str, Any], result: ToolResult) -> None:
        """Files are in the container; the next call reports lost variables."""

    async def close(self) -> None:
        """A container that no request can name is deleted."""
        if self._used and not self._persistent:
            self._used = False
            await self._interpreters.end(self._container.id)
            await self._interpreters.keeper.delete(self._container.owner, self._container.id)

    async def _run(self, worker: _Worker, code: str, printed: Excerpt) -> ToolResult:
        limits, files = self._limits, _WrittenFiles(self._interpreters.keeper, self._container, worker)
        room = FileRoom(limits.container_files, limits.python_disk_bytes)
        source = code.encode(errors="replace").decode()
        if worker.restarted:
            printed.write(f"{_ANEW}\n")
        ran = await worker.interpreter.run(source, limits.python_seconds, room, printed, files.take)
        worker.restarted = False
        for path in ran.gone:
            await files.remove(path)
        logs = str(printed)
        details = ProgramDetails(logs, self._container.id, tuple(files.written))
        pictures = tuple(files.pictures[path] for path in ran.figures if path in files.pictures)
        return ToolResult(_lines(logs, *self._file_notes(files, ran)) or SILENT, details, media=pictures)

    def _file_notes(self, files: "_WrittenFiles", ran: RunResult) -> list[str]:
        """Notes for the model on files, after the output."""
        written = [f"{WORKSPACE}/{file.path}" for file in files.written]
        notes = []
        if written and self._persistent:
            notes.append(
                f"[Written: {_some(written)}. The user gets those that your answer names as sandbox:PATH.]"
            )
        elif written:
            notes.append(f"[Written: {_some(written)}. The user cannot see files: describe their content.]")
        left_out = [*ran.left_out, *files.refused]
        if left_out:
            notes.append(
                f"[Not kept, because they are too many or too large: {_some(left_out)}. "
                f"A container has room for {self._limits.container_files} files.]"
            )
        return notes


class _WrittenFiles:
    """Stores the files that a call has written."""

    def __init__(self, keeper: Keeper, requested: _RequestedContainer, worker: _Worker) -> None:
        self.written: list[WrittenFile] = []
        self.refused: list[str] = []
        self.pictures: dict[str, bytes] = {}
        """Pictures, by path."""
        self._keeper = keeper
        self._container = requested
        self._worker = worker

    async def take(self, path: str, size: int, content: Content) -> None:
        """Store a file."""
        if not _is_path(path):
            self.refused.append(path[:NAME_CHARACTERS].encode(errors="replace").decode())
            return
        picture = bytearray()
        shown = path.endswith(".png") and size <= PICTURE_BYTES and len(self.pictures) < MOST_PICTURES
        if shown:
            content = _copied(content, picture)
        try:
            file = await self._keeper.write(self._container.owner, self._container.id, path, content)
        except AntiphonError as error:
            log.info("a file of a container is not kept", error=error.message)
            self.refused.append(path)
            return
        self._worker.files[path] = file
        self.written.append(WrittenFile(file.id, path, file.size))
        if shown:
            self.pictures[path] = bytes(picture)

    async def remove(self, path: str) -> None:
        """A file is gone."""
        file = self._worker.files.pop(path, None)
        if file is not None:
            try:
                await self._keeper.remove(self._container.owner, self._container.id, file)
            except NotFoundError:
                log.debug("a file of a container was deleted twice")


async def _copied(content: Content, copy: bytearray) -> Content:
    async for piece in content:
        copy += piece
        yield piece


def _is_path(path: str) -> bool:
    """Whether an untrusted path is inside the workspace, and valid for all parts of the server."""
    parts = PurePosixPath(path).parts
    return (
        0 < len(path) <= NAME_CHARACTERS
        and path.isprintable()
        and not path.startswith("/")
        and ".." not in parts
        and str(PurePosixPath(path)) == path
    )


def _file_ids(settings: Mapping[str, Any]) -> Sequence[str]:
    """The files that the settings of a tool, which were checked, want in a container of its own."""
    container = settings.get("container")
    file_ids: Sequence[str] = (container.get("file_ids") if isinstance(container, Mapping) else None) or ()
    return file_ids


def _lines(*texts: str) -> str:
    """Texts, each on a new line."""
    given = [text for text in texts if text]
    return "".join(text if text.endswith("\n") or text is given[-1] else f"{text}\n" for text in given)


def _some(names: Sequence[str], limit: int = 20) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _function(sandbox: Sandbox, limits: Limits) -> Function:
    properties = sandbox.properties
    version = ".".join(map(str, properties.version[:2]))
    libraries = (
        f", with {', '.join(properties.libraries)}" if properties.libraries else ", without further libraries"
    )
    return Function(
        ACTION,
        f"""\
Runs Python code and shows what it prints and the value of its last expression. Later calls can use its \
variables.
It is Python {version}{libraries}, in a sandbox without a network. The user's files are in {WORKSPACE}; \
files that you write there are kept. Figures of matplotlib are saved there automatically. A call may take \
at most {limits.python_seconds} seconds and {limits.python_memory_bytes >> 20} MiB of memory.""",
        {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The code to run."}},
            "required": ["code"],
        },
        hosted=Hosted(TYPE, ACTION),
    )
