"""Finds the end of a JSON value in text that comes in pieces, and validates it.

Strategy: a pushdown automaton. `_Expect` says what may come next; the stack
holds the open containers. Runs of ordinary characters are skipped with one
compiled pattern, so the cost of a piece depends on its own length only.

The value is passed through verbatim, with one repair: a raw control character
inside a string, which models write often and JSON forbids, is escaped.
The depth of nesting is limited by `MAX_DEPTH`.
"""

import re
from enum import Enum, auto

MAX_DEPTH = 256
"""Containers that may be open at once; deeper values are rejected."""

_SPACE = re.compile(r"[ \t\n\r]*")
_STRING_RUN = re.compile(r'[^"\\\x00-\x1f]*')
_HEX = frozenset("0123456789abcdefABCDEF")
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_LITERALS = {"t": "true", "f": "false", "n": "null"}

# A number as a table: state → character class → state. States in `_WHOLE` may end a number.
_DIGITS = dict.fromkeys("0123456789", "digit") | {"0": "zero"}
_CLASS = _DIGITS | {".": "point", "e": "exponent", "E": "exponent", "+": "sign", "-": "minus"}
_NUMBER: dict[str, dict[str, str]] = {
    "start": {"minus": "minus", "zero": "zero", "digit": "integer"},
    "minus": {"zero": "zero", "digit": "integer"},
    "zero": {"point": "point", "exponent": "exponent"},
    "integer": {"zero": "integer", "digit": "integer", "point": "point", "exponent": "exponent"},
    "point": {"zero": "fraction", "digit": "fraction"},
    "fraction": {"zero": "fraction", "digit": "fraction", "exponent": "exponent"},
    "exponent": {"sign": "sign", "minus": "sign", "zero": "power", "digit": "power"},
    "sign": {"zero": "power", "digit": "power"},
    "power": {"zero": "power", "digit": "power"},
}
_WHOLE = frozenset({"zero", "integer", "fraction", "power"})


class _Expect(Enum):
    OBJECT = auto()
    VALUE = auto()
    VALUE_OR_END = auto()  # after "[": a value or "]"
    KEY_OR_END = auto()  # after "{": a key or "}"
    KEY = auto()  # after "," in an object
    COLON = auto()
    COMMA_OR_END = auto()
    STRING = auto()  # inside a string
    ESCAPE = auto()  # after a backslash
    HEX = auto()  # inside \uXXXX
    NUMBER = auto()
    LITERAL = auto()
    NOTHING = auto()  # the value is complete


_STRING, _NOTHING = _Expect.STRING, _Expect.NOTHING  # in loops: to look them up takes time


class JsonScanner:
    """Reads exactly one JSON value. Space before it belongs to it; nothing after it does.

    With `only_object`, anything but an object is malformed.
    `done` is true once the value is complete, `broken` says why it is malformed.
    A number at the top level is only known to be complete when something follows
    it, or by `finish`.
    """

    __slots__ = ("_expect", "_in_key", "_left", "_number", "_stack", "broken")

    def __init__(self, *, only_object: bool = False) -> None:
        self._expect = _Expect.OBJECT if only_object else _Expect.VALUE
        self._stack: list[str] = []
        self._in_key = False
        self._left = ""  # what is left of a literal, or one "0" for each hex digit left of an escape
        self._number = "start"
        self.broken: str | None = None

    @property
    def done(self) -> bool:
        """The value is complete."""
        return self._expect is _NOTHING

    def finish(self) -> bool:
        """Handle the end of the text; return whether the value is complete."""
        if self._expect is _Expect.NUMBER and not self._stack and self._number in _WHOLE:
            self._expect = _Expect.NOTHING
        return self.done

    def passes(self, text: str) -> bool:
        """The text stands inside a string, and is plain: there is no need to read it."""
        return self._expect is _STRING and _STRING_RUN.fullmatch(text) is not None

    def feed(self, text: str, start: int, out: list[str]) -> int:
        """Read from `text[start]`, append the value's text to `out`, and return where reading stopped.

        It stops at the end of the text, after the value, or at the first invalid character.
        """
        position = mark = start
        end = len(text)
        while position < end and self._expect is not _NOTHING and not self.broken:
            if self._expect is _STRING:
                run = _STRING_RUN.match(text, position)
                assert run is not None
                position = run.end()
                if position < end and self._in_string(text[position]):
                    out += text[mark:position], _escaped(text[position])
                    mark = position + 1
                position += position < end
            elif self._expect in _INSIDE:
                position += self._inside(text[position])
            else:
                space = _SPACE.match(text, position)
                assert space is not None
                position = space.end()
                position += position < end and self._structure(text[position])
        if position > mark:
            out.append(text[mark:position])
        return position

    def _in_string(self, char: str) -> bool:
        """One character that is special in a string. True if it must be escaped."""
        if char == '"':
            self._expect = _Expect.COLON if self._in_key else self._after_value()
        elif char == "\\":
            self._expect = _Expect.ESCAPE
        else:
            return True
        return False

    # These read one character, and return False if they leave it to another state.

    def _inside(self, char: str) -> bool:
        """Inside an escape, a number or a literal."""
        match self._expect:
            case _Expect.NUMBER:
                return self._in_number(char)
            case _Expect.ESCAPE if char == "u":
                self._expect, self._left = _Expect.HEX, "0000"
            case _Expect.ESCAPE:
                self._expect = _Expect.STRING
                return char in '"\\/bfnrt' or self._break("an unknown escape in a string")
            case _Expect.HEX:
                self._left = self._left[1:]
                self._expect = _Expect.HEX if self._left else _Expect.STRING
                return char in _HEX or self._break("a broken \\u escape")
            case _:
                if char != self._left[0]:
                    return self._break("an unknown literal")
                self._left = self._left[1:]
                self._expect = _Expect.LITERAL if self._left else self._after_value()
        return True

    def _in_number(self, char: str) -> bool:
        following = _NUMBER[self._number].get(_CLASS.get(char, ""))
        if following:
            self._number = following
        elif self._number in _WHOLE:
            self._expect = self._after_value()
        else:
            self._break("a broken number")
        return bool(following)

    def _structure(self, char: str) -> bool:
        """Between values."""
        expect = self._expect
        if char == '"' and expect in _TAKES_STRING:
            self._in_key = expect in _TAKES_KEY
            self._expect = _Expect.STRING
        elif (char in "{[" and expect in _TAKES_VALUE) or (char == "{" and expect is _Expect.OBJECT):
            return self._enter(char)
        elif char in _LITERALS and expect in _TAKES_VALUE:
            self._expect, self._left = _Expect.LITERAL, _LITERALS[char][1:]
        elif _CLASS.get(char) in _NUMBER["start"] and expect in _TAKES_VALUE:
            self._expect, self._number = _Expect.NUMBER, _NUMBER["start"][_CLASS[char]]
        elif char == ":" and expect is _Expect.COLON:
            self._expect = _Expect.VALUE
        elif char == "," and expect is _Expect.COMMA_OR_END:
            self._expect = _Expect.KEY if self._stack[-1] == "{" else _Expect.VALUE
        elif expect in _TAKES_END.get(char, ()) and char == _CLOSER[self._stack[-1]]:
            self._stack.pop()
            self._expect = self._after_value()
        else:
            return self._break(f"unexpected {char!r}")
        return True

    def _enter(self, char: str) -> bool:
        if len(self._stack) == MAX_DEPTH:
            return self._break("nested too deeply")
        self._stack.append(char)
        self._expect = _Expect.KEY_OR_END if char == "{" else _Expect.VALUE_OR_END
        return True

    def _after_value(self) -> _Expect:
        return _Expect.COMMA_OR_END if self._stack else _Expect.NOTHING

    def _break(self, why: str) -> bool:
        self.broken = why
        return False


def _escaped(char: str) -> str:
    return _ESCAPES.get(char) or f"\\u{ord(char):04x}"


_CLOSER = {"{": "}", "[": "]"}
_INSIDE = frozenset({_Expect.ESCAPE, _Expect.HEX, _Expect.NUMBER, _Expect.LITERAL})
_TAKES_VALUE = frozenset({_Expect.VALUE, _Expect.VALUE_OR_END})
_TAKES_KEY = frozenset({_Expect.KEY, _Expect.KEY_OR_END})
_TAKES_STRING = _TAKES_VALUE | _TAKES_KEY
_TAKES_END = {
    "}": frozenset({_Expect.KEY_OR_END, _Expect.COMMA_OR_END}),
    "]": frozenset({_Expect.VALUE_OR_END, _Expect.COMMA_OR_END}),
}
