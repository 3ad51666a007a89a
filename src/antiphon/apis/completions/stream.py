"""The events of completions → their chunks. See `apis/chunks.py`."""

from msgspec import UNSET, Struct

from antiphon.apis.body import ChoiceError
from antiphon.apis.chunks import Piece, Saying, Tokens, Usages, chunks_for
from antiphon.apis.completions.accept import Shape
from antiphon.apis.completions.logprobs import completion_logprobs
from antiphon.apis.completions.schema import Completion, CompletionChoice
from antiphon.apis.envelope import DEFAULT_VIEW, Envelope, PromptView, View
from antiphon.core.events import Event, Finished, TextDelta, Usage
from antiphon.core.finish import finish_reason


class _ChoiceState(Struct):
    """How far one choice got."""

    text: Piece
    usage: Usage = Usage()


class _CompletionForm:
    """The wire types of the stream. See `Form`."""

    def __init__(self, envelope: Envelope, view: View) -> None:
        self._envelope = envelope
        self._view = view
        self._offsets: dict[int, int] = {}  # characters so far, of each choice

    def chunk(
        self, parts: tuple[CompletionChoice, ...], usage: Usages, prompt: PromptView | None
    ) -> Completion:
        for part in parts:
            part.prompt_token_ids = prompt.ids if prompt and self._view.token_ids else UNSET
        envelope = self._envelope
        return Completion(
            envelope.id,
            envelope.created,
            envelope.model,
            list(parts),
            usage=usage,
            system_fingerprint=envelope.system_fingerprint,
            service_tier=self._view.service_tier,
        )

    def add_logprobs(self, part: CompletionChoice, tokens: Tokens) -> None:
        offset = self._offsets.get(part.index, 0)
        part.logprobs = completion_logprobs(tokens, self._view, offset)
        # Not by the text of the part: its last characters may come with the next one.
        self._offsets[part.index] = offset + sum(len(token.text) for token in tokens)


class Stream:
    """Projects events to the payloads of server-sent events."""

    def __init__(self, envelope: Envelope, shape: Shape, view: View = DEFAULT_VIEW) -> None:
        self._envelope = envelope
        self._shape = shape
        self._view = view
        self._chunks = chunks_for(_CompletionForm(envelope, view), view, envelope.prompt_tokens)
        self._choices: dict[int, _ChoiceState] = {}

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
                out.append(self._finish_choice(choice, event))
        return out

    def finish(self) -> list[bytes]:
        """What comes after the last chunk: usage, if it was asked for, and the end mark."""
        return [*self._chunks.usage(state.usage for state in self._choices.values()), b"[DONE]"]

    def _begin(self, choice: int, out: list[bytes]) -> _ChoiceState:
        state = _ChoiceState(self._chunks.piece(Saying.TEXT, lambda text: CompletionChoice(choice, text)))
        self._choices[choice] = state
        prompt = self._envelope.prompts[choice // self._shape.tried]
        if self._view.token_ids:
            out.append(self._chunks.single(CompletionChoice(choice, ""), prompt))
        if self._shape.echo:
            echo = self._chunks.piece(Saying.ECHO, lambda text: CompletionChoice(choice, text))
            out.append(echo(prompt.text, prompt.tokens))
        return state

    def _finish_choice(self, choice: int, event: Finished) -> bytes:
        """The finish reason comes in a chunk of its own, and once."""
        last = CompletionChoice(
            choice, "", finish_reason=finish_reason(event.reason, complete_calls=0), stop_reason=event.stop
        )
        if event.error:
            last.error = ChoiceError(event.error)
        if event.unmet:
            last.unmet = event.unmet
        return self._chunks.single(last)
