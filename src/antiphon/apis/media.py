"""Parts that are not text: fields of a request → `Attachment`s. Nothing is decoded or fetched here.

Stored items have references in the places of media: the digest of a blob, and the media's origin. Where a
client may send a data URL or a URL of the web, a stored item may have a reference.

To add a part of a message that is not text: its reader in the API's `history.py`, which makes an
`Attachment`; how it is read, in `app/attachments.py`; formats of images, in `run/media.py`;
`tests/http/test_media.py`; the tables in `docs/media.md`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct

from antiphon.apis.request_object import RequestObject
from antiphon.core.errors import RequestError
from antiphon.core.items import Attachment, MediaKind

DETAILS = ("auto", "low", "high", "original")
_SCHEMES = ("data:", "http://", "https://")

_REFERENCE = re.compile("blob:([0-9a-f]{64}):(.*)", re.DOTALL)
_HOLDING = ("content", "content_parts", "output")
"""Fields that have parts: of an item, of a result among the blocks of a message, of a document's source."""
_MEDIA = frozenset(
    {
        "input_image",
        "input_file",
        "computer_screenshot",
        "image_url",
        "video_url",
        "audio_url",
        "input_audio",
        "file",
        "image",
        "document",
    }
)
_SOURCES = frozenset(
    {
        "image_url",
        "video_url",
        "audio_url",
        "input_audio",
        "file",
        "source",
        "url",
        "data",
        "file_data",
        "file_url",
    }
)
"""Fields of a part, and of an object in it, that hold media, or their location."""


class MediaReference(Struct, frozen=True):
    """A reference to media: the digest of their content, and their URL, or the text before the base64."""

    digest: str
    lead: str

    @property
    def text(self) -> str:
        """The reference as it is stored."""
        return f"blob:{self.digest}:{self.lead}"


def reference_in(source: str) -> MediaReference | None:
    """The reference that a source is."""
    match = _REFERENCE.fullmatch(source)
    return None if match is None else MediaReference(match[1], match[2])


def is_web(source: str) -> bool:
    """A source is a URL of the web."""
    return source[:8].lower().startswith(("http://", "https://"))


def may_have_media(payload: bytes) -> bool:
    """Whether an item may have sources of media, as far as its raw JSON shows."""
    return any(mark in payload for mark in (b'_image"', b'_file"', b'_screenshot"', b'_url"', b'_data"'))


def sources_in(item: Mapping[str, Any]) -> Iterable[str]:
    """The sources of the media in an item, or a message: each once, in their order."""
    sources: dict[str, str] = {}
    with_sources(item, lambda source: sources.setdefault(source, source))
    return sources


def references_in(item: Mapping[str, Any]) -> list[MediaReference]:
    """The references in an item, or a message."""
    return [reference for source in sources_in(item) if (reference := reference_in(source)) is not None]


def with_sources(item: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """An item, or a message, with other sources of its media."""
    return {name: _parts(value, change) if name in _HOLDING else value for name, value in item.items()}


def _parts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, list):
        return [_parts(part, change) for part in value]
    if not isinstance(value, dict):
        return value
    type_ = value.get("type")
    if isinstance(type_, str) and type_ in _MEDIA:  # the value is not checked: its type may be a list
        return _sourced(value, change)
    return with_sources(value, change) if type_ == "tool_result" else value


def _sourced(part: Mapping[str, Any], change: Callable[[str], str]) -> Mapping[str, Any]:
    if part.get("type") == "text":  # a document's source that holds its text
        return part

    def changed(name: str, value: Any) -> Any:
        if name in _HOLDING:
            return _parts(value, change)
        if name not in _SOURCES or not value:
            return value
        if isinstance(value, dict):
            return _sourced(value, change)
        return change(value) if isinstance(value, str) else value

    return {name: changed(name, value) for name, value in part.items()}


def at_url(kind: MediaKind, holder: RequestObject, param: str, name: str = "url") -> Attachment:
    """The attachment at the URL in this field. Raises RequestError."""
    return Attachment(kind, param, url=url_of(holder, name), low=_is_low(holder))


def url_of(holder: RequestObject, name: str) -> str:
    """The URL in this field, which is a data URL or one of the web. Raises RequestError."""
    url = holder.text(name)
    if not (url[:8].lower().startswith(_SCHEMES) or reference_in(url)):
        raise holder.wrong(name, "Send a data URL, or a URL that begins with http:// or https://.")
    return url


def in_base64(kind: MediaKind, holder: RequestObject, param: str, name: str = "data") -> Attachment:
    """The attachment with the base64 in this field. Raises RequestError."""
    return Attachment(kind, param, data=holder.text(name), name=holder.text_or_none("filename"))


def stored(kind: MediaKind, holder: RequestObject, param: str) -> Attachment:
    """The attachment with this file id. Raises RequestError."""
    return Attachment(kind, param, file_id=holder.named("file_id"), low=_is_low(holder))


def file_of(holder: RequestObject, param: str, *names: str) -> Attachment:
    """A file: as `file_data`, by its id, or at a `file_url` if the API has that.

    `names` are the fields that errors suggest, besides `file_id`. Raises RequestError.
    """
    name = holder.text_or_none("filename")
    given = [field for field in ("file_data", "file_id", "file_url") if holder.value.get(field) is not None]
    if len(given) != 1 or (given == ["file_url"] and "file_url" not in names):
        raise RequestError(
            f"Invalid value for '{holder.where}': Send one of {', '.join((*names, 'file_id'))}.",
            param=holder.where,
        )
    if given == ["file_id"]:
        return Attachment(MediaKind.FILE, param, file_id=holder.named("file_id"), name=name)
    if given == ["file_url"]:
        return Attachment(MediaKind.FILE, param, url=url_of(holder, "file_url"), name=name)
    data = holder.named("file_data")
    url = data if data[:5].lower() == "data:" else None
    return Attachment(MediaKind.FILE, param, data=None if url else data, url=url, name=name)


def _is_low(holder: RequestObject) -> bool:
    """The client is content with little detail. Raises RequestError."""
    detail = holder.text_or_none("detail")
    if detail is not None and detail not in DETAILS:
        raise holder.wrong("detail", f"Use one of: {', '.join(DETAILS)}.")
    return detail == "low"
