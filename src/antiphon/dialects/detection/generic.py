"""A dialect made of what a template shows, for a model whose family nobody described.

Answers with a call are compared with what the calls say. What stands before and
after is taken to be markers, so two shapes can be told:

    OPEN {"name": …, "arguments": {…}} CLOSE      any keys, or an array of such
    OPEN name SEPARATOR {…} CLOSE

Thoughts are what stands between two markers of which one may be in the prompt
already. Anything else is not understood, and no dialect is made of it.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from antiphon.core.grammar import (
    Grammar,
    JsonArguments,
    JsonCalls,
    Kind,
    Markers,
    Name,
    Span,
    State,
    Thoughts,
)
from antiphon.core.items import FunctionCall
from antiphon.decode.headers import plain
from antiphon.dialects.detection.specimens import TEXT as SAID
from antiphon.dialects.detection.specimens import THOUGHT, Specimen, Specimens, common
from antiphon.dialects.dialect import TEXT, Dialect

NAME = "generic"
"""What a dialect made here is called. It cannot be chosen by name: it belongs to its template."""

_DECODER = json.JSONDecoder()


class _Seen(Struct, frozen=True):
    """A call in an answer: what stands before it, between name and arguments, and behind it.

    `keys` are those of name and arguments; None if the name stands alone.
    """

    before: str
    separator: str
    after: str
    keys: tuple[str, str] | None


def build(specimens: Specimens) -> Dialect | None:
    """The dialect that reads these answers, None if their shape is not understood."""
    grammar = _find_calls(specimens.calls)
    plain = {each.opening: each for each in specimens.answers if each.items == (SAID,)}
    pairs = ((each, plain.get(each.opening)) for each in specimens.answers if each.items == (THOUGHT, SAID))
    thoughts = next(filter(None, (_find_thoughts(each, other) for each, other in pairs if other)), None)
    if grammar is None and thoughts is None:
        return None
    return Dialect(names=(NAME,), calls=grammar or TEXT, thoughts=thoughts)


def _find_calls(specimens: Sequence[Specimen]) -> Grammar | None:
    """The grammar of calls that all begin and end alike."""
    seen = [calls for calls in map(_calls_in, specimens) if calls]
    forms = {(calls[0].separator.strip(), calls[0].keys) for calls in seen}
    if len(forms) != 1:
        return None
    opening = common(*(calls[0].before[::-1] for calls in seen))[::-1].strip()
    if not opening:  # without an opening, a call looks like any text
        return None
    between = next((calls[1].before for calls in seen if len(calls) > 1), None)
    after = common(*(calls[-1].after for calls in seen))
    closing = _first_tag(after) if between is None else between.strip().removesuffix(opening).strip()
    ((separator, keys),) = forms
    # Calls of one array have a comma between them, and no closing.
    return _grammar(opening, _first_tag(after) if closing == "," else closing, separator, keys)


def _grammar(opening: str, closing: str, separator: str, keys: tuple[str, str] | None) -> Grammar:
    closes: Markers = {closing: "text"} if closing else {}
    states: dict[str, State] = {
        "text": Span(Kind.TEXT, on={opening: "call"}),
        "called": Span(Kind.MARKUP, on={opening: "call", **closes}),
    }
    if keys:
        states["call"] = JsonCalls(then="called", name=keys[:1], arguments=keys[1:])
    else:
        states["call"] = Name(on={separator: "arguments"}, form=plain)
        states["arguments"] = JsonArguments(then="called")
    return Grammar(states)


def _calls_in(specimen: Specimen) -> list[_Seen]:
    """The calls of an answer in order, none if one of them is not found."""
    text, seen = specimen.behind(specimen.opening), []
    for call in specimen.items:
        if isinstance(call, FunctionCall):
            found = _with_keys(text, call) or _with_name(text, call)
            if found is None:
                return []
            seen.append(found)
            text = found.after
    return seen


def _with_keys(text: str, call: FunctionCall) -> _Seen | None:
    """A call that is one JSON object. In an array, the bracket belongs to what stands before it."""
    for start, end, value in _objects(text):
        name = next((key for key, each in value.items() if each == call.name), None)
        given = next((key for key, each in value.items() if each == json.loads(call.arguments)), None)
        if name is not None and given is not None:
            before, after = text[:start].rstrip(), text[end:].lstrip()
            if before.endswith(("[", ",")):
                before, after = before.removesuffix("["), after.removeprefix("]")
            return _Seen(before, "", after, (name, given))
    return None


def _with_name(text: str, call: FunctionCall) -> _Seen | None:
    """A call that is a name, something, and a JSON object."""
    before, found, after = text.partition(call.name)
    for start, end, value in _objects(after) if found else ():
        if value == json.loads(call.arguments) and after[:start].strip():
            return _Seen(before, after[:start], after[end:], None)
    return None


def _objects(text: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Every JSON object in the text that is not inside of another: start, end, value."""
    at = text.find("{")
    while at >= 0:
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            yield at, end, value
        at = text.find("{", end)


def _find_thoughts(specimen: Specimen, without: Specimen) -> Thoughts | None:
    """What stands around the thought of an answer, and not in the same answer `without` one.

    The opening may be the end of the prompt, and no part of the answer. Or there
    are markers without a thought, too.
    """
    before, _, after = specimen.written.partition(THOUGHT.text)
    between, found, _ = after.partition(SAID.text)
    closing, said_after = _first_tag(between), without.written.partition(SAID.text)[0]
    own = before[len(common(before, said_after)) :]
    if not (found and closing):
        return None
    # An opening that closes, too, asks for no thought.
    prompted, closed, _ = specimen.opening[len(common(specimen.opening, before)) :].partition(closing)
    opening = _last_tag(own) or ("" if closed else _last_tag(prompted))
    opening = opening or (_last_tag(before) if closing in said_after else "")
    return Thoughts(opens=(opening,), closes=(closing,)) if opening else None


def _last_tag(text: str) -> str:
    """The tag that the text ends with, or its last line."""
    lines = text.strip().splitlines() or [""]
    tag = _TAG_AT_END.search(lines[-1])
    return tag[0] if tag else lines[-1]


def _first_tag(text: str) -> str:
    """The tag that the text begins with, or its first line."""
    lines = text.strip().splitlines() or [""]
    tag = _TAG.match(lines[0])
    return tag[0] if tag else lines[0]


_TAG = re.compile(r"<[^<>]+>|\[[^\[\]]+\]")
_TAG_AT_END = re.compile(rf"(?:{_TAG.pattern})\Z")
