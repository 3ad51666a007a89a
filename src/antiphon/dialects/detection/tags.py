"""Derives the format of calls whose name, keys and values stand between tags, from rendered answers.

The texts between the name, the keys and the values of known calls are compared. What is before every key is
the tag that opens a key; what is left of the text between two arguments closes a value, and so on:

    GROUP START NAME_START name NAME_END KEY_START key KEY_END VALUE_START value VALUE_END … END

What is found is a guess: `generic.py` compares what it decodes with what was rendered.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.core.items import FunctionCall
from antiphon.dialects.call_formats import TagsFormat
from antiphon.dialects.detection.samples import ProbeSample, common


class _TagCall(Struct, frozen=True):
    """The texts between the parts of a call: before its name, after it, and around keys and values."""

    before: str
    named: str
    keyed: tuple[str, ...]
    texts: tuple[bool, ...]
    between: tuple[str, ...]
    after: str


class _Keys(Struct, frozen=True):
    """How keys are written."""

    start: str
    end: str
    value_start: str = ""
    newline: bool = False
    quotes: bool = False
    key_attribute: str = ""
    type_attribute: str = ""
    text_type: str = "true"


def find_calls(samples: Sequence[ProbeSample]) -> TagsFormat | None:
    """The format of the calls of these samples, None if it is another one."""
    answers = [calls for calls in map(_calls_in, samples) if calls]
    single = [calls[0] for calls in answers if len(calls) == 1]
    several = next((call for calls in answers for call in calls if call.between), None)
    pair = next((calls for calls in answers if len(calls) > 1), None)
    if not single or several is None:
        return None
    key_start = _from_tag(_ending(several.named, *several.between))
    if not key_start:
        return None
    keys = _keys(key_start, several)
    before = _ending(*(call.before for call in single))
    opening = _from_tag(_ending(before, pair[1].before) if pair else before)
    group = last_tag(before.rstrip().removesuffix(opening)) if pair else ""
    value_end = several.between[0].removesuffix(key_start)
    after = _beginning(*(call.after for call in single)).removeprefix(value_end.rstrip())
    closing = (pair[1].before.removeprefix(value_end.rstrip()).rstrip() if pair else after).removesuffix(
        opening
    )
    first, *more = _tags(opening)
    ends = _tags(closing) if pair else _tags(after)[: 1 + bool(more)]
    if keys is None or not ends or not value_end.strip() or len(more) > 1 or len(ends) > 2:
        return None
    name_end = several.named.removesuffix(key_start).strip()
    quotes = name_end.startswith('"')
    group_end = first_tag(after.lstrip().removeprefix(closing.strip())) if group else ""
    name_start = (more[0] if more else first).removesuffix('"') if quotes else (more[0] if more else "")
    return TagsFormat(
        first if more or not quotes else name_start,
        ends[-1],
        group,
        group_end,
        name_start=name_start if more else "",
        name_end=name_end.removeprefix('"'),
        key_start=keys.start,
        key_end=keys.end,
        value_start=keys.value_start,
        value_end=value_end.strip(),
        arguments_end=ends[0] if len(ends) > 1 else "",
        quotes=quotes or keys.quotes,
        newlines=keys.newline and value_end.startswith("\n"),
        key_attribute=keys.key_attribute,
        type_attribute=keys.type_attribute,
        text_type=keys.text_type,
    )


def _keys(key_start: str, call: _TagCall) -> _Keys | None:
    """How the keys of a call are written, of which some have values that are text."""
    of_texts = {text for text, is_text in zip(call.keyed, call.texts, strict=True) if is_text}
    of_others = {text for text, is_text in zip(call.keyed, call.texts, strict=True) if not is_text}
    if len(of_texts) != 1 or len(of_others) > 1:
        return None
    (text,) = of_texts
    if of_others and of_others != of_texts:
        return _typed_keys(key_start, text, *of_others)
    quotes = text.startswith('"')
    end, value_start, *rest = (*_tags(text.removeprefix('"')), "", "")
    if not end or any(rest):
        return None
    return _Keys(key_start.removesuffix('"'), end, value_start, newline=text.endswith("\n"), quotes=quotes)


_ATTRIBUTE = re.compile(r'"\s+([\w:-]+)="(\w+)"\s*(\S+)(\n?)')


def _typed_keys(key_start: str, of_text: str, of_other: str) -> _Keys | None:
    """Keys beside an attribute that says whether the value is text."""
    text, other = _ATTRIBUTE.fullmatch(of_text), _ATTRIBUTE.fullmatch(of_other)
    key = re.fullmatch(r'(.*?\s)([\w:-]+)="', key_start, re.DOTALL)
    if not text or not other or not key or (text[1], text[3], text[4]) != (other[1], other[3], other[4]):
        return None
    attributes = {"key_attribute": key[2], "type_attribute": text[1], "text_type": text[2]}
    return _Keys(key[1], text[3], newline=bool(text[4]), quotes=True, **attributes)


def _calls_in(sample: ProbeSample) -> list[_TagCall]:
    """The calls of an answer in order, none if one of them is not found."""
    rest, calls = sample.text_after(sample.generation_prompt), []
    for item in sample.items:
        if isinstance(item, FunctionCall):
            call = _call_in(rest, item.name, json.loads(item.arguments))
            if call is None:
                return []
            calls.append(call)
            rest = call.after
    return calls


def _call_in(text: str, name: str, arguments: Mapping[str, Any]) -> _TagCall | None:
    """The texts around the parts of a call; keys may be sorted."""
    before, separator, rest = text.partition(name)
    gaps, texts = list[str](), list[bool]()
    for key, value in sorted(arguments.items(), key=lambda argument: _position(rest, argument[0])):
        at = _position(rest, key)
        if not separator or at == len(rest):
            return None
        gaps.append(rest[:at])
        rest = rest[at + len(key) :]
        end, written = min(
            ((_position(rest, spelling), spelling) for spelling in _spellings(value)), default=(len(rest), "")
        )
        if end == len(rest):
            return None
        gaps.append(rest[:end])
        texts.append(isinstance(value, str))
        rest = rest[end + len(written) :]
    named, *inner = gaps
    return _TagCall(before, named, tuple(inner[::2]), tuple(texts), tuple(inner[1::2]), rest)


def _position(text: str, part: str) -> int:
    at = text.find(part)
    return len(text) if at < 0 else at


def _spellings(value: Any) -> Iterator[str]:
    """How a template may write a value."""
    if isinstance(value, str):
        yield value
        return
    yield json.dumps(value, ensure_ascii=False)
    yield json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_TAG = re.compile(r"<[^<>]+>|\[[^\[\]]+\]")
_TAG_AT_END = re.compile(rf"(?:{_TAG.pattern})\Z")
_PART = re.compile(rf"{_TAG.pattern}|[^\s<\[]\S*|<\S*(?:\s\S+)*|\[\S*")
_START = re.compile(r"[<\[{(«◁|#@]|(?<=\n)\S")


def _tags(text: str) -> list[str]:
    """The tags in a text, the last of which may be open: `<call> <function=` has two."""
    return [part.strip() for part in _PART.findall(text.strip())]


def _from_tag(text: str) -> str:
    """The text from its first tag, or the first word of a line, on."""
    match = _START.search(text)
    return text[match.start() :] if match else ""


def _ending(*texts: str) -> str:
    """What all texts end with."""
    return common(*(text[::-1] for text in texts))[::-1]


def _beginning(*texts: str) -> str:
    """What all texts begin with."""
    return common(*texts)


def last_tag(text: str) -> str:
    """The tag that the text ends with, or its last line."""
    lines = text.strip().splitlines() or [""]
    tag = _TAG_AT_END.search(lines[-1])
    return tag[0] if tag else lines[-1]


def first_tag(text: str) -> str:
    """The tag that the text begins with, or its first line."""
    lines = text.strip().splitlines() or [""]
    tag = _TAG.match(lines[0])
    return tag[0] if tag else lines[0]
