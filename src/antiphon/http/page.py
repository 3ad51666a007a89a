"""The page at `/`, and the reference at `/docs`: modules, styles and libraries, served from the package.

There is no build step, and nothing is fetched from elsewhere. The content security policy allows no other
source and no inline script, and text becomes markup only through the sanitizer. The page gets its data from
the API, like any client.
"""

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from antiphon.core.errors import NotFoundError

POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    ]
)
_REFERENCE_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",  # Swagger UI sets styles, and makes markup of texts
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",  # revalidated each time, sent if it has changed
}
_PAGE_TYPES = ("text/html", "text/*", "*/*")
_TYPES = {"js": "text/javascript", "css": "text/css", "html": "text/html", "svg": "image/svg+xml"}


class _File(Struct, frozen=True):
    body: bytes
    headers: Mapping[str, str]


async def index(request: Request) -> Response:
    """The page; for a client that takes no HTML, what Ollama says there."""
    accepted = request.headers.get("accept", "*/*")
    if not any(type_ in accepted for type_ in _PAGE_TYPES):
        return PlainTextResponse("Ollama is running", headers={"vary": "accept"})
    response = _answer(request, "index.html")
    response.headers["vary"] = "accept"
    return response


async def reference(request: Request) -> Response:
    """A page that shows the OpenAPI document, and can send requests."""
    response = _answer(request, "docs.html")
    response.headers["content-security-policy"] = _REFERENCE_POLICY
    return response


async def asset(request: Request) -> Response:
    """A file that the page is made of. Raises NotFoundError."""
    return _answer(request, request.path_params["path"])


def _answer(request: Request, path: str) -> Response:
    file = _files().get(path)
    if file is None:
        raise NotFoundError
    known = [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]
    if file.headers["etag"] in known:
        return Response(status_code=304, headers=dict(file.headers))
    return Response(file.body, headers=dict(file.headers))


@cache
def _files() -> Mapping[str, _File]:
    """All files by their paths: they are few, and small. Nothing else is served."""
    by_path = {}
    static = files("antiphon.http").joinpath("static")
    for prefix, folder in (("", static), ("vendor/", static.joinpath("vendor"))):
        for path in folder.iterdir():
            if (type_ := _TYPES.get(path.name.rpartition(".")[2])) is not None:
                body = path.read_bytes()
                own = {"content-type": f"{type_}; charset=utf-8", "etag": _tag(body)}
                by_path[prefix + path.name] = _File(body, {**_HEADERS, **own})
    return by_path


def _tag(body: bytes) -> str:
    return f'"{sha256(body).hexdigest()[:32]}"'
