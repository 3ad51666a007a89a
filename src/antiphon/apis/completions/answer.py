"""The events of completions → the body of the full answer."""

from statistics import fmean

import msgspec
from msgspec import UNSET

from antiphon.apis.completion_body import ChoiceError, total
from antiphon.apis.completions.accept import Shape
from antiphon.apis.completions.logprobs import completion_logprobs
from antiphon.apis.completions.schema import Completion, CompletionChoice
from antiphon.apis.envelope import DEFAULT_PRESENTATION, Envelope, PresentationOptions, RenderedPrompt
from antiphon.apis.logprobs import LEAST_LOGPROB, logprob_of, prompt_logprobs
from antiphon.apis.projection import BodyProjection, ChoiceResult
from antiphon.core.events import Event
from antiphon.core.finish import finish_reason

_NO_PROMPT = RenderedPrompt("", ())


class CompletionBuilder(BodyProjection):
    """Builds the full answer of the events of all choices; `body` is there once all are finished."""

    def __init__(
        self, envelope: Envelope, shape: Shape, presentation: PresentationOptions = DEFAULT_PRESENTATION
    ) -> None:
        super().__init__(envelope)
        self._shape = shape
        self._presentation = presentation
        self._choices = [ChoiceResult(with_tokens=True) for _ in range(shape.prompts * shape.tried)]

    def push(self, choice: int, events: list[Event]) -> list[bytes]:
        """Take the next events of a choice."""
        state = self._choices[choice]
        state.push(events)
        state.ids += [token.id for event in events for token in event.tokens]
        return []

    def body(self) -> bytes:
        """The JSON body."""
        envelope = self._envelope
        shown = [pair for prompt in range(self._shape.prompts) for pair in self._best(prompt)]
        completion = Completion(
            envelope.id,
            envelope.created,
            envelope.model,
            [self._choice(index, state, prompt) for index, (state, prompt) in enumerate(shown)],
            # What was tried and is not shown was used, too.
            usage=total(envelope.prompt_tokens, (state.output.usage for state in self._choices)),
            system_fingerprint=envelope.system_fingerprint,
            service_tier=self._presentation.service_tier,
        )
        return msgspec.json.encode(completion)

    def _best(self, prompt: int) -> list[tuple[ChoiceResult, RenderedPrompt]]:
        """The completions of a prompt that are shown, the most likely first if there was a choice."""
        tried, shown = self._shape.tried, self._shape.shown
        states = self._choices[prompt * tried : (prompt + 1) * tried]
        if tried > shown:
            states.sort(key=_score, reverse=True)
        return [(state, self._envelope.prompts[prompt]) for state in states[:shown]]

    def _choice(self, index: int, state: ChoiceResult, prompt: RenderedPrompt) -> CompletionChoice:
        presentation, output = self._presentation, state.output
        echoed = prompt if self._shape.echo else _NO_PROMPT
        choice = CompletionChoice(
            index,
            echoed.text + output.text,
            finish_reason=finish_reason(output.reason, calls=0),
            stop_reason=output.stop,
            error=ChoiceError(output.error) if output.error else UNSET,
            unmet=output.unmet or UNSET,
        )
        if presentation.logprobs is not None:
            choice.logprobs = completion_logprobs((*echoed.tokens, *state.tokens), presentation, 0)
        if presentation.prompt_logprobs:
            choice.prompt_logprobs = prompt_logprobs(prompt.tokens)
        if presentation.token_ids:
            choice.token_ids, choice.prompt_token_ids = state.ids, prompt.ids
        return choice


def _score(choice: ChoiceResult) -> float:
    """How likely the text is, token by token."""
    return fmean(map(logprob_of, choice.tokens)) if choice.tokens else LEAST_LOGPROB
