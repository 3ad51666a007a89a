"""The fold of a turn's events → the body of a full answer."""

import msgspec

from antiphon.apis.chat.envelope import Envelope, total
from antiphon.apis.chat.schema import (
    AnswerMessage,
    ChatCompletion,
    Choice,
    FunctionFragment,
    ToolCallFragment,
)
from antiphon.core.events import Event
from antiphon.core.finish import finish_reason
from antiphon.core.fold import Fold, Output
from antiphon.core.items import FunctionCall, Status


class Answer:
    """Folds every choice; `body` is the answer once all are finished."""

    def __init__(self, envelope: Envelope, choices: int) -> None:
        self._envelope = envelope
        self._folds = [Fold() for _ in range(choices)]

    def push(self, choice: int, events: list[Event]) -> None:
        """Take the next events of a choice."""
        fold = self._folds[choice]
        for event in events:
            fold.push(event)

    def body(self) -> bytes:
        """The JSON body."""
        outputs = [fold.output for fold in self._folds]
        envelope = self._envelope
        return msgspec.json.encode(
            ChatCompletion(
                id=envelope.id,
                created=envelope.created,
                model=envelope.model,
                choices=[_choice(index, output) for index, output in enumerate(outputs)],
                usage=total(envelope.prompt_tokens, (output.usage for output in outputs)),
            )
        )


def _choice(index: int, output: Output) -> Choice:
    calls = output.calls
    # OpenAI: content is null where the model only called functions.
    message = AnswerMessage("assistant", output.text or (None if calls else ""))
    if output.reasoning:
        message.reasoning_content = output.reasoning
    if calls:
        message.tool_calls = [_call(call) for call in calls]
    complete = sum(call.status is Status.COMPLETED for call in calls)
    return Choice(index, message, finish_reason(output.reason, complete))


def _call(call: FunctionCall) -> ToolCallFragment:
    return ToolCallFragment(
        id=call.call_id, type="function", function=FunctionFragment(call.name, call.arguments)
    )
