"""How the headers of calls and the names of arguments are written: parts for a dialect to choose."""

import re
from collections.abc import Callable, Mapping
from html import unescape

from antiphon.core.grammar import (
    Heading,
    Headings,
    Keyed,
    KeyForm,
    KeySpelling,
    Named,
    NameForm,
    Route,
    Router,
    Spelled,
    spelled,
)

MAX_NAME = 256
"""Characters of a function's or an argument's name. A longer one is no name."""
MAX_HEADER = 4 * MAX_NAME
"""Characters of a header or key, attributes included. A longer one is none."""

_JSON = {"json": "false"}
JSON_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")

_NAME = re.compile(r"[^\s\"'<>{}()\[\],=|]+")


@spelled(("NAME",))
def plain(text: str) -> Named | None:
    """The text is the name."""
    name = text.strip()
    return Named(name) if _is_name(name) else None


@spelled(('"NAME"',))
def quoted(text: str) -> Named | None:
    """The name, in quotes of either kind or none: `"NAME"`."""
    return plain(_unquote(text.strip()))


@spelled(("functions.NAME:NUMBER",))
def kimi(text: str) -> Named | None:
    """`functions.NAME:IDX`, which is also the call's id."""
    call_id = text.strip()
    path, _, index = call_id.rpartition(":")
    name = (path or index).rpartition("functions.")[2]
    return Named(name, call_id if path else None) if _is_name(name) else None


@spelled(("NAME", "NAME[CALL_ID]ID"))
def mistral(text: str) -> Named | None:
    """`NAME`, or `NAME[CALL_ID]ID` with an id that Mistral's templates take."""
    name, _, call_id = text.partition("[CALL_ID]")
    named = plain(name)
    return named and Named(named.name, call_id.strip() if _MISTRAL_ID.fullmatch(call_id.strip()) else None)


def attribute(name: str, more: str = "") -> NameForm:
    """The name is the value of an attribute: `tool="NAME" index="1"`; `more` is what is written behind it."""
    find = _attribute(name)

    def read(text: str) -> Named | None:
        found = find(text)
        return plain(found) if found else None

    return Spelled(read, (f'{name}="NAME"{more}',))


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

    known = [Heading(f"assistant<|channel|>{channel}", to) for channel, to in channels.items()]
    calls = (
        Heading("assistant<|channel|>commentary to=functions.NAME <|constrain|>json", arguments),
        Heading("assistant to=functions.NAME<|channel|>commentary json", arguments),
        Heading("assistant<|channel|>analysis to=NAME json", arguments, native=True),
    )
    return Spelled(route, Headings("<|start|>", "assistant", (*known, *calls)))


def harmony_cut(text: str) -> bool:
    """A special token, and nothing but words that such a header has, the last one perhaps in part."""
    return _CUT.fullmatch(text) is not None


def prefixed(pattern: str, written: str) -> NameForm:
    """The name stands after what the pattern matches, and is written as `written` says."""
    prefix = re.compile(pattern)

    def read(text: str) -> Named | None:
        found = prefix.match(text)
        return plain(text[found.end() :]) if found else None

    return Spelled(read, (written,))


def echo(to: str) -> Router:
    """Not a header: `[f(a=1)]` once more, of no use to anyone."""

    def route(text: str) -> Route | None:
        return Route(to) if text.rstrip().endswith(")]") else None

    return route


def addressed(recipients: Mapping[str, str], others: str) -> Router:
    """`assistant to=RECIPIENT`: each of `recipients` leads to a state, any other to `others`."""

    def route(text: str) -> Route | None:
        words = text.split()
        if words[:1] == ["assistant"]:
            del words[0]
        if len(words) != 1 or not words[0].startswith("to="):
            return None
        return Route(recipients.get(words[0][3:], others))

    known = [Heading(f"assistant to={recipient}", to) for recipient, to in recipients.items()]
    headings = (*known, Heading("assistant to=NAME", others))
    return Spelled(route, Headings("<|start|>", "assistant", headings))


@spelled((KeySpelling("KEY"),))
def plain_key(text: str) -> Keyed | None:
    """The text is the key."""
    key = text.strip()
    return Keyed(key) if key and len(key) <= MAX_NAME else None


@spelled((KeySpelling('"KEY"'),))
def quoted_key(text: str) -> Keyed | None:
    """The key, in quotes of either kind or none."""
    return plain_key(_unquote(text.strip()))


@spelled((KeySpelling('"KEY"'),))
def guessed_key(text: str) -> Keyed | None:
    """The key, in quotes of either kind or none, of a value that is JSON if it can be."""
    keyed = quoted_key(text)
    return keyed and Keyed(keyed.key, "guess")


def signed_key(text: str) -> Keyed | None:
    """The key, in quotes of either kind or none, of a value with a vocabulary's signs for space."""
    keyed = quoted_key(text)
    return keyed and Keyed(keyed.key, "signs")


def typed_key(key: str, type_: str, texts: str, others: Mapping[str, str] = _JSON) -> KeyForm:
    """The key and its type are attributes. `type_="TEXTS"` means that the value is text, else it is JSON.

    `others` says how the other types are written, as in `KeySpelling`.
    """
    find_key, find_type = _attribute(key), _attribute(type_)

    def read(text: str) -> Keyed | None:
        found, type_found = find_key(text), find_type(text)
        if not found or len(found) > MAX_NAME:
            return None
        return Keyed(found, "string" if type_found == texts else "json")

    spellings = {"string": texts, **others}
    return Spelled(
        read, tuple(KeySpelling(f'{key}="KEY" {type_}="{name}"', json) for json, name in spellings.items())
    )


def tagged_key(close: str, open_type: str, close_type: str) -> KeyForm:
    """The key, its closing tag, and then its type in tags if it is told: `KEY</key><type>TYPE</type>`."""

    def read(text: str) -> Keyed | None:
        key, _, rest = text.partition(close)
        keyed = plain_key(key)
        type_ = rest.strip().removeprefix(open_type).removesuffix(close_type).strip()
        return keyed and (Keyed(keyed.key, "string" if type_ == "string" else "json") if type_ else keyed)

    typed = (KeySpelling(f"KEY{close}\n{open_type}{name}{close_type}\n", name) for name in JSON_TYPES)
    return Spelled(read, (KeySpelling(f"KEY{close}"), *typed))


_MISTRAL_ID = re.compile(r"[A-Za-z0-9]{9}")
_TOKEN = re.compile(r"<\|\w+\|>")
_CUT = re.compile(
    r"(?=[^<]*<\|)(?:<\|start\|>)?(?:assistant)?"
    r"(?:\s*+(?:<\|(?:channel|constrain)\|>\s*+\w*+|to=[^\s<]*+|json|code))*+\s*+\w*+"
)
_RECIPIENT = re.compile(r"(?:^|[\s>])to=\s*([^\s<]+)")
_BUILT_IN = ("browser.", "container.")


def _attribute(name: str) -> Callable[[str], str | None]:
    """Finds the value of an attribute, in quotes of either kind or none, as XML writes it."""
    value = r"""(?:"([^"]*)"?|'([^']*)'?|([^"'>\s]*))"""
    pattern = re.compile(rf"(?:^|\s){re.escape(name)}\s*=\s*{value}")

    def find(text: str) -> str | None:
        found = pattern.search(text)
        return found and unescape(found[found.lastindex or 0])

    return find


def _unquote(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text.strip("\"'")


def _is_name(name: str) -> bool:
    return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None
