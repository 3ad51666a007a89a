"""Writes the output of a response: the events of a turn become items, and the events about them.

An item that a limit cut is incomplete, and the last. Only the event behind its
end tells whether it was cut, so what ends an item is written when that comes.
A call whose arguments the model broke, but was not cut in, is completed: the
client gets what the model wrote, and can tell it what is wrong.
"""

from typing import assert_never

import msgspec

from antiphon.apis.responses.events import ItemAdded, ItemDone
from antiphon.apis.responses.given import Object
from antiphon.apis.responses.kinds import item_id
from antiphon.apis.responses.output.calls import CustomCallOpen, FunctionCallOpen
from antiphon.apis.responses.output.open_item import (
    COMPLETED,
    IN_PROGRESS,
    INCOMPLETE,
    Numbers,
    OpenItem,
    Place,
    encode,
)
from antiphon.apis.responses.output.text import ScoredTextItem, TextItem
from antiphon.apis.responses.output.thoughts import Seal, ThoughtItem
from antiphon.apis.responses.shown import Shown
from antiphon.apis.responses.stored import StoredItem, pack
from antiphon.apis.responses.tools import CUSTOM, Toolbox
from antiphon.core.chunks import FinishReason, Token
from antiphon.core.events import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Event,
    Finished,
    Malformed,
    Markup,
    ReasoningDelta,
    ReasoningEnded,
    ReasoningStarted,
    TextDelta,
    TextEnded,
    TextStarted,
)

Spans = list[tuple[Token, ...]]


class Writer:
    """Takes events, gives payloads, keeps the items."""

    def __init__(self, response_id: str, tools: Toolbox, shown: Shown, seal: Seal | None) -> None:
        self.numbers = Numbers()
        self._response_id = response_id
        self._tools = tools
        self._shown = shown
        self._seal = seal
        self._items: list[StoredItem] = []
        self._spans: list[Spans] = []  # the tokens of each item
        self._span: Spans = []  # those since the last item was done
        self._open: OpenItem | None = None
        self._ended = False  # the open item is over; whether it was cut is not known yet

    @property
    def items(self) -> list[StoredItem]:
        """The items that are done, with their tokens."""
        return [
            msgspec.structs.replace(item, tokens=pack(spans))
            for item, spans in zip(self._items, self._spans, strict=True)
        ]

    def snapshot(self) -> list[msgspec.Raw]:
        """The output as it is now, the item that is being written included."""
        written = [msgspec.Raw(item.payload) for item in self._items]
        if self._open is not None:
            written.append(msgspec.Raw(encode(self._open.item(IN_PROGRESS))))
        return written

    def push(self, events: list[Event]) -> list[bytes]:
        """The payloads for the next events."""
        out: list[bytes] = []
        for event in events:
            kind = type(event)
            # The frequent ones first. Of a hidden item there is nothing to write.
            if kind is TextDelta or kind is ReasoningDelta or kind is ArgumentsDelta:
                self._span.append(event.tokens)
                if self._open is not None:
                    self._open.add(event, out)  # type: ignore[arg-type]
            else:
                self._push_rare(event, out)
        return out

    def add(self, type_: str, fields: Object) -> list[bytes]:
        """An item that no model wrote, whole."""
        out: list[bytes] = []
        if self._ended:
            self._close(COMPLETED, out)
        place = self._place(type_)
        payload = encode({"type": type_, "id": place.id, **fields})
        told = place.output_index, msgspec.Raw(payload)
        out += [self.numbers.encode(ItemAdded, *told), self.numbers.encode(ItemDone, *told)]
        self._keep(StoredItem(place.id, type_, payload))
        return out

    def abandon(self) -> list[bytes]:
        """There will be no more: the item that is being written stays as it is."""
        out: list[bytes] = []
        if self._open is not None:
            self._close(INCOMPLETE, out)
        return out

    def _push_rare(self, event: Event, out: list[bytes]) -> None:
        if self._ended:
            self._close(_status(event), out)
        self._span.append(event.tokens)
        match event:
            case TextStarted() | ReasoningStarted() | CallStarted():
                item = self._new(event)
                if item is not None:
                    self._begin(item, out)
            case CallEnded(complete=True):
                self._close(COMPLETED, out)
            case TextEnded() | ReasoningEnded() | CallEnded():
                self._ended = self._open is not None
            case Finished():
                self._finish(event, out)
            case Markup() | Malformed():
                pass
            case TextDelta() | ReasoningDelta() | ArgumentsDelta():
                raise AssertionError("frequent events are handled before")
            case _:
                assert_never(event)

    def _new(self, event: TextStarted | ReasoningStarted | CallStarted) -> OpenItem | None:
        """The item that begins, None if it is hidden."""
        match event:
            case TextStarted():
                make = ScoredTextItem if self._shown.logprobs else TextItem
                return make(self.numbers, self._place("message"), event.phase)
            case ReasoningStarted():
                form, place = self._shown.thoughts, self._place("reasoning")
                return None if form is None else ThoughtItem(self.numbers, place, form, self._seal)
        tool = self._tools.find(event.name)
        if tool.type == CUSTOM:
            return CustomCallOpen(self.numbers, self._place("custom_tool_call"), event.call_id, tool)
        return FunctionCallOpen(self.numbers, self._place("function_call"), event.call_id, tool)

    def _finish(self, event: Finished, out: list[bytes]) -> None:
        """A generation is over. An answer of nothing is an empty message: clients look for one."""
        if not self._items and event.reason is not FinishReason.ERROR:
            self._begin(TextItem(self.numbers, self._place("message"), None), out)
            self._close(_status(event), out)
        if self._items:
            self._spans[-1] += self._span
            self._span = []

    def _place(self, type_: str) -> Place:
        """The place of the next item."""
        index = len(self._items)
        return Place(item_id(type_, self._response_id, f"output.{index}"), index)

    def _begin(self, item: OpenItem, out: list[bytes]) -> None:
        self._open = item
        out += item.opening()

    def _close(self, status: str, out: list[bytes]) -> None:
        assert self._open is not None
        item = self._open.last(status)
        payload = encode(item)
        out += self._open.closing(payload)
        self._keep(StoredItem(item.id, item.__struct_config__.tag, payload))  # type: ignore[arg-type]
        self._open, self._ended = None, False

    def _keep(self, item: StoredItem) -> None:
        self._items.append(item)
        self._spans.append(self._span)
        self._span = []


def _status(behind: Event) -> str:
    """The status of an item with this event behind its end."""
    cut = isinstance(behind, Finished) and behind.reason is not FinishReason.STOP
    return INCOMPLETE if cut else COMPLETED
