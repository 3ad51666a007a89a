"""Arguments of a call that may be cut, or broken → the object that they are so far.

For the APIs whose calls have objects, not JSON text.
"""

import re
from typing import Any

import msgspec

from antiphon.core.items import object_in
from antiphon.core.json_scanner import JsonScanner

_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*+")
      | (?P<sign>[{}\[\],:])
      | (?P<scalar>[^\s{}\[\],:"]+)
      | (?P<cut>".*)""",
    re.VERBOSE | re.DOTALL,
)
_CLOSERS = {"{": "}", "[": "]"}


def object_so_far(arguments: str) -> dict[str, Any]:
    """The object in these arguments: if they were cut, its complete members.

    Clients build the same object from a stream. If it is not an object, it is empty.
    """
    whole = object_in(arguments)
    if whole is not None:
        return whole
    written: list[str] = []
    JsonScanner(only_object=True).feed(arguments, 0, written)
    arguments = "".join(written)
    open_: list[str] = []
    # Of the complete part; the next string is a key.
    end, closing, key = (
        0,
        "",
        False,
    )
    for token in _TOKEN.finditer(arguments):
        sign = token["sign"]
        if sign in ("{", "["):
            open_.append(_CLOSERS[sign])
        elif token["cut"] or (sign in ("}", "]") and (not open_ or open_.pop() != sign)):
            break
        if sign in ("{", "[", ","):
            key = open_[-1:] == ["}"]
        elif sign == ":":
            key = False
        if sign not in (",", ":") and not (token["string"] and key) and _is_whole(token["scalar"]):
            end, closing = token.end(), "".join(reversed(open_))
    return object_in(arguments[:end] + closing) or {}


def _is_whole(scalar: str | None) -> bool:
    """A number or a literal is not cut."""
    try:
        msgspec.json.decode(scalar or "null")
    except msgspec.DecodeError:
        return False
    return True
