"""The cases that every dialect must decode.

A dialect's model output for each case, and the expected items, are in
`tests/cases/<canonical name>.toml`, one table per case of `CASES`:

    [single]
    output = '''<tool_call>
    {"name": "get_weather", "arguments": {"city": "Rome"}}
    </tool_call>'''
    items = [{ call = "get_weather", arguments = '{"city": "Rome"}' }]

    [ids]
    not_applicable = "the model writes no ids"

    [marker_in_string]
    known_broken = "a value that contains its own closing tag ends there"
    output = "…"
    items = [ … what should be decoded … ]

`items` are the decoded items, in order: `{ text = … }`, `{ reasoning = … }` and
`{ call = …, arguments = … }`, the latter with `id` where the model gives one
and `status = "incomplete"` where the call is not complete. A case may set `state`
(where the answer begins, if not at the grammar's start) and `finish = "length"`.

A known-broken case must fail: once it is fixed, the mark must be removed. Each new
case must be added to the file of every dialect.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from antiphon.decode.table import Table
from antiphon.dialects.registry import find

FOLDER = Path(__file__).parent.parent / "cases"

CASES: dict[str, str] = {
    "text": "an answer without calls or reasoning",
    "single": "one call",
    "parallel": "two calls",
    "empty_arguments": "a call without arguments",
    "nested": "an object in an object, and an array",
    "typed": "a string, an integer, a number, a boolean and null, as the schema of `typed` says",
    "digits": "a value of digits for a string parameter stays a string",
    "unicode": "letters beyond ASCII and emoji in an argument",
    "newlines": "several lines in a string argument",
    "quotes": "both kinds of quotes and a backslash in a string argument",
    "marker_in_string": "the closing marker of a call inside a string argument",
    "text_before": "text, then a call",
    "text_between": "a call, text, a call",
    "text_after": "a call, then text",
    "reasoning": "reasoning, then text",
    "reasoning_began_in_prompt": "the prompt opens reasoning: the answer begins inside",
    "reasoning_never_ends": "the answer ends inside reasoning",
    "reasoning_then_call": "reasoning, then a call",
    "call_in_reasoning": "a call before reasoning is closed",
    "reasoning_after_call": "a call in reasoning, which then goes on, and ends",
    "reasoning_again": "reasoning, text, reasoning, text; a second marker is text where models do not reason twice",
    "truncated_name": "cut before the name is complete: nothing of the call is shown",
    "truncated_arguments": "truncated inside the arguments: an incomplete call",
    "missing_closer": "the model stops after the arguments, without the closing markers",
    "malformed": "malformed markup: no text is lost, no incomplete call is reported as complete",
    "unknown_function": "a call of a function that the request does not offer",
    "marker_in_prose": "the opening marker in a sentence stays text",
    "arguments_first": "the arguments come before the name",
    "ids": "ids that the model writes",
}

TOOLS: dict[str, Mapping[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "options": {"type": "object"},
            "tags": {"type": "array"},
        },
    },
    "get_time": {"type": "object", "properties": {"zone": {"type": "string"}}},
    "typed": {
        "type": "object",
        "properties": {
            "s": {"type": "string"},
            "i": {"type": "integer"},
            "n": {"type": "number"},
            "b": {"type": "boolean"},
            "z": {"type": ["string", "null"]},
        },
    },
    "now": {"type": "object", "properties": {}},
}
"""The functions that every case offers."""


class Answers(dict[str, dict[str, Any]]):
    """The cases of a dialect by their names: of one that it lacks, the failure says where it belongs."""

    def __init__(self, name: str) -> None:
        self._file = FOLDER / f"{name}.toml"
        assert self._file.exists(), f"write tests/cases/{name}.toml, with a table for each case of {__file__}"
        super().__init__(tomllib.loads(self._file.read_text()))

    def __missing__(self, case: str) -> dict[str, Any]:
        raise AssertionError(f"add [{case}] to tests/cases/{self._file.name}: {CASES.get(case, 'unknown')}")


@cache
def answers(name: str) -> Answers:
    """The cases of a dialect."""
    return Answers(name)


@cache
def table_of(name: str) -> Table:
    """How a dialect is decoded. Raises as `find` does."""
    return Table(find(name).grammar)
