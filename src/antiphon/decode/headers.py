"""Parsers of call headers, message headers and argument names, for dialects to choose from."""

import re
from collections.abc import Callable, Mapping
from html import unescape

from antiphon.core.grammar import (
    ArgumentKey,
    CallHeader,
    HeaderSpelling,
    HeaderSpellings,
    KeyParser,
    KeySpelling,
    NameParser,
    Route,
    Router,
    SpelledParser,
    spelled,
    with_source,
)

MAX_NAME = 256
"""Characters of the longest name of a function or argument."""
MAX_HEADER = 4 * MAX_NAME
"""Characters of the longest header or key, attributes included."""

PUNCTUATION = r"\u2018-\u201d\u2026\u3001-\u303f\uff01-\uff20"
"""Characters, as in a pattern, that no header contains, but prose without spaces does."""

_JSON = {"json": "false"}
JSON_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")

_NAME = re.compile(rf"[^\s\"'<>{{}}()\[\],=|{PUNCTUATION}]+")


@spelled(("NAME",))
def plain_name(text: str) -> CallHeader | None:
    """The text is the name."""
    name = text.strip()
    return CallHeader(name) if _is_name(name) else None


@spelled(('"NAME"',))
def quoted_name(text: str) -> CallHeader | None:
    """The name, in quotes of either kind or none: `"NAME"`."""
    return plain_name(_unquote(text.strip()))


@spelled(("functions.NAME:NUMBER",))
def kimi_name(text: str) -> CallHeader | None:
    """`functions.NAME:INDEX`, which is also the call's id."""
    call_id = text.strip()
    path, _, index = call_id.rpartition(":")
    name = (path or index).rpartition("functions.")[2]
    return CallHeader(name, call_id if path else None) if _is_name(name) else None


@spelled(("NAME", "NAME[CALL_ID]ID"))
def mistral_name(text: str) -> CallHeader | None:
    """`NAME`, or `NAME[CALL_ID]ID` with an id that Mistral's templates accept."""
    name, _, call_id = text.partition("[CALL_ID]")
    header = plain_name(name)
    return header and CallHeader(
        header.name, call_id.strip() if _MISTRAL_ID.fullmatch(call_id.strip()) else None
    )


@with_source
def attribute_name(name: str, more: str = "") -> NameParser:
    """The name is the value of an attribute: `tool="NAME" index="1"`; models write `more` after it."""
    find = _attribute(name)

    def parse(text: str) -> CallHeader | None:
        value = find(text)
        return plain_name(value) if value else None

    return SpelledParser(parse, (f'{name}="NAME"{more}',))


@with_source
def harmony_router(channels: Mapping[str, str], guess: str, arguments: str, code: str) -> Router:
    """`assistant<|channel|>CHANNEL to=RECIPIENT <|constrain|>json`, in any order.

    `channels` maps channels to states, an unknown one leads to `guess`; the body of a
    call is read by the state `arguments`, a program by `code`. A recipient without a
    namespace is a function only if the request offers it.
    """

    def route(text: str) -> Route | None:
        text = _STARTED_AGAIN.sub("", text)
        recipient = _RECIPIENT.search(text)
        outside = _RECIPIENT.sub(" ", text)
        tokens = set(_TOKEN.findall(outside))
        words = [*filter(None, _WORD.findall(_TOKEN.sub(" ", outside)))]
        is_header = tokens or recipient or len(words) < 2 or not {"assistant", *channels}.isdisjoint(words)
        if not is_header or not tokens <= {"<|channel|>", "<|constrain|>"}:
            return None
        state = next((channels[word] for word in words if word in channels), guess)
        path = recipient[1] if recipient else ""
        name = path.removeprefix("functions.")
        if not _is_name(name):
            return Route(state)
        if name == "python" and path == name and "json" not in words:
            return Route(code, CallHeader(name))
        # A namespace is that of a tool, also of one that nobody offers: gpt-oss was trained with some.
        certain = "." in path or name == "python"
        glued = [name.removesuffix(word) for word in _GLUED if name.endswith(word)]
        return Route(arguments, CallHeader(name), None if certain else state, tuple(glued))

    messages = [HeaderSpelling(f"assistant<|channel|>{channel}", to) for channel, to in channels.items()]
    calls = (
        HeaderSpelling("assistant<|channel|>commentary to=functions.NAME <|constrain|>json", arguments),
        HeaderSpelling("assistant to=functions.NAME<|channel|>commentary json", arguments),
        HeaderSpelling("assistant<|channel|>analysis to=NAME json", arguments, native=True),
    )
    return SpelledParser(route, HeaderSpellings("<|start|>", "assistant", (*messages, *calls)))


@with_source
def called_recipient_router(channels: Mapping[str, str], guess: str, call: str, spelling: str) -> Router:
    """`assistant to=NAME<|channel|>CHANNEL`: a message with a recipient is a call of it, read by `call`.

    `channels` maps the channels of other messages to states, an unknown one leads to `guess`. Models write
    `spelling` in the header of a call.
    """

    def route(text: str) -> Route | None:
        if not set(_TOKEN.findall(text)) <= {"<|channel|>", "<|constrain|>"}:
            return None
        if recipient := _RECIPIENT.search(text):
            return Route(call, CallHeader(recipient[1])) if _is_name(recipient[1]) else None
        words = _TOKEN.sub(" ", text).split()
        if len(words) > 1 and {"assistant", *channels}.isdisjoint(words):
            return None
        return Route(next((channels[word] for word in words if word in channels), guess))

    messages = [HeaderSpelling(f"assistant<|channel|>{channel}", to) for channel, to in channels.items()]
    headings = (*messages, HeaderSpelling(f"assistant {spelling}", call))
    return SpelledParser(route, HeaderSpellings("<|start|>", "assistant", headings))


@with_source
def begins_harmony_header(*channels: str) -> Callable[[str], bool]:
    """Whether text may be the start of a harmony header: a special token, or first a word of one."""
    first_words = ("assistant", "json", *channels)

    def begins(text: str) -> bool:
        words = _HEADER_TEXT.match(text)[1].split(maxsplit=1)  # type: ignore[index]  # it may be empty
        return len(words) < 2 or words[0].startswith("to=") or _WORD.match(words[0])[0] in first_words  # type: ignore[index]

    return begins


def is_cut_harmony_header(text: str) -> bool:
    """Whether the text is a special token and words of a harmony header, the last one possibly cut."""
    return _CUT.fullmatch(text) is not None


@with_source
def prefixed_name(pattern: str, spelling: str) -> NameParser:
    """The name is the text after a match of `pattern`; models write `spelling`."""
    prefix = re.compile(pattern)

    def parse(text: str) -> CallHeader | None:
        match = prefix.match(text)
        return plain_name(text[match.end() :]) if match else None

    return SpelledParser(parse, (spelling,))


@with_source
def repetition_router(to: str) -> Router:
    """Drops a repeated `[f(a=1)]`, which is no header. LFM2 writes it; a constraint never demands it."""

    def route(text: str) -> Route | None:
        return Route(to) if text.rstrip().endswith(")]") else None

    return SpelledParser(route, HeaderSpellings("", "", ()))


@with_source
def recipient_router(recipients: Mapping[str, str], others: str, nobody: str | None = None) -> Router:
    """`assistant to=RECIPIENT`: `recipients` maps recipients to states, any other leads to `others`.

    A header without a recipient leads to `nobody`; None: it is not one.
    """

    def route(text: str) -> Route | None:
        words = _STARTED_AGAIN.sub("", text).split()
        if words[:1] == ["assistant"]:
            del words[0]
        if not words and nobody is not None:
            return Route(nobody)
        if len(words) != 1 or not words[0].startswith("to="):
            return None
        return Route(recipients.get(words[0][3:], others))

    messages = [HeaderSpelling(f"assistant to={recipient}", to) for recipient, to in recipients.items()]
    headings = (*messages, HeaderSpelling("assistant to=NAME", others))
    return SpelledParser(route, HeaderSpellings("<|start|>", "assistant", headings))


def begins_recipient(text: str) -> bool:
    """Whether text may be the start of `assistant to=RECIPIENT`, or a token without a header."""
    text = _STARTED_AGAIN.sub("", text).lstrip()
    recipient = text.removeprefix("assistant").lstrip()
    starts = any(word.startswith(recipient) for word in ("<|start|>", "<|eom|>", "<|eot|>", "to="))
    return starts or "assistant".startswith(text.rstrip()) or _TO_RECIPIENT.fullmatch(recipient) is not None


def is_cut_recipient(text: str) -> bool:
    """Whether text is such a start that was cut: with `<|start|>` before it, or with `to=`."""
    header = text.removeprefix("<|start|>")
    return begins_recipient(header) and (header != text or "to=" in header)


@with_source
def bare_recipient_router(recipients: Mapping[str, str], others: str) -> Router:
    """The same after `to=`."""

    def route(text: str) -> Route | None:
        return Route(recipients.get(text, others)) if begins_bare_recipient(text) and text else None

    return route


def begins_bare_recipient(text: str) -> bool:
    """Whether text may be the start of a recipient."""
    return _is_name(text) or not text


@spelled((KeySpelling("KEY"),))
def plain_key(text: str) -> ArgumentKey | None:
    """The text is the key."""
    key = text.strip()
    return ArgumentKey(key) if key and len(key) <= MAX_NAME else None


@spelled((KeySpelling("KEY"),))
def innermost_key(text: str) -> ArgumentKey | None:
    """The text is the key; after a tag in it another key began, which is the key then."""
    return plain_key(_TAG.split(text)[-1])


@spelled((KeySpelling('"KEY"'),))
def quoted_key(text: str) -> ArgumentKey | None:
    """The key, in quotes of either kind or none."""
    return plain_key(_unquote(text.strip()))


@spelled((KeySpelling('"KEY"'),))
def json_or_text_key(text: str) -> ArgumentKey | None:
    """The key, in quotes of either kind or none, of a value that is JSON if it parses."""
    keyed = quoted_key(text)
    return keyed and ArgumentKey(keyed.key, "guess")


def byte_level_key(text: str) -> ArgumentKey | None:
    """The key, in quotes or none, of a value in which `Ġ` and `Ċ` stand for space and newline."""
    keyed = quoted_key(text)
    return keyed and ArgumentKey(keyed.key, "byte_level")


@with_source
def typed_key(key: str, type_: str, texts: str, others: Mapping[str, str] = _JSON) -> KeyParser:
    """The key and its type are attributes. `type_="TEXTS"` means that the value is text, else it is JSON.

    `others` maps the other types of `KeySpelling` to their texts.
    """
    find_key, find_type = _attribute(key), _attribute(type_)

    def parse(text: str) -> ArgumentKey | None:
        key_value, type_value = find_key(text), find_type(text)
        if not key_value or len(key_value) > MAX_NAME:
            return None
        return ArgumentKey(key_value, "string" if type_value == texts else "json")

    spellings = {"string": texts, **others}
    return SpelledParser(
        parse, tuple(KeySpelling(f'{key}="KEY" {type_}="{name}"', json) for json, name in spellings.items())
    )


@with_source
def tagged_key(close: str, open_type: str, close_type: str) -> KeyParser:
    """The key, its closing tag, and an optional type in tags: `KEY</key><type>TYPE</type>`."""

    def parse(text: str) -> ArgumentKey | None:
        key, _, rest = text.partition(close)
        keyed = plain_key(key)
        type_ = rest.strip().removeprefix(open_type).removesuffix(close_type).strip()
        return keyed and (
            ArgumentKey(keyed.key, "string" if type_ == "string" else "json") if type_ else keyed
        )

    typed = (KeySpelling(f"KEY{close}\n{open_type}{name}{close_type}\n", name) for name in JSON_TYPES)
    return SpelledParser(parse, (KeySpelling(f"KEY{close}"), *typed))


_MISTRAL_ID = re.compile(r"[A-Za-z0-9]{9}")
_STARTED_AGAIN = re.compile(r"\A(?:\s*+(?:assistant)?\s*+<\|start\|>)++")
"""The prompt has the start of a header, and models may write it again."""
_TAG = re.compile(r"<[^<>]*>")
_TOKEN = re.compile(r"<\|\w+\|>")
_WORD = re.compile(r"[^\W\d_]*")
_HEADER_TEXT = re.compile(r"(?:\s*+<\|\w+\|>)*+((?:[^<]|<(?!\||\Z))*+)")
"""Special tokens, and the text up to the next one."""
_TO_RECIPIENT = re.compile(r"to=[^\s<]*+\s*+")
# Its quantifiers are possessive (`*+`): a model's text must not make the search go back, and back again.
_CUT = re.compile(
    r"(?=[^<]*<\||\s*+to=)(?:<\|start\|>)?(?:assistant)?"
    r"(?:\s*+(?:<\|(?:channel|constrain)\|>\s*+\w*+|to=[^\s<]*+|json|code))*+\s*+\w*+(?:<(?:\|\w*+\|?)?)?"
)
_RECIPIENT = re.compile(r"(?:^|[\s>])to=\s*([^\s<]+)")
_GLUED = ("json", "code", "commentary", "analysis")
"""Words of a header that models write directly after the recipient."""


def _attribute(name: str) -> Callable[[str], str | None]:
    """Finds the value of an attribute, in quotes of either kind or none, with XML escapes."""
    value = r"""(?:"([^"]*)"?|'([^']*)'?|([^"'>\s]*))"""
    pattern = re.compile(rf"(?:^|\s){re.escape(name)}\s*=\s*{value}")

    def find(text: str) -> str | None:
        match = pattern.search(text)
        return match and unescape(match[match.lastindex or 0])

    return find


def _unquote(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text.strip("\"'")


def _is_name(name: str) -> bool:
    return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None
