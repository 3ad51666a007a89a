"""Files and parts of uploads, which are sent as forms, and the content of files.

All other endpoints of files are in `http/app.py`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from antiphon.apis.files.schema import PURPOSES, CreateFile
from antiphon.apis.wire import invalid
from antiphon.app import files, uploads
from antiphon.core.errors import MediaTypeError, RequestError
from antiphon.http.request import Query, app_of, body_of, json_response, owner_of, query_of
from antiphon.store.records import Paging

T = TypeVar("T")

MOST_ON_PAGE = 10_000
"""The most files on a page of a list, as in OpenAI's API."""
STATUSES = ("in_progress", "completed", "failed", "cancelled")
MOST_FIELDS = 100
FIELD_BYTES = 64 * 1024
"""The most fields of a form besides its file, and bytes of each: the parser keeps them in memory."""
_READ_BYTES = 256 * 1024


async def create(request: Request) -> Response:
    """Store a file of a form. It is on disk while it is received."""
    async with form_of(request) as form:
        upload = form.get("file")
        if not isinstance(upload, UploadFile):
            raise RequestError("Missing required parameter: 'file'. Send it as a file.", param="file")
        wire = _fields(form)
        app, owner = app_of(request), owner_of(request)
        return json_response(await files.create(app, owner, wire, name_of(upload), pieces_of(upload)))


async def add_part(request: Request) -> Response:
    """Store a part of an upload, from a form."""
    async with form_of(request) as form:
        data = form.get("data")
        if not isinstance(data, UploadFile):
            raise RequestError("Missing required parameter: 'data'. Send it as a file.", param="data")
        app, owner, upload_id = app_of(request), owner_of(request), request.path_params["upload_id"]
        return json_response(await uploads.add_part(app, owner, upload_id, pieces_of(data)))


async def list_filter(request: Request) -> str | None:
    """Reads the purpose whose files are wanted. Raises RequestError."""
    purpose = query_of(request).text("purpose")
    if purpose is not None and purpose not in PURPOSES:
        message = f"Invalid value for 'purpose': Use one of {', '.join(PURPOSES)}."
        raise RequestError(message, param="purpose")
    return purpose


async def status_filter(request: Request) -> str | None:
    """Reads the status whose files of a vector store are wanted. Raises RequestError."""
    status = query_of(request).text("filter")
    if status is not None and status not in STATUSES:
        message = f"Invalid value for 'filter': Use one of {', '.join(STATUSES)}."
        raise RequestError(message, param="filter")
    return status


async def paging(request: Request) -> Paging:
    """Reads which files are wanted: all of them by default, as OpenAI has it. Raises RequestError."""
    return query_of(request).paging("desc", MOST_ON_PAGE, MOST_ON_PAGE)


async def content(request: Request) -> Response:
    """The bytes of a file."""
    app = app_of(request)
    record = await files.find(app, owner_of(request), request.path_params["file_id"])
    return download(files.content(app, record), record.size, record.filename)


def download(content: AsyncIterator[bytes], size: int, name: str) -> Response:
    """This number of bytes, as a download with this name."""
    headers = {
        "content-length": str(size),
        "content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "x-content-type-options": "nosniff",
    }
    return StreamingResponse(content, 200, headers, "application/octet-stream")


@asynccontextmanager
async def form_of(
    request: Request, limit: str = "file_bytes", files: int = 1, field_bytes: int = FIELD_BYTES
) -> AsyncIterator[FormData]:
    """The form of a request with files, within a limit of bytes. Raises RequestError."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "multipart/form-data":
        raise MediaTypeError("Send the file as a form: `Content-Type: multipart/form-data`.")
    body = body_of(request, limit)
    parser = MultiPartParser(
        request.headers, body, max_files=files, max_fields=MOST_FIELDS, max_part_size=field_bytes
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise RequestError(f"The form cannot be read: {error.message}") from error
    try:
        yield form
    finally:
        await form.close()  # and with it the file on disk
        for file in parser._files_to_close_on_error:  # also an incomplete one, which is in no form
            file.close()


def _fields(form: FormData) -> CreateFile:
    given: dict[str, Any] = {name: value for name, value in form.items() if name != "file"}
    expiry = Query({name: value for name, value in given.items() if isinstance(value, str)})
    fields = {"expires_after": expiry.prefixed("expires_after") or None}
    fields |= {"purpose": given["purpose"]} if "purpose" in given else {}
    return converted(fields, CreateFile)


def converted(fields: dict[str, Any], type_: type[T]) -> T:
    """The fields of a form, which are texts, as `type_`. Raises RequestError."""
    try:
        return msgspec.convert(fields, type_, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(str(error), type_=type_) from error


def name_of(upload: UploadFile) -> str:
    """The name of a file, without folders, and without characters that databases or headers cannot hold."""
    return files.plain_name(upload.filename or "")


async def pieces_of(upload: UploadFile) -> AsyncIterator[bytes]:
    """The bytes of a file that a form brings, in pieces."""
    while piece := await upload.read(_READ_BYTES):
        yield piece
