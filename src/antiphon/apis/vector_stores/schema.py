"""The wire types of Vector Stores. Names and meanings are those of OpenAI's OpenAPI document."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.apis.request import MAX_METADATA, Metadata, MetadataKey, MetadataValue

MOST_FILES = 500
"""The most files that a vector store is created with."""
MOST_IN_BATCH = 2000
LEAST_CHUNK, MOST_CHUNK = 100, 4096
"""Tokens."""
DEFAULT_CHUNK, DEFAULT_OVERLAP = 800, 400

Attributes = Annotated[dict[MetadataKey, MetadataValue | float | int | bool], Meta(max_length=MAX_METADATA)]
Status = Literal["in_progress", "completed", "failed", "cancelled"]


class ExpiresAfter(Struct, frozen=True):
    """A vector store is deleted when it was not searched for this number of days."""

    anchor: Literal["last_active_at"]
    days: Annotated[int, Meta(ge=1, le=365)]


class StaticChunking(Struct, frozen=True):
    """Sizes of chunks, in tokens."""

    max_chunk_size_tokens: Annotated[int, Meta(ge=LEAST_CHUNK, le=MOST_CHUNK)]
    chunk_overlap_tokens: Annotated[int, Meta(ge=0)]


class ChunkingStrategy(Struct):
    """How files are cut: `auto`, or with the sizes of `static`."""

    type: Literal["auto", "static"]
    static: StaticChunking | None = None


class CreateVectorStore(Struct):
    """POST /v1/vector_stores."""

    file_ids: Annotated[list[str], Meta(max_length=MOST_FILES)] | None = None
    name: Annotated[str, Meta(max_length=256)] | None = None
    description: Annotated[str, Meta(max_length=512)] | None = None
    expires_after: ExpiresAfter | None = None
    chunking_strategy: ChunkingStrategy | None = None
    metadata: Metadata | None = None


class UpdateVectorStore(Struct):
    """POST /v1/vector_stores/{id}. Omitted fields are not changed."""

    name: Annotated[str, Meta(max_length=256)] | UnsetType | None = UNSET
    expires_after: ExpiresAfter | UnsetType | None = UNSET
    metadata: Metadata | UnsetType | None = UNSET


class CreateVectorStoreFile(Struct):
    """POST /v1/vector_stores/{id}/files."""

    file_id: str
    chunking_strategy: ChunkingStrategy | None = None
    attributes: Attributes | None = None


class UpdateVectorStoreFile(Struct):
    """POST /v1/vector_stores/{id}/files/{file_id}."""

    attributes: Attributes | None


class CreateFileBatch(Struct):
    """POST /v1/vector_stores/{id}/file_batches: `file_ids`, or `files` with settings of their own."""

    file_ids: Annotated[list[str], Meta(min_length=1, max_length=MOST_IN_BATCH)] | None = None
    files: Annotated[list[CreateVectorStoreFile], Meta(min_length=1, max_length=MOST_IN_BATCH)] | None = None
    chunking_strategy: ChunkingStrategy | None = None
    attributes: Attributes | None = None


class SearchRequest(Struct, forbid_unknown_fields=True):
    """POST /v1/vector_stores/{id}/search. An unknown field might narrow the search, so none is ignored."""

    query: str | list[str]
    rewrite_query: bool | None = None
    max_num_results: int | None = None
    filters: dict[str, Any] | None = None
    filter: dict[str, Any] | None = None
    ranking_options: dict[str, Any] | None = None


class Counts(Struct, frozen=True):
    """How many files there are."""

    in_progress: int
    completed: int
    failed: int
    cancelled: int
    total: int


class VectorStore(Struct, tag_field="object", tag="vector_store", kw_only=True):
    """A vector store."""

    id: str
    created_at: int
    name: str
    description: str | None
    usage_bytes: int
    file_counts: Counts
    status: str
    expires_after: ExpiresAfter | UnsetType = UNSET
    expires_at: int | None
    last_active_at: int | None
    metadata: dict[str, str]


class LastError(Struct, frozen=True):
    """Why a file was not indexed. `code` is `server_error`, `unsupported_file` or `invalid_file`."""

    code: str
    message: str


class UsedChunking(Struct, tag_field="type", tag="static"):
    """How a file is cut."""

    static: StaticChunking


class VectorStoreFile(Struct, tag_field="object", tag="vector_store.file", kw_only=True):
    """A file in a vector store."""

    id: str
    usage_bytes: int
    created_at: int
    vector_store_id: str
    status: str
    last_error: LastError | None
    chunking_strategy: UsedChunking
    attributes: dict[str, Any]


class FileBatch(Struct, tag_field="object", tag="vector_store.files_batch", kw_only=True):
    """Files that were attached together."""

    id: str
    created_at: int
    vector_store_id: str
    status: str
    file_counts: Counts


class DeletedVectorStore(Struct, tag_field="object", tag="vector_store.deleted"):
    """The answer after a vector store was deleted."""

    id: str
    deleted: bool = True


class DeletedVectorStoreFile(Struct, tag_field="object", tag="vector_store.file.deleted"):
    """The answer after a file was removed from a vector store."""

    id: str
    deleted: bool = True


class TextContent(Struct, tag_field="type", tag="text"):
    """Text of a file."""

    text: str


class FileContent(Struct, tag_field="object", tag="vector_store.file_content.page"):
    """The chunks of a file."""

    data: list[TextContent]
    has_more: bool = False
    next_page: None = None


class SearchResult(Struct):
    """A chunk that was found."""

    file_id: str
    filename: str
    score: float
    attributes: dict[str, Any]
    content: list[TextContent]


class SearchResults(Struct, tag_field="object", tag="vector_store.search_results.page"):
    """The results, the best first."""

    search_query: list[str]
    data: list[SearchResult]
    has_more: bool = False
    next_page: None = None
