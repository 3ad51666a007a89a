"""Calls: of functions, with JSON, and of custom tools, with text as it is."""

from antiphon.apis.custom_tools import InputReader
from antiphon.apis.responses.events import ArgumentsDelta, ArgumentsDone, InputDelta, InputDone
from antiphon.apis.responses.output.open_item import Numbers, OpenItem, Place, frame
from antiphon.apis.responses.resource import CustomCallItem, FunctionCallItem
from antiphon.apis.responses.tools import Tool
from antiphon.core.events import Delta


class FunctionCallOpen(OpenItem):
    """A call of a function."""

    def __init__(self, numbers: Numbers, place: Place, call_id: str, tool: Tool) -> None:
        super().__init__(numbers, place, frame(ArgumentsDelta, *place))
        self._call_id = call_id
        self._tool = tool

    def item(self, status: str) -> FunctionCallItem:
        """The call, with its arguments as far as they are known."""
        tool = self._tool
        return FunctionCallItem(self.place.id, status, self._call_id, tool.name, self.text, tool.namespace)

    def done(self) -> list[bytes]:
        """All arguments."""
        return [self.numbers.encode(ArgumentsDone, *self.place, self._tool.name, self.text)]


class CustomCallOpen(OpenItem):
    """A call of a custom tool: the model writes JSON, the client gets the text in it."""

    def __init__(self, numbers: Numbers, place: Place, call_id: str, tool: Tool) -> None:
        super().__init__(numbers, place, frame(InputDelta, *place))
        self._call_id = call_id
        self._tool = tool
        self._reader = InputReader()

    def item(self, status: str) -> CustomCallItem:
        """The call, with its input as far as it is known."""
        tool = self._tool
        return CustomCallItem(self.place.id, status, self._call_id, tool.name, self.text, tool.namespace)

    def add(self, event: Delta, out: list[bytes]) -> None:
        """Append what more arguments add to the input, if anything."""
        text = self._reader.read(event.text)
        if text:
            self.write(text, out)

    def done(self) -> list[bytes]:
        """All input."""
        return [self.numbers.encode(InputDone, *self.place, self.text)]
