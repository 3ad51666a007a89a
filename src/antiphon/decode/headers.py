"""How the headers of calls and the names of arguments are written: parts for a dialect to choose."""

import re
from collections.abc import Callable, Mapping
from html import unescape

from antiphon.core.grammar import Keyed, Named, Route, Router

MAX_NAME = 256
"""Characters of a function's or an argument's name. A longer one is no name."""
MAX_HEADER = 4 * MAX_NAME
"""Characters of a header or key, attributes included. A longer one is none."""

_NAME = re.compile(r"[^\s\"'<>{}()\[\],=|]+")


def plain(text: str) -> Named | None:
    """The text is the name."""
    name = text.strip()
    return Named(name) if _is_name(name) else None


def quoted(text: str) -> Named | None:
    """The name, in quotes of either kind or none: `"NAME"`."""
    return plain(_unquote(text.strip()))


def kimi(text: str) -> Named | None:
    """`functions.NAME:IDX`, which is also the call's id."""
    call_id = text.strip()
    path, _, index = call_id.rpartition(":")
    name = (path or index).rpartition("functions.")[2]
    return Named(name, call_id if path else None) if _is_name(name) else None


def attribute(name: str) -> Callable[[str], Named | None]:
    """The name is the value of an attribute: `tool="NAME" index="1"`."""
    pattern = _attribute(name)

    def read(text: str) -> Named | None:
        found = pattern.search(text)
        return plain(unescape(found[1])) if found else None

    return read


def harmony(channels: Mapping[str, str], guess: str, arguments: str, code: str) -> Router:
    """`assistant<|channel|>CHANNEL to=RECIPIENT <|constrain|>json`, in any order.

    `channels` lead to states, an unknown one to `guess`; the body of a call is
    read by `arguments`, that of a program by `code`. A recipient that has no
    name space is a function only if the request offers it.
    """

    def route(text: str) -> Route | None:
        tokens = set(_TOKEN.findall(text))
        words = _TOKEN.sub(" ", text).split()
        recipient = _RECIPIENT.search(text)
        known = tokens or recipient or len(words) < 2 or not {"assistant", *channels}.isdisjoint(words)
        if not known or not tokens <= {"<|channel|>", "<|constrain|>"}:
            return None
        said = next((channels[word] for word in words if word in channels), guess)
        path = recipient[1] if recipient else ""
        name = path.removeprefix("functions.")
        if not _is_name(name):
            return Route(said)
        if name == "python" and path == name and "json" not in words:
            return Route(code, Named(name))
        surely = path != name or name == "python" or name.startswith(_BUILT_IN)
        return Route(arguments, Named(name), None if surely else said)

    return route


def plain_key(text: str) -> Keyed | None:
    """The text is the key."""
    key = text.strip()
    return Keyed(key) if key and len(key) <= MAX_NAME else None


def quoted_key(text: str) -> Keyed | None:
    """The key, in quotes of either kind or none."""
    return plain_key(_unquote(text.strip()))


def typed_key(key: str, type_: str, texts: str) -> Callable[[str], Keyed | None]:
    """The key and its type are attributes. `type_="TEXTS"` means that the value is text, else it is JSON."""
    key_pattern, type_pattern = _attribute(key), _attribute(type_)

    def read(text: str) -> Keyed | None:
        found, type_found = key_pattern.search(text), type_pattern.search(text)
        if not found:
            return None
        return Keyed(unescape(found[1]), "string" if type_found and type_found[1] == texts else "json")

    return read


_TOKEN = re.compile(r"<\|\w+\|>")
_RECIPIENT = re.compile(r"(?:^|[\s>])to=\s*([^\s<]+)")
_BUILT_IN = ("browser.", "container.")


def _attribute(name: str) -> re.Pattern[str]:
    return re.compile(rf"""(?:^|\s){re.escape(name)}\s*=\s*["']?([^"'>]*)""")


def _unquote(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text.strip("\"'")


def _is_name(name: str) -> bool:
    return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None
