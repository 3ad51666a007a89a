"""The base of all presenters: a presenter shows one call of a server tool, and reads such calls back.

A presenter is an open item with further steps: when the model has written the call (`end`), the server runs
it (`run`), and its result is received before it is closed. Other items may begin and end in between. A limit
may end it at any time. The output of a program is shown while it runs (`add_output`), and the rest with the
result.
"""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

from msgspec import Struct

from antiphon.apis.request_object import RequestObject
from antiphon.apis.responses.events import StageEvent
from antiphon.apis.responses.output.item import ItemPosition, OpenItem
from antiphon.apis.responses.stored import StoredItem
from antiphon.apis.responses.tools import NO_TOOLS, Toolbox
from antiphon.core import items
from antiphon.core.items import FunctionCall, FunctionOutput, TextPart
from antiphon.core.plain_tokens import SequenceNumbers
from antiphon.core.tool_result import ToolResult
from antiphon.core.turn import Hosted

FAILED = "failed"


class PresentedCall(Struct, frozen=True):
    """A call, as its presenter gets it. `include` has the request's values of `include`.

    `approved`: its id is that of the request that the client has approved. `name` is the model's of the
    function, `tools` are all that it is offered. A program with the id `caller` makes the call. `clock` is
    the time of programs, in seconds.
    """

    id: str
    hosted: Hosted
    response_id: str
    include: frozenset[str] = frozenset()
    approved: bool = False
    name: str = ""
    tools: Toolbox = NO_TOOLS
    caller: str = ""
    clock: int = 0


class Presenter(OpenItem):
    """Shows a call. By default nothing is shown of it before its arguments are complete.

    `type` is that of its items. `result_type` is set if the result of a call has an item of its own,
    `output`; then the call's item is closed when the model has written it. `includes` are values of
    `include` for its items. Item types outside of all specifications are allowed: clients skip unknown ones.
    """

    type: ClassVar[str]
    result_type: ClassVar[str | None] = None
    includes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, numbers: SequenceNumbers, position: ItemPosition, call: PresentedCall) -> None:
        super().__init__(numbers, position)
        self.call = call
        self.result: ToolResult | None = None
        """The result of the call, when it is known."""
        self.output: OpenItem | None = None
        """The item of the result, after it has begun."""

    @classmethod
    def item_types(cls) -> tuple[str, ...]:
        """The types of items that it shows calls and results as, and reads back."""
        return (cls.type,) if cls.result_type is None else (cls.type, cls.result_type)

    @classmethod
    def read(cls, item: RequestObject, tools: Toolbox) -> Iterator[items.Item]:
        """The items that a model with these tools is shown for an item of a conversation: none by default.

        Raises RequestError, naming the item.
        """
        return iter(())

    def start(self) -> list[bytes]:
        """The model begins to write the call."""
        return []

    def end(self, item: items.Item) -> list[bytes]:
        """The model has written the call, or as much of it as there will be."""
        assert isinstance(item, FunctionCall)
        self.text = item.arguments
        return [self.added()]

    def run(self) -> list[bytes]:
        """The call is whole, and the server runs it."""
        return []

    def add_output(self, stdout: str, stderr: str) -> list[bytes]:
        """The program that the call runs has printed this."""
        return []

    def completed(self) -> list[bytes]:
        """The call was run, and `result` is its result."""
        return []

    def result_item(self, position: ItemPosition) -> OpenItem:
        """The item that shows the result, if there is one.

        It is started with the first output of the program, or with the result, and closed with the result.
        """
        raise NotImplementedError

    def close(self, status: str) -> tuple[StoredItem, list[bytes]]:
        """Close the item in its current state."""
        before = [] if self.result is None else self.completed()
        stored, done = super().close(status)
        return stored, before + done

    def stage(self, name: str) -> bytes:
        """The event that the item has reached a stage, such as `in_progress`."""
        return self.numbers.encode(partial(StageEvent, f"response.{self.type}.{name}"), *self.position)

    @property
    def failed(self) -> bool:
        """The call was run, and failed."""
        return self.result is not None and self.result.failed

    def status_of(self, status: str) -> str:
        """The status of the item: a call that was run may have failed."""
        return FAILED if self.failed else status


def output_item(call_id: str, text: str) -> FunctionOutput:
    """The item with the text of the result, for the model."""
    return FunctionOutput(call_id, (TextPart(text),))


def rest(streamed: str, whole: str) -> str:
    """The rest of a text whose beginning was streamed.

    If the text does not begin so, because another server has run the call again, the rest is the whole text,
    on a new line.
    """
    if whole.startswith(streamed):
        return whole[len(streamed) :]
    return whole if streamed.endswith("\n") or not whole else f"\n{whole}"
