"""What every store does with containers."""

import time
from typing import Any

import msgspec
import pytest

from antiphon.core.errors import NotFoundError, RequestError
from antiphon.core.limits import LIMIT_EXCEEDED
from antiphon.store.records import ContainerFileRecord, ContainerRecord, NewBlob, Paging
from antiphon.store.store import Store
from tests.store.samples import OWNER, Opener

NOW = time.time() + 3600  # so that nothing expires while other tests run
RECORD = ContainerRecord(
    id="cntr_1", owner=OWNER, name="ü", created_at=NOW, last_active_at=NOW, minutes=5, expires_at=NOW + 300
)


def container(**changes: Any) -> ContainerRecord:
    return msgspec.structs.replace(RECORD, **changes)


async def written(store: Store, name: str, path: str, content: bytes = b"text") -> ContainerFileRecord:
    new = NewBlob(owner=OWNER, holder=name, media_type="text/plain", created_at=NOW, expires_at=NOW + 86400)
    blob = await store.blobs.put(new, content)
    record = ContainerFileRecord(
        id=name,
        owner=OWNER,
        container_id="cntr_1",
        created_at=NOW,
        path=path,
        source="user",
        digest=blob.digest,
        size=blob.size,
    )
    await store.containers.put_file(record)
    return record


class ContainersContract:
    """Containers and their files."""

    async def test_a_container(self, store: Store) -> None:
        await store.containers.create(container())
        assert await store.containers.get(OWNER, "cntr_1") == container()
        assert await store.containers.get("eve", "cntr_1") is None
        assert await store.containers.use("eve", "cntr_1", "a", NOW) is None
        assert await store.containers.use(OWNER, "cntr_1", "a", NOW + 10) == container()
        used = container(interpreter="a", last_active_at=NOW + 10, expires_at=NOW + 310)
        assert await store.containers.use(OWNER, "cntr_1", "b", NOW) == used
        assert not await store.containers.delete("eve", "cntr_1")
        assert await store.containers.delete(OWNER, "cntr_1")
        assert not await store.containers.delete(OWNER, "cntr_1")

    async def test_containers_expire(self, store: Store) -> None:
        await store.containers.create(container())
        file = await written(store, "f1", "a")
        await store.sweep(NOW + 200)
        assert await store.containers.get(OWNER, "cntr_1")
        await store.sweep(NOW + 301)
        assert await store.containers.get(OWNER, "cntr_1") is None
        assert await store.blobs.get(OWNER, file.digest) is None
        await store.containers.create(container(id="cntr_2", expires_at=time.time() - 1))
        assert await store.containers.get(OWNER, "cntr_2") is None
        assert (await store.containers.list(OWNER, None, Paging())).data == []

    async def test_lists_of_containers(self, store: Store) -> None:
        for number in range(3):
            await store.containers.create(container(id=f"c{number}", created_at=NOW + number))
        await store.containers.create(container(id="other", owner="eve"))
        await store.containers.create(container(id="named", name="sums"))
        page = await store.containers.list(OWNER, "ü", Paging("asc", limit=2))
        assert ([each.id for each in page.data], page.has_more) == (["c0", "c1"], True)
        assert [each.id for each in (await store.containers.list(OWNER, "sums", Paging())).data] == ["named"]
        with pytest.raises(NotFoundError):
            await store.containers.list(OWNER, None, Paging(after="other"))

    async def test_files_of_a_container(self, store: Store) -> None:
        await store.containers.create(container())
        first = await written(store, "f1", "a")
        second = await written(store, "f2", "b", b"more")
        assert await store.containers.get_file(OWNER, "cntr_1", "f1") == first
        replaced = await written(store, "f3", "a", b"new")
        page = await store.containers.list_files(OWNER, "cntr_1", Paging("asc"))
        assert page.data == [second, replaced]
        assert await store.blobs.get(OWNER, first.digest) is None
        await store.containers.delete_file(OWNER, "cntr_1", "f2")
        for missing in (
            store.containers.get_file(OWNER, "cntr_1", "f2"),
            store.containers.delete_file(OWNER, "cntr_1", "f2"),
            store.containers.get_file("eve", "cntr_1", "f3"),
            store.containers.list_files("eve", "cntr_1", Paging()),
            store.containers.put_file(msgspec.structs.replace(replaced, id="f4", container_id="none")),
            store.containers.put_file(msgspec.structs.replace(replaced, id="f4", digest="none")),
        ):
            with pytest.raises(NotFoundError):
                await missing
        await store.containers.delete(OWNER, "cntr_1")
        assert await store.blobs.get(OWNER, replaced.digest) is None

    async def test_so_many_containers_and_files(self, opened: Opener) -> None:
        store = await opened(containers=1, container_files=1)
        await store.containers.create(container())
        with pytest.raises(RequestError) as raised:
            await store.containers.create(container(id="cntr_2"))
        assert raised.value.code == LIMIT_EXCEEDED
        await store.containers.create(container(id="cntr_3", owner="eve"))
        await written(store, "f1", "a")
        await written(store, "f2", "a", b"new")
        with pytest.raises(RequestError, match="'container_files'"):
            await written(store, "f3", "b", b"more")
