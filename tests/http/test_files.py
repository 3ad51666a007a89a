"""Files over HTTP, through the OpenAI SDK, and what is wrong with an upload."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio
from openai import APIStatusError, AsyncOpenAI, BadRequestError, NotFoundError

from antiphon.apis.files.schema import CreateFile
from antiphon.app import files
from antiphon.config import identity_of
from antiphon.core.limits import Limits
from antiphon.store.records import FileRecord
from tests.http.api import sdk
from tests.openai_schema import validate
from tests.server import Running, running

KEYS = ("alice", "eve")


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Running]:
    limits = Limits(file_bytes=1_500_000, stored_bytes=2_000_000, files=5)
    async with running([{"output": "Hi"}], api_key=KEYS, limit=limits) as server:
        yield server


async def test_a_file_comes_and_goes(alice: AsyncOpenAI, http: httpx.AsyncClient):
    content = bytes(range(256)) * 4000
    made = await alice.files.create(file=("some dir/ü x.bin", content), purpose="assistants")
    assert (made.bytes, made.filename, made.purpose, made.status) == (
        len(content),
        "ü x.bin",
        "assistants",
        "processed",
    )
    assert made.expires_at is None
    assert await alice.files.retrieve(made.id) == made
    validate("OpenAIFile", (await http.get(f"/files/{made.id}")).json())
    answer = await alice.files.content(made.id)
    assert answer.content == content
    assert answer.response.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%BC%20x.bin"
    deleted = await alice.files.delete(made.id)
    assert (deleted.id, deleted.deleted) == (made.id, True)
    for attempt in (alice.files.retrieve, alice.files.content, alice.files.delete):
        with pytest.raises(NotFoundError) as caught:
            await attempt(made.id)
        assert caught.value.param == "file_id"


async def test_lists(alice: AsyncOpenAI, http: httpx.AsyncClient):
    empty = (await http.get("/files")).json()
    assert empty == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    ids = [
        (await alice.files.create(file=(f"{index}.txt", b"x" * index), purpose=purpose)).id
        for index, purpose in enumerate(("assistants", "vision", "assistants"))
    ]
    assert [file.id async for file in await alice.files.list()] == ids[::-1]
    assert [file.id async for file in await alice.files.list(order="asc", limit=1)] == ids
    only = await alice.files.list(purpose="assistants", order="asc", after=ids[0])
    assert [file.id for file in only.data] == [ids[2]]
    validate("ListFilesResponse", (await http.get("/files")).json())
    for wrong, param in (
        ({"purpose": "fun"}, "purpose"),
        ({"limit": 10_001}, "limit"),
        ({"after": "x"}, "after"),
    ):
        error = (await http.get("/files", params=wrong)).json()["error"]
        assert error["param"] == param


async def test_expiry(alice: AsyncOpenAI):
    expiry: Any = {"anchor": "created_at", "seconds": 3600}
    made = await alice.files.create(file=b"x", purpose="user_data", expires_after=expiry)
    assert made.expires_at == pytest.approx(made.created_at + 3600, abs=1)


@pytest.mark.parametrize("purpose", ["fine-tune", "evals"])
async def test_purposes_that_nothing_is_done_for_are_refused_by_name(alice: AsyncOpenAI, purpose: Any):
    with pytest.raises(BadRequestError, match=f"purpose '{purpose}'") as caught:
        await alice.files.create(file=b"x", purpose=purpose)
    assert caught.value.param == "purpose"
    with pytest.raises(BadRequestError, match=f"purpose '{purpose}'"):
        await alice.uploads.create(filename="a", purpose=purpose, bytes=1, mime_type="text/plain")
    assert (await alice.files.list(purpose=purpose)).data == []


async def test_owners_have_nothing_in_common(server: Running, alice: AsyncOpenAI):
    made = await alice.files.create(file=b"secret", purpose="user_data")
    async with sdk(server, "eve") as eve:
        assert (await eve.files.list()).data == []
        for attempt in (eve.files.retrieve, eve.files.content, eve.files.delete):
            with pytest.raises(NotFoundError):
                await attempt(made.id)
    assert (await alice.files.content(made.id)).content == b"secret"


async def test_limits(alice: AsyncOpenAI, server: Running):
    with pytest.raises(APIStatusError) as caught:
        await alice.files.create(file=b"x" * 1_500_000, purpose="user_data")
    assert (caught.value.status_code, caught.value.code) == (413, "limit_exceeded")
    assert "'file_bytes'" in caught.value.message
    await alice.files.create(file=b"x" * 1_400_000, purpose="user_data")
    with pytest.raises(BadRequestError, match="'stored_bytes'"):
        await alice.files.create(file=b"y" * 1_400_000, purpose="user_data")
    for index in range(4):
        await alice.files.create(file=b"%d" % index, purpose="user_data")
    with pytest.raises(BadRequestError, match="'files'"):
        await alice.files.create(file=b"last", purpose="user_data")
    async with sdk(server, "eve") as eve:
        await eve.files.create(file=b"y" * 1_400_000, purpose="user_data")


FORM = {"content-type": "multipart/form-data; boundary=b"}
FILE = b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\nx\r\n'
PURPOSE = b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nvision\r\n'
TEXT_FILE = b'--b\r\ncontent-disposition: form-data; name="file"\r\n\r\nx\r\n'


def expiry(anchor: str, seconds: str) -> bytes:
    fields = {"anchor": anchor, "seconds": seconds}
    return "".join(
        f'--b\r\ncontent-disposition: form-data; name="expires_after[{name}]"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ).encode()


@pytest.mark.parametrize(
    ("headers", "body", "status", "param"),
    [
        ({"content-type": "application/json"}, b"{}", 415, None),
        ({"content-type": "multipart/form-data"}, FILE + b"--b--", 400, None),
        (FORM, b"--b\r\nnonsense", 400, "file"),
        (FORM, b"", 400, "file"),
        (FORM, PURPOSE + b"--b--", 400, "file"),
        (FORM, PURPOSE + TEXT_FILE + b"--b--", 400, "file"),
        (FORM, FILE + b"--b--", 400, "purpose"),
        (FORM, FILE + PURPOSE.replace(b"vision", b"fun") + b"--b--", 400, "purpose"),
        (FORM, FILE + FILE + PURPOSE + b"--b--", 400, None),
        (FORM, FILE + PURPOSE + expiry("created_at", "10") + b"--b--", 400, "expires_after.seconds"),
        (FORM, FILE + PURPOSE + expiry("created_at", "soon") + b"--b--", 400, "expires_after.seconds"),
        (FORM, FILE + PURPOSE + expiry("now", "3600") + b"--b--", 400, "expires_after.anchor"),
        (FORM, FILE + PURPOSE * 101 + b"--b--", 400, None),
    ],
)
async def test_what_is_no_upload(
    http: httpx.AsyncClient, headers: dict[str, str], body: bytes, status: int, param: str | None
):
    answer = await http.post("/files", content=body, headers=headers)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error
    assert (await http.get("/files")).json()["data"] == []


async def test_a_client_that_leaves_in_the_middle(server: Running, http: httpx.AsyncClient):
    async def cut() -> AsyncIterator[bytes]:
        yield PURPOSE + FILE[:-2] + b"x" * 500_000
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await http.post("/files", content=cut(), headers=FORM)
    assert (await http.get("/files")).json()["data"] == []


async def test_others_are_answered_while_a_large_file_comes(alice: AsyncOpenAI, http: httpx.AsyncClient):
    """An upload is read and stored in pieces: no request waits for all of it."""
    uploads = [alice.files.create(file=bytes([index]) * 400_000, purpose="user_data") for index in range(4)]
    uploading = asyncio.gather(*uploads)
    while not uploading.done():
        assert json.loads((await http.get("/models")).content)["object"] == "list"
    assert len(await uploading) == 4


async def test_what_is_cancelled_when_it_is_stored_leaves_nothing(
    server: Running, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that stops cancels an upload after its write was done, and before it knows."""
    store, stored = server.app.storage.store, asyncio.Event()
    make = store.files.create

    async def create(record: FileRecord) -> None:
        await make(record)
        stored.set()
        await asyncio.Event().wait()

    async def content() -> AsyncIterator[bytes]:
        yield b"a"

    monkeypatch.setattr(store.files, "create", create)
    owner = identity_of("alice")
    uploading = asyncio.create_task(files.create(server.app, owner, CreateFile("user_data"), "a", content()))
    await stored.wait()
    assert len((await http.get("/files")).json()["data"]) == 1
    uploading.cancel()
    await asyncio.gather(uploading, return_exceptions=True)
    assert (await http.get("/files")).json()["data"] == []
    assert await store.usage.of(owner) == 0


# In parts


async def test_a_file_comes_in_parts(alice: AsyncOpenAI, server: Running):
    data = bytes(range(256)) * 1000
    upload = await alice.uploads.create(
        filename="../a.bin", purpose="assistants", bytes=len(data), mime_type="application/octet-stream"
    )
    validate("Upload", json.loads(upload.model_dump_json(exclude_unset=True)))
    assert (upload.status, upload.bytes, upload.file) == ("pending", len(data), None)
    parts = [
        await alice.uploads.parts.create(upload.id, data=piece) for piece in (data[100_000:], data[:100_000])
    ]
    validate("UploadPart", json.loads(parts[0].model_dump_json(exclude_unset=True)))
    ids = [part.id for part in reversed(parts)]

    with pytest.raises(BadRequestError, match="The parts have 100000 bytes"):
        await alice.uploads.complete(upload.id, part_ids=ids[:1])
    with pytest.raises(BadRequestError, match="does not match"):
        await alice.uploads.complete(upload.id, part_ids=ids, md5="0" * 32)
    with pytest.raises(NotFoundError) as missing:
        await alice.uploads.complete(upload.id, part_ids=[*ids, "part_none"])
    async with sdk(server, "eve") as eve:
        with pytest.raises(NotFoundError):
            await eve.uploads.parts.create(upload.id, data=b"x")
        with pytest.raises(NotFoundError):
            await eve.uploads.cancel(upload.id)
    md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
    done = await alice.uploads.complete(upload.id, part_ids=ids, md5=md5)

    assert missing.value.param == "part_ids[2]"
    validate("Upload", json.loads(done.model_dump_json(exclude_unset=True)))
    assert done.file is not None
    assert (done.status, done.file.filename, done.file.bytes) == ("completed", "a.bin", len(data))
    assert (await alice.files.content(done.file.id)).content == data
    for again in (alice.uploads.cancel(upload.id), alice.uploads.complete(upload.id, part_ids=ids)):
        with pytest.raises(NotFoundError, match="it may be complete"):
            await again


async def test_an_upload_that_is_cancelled_leaves_nothing(alice: AsyncOpenAI, server: Running):
    before = await server.app.storage.store.usage.of(identity_of("alice"))
    upload = await alice.uploads.create(
        filename="a",
        purpose="vision",
        bytes=3,
        mime_type="image/png",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    await alice.uploads.parts.create(upload.id, data=b"abc")
    cancelled = await alice.uploads.cancel(upload.id)

    assert cancelled.status == "cancelled"
    with pytest.raises(NotFoundError):
        await alice.uploads.parts.create(upload.id, data=b"abc")
    assert await server.app.storage.store.usage.of(identity_of("alice")) == before


async def test_the_client_cuts_a_file_itself(alice: AsyncOpenAI):
    upload = await alice.uploads.upload_file_chunked(
        file=b"0123456789" * 100,
        filename="n.txt",
        bytes=1000,
        mime_type="text/plain",
        purpose="assistants",
        part_size=300,
    )

    assert upload.file is not None
    assert (await alice.files.content(upload.file.id)).content == b"0123456789" * 100


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"bytes": -1}, "bytes"),
        ({"bytes": 2**40}, "bytes"),
        ({"purpose": "fun"}, "purpose"),
        ({"filename": ""}, "filename"),
    ],
)
async def test_uploads_that_cannot_be(http: httpx.AsyncClient, change: dict[str, Any], param: str):
    body = {"filename": "a", "purpose": "vision", "bytes": 3, "mime_type": "image/png"}
    answer = await http.post("/uploads", json=body | change)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    path = f"/uploads/{(await http.post('/uploads', json=body)).json()['id']}/parts"
    answer = await http.post(path, files={"file": b"abc"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "data")
