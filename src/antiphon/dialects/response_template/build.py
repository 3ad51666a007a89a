"""A dialect made of a tokenizer's `response_template`, Hugging Face's description of a model's answers.

    {"fields": {
        "thinking": {"open": "<think>", "close": "</think>"},
        "tool_calls": {"open": "<tool_call>", "close": "</tool_call>", "content": "json", "repeats": true,
                       "transform": {"type": "function", "function": "{content}"}},
        "content": {"close": "<|im_end|>"}
    }}

A field is what stands between two markers, literals or patterns; the one that
nothing opens is what stands outside of all others. If every field is opened by
something, what stands outside is dropped, unless no field is the answer itself.
`content` says how a field is read, `transform` what becomes of it.

Thoughts, answers and calls become states of a grammar like any other; how calls are
read is in `calls.py`. Whatever a template asks for that no table says is
refused: half of a format is worse than another dialect.
"""

import json
from collections.abc import Iterator
from typing import Any

from antiphon.core.errors import EngineError
from antiphon.core.grammar import Grammar, Kind, Span, State, Thoughts
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.response_template.calls import Calls
from antiphon.dialects.response_template.fields import Field, Markers, RefusalError

NAME = "hf"
"""What a dialect made here is called."""

_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
_FIELDS = {"content", "tool_calls", *_THOUGHTS}
_REMEDY = "Choose a dialect by its name with --dialect."


def build(template: str | None) -> Dialect:
    """The dialect that a `response_template`, JSON text, describes. Raises EngineError if there is none."""
    if template is None:
        raise EngineError(
            f"The dialect '{NAME}' is made of a `response_template`, and no tokenizer_config.json beside the "
            f"model has one. {_REMEDY}"
        )
    try:
        return _Template(json.loads(template)).dialect()
    except RefusalError as refusal:
        raise EngineError(f"The model's `response_template` cannot be used: {refusal}. {_REMEDY}") from None
    except (ValueError, RecursionError) as error:
        raise EngineError(f"The model's `response_template` is no JSON. {_REMEDY}") from error


def offered(template: str | None) -> Iterator[Dialect]:
    """The dialect that the template describes, if it is there and can be used."""
    if template is not None:
        try:
            yield build(template)
        except EngineError:
            return  # others are asked; when it is named, it says what is wrong


class _Template:
    """A template, and the grammar that comes of it."""

    def __init__(self, spec: Any) -> None:
        fields = _fields(spec)
        self._answer = fields.get("content")
        self._thoughts = next((fields[name] for name in _THOUGHTS if name in fields), None)
        self._calls = Calls(fields["tool_calls"]) if "tool_calls" in fields else None
        self._drops = self._answer is not None and bool(self._answer.opens)
        self._home = "outside" if self._drops else "text"

    def dialect(self) -> Dialect:
        """The dialect."""
        calls = Grammar(self._states(), start=self._start())
        thoughts = self._thoughts
        if thoughts is None or self._drops:
            return Dialect(names=(NAME,), calls=calls)
        tags = Thoughts(tuple(thoughts.markers("open")), tuple(thoughts.markers("close")))
        return Dialect(names=(NAME,), calls=calls, thoughts=tags)

    def _start(self) -> str:
        if self._thoughts and self._thoughts.from_start:
            return "thinking"
        return "text" if self._answer and self._answer.from_start else self._home

    def _states(self) -> dict[str, State]:
        opens, closes = self._opens(), Markers()
        if self._answer:
            closes.add(self._answer, self._answer.markers("close"), self._home)
        states: dict[str, State] = {"text": Span(Kind.TEXT, on={**opens, **closes})}
        if self._drops:
            states["outside"] = Span(Kind.MARKUP, on=opens, otherwise="outside")
        if self._drops and self._thoughts:
            ends = Markers(opens).add(self._thoughts, self._thoughts.markers("close"), self._home)
            states["thinking"] = Span(Kind.REASONING, on=ends)
        if self._calls:
            states |= self._calls.states({**opens, **closes}, self._home)
        return states

    def _opens(self) -> "Markers":
        """What leads from text outside of calls to somewhere else."""
        opens = Markers(self._calls.opens if self._calls else {})
        if self._drops and self._answer:
            opens.add(self._answer, self._answer.markers("open"), "text")
        if self._drops and self._thoughts:
            opens.add(self._thoughts, self._thoughts.markers("open"), "thinking")
        return opens


def _fields(spec: Any) -> dict[str, Field]:
    """The fields of a template, checked as far as all are alike."""
    fields = spec.get("fields") if isinstance(spec, dict) else None
    if not isinstance(fields, dict) or not fields:
        raise RefusalError("it has no `fields`")
    if spec.get("version", 1) != 1:
        raise RefusalError(f"its version is {spec['version']!r}, and only 1 is known")
    if unknown := sorted(set(fields) - _FIELDS):
        raise RefusalError(f"there is nothing to do with the field '{unknown[0]}'")
    found = {name: Field(name, each) for name, each in fields.items()}
    for name, field in found.items():
        if name != "tool_calls" and field.content != "text":
            raise RefusalError(f"the field '{name}' is read as `{field.content}`, and only text can be said")
        if name != "content" and not (field.opens or field.from_start):
            raise RefusalError(f"nothing opens the field '{name}'")
    return found
