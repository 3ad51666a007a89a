"""The events of an answer → the body of the message. Streams and messages share the blocks."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from antiphon.apis.cut_objects import object_so_far
from antiphon.apis.ending import notes_at_end
from antiphon.apis.envelope import Envelope
from antiphon.apis.messages.citations import CitationFinder
from antiphon.apis.messages.diagnostics import diagnostics_of
from antiphon.apis.messages.ids import MCP_TOOL_USE, SERVER_TOOL_USE, TOOL_USE, program_id, wire_id
from antiphon.apis.messages.presentation import Presentation, ThinkingShown
from antiphon.apis.messages.programs import container_of, is_runner
from antiphon.apis.messages.resource import (
    PROGRAM_CALLERS,
    Block,
    CacheDiagnostics,
    CallBlock,
    Caller,
    CompactionBlock,
    Container,
    ContextManagement,
    Message,
    MessageUsage,
    ProgramCaller,
    RefusalDetails,
    ServerToolResultBlock,
    ServerToolUsage,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    applied_edits,
    iteration,
    usage_fields,
)
from antiphon.apis.messages.server_tools import Seal
from antiphon.apis.projection import BodyProjection
from antiphon.core.cache_trace import CacheResult
from antiphon.core.chunks import FinishReason
from antiphon.core.edits import AppliedEdit
from antiphon.core.events import (
    CallEnded,
    Event,
    Finished,
    GenerationUsage,
    ReasoningEnded,
    TextEnded,
    ToolResultReceived,
    Usage,
)
from antiphon.core.items import FunctionCall, object_in
from antiphon.core.programs import fingerprint
from antiphon.core.tool_result import FoundFunctions
from antiphon.core.turn import Function, unknown_function

REFUSAL = "refusal"
CONTAINER_SECONDS = 30 * 24 * 3600
"""How long a container is said to be there. Programs go on later, too: nothing is kept for them."""


class Blocks:
    """Makes the blocks of one answer, and counts what its stop reason depends on. It is `created` then."""

    def __init__(self, presentation: Presentation, seal: Seal, created: int = 0) -> None:
        self.presentation = presentation
        self.seal = seal
        self._views = presentation.tools.views
        self.calls = 0
        """The client's calls, malformed ones included: the client has to answer them, too."""
        self._functions = {function.name: function for function in presentation.tools.functions}
        self._running: dict[str, Function] = {}  # id of a call → the function of the server
        self._created = created
        self._programs: dict[str, str] = {}  # id of a program → that of its block
        self._container: Container | None = None
        for program in presentation.unfinished:
            self._running[program.call.call_id] = self._functions[program.call.name]
            self._begin_program(program.call, program.clock)
        self._found = set[str]()  # functions that searches of this answer have found
        self._web = ServerToolUsage()
        self._cites = CitationFinder(presentation.citable, seal)
        self._edits = ContextManagement()
        self.compaction: CompactionBlock | None = None
        """The summary that the answer begins with."""
        self._compacting: GenerationUsage | None = None  # what it has cost
        self._pauses = False
        self.diagnose: Callable[[Sequence[Any]], CacheResult | None] | None = None
        """Compares the prompt with that of an earlier answer."""
        self._diagnosis: CacheResult | None = None

    def prompts_known(self, prompts: Sequence[Any]) -> None:
        """The prompt is compared with an earlier one."""
        if self.diagnose is not None:
            self._diagnosis = self.diagnose(prompts)

    @property
    def diagnostics(self) -> CacheDiagnostics | msgspec.UnsetType | None:
        """Why the cache missed, for clients that want to know."""
        return diagnostics_of(self._diagnosis) if self.presentation.diagnoses else UNSET

    def edited(self, applied: Sequence[AppliedEdit]) -> None:
        """The prompt was edited."""
        self._edits = applied_edits(applied)

    def compacted(self, block: CompactionBlock, usage: GenerationUsage, *, pauses: bool) -> None:
        """The conversation was summarised; if it `pauses`, that is all of the answer."""
        self.compaction, self._compacting, self._pauses = block, usage, pauses

    def end_of(self, end: Finished | None) -> Finished:
        """The end of the answer. Raises RuntimeError before `Finished`."""
        if end is None and self._pauses:
            return Finished(FinishReason.STOP, Usage())
        if end is None:
            raise RuntimeError("a message has no body before it is finished")
        return end

    def text(self, text: str) -> TextBlock:
        """The block of a complete text, with its citations."""
        return TextBlock(text, self._cites.find(text))

    def thinking(self, text: str) -> ThinkingBlock | None:
        """The block of reasoning, None if it is hidden."""
        shown = self.presentation.thinking
        if shown is ThinkingShown.NOTHING:
            return None
        return ThinkingBlock(text if shown is ThinkingShown.ALL else "", self.seal(text))

    def call(self, event: CallEnded) -> CallBlock:
        """The block of a call."""
        call = event.item
        assert call is not None
        if not call.hosted:
            self.calls += 1
            return self.opened_call(call.call_id, call.name, call.caller, object_so_far(call.arguments))
        function = self._running[call.call_id] = self._answering(call.name)
        if is_runner(function):
            self._begin_program(call, self._created)
        return self._views.shown_call(self._server_id(function, call.call_id), function, call)

    def opened_call(
        self, call_id: str, name: str, caller: str, input_: dict[str, Any] | None = None
    ) -> ToolUseBlock:
        """The block of a call that the client answers, of the model or of its program `caller`."""
        by: Caller | ProgramCaller = Caller()
        if caller:
            by = PROGRAM_CALLERS[self.presentation.tools.caller](self._programs[caller])
        return ToolUseBlock(wire_id(TOOL_USE, call_id), name, input_ or {}, by)

    def _begin_program(self, call: FunctionCall, clock: int) -> None:
        """A program is shown from here on. Without code it is none."""
        code = (object_in(call.arguments) or {}).get("code")
        if isinstance(code, str):
            print_ = fingerprint(code, clock)
            self._programs[call.call_id] = program_id(call.call_id, print_)
            until = datetime.fromtimestamp(self._created + CONTAINER_SECONDS, UTC)
            self._container = Container(container_of(print_), f"{until:%Y-%m-%dT%H:%M:%SZ}")

    def _answering(self, name: str) -> Function:
        """The function of the server that answers a call of this name."""
        function = self._functions.get(name) or unknown_function(name)
        return function if name in self._found else replace(function, hosted=function.answered_by)

    def result(self, event: ToolResultReceived) -> Block:
        """The block of a result."""
        self._cites.add(event.result)
        if isinstance(details := event.result.details, FoundFunctions):
            self._found.update(details.names)
        function = self._running.pop(event.call_id)
        id_ = self._server_id(function, event.call_id)
        block = self._views.shown_result(id_, function, event.result, self.seal)
        match block:
            case ServerToolResultBlock(type="web_search_tool_result"):
                self._web.web_search_requests += 1
            case ServerToolResultBlock(type="web_fetch_tool_result"):
                self._web.web_fetch_requests += 1
        return block

    def stop(self, end: Finished) -> dict[str, Any]:
        """The fields with the reason for the end of the answer."""
        reason, sequence = ("compaction", None) if self._pauses else self._reason(end)
        details = RefusalDetails() if reason == REFUSAL else None
        return {
            "stop_reason": reason,
            "stop_sequence": sequence,
            "stop_details": details,
            "container": self._container,
        }

    def _reason(self, end: Finished) -> tuple[str, str | None]:
        """The stop reason, and the stop sequence that matched."""
        if end.reason is FinishReason.LENGTH:
            # With a stop, the server ended it, and not the context.
            tokens = end.usage.completion_tokens + end.unused
            cut = end.stop is not None or tokens >= self.presentation.max_tokens
            return "max_tokens" if cut else "model_context_window_exceeded", None
        if self.presentation.warms:
            return "max_tokens", None  # which was 0
        if end.reason is FinishReason.CONTENT_FILTER:
            return REFUSAL, None
        if end.reason is FinishReason.TOOL_LIMIT:
            return "pause_turn", None
        if self.calls:
            return "tool_use", None
        return ("stop_sequence", end.stop) if isinstance(end.stop, str) else ("end_turn", None)

    def usage(self, prompt_tokens: int, end: Finished) -> dict[str, Any]:
        """The fields of the usage of the whole answer."""
        fields = usage_fields(prompt_tokens, end.usage, self._web if self._web != ServerToolUsage() else None)
        if self._compacting is not None:
            generations = end.generations or (GenerationUsage.of(end.usage, prompt_tokens),)
            fields["iterations"] = (
                iteration("compaction", self._compacting),
                *(iteration("message", usage) for usage in generations if not self._pauses),
            )
        return fields

    @property
    def context_management(self) -> ContextManagement | msgspec.UnsetType:
        """The edits of the conversation, for clients that have requested them."""
        return self._edits if self.presentation.context.reports else UNSET

    def _server_id(self, function: Function, call_id: str) -> str:
        if (program := self._programs.get(call_id)) is not None:
            return program
        return wire_id(SERVER_TOOL_USE if self._views.know(function) else MCP_TOOL_USE, call_id)


class MessageBuilder(BodyProjection):
    """Builds the full answer."""

    def __init__(self, envelope: Envelope, presentation: Presentation, seal: Seal) -> None:
        self._envelope = envelope
        self.blocks = Blocks(presentation, seal, envelope.created)
        """Makes the blocks."""
        self._content: list[Block] = []
        self._end: Finished | None = None

    def set_prompts(self, prompts: Iterable[Any]) -> None:
        prompts = [*prompts]
        super().set_prompts(prompts)
        self.blocks.prompts_known(prompts)

    def push(self, choice: int, events: Sequence[Event]) -> list[bytes]:
        """Process the next events. A message has one choice."""
        for event in events:
            match event:
                case TextEnded(item=item) if item is not None:
                    self._content.append(self.blocks.text(item.text))
                case ReasoningEnded(item=item) if item is not None:
                    block = self.blocks.thinking(item.text)
                    self._content += [] if block is None else [block]
                case CallEnded():
                    self._content.append(self.blocks.call(event))
                case ToolResultReceived():
                    self._content.append(self.blocks.result(event))
                case Finished():
                    self._end = event
        return []

    def body(self) -> bytes:
        """The JSON body. Raises RuntimeError before `Finished`."""
        envelope, compaction = self._envelope, self.blocks.compaction
        end = self.blocks.end_of(self._end)
        message = Message(
            id=envelope.id,
            model=envelope.model,
            content=(*([] if compaction is None else [compaction]), *self._content),
            **self.blocks.stop(end),
            context_management=self.blocks.context_management,
            diagnostics=self.blocks.diagnostics,
            usage=MessageUsage(**self.blocks.usage(envelope.prompt_tokens, end)),
            unmet=end.unmet or UNSET,
            generations=end.generations or UNSET,
            notes=(*self.blocks.presentation.tools.notes, *notes_at_end(end, "max_tokens")) or UNSET,
        )
        return msgspec.json.encode(message)
