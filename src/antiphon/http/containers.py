"""Files of containers, as forms and as bytes. The other endpoints of containers are in `http/app.py`."""

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response

from antiphon.apis.containers.schema import CreateContainerFile
from antiphon.app import containers
from antiphon.core.errors import RequestError
from antiphon.http.files import download, form_of, name_of, pieces_of
from antiphon.http.request import app_of, json_response, owner_of, query_of, read_body


async def name_filter(request: Request) -> str | None:
    """Reads the name whose containers are wanted. Raises RequestError."""
    return query_of(request).text("name")


async def create_file(request: Request) -> Response:
    """Store a file of a form, or copy one that JSON names."""
    app, owner, container_id = app_of(request), owner_of(request), request.path_params["container_id"]
    if not request.headers.get("content-type", "").strip().lower().startswith("multipart/form-data"):
        wire = await read_body(request, CreateContainerFile, "small_body_bytes")
        return json_response(await containers.copy_file(app, owner, container_id, wire))
    async with form_of(request) as form:
        upload, file_id = form.get("file"), form.get("file_id")
        if isinstance(upload, UploadFile) and file_id is None:
            stored = containers.create_file(app, owner, container_id, name_of(upload), pieces_of(upload))
            return json_response(await stored)
        if isinstance(file_id, str) and upload is None:
            wire = CreateContainerFile(file_id)
            return json_response(await containers.copy_file(app, owner, container_id, wire))
        raise RequestError("Send either a 'file', as a file, or a 'file_id'.", param="file")


async def content(request: Request) -> Response:
    """The bytes of a file."""
    app, names = app_of(request), request.path_params
    record = await containers.find_file(app, owner_of(request), names["container_id"], names["file_id"])
    name = record.path.rpartition("/")[2]
    return download(containers.file_content(app, record), record.size, name)
