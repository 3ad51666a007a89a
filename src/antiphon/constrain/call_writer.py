"""Writes a call as a model family writes it: the first way that its grammar allows.

It is for prompts that show calls to a model whose template shows none. The grammar of one call is that of
`calls`, with a value as the schema. Strings have placeholders in it, which are filled in afterwards: so the
grammar of a call depends on its form only, and is written once for calls of one form.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from antiphon.constrain.arguments import GAP, CallableFunction, UnsupportedSyntaxError
from antiphon.constrain.calls import CallGrammar, headings_of, opens_call
from antiphon.constrain.grammar_ir import (
    EMPTY,
    Alternation,
    CharClass,
    Expr,
    Literal,
    Repeat,
    RuleReference,
    Sequence,
    alternation,
    sequence,
)
from antiphon.constrain.schema_ir import Array, Const, Object, Property, SchemaIR, SchemaNode
from antiphon.constrain.value_syntax import SPACE
from antiphon.core.grammar import Grammar, Header, Span, SpanKind

MAX_FORM, MAX_DEPTH = 2048, 16
"""The most characters of arguments in JSON, strings aside, and their depth. Others become JSON."""
FORMS = 256
"""The number of forms of calls that are remembered."""

_STRING = re.compile(r'"Zq(\d+)qZ"|Zq(\d+)qZ')
_CLOSING = re.compile(r"/|end|close|suffix|```|^<\w+\|>$", re.IGNORECASE)
"""What the markers that close something have in their names."""
_CLOSING_TAG = re.compile(r"</([^<>]+)>")
_AFTER_NAME, _AFTER_JSON = re.compile(r"(?<!\n)```json(?=\{)"), re.compile(r"(?<=\})```")


class CallWriter:
    """Writes calls in this grammar. Raises `UnsupportedSyntaxError` if it does not say how.

    A call that it cannot write, because of a name, the size or the depth, becomes JSON.
    """

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._cached_write = lru_cache(FORMS)(self._write)
        if self._cached_write("name", '{"argument": ""}') is None:
            raise UnsupportedSyntaxError("how calls are written")

    def __call__(self, name: str, arguments: Any) -> str:
        """One call. `arguments` is an object, or the raw text if that was no JSON."""
        text = None
        if isinstance(arguments, Mapping):
            strings: list[str] = []
            with suppress(RecursionError):
                form = json.dumps(_without_strings(arguments, strings), ensure_ascii=False)
                text = self._cached_write(name, form) if len(form) <= MAX_FORM else None
        if text is not None:
            return _STRING.sub(lambda match: _filled(match, strings), text)
        return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)

    def _write(self, name: str, form: str) -> str | None:
        arguments = json.loads(form)
        for node in (Const, _node):  # formats with elements have no whole values
            members = tuple(Property(key, node(value), True) for key, value in arguments.items())
            rules: dict[str, Expr] = {}
            called = CallableFunction(name, SchemaIR(Object(members)))
            text = _first_text(_OneCall(self._grammar, [called], False, rules).from_text(), rules, "")
            # An argument whose name the format cannot write is left out of its grammar.
            if text and all(key in text for key in arguments):
                return self._laid_out(text)
        return None

    def _laid_out(self, text: str) -> str:
        """The text without markers that close twice, or close nothing; tags are on lines of their own."""
        for marker in self._grammar.markers:
            text = text.replace(marker * 2, marker)
        text = _CLOSING_TAG.sub(lambda tag: tag[0] if f"<{tag[1]}" in text else "", text)
        if any(marker.startswith("</") for marker in self._grammar.markers):
            text = text.replace("><", ">\n<")
        return _AFTER_JSON.sub("\n```", _AFTER_NAME.sub("\n```json\n", text))


class _OneCall(CallGrammar):
    """The grammar of one call with all of its markers, where a model may leave out the last ones."""

    def from_text(self) -> Expr:
        """From text to the end of the call."""
        start = self._states[self._grammar.start]
        if isinstance(start, Header):
            return sequence(headings_of(start).marker, self.headed(self._grammar.start, with_speaker=True))
        spans = [span for span in self._states.values() if isinstance(span, Span)]
        markers = [entry for span in spans if span.kind is SpanKind.TEXT for entry in span.on.items()]
        openers = [(marker, to) for marker, to in markers if opens_call(self._states[to])]
        if openers:  # a group before a single call
            marker, to = min(openers, key=lambda opener: not isinstance(self._states[opener[1]], Span))
            return sequence(marker, self.opened(to))
        text = self._states[self._grammar.text]
        assert isinstance(text, Span)
        ways = [self.opened(to, begins) for begins, to in text.peek.items() if opens_call(self._states[to])]
        return alternation(*ways)

    def _after(self, name: str) -> Expr:
        span = self._states[name]
        if not isinstance(span, Span) or span.kind is SpanKind.TEXT:
            return EMPTY
        closers = [(marker, to) for marker, to in span.on.items() if _CLOSING.search(marker)]
        own = [marker for marker, to in closers if to == name]
        for marker, to in closers:
            state = self._states[to]
            if to != name and isinstance(state, Span) and state.kind in (SpanKind.TEXT, SpanKind.MARKUP):
                return sequence(*own, marker, self.after(to))
        return sequence(*own)


def _first_text(expr: Expr, rules: Mapping[str, Expr], before: str) -> str | None:
    """The text of the first way, with the fewest repetitions. None: there is none. `before` precedes it."""
    match expr:
        case Literal(text):
            return text
        case RuleReference(name):
            return _first_text(rules[name], rules, before)
        case Alternation(options):
            texts = (_first_text(option, rules, before) for option in options)
            return next((text for text in texts if text is not None), None)
        case Sequence(parts):
            return _joined(parts, rules, before)
        case Repeat():
            return _repeated(expr, rules, before)
    return chr(expr.ranges[0][0]) if isinstance(expr, CharClass) else None


def _joined(parts: tuple[Expr, ...], rules: Mapping[str, Expr], before: str) -> str | None:
    texts: list[str] = []
    for part in parts:
        text = _first_text(part, rules, before)
        if text is None:
            return None
        texts.append(text)
        before = text[-1:] or before
    return "".join(texts)


def _repeated(expr: Repeat, rules: Mapping[str, Expr], before: str) -> str | None:
    if expr == SPACE:
        return " " if before.endswith((":", ",")) else ""
    match expr:
        case Repeat(Sequence((gap, Literal(marker))), 0, 1) if gap == GAP:
            return marker  # such as the one that begins a call inside of a group
    one = _first_text(expr.expr, rules, before) if expr.minimum else ""
    return None if one is None else one * expr.minimum


def _node(value: Any) -> SchemaNode:
    """The schema of exactly this value."""
    if isinstance(value, dict):
        return Object(tuple(Property(name, _node(member), True) for name, member in value.items()), None)
    if isinstance(value, list):
        return Array(tuple(map(_node, value)), whole=len(value))
    return Const(value)


def _without_strings(value: Any, strings: list[str], depth: int = MAX_DEPTH) -> Any:
    """The value with placeholders for its strings. Raises RecursionError if it is deeper than `depth`."""
    if isinstance(value, str):
        strings.append(value)
        return f"Zq{len(strings) - 1}qZ"
    if not depth:
        raise RecursionError
    if isinstance(value, Mapping):
        return {name: _without_strings(member, strings, depth - 1) for name, member in value.items()}
    return (
        [_without_strings(item, strings, depth - 1) for item in value] if isinstance(value, list) else value
    )


def _filled(match: re.Match[str], strings: list[str]) -> str:
    if match[1] is not None:
        return json.dumps(strings[int(match[1])], ensure_ascii=False)
    return strings[int(match[2])]
