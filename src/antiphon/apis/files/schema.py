"""The wire types of Files. Names and meanings are those of OpenAI's OpenAPI document."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.core.limits import DAY, HOUR

PURPOSES = ("assistants", "batch", "batch_output", "fine-tune", "vision", "user_data", "evals")
"""The purposes of files, used as a filter of lists. Only files with the purpose `batch` can be batches; the
results of these have `batch_output`. The others have no other effect."""
REFUSED: Mapping[str, str] = {
    "fine-tune": "This server does not train models. Use another purpose.",
    "evals": "This server does not evaluate answers. Use another purpose.",
}
"""Purposes that cannot be uploaded, and the remedy."""

Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]


class ExpiresAfter(Struct, frozen=True):
    """When a file is deleted automatically."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=HOUR, le=30 * DAY)]


class CreateFile(Struct):
    """The fields of the form of POST /v1/files, besides the file."""

    purpose: Purpose
    expires_after: ExpiresAfter | None = None


class File(Struct, tag_field="object", tag="file", kw_only=True):
    """A file. It is processed when its upload is complete. `expires_at` is absent if it never expires."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: str = "processed"
    expires_at: int | UnsetType = UNSET


class CreateUpload(Struct):
    """The body of POST /v1/uploads: a file that is sent in parts, with `bytes` in total."""

    filename: Annotated[str, Meta(min_length=1, max_length=512)]
    purpose: Purpose
    bytes: Annotated[int, Meta(ge=0)]
    mime_type: str
    expires_after: ExpiresAfter | None = None


class AddUploadPart(Struct):
    """The fields of the form of POST /v1/uploads/{id}/parts, besides the data: none."""


class CompleteUpload(Struct):
    """The body of POST /v1/uploads/{id}/complete: the parts, in their order, and the MD5 of all, in hex."""

    part_ids: Annotated[Sequence[str], Meta(min_length=1, max_length=10_000)]
    md5: str | None = None


class Upload(Struct, tag_field="object", tag="upload", kw_only=True):
    """A file that is sent in parts; `file` is set when it is complete."""

    id: str
    created_at: int
    expires_at: int
    filename: str
    bytes: int
    purpose: str
    status: str
    file: File | UnsetType = UNSET


class UploadPart(Struct, tag_field="object", tag="upload.part"):
    """A part of an upload."""

    id: str
    created_at: int
    upload_id: str


class DeletedFile(Struct, tag_field="object", tag="file"):
    """The answer after a file was deleted."""

    id: str
    deleted: bool = True
