"""xgrammar's structural tags → forms, so that every engine that enforces anything can enforce them.

Both notations are read: `{"type": "structural_tag", "format": …}`, and the older
`{"structures": [{begin, schema, end}], "triggers": […]}`.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.constrain.form import EMPTY, Form, Ref, Until, choice, optional, repeat, sequence
from antiphon.constrain.gbnf_reader import read_gbnf
from antiphon.constrain.json_schema import read
from antiphon.constrain.notation import Json
from antiphon.constrain.regex import matching
from antiphon.constrain.tag_schema import (
    AnyText,
    Bounded,
    ConstString,
    Format,
    GrammarFormat,
    OlderStructuralTag,
    OrFormat,
    RegexFormat,
    SchemaFormat,
    SequenceFormat,
    StructuralTag,
    Tag,
    TagFormat,
    TagsWithSeparator,
    TriggeredTags,
)
from antiphon.core.errors import RequestError

MAX_DEPTH = 32
"""How deep formats are nested."""

Missed = list[tuple[str, str]]


def read_tag(spec: Mapping[str, Any], rules: dict[str, Form]) -> tuple[Form, Missed]:
    """The form of all the text, and what it does not hold. Raises RequestError, `TooLarge`."""
    reader = _Reader(rules)
    return reader.form(_decoded(spec).format, "", 0), reader.missed


def _decoded(spec: Mapping[str, Any]) -> StructuralTag | OlderStructuralTag:
    notation: type[StructuralTag | OlderStructuralTag] = (
        OlderStructuralTag if "structures" in spec else StructuralTag
    )
    try:
        return msgspec.convert(spec, notation)
    except msgspec.ValidationError as error:
        message = f"This structural tag is not valid: {error}. Write it as xgrammar's notation has it."
        raise RequestError(message, param="format") from error
    except RecursionError as error:
        raise _too_deep() from error


class _Reader:
    """Reads one structural tag. `end` is the text behind a format: what is free stops there."""

    def __init__(self, rules: dict[str, Form]) -> None:
        self._rules = rules
        self.missed: Missed = []

    def form(self, spec: Format, end: str, depth: int) -> Form:
        """A format, with the text behind it."""
        if depth > MAX_DEPTH:
            raise _too_deep()
        match spec:
            case AnyText():
                return _free(end)
            case SequenceFormat(elements):
                ends = [*("" for _ in elements[1:]), end]
                return sequence(*(self.form(*each, depth + 1) for each in zip(elements, ends, strict=True)))
            case OrFormat(elements):
                return choice(*(self.form(each, end, depth + 1) for each in elements))
            case TriggeredTags():
                return self._triggered(spec, end, depth + 1)
            case _:
                return sequence(self._bounded(spec, depth + 1), end)

    def _bounded(self, spec: Bounded, depth: int) -> Form:
        """A format that says itself where it ends."""
        match spec:
            case ConstString(value):
                return sequence(value)
            case SchemaFormat(schema):
                return self._schema(schema)
            case RegexFormat(pattern):
                return matching(pattern)
            case GrammarFormat(grammar):
                return read_gbnf(grammar, self._rules)
            case TagFormat():
                return self._tag(spec, spec.begin, depth)
            case TagsWithSeparator():
                return self._separated(spec, depth)

    def _tag(self, tag: Tag, begin: str, depth: int) -> Form:
        return sequence(begin, choice(*(self.form(tag.content, end, depth) for end in tag.ends)))

    def _triggered(self, spec: TriggeredTags, end: str, depth: int) -> Form:
        if end:
            raise RequestError("Text behind triggered tags cannot be told from theirs.", param="format")
        name = f"tags {len(self._rules)}"
        self._rules[name] = EMPTY
        again = EMPTY if spec.stop_after_first else Ref(name)
        ways = []
        for trigger in dict.fromkeys(spec.triggers):
            tags = [tag for tag in spec.tags if tag.begin.startswith(trigger)]
            if not tags:
                raise RequestError(f"No tag begins with the trigger '{trigger}': add one.", param="format")
            rests = [self._tag(tag, tag.begin[len(trigger) :], depth) for tag in tags]
            ways.append((trigger, sequence(choice(*rests), again)))
        self._rules[name] = Until(tuple(ways), open=not spec.at_least_one)
        return Ref(name)

    def _separated(self, spec: TagsWithSeparator, depth: int) -> Form:
        one = choice(*(self._tag(tag, tag.begin, depth) for tag in spec.tags))
        more = EMPTY if spec.stop_after_first else repeat(sequence(spec.separator, one))
        several = sequence(one, more)
        return several if spec.at_least_one else optional(several)

    def _schema(self, schema: Mapping[str, Any] | bool) -> Form:
        shapes, missed = read(schema)
        self.missed += missed
        scope = f"tag {len(self._rules)} {json.dumps(schema)[:20]}"
        return Json(self._rules, scope, shapes.named).form(shapes.shape)


def _free(end: str) -> Form:
    return Until(((end, EMPTY),)) if end else Until((), open=True)


def _too_deep() -> RequestError:
    return RequestError(
        f"This structural tag has more than {MAX_DEPTH} formats inside each other.", param="format"
    )
