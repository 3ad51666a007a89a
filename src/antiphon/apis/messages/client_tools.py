"""Tools that a client runs without describing them: Anthropic's models know them by their type.

Other models are offered a function with the published fields of the tool.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

_TEXT = {"type": "string"}
_LINE = {"type": "integer", "minimum": 0}
_POINT = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 2}
_ACTIONS = [
    *("screenshot", "zoom", "cursor_position", "mouse_move", "left_click", "right_click", "middle_click"),
    *("double_click", "triple_click", "left_click_drag", "left_mouse_down", "left_mouse_up", "scroll"),
    *("key", "hold_key", "type", "wait"),
]


class ClientTool(NamedTuple):
    """The function that models are offered for such a tool."""

    description: str
    parameters: Mapping[str, Any]


def _parameters(required: tuple[str, ...], **properties: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": "object", "properties": properties, "required": [*required]}


CLIENT_TOOLS: Mapping[str, ClientTool] = {
    "computer": ClientTool(
        "Act on a computer, and see its screen. Begin with a screenshot. coordinate is [x, y] in pixels, "
        "from the upper left corner. left_click_drag: start_coordinate, coordinate. scroll: coordinate, "
        "scroll_direction, scroll_amount. key, hold_key: text has the keys, as in ctrl+s. type: text. "
        "hold_key, wait: duration, in seconds. zoom: region [x0, y0, x1, y1] of the screen.",
        _parameters(
            ("action",),
            action={"type": "string", "enum": _ACTIONS},
            coordinate=_POINT,
            start_coordinate=_POINT,
            text=_TEXT,
            scroll_direction={"type": "string", "enum": ["up", "down", "left", "right"]},
            scroll_amount=_LINE,
            duration={"type": "number", "minimum": 0},
            region={**_POINT, "minItems": 4, "maxItems": 4},
        ),
    ),
    "bash": ClientTool(
        "Run a command in a bash shell that lasts: variables and the working directory stay. "
        "Restart it with restart.",
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
