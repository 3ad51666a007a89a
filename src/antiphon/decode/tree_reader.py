"""Reads one argument that is written as an element, with elements in it. See `arguments/xml_tree.py`.

Text for an argument that is a string streams, and so do the values of one that is
an array; any other is held until its element ends. A closing tag that closes
nothing, and a tag that is none, are text.
"""

import re

from antiphon.core.grammar import Keyed, Tree
from antiphon.decode.arguments.xml_tree import MAX_ELEMENTS, Element
from antiphon.decode.call_readers import MAX_COLLECTED
from antiphon.decode.headers import MAX_NAME
from antiphon.decode.lexer import Lexer
from antiphon.decode.readers import RETRACT, Step
from antiphon.decode.sink import Sink

_NAME = re.compile(r"[^\s<>/]+")


class TreeReader:
    """Reads from after the `<` of the element's tag up to its end."""

    def __init__(self, state: Tree, opener: Lexer, sink: Sink) -> None:
        self._state = state
        self._opener = opener
        self._sink = sink
        self._open: list[Element] = []
        self._streams = False
        self._lists = False  # the elements in the argument's element are values of an array
        self._listed = False  # one was written
        self._size = 0
        self._in_tag = True
        self._held = ""  # text of a tag, or what may be the beginning of one
        self._before = ""  # what stands before the tag that is held

    def feed(self, text: str) -> Step | None:
        """Read tag after tag, and the text between."""
        text, self._held = self._held + text, ""
        step = None
        while text and step is None:
            step, text = self._read_tag(text) if self._in_tag else self._read_text(text)
        return step

    def finish(self, text: str) -> Step | None:
        """The model stopped inside the element."""
        step = self.feed(text)
        if step is None:
            self._text(self._before + self._held if self._in_tag else self._held)
        return step

    def _read_text(self, text: str) -> tuple[Step | None, str]:
        found = self._opener.find(text)
        end = len(text) if found is None else found.start
        self._text(text[:end])
        if self._size > MAX_COLLECTED:
            return self._break("an argument is too long", text[end:]), ""
        if found is None or not found.marker:
            self._held = text[end:]
            return None, ""
        self._in_tag, self._before = True, found.marker
        return None, text[found.end :]

    def _read_tag(self, text: str) -> tuple[Step | None, str]:
        end = text.find(">", 0, MAX_NAME + 2)
        if end < 0 and len(text) < MAX_NAME + 2:
            self._held = text
            return None, ""
        tag, raw, rest = text[:end], self._before + text[: end + 1], text[end + 1 :]
        self._in_tag = False
        if end < 0:
            return self._no_tag(self._before, text)
        if not self._open:
            return (None, rest) if self._begin(tag, raw) else self._no_tag(self._before, text)
        return (Step(self._state.then, rest), "") if self._follow(tag, raw) else (None, rest)

    def _begin(self, name: str, raw: str) -> bool:
        """The tag of the argument itself. False if it is none."""
        if not _NAME.fullmatch(name):
            return False
        self._open = [Element(name)]
        self._streams = self._sink.takes_text(name)
        self._lists = self._sink.takes_list(name)
        if self._streams:
            self._sink.key(Keyed(name, "string"), raw)
        else:
            self._sink.arguments("", raw)
        return True

    def _no_tag(self, before: str, text: str) -> tuple[Step | None, str]:
        """There is no tag here: it is text in the element, or no argument."""
        if not self._open:
            return self._break("an argument without a name", before + text), ""
        self._text(before)
        return None, text

    def _follow(self, tag: str, raw: str) -> bool:
        """A tag in the argument. True if it ends it."""
        closed = self._closes(tag)
        if closed == 0:
            self._list()
            self._end(raw)
            return True
        if self._streams or (closed is None and not self._enters(tag)):
            self._text(raw)
            return False
        if closed is not None:
            del self._open[closed:]
        self._note(raw)
        if len(self._open) == 1:
            self._list()
        return False

    def _list(self) -> None:
        """An element in the argument's element is whole: of an array it is a value."""
        argument = self._open[0]
        if self._lists and argument.elements:
            self._sink.list_value(argument.name, argument.elements.pop(), "")
            self._listed, self._size = True, 0

    def _closes(self, tag: str) -> int | None:
        """The place, in the open elements, of the one that the tag closes."""
        if not tag.startswith("/"):
            return None
        names = [element.name for element in self._open]
        return next((at for at in reversed(range(len(names))) if names[at] == tag[1:]), None)

    def _enters(self, tag: str) -> bool:
        """The tag opens an element in the one that is open."""
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
            self._sink.end_value(raw)
        elif self._listed:
            self._sink.arguments("", raw)
        else:
            self._sink.element(self._open[0], raw)

    def _text(self, text: str) -> None:
        if self._streams:
            self._sink.value(text, text)
        else:
            if self._open and text:
                self._open[-1].text.append(text)
            self._note(text)

    def _note(self, raw: str) -> None:
        self._size += len(raw)
        self._sink.arguments("", raw)

    def _break(self, why: str, rest: str) -> Step:
        self._sink.give_up_call(why)
        return Step(RETRACT, rest)
