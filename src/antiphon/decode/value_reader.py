"""Readers of text that is an argument: of one value up to a marker, or of all arguments as one text.

A marker that ends a value may also be part of it: a file that is written may contain the same tags. Which of
the two it is shows in the marker after it. If that begins the next argument, or ends the call, the value has
ended, and text between them is skipped. If it is again one that ends a value, the first was text.

So it is with a marker before which the value should have been closed. One that begins the next argument does
if the argument's name follows, and one that ends the call if another call or the end of the answer does.
"""

from collections.abc import Callable, Collection, Mapping

from msgspec import Struct

from antiphon.core.grammar import ArgumentKey, KeyParser, TextArguments, Trim, Value
from antiphon.decode.event_builder import EventBuilder
from antiphon.decode.headers import MAX_NAME
from antiphon.decode.lexer import MAX_SPACE, Lexer, MarkerMatch
from antiphon.decode.readers import Step

MAX_UNDECIDED = 64 * 1024
"""Characters after a marker within which the next one decides what it is; without one it ends the value."""


class Following(Struct, frozen=True):
    """What may follow a marker that may end a value: one of `confirming`, after text that `fits`.

    `lexer` finds these, and the markers that close a value. `fits` gets the text, and whether it is complete.
    """

    lexer: Lexer
    confirming: Collection[str]
    fits: Callable[[str, bool], bool] | None = None


def is_key(parse: KeyParser) -> Callable[[str, bool], bool]:
    """Whether text may be the header of an argument."""

    def fits(text: str, whole: bool) -> bool:
        return len(text) <= MAX_NAME and "\n" not in text.strip() and (not whole or parse(text) is not None)

    return fits


def is_space(text: str, whole: bool) -> bool:
    """Whether text is only space."""
    return len(text) <= MAX_SPACE and not text.strip()


FollowingMarkers = Mapping[str, Following]
"""What may follow each marker that may end a value and may also be text."""


class ValueReader:
    """Reads the value of an argument, and streams it."""

    def __init__(
        self, state: Value, lexer: Lexer, following: FollowingMarkers, builder: EventBuilder
    ) -> None:
        self._state = state
        self._lexer = lexer
        self._following = following
        self._builder = builder
        self._trims = state.trim is Trim.NEWLINE
        self._started = not self._trims
        self._held = ""
        self._final = False
        self._end: str | None = None  # the marker that may be the value's end
        self._before_end = ""  # space before it that is not part of the value then
        self._after: list[str] = []  # the text after it
        self._size = 0

    def feed(self, text: str) -> Step | None:
        """Read the value, and what follows a marker that may end it."""
        text, self._held = self._held + text, ""
        step: Step | str | None = text
        while isinstance(step, str):
            step = self._read(step) if self._end is None else self._decide(step)
        return step

    def finish(self, text: str) -> Step | None:
        """The model stopped inside the value, or after its end."""
        self._final = True
        step = self.feed(text)
        if step is None and self._end is not None:
            self._after.append(self._held)
            self._held = ""
            if self._fits(self._following[self._end], whole=False):
                return self._end_value(self._end, "")
            return self.finish(self._take_as_text(""))
        if step is None:
            self._end_of_input()
        return step

    def _find(self, lexer: Lexer, text: str) -> MarkerMatch:
        """The first marker, or the beginning of one at the end of the text; else an empty match there."""
        last = lexer.find_final(text) if self._final else None
        return last or lexer.find(text) or MarkerMatch(len(text), len(text), "")

    # These two return a step, or the text to read next, None if it was read or is held back.

    def _read(self, text: str) -> Step | str | None:
        """Read the value, up to a marker."""
        match = self._find(self._lexer, text)
        body = text[: match.start]
        if not self._started and body:
            self._started = True
            if body[0] == "\n":
                self._builder.value("", "\n")
                body = body[1:]
        value = body.removesuffix("\n") if self._trims else body
        self._builder.value(value, value)
        space, rest = body[len(value) :], text[match.end :]
        if not match.marker:
            self._held = space + text[match.start :]
            return None
        self._before_end = space
        if match.marker not in self._following:
            return self._end_value(match.marker, rest)
        self._end = match.marker
        return rest

    def _decide(self, text: str) -> Step | str | None:
        """Read what follows a marker, up to the one that decides whether it was the value's end."""
        end = self._end
        assert end is not None
        following = self._following[end]
        match = self._find(following.lexer, text)
        self._after.append(text[: match.start])
        self._size += match.start
        rest, confirmed = text[match.start :], match.marker in following.confirming
        if (match.marker and not confirmed) or not self._fits(following, whole=confirmed):
            return self._take_as_text(rest)
        if confirmed or self._size > MAX_UNDECIDED:
            return self._end_value(end, rest)
        self._held = rest
        return None

    def _fits(self, following: Following, *, whole: bool) -> bool:
        """Whether the text after a marker may stand there if the marker is the end."""
        return following.fits is None or following.fits("".join(self._after), whole)

    def _take_as_text(self, rest: str) -> str:
        """The marker was text, and what follows is more of it; return what is to be read next."""
        end = self._end
        assert end is not None
        body = "".join((self._before_end, end, *self._after))
        value = body.removesuffix("\n") if self._trims else body
        self._builder.value(value, value)
        self._started, self._end, self._size = True, None, 0
        self._after.clear()
        return body[len(value) :] + rest

    def _end_value(self, marker: str, rest: str) -> Step:
        self._builder.end_value(self._before_end)
        return Step(self._state.on[marker], "".join(self._after) + rest, marker)

    def _end_of_input(self) -> None:
        self._builder.value("", self._held)  # the value was truncated, maybe in the marker after it


class TextArgumentsReader(ValueReader):
    """Reads all arguments of a call as one text."""

    def __init__(self, state: TextArguments, lexer: Lexer, builder: EventBuilder) -> None:
        super().__init__(Value(state.on), lexer, {}, builder)
        builder.key(ArgumentKey(state.key, "string"), "")

    def _end_of_input(self) -> None:
        self._builder.value(self._held, self._held)  # the end of the answer is that of the text
