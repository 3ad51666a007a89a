"""Calls that the client answers: of functions, with JSON, and of custom tools, with text."""

from antiphon.apis.custom_tools import InputReader, to_input
from antiphon.apis.responses.events import ArgumentsDelta, ArgumentsDone, InputDelta, InputDone
from antiphon.apis.responses.output.item import ItemPosition, OpenItem, frame
from antiphon.apis.responses.programs import calling
from antiphon.apis.responses.resource import CustomCallItem, FunctionCallItem
from antiphon.apis.responses.tools import Tool
from antiphon.core.events import Delta
from antiphon.core.items import FunctionCall, Item
from antiphon.core.plain_tokens import SequenceNumbers


class OpenFunctionCall(OpenItem):
    """A call of a function."""

    def __init__(
        self, numbers: SequenceNumbers, position: ItemPosition, call_id: str, tool: Tool, caller: str = ""
    ) -> None:
        super().__init__(numbers, position)
        self.frame = frame(ArgumentsDelta, *position)
        self._call_id = call_id
        self._tool = tool
        self._caller = calling(caller)

    def item(self, status: str) -> FunctionCallItem:
        """The call."""
        tool = self._tool
        return FunctionCallItem(
            self.position.id,
            status,
            self._call_id,
            tool.name,
            self.text,
            tool.namespace,
            tool.unawaited,
            self._caller,
        )

    def end(self, item: Item) -> list[bytes]:
        """All arguments."""
        assert isinstance(item, FunctionCall)
        self.text = item.arguments
        return [self.numbers.encode(ArgumentsDone, *self.position, self._tool.name, self.text)]


class OpenCustomCall(OpenItem):
    """A call of a custom tool: the model writes JSON, the client gets the text in it."""

    def __init__(
        self, numbers: SequenceNumbers, position: ItemPosition, call_id: str, tool: Tool, caller: str = ""
    ) -> None:
        super().__init__(numbers, position)
        self._frame = frame(InputDelta, *position)
        self._call_id = call_id
        self._tool = tool
        self._caller = calling(caller)
        self._reader = InputReader()

    def item(self, status: str) -> CustomCallItem:
        """The call."""
        tool = self._tool
        return CustomCallItem(
            self.position.id,
            status,
            self._call_id,
            tool.name,
            self.text,
            tool.namespace,
            tool.unawaited,
            self._caller,
        )

    def add(self, event: Delta, out: list[bytes]) -> None:
        """Append the event for the new input in these arguments, if there is any."""
        text = self._reader.read(event.text)
        if text:
            out.append(self.numbers.delta(self._frame, text))

    def end(self, item: Item) -> list[bytes]:
        """All input."""
        assert isinstance(item, FunctionCall)
        self.text = to_input(item.arguments)
        return [self.numbers.encode(InputDone, *self.position, self.text)]
