"""Calls that the client answers: of functions, with JSON, and of custom tools, with text."""

from antiphon.apis.custom_tools import InputReader, to_input
from antiphon.apis.responses.events import ArgumentsDelta, ArgumentsDone, InputDelta, InputDone
from antiphon.apis.responses.output.item import ItemPosition, OpenItem, frame
from antiphon.apis.responses.programs import calling
from antiphon.apis.responses.resource import CustomCallItem, FunctionCallItem
from antiphon.apis.responses.tools import Tool
from antiphon.core.events import CallStarted, Delta
from antiphon.core.items import FunctionCall, Item
from antiphon.core.plain_tokens import SequenceNumbers


class _OpenCall(OpenItem):
    """A call of a client's tool, which is shown as an item of the type `shown`."""

    shown: type[FunctionCallItem | CustomCallItem]

    def __init__(
        self, numbers: SequenceNumbers, position: ItemPosition, begun: CallStarted, tool: Tool
    ) -> None:
        super().__init__(numbers, position)
        self._call_id = begun.call_id
        self._tool = tool
        self._caller = calling(begun.caller)

    def item(self, status: str) -> FunctionCallItem | CustomCallItem:
        """The call."""
        tool = self._tool
        return self.shown(
            self.position.id,
            status,
            self._call_id,
            tool.name,
            self.text,
            tool.namespace,
            tool.unawaited,
            self._caller,
        )


class OpenFunctionCall(_OpenCall):
    """A call of a function."""

    shown = FunctionCallItem

    def __init__(
        self, numbers: SequenceNumbers, position: ItemPosition, begun: CallStarted, tool: Tool
    ) -> None:
        super().__init__(numbers, position, begun, tool)
        self.frame = frame(ArgumentsDelta, *position)

    def end(self, item: Item) -> list[bytes]:
        """All arguments."""
        assert isinstance(item, FunctionCall)
        self.text = item.arguments
        return [self.numbers.encode(ArgumentsDone, *self.position, self._tool.name, self.text)]


class OpenCustomCall(_OpenCall):
    """A call of a custom tool: the model writes JSON, the client gets the text in it."""

    shown = CustomCallItem

    def __init__(
        self, numbers: SequenceNumbers, position: ItemPosition, begun: CallStarted, tool: Tool
    ) -> None:
        super().__init__(numbers, position, begun, tool)
        self._frame = frame(InputDelta, *position)
        self._reader = InputReader()

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
