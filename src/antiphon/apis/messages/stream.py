"""A turn's events → the events of a stream.

Blocks follow each other, numbered without gaps; each is opened, gets its deltas and is closed. Calls of
server tools, and their results, are sent whole. The usage is known at the end: the first event counts the
prompt, the last but one everything. Events are encoded when they are sent: deltas, of which there are one or
more for each token, with a frame that is made once per block. Clients parse the input of a call while it
arrives, and fail on anything but JSON, so other text is not sent.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.apis.ending import notes_at_end
from antiphon.apis.envelope import Envelope
from antiphon.apis.framing import event as framed
from antiphon.apis.messages.answer import Blocks
from antiphon.apis.messages.errors import encode_error
from antiphon.apis.messages.presentation import Presentation, ThinkingShown
from antiphon.apis.messages.resource import (
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    CitationsDelta,
    CompactionDelta,
    DeltaUsage,
    InputJsonDelta,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    SignatureDelta,
    Stop,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from antiphon.apis.messages.server_tools import Seal
from antiphon.apis.projection import StreamProjection
from antiphon.core.accumulator import DELTAS
from antiphon.core.errors import AntiphonError
from antiphon.core.events import (
    CallEnded,
    CallStarted,
    Event,
    Finished,
    Malformed,
    ReasoningEnded,
    ReasoningStarted,
    TextEnded,
    TextStarted,
    ToolResultReceived,
)
from antiphon.core.plain_tokens import TextFrame

_encode = msgspec.json.Encoder().encode


def _event(fields: Struct) -> bytes:
    return framed(_encode(fields))


class MessageStream(StreamProjection):
    """Projects the events of an answer to server-sent events."""

    def __init__(self, envelope: Envelope, presentation: Presentation, seal: Seal) -> None:
        self._envelope = envelope
        self.blocks = Blocks(presentation, seal, envelope.created)
        """Makes the blocks."""
        self._shown = presentation.thinking
        self._index = 0  # of the next block, or of the open one
        self._frame: TextFrame | None = None  # of visible deltas
        self._end: Finished | None = None

    def set_prompts(self, prompts: Iterable[Any]) -> None:
        prompts = [*prompts]
        super().set_prompts(prompts)
        self.blocks.prompts_known(prompts)

    def begin(self) -> list[bytes]:
        """The message without its content."""
        usage = MessageUsage(input_tokens=self._envelope.prompt_tokens)
        message = Message(
            id=self._envelope.id,
            model=self._envelope.model,
            context_management=self.blocks.context_management,
            diagnostics=self.blocks.diagnostics,
            usage=usage,
            notes=self.blocks.presentation.tools.notes or UNSET,
        )
        out = [_event(MessageStart(message))]
        if (block := self.blocks.compaction) is not None:
            self._open(replace(block, content=None, encrypted_content=None), None, out)
            delta = CompactionDelta(block.content, block.encrypted_content)
            out.append(_event(BlockDelta(self._index, delta)))
            self._close(out)
        return out

    def push(self, choice: int, events: Sequence[Event]) -> list[bytes]:
        """The next events of the stream. A message has one choice."""
        out: list[bytes] = []
        for event in events:
            if type(event) in DELTAS:
                frame, text = self._frame, event.text  # type: ignore[union-attr]
                if frame is not None and text:
                    out.append(frame(text))
            else:
                self._push_rare(event, out)
        return out

    def delta_encoder(self, choice: int, delta: type[Event]) -> TextFrame | None:
        return self._frame

    def _push_rare(self, event: Event, out: list[bytes]) -> None:
        match event:
            case TextStarted() | ReasoningStarted() | CallStarted():
                self._start(event, out)
            case ReasoningEnded(item=item) if item is not None:
                block = self.blocks.thinking(item.text)
                if block is not None:
                    out.append(_event(BlockDelta(self._index, SignatureDelta(block.signature))))
                    self._close(out)
            case TextEnded(item=item) if item is not None:
                cited = map(CitationsDelta, self.blocks.text(item.text).citations)
                out += [_event(BlockDelta(self._index, delta)) for delta in cited]
                self._close(out)
            case CallEnded():
                self._end_call(event, out)
            case Malformed(arguments=True):
                self._frame = None
            case ToolResultReceived():
                self._open(self.blocks.result(event), None, out)
                self._close(out)
            case Finished():
                self._end = event

    def _start(self, event: TextStarted | ReasoningStarted | CallStarted, out: list[bytes]) -> None:
        match event:
            case TextStarted():
                self._open(TextBlock(""), TextDelta, out)
            case ReasoningStarted() if self._shown is ThinkingShown.ALL:
                self._open(ThinkingBlock("", ""), ThinkingDelta, out)
            case ReasoningStarted() if self._shown is ThinkingShown.SIGNATURE:
                self._open(ThinkingBlock("", ""), None, out)
            case CallStarted(hosted=False):
                opened = self.blocks.opened_call(event.call_id, event.name, event.caller)
                self._open(opened, InputJsonDelta, out)

    def _end_call(self, event: CallEnded, out: list[bytes]) -> None:
        """A call has ended. That of a server tool is shown now, in the same form as any."""
        block = self.blocks.call(event)
        if not isinstance(block, ToolUseBlock):
            self._open(replace(block, input={}), None, out)
            input_ = InputJsonDelta(_encode(block.input).decode())
            out.append(_event(BlockDelta(self._index, input_)))
        self._close(out)

    def _open(self, block: Block, delta: Callable[[str], Any] | None, out: list[bytes]) -> None:
        index = self._index
        out.append(_event(BlockStart(index, block)))
        if delta is not None:
            self._frame = TextFrame(lambda text: _event(BlockDelta(index, delta(text))))

    def _close(self, out: list[bytes]) -> None:
        out.append(_event(BlockStop(self._index)))
        self._index += 1
        self._frame = None

    def finish(self) -> list[bytes]:
        """The events with the stop reason and the usage."""
        end = self.blocks.end_of(self._end)
        delta = MessageDelta(
            delta=Stop(
                **self.blocks.stop(end),
                unmet=end.unmet or UNSET,
                generations=end.generations or UNSET,
                notes=notes_at_end(end, "max_tokens") or UNSET,
            ),
            usage=DeltaUsage(**self.blocks.usage(self._envelope.prompt_tokens, end)),
            context_management=self.blocks.context_management,
        )
        return [_event(delta), _event(MessageStop())]

    def fail(self, error: AntiphonError) -> list[bytes]:
        """A stream that failed ends with the error: clients take one without an end for complete."""
        return [framed(encode_error(error))]

    def cancel(self) -> list[bytes]:
        """Nothing: a message is only cancelled by disconnecting."""
        return []
