"""Decodes bytes of the web in the encoding that browsers would choose: the declared one or a guess."""

import codecs
import re

import webencodings

_PRESCANNED = 1024
"""The most bytes at the beginning of a page in which a browser looks for its encoding."""

_META = re.compile(rb"""<meta[^>]{0,512}?charset\s*+=\s*+["']?\s*+([\w.:-]{1,40})""", re.IGNORECASE)


def decode(body: bytes, declared: str | None) -> str:
    """The text of a page, or of its beginning, whose `Content-Type` declared this charset. Never fails."""
    encoding = _named(declared) or _of_meta(body) or _guess(body)
    text: str = webencodings.decode(body, encoding, errors="replace")[0]
    return text


def _named(label: str | None) -> webencodings.Encoding | None:
    return webencodings.lookup(label) if label else None


def _of_meta(body: bytes) -> webencodings.Encoding | None:
    match = _META.search(body[:_PRESCANNED])
    encoding = _named(match[1].decode("ascii", "replace")) if match else None
    # Who could read the tag cannot have read UTF-16: the standard makes it UTF-8.
    return webencodings.UTF8 if encoding and encoding.name.startswith("utf-16") else encoding


def _guess(body: bytes) -> webencodings.Encoding:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(body)  # a character that is cut at the end is allowed
    except UnicodeDecodeError:
        return webencodings.lookup("windows-1252")
    return webencodings.UTF8
