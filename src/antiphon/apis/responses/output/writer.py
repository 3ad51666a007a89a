"""Writes the output of a response: the events of a turn become items, and the events about them.

An item that a limit cut is incomplete, and the last. Only the event behind its
end tells whether it was cut, so what ends an item is written when that comes.
A call whose arguments the model broke, but was not cut in, is completed: the
client gets what the model wrote, and can tell it what is wrong.

A call that the server answers stays open when the model has written it, until
it is answered. Others begin meanwhile, so items are done in another order than
they begin in; their place in the output is that of their beginning.
"""

from collections import deque
from functools import partial
from typing import assert_never

import msgspec

from antiphon.apis.hosted import CODE_INTERPRETER, SHELL, WEB_SEARCH
from antiphon.apis.responses.events import ItemAdded, ItemDone
from antiphon.apis.responses.given import Object
from antiphon.apis.responses.kinds import item_id
from antiphon.apis.responses.output.calls import CustomCallOpen, FunctionCallOpen
from antiphon.apis.responses.output.hosted import (
    CodeCallOpen,
    Gathering,
    HostedOpen,
    SourcedWebCallOpen,
    WebCallOpen,
)
from antiphon.apis.responses.output.open_item import (
    COMPLETED,
    IN_PROGRESS,
    INCOMPLETE,
    Numbers,
    OpenItem,
    Place,
    encode,
)
from antiphon.apis.responses.output.shell import ShellCallOpen, ShellOutputOpen
from antiphon.apis.responses.output.text import ScoredTextItem, TextItem
from antiphon.apis.responses.output.thoughts import Seal, ThoughtItem
from antiphon.apis.responses.shown import Shown
from antiphon.apis.responses.stored import StoredItem, pack
from antiphon.apis.responses.tools import CUSTOM, Tool, Toolbox
from antiphon.core.chunks import FinishReason, Token
from antiphon.core.events import (
    Answered,
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Event,
    Finished,
    Malformed,
    Markup,
    Paused,
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
        self._output: list[OpenItem | StoredItem] = []
        self._spans: list[Spans] = []  # the tokens of each item
        self._span: Spans = []  # those since the last item was written
        self._open: OpenItem | Gathering | None = None  # what the model is writing
        self._ended = False  # it is over; whether it was cut is not known yet
        self._hosted = False  # it is a call that the server answers
        self._unanswered: deque[OpenItem] = deque()  # such calls, when they are written

    @property
    def items(self) -> list[StoredItem]:
        """The items that are done, with their tokens."""
        return [
            msgspec.structs.replace(item, tokens=pack(spans))
            for item, spans in zip(self._output, self._spans, strict=True)
            if isinstance(item, StoredItem)
        ]

    def snapshot(self) -> list[msgspec.Raw]:
        """The output as it is now, items that are not done included."""
        return [
            msgspec.Raw(item.payload if isinstance(item, StoredItem) else encode(item.item(IN_PROGRESS)))
            for item in self._output
        ]

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
        self._output.append(StoredItem(place.id, type_, payload))
        self._spans.append([])
        self._take_span(place)
        return out

    def abandon(self) -> list[bytes]:
        """There will be no more: the items that are not done stay as they are."""
        out: list[bytes] = []
        if self._open is not None:
            self._close(INCOMPLETE, out)
        self._give_up(out)
        return out

    def _push_rare(self, event: Event, out: list[bytes]) -> None:
        if self._ended:
            self._close(_status(event), out)
        self._span.append(event.tokens)
        match event:
            case TextStarted() | ReasoningStarted() | CallStarted():
                self._start(event, out)
            case CallEnded(complete=True):
                self._close(COMPLETED, out)
            case TextEnded() | ReasoningEnded() | CallEnded():
                self._ended = self._open is not None
            case Paused():
                self._end_generation()
            case Answered():
                self._answer(event, out)
            case Finished():
                self._finish(event, out)
            case Markup() | Malformed():
                pass
            case TextDelta() | ReasoningDelta() | ArgumentsDelta():
                raise AssertionError("frequent events are handled before")
            case _:
                assert_never(event)

    def _start(self, event: TextStarted | ReasoningStarted | CallStarted, out: list[bytes]) -> None:
        item = self._new(event)
        self._hosted = isinstance(event, CallStarted) and event.hosted
        self._open = self._begin(item, out) if isinstance(item, OpenItem) else item

    def _new(self, event: TextStarted | ReasoningStarted | CallStarted) -> OpenItem | Gathering | None:
        """What the model begins to write, None if it is hidden."""
        match event:
            case TextStarted():
                make = ScoredTextItem if self._shown.logprobs else TextItem
                return make(self.numbers, self._place("message"), event.phase)
            case ReasoningStarted():
                form, place = self._shown.thoughts, self._place("reasoning")
                return None if form is None else ThoughtItem(self.numbers, place, form, self._seal)
        tool = self._tools.find(event.name)
        if event.hosted:
            return self._new_hosted(event.call_id, tool)
        if tool.type == CUSTOM:
            return CustomCallOpen(self.numbers, self._place("custom_tool_call"), event.call_id, tool)
        return FunctionCallOpen(self.numbers, self._place("function_call"), event.call_id, tool)

    def _new_hosted(self, call_id: str, tool: Tool) -> OpenItem | Gathering:
        """A call that the server answers."""
        place = self._place(_HOSTED[tool.type])
        if tool.type == CODE_INTERPRETER:
            return CodeCallOpen(self.numbers, place, self._response_id)
        if tool.type == SHELL:
            return Gathering(partial(ShellCallOpen, self.numbers, place, call_id, self._response_id))
        assert tool.function.hosted is not None
        make = SourcedWebCallOpen if self._shown.sources else WebCallOpen
        return Gathering(partial(make, self.numbers, place, tool.function.hosted.action))

    def _answer(self, event: Answered, out: list[bytes]) -> None:
        """The next call was answered. What came of a shell's is an item of its own."""
        item = self._unanswered.popleft()
        if isinstance(item, ShellCallOpen):
            place = self._place("shell_call_output")
            item = self._begin(ShellOutputOpen(self.numbers, place, item, event.outcome), out)
        elif isinstance(item, HostedOpen):
            item.outcome = event.outcome
        self._finish_item(item, COMPLETED, out)

    def _finish(self, event: Finished, out: list[bytes]) -> None:
        """The answer is over. One of nothing is an empty message: clients look for one."""
        if not self._output and event.reason is not FinishReason.ERROR:
            self._open = self._begin(TextItem(self.numbers, self._place("message"), None), out)
            self._close(_status(event), out)
        self._give_up(out)
        self._end_generation()

    def _end_generation(self) -> None:
        """What the model wrote behind its last item belongs to that."""
        if self._output:
            last = max((index for index, spans in enumerate(self._spans) if spans), default=-1)
            self._spans[last] += self._span
            self._span = []

    def _give_up(self, out: list[bytes]) -> None:
        """Nobody will answer the calls that were not answered."""
        for item in self._output:
            if isinstance(item, OpenItem):
                self._finish_item(item, INCOMPLETE, out)
        self._unanswered.clear()

    def _place(self, type_: str) -> Place:
        """The place of the next item."""
        index = len(self._output)
        return Place(item_id(type_, self._response_id, f"output.{index}"), index)

    def _begin(self, item: OpenItem, out: list[bytes]) -> OpenItem:
        self._output.append(item)
        self._spans.append([])
        out += item.opening()
        return item

    def _close(self, status: str, out: list[bytes]) -> None:
        """The model has written an item. It is done, if it does not wait for an answer."""
        assert self._open is not None
        item = self._begin(self._open.item(), out) if isinstance(self._open, Gathering) else self._open
        hosted, self._hosted = self._hosted, False
        self._open, self._ended = None, False
        self._take_span(item.place)
        if hosted and status == COMPLETED:
            self._unanswered.append(item)
        if isinstance(item, HostedOpen) and status == COMPLETED:
            out += item.asked()
        else:
            self._finish_item(item, status, out)

    def _finish_item(self, item: OpenItem, status: str, out: list[bytes]) -> None:
        last = item.last(status)
        payload = encode(last)
        out += item.closing(payload)
        type_ = last.__struct_config__.tag
        self._output[item.place.output_index] = StoredItem(item.place.id, type_, payload)  # type: ignore[arg-type]

    def _take_span(self, place: Place) -> None:
        """The tokens since the last item was written are those of the item there."""
        self._spans[place.output_index], self._span = self._span, []


_HOSTED = {
    CODE_INTERPRETER: "code_interpreter_call",
    WEB_SEARCH: "web_search_call",
    SHELL: "shell_call",
}
"""Type of a tool that the server runs → that of the items that are calls of it."""


def _status(behind: Event) -> str:
    """The status of an item with this event behind its end."""
    cut = isinstance(behind, Finished) and behind.reason is not FinishReason.STOP
    return INCOMPLETE if cut else COMPLETED
