"""Derives a dialect from rendered answers, for a family that no dialect describes.

Rendered answers are compared with the calls that they contain. The texts before and after a call are assumed
to be markers. Two formats are found here, one with keys and values between tags in `tags.py`:

    OPEN {"name": …, "arguments": {…}} CLOSE      any keys, or an array of such
    OPEN name SEPARATOR {…} CLOSE

Reasoning is the text between two markers, the first of which may be part of the generation prompt. For
anything else no dialect is derived.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from antiphon.core.grammar import ReasoningMarkers
from antiphon.core.items import FunctionCall
from antiphon.dialects.call_formats import CallFormat, JsonFormat, NameAndJsonFormat
from antiphon.dialects.detection import tags
from antiphon.dialects.detection.samples import REASONING, ProbeSample, ProbeSamples, common
from antiphon.dialects.detection.samples import TEXT as ANSWER
from antiphon.dialects.detection.scorers import round_trip_score
from antiphon.dialects.detection.tags import first_tag, last_tag
from antiphon.dialects.dialect import Dialect

NAME = "generic"
"""The name of a derived dialect. It cannot be chosen by name: it belongs to its template."""

_DECODER = json.JSONDecoder()


class _CallLayout(Struct, frozen=True):
    """The text around a call: before it, between name and arguments, and after it.

    `keys` are those of name and arguments; None if the name is not in a JSON object.
    """

    before: str
    separator: str
    after: str
    keys: tuple[str, str] | None


def build(samples: ProbeSamples) -> Dialect | None:
    """The dialect that decodes these samples, None if their format is not recognized."""
    plain = {sample.generation_prompt: sample for sample in samples.answers if sample.items == (ANSWER,)}
    reasoned = (sample for sample in samples.answers if sample.items == (REASONING, ANSWER))
    pairs = ((sample, plain.get(sample.generation_prompt)) for sample in reasoned)
    reasoning = next(filter(None, (_find_reasoning(sample, other) for sample, other in pairs if other)), None)
    forms: tuple[CallFormat | None, ...] = (_find_calls(samples.calls), tags.find_calls(samples.calls))
    dialects = [Dialect((NAME,), form.grammar(), reasoning, call_format=form) for form in forms if form]
    if dialects:
        return max(dialects, key=lambda dialect: round_trip_score(samples.calls, dialect))
    return Dialect((NAME,), reasoning=reasoning) if reasoning else None


def _find_calls(samples: Sequence[ProbeSample]) -> CallFormat | None:
    """The format of calls that all begin and end alike."""
    layouts = [calls for calls in map(_calls_in, samples) if calls]
    formats = {(calls[0].separator.strip(), calls[0].keys) for calls in layouts}
    if len(formats) != 1:
        return None
    opening = common(*(calls[0].before[::-1] for calls in layouts))[::-1].strip()
    if not opening:  # without an opening marker, a call cannot be distinguished from text
        return None
    between = next((calls[1].before for calls in layouts if len(calls) > 1), None)
    after = common(*(calls[-1].after for calls in layouts))
    closing = first_tag(after) if between is None else between.strip().removesuffix(opening).strip()
    if closing == ",":  # calls of one array have a comma between them, and no closing
        closing = first_tag(after)
    ((separator, keys),) = formats
    if keys:
        return JsonFormat(opening, closing, name=keys[0], arguments=keys[1])
    return NameAndJsonFormat(opening, closing, separator=separator)


def _calls_in(sample: ProbeSample) -> list[_CallLayout]:
    """The calls of an answer in order, none if one of them is not found."""
    text, layouts = sample.text_after(sample.generation_prompt), []
    for call in sample.items:
        if isinstance(call, FunctionCall):
            layout = _with_keys(text, call) or _with_name(text, call)
            if layout is None:
                return []
            layouts.append(layout)
            text = layout.after
    return layouts


def _with_keys(text: str, call: FunctionCall) -> _CallLayout | None:
    """A call that is one JSON object. In an array, the bracket is part of the text before it."""
    for start, end, value in _objects(text):
        name = next((key for key, member in value.items() if member == call.name), None)
        arguments = next((key for key, member in value.items() if member == json.loads(call.arguments)), None)
        if name is not None and arguments is not None:
            before, after = text[:start].rstrip(), text[end:].lstrip()
            if before.endswith(("[", ",")):
                before, after = before.removesuffix("["), after.removeprefix("]")
            return _CallLayout(before, "", after, (name, arguments))
    return None


def _with_name(text: str, call: FunctionCall) -> _CallLayout | None:
    """A call that is a name, a separator, and a JSON object."""
    before, name, after = text.partition(call.name)
    for start, end, value in _objects(after) if name else ():
        if value == json.loads(call.arguments) and after[:start].strip():
            return _CallLayout(before, after[:start], after[end:], None)
    return None


def _objects(text: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Every outermost JSON object in the text: start, end, value."""
    at = text.find("{")
    while at >= 0:
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            yield at, end, value
        at = text.find("{", end)


def _find_reasoning(sample: ProbeSample, without: ProbeSample) -> ReasoningMarkers | None:
    """The text around the reasoning of an answer that the same answer `without` it does not have.

    The opening marker may be the end of the generation prompt rather than part of the
    answer. Or a template renders both markers around empty reasoning, too.
    """
    before, _, after = sample.written.partition(REASONING.text)
    between, answer, _ = after.partition(ANSWER.text)
    closing, plain_start = first_tag(between), without.written.partition(ANSWER.text)[0]
    own = before[len(common(before, plain_start)) :]
    if not (answer and closing):
        return None
    # A generation prompt that opens and closes reasoning asks the model for none.
    prompt = sample.generation_prompt
    prompted, closed, _ = prompt[len(common(prompt, before)) :].partition(closing)
    opening = last_tag(own) or ("" if closed else last_tag(prompted))
    opening = opening or (last_tag(before) if closing in plain_start else "")
    return ReasoningMarkers(opens=(opening,), closes=(closing,)) if opening else None
