"""Parts that are no text: what a client gives of them → `Attachment`s. Nothing is decoded or fetched here."""

from antiphon.apis.given import Given
from antiphon.core.errors import RequestError
from antiphon.core.items import Attachment, MediaKind

DETAILS = ("auto", "low", "high", "original")
_SCHEMES = ("data:", "http://", "https://")


def at_url(kind: MediaKind, holder: Given, param: str, name: str = "url") -> Attachment:
    """What is at the URL of this name. Raises RequestError."""
    return Attachment(kind, param, url=url_of(holder, name), low=_is_low(holder))


def url_of(holder: Given, name: str) -> str:
    """The URL of this name, which is a data URL or one of the web. Raises RequestError."""
    url = holder.text(name)
    if not url[:8].lower().startswith(_SCHEMES):
        raise holder.wrong(name, "Send a data URL, or a URL that begins with http:// or https://.")
    return url


def in_base64(kind: MediaKind, holder: Given, param: str, name: str = "data") -> Attachment:
    """What the base64 of this name holds. Raises RequestError."""
    return Attachment(kind, param, data=holder.text(name), name=holder.text_or_none("filename"))


def stored(kind: MediaKind, holder: Given, param: str) -> Attachment:
    """What is stored under the id of a file. Raises RequestError."""
    return Attachment(kind, param, file_id=holder.named("file_id"), low=_is_low(holder))


def file_of(holder: Given, param: str, *names: str) -> Attachment:
    """A file: sent along as `file_data`, stored, or elsewhere, where the API has `file_url`.

    `names` are the fields that errors offer, beside `file_id`. Raises RequestError.
    """
    name = holder.text_or_none("filename")
    given = [each for each in ("file_data", "file_id", "file_url") if holder.value.get(each) is not None]
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


def _is_low(holder: Given) -> bool:
    """The client is content with little detail. Raises RequestError."""
    detail = holder.text_or_none("detail")
    if detail is not None and detail not in DETAILS:
        raise holder.wrong("detail", f"Use one of: {', '.join(DETAILS)}.")
    return detail == "low"
