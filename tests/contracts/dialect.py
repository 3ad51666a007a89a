"""What every dialect has to answer: the named cases, and what their answers must hold.

A dialect's answers are in `tests/cases/<canonical name>.toml`, one table per
case of `CASES`:

    [single]
    output = '''<tool_call>
    {"name": "get_weather", "arguments": {"city": "Rome"}}
    </tool_call>'''
    items = [{ call = "get_weather", arguments = '{"city": "Rome"}' }]

    [ids]
    not_applicable = "the model writes no ids"

    [marker_in_string]
    known_broken = "a value that holds its own closing tag ends there"
    output = "…"
    items = [ … what should come out … ]

`items` are what comes out, in order: `{ text = … }`, `{ thought = … }` and
`{ call = …, arguments = … }`, the latter with `id` where the model gives one
and `status = "incomplete"` where the call is not whole. A case may set `state`
(where the answer begins, if not at the grammar's start) and `finish = "length"`.

A known-broken answer must really be broken: mending it means upgrading it. A
case that is added here has to be answered by every dialect, on purpose.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "cases"

CASES: dict[str, str] = {
    "text": "an answer without calls or thoughts",
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
    "thinking": "thoughts, then text",
    "thinking_began_in_prompt": "the prompt opened the thought: the answer begins inside",
    "thinking_never_ends": "the answer ends inside a thought",
    "thinking_then_call": "thoughts, then a call",
    "call_in_thinking": "a call before the thought was closed",
    "truncated_name": "cut by the limit before the name is whole: text, or nothing if it can be none",
    "truncated_arguments": "cut by the limit inside the arguments: an incomplete call",
    "missing_closer": "the model stops after the arguments, without the closing markers",
    "malformed": "the markup breaks: nothing is lost, nothing incomplete is called complete",
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


def answers(name: str) -> dict[str, dict[str, Any]]:
    """All that a dialect answers. Raises FileNotFoundError."""
    return tomllib.loads((FOLDER / f"{name}.toml").read_text())
