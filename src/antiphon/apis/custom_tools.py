"""Custom tools: tools whose input is text, not JSON.

Models are trained with functions, so they get a function with one string, `input`. The model then writes
`{"input": "…"}`, and the client gets the string. It is parsed incrementally, so that it can be streamed.
Malformed arguments are passed on unchanged: the client sees what its tool was called with. Arguments of
server tools with one string are parsed in the same way.
"""

import re
from typing import Any

import msgspec

from antiphon.core.constraint import GrammarFormat, Regex
from antiphon.core.turn import Function

InputFormat = GrammarFormat | Regex
"""The required form of the input of a custom tool."""

MAX_OPENING = 256
"""The largest opening of the arguments in characters; the model may insert any space there."""
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "/": "/"}
_UNWRITTEN = "\ufffd"  # marks half a surrogate pair: text cannot hold one
_PIECES = re.compile(
    r"""(?P<plain>[^"\\]+)
      | (?P<end>")
      | \\u(?P<code>[0-9A-Fa-f]{4})
      | (?P<cut>\\(?:u[0-9A-Fa-f]{0,3})?)\Z
      | \\(?P<escape>.)""",
    re.VERBOSE | re.DOTALL,
)


def as_function(name: str, description: str | None, format_: InputFormat | None, source: str) -> Function:
    """The function for a custom tool, whose format is in the parameter `source`.

    A regular expression becomes part of the schema, so that an engine can enforce it; a grammar becomes part
    of the description, because a grammar cannot be enforced inside a JSON string.
    """
    text: dict[str, Any] = {"type": "string", "description": "The input of the tool, as plain text."}
    match format_:
        case Regex():
            text["pattern"] = f"^(?:{format_.pattern})$"
        case GrammarFormat():
            text["description"] += f" It must follow this {format_.syntax} grammar:\n{format_.text}"
    parameters = {
        "type": "object",
        "properties": {"input": text},
        "required": ["input"],
        "additionalProperties": False,
    }
    strict = True if isinstance(format_, Regex) else None
    return Function(name, description, parameters, strict, source)


def to_arguments(text: str) -> str:
    """The arguments of a call with this input, for models that are shown earlier calls."""
    return msgspec.json.encode({"input": text}).decode()


def to_input(arguments: str, name: str = "input") -> str:
    """The string of this name in the arguments of a call."""
    return InputReader(name).read(arguments)


class InputReader:
    """Reads the string of this name in the arguments of one call, in any pieces."""

    def __init__(self, name: str = "input") -> None:
        self._opening = f'{{"{name}":"'
        colon = len(self._opening) - 2
        self._gaps = (0, 1, colon, colon + 1)  # positions in it that allow space
        self._held = ""  # the opening so far, or an escape that was cut
        self._matched = 0  # characters of the opening that were found
        self._half: int | None = None  # the first half of a character of two escapes
        self._read = self._open

    def read(self, arguments: str) -> str:
        """The addition of the next piece of arguments to the input."""
        return self._read(arguments)

    def _open(self, arguments: str) -> str:
        for position, character in enumerate(arguments):
            if character == self._opening[self._matched]:
                self._matched += 1
            elif not self._may_skip(character, position):
                self._read = _unchanged
                return self._held + arguments
            if self._matched == len(self._opening):
                self._held, self._read = "", self._unescape
                return self._unescape(arguments[position + 1 :])
        self._held += arguments
        return ""

    def _may_skip(self, character: str, position: int) -> bool:
        """Whether the character is space, in a position that allows it, and not too much."""
        fits = len(self._held) + position < MAX_OPENING
        return fits and character.isspace() and self._matched in self._gaps

    def _unescape(self, arguments: str) -> str:
        text = self._held + arguments
        if "\\" not in text and '"' not in text and self._half is None:
            return text
        self._held = ""
        out: list[str] = []
        for piece in _PIECES.finditer(text):
            match piece.lastgroup:
                case "code":
                    out.append(self._character(int(piece["code"], 16)))
                case "cut":
                    self._held = piece["cut"]
                case "end":
                    out.append(self._end_half())
                    self._read = _skip_rest
                    break
                case _:
                    out.append(self._end_half())
                    escape = piece["escape"]
                    out.append(_ESCAPES.get(escape, "\\" + escape) if escape else piece["plain"])
        return "".join(out)

    def _character(self, code: int) -> str:
        """The character of a complete escape."""
        if self._half is not None and 0xDC00 <= code < 0xE000:
            high, self._half = self._half, None
            return chr(0x10000 + ((high - 0xD800) << 10) + (code - 0xDC00))
        before = self._end_half()
        if 0xD800 <= code < 0xDC00:
            self._half = code
            return before
        return before + (_UNWRITTEN if 0xDC00 <= code < 0xE000 else chr(code))

    def _end_half(self) -> str:
        """The replacement for half a surrogate pair without the other half."""
        half, self._half = self._half, None
        return "" if half is None else _UNWRITTEN


def _unchanged(arguments: str) -> str:
    return arguments


def _skip_rest(arguments: str) -> str:
    """After the input, nothing is shown."""
    return ""
