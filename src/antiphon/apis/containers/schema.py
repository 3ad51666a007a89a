"""The wire types of Containers. Names and meanings are those of OpenAI's OpenAPI document."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct


class ExpiresAfter(Struct, frozen=True):
    """A container is deleted when it was not used for this number of minutes."""

    anchor: Literal["last_active_at"]
    minutes: Annotated[int, Meta(ge=1)]


class CreateContainer(Struct):
    """The body of POST /v1/containers. Its last three fields are checked like those of `auto` ones."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    expires_after: ExpiresAfter | None = None
    file_ids: list[str] | None = None
    memory_limit: Any = None
    network_policy: Any = None
    skills: Any = None


class CreateContainerFile(Struct):
    """The body of POST /v1/containers/ID/files as JSON: an uploaded file is copied."""

    file_id: str


class NetworkPolicy(Struct, frozen=True):
    """There is no network."""

    type: str = "disabled"


class Container(Struct, tag_field="object", tag="container", kw_only=True):
    """A container."""

    id: str
    name: str
    created_at: int
    last_active_at: int
    expires_after: ExpiresAfter
    status: str = "running"
    network_policy: NetworkPolicy = NetworkPolicy()


class ContainerFile(Struct, tag_field="object", tag="container.file", kw_only=True):
    """A file of a container. Its `source` is `user` or `assistant`."""

    id: str
    container_id: str
    created_at: int
    bytes: int
    path: str
    source: str


class DeletedContainer(Struct, tag_field="object", tag="container.deleted"):
    """The answer after a container was deleted."""

    id: str
    deleted: bool = True


class DeletedContainerFile(Struct, tag_field="object", tag="container.file.deleted"):
    """The answer after a file was deleted."""

    id: str
    deleted: bool = True
