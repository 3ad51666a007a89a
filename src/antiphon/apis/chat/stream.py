"""A turn's events → chat completion chunks.

Frequent chunks (text, thoughts, arguments) are made by joining bytes: what
never changes in a stream is encoded once, as a chunk with a mark in the place
of the text, and split at the mark. So both kinds of chunk come from the same
wire types, and cannot differ.
"""

import secrets
from typing import assert_never

import msgspec

from antiphon.apis.chat.envelope import Envelope, total
from antiphon.apis.chat.schema import (
    ChatCompletionChunk,
    ChunkChoice,
    CompletionUsage,
    Delta,
    FunctionFragment,
    ToolCallFragment,
)
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
    Usage,
)
from antiphon.core.finish import finish_reason

_MARK = secrets.token_hex(16)  # in no name that a client or a server may choose
_ENCODED_MARK = msgspec.json.encode(_MARK)
_encode_text = msgspec.json.Encoder().encode

Frame = tuple[bytes, bytes]
"""The bytes before and after the text of a frequent chunk."""


class _ChoiceState:
    """How far one choice got."""

    __slots__ = ("arguments", "calls", "complete_calls", "content", "index", "reasoning", "said", "usage")

    def __init__(self, index: int, content: Frame, reasoning: Frame) -> None:
        self.index = index
        self.content = content
        self.reasoning = reasoning
        self.arguments: Frame = (b"", b"")
        self.calls = 0
        self.complete_calls = 0
        self.said = False
        self.usage: Usage | None = None


class Stream:
    """Projects events to the payloads of server-sent events."""

    def __init__(self, envelope: Envelope, choices: int, *, include_usage: bool) -> None:
        self._envelope = envelope
        self._count = choices
        self._usage = None if include_usage else msgspec.UNSET
        self._choices: list[_ChoiceState] = []

    def push(self, choice: int, events: list[Event]) -> list[bytes]:
        """The chunks for the next events of a choice."""
        out: list[bytes] = []
        if not self._choices:
            # All choices at once and in order: clients keep them in a list.
            self._choices = [self._begin(index, out) for index in range(self._count)]
        state = self._choices[choice]
        for event in events:
            # The frequent ones first; the order of the others does not matter.
            if type(event) is TextDelta:
                state.said = True
                out.append(_join(state.content, event.text))
            elif type(event) is ArgumentsDelta:
                if event.text:
                    out.append(_join(state.arguments, event.text))
            elif type(event) is ReasoningDelta:
                out.append(_join(state.reasoning, event.text))
            else:
                self._push_rare(state, event, out)
        return out

    def finish(self) -> list[bytes]:
        """What comes after the last chunk: usage, if it was asked for, and the end mark."""
        if self._usage is msgspec.UNSET:
            return [b"[DONE]"]
        usage = total(self._envelope.prompt_tokens, (state.usage or Usage() for state in self._choices))
        return [msgspec.json.encode(self._chunk((), usage)), b"[DONE]"]

    def _begin(self, choice: int, out: list[bytes]) -> _ChoiceState:
        """The first chunk of a choice tells the role; its content is not known yet."""
        out.append(self._delta(choice, Delta(role="assistant", content=None, refusal=None)))
        return _ChoiceState(
            choice,
            content=self._frame(choice, Delta(content=_MARK)),
            reasoning=self._frame(choice, Delta(reasoning_content=_MARK)),
        )

    def _push_rare(self, state: _ChoiceState, event: Event, out: list[bytes]) -> None:
        match event:
            case CallStarted():
                out.append(self._begin_call(state, event))
            case CallEnded():
                state.complete_calls += event.complete
            case Finished():
                state.usage = event.usage
                out.extend(self._finish_choice(state, event))
            case TextStarted() | TextEnded() | ReasoningStarted() | ReasoningEnded() | Markup() | Malformed():
                pass
            case TextDelta() | ReasoningDelta() | ArgumentsDelta():
                raise AssertionError("frequent events are handled before")
            case _:
                assert_never(event)

    def _begin_call(self, state: _ChoiceState, event: CallStarted) -> bytes:
        """Id, type and name come once; later fragments hold the call's index and more arguments."""
        index = state.calls
        state.calls += 1
        more = ToolCallFragment(index=index, function=FunctionFragment(arguments=_MARK))
        state.arguments = self._frame(state.index, Delta(tool_calls=(more,)))
        function = FunctionFragment(event.name, "")
        first = ToolCallFragment(index=index, id=event.call_id, type="function", function=function)
        return self._delta(state.index, Delta(tool_calls=(first,)))

    def _finish_choice(self, state: _ChoiceState, event: Finished) -> list[bytes]:
        """The finish reason comes in a chunk of its own, and once."""
        reason = finish_reason(event.reason, state.complete_calls)
        last = ChunkChoice(state.index, Delta(), finish_reason=reason)
        chunks = [msgspec.json.encode(self._chunk((last,), self._usage))]
        if not state.said and not state.calls:
            # An empty answer is an empty text, as in the full answer, not null.
            chunks.insert(0, self._delta(state.index, Delta(content="")))
        return chunks

    def _delta(self, choice: int, delta: Delta) -> bytes:
        return msgspec.json.encode(self._chunk((ChunkChoice(choice, delta),), self._usage))

    def _frame(self, choice: int, delta: Delta) -> Frame:
        before, after = self._delta(choice, delta).split(_ENCODED_MARK)
        return before, after

    def _chunk(
        self, choices: tuple[ChunkChoice, ...], usage: CompletionUsage | msgspec.UnsetType | None
    ) -> ChatCompletionChunk:
        envelope = self._envelope
        return ChatCompletionChunk(envelope.id, envelope.created, envelope.model, choices, usage=usage)


def _join(frame: Frame, text: str) -> bytes:
    return frame[0] + _encode_text(text) + frame[1]
