"""A turn's events → chat completion chunks.

How chunks are written is known to `apis/chunks.py`; here it is what comes when: the
role first, ids and names once, the finish reason in a chunk of its own, usage last. Where
an answer has several messages, they are paragraphs of its one `content`.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import assert_never

from msgspec import UNSET

from antiphon.apis.body import ChoiceError
from antiphon.apis.chat.body import ChatCompletionChunk, ChunkChoice, Delta
from antiphon.apis.chat.calls import form_of, reason_shown
from antiphon.apis.chat.logprobs import choice_logprobs
from antiphon.apis.chunks import Piece, Saying, Tokens, Usages, chunks_for
from antiphon.apis.envelope import DEFAULT_VIEW, Envelope, PromptView, View
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
    Usage,
)
from antiphon.core.finish import finish_reason
from antiphon.core.fold import PARAGRAPH


class _ChoiceState:
    """How far one choice got, and what its next pieces become."""

    __slots__ = (
        "arguments",
        "calls",
        "complete_calls",
        "content",
        "index",
        "messages",
        "read",
        "reasoning",
        "said",
        "thoughts",
        "usage",
    )

    def __init__(self, index: int, content: Piece, reasoning: Piece | None) -> None:
        self.index = index
        self.content = content
        self.reasoning = reasoning
        self.arguments: Piece = content
        self.read: Callable[[str], str] = str
        self.calls = 0
        self.complete_calls = 0
        self.messages = 0
        self.thoughts = 0
        self.said = False
        self.usage = Usage()


class _ChatForm:
    """The wire types of the stream. See `Form`."""

    def __init__(self, envelope: Envelope, view: View) -> None:
        self._envelope = envelope
        self._view = view

    def chunk(
        self, parts: tuple[ChunkChoice, ...], usage: Usages, prompt: PromptView | None
    ) -> ChatCompletionChunk:
        envelope, view = self._envelope, self._view
        return ChatCompletionChunk(
            envelope.id,
            envelope.created,
            envelope.model,
            parts,
            usage=usage,
            system_fingerprint=envelope.system_fingerprint,
            service_tier=view.service_tier,
            prompt_token_ids=prompt.ids if prompt and view.token_ids else UNSET,
            prompt_text=prompt.text if prompt and view.prompt_text else UNSET,
        )

    def add_logprobs(self, part: ChunkChoice, tokens: Tokens) -> None:
        part.logprobs = choice_logprobs(tokens, self._view)


class Stream:
    """Projects events to the payloads of server-sent events."""

    def __init__(self, envelope: Envelope, choices: int, view: View = DEFAULT_VIEW) -> None:
        self._envelope = envelope
        self._view = view
        self._count = choices
        self._chunks = chunks_for(_ChatForm(envelope, view), view, envelope.prompt_tokens)
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
                out.append(state.content(event.text, event.tokens))
            elif type(event) is ArgumentsDelta and (text := state.read(event.text)):
                out.append(state.arguments(text, event.tokens))
            elif type(event) is ReasoningDelta and state.reasoning:
                out.append(state.reasoning(event.text, event.tokens))
            else:
                self._push_rare(state, event, out)
        return out

    def finish(self) -> list[bytes]:
        """What comes after the last chunk: usage, if it was asked for, and the end mark."""
        return [*self._chunks.usage(state.usage for state in self._choices), b"[DONE]"]

    def _begin(self, choice: int, out: list[bytes]) -> _ChoiceState:
        """The first chunk of a choice tells the role; its content is not known yet."""
        role = ChunkChoice(choice, Delta(role="assistant", content=None, refusal=None))
        prompts = self._envelope.prompts
        out.append(self._chunks.single(role, prompts[0] if choice == 0 and len(prompts) == 1 else None))
        names = self._view.reasoning
        state = _ChoiceState(
            choice,
            content=self._piece(choice, Saying.TEXT, lambda text: Delta(content=text)),
            reasoning=self._piece(choice, Saying.THOUGHT, partial(_thought, names)) if names else None,
        )
        if self._view.echo:
            state.said = True
            out.append(self._chunks.single(ChunkChoice(choice, Delta(content=self._view.echo))))
        return state

    def _piece(self, choice: int, saying: Saying, delta_of: Callable[[str], Delta]) -> Piece:
        return self._chunks.piece(saying, lambda text: ChunkChoice(choice, delta_of(text)))

    def _push_rare(self, state: _ChoiceState, event: Event, out: list[bytes]) -> None:
        self._chunks.note(state.index, event)
        match event:
            case CallStarted(hosted=True):
                state.read = _unseen
            case CallStarted():
                out.append(self._begin_call(state, event))
            case CallEnded():
                state.complete_calls += event.complete and state.read is not _unseen
            case Finished():
                state.usage = event.usage
                self._chunks.settle(state.index, event.usage)
                out.extend(self._finish_choice(state, event))
            case TextStarted() | ReasoningStarted():
                out.extend(_paragraph(state, event))
            case TextEnded() | ReasoningEnded() | Markup() | Malformed():
                pass
            case Paused() | Answered():
                pass  # what the server's tools do is between the model and them
            case TextDelta() | ReasoningDelta() | ArgumentsDelta():
                pass  # nothing of it is shown
            case _:
                assert_never(event)

    def _begin_call(self, state: _ChoiceState, event: CallStarted) -> bytes:
        index, form = state.calls, form_of(event.name, self._view)
        state.calls += 1
        state.read = form.reader()
        state.arguments = self._piece(state.index, Saying.CALL, partial(form.more, index))
        return self._chunks.single(ChunkChoice(state.index, form.opening(index, event)))

    def _finish_choice(self, state: _ChoiceState, event: Finished) -> list[bytes]:
        """The finish reason comes in a chunk of its own, and once."""
        reason = finish_reason(event.reason, state.complete_calls)
        last = ChunkChoice(
            state.index, Delta(), finish_reason=reason_shown(reason, self._view), stop_reason=event.stop
        )
        if event.error:
            last.error = ChoiceError(event.error)
        if event.unmet:
            last.unmet = event.unmet
        chunks = []
        if not state.said and not state.calls:
            # An empty answer is an empty text, as in the full answer, not null.
            chunks.append(self._chunks.single(ChunkChoice(state.index, Delta(content=""))))
        return [*chunks, self._chunks.single(last)]


def _paragraph(state: _ChoiceState, event: TextStarted | ReasoningStarted) -> Iterator[bytes]:
    """What stands between a message, or a thought, and the one before it."""
    if isinstance(event, TextStarted):
        if state.messages:
            yield state.content(PARAGRAPH, ())
        state.messages += 1
    elif state.reasoning:
        if state.thoughts:
            yield state.reasoning(PARAGRAPH, ())
        state.thoughts += 1


def _unseen(arguments: str) -> str:
    """Nothing of a call that the server answers is shown."""
    return ""


def _thought(names: tuple[str, ...], text: str) -> Delta:
    """A thought, under the names that it goes by."""
    delta = Delta()
    for name in names:
        setattr(delta, name, text)
    return delta
