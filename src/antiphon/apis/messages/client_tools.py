"""Tools that a client runs and does not describe: Anthropic's models know them by their type.

Other models are offered a function with the published fields of the tool.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

_TEXT = {"type": "string"}
_LINE = {"type": "integer", "minimum": 0}


class ClientTool(NamedTuple):
    """What a model is told of such a tool."""

    description: str
    parameters: Mapping[str, Any]


def _parameters(required: tuple[str, ...], **properties: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": "object", "properties": properties, "required": [*required]}


CLIENT_TOOLS: Mapping[str, ClientTool] = {
    "bash": ClientTool(
        "Run a command in a bash shell that lasts: variables and the working directory stay. "
        "Start it anew with restart.",
        _parameters((), command=_TEXT, restart={"type": "boolean"}),
    ),
    "text_editor": ClientTool(
        "View, create and edit text files. view: path, view_range [first, last] of a file (-1: to its end). "
        "create: path, file_text. str_replace: path, old_str (it must be there exactly once), new_str. "
        "insert: path, insert_line (the text comes after that line; 0: at the beginning), insert_text.",
        _parameters(
            ("command", "path"),
            command={"type": "string", "enum": ["view", "create", "str_replace", "insert"]},
            path=_TEXT,
            view_range={"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
            file_text=_TEXT,
            old_str=_TEXT,
            new_str=_TEXT,
            insert_line=_LINE,
            insert_text=_TEXT,
        ),
    ),
    "memory": ClientTool(
        "Keep notes in files below /memories, to be read in later conversations. view: path, view_range. "
        "create: path, file_text. str_replace: path, old_str, new_str. insert: path, insert_line, "
        "insert_text. delete: path. rename: old_path, new_path.",
        _parameters(
            ("command",),
            command={
                "type": "string",
                "enum": ["view", "create", "str_replace", "insert", "delete", "rename"],
            },
            path=_TEXT,
            view_range={"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
            file_text=_TEXT,
            old_str=_TEXT,
            new_str=_TEXT,
            insert_line=_LINE,
            insert_text=_TEXT,
            old_path=_TEXT,
            new_path=_TEXT,
        ),
    ),
}
"""Type, without its date → the tool."""
