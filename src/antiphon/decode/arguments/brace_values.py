"""Finds where a value ends that models write between braces, in quotes of any kind or none.

A value is over where its quote, a comma, a bracket or a marker is followed by what can only follow a value:
the next argument, or the end of the call. Names that the tool declares count as arguments everywhere, other
names only without space before them. What may still become such an end is held back, up to a bound.
"""

import re
from collections.abc import Iterable, Sequence, Set
from functools import lru_cache
from typing import NamedTuple

MAX_HELD = 300
"""Characters that are held back until it is known whether they end a value.

The patterns are bounded so that it is known before: the result must not depend on how the text was cut.
"""

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "'": "'", "\\": "\\", "/": "/"}
"""The escapes of strings in quotes. `\\b` and others are kept: in patterns they mean something else."""
_UNICODE = re.compile(r"[0-9a-fA-F]{4}")
_SPACE = re.compile(r"\s{0,32}")
_BRACKETS = re.compile(r"[\s}\])]{0,64}")
_TAIL = re.compile(r"[\"']?[\s}\])]{0,64}")


class Stop(NamedTuple):
    """The end of a value, up to the position `after`; or, with `text`, an escape that stands for it."""

    after: int
    text: str | None = None


class ValueEnds:
    """Decides for one call at a time. `quote` delimits strings, `markers` close the call.

    `assign` is written between a name and its value, if that is known. `final`: no more text follows.
    """

    def __init__(self, quote: str, markers: Iterable[str]) -> None:
        self._quote = quote
        self._marks = (quote, *sorted(markers, key=len, reverse=True))
        self._longest = max(map(len, self._marks))
        self._key, self._key_start = _key_patterns(quote)
        self.stops = _stops("".join(sorted({mark[0] for mark in self._marks})))
        self.assign = ""
        self.final = False
        self._opener = ""
        self._is_text = True
        self._inside = ""  # the end of the innermost container; empty for an argument of the call
        self._names: Set[str] = frozenset()
        self._open = {"}": 0, ")": 0}  # brackets that are open in a bare value

    def begin(self, opener: str, stack: Sequence[str], names: Set[str], is_text: bool) -> None:
        """Begin a value, with this quote or none, inside these containers.

        `names` are the tool's arguments. A value that cannot be a string ends at any comma or bracket.
        """
        self._opener = opener
        self._is_text = is_text
        self._inside = stack[-1] if len(stack) > 1 else ""
        self._names = names
        self._open = dict.fromkeys(self._open, 0)

    def pass_text(self, text: str) -> None:
        """Count the brackets of this text, if it is part of a bare value."""
        if not self._opener:
            self._open = {end: self._still_open(end, text) for end in self._open}

    def find(self, text: str, at: int, start: int) -> Stop | int | None:
        """Whether the value stops at this position; or from where it goes on. None: that is not known yet.

        Its text from `start` on has not been passed.
        """
        stop = self._find(text, at, start)
        return at + 1 if stop is None and len(text) - at > MAX_HELD else stop

    def _find(self, text: str, at: int, start: int) -> Stop | int | None:
        mark = self.mark(text, at)
        if mark is None:
            return None
        if text[at].isspace():
            return self._at_space(text, at, start)
        if self._opener == self._quote:
            return Stop(at + len(mark)) if mark == self._quote else self._at_tail(text, at)
        return Stop(at) if mark and mark != self._quote else self._find_by_character(text, at, start, mark)

    def _find_by_character(self, text: str, at: int, start: int, mark: str) -> Stop | int | None:
        """The same in a value that the delimiter did not begin, where no marker is."""
        if text[at] == "\\":
            return self._at_escape(text, at)
        if mark or text[at] in "\"'":
            return self._at_quote(text, at, mark or text[at])
        return self._at_bracket(text, at, start) if self._opener == "" else self._at_tail(text, at)

    def _at_space(self, text: str, at: int, start: int) -> Stop | int | None:
        """Space belongs to what ends a bare value."""
        after = _skip(text, at)
        if after == len(text) and not self._opener:
            return None
        if self._opener or text[after].isspace() or not self.stops.match(text, after):
            return at + 1
        return self._find(text, after, start)

    def _at_tail(self, text: str, at: int) -> Stop | int | None:
        """In a string: another quote or brackets, directly before the end of the call."""
        tail = _TAIL.match(text, at)
        assert tail is not None
        after = tail.end()
        if after == len(text):
            return None
        mark = self.mark(text, after)
        if mark is None:
            return None
        other = text[at] in "\"'"
        if mark and mark != self._quote and after > at:
            return Stop(at + other)
        if other and (key := self._follows_key(text, _skip(text, at + 1), declared=True)) is not False:
            return key and Stop(at + 1)
        return max(after, at + 1)

    def _at_quote(self, text: str, at: int, quote: str) -> Stop | int | None:
        """A quote in a string that another one began, or in a bare value."""
        after = at + len(quote)
        if quote != self._quote:  # the delimiter may follow
            mark = self.mark(text, after) if after < len(text) else None
            if mark is None:
                return None
            after += len(mark) if mark == self._quote else 0
        own = quote in (self._opener, self._quote) or after > at + 1
        if not own:
            return self._at_tail(text, at) if self._opener else at + 1
        follows = self._follows(text, after)
        return None if follows is None else Stop(after) if follows else at + len(quote)

    def _at_escape(self, text: str, at: int) -> Stop | int | None:
        """A backslash, in a string in quotes of JSON."""
        if not self._opener:
            return at + 1
        char = text[at + 1 : at + 2]
        if char == "u":
            if len(text) < at + 6:
                return None if _UNICODE.match((text[at + 2 :] + "0000")[:4]) else at + 2
            code = _UNICODE.match(text, at + 2)
            valid = code is not None and not 0xD800 <= int(code[0], 16) < 0xE000
            return Stop(at + 6, chr(int(code[0], 16))) if code and valid else at + 2
        if not char:
            return None
        return Stop(at + 2, _ESCAPES[char]) if char in _ESCAPES else at + 1

    def _at_bracket(self, text: str, at: int, start: int) -> Stop | int | None:
        """A comma or a bracket in a bare value of the call."""
        if not self._is_text:
            return Stop(at) if text[at] in ",})" else at + 1
        if text[at] == ",":
            follows = self._follows_key(text, at + 1)
        elif text[at] in "})":
            follows = self._closes(text, at)
            if follows and self._still_open(text[at], text[start:at]) > 0:
                follows = False
        else:
            follows = False
        return None if follows is None else Stop(at) if follows else at + 1

    # What follows

    def _follows(self, text: str, at: int) -> bool | None:
        """Whether something follows that can only follow a string."""
        after = _skip(text, at)
        if after == len(text):
            return None
        mark = self.mark(text, after)
        if mark is None or (mark and mark != self._quote):
            return None if mark is None else True
        char = text[after]
        if self._inside:
            if char == self._inside or (char == "," and self._inside == "]"):
                return True
            return self._follows_key(text, after + 1) if char == "," else False
        if char == ",":
            return self._follows_key(text, after + 1)
        return self._closes(text, after) if char in "})" else self._follows_key(text, after, declared=True)

    def _follows_key(self, text: str, at: int, declared: bool = False) -> bool | None:
        """Whether the name of an argument follows; with `declared` one that the tool declares."""
        if declared and text[at : at + 1] == ",":
            at += 1
        key = self._key.match(text, at)
        if key is not None:
            return self._is_argument(key, declared)
        closing = _skip(text, at)
        if closing < len(text) and text[closing] in "})" and not declared:
            return True if self._inside else self._closes(text, closing)  # after a trailing comma
        return None if self._key_start.fullmatch(text, at) else False

    def _is_argument(self, match: re.Match[str], declared: bool) -> bool | None:
        """Whether this name is that of an argument, and not a word before a colon."""
        text, end, known = match.string, match.end(), match[1] in self._names
        if self.assign and not self._inside and match[2] != self.assign:
            return False
        if known or self._inside or declared:
            return known or not declared
        spaced = bool(self._names) and text[match.start()].isspace()
        if not spaced and len(text) < end + 2 and "//".startswith(text[end:]):
            return None
        return not (spaced or text.startswith("//", end))  # a URL has no arguments

    def _closes(self, text: str, at: int) -> bool | None:
        """Whether only brackets come between this one and the end of the call."""
        brackets = _BRACKETS.match(text, at)
        assert brackets is not None
        after = brackets.end()
        mark = self.mark(text, after)
        if mark is None or after == len(text):
            return self.final or None
        return bool(mark) and mark != self._quote

    def mark(self, text: str, at: int) -> str | None:
        """The delimiter or marker at this position; empty if there is none, None if that is not known yet."""
        for mark in self._marks:
            if text.startswith(mark, at):
                return mark
        rest = text[at:] if len(text) - at < self._longest else ""
        may_follow = rest and any(mark.startswith(rest) for mark in self._marks)
        return None if may_follow else ""

    def _still_open(self, end: str, text: str) -> int:
        opener = "{" if end == "}" else "("
        return self._open[end] + text.count(opener) - text.count(end)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None
    return space.end()


@lru_cache
def _stops(marks: str) -> re.Pattern[str]:
    """Where a value may stop: `marks` are the first characters of markers."""
    return re.compile(rf"""[\s,"'}}\])\\{re.escape(marks)}]""")


@lru_cache
def _key_patterns(quote: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Patterns of a name, in quotes or none, with the sign before its value; and of the start of one."""
    quotes = rf"(?:{re.escape(quote)}|[\"'])?"
    name, space, start_quotes = r"[^\W\d][\w.\-]{0,100}", r"\s{0,32}", rf"[{re.escape(quote)}\"']{{0,12}}"
    whole = rf"{space}{quotes}({name}){quotes}{space}([:=])"
    start = rf"{space}{start_quotes}(?:{name})?{start_quotes}{space}"
    return re.compile(whole), re.compile(start)
