"""The events of completions → their chunks. See `apis/chunks.py`."""

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET, Struct

from antiphon.apis.chunks import DeltaKind, Piece, Tokens, Usages, chunks_for
from antiphon.apis.completion_body import ChoiceError, finish_reason
from antiphon.apis.completions.accept import ChoiceLayout
from antiphon.apis.completions.answer import EncodedToken, completion_logprobs, echoed, shown_tokens
from antiphon.apis.completions.resource import Completion, CompletionChoice
from antiphon.apis.ending import notes_at_end
from antiphon.apis.envelope import DEFAULT_PRESENTATION, Envelope, PresentationOptions, RenderedPrompt
from antiphon.apis.framing import DONE
from antiphon.apis.projection import StreamProjection
from antiphon.core.chunks import FinishReason
from antiphon.core.events import Event, Finished, ReasoningDelta, TextDelta, Usage


class _ChoiceState(Struct):
    """The state of one choice."""

    text: Piece
    usage: Usage = Usage()


class _CompletionChunkFactory:
    """The wire types of the stream. See `ChunkFactory`."""

    def __init__(self, envelope: Envelope, presentation: PresentationOptions) -> None:
        self._envelope = envelope
        self._presentation = presentation
        self._offsets: dict[int, int] = {}  # characters so far, of each choice

    def chunk(
        self, parts: tuple[CompletionChoice, ...], usage: Usages, prompt: RenderedPrompt | None
    ) -> Completion:
        for part in parts:
            part.prompt_token_ids = prompt.ids if prompt and self._presentation.token_ids else UNSET
        envelope = self._envelope
        return Completion(
            envelope.id,
            envelope.created,
            envelope.model,
            list(parts),
            usage=usage,
            system_fingerprint=envelope.system_fingerprint,
            service_tier=self._presentation.service_tier,
        )

    def add_logprobs(self, part: CompletionChoice, tokens: Tokens) -> None:
        self.add_shown(part, [*shown_tokens(tokens, self._presentation)])

    def add_shown(self, part: CompletionChoice, tokens: list[EncodedToken]) -> None:
        """Add the log probabilities of tokens whose alternatives are encoded already."""
        offset = self._offsets.get(part.index, 0)
        part.logprobs = completion_logprobs(tokens, offset)
        # Not by the text of the part: its last characters may be in the next one.
        self._offsets[part.index] = offset + sum(token.characters for token in tokens)


class CompletionStream(StreamProjection):
    """Projects the events of an answer to server-sent events."""

    def __init__(
        self,
        envelope: Envelope,
        layout: ChoiceLayout,
        presentation: PresentationOptions = DEFAULT_PRESENTATION,
    ) -> None:
        self._envelope = envelope
        self._layout = layout
        self._presentation = presentation
        self._choices: dict[int, _ChoiceState] = {}

    def set_prompts(self, prompts: Iterable[Any]) -> None:
        super().set_prompts(prompts)
        self._echoed = echoed(self._envelope.prompts, self._layout, self._presentation)

    def begin(self) -> list[bytes]:
        """There is nothing before the first event of a choice."""
        envelope, presentation = self._envelope, self._presentation
        self._factory = _CompletionChunkFactory(envelope, presentation)
        self._chunks = chunks_for(self._factory, presentation, envelope, self._layout.best_of)
        return []

    def push(self, choice: int, events: list[Event]) -> list[bytes]:
        """The chunks for the next events of a choice."""
        out: list[bytes] = []
        state = self._choices.get(choice) or self._begin(choice, out)
        for event in events:
            if type(event) is TextDelta:
                out.append(state.text(event.text, event.tokens))
                continue
            self._chunks.note(choice, event)
            if isinstance(event, Finished):
                state.usage = event.usage
                self._chunks.settle(choice, event.usage)
                out += self._finish_choice(choice, event)
        return out

    def delta_encoder(self, choice: int, delta: type[TextDelta | ReasoningDelta]) -> Piece | None:
        """There is no reasoning."""
        return self._choices[choice].text if delta is TextDelta else None

    def finish(self) -> list[bytes]:
        """The events after the last chunk: usage, if it was requested, and the end mark."""
        return [*self._chunks.usage(state.usage for state in self._choices.values()), DONE]

    def _begin(self, choice: int, out: list[bytes]) -> _ChoiceState:
        state = _ChoiceState(self._chunks.piece(DeltaKind.TEXT, lambda text: CompletionChoice(choice, text)))
        self._choices[choice] = state
        prompt = self._envelope.prompts[choice // self._layout.best_of]
        if self._presentation.token_ids:
            out.append(self._chunks.single(CompletionChoice(choice, ""), prompt))
        if self._layout.echo:
            echo = CompletionChoice(choice, prompt.text)
            if self._presentation.logprobs is not None:
                self._factory.add_shown(echo, self._echoed[choice // self._layout.best_of])
            out.append(self._chunks.echo(echo, prompt.text))
        return state

    def _finish_choice(self, choice: int, event: Finished) -> list[bytes]:
        """The finish reason in a chunk of its own, once. The error of all choices ends the stream itself."""
        if event.reason is FinishReason.ERROR and event.error is None:
            return []
        last = CompletionChoice(
            choice, "", finish_reason=finish_reason(event.reason, calls=0), stop_reason=event.stop
        )
        if event.error:
            last.error = ChoiceError(event.error)
        if event.unmet:
            last.unmet = event.unmet
        if notes := notes_at_end(event, "max_tokens"):
            last.notes = notes
        return [self._chunks.single(last)]
