"""A turn's events → the wire events of a response, and the response object.

The response is built from its own stream: the items in it are the bytes of its `response.output_item.done`
events. Nothing here uses a clock before the end, or an RNG, so events that are pushed again, in the same
order and any batches, give the same bytes.

An item that a limit cut is incomplete, and the last. Only the event after its end shows whether it was cut,
so its status is written then. A malformed call of a client's function is incomplete, too.

A call of a server tool stays open until its result is received. Others begin in between, so items are done
in another order than they begin; their index in the output follows their beginning.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, assert_never

import msgspec
from msgspec import UNSET, Raw, UnsetType

from antiphon.apis.citations import Citations
from antiphon.apis.ending import notes_at_end
from antiphon.apis.moderation import ResponseModeration, response_moderation
from antiphon.apis.responses import events as wire
from antiphon.apis.responses.accept import LOGPROBS, SEALED_REASONING, AcceptedResponse
from antiphon.apis.responses.approvals import REQUEST, OpenApproval, is_approved
from antiphon.apis.responses.client_tools import CLIENT_TOOLS, OpenClientCall
from antiphon.apis.responses.diagnostics import diagnostics_of
from antiphon.apis.responses.errors import ErrorEvent, error_fields, response_error_code
from antiphon.apis.responses.kinds import item_id
from antiphon.apis.responses.output.calls import OpenCustomCall, OpenFunctionCall
from antiphon.apis.responses.output.item import (
    COMPLETED,
    INCOMPLETE,
    ItemPosition,
    OpenItem,
    encode,
)
from antiphon.apis.responses.output.message import OpenMessage, OpenScoredMessage
from antiphon.apis.responses.output.reasoning import OpenReasoning, Seal
from antiphon.apis.responses.presenters.generic import GenericPresenter
from antiphon.apis.responses.presenters.presenter import PresentedCall, Presenter
from antiphon.apis.responses.resource import (
    CANCELLED_DETAILS,
    INCOMPLETE_REASONS,
    IncompleteDetails,
    ListedToolEntry,
    ListToolsItem,
    RawMessage,
    RawMessages,
    Response,
    ResponseError,
    usage_of,
)
from antiphon.apis.responses.stored import StoredItem, pack
from antiphon.apis.responses.tools import CUSTOM, Tool
from antiphon.core.accumulator import DELTAS
from antiphon.core.cache_trace import CacheResult
from antiphon.core.chunks import FinishReason, Token
from antiphon.core.errors import AntiphonError
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
    ToolCallsPending,
    ToolPrinted,
    ToolResultReceived,
    Usage,
)
from antiphon.core.hosts import Listing
from antiphon.core.items import Message, Role, TextPart
from antiphon.core.moderation import ModerationResult
from antiphon.core.plain_tokens import NumberedDeltas, NumberedFrame, SequenceNumbers
from antiphon.core.tool_result import FoundFunctions
from antiphon.core.turn import TOOL_SEARCH, UNKNOWN, unknown_function


class ResponseProjection:
    """Projects the events of one answer; each method returns the wire events for the stream.

    First comes `queue`, for a response that waits for a worker, or `begin`; then `push`; then one of
    `finish`, `fail` and `cancel`, before which the caller has closed open items. `created_at` is in seconds
    since the epoch, as `clock` returns them. `seal` encrypts reasoning for the client, if it requested that.
    A response that was `queued` begins as one.
    """

    def __init__(
        self,
        accepted: AcceptedResponse,
        created_at: int,
        clock: Callable[[], float],
        seal: Seal | None = None,
        *,
        queued: bool = False,
    ) -> None:
        self._accepted = accepted
        self._settings = msgspec.structs.asdict(accepted.settings)
        self._created_at = created_at
        self._clock = clock
        self._seal = seal if SEALED_REASONING in accepted.include else None
        self._queued = queued
        self.diagnose: Callable[[Sequence[Any]], CacheResult | None] | None = None
        """Compares the prompt with that of another response."""
        self._diagnosis: CacheResult | None = None
        self._numbers = SequenceNumbers()
        self._compaction: Mapping[str, str] | None = None
        self._prompt_tokens = 0
        self._prompts: Sequence[Any] = ()
        self._usage: Usage | None = None  # of ended generations
        self._end: Finished | None = None
        self._ends_at: int | None = None  # number of the first of its last wire events
        self._completed_at: int | None = None
        self._error: ResponseError | None = None
        self._moderation: ResponseModeration | UnsetType = UNSET
        self._body: bytes | None = None  # once it has ended
        # One entry for each item in the output
        self._output: list[StoredItem | None] = []  # None while it is open
        self._tokens: list[list[tuple[Token, ...]]] = []  # that it was written with
        # The current item of the model
        self._open: OpenItem | None = None  # None also for hidden ones
        self.frame: NumberedFrame | None = None
        """The frame of the deltas of the open item, if it has one."""
        self._ended = False  # it is complete; whether it was cut is not known yet
        self._written: list[tuple[Token, ...]] = []  # the tokens since the last item was whole
        self._running: list[Presenter] = []  # calls without a result
        self._citations = Citations()
        self._found = set[str]()  # functions that searches of this answer have found
        self._before = 0  # items that no model wrote, before the answer
        self.status = ""
        """The status of the response, empty before the first."""

    @property
    def items(self) -> list[StoredItem]:
        """The items that are finished, with their tokens, for the store."""
        return [
            msgspec.structs.replace(item, tokens=pack(spans))
            for item, spans in zip(self._output, self._tokens, strict=True)
            if item is not None
        ]

    def body(self) -> bytes:
        """The response object in its current state, with the finished items."""
        return self._body or encode(self._response())

    # Before the first event

    def set_prompts(self, prompts: Sequence[Any]) -> None:
        """These are the prompts that the answer begins with, each with its `text` and `ids`."""
        self._prompt_tokens += sum(len(prompt.ids) for prompt in prompts)
        self._prompts = prompts
        if self.diagnose is not None:
            self._diagnosis = self.diagnose(prompts)

    def moderated(self, result: ModerationResult) -> None:
        """What a guard says of the request and the answer."""
        self._moderation = response_moderation(result)

    def compacted(self, fields: Mapping[str, str], prompt_tokens: int, usage: Usage) -> None:
        """The conversation was compacted before the answer: the fields of the item, and its usage."""
        self._compaction = fields
        self._prompt_tokens += prompt_tokens
        self._count(usage)

    def queue(self) -> list[bytes]:
        """It waits for a worker."""
        self.status = "queued"
        return [self._response_event(wire.Created), self._response_event(wire.Queued)]

    def begin(self) -> list[bytes]:
        """The model gets to work."""
        lines = self.queue() if self._queued and not self.status else []
        created, self.status = bool(self.status), "in_progress"
        response = Raw(encode(self._response()))
        events = (wire.InProgress,) if created else (wire.Created, wire.InProgress)
        lines += [self._numbers.encode(event, response) for event in events]
        if self._compaction is not None:
            lines += self._add("compaction", self._compaction)
            for type_, fields in self._accepted.carried:
                lines += self._add(type_, fields)
        for listing in self._accepted.tools.listings:
            lines += self._list(listing)
        self._before = len(self._output)
        return lines

    def in_progress(self) -> bytes:
        """An event for a client that waits: the response is still in progress.

        It has the number of the last event, for it is not stored: events after it are those after that one.
        """
        return encode(wire.InProgress(self.last_number, Raw(encode(self._response()))))

    @property
    def last_number(self) -> int:
        """The number of the last event, for events that are not stored; 0 before the first."""
        return max(0, self._numbers.next - 1)

    # Events

    def push(self, choice: int, events: Sequence[Event]) -> list[bytes]:
        """The next events of the answer: a response has one choice."""
        out: list[bytes] = []
        for event in events:
            # Frequent events first.
            if type(event) in DELTAS:
                self._written.append(event.tokens)
                frame = self.frame
                if frame is not None:
                    text: str = event.text  # type: ignore[union-attr]
                    if text:
                        out.append(self._numbers.delta(frame, text))
                elif self._open is not None:
                    self._open.add(event, out)  # type: ignore[arg-type]
            else:
                self._push_rare(event, out)
        return out

    def delta_encoder(self, choice: int, delta: type[Event]) -> NumberedDeltas | None:
        return None if self.frame is None else NumberedDeltas(self._numbers, self.frame, self._written)

    def recording_encoder(self, texts: list[str]) -> NumberedDeltas | None:
        """The same; the text of each delta is also appended to `texts`."""
        return None if self.frame is None else NumberedDeltas(self._numbers, self.frame, self._written, texts)

    def _push_rare(self, event: Event, out: list[bytes]) -> None:
        if self._ended:
            self._close(_status(event), out)
        self._written.append(event.tokens)
        match event:
            case TextStarted() | ReasoningStarted() | CallStarted():
                self._begin(event, out)
            case TextEnded() | ReasoningEnded() | CallEnded():
                self._end_item(event, out)
            case ToolCallsPending():
                self._end_generation()
            case ToolPrinted():
                self._print(event, out)
            case ToolResultReceived():
                self._receive(event, out)
            case Finished():
                self._end_answer(event, out)
            case Markup() | Malformed():
                pass
            case TextDelta() | ReasoningDelta() | ArgumentsDelta():
                raise AssertionError("frequent events are handled before")
            case _:
                assert_never(event)

    def _begin(self, event: TextStarted | ReasoningStarted | CallStarted, out: list[bytes]) -> None:
        """The model begins an item, or a program of an earlier response goes on."""
        if isinstance(event, CallStarted) and event.resumed:
            self._resume(event)
        else:
            self._start(self._new(event), out)

    def _new(self, event: TextStarted | ReasoningStarted | CallStarted) -> OpenItem | None:
        """The item that the model begins, None if it is hidden."""
        accepted, numbers = self._accepted, self._numbers
        match event:
            case TextStarted():
                make = OpenScoredMessage if LOGPROBS in accepted.include else OpenMessage
                return make(numbers, self._position("message"), event.phase, self._citations.find)
            case ReasoningStarted():
                form = accepted.reasoning
                return form and OpenReasoning(numbers, self._position("reasoning"), form, self._seal)
        return self._new_call(event)

    def _new_call(self, event: CallStarted) -> OpenItem:
        if event.caller:
            return self._new_call_of_program(event)
        accepted, numbers = self._accepted, self._numbers
        tool = accepted.tools.find(event.name)
        hosted = tool.function.hosted if event.name in self._found else tool.function.answered_by
        if event.hosted and hosted is None:  # nobody offers it
            tool = Tool(UNKNOWN, event.name, UNSET, unknown_function(event.name))
            hosted = tool.function.hosted
        if hosted is not None and not event.hosted:
            return OpenApproval(numbers, self._position(REQUEST), hosted, self._created_at, accepted.signer)
        if hosted is not None:
            searches = hosted.type == TOOL_SEARCH
            presenter = accepted.presenters.of(TOOL_SEARCH if searches else tool.type)
            approved = is_approved(event.call_id)
            call = PresentedCall(
                event.call_id,
                hosted,
                accepted.id,
                accepted.include,
                approved,
                event.name,
                accepted.tools,
                clock=self._created_at,
            )
            return presenter(numbers, self._position(presenter.type), call)
        own = CLIENT_TOOLS.get(tool.type)
        if own is not None:
            return OpenClientCall(numbers, self._position(own.type), event.call_id, own)
        return self._new_call_of_client(event, tool)

    def _new_call_of_program(self, event: CallStarted) -> OpenItem:
        """A call that a program makes: with its whole result, for the program to go on from the items."""
        accepted, numbers = self._accepted, self._numbers
        tool = accepted.tools.find_in_programs(event.name)
        hosted = tool.function.hosted
        if hosted is not None:
            call = PresentedCall(event.call_id, hosted, accepted.id, name=event.name, caller=event.caller)
            return GenericPresenter(numbers, self._position(GenericPresenter.type), call)
        return self._new_call_of_client(event, tool)

    def _new_call_of_client(self, event: CallStarted, tool: Tool) -> OpenItem:
        """A call that the client answers, of the model or of its program."""
        if tool.type == CUSTOM:
            return OpenCustomCall(self._numbers, self._position("custom_tool_call"), event, tool)
        return OpenFunctionCall(self._numbers, self._position("function_call"), event, tool)

    def _resume(self, event: CallStarted) -> None:
        """A program of an earlier response goes on: its item is there, and its output follows."""
        hosted = self._accepted.tools.find(event.name).function.hosted
        assert hosted is not None
        call = PresentedCall(event.call_id, hosted, self._accepted.id)
        presenter = self._accepted.presenters.of(hosted.type)
        self._running.append(presenter(self._numbers, ItemPosition("", -1), call))

    def _start(self, item: OpenItem | None, out: list[bytes]) -> None:
        self._open = item
        if item is not None:
            self.frame = item.frame
            self._output.append(None)
            self._tokens.append([])
            out += item.start()

    def _end_item(self, event: TextEnded | ReasoningEnded | CallEnded, out: list[bytes]) -> None:
        """The model has written an item."""
        if self._open is None:
            return
        assert event.item is not None
        self.frame = None
        out += self._open.end(event.item)
        self._ended = True
        if isinstance(event, CallEnded) and (event.complete or not event.item.hosted):
            self._close(COMPLETED if event.complete else INCOMPLETE, out)

    def _close(self, status: str, out: list[bytes]) -> None:
        """The status of the model's item is known. It is finished, unless it waits for a result."""
        item = self._open
        assert item is not None
        self._open, self._ended = None, False
        self._tokens[item.position.output_index], self._written = self._written, []
        if isinstance(item, Presenter) and status == COMPLETED:
            self._running.append(item)
            out += item.run()
            if item.result_type is None:
                return
        self._finish_item(item, status, out)

    def _print(self, event: ToolPrinted, out: list[bytes]) -> None:
        """The program of a call has printed something."""
        call = self._call(event.call_id)
        if call.result_type is not None:
            self._start_result(call, call.result_type, out)
        out += call.add_output(event.stdout, event.stderr)

    def _call(self, call_id: str) -> Presenter:
        """The call of this id, which has no result yet."""
        return next(call for call in self._running if call.call.id == call_id)

    def _receive(self, event: ToolResultReceived, out: list[bytes]) -> None:
        """A call was run. Its result may be an item of its own."""
        call = self._call(event.call_id)
        self._running.remove(call)
        call.result = event.result
        self._citations.add(event.result)
        if isinstance(details := event.result.details, FoundFunctions):
            self._found.update(details.names)
        if call.result_type is not None:
            self._start_result(call, call.result_type, out)
        self._finish_call(call, COMPLETED, out)

    def _finish_call(self, call: Presenter, status: str, out: list[bytes]) -> None:
        """Finish the item of a call that was run, or that of its result, if it has begun."""
        item = call if call.result_type is None else call.output
        call.output = None  # it refers to the call: no cycle is left for the garbage collector
        if item is not None:
            self._finish_item(item, status, out)

    def _start_result(self, call: Presenter, type_: str, out: list[bytes]) -> None:
        """Start the item of the result of a call, if it has not begun."""
        if call.output is None:
            call.output = call.result_item(self._position(type_))
            self._output.append(None)
            self._tokens.append([])
            out += call.output.start()

    def _finish_item(self, item: OpenItem, status: str, out: list[bytes]) -> None:
        self._output[item.position.output_index], lines = item.close(status)
        out += lines

    def _end_generation(self) -> None:
        """Text after the last item of a generation belongs to that."""
        if self._output:
            last = max((index for index, spans in enumerate(self._tokens) if spans), default=-1)
            self._tokens[last] += self._written
            self._written = []

    def _end_answer(self, event: Finished, out: list[bytes]) -> None:
        """An empty answer gets an empty message: clients expect one. Open calls get no results any more."""
        self._end = event
        self._count(event.usage)
        answers = event.reason not in _MAY_BE_EMPTY and not self._accepted.turn.warms
        if answers and len(self._output) == self._before:
            empty = OpenMessage(self._numbers, self._position("message"), None)
            self._start(empty, out)
            out += empty.end(Message(Role.ASSISTANT, (TextPart(""),)))
            self._close(_status(event), out)
        for call in self._running:
            self._finish_call(call, INCOMPLETE, out)
        self._running.clear()
        self._end_generation()

    def _position(self, type_: str) -> ItemPosition:
        """The position of the next item."""
        index = len(self._output)
        return ItemPosition(item_id(type_, self._accepted.id, f"output.{index}"), index)

    def _add(self, type_: str, fields: Mapping[str, Any]) -> list[bytes]:
        """An item that no model wrote, whole."""
        id_, index = self._position(type_)
        payload = encode({"type": type_, "id": id_, **fields})
        self._output.append(StoredItem(id_, type_, payload))
        self._tokens.append([])
        encode_event, item = self._numbers.encode, Raw(payload)
        return [encode_event(wire.ItemAdded, index, item), encode_event(wire.ItemDone, index, item)]

    def _list(self, listing: Listing) -> list[bytes]:
        """The item of a listing, and its events: its server was asked before the answer began."""
        type_, encode_event = "mcp_list_tools", self._numbers.encode
        position = self._position(type_)
        tools = tuple(map(ListedToolEntry.of, listing.tools))
        payload = encode(ListToolsItem(position.id, listing.label, tools, listing.error or UNSET))
        self._output.append(StoredItem(position.id, type_, payload))
        self._tokens.append([])
        stages = ("in_progress", "failed" if listing.error else "completed")
        return [
            encode_event(wire.ItemAdded, position.output_index, ListToolsItem(position.id, listing.label)),
            *(
                encode_event(partial(wire.StageEvent, f"response.{type_}.{stage}"), *position)
                for stage in stages
            ),
            encode_event(wire.ItemDone, position.output_index, Raw(payload)),
        ]

    # After the last event

    def finish(self) -> list[bytes]:
        """The answer ended by itself."""
        self._begin_end()
        if self._end is not None and self._end.reason in INCOMPLETE_REASONS:
            return [self._terminal_event("incomplete", wire.Incomplete)]
        self._completed_at = int(self._clock())
        return [self._terminal_event("completed", wire.Completed)]

    def fail(self, error: AntiphonError) -> list[bytes]:
        """It cannot be finished."""
        self._begin_end()
        self._error = ResponseError(response_error_code(error), error.message)
        event = self._numbers.encode(ErrorEvent, *error_fields(error))
        return [event, self._terminal_event("failed", wire.Failed)]

    def cancel(self) -> list[bytes]:
        """The answer was cancelled.

        Neither specification has an event for it, and clients stop at unknown ones; of those they know,
        `response.incomplete` fits. The status is `cancelled`.
        """
        self._begin_end()
        if self._usage is None:  # nothing was generated
            self._count(Usage())
        return [self._terminal_event("cancelled", wire.Incomplete)]

    def _begin_end(self) -> None:
        """An answer has one end. If the first could not be stored, another one reuses its numbers."""
        if self._ends_at is None:
            self._ends_at = self._numbers.next
        self._numbers.next = self._ends_at
        self._completed_at = None

    def _terminal_event(self, status: str, event: wire.Event) -> bytes:
        self.status = status
        self._body = encode(self._response())
        return self._numbers.encode(event, Raw(self._body))

    def _response_event(self, event: wire.Event) -> bytes:
        return self._numbers.encode(event, self._response())

    def _response(self) -> Response:
        raw: dict[str, Any] = {}
        if self._accepted.messages:
            raw["input_messages"] = self._raw(
                [RawMessage(prompt.text, prompt.ids) for prompt in self._prompts]
            )
            raw["output_messages"] = self._raw([self._raw_output()])
        return Response(
            **self._settings,
            id=self._accepted.id,
            created_at=self._created_at,
            status=self.status,
            completed_at=self._completed_at,
            error=self._error,
            incomplete_details=self._incomplete_details(),
            output=[Raw(item.payload) for item in self._output if item is not None],
            usage=None if self._usage is None else usage_of(self._prompt_tokens, self._usage),
            prompt_cache_diagnostics=diagnostics_of(self._diagnosis, self._accepted.settings),
            **raw,
            unmet=(self._end and self._end.unmet) or UNSET,
            generations=(self._end and self._end.generations) or UNSET,
            notes=(*self._accepted.notes, *notes_at_end(self._end, "max_output_tokens")) or UNSET,
            moderation=self._moderation,
        )

    def _incomplete_details(self) -> IncompleteDetails | None:
        """Why the response is not whole."""
        if self.status == "incomplete" and self._end is not None:
            return INCOMPLETE_REASONS[self._end.reason]
        return CANCELLED_DETAILS if self.status == "cancelled" else None

    def _raw(self, texts: list[RawMessage]) -> RawMessages:
        """The texts, or their messages if the model's format has any."""
        read = self._accepted.read_messages
        return texts if read is None else [message for text in texts for message in read(text.message)]

    def _raw_output(self) -> RawMessage:
        """All that the model has written."""
        spans = (*(span for spans in self._tokens for span in spans), *self._written)
        tokens = [token for span in spans for token in span]
        return RawMessage("".join(token.text for token in tokens), [token.id for token in tokens])

    def _count(self, usage: Usage) -> None:
        self._usage = usage if self._usage is None else self._usage + usage


_MAY_BE_EMPTY = frozenset({FinishReason.ERROR, FinishReason.STEERED})
"""The ends of answers that get no empty message."""


def _status(after: Event) -> str:
    """The status of an item with this event after its end."""
    cut = isinstance(after, Finished) and after.reason is not FinishReason.STOP
    return INCOMPLETE if cut else COMPLETED
