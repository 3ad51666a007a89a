"""Finds the end of a JSON value in text that comes in pieces, and validates it.

A pushdown automaton: `_Expect` says what may come next; the stack holds the open containers. Runs of ordinary
characters are skipped with one compiled pattern, so the cost of a piece depends on its own length only.

The value is passed through verbatim, with two repairs inside strings. A raw control character, which models
write often and JSON forbids, is escaped. An escape of half a surrogate pair without the other half is not a
character, and many parsers refuse it: it is replaced. To decide this, an escape is passed on only when it is
complete.

The depth of nesting is limited by `MAX_DEPTH`.
"""

import re
from enum import Enum, auto
from typing import Self

MAX_DEPTH = 256
"""Containers that may be open at once; deeper values are rejected."""

_SPACE = re.compile(r"[ \t\n\r]*")
_STRING_RUN = re.compile(r'[^"\\\x00-\x1f]*')
_HEX = frozenset("0123456789abcdefABCDEF")
_ESCAPED = frozenset('"\\/bfnrtu')
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_NO_CHARACTER = "\\ufffd"
_HIGH, _LOW = range(0xD800, 0xDC00), range(0xDC00, 0xE000)  # the halves of surrogate pairs
_ESCAPE_LENGTH = len("\\uXXXX")
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


_STRING, _NOTHING = _Expect.STRING, _Expect.NOTHING  # local names: loops look them up faster


class JsonScanner:
    """Reads exactly one JSON value. Space before it belongs to it; nothing after it does.

    With `only_object`, anything but an object is malformed.
    `done` is true once the value is complete, `broken` says why it is malformed.
    A number at the top level is only known to be complete when something follows
    it, or by `finish`.
    """

    def __init__(self, *, only_object: bool = False) -> None:
        self._expect = _Expect.OBJECT if only_object else _Expect.VALUE
        self._stack: list[str] = []
        self._in_key = False
        self._left = ""  # the rest of a literal
        self._escape = ""  # an incomplete escape
        self._high = ""  # the escape of a first half, as long as the second may follow
        self._number = "start"
        self.broken: str | None = None

    def __copy__(self) -> Self:
        """A scanner in the same state, to try what may follow."""
        copied = type(self)()
        copied.__dict__.update(self.__dict__, _stack=self._stack[:])
        return copied

    @property
    def done(self) -> bool:
        """The value is complete."""
        return self._expect is _NOTHING

    @property
    def in_string(self) -> bool:
        """Whether the next character is one of a string."""
        return self._expect is _STRING

    @property
    def outermost(self) -> bool:
        """Whether no container is open."""
        return not self._stack

    @property
    def in_key(self) -> bool:
        """Whether the latest string is a key."""
        return self._in_key

    def finish(self) -> bool:
        """Handle the end of the text; return whether the value is complete."""
        if self._expect is _Expect.NUMBER and not self._stack and self._number in _WHOLE:
            self._expect = _Expect.NOTHING
        return self.done

    def feed(self, text: str, start: int, out: list[str]) -> int:
        """Read from `text[start]`, append the value's text to `out`, and return where reading stopped.

        It stops at the end of the text, after the value, or at the first invalid character.
        """
        position = mark = start
        end = len(text)
        while position < end and self._expect is not _NOTHING and not self.broken:
            if self._expect is _STRING:
                if self._high and text[position] != "\\":
                    self._release(out)
                run = _STRING_RUN.match(text, position)
                assert run is not None
                position = run.end()
                if position < end and (instead := self._in_string(text[position])) is not None:
                    out += text[mark:position], instead
                    mark = position + 1
                position += position < end
            elif self._expect in _ESCAPING:
                position += self._in_escape(text[position], out)
                mark = position
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

    def _in_string(self, char: str) -> str | None:
        """One special character in a string: its replacement in the output, None for itself."""
        if char == '"':
            self._expect = _Expect.COLON if self._in_key else self._after_value()
            return None
        if char == "\\":
            self._expect, self._escape = _Expect.ESCAPE, char
            return ""
        return _escaped(char)

    def _in_escape(self, char: str, out: list[str]) -> bool:
        """One character of an escape; False if the escape is invalid.

        The escape is output with its last character.
        """
        escape = self._escape + char
        if self._expect is _Expect.HEX:
            wrong = "" if char in _HEX else "a broken \\u escape"
        else:
            wrong = "" if char in _ESCAPED else "an unknown escape in a string"
        if wrong:
            self._release(out)
            out.append(self._escape)
            return self._break(wrong)
        self._escape = escape
        if len(escape) == (_ESCAPE_LENGTH if escape[1] == "u" else 2):
            self._end_escape(escape, out)
        elif self._expect is _Expect.ESCAPE:
            self._expect = _Expect.HEX
        return True

    def _end_escape(self, escape: str, out: list[str]) -> None:
        """Output a complete escape."""
        self._expect = _Expect.STRING
        code = int(escape.removeprefix("\\u"), 16) if escape[1] == "u" else 0
        if self._high and code in _LOW:
            out += self._high, escape
            self._high = ""
            return
        self._release(out)
        if code in _HIGH:
            self._high = escape
        else:
            out.append(_NO_CHARACTER if code in _LOW else escape)

    def _release(self, out: list[str]) -> None:
        """The second half of a pair did not follow the first."""
        if self._high:
            out.append(_NO_CHARACTER)
            self._high = ""

    # These read one character, and return False if another state has to read it.

    def _inside(self, char: str) -> bool:
        """Inside a number or a literal."""
        if self._expect is _Expect.NUMBER:
            return self._in_number(char)
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
_ESCAPING = frozenset({_Expect.ESCAPE, _Expect.HEX})
_INSIDE = frozenset({_Expect.NUMBER, _Expect.LITERAL})
_TAKES_VALUE = frozenset({_Expect.VALUE, _Expect.VALUE_OR_END})
_TAKES_KEY = frozenset({_Expect.KEY, _Expect.KEY_OR_END})
_TAKES_STRING = _TAKES_VALUE | _TAKES_KEY
_TAKES_END = {
    "}": frozenset({_Expect.KEY_OR_END, _Expect.COMMA_OR_END}),
    "]": frozenset({_Expect.VALUE_OR_END, _Expect.COMMA_OR_END}),
}
