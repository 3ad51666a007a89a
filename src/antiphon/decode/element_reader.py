"""Reads one argument that is written as an XML-like element. See `arguments/elements.py`.

Strings are streamed, and so are the values of arrays; any other argument is held back
until its element ends. A closing tag without an opening one, and a malformed tag, are text.
"""

import re

from antiphon.core.grammar import ArgumentKey, ElementArgument
from antiphon.decode.arguments.elements import MAX_ELEMENTS, Element
from antiphon.decode.call_readers import MAX_COLLECTED
from antiphon.decode.event_builder import EventBuilder
from antiphon.decode.headers import MAX_NAME
from antiphon.decode.lexer import Lexer
from antiphon.decode.readers import RETRACT, Step

_NAME = re.compile(r"[^\s<>/]+")


class ElementReader:
    """Reads from after the `<` of the element's tag up to its end."""

    def __init__(self, state: ElementArgument, opener: Lexer, builder: EventBuilder) -> None:
        self._state = state
        self._opener = opener
        self._builder = builder
        self._open: list[Element] = []
        self._streams = False
        self._is_array = False  # nested elements are the values of an array
        self._has_values = False  # of the array
        self._size = 0
        self._in_tag = True
        self._held = ""  # text of a tag, or of the possible start of one
        self._before = ""  # the marker before the tag that is held back

    def feed(self, text: str) -> Step | None:
        """Read tags, and the text between them."""
        text, self._held = self._held + text, ""
        step = None
        while text and step is None:
            step, text = self._read_tag(text) if self._in_tag else self._read_text(text)
        return step

    def finish(self, text: str) -> Step | None:
        """The model stopped inside the element."""
        step = self.feed(text)
        if step is None:
            self._note(self._before + self._held if self._in_tag else self._held)  # maybe of a closing tag
        return step

    def _read_text(self, text: str) -> tuple[Step | None, str]:
        match = self._opener.find(text)
        end = len(text) if match is None else match.start
        self._text(text[:end])
        if self._size > MAX_COLLECTED:
            return self._break("an argument is too long", text[end:]), ""
        if match is None or not match.marker:
            self._held = text[end:]
            return None, ""
        self._in_tag, self._before = True, match.marker
        return None, text[match.end :]

    def _read_tag(self, text: str) -> tuple[Step | None, str]:
        end = text.find(">", 0, MAX_NAME + 2)
        if end < 0 and len(text) < MAX_NAME + 2:
            self._held = text
            return None, ""
        tag, raw, rest = text[:end], self._before + text[: end + 1], text[end + 1 :]
        self._in_tag = False
        if end < 0:
            return self._not_a_tag(self._before, text)
        if not self._open and tag.startswith("/"):  # the argument before was closed twice
            self._builder.skip(raw)
            return Step(self._state.then, rest), ""
        if not self._open:
            return (None, rest) if self._begin(tag, raw) else self._not_a_tag(self._before, text)
        return (Step(self._state.then, rest), "") if self._follow(tag, raw) else (None, rest)

    def _begin(self, name: str, raw: str) -> bool:
        """Read the tag of the argument itself. False if it is malformed."""
        if not _NAME.fullmatch(name):
            return False
        self._open = [Element(name)]
        self._streams = self._builder.takes_text(name)
        self._is_array = self._builder.takes_list(name)
        if self._streams:
            self._builder.key(ArgumentKey(name, "string"), raw)
        else:
            self._builder.arguments("", raw)
        return True

    def _not_a_tag(self, before: str, text: str) -> tuple[Step | None, str]:
        """A malformed tag: text in the element, or a malformed argument."""
        if not self._open:
            return self._break("an argument without a name", before + text), ""
        self._text(before)
        return None, text

    def _follow(self, tag: str, raw: str) -> bool:
        """Read a nested tag. True if it ends the argument."""
        closed = self._closes(tag)
        if closed == 0:
            self._stream_value()
            self._end(raw)
            return True
        if self._streams or (closed is None and not self._enters(tag)):
            self._text(raw)
            return False
        if closed is not None:
            del self._open[closed:]
        self._note(raw)
        if len(self._open) == 1:
            self._stream_value()
        return False

    def _stream_value(self) -> None:
        """Stream the nested element that is complete, if it is the value of an array."""
        argument = self._open[0]
        if self._is_array and argument.elements:
            self._builder.list_value(argument.name, argument.elements.pop(), "")
            self._has_values, self._size = True, 0

    def _closes(self, tag: str) -> int | None:
        """The index of the open element that the tag closes, None if there is none."""
        if not tag.startswith("/"):
            return None
        names = [element.name for element in self._open]
        return next((at for at in reversed(range(len(names))) if names[at] == tag[1:]), None)

    def _enters(self, tag: str) -> bool:
        """Open a nested element. False if the tag does not."""
        name = tag.removesuffix("/")
        if self._streams or len(self._open) >= MAX_ELEMENTS or not _NAME.fullmatch(name):
            return False
        element = Element(name)
        self._open[-1].elements.append(element)
        if name == tag:
            self._open.append(element)
        return True

    def _end(self, raw: str) -> None:
        if self._streams:
            self._builder.end_value(raw)
        elif self._has_values:
            self._builder.arguments("", raw)
        else:
            self._builder.element(self._open[0], raw)

    def _text(self, text: str) -> None:
        if self._streams:
            self._builder.value(text, text)
        else:
            if self._open and text:
                self._open[-1].text.append(text)
            self._note(text)

    def _note(self, raw: str) -> None:
        self._size += len(raw)
        self._builder.arguments("", raw)

    def _break(self, why: str, rest: str) -> Step:
        self._builder.fail_call(why)
        return Step(RETRACT, rest)
