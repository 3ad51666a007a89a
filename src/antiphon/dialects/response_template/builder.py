"""Builds a dialect from a tokenizer's `response_template`, Hugging Face's description of a model's answers.

    {"fields": {
        "thinking": {"open": "<think>", "close": "</think>"},
        "tool_calls": {"open": "<tool_call>", "close": "</tool_call>", "content": "json", "repeats": true,
                       "transform": {"type": "function", "function": "{content}"}},
        "content": {"close": "<|im_end|>"}
    }}

A field is the text between two markers, literals or patterns; the field without
an opening marker is the text outside all others. If every field has an opening
marker, text outside is dropped, unless there is no field for the answer itself.
`content` names the parser of a field, `transform` what its result becomes.

Reasoning, answers and calls become states of a grammar like any other; the states
of calls are built in `calls.py`. Whatever a template specifies that no grammar can
express is rejected: half of a format is worse than another dialect.
"""

import json
from collections.abc import Iterator
from typing import Any

from antiphon.core.errors import EngineError
from antiphon.core.grammar import Grammar, ReasoningMarkers, Span, SpanKind, State
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.response_template.calls import Calls
from antiphon.dialects.response_template.fields import Field, Markers, UnsupportedTemplateError

NAME = "hf"
"""The name of a dialect built here."""
NAMES = (NAME, "response_template")
"""The values of the option that choose it."""

_REASONING = ("reasoning_content", "reasoning", "thinking")
_FIELDS = {"content", "tool_calls", *_REASONING}
_REMEDY = "Choose a dialect by its name with --dialect."


def build(template: str | None) -> Dialect:
    """The dialect for a `response_template`, which is JSON text. Raises EngineError if there is none."""
    if template is None:
        raise EngineError(
            f"The dialect '{NAME}' is built from a `response_template`, and no tokenizer_config.json next to "
            f"the model has one. {_REMEDY}"
        )
    try:
        return _Template(json.loads(template)).dialect()
    except UnsupportedTemplateError as error:
        raise EngineError(f"The model's `response_template` is not supported: {error}. {_REMEDY}") from None
    except (ValueError, RecursionError) as error:
        raise EngineError(f"The model's `response_template` is not JSON. {_REMEDY}") from error


def build_if_supported(template: str | None) -> Iterator[Dialect]:
    """The dialect for the template, if there is one and it is supported."""
    if template is not None:
        try:
            yield build(template)
        except EngineError:
            return  # `build` raises the error again if a user names the dialect


class _Template:
    """A template, and the grammar built from it."""

    def __init__(self, spec: Any) -> None:
        fields = _fields(spec)
        self._answer = fields.get("content")
        self._reasoning = next((fields[name] for name in _REASONING if name in fields), None)
        self._calls = Calls(fields["tool_calls"]) if "tool_calls" in fields else None
        self._drops_outside = self._answer is not None and bool(self._answer.opens)
        self._default_state = "outside" if self._drops_outside else "text"

    def dialect(self) -> Dialect:
        """The dialect."""
        calls = Grammar(self._states(), start=self._start())
        reasoning = self._reasoning
        if reasoning is None or self._drops_outside:
            return Dialect(names=(NAME,), calls=calls)
        opens, closes = tuple(reasoning.markers("open")), tuple(reasoning.markers("close"))
        return Dialect(names=(NAME,), calls=calls, reasoning=ReasoningMarkers(opens, closes, reopens=opens))

    def _start(self) -> str:
        if self._reasoning and self._reasoning.from_start:
            return "reasoning"
        return "text" if self._answer and self._answer.from_start else self._default_state

    def _states(self) -> dict[str, State]:
        opens, closes = self._opens(), Markers()
        if self._answer:
            closes.add(self._answer, self._answer.markers("close"), self._default_state)
        states: dict[str, State] = {"text": Span(SpanKind.TEXT, on={**opens, **closes})}
        if self._drops_outside:
            states["outside"] = Span(SpanKind.MARKUP, on=opens, otherwise="outside")
        if self._drops_outside and self._reasoning:
            ends = Markers(opens).add(self._reasoning, self._reasoning.markers("close"), self._default_state)
            states["reasoning"] = Span(SpanKind.REASONING, on=ends)
        if self._calls:
            states |= self._calls.states({**opens, **closes}, self._default_state)
        return states

    def _opens(self) -> "Markers":
        """The opening markers of calls and of fields outside them."""
        opens = Markers(self._calls.opens if self._calls else {})
        if self._drops_outside and self._answer:
            opens.add(self._answer, self._answer.markers("open"), "text")
        if self._drops_outside and self._reasoning:
            opens.add(self._reasoning, self._reasoning.markers("open"), "reasoning")
        return opens


def _fields(spec: Any) -> dict[str, Field]:
    """The fields of a template, validated as far as they have rules in common."""
    fields = spec.get("fields") if isinstance(spec, dict) else None
    if not isinstance(fields, dict) or not fields:
        raise UnsupportedTemplateError("it has no `fields`")
    if spec.get("version", 1) != 1:
        raise UnsupportedTemplateError(f"its version is {spec['version']!r}, and only 1 is known")
    if unknown := sorted(set(fields) - _FIELDS):
        raise UnsupportedTemplateError(f"the field '{unknown[0]}' is not supported")
    parsed = {name: Field(name, field_spec) for name, field_spec in fields.items()}
    for name, field in parsed.items():
        if name != "tool_calls" and field.content != "text":
            raise UnsupportedTemplateError(
                f"the field '{name}' has `content` '{field.content}', and only 'text' is supported"
            )
        if name != "content" and not (field.opens or field.from_start):
            raise UnsupportedTemplateError(f"the field '{name}' has no opening marker")
    return parsed
