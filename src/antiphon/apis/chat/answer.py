"""The fold of a turn's events → the body of a full answer."""

import msgspec
from msgspec import UNSET

from antiphon.apis.body import ChoiceError, total
from antiphon.apis.chat.body import AnswerMessage, ChatCompletion, Choice
from antiphon.apis.chat.calls import add_calls, reason_shown
from antiphon.apis.chat.logprobs import choice_logprobs
from antiphon.apis.envelope import DEFAULT_VIEW, Envelope, PromptView, View
from antiphon.apis.logprobs import prompt_logprobs
from antiphon.core.chunks import Token
from antiphon.core.events import Event, ReasoningDelta, TextDelta
from antiphon.core.finish import finish_reason
from antiphon.core.fold import Fold, Output
from antiphon.core.items import Status


class _ChoiceState:
    """One choice: its fold, and the tokens that are shown of it."""

    __slots__ = ("fold", "ids", "said")

    def __init__(self) -> None:
        self.fold = Fold()
        self.said: list[Token] = []
        self.ids: list[int] = []


class Answer:
    """Folds every choice; `body` is the answer once all are finished."""

    def __init__(self, envelope: Envelope, choices: int, view: View = DEFAULT_VIEW) -> None:
        self._envelope = envelope
        self._view = view
        self._choices = [_ChoiceState() for _ in range(choices)]

    def push(self, choice: int, events: list[Event]) -> None:
        """Take the next events of a choice."""
        state = self._choices[choice]
        for event in events:
            state.fold.push(event)
        if self._view.logprobs is not None:
            state.said += [token for event in events if type(event) is TextDelta for token in event.tokens]
        if self._view.token_ids:
            state.ids += [token.id for event in events if self._tells(event) for token in event.tokens]

    def _tells(self, event: Event) -> bool:
        """The tokens of hidden thoughts are hidden, too."""
        return bool(self._view.reasoning) or type(event) is not ReasoningDelta

    def body(self) -> bytes:
        """The JSON body."""
        envelope, view = self._envelope, self._view
        outputs = [state.fold.output for state in self._choices]
        completion = ChatCompletion(
            id=envelope.id,
            created=envelope.created,
            model=envelope.model,
            choices=[
                self._choice(index, state, output)
                for index, (state, output) in enumerate(zip(self._choices, outputs, strict=True))
            ],
            usage=total(envelope.prompt_tokens, (output.usage for output in outputs)),
            system_fingerprint=envelope.system_fingerprint,
            service_tier=view.service_tier,
            metadata=view.metadata,
        )
        if len(envelope.prompts) == 1:
            _show_prompt(completion, envelope.prompts[0], view)
        return msgspec.json.encode(completion)

    def _choice(self, index: int, state: _ChoiceState, output: Output) -> Choice:
        view = self._view
        complete = sum(call.status is Status.COMPLETED for call in output.calls)
        reason = finish_reason(output.reason, complete)
        return Choice(
            index,
            _message(output, view),
            reason_shown(reason, view),
            logprobs=None if view.logprobs is None else choice_logprobs(state.said, view),
            stop_reason=output.stop,
            token_ids=state.ids if view.token_ids else UNSET,
            error=ChoiceError(output.error) if output.error else UNSET,
            unmet=output.unmet or UNSET,
        )


def _message(output: Output, view: View) -> AnswerMessage:
    text = view.echo + output.text
    # OpenAI: content is null where the model only called functions.
    message = AnswerMessage("assistant", text or (None if output.calls else ""))
    if output.reasoning:
        for name in view.reasoning:
            setattr(message, name, output.reasoning)
    add_calls(message, output.calls, view)
    return message


def _show_prompt(completion: ChatCompletion, prompt: PromptView, view: View) -> None:
    if view.prompt_logprobs:
        completion.prompt_logprobs = prompt_logprobs(prompt.tokens)
    if view.token_ids:
        completion.prompt_token_ids = prompt.ids
    if view.prompt_text:
        completion.prompt_text = prompt.text
