"""Python's keyword arguments → the text of a JSON object, streamed.

Strategy: a state machine of phases. Each reads from a position and returns where it stopped; a stack holds
the open containers. Strings are written as they are read, other literals when they are complete.

Beyond Python it accepts common deviations of models: JSON's literals, raw newlines and unescaped quotes in
strings, leading zeros, reserved words as names. A quote ends a string only if what follows may follow a
value: in a call the next argument, whose name the tool declares or which is not inside parentheses of the
string, or the end of the call. It does not support expressions and string prefixes, and reads `("a")` as a
tuple.
"""

import json
import re
from collections.abc import Callable, Set

from antiphon.core.json_scanner import MAX_DEPTH
from antiphon.decode.arguments.types import SCALARS, coerce

MAX_WORD = 4000
"""Characters of a number, literal or name."""
MAX_GAP = 256
"""Characters of space after a quote that may or may not end the string, and of a name after that."""

_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"\w*")
_WORD = re.compile(r"[\w.+\-]*")
_RUN = re.compile(r"""[^"'\\\x00-\x1f]*""")
_CLOSER = {"call": ")", "[": "]", "(": ")", "{": "}"}
_JSON = {"call": "{}", "[": "[]", "(": "[]", "{": "{}"}
_GAP = re.compile(rf"\s{{0,{MAX_GAP}}}")
_ARGUMENT = re.compile(rf"\s{{0,{MAX_GAP}}}([^\W\d]\w{{0,{MAX_GAP}}})[ \t]{{0,8}}=")
_ARGUMENT_START = re.compile(rf"\s{{0,{MAX_GAP}}}(?:[^\W\d]\w{{0,{MAX_GAP}}})?[ \t]{{0,8}}")
_END_OF_CALLS = re.compile(r"\)\s{0,16}(?:\]\s{0,16})?")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": ""}
_ESCAPES |= {"\\": "\\", '"': '"', "'": "'"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}

_Phase = Callable[[str, int, list[str]], int]


class PythonArguments:
    """Reads from after a call's `(` up to and including its `)`.

    `is_call` is true once the first name or the end was read: `feed` stops there
    once. `done` is true after the end, `broken` says why the arguments are malformed. `waits` is true where
    it stopped because it needs more text. `names` are the arguments that the tool declares; `final`: no more
    text follows.
    """

    def __init__(self, names: Set[str] = frozenset()) -> None:
        self._names = names
        self._phase: _Phase = self._item
        self._stack = ["call"]
        self._counts = [0]
        self._in_key = False  # reading the key of a dict
        self._word = ""
        self._quote = ""  # of the current string, one character or three
        self._quote_count = 0  # consecutive quotes read
        self._depth = 0  # parentheses that are open in the string
        self._escape = ""
        self.is_call = False
        self.done = False
        self.waits = False
        self.final = False
        self.broken: str | None = None

    def feed(self, text: str, start: int, out: list[str]) -> int:
        """Read from `text[start]`, append JSON to `out`, and return where reading stopped."""
        position, before, self.waits = start, self.is_call, False
        while position < len(text) and not self.done and not self.broken and self.is_call is before:
            position = self._phase(text, position, out)
            if self.waits:
                break
        return position

    def rest(self) -> str:
        """Text that was read and not yet written, for arguments that are malformed."""
        return self._word

    def last(self) -> str:
        """The literal at the end of arguments that were cut, if it is one; not a part of a name."""
        value = coerce(self._word, SCALARS) if self._phase == self._literal and not self._in_key else ""
        return value if value in (self._word, "true", "false", "null") else ""

    # Between values

    def _item(self, text: str, position: int, out: list[str]) -> int:
        """After an opener or a comma."""
        position = _skip(text, position)
        if position == len(text):
            return position
        if text[position] == _CLOSER[self._stack[-1]]:
            return self._close(position, out)
        if self._stack[-1] == "call":
            self._phase = self._name
            return position
        if self._counts[-1]:
            out.append(", ")
        self._counts[-1] += 1
        self._in_key = self._stack[-1] == "{"
        self._phase = self._value
        return position

    def _name(self, text: str, position: int, out: list[str]) -> int:
        """The name of an argument, space, and `=`."""
        run = _NAME.match(text, position)
        assert run is not None
        self._word += run[0]
        if len(self._word) > MAX_WORD:
            return self._break(run.end(), "a name that is too long")
        if run.end() < len(text):
            self._phase = self._equals
        return run.end()

    def _equals(self, text: str, position: int, out: list[str]) -> int:
        position = _skip(text, position)
        if position == len(text):
            return position
        if text[position] != "=" or not self._word:
            return self._break(position, "an argument without a name")
        out.append(
            ("{" if not self._counts[-1] else ", ") + json.dumps(self._word, ensure_ascii=False) + ": "
        )
        self._counts[-1] += 1
        self._word = ""
        self.is_call = True
        self._phase = self._value
        return position + 1

    def _value(self, text: str, position: int, out: list[str]) -> int:
        """The beginning of a value."""
        position = _skip(text, position)
        if position == len(text):
            return position
        char = text[position]
        if char in "\"'":
            self._quote, self._quote_count, self._phase = char, 0, self._opening
        elif char in "[({" and not self._in_key:
            return self._open(char, position, out)
        elif _WORD.match(char)[0]:  # type: ignore[index]  # it may be empty, never missing
            self._phase = self._literal
        else:
            return self._break(position, f"unexpected {char!r}")
        return position

    def _open(self, char: str, position: int, out: list[str]) -> int:
        if len(self._stack) == MAX_DEPTH:
            return self._break(position, "nested too deeply")
        self._stack.append(char)
        self._counts.append(0)
        out.append(_JSON[char][0])
        self._phase = self._item
        return position + 1

    def _after(self, text: str, position: int, out: list[str]) -> int:
        """After a value, or after the key of a dict."""
        position = _skip(text, position)
        if position == len(text):
            return position
        char = text[position]
        if self._in_key and char == ":":
            out.append(": ")
            self._in_key, self._phase = False, self._value
        elif not self._in_key and char == ",":
            self._phase = self._item
        elif not self._in_key and char == _CLOSER[self._stack[-1]]:
            return self._close(position, out)
        else:
            return self._break(position, f"unexpected {char!r}")
        return position + 1

    def _close(self, position: int, out: list[str]) -> int:
        kind, count = self._stack.pop(), self._counts.pop()
        out.append(_JSON[kind] if kind == "call" and not count else _JSON[kind][1])
        self._phase = self._after
        self.done = not self._stack
        self.is_call = self.is_call or self.done
        return position + 1

    def _break(self, position: int, why: str) -> int:
        self.broken = why
        return position

    # Values

    def _literal(self, text: str, position: int, out: list[str]) -> int:
        """A number, or the name of a constant."""
        run = _WORD.match(text, position)
        assert run is not None
        self._word += run[0]
        if len(self._word) > MAX_WORD:
            return self._break(run.end(), "a literal that is too long")
        if run.end() < len(text):
            value = coerce(self._word, SCALARS)
            if value.startswith('"'):
                return self._break(run.end(), "an unknown literal")
            out.append(f'"{value}"' if self._in_key else value)
            self._word = ""
            self._phase = self._after
        return run.end()

    def _opening(self, text: str, position: int, out: list[str]) -> int:
        """The quotes that open a string: one, two (it is empty) or three."""
        if text[position] == self._quote:
            self._quote_count += 1
            if self._quote_count < 3:
                return position + 1
            self._quote *= 3
            position += 1
        empty = self._quote_count == 2
        out.append('""' if empty else '"')
        self._depth = 0
        self._phase = self._after if empty else self._string
        return position

    def _string(self, text: str, position: int, out: list[str]) -> int:
        run = _RUN.match(text, position)
        assert run is not None
        out.append(run[0])
        self._depth += run[0].count("(") - run[0].count(")")
        position = run.end()
        if position == len(text):
            return position
        char = text[position]
        if char == "\\":
            self._escape, self._phase = "", self._escaped
        elif char != self._quote[0]:
            out.append(_encoded(char))
        elif len(self._quote) == 3:
            self._quote_count, self._phase = 0, self._triple
            return position
        else:
            ends = self._ends(text, position + 1)
            self.waits = ends is None
            if ends is None:
                return position
            out.append('"' if ends else _encoded(char))
            self._phase = self._after if ends else self._string
        return position + 1

    def _ends(self, text: str, position: int) -> bool | None:
        """Whether a quote before this position ends the string. None: more text is needed."""
        gap = _GAP.match(text, position)
        assert gap is not None
        after = gap.end()
        if after == len(text):
            return self.final or None
        char, kind = text[after], self._stack[-1]
        if char.isspace():
            return True
        if self._in_key or kind != "call":
            return char in (":" if self._in_key else "," + _CLOSER[kind])
        if char == ",":
            return self._argument_follows(text, after + 1)
        return self._call_ends(text, after) if char == ")" else False

    def _argument_follows(self, text: str, position: int) -> bool | None:
        """Whether an argument follows a comma after a quote."""
        argument = _ARGUMENT.match(text, position)
        if argument is not None:
            return argument[1] in self._names or self._depth <= 0
        start = _ARGUMENT_START.match(text, position)
        assert start is not None
        if start.end() == len(text):
            return self.final or None
        trails = text[start.end()] == ")" and not start[0].strip()
        return self._call_ends(text, start.end()) if trails else False

    def _call_ends(self, text: str, position: int) -> bool | None:
        """Whether a parenthesis after a quote ends the call: another one follows, or the end of the calls."""
        end = _END_OF_CALLS.match(text, position)
        assert end is not None
        after = end.end()
        if after == len(text):
            return self.final or None
        char = text[after]
        if "]" in end[0] or char == "<":
            return char not in "'\"),"
        return self._depth <= 0 and (char in ",;" or "\n" in end[0])

    def _triple(self, text: str, position: int, out: list[str]) -> int:
        if text[position] != self._quote[0]:
            out.append(_encoded(self._quote[0] * self._quote_count))
            self._phase = self._string
            return position
        self._quote_count += 1
        if self._quote_count == 3:
            out.append('"')
            self._phase = self._after
        return position + 1

    def _escaped(self, text: str, position: int, out: list[str]) -> int:
        """After a backslash. An unknown escape is kept, with its backslash, as in Python."""
        char = text[position]
        kind = self._escape[:1] or char
        if kind in _ESCAPES:
            out.append(_encoded(_ESCAPES[kind]))
        elif kind in _HEX_DIGITS and (not self._escape or char in "0123456789abcdefABCDEF"):
            return self._in_escape(char, 1 + _HEX_DIGITS[kind], position, out)
        elif kind in "01234567" and char in "01234567":
            return self._in_escape(char, 3, position, out)
        elif kind in "01234567":
            out.append(_encoded(chr(int(self._escape, 8))))
            position -= 1
        else:
            out.append("\\\\" + self._escape)
            position -= 1
        self._phase = self._string
        return position + 1

    def _in_escape(self, char: str, length: int, position: int, out: list[str]) -> int:
        """A digit of a numeric escape; the last one completes it."""
        self._escape += char
        if len(self._escape) == length:
            octal = self._escape[0] not in _HEX_DIGITS
            code = int(self._escape, 8) if octal else int(self._escape[1:], 16)
            out.append(_encoded(chr(code)) if code < 0x110000 else "\\\\" + self._escape)
            self._phase = self._string
        return position + 1


def _skip(text: str, position: int) -> int:
    space = _SPACE.match(text, position)
    assert space is not None
    return space.end()


def _encoded(text: str) -> str:
    """Text as the inside of a JSON string. A lone surrogate stays escaped: the other half may follow."""
    halves = any("\ud800" <= char <= "\udfff" for char in text)
    return json.dumps(text, ensure_ascii=halves)[1:-1]
