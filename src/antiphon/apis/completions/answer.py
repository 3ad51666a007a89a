"""The folds of completions → the body of a full answer."""

from statistics import fmean

import msgspec
from msgspec import UNSET

from antiphon.apis.body import ChoiceError, total
from antiphon.apis.completions.accept import Shape
from antiphon.apis.completions.logprobs import completion_logprobs
from antiphon.apis.completions.schema import Completion, CompletionChoice
from antiphon.apis.envelope import DEFAULT_VIEW, Envelope, PromptView, View
from antiphon.apis.logprobs import LEAST_LOGPROB, logprob_of, prompt_logprobs
from antiphon.core.chunks import Token
from antiphon.core.events import Event, TextDelta
from antiphon.core.finish import finish_reason
from antiphon.core.fold import Fold

_NO_PROMPT = PromptView("", ())


class _ChoiceState:
    """One choice: its fold, and its tokens."""

    __slots__ = ("fold", "ids", "said")

    def __init__(self) -> None:
        self.fold = Fold()
        self.said: list[Token] = []
        self.ids: list[int] = []

    @property
    def score(self) -> float:
        """How likely the text is, token by token."""
        return fmean(logprob_of(token) for token in self.said) if self.said else LEAST_LOGPROB


class Answer:
    """Folds every choice; `body` is the answer once all are finished."""

    def __init__(self, envelope: Envelope, shape: Shape, view: View = DEFAULT_VIEW) -> None:
        self._envelope = envelope
        self._shape = shape
        self._view = view
        self._choices = [_ChoiceState() for _ in range(shape.prompts * shape.tried)]

    def push(self, choice: int, events: list[Event]) -> None:
        """Take the next events of a choice."""
        state = self._choices[choice]
        for event in events:
            state.fold.push(event)
            if type(event) is TextDelta:
                state.said += event.tokens
        state.ids += [token.id for event in events for token in event.tokens]

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
            usage=total(envelope.prompt_tokens, (state.fold.output.usage for state in self._choices)),
            system_fingerprint=envelope.system_fingerprint,
            service_tier=self._view.service_tier,
        )
        return msgspec.json.encode(completion)

    def _best(self, prompt: int) -> list[tuple[_ChoiceState, PromptView]]:
        """The completions of a prompt that are shown, the most likely first if there was a choice."""
        tried, shown = self._shape.tried, self._shape.shown
        states = self._choices[prompt * tried : (prompt + 1) * tried]
        if tried > shown:
            states.sort(key=lambda state: state.score, reverse=True)
        return [(state, self._envelope.prompts[prompt]) for state in states[:shown]]

    def _choice(self, index: int, state: _ChoiceState, prompt: PromptView) -> CompletionChoice:
        view, output = self._view, state.fold.output
        echoed = prompt if self._shape.echo else _NO_PROMPT
        choice = CompletionChoice(
            index,
            echoed.text + output.text,
            finish_reason=finish_reason(output.reason, complete_calls=0),
            stop_reason=output.stop,
            error=ChoiceError(output.error) if output.error else UNSET,
            unmet=output.unmet or UNSET,
        )
        if view.logprobs is not None:
            choice.logprobs = completion_logprobs((*echoed.tokens, *state.said), view, 0)
        if view.prompt_logprobs:
            choice.prompt_logprobs = prompt_logprobs(prompt.tokens)
        if view.token_ids:
            choice.token_ids, choice.prompt_token_ids = state.ids, prompt.ids
        return choice
