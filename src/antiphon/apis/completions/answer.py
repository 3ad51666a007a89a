"""The events of completions → the body of the full answer."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import accumulate
from statistics import fmean
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct

from antiphon.apis.completion_body import ChoiceError, PromptLogprobs, finish_reason, total
from antiphon.apis.completions.accept import ChoiceLayout
from antiphon.apis.completions.resource import Completion, CompletionChoice, CompletionLogprobs
from antiphon.apis.ending import notes_at_end
from antiphon.apis.envelope import DEFAULT_PRESENTATION, Envelope, PresentationOptions, RenderedPrompt
from antiphon.apis.logprobs import LEAST_LOGPROB, logprob_of, namer, prompt_logprobs
from antiphon.apis.projection import BodyProjection, ChoiceResult, shows_tokens
from antiphon.core.chunks import Token
from antiphon.core.events import Event


class EncodedToken(Struct, frozen=True):
    """A token for the lists of log probabilities: its alternatives are encoded, its characters counted.

    In a full answer, each is encoded when its token arrives: encoding all at the end would block the event
    loop.
    """

    name: str
    logprob: float | None
    top: Raw | None
    characters: int


class CompletionBuilder(BodyProjection):
    """Builds the full answer from the events of all choices; `body` is complete when all have finished."""

    shows_tokens = True

    def __init__(
        self,
        envelope: Envelope,
        layout: ChoiceLayout,
        presentation: PresentationOptions = DEFAULT_PRESENTATION,
    ) -> None:
        self._envelope = envelope
        self._layout = layout
        self._presentation = presentation
        self._scored: list[PromptLogprobs] = []  # of each prompt
        self._echoed: list[list[EncodedToken]] = []  # the same
        self._shown = shows_tokens(presentation)
        shown = partial(shown_tokens, presentation=presentation)
        self._choices: list[ChoiceResult[list[EncodedToken]]] = [
            ChoiceResult(shown, []) for _ in range(layout.prompts * layout.best_of)
        ]

    def set_prompts(self, prompts: Iterable[Any]) -> None:
        super().set_prompts(prompts)
        if self._presentation.prompt_logprobs:
            self._scored = [prompt_logprobs(prompt.tokens) for prompt in self._envelope.prompts]
        self._echoed = echoed(self._envelope.prompts, self._layout, self._presentation)

    def push(self, choice: int, events: list[Event]) -> list[bytes]:
        """Take the next events of a choice."""
        state = self._choices[choice]
        state.push(events)
        for event in filter(self._shown, events):
            state.show(event.tokens)
        return []

    def body(self) -> bytes:
        """The JSON body."""
        envelope = self._envelope
        shown = [pair for prompt in range(self._layout.prompts) for pair in self._best(prompt)]
        completion = Completion(
            envelope.id,
            envelope.created,
            envelope.model,
            [self._choice(index, *pair) for index, pair in enumerate(shown)],
            # Completions that were not selected also count.
            usage=total(envelope.prompt_tokens, (state.end.usage for state in self._choices)),
            system_fingerprint=envelope.system_fingerprint,
            service_tier=self._presentation.service_tier,
            kv_transfer_params=self._choices[0].end.kv_transfer_params or UNSET,
        )
        return msgspec.json.encode(completion)

    def _best(self, prompt: int) -> list[tuple[ChoiceResult[list[EncodedToken]], int]]:
        """The completions of a prompt that are shown, the most likely first if there was a choice."""
        best_of, n = self._layout.best_of, self._layout.n
        states = self._choices[prompt * best_of : (prompt + 1) * best_of]
        if best_of > n:
            states.sort(key=_score, reverse=True)
        return [(state, prompt) for state in states[:n]]

    def _choice(self, index: int, state: ChoiceResult[list[EncodedToken]], number: int) -> CompletionChoice:
        presentation, end, prompt = self._presentation, state.end, self._envelope.prompts[number]
        choice = CompletionChoice(
            index,
            prompt.text + state.text if self._layout.echo else state.text,
            finish_reason=finish_reason(end.reason, calls=0),
            stop_reason=end.stop,
            error=ChoiceError(end.error) if end.error else UNSET,
            unmet=end.unmet or UNSET,
            notes=notes_at_end(end, "max_tokens") or UNSET,
        )
        if presentation.logprobs is not None:
            choice.logprobs = completion_logprobs([*self._echoed[number], *state.tokens], 0)
        if presentation.prompt_logprobs:
            choice.prompt_logprobs = self._scored[number]
        if presentation.token_ids:
            choice.token_ids, choice.prompt_token_ids = state.ids, prompt.ids
        return choice


def _score(choice: ChoiceResult[list[EncodedToken]]) -> float:
    """How likely the text is, token by token."""
    scores = [LEAST_LOGPROB if token.logprob is None else token.logprob for token in choice.tokens]
    return fmean(scores) if scores else LEAST_LOGPROB


def completion_logprobs(tokens: list[EncodedToken], offset: int) -> CompletionLogprobs:
    """The lists for these tokens, the first of which begins at `offset` characters."""
    ends = accumulate((token.characters for token in tokens), initial=offset)
    return CompletionLogprobs(
        [token.name for token in tokens],
        [token.logprob for token in tokens],
        [token.top for token in tokens],
        [*ends][: len(tokens)],
    )


def echoed(
    prompts: Iterable[RenderedPrompt], layout: ChoiceLayout, presentation: PresentationOptions
) -> list[list[EncodedToken]]:
    """The tokens of each prompt that an answer begins with, none where they are not shown."""
    shows = layout.echo and presentation.logprobs is not None
    return [[*shown_tokens(prompt.tokens if shows else (), presentation)] for prompt in prompts]


def shown_tokens(tokens: Iterable[Token], presentation: PresentationOptions) -> Iterator[EncodedToken]:
    """The tokens in the form that `completion_logprobs` takes."""
    name = namer(presentation)
    for token in tokens:
        logprob = None if token.logprob is None else logprob_of(token)
        yield EncodedToken(name(token), logprob, _top(token, presentation), len(token.text))


def _top(token: Token, presentation: PresentationOptions) -> Raw | None:
    """The most likely tokens, and the generated one if it is not among them."""
    if token.logprob is None or not presentation.logprobs:
        return None
    name = namer(presentation)
    top = {name(other): logprob_of(other) for other in token.top[: presentation.logprobs]}
    return Raw(msgspec.json.encode({name(token): logprob_of(token)} | top))
