"""What every presenter is: it shows one call of a tool that the server runs, and reads such calls back.

A presenter is an open item with more to its life: when the model has written the call
(`end`), the server runs it (`run`), and its result is received before it is closed.
Other items may begin and end meanwhile. A limit may cut it anywhere.

What a program prints is shown while it runs (`printed`), and the rest of it with the result.
"""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

from msgspec import Struct

from antiphon.apis.request_object import RequestObject
from antiphon.apis.responses.events import StageEvent
from antiphon.apis.responses.output.item import ItemPosition, OpenItem, SequenceNumbers
from antiphon.apis.responses.stored import StoredItem
from antiphon.apis.responses.tools import Toolbox
from antiphon.core import items
from antiphon.core.items import FunctionCall, FunctionOutput, TextPart
from antiphon.core.tool_result import ToolResult
from antiphon.core.turn import Hosted

FAILED = "failed"


class PresentedCall(Struct, frozen=True):
    """A call, as its presenter needs to know it. `include` is what the request wants included.

    One that the client has `approved` has the id of the request for it.
    """

    id: str
    hosted: Hosted
    response_id: str
    include: frozenset[str] = frozenset()
    approved: bool = False


class Presenter(OpenItem):
    """Shows a call. By default nothing is shown of it before its arguments are whole.

    `type` is that of its items. `result_type` is there if the result of a call is shown as an item of
    its own, `output`; the call's is closed then when the model has written it. An item type that is in no
    specification is fine: clients skip what they do not know.
    """

    type: ClassVar[str]
    result_type: ClassVar[str | None] = None

    def __init__(self, numbers: SequenceNumbers, position: ItemPosition, call: PresentedCall) -> None:
        super().__init__(numbers, position)
        self.call = call
        self.result: ToolResult | None = None
        """The result of the call, once it is known."""
        self.output: OpenItem | None = None
        """The item of the result, once it has begun."""

    @classmethod
    def item_types(cls) -> tuple[str, ...]:
        """The types of items that it shows calls and results as, and reads back."""
        return (cls.type,) if cls.result_type is None else (cls.type, cls.result_type)

    @classmethod
    def read(cls, item: RequestObject, tools: Toolbox) -> Iterator[items.Item]:
        """What a model with these tools is shown of an item in a conversation: nothing, unless overridden.

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

    def printed(self, stdout: str, stderr: str) -> list[bytes]:
        """The program that the call runs has printed this."""
        return []

    def completed(self) -> list[bytes]:
        """The call was run, and `result` is its result."""
        return []

    def result_item(self, position: ItemPosition) -> OpenItem:
        """The item that shows the result, if there is one.

        It is started when the program has printed something, or with the result, and closed with that.
        """
        raise NotImplementedError

    def close(self, status: str) -> tuple[StoredItem, list[bytes]]:
        """It stays as it is now."""
        before = [] if self.result is None else self.completed()
        stored, done = super().close(status)
        return stored, before + done

    def stage(self, name: str) -> bytes:
        """The event that the item has come to a stage, such as `in_progress`."""
        return self.numbers.encode(partial(StageEvent, f"response.{self.type}.{name}"), *self.position)

    @property
    def failed(self) -> bool:
        """The call was run, and failed."""
        return self.result is not None and self.result.failed

    def status_of(self, status: str) -> str:
        """The status of the item: one whose call was run may have failed."""
        return FAILED if self.failed else status


def output_item(call_id: str, text: str) -> FunctionOutput:
    """What the model is shown of the result of a call."""
    return FunctionOutput(call_id, (TextPart(text),))


def rest(streamed: str, whole: str) -> str:
    """What is left of a text whose beginning was streamed.

    If the text does not begin so, because the server that streamed it was lost, all of it is left, on a
    line of its own.
    """
    if whole.startswith(streamed):
        return whole[len(streamed) :]
    return whole if streamed.endswith("\n") or not whole else f"\n{whole}"
