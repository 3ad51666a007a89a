"""A turn's events → chat completion chunks.

`apis/chunks.py` writes chunks; this module decides their order: the role first, ids and names once, the
finish reason in a separate chunk, usage last. If an answer has several messages, they are paragraphs of its
`content`.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import assert_never

import msgspec
from msgspec import UNSET

from antiphon.apis.chat.answer import Annotations, token_logprobs
from antiphon.apis.chat.calls import encoder_of, reason_shown
from antiphon.apis.chat.resource import ChatCompletionChunk, ChoiceLogprobs, ChunkChoice, Delta
from antiphon.apis.chunks import DeltaKind, Piece, Tokens, Usages, chunks_for
from antiphon.apis.completion_body import ChoiceError, finish_reason
from antiphon.apis.ending import notes_at_end
from antiphon.apis.envelope import DEFAULT_PRESENTATION, Envelope, PresentationOptions, RenderedPrompt
from antiphon.apis.framing import DONE, untyped_event
from antiphon.apis.moderation import ChatModeration, chat_moderation
from antiphon.apis.projection import StreamProjection
from antiphon.core.accumulator import PARAGRAPH
from antiphon.core.chunks import FinishReason
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
from antiphon.core.moderation import ModerationResult


class _ChoiceState:
    """The state of one choice, and the encoder of its next pieces."""

    def __init__(self, index: int, content: Piece, reasoning: Piece | None, annotations: Annotations) -> None:
        self.index = index
        self.annotations = annotations
        self.content = content
        self.reasoning = reasoning
        self.arguments: Piece = content
        self.read: Callable[[str], str] = str
        self.calls = 0
        self.messages = 0
        self.reasonings = 0
        self.usage = Usage()


class _ChatChunkFactory:
    """The wire types of the stream. See `ChunkFactory`."""

    def __init__(self, envelope: Envelope, presentation: PresentationOptions) -> None:
        self._envelope = envelope
        self._presentation = presentation

    def chunk(
        self, parts: tuple[ChunkChoice, ...], usage: Usages, prompt: RenderedPrompt | None
    ) -> ChatCompletionChunk:
        envelope, presentation = self._envelope, self._presentation
        return ChatCompletionChunk(
            envelope.id,
            envelope.created,
            envelope.model,
            parts,
            usage=usage,
            system_fingerprint=envelope.system_fingerprint,
            service_tier=presentation.service_tier,
            notes=(prompt and presentation.notes) or UNSET,
            prompt_token_ids=prompt.ids if prompt and presentation.token_ids else UNSET,
            prompt_text=prompt.text if prompt and presentation.prompt_text else UNSET,
        )

    def add_logprobs(self, part: ChunkChoice, tokens: Tokens) -> None:
        part.logprobs = ChoiceLogprobs(token_logprobs(tokens, self._presentation))


class ChatCompletionStream(StreamProjection):
    """Projects the events of an answer to server-sent events."""

    def __init__(
        self, envelope: Envelope, choices: int, presentation: PresentationOptions = DEFAULT_PRESENTATION
    ) -> None:
        self._envelope = envelope
        self._presentation = presentation
        self._count = choices
        self._choices: list[_ChoiceState] = []
        self._moderation: ChatModeration | None = None

    def moderated(self, result: ModerationResult) -> None:
        """What a guard says of the request, and of each choice."""
        self._moderation = chat_moderation(result)

    def begin(self) -> list[bytes]:
        """The first chunk of each choice: all at once and in order, because clients keep them in a list."""
        envelope, presentation = self._envelope, self._presentation
        self._factory = _ChatChunkFactory(envelope, presentation)
        self._chunks = chunks_for(self._factory, presentation, envelope, self._count)
        out: list[bytes] = []
        self._choices = [self._begin(index, out) for index in range(self._count)]
        return out

    def push(self, choice: int, events: list[Event]) -> list[bytes]:
        """The chunks for the next events of a choice."""
        out: list[bytes] = []
        state = self._choices[choice]
        for event in events:
            # Frequent events first; the order of the others does not matter.
            if type(event) is TextDelta:
                out.append(state.content(event.text, event.tokens))
            elif type(event) is ArgumentsDelta and (text := state.read(event.text)):
                out.append(state.arguments(text, event.tokens))
            elif type(event) is ReasoningDelta and state.reasoning:
                out.append(state.reasoning(event.text, event.tokens))
            else:
                self._push_rare(state, event, out)
        return out

    def delta_encoder(self, choice: int, delta: type[TextDelta | ReasoningDelta]) -> Piece | None:
        state = self._choices[choice]
        if delta is ReasoningDelta:
            return state.reasoning
        return state.content

    def finish(self) -> list[bytes]:
        """The events after the last chunk: moderation and usage, if they were requested, and the end mark."""
        return [*self._moderated(), *self._chunks.usage(state.usage for state in self._choices), DONE]

    def _moderated(self) -> Iterator[bytes]:
        """The chunk with what a guard says, which has no choices."""
        if self._moderation is not None:
            chunk = self._factory.chunk((), self._chunks.no_usage, None)
            chunk.moderation = self._moderation
            yield untyped_event(msgspec.json.encode(chunk))

    def _begin(self, choice: int, out: list[bytes]) -> _ChoiceState:
        """The first chunk of a choice has only the role."""
        # As OpenAI's first chunk: clients add up its content, so it is a text, and an empty answer has one.
        role = ChunkChoice(choice, Delta(role=self._presentation.role, content="", refusal=None))
        prompts = self._envelope.prompts
        out.append(self._chunks.single(role, prompts[0] if choice == 0 and len(prompts) == 1 else None))
        names = self._presentation.reasoning
        state = _ChoiceState(
            choice,
            content=self._piece(choice, DeltaKind.TEXT, lambda text: Delta(content=text)),
            reasoning=self._piece(choice, DeltaKind.REASONING, partial(_reasoning, names)) if names else None,
            annotations=Annotations(len(self._presentation.echo)),
        )
        if self._presentation.echo:
            out.append(self._chunks.single(ChunkChoice(choice, Delta(content=self._presentation.echo))))
        return state

    def _piece(self, choice: int, kind: DeltaKind, delta_of: Callable[[str], Delta]) -> Piece:
        return self._chunks.piece(kind, lambda text: ChunkChoice(choice, delta_of(text)))

    def _push_rare(self, state: _ChoiceState, event: Event, out: list[bytes]) -> None:
        self._chunks.note(state.index, event)
        match event:
            case CallStarted(hosted=True):
                state.read = _no_text
            case CallStarted():
                out.append(self._begin_call(state, event))
            case Finished():
                state.usage = event.usage
                self._chunks.settle(state.index, event.usage)
                out.extend(self._finish_choice(state, event))
            case TextStarted() | ReasoningStarted():
                out.extend(_paragraph(state, event))
            case TextEnded():
                out.extend(self._annotate(state, event))
            case ToolResultReceived():
                state.annotations.add(event.result)
            case ReasoningEnded() | CallEnded() | Markup() | Malformed() | ToolCallsPending() | ToolPrinted():
                pass
            case TextDelta() | ReasoningDelta() | ArgumentsDelta():
                pass  # not shown
            case _:
                assert_never(event)

    def _annotate(self, state: _ChoiceState, event: TextEnded) -> Iterator[bytes]:
        """The annotations of a message."""
        if event.item is not None and (annotations := state.annotations.find(event.item.text)):
            yield self._chunks.single(ChunkChoice(state.index, Delta(annotations=annotations)))

    def _begin_call(self, state: _ChoiceState, event: CallStarted) -> bytes:
        index, encoder = state.calls, encoder_of(event.name, self._presentation)
        state.calls += 1
        state.read = encoder.reader()
        state.arguments = self._piece(state.index, DeltaKind.CALL, partial(encoder.more, index))
        return self._chunks.single(ChunkChoice(state.index, encoder.opening(index, event)))

    def _finish_choice(self, state: _ChoiceState, event: Finished) -> list[bytes]:
        """The finish reason in a chunk of its own, once. The error of all choices ends the stream itself."""
        if event.reason is FinishReason.ERROR and event.error is None:
            return []
        reason = finish_reason(event.reason, state.calls)
        last = ChunkChoice(
            state.index,
            Delta(),
            finish_reason=reason_shown(reason, self._presentation),
            stop_reason=event.stop,
        )
        if event.error:
            last.error = ChoiceError(event.error)
        if event.unmet:
            last.unmet = event.unmet
        if event.generations:
            last.generations = event.generations
        if notes := notes_at_end(event, "max_tokens"):
            last.notes = notes
        return [self._chunks.single(last)]


def _paragraph(state: _ChoiceState, event: TextStarted | ReasoningStarted) -> Iterator[bytes]:
    """The separator between a message, or reasoning, and the one before it."""
    if isinstance(event, TextStarted):
        if state.messages:
            yield state.content(PARAGRAPH, ())
        state.messages += 1
    elif state.reasoning:
        if state.reasonings:
            yield state.reasoning(PARAGRAPH, ())
        state.reasonings += 1


def _no_text(arguments: str) -> str:
    """No text: calls of server tools are not shown."""
    return ""


def _reasoning(names: tuple[str, ...], text: str) -> Delta:
    """Reasoning, under all of its names."""
    delta = Delta()
    for name in names:
        setattr(delta, name, text)
    return delta
