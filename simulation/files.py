"""Clients that upload files, have them indexed, search and delete them; what must be true of these files.

A file whose content can be read is indexed, whatever happens to servers meanwhile; then all of its text is
found, once, and only by its owner.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from antiphon.app.indexing import ATTEMPTS
from simulation.database import Memory
from simulation.laws import law

if TYPE_CHECKING:
    from simulation.clients import Client

RESTS = 60
"""How often a client looks whether its files are indexed."""
_WHOLE = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}}
_UNREADABLE = b"\x00\x01\x02"


class IndexedFile:
    """A file in a vector store. `words` are its text; None for one that cannot be read."""

    def __init__(self, file_id: str, words: list[str] | None) -> None:
        self.id = file_id
        self.words = words
        self.vector_store_id = ""
        self.sure = False
        """The client was told that it is in the vector store."""
        self.deleted = False
        """The client has begun to delete it, or the vector store."""
        self.cancelled = False
        """The client has begun to cancel its batch."""

    @property
    def allowed(self) -> set[str]:
        """The states in which it may end."""
        return {"failed" if self.words is None else "completed"} | (
            {"cancelled"} if self.cancelled else set()
        )


async def index(client: "Client") -> None:
    """Upload files and put them into a vector store; then wait, search, take some out."""
    rng = client._rng
    created = await client._object("POST", "/v1/vector_stores", {"name": client._name})
    files = [await _upload(client) for _ in range(rng.randint(1, 4))]
    mine = [file for file in files if file is not None]
    if created is None or not mine:
        return
    path = f"/v1/vector_stores/{created['id']}"
    for file in mine:
        file.vector_store_id = created["id"]
    client._world.files += mine
    batch = await _attach(client, path, mine)
    deletes = rng.random() < 0.3
    for _ in range(RESTS):
        await asyncio.sleep(rng.random())
        if batch is not None and rng.random() < 0.05:
            for file in mine:
                file.cancelled = True
            await client._object("POST", f"{path}/file_batches/{batch}/cancel", {})
        if deletes and rng.random() < 0.2:
            await _delete(client, path, rng.choice(mine))
        shown = await client._object("GET", path)
        if shown is not None and not shown["file_counts"]["in_progress"]:
            break
    await _search(client, path, mine)


async def _upload(client: "Client") -> IndexedFile | None:
    """A new file; None if it is not stored, or that is unknown."""
    rng, number = client._rng, client._world.number()
    words: list[str] | None = [f"{client._name}{number}w{place}" for place in range(rng.choice((3, 40, 120)))]
    content = " ".join(words or ()).encode()
    if rng.random() < 0.2:
        words, content = None, _UNREADABLE
    uploaded = await client._object("POST", "/v1/files", form("assistants", content, f"{number}.txt"))
    return None if uploaded is None else IndexedFile(uploaded["id"], words)


def form(purpose: str, content: bytes, name: str = "file.txt") -> bytes:
    """The body of an upload."""
    head = f'Content-Disposition: form-data; name="purpose"\r\n\r\n{purpose}'
    file = f'Content-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    return f"--cut\r\n{head}\r\n--cut\r\n{file}".encode() + content + b"\r\n--cut--\r\n"


async def _attach(client: "Client", path: str, files: Sequence[IndexedFile]) -> str | None:
    """Put files into a vector store: as a batch, whose id is returned, or one by one."""
    if client._rng.random() < 0.4:
        body = {"file_ids": [file.id for file in files], "chunking_strategy": _WHOLE}
        batch = await client._object("POST", f"{path}/file_batches", body)
        for file in files:
            file.sure = batch is not None
        return None if batch is None else str(batch["id"])
    for file in files:
        body = {"file_id": file.id, "chunking_strategy": _WHOLE}
        file.sure = await client._object("POST", f"{path}/files", body) is not None
    return None


async def _delete(client: "Client", path: str, file: IndexedFile) -> None:
    if not file.sure or file.deleted:
        return
    file.deleted = True
    where = client._rng.choice((f"{path}/files/{file.id}", f"/v1/files/{file.id}"))
    await client._object("DELETE", where)


async def _search(client: "Client", path: str, files: Sequence[IndexedFile]) -> None:
    """Each file that is there is found by its words."""
    for file in files:
        if file.words is None or not file.sure or file.deleted or file.cancelled:
            continue
        found = await client._object("POST", f"{path}/search", {"query": file.words[-1]})
        shown = await client._object("GET", f"{path}/files/{file.id}")
        if found is not None and shown is not None and shown["status"] == "completed":
            # It may have been completed between the two, but not if both are answered after the wait.
            texts = [part["text"] for it in found["data"] for part in it["content"]]
            law(any(file.words[-1] in text.split() for text in texts) or not texts, f"{file.id} is not found")


def unfinished(memory: Memory) -> list[Any]:
    """The files that are to be indexed."""
    return memory.execute("SELECT file_id FROM vector_store_files WHERE status = 'in_progress'")


def check_files(memory: Memory, files: Sequence[IndexedFile], gone: int) -> None:
    """All files have ended as their content demands, and their chunks are their text.

    One during which servers were `gone` several times may be given up.
    """
    rows = memory.execute(
        "SELECT id, vector_store_id, file_id, status, error FROM vector_store_files WHERE status != 'deleted'"
    )
    there = {(store, file): (key, status, error) for key, store, file, status, error in rows}
    for file in files:
        found = there.get((file.vector_store_id, file.id))
        law(found is not None or file.deleted or not file.sure, f"{file.id} is gone, and nobody deleted it")
        if found is None:
            continue
        key, status, error = found
        allowed = file.allowed | ({"failed"} if gone >= ATTEMPTS and b"stopped" in (error or b"") else set())
        law(status in allowed, f"{file.id} is {status}, not {sorted(allowed)}: {error}")
        chunks = memory.execute("SELECT text FROM vector_chunks WHERE parent = ? ORDER BY position", key)
        said = [word for (text,) in chunks for word in text.split()]
        law(
            said == ((file.words or []) if status == "completed" else []),
            f"{file.id} is {status}, and has {len(said)} words",
        )
