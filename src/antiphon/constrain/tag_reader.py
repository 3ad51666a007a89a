"""xgrammar's structural tags → forms, so that every engine that enforces anything can enforce them.

Both notations are read: `{"type": "structural_tag", "format": …}`, and the older
`{"structures": [{begin, schema, end}], "triggers": […]}`.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from antiphon.constrain.form import EMPTY, Form, Ref, Until, choice, optional, repeat, sequence
from antiphon.constrain.gbnf_reader import read_gbnf
from antiphon.constrain.json_schema import read
from antiphon.constrain.notation import Json
from antiphon.constrain.regex import matching
from antiphon.core.errors import RequestError

MAX_DEPTH = 32
"""How deep formats are nested."""

Missed = list[tuple[str, str]]


def read_tag(spec: Mapping[str, Any], rules: dict[str, Form]) -> tuple[Form, Missed]:
    """The form of all the text, and what it does not hold. Raises RequestError, `TooLarge`."""
    reader = _Reader(rules)
    try:
        if "structures" in spec:
            return reader.older(spec), reader.missed
        return reader.form(spec["format"], "", 0), reader.missed
    except (KeyError, TypeError, AttributeError) as wrong:
        raise RequestError(f"This structural tag is not valid: {wrong!r}.", param="format") from wrong


class _Reader:
    """Reads one structural tag. `end` is the text behind a format: what is free stops there."""

    def __init__(self, rules: dict[str, Form]) -> None:
        self._rules = rules
        self.missed: Missed = []
        self._kinds: dict[str, Callable[[Any, str, int], Form]] = {
            "const_string": lambda spec, end, depth: sequence(spec["value"], end),
            "json_schema": lambda spec, end, depth: sequence(self._schema(spec["json_schema"]), end),
            "regex": lambda spec, end, depth: sequence(matching(spec["pattern"]), end),
            "grammar": lambda spec, end, depth: sequence(read_gbnf(spec["grammar"], self._rules), end),
            "any_text": lambda spec, end, depth: _free(end),
            "sequence": self._sequence,
            "or": lambda spec, end, depth: choice(*(self.form(e, end, depth) for e in spec["elements"])),
            "tag": lambda spec, end, depth: sequence(self._tag(spec, depth), end),
            "triggered_tags": self._triggered,
            "tags_with_separator": self._separated,
        }

    def form(self, spec: Mapping[str, Any], end: str, depth: int) -> Form:
        """A format, with the text behind it."""
        if spec["type"] not in self._kinds or depth > MAX_DEPTH:
            what = "is nested too deeply" if depth > MAX_DEPTH else "is not supported in structural tags"
            raise RequestError(f"The format '{spec['type']}' {what}.", param="format")
        return self._kinds[spec["type"]](spec, end, depth + 1)

    def older(self, spec: Mapping[str, Any]) -> Form:
        """The notation that came first."""
        tags = [
            {
                "begin": each["begin"],
                "content": {"type": "json_schema", "json_schema": each["schema"]},
                "end": each["end"],
            }
            for each in spec["structures"]
        ]
        return self._triggered({"triggers": spec["triggers"], "tags": tags}, "", 0)

    def _sequence(self, spec: Any, end: str, depth: int) -> Form:
        *first, last = spec["elements"]
        return sequence(*(self.form(each, "", depth) for each in first), self.form(last, end, depth))

    def _tag(self, spec: Any, depth: int) -> Form:
        ends = spec["end"] if isinstance(spec["end"], list) else [spec["end"]]
        return sequence(spec["begin"], choice(*(self.form(spec["content"], end, depth) for end in ends)))

    def _triggered(self, spec: Any, end: str, depth: int) -> Form:
        """Free text, in which each trigger begins one of the tags that begin with it."""
        if end:
            raise RequestError("Text behind triggered tags cannot be told from theirs.", param="format")
        name = f"tags {len(self._rules)}"
        self._rules[name] = EMPTY
        again = EMPTY if spec.get("stop_after_first") else Ref(name)
        ways = []
        for trigger in spec["triggers"]:
            tags = [tag for tag in spec["tags"] if tag["begin"].startswith(trigger)]
            rests = [self._tag({**tag, "begin": tag["begin"][len(trigger) :]}, depth) for tag in tags]
            ways.append((trigger, sequence(choice(*rests), again)))
        self._rules[name] = Until(tuple(ways), open=not spec.get("at_least_one"))
        return Ref(name)

    def _separated(self, spec: Any, end: str, depth: int) -> Form:
        one = choice(*(self._tag(tag, depth) for tag in spec["tags"]))
        more = EMPTY if spec.get("stop_after_first") else repeat(sequence(spec["separator"], one))
        several = sequence(one, more)
        return sequence(several if spec.get("at_least_one") else optional(several), end)

    def _schema(self, schema: Any) -> Form:
        shapes, missed = read(schema)
        self.missed += missed
        scope = f"tag {len(self._rules)} {json.dumps(schema)[:20]}"
        return Json(self._rules, scope, shapes.named).form(shapes.shape)


def _free(end: str) -> Form:
    return Until(((end, EMPTY),)) if end else Until((), open=True)
