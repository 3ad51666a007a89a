"""Makes the lines of one answer, for streams and full answers alike."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import asdict

from antiphon.apis.chat.answer import token_logprobs
from antiphon.apis.completion_body import total
from antiphon.apis.cut_objects import object_so_far
from antiphon.apis.ending import notes_at_end
from antiphon.apis.envelope import Envelope, PresentationOptions
from antiphon.apis.ollama.resource import (
    AnswerMessage,
    CalledFunction,
    ChatLine,
    Durations,
    GenerateLine,
    Line,
    ToolCall,
)
from antiphon.core.chunks import FinishReason, Token
from antiphon.core.events import Finished
from antiphon.core.items import FunctionCall

_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_LIMIT: "length",
    FinishReason.STEERED: "length",  # no answer of this API is
    FinishReason.CONTENT_FILTER: "content_filter",
    FinishReason.ERROR: "error",
}


class Said(Struct, frozen=True):
    """What a line says of the answer: all of it, or the next part."""

    text: str = ""
    thinking: str | UnsetType = UNSET
    calls: Sequence[FunctionCall] = ()
    logprobs: list[Raw] | UnsetType = UNSET


NOTHING_SAID = Said()


def chat_line(said: Said, first_call: int, **fields: Any) -> ChatLine:
    """A line of /api/chat; its calls are numbered from `first_call` on."""
    calls = [
        ToolCall(call.call_id, CalledFunction(number, call.name, object_so_far(call.arguments)))
        for number, call in enumerate(said.calls, first_call)
    ]
    message = AnswerMessage(content=said.text, thinking=said.thinking, tool_calls=calls or UNSET)
    return ChatLine(message=message, logprobs=said.logprobs, **fields)


def generate_line(said: Said, first_call: int, **fields: Any) -> GenerateLine:
    """A line of /api/generate, which has no calls."""
    return GenerateLine(response=said.text, thinking=said.thinking, logprobs=said.logprobs, **fields)


class Lines:
    """The lines of an answer. `line` makes them, `clock` tells how long the answer took so far."""

    def __init__(
        self,
        envelope: Envelope,
        presentation: PresentationOptions,
        line: Callable[..., Line],
        clock: Callable[[], Durations],
    ) -> None:
        self.presentation = presentation
        self._line = line
        self._clock = clock
        self._named = {"model": envelope.model, "created_at": rfc3339(envelope.created)}

    def part(self, said: Said, first_call: int = 0) -> bytes:
        """A part of the answer, as a line."""
        return self._encoded(said, first_call) + b"\n"

    def last(self, said: Said, end: Finished, prompt_tokens: int) -> bytes:
        """The end of an answer, which says this at last."""
        usage, presentation = total(prompt_tokens, [end.usage]), self.presentation
        return self._encoded(
            said,
            done=True,
            done_reason=_REASONS[end.reason],
            prompt_eval_count=usage.prompt_tokens,
            eval_count=usage.completion_tokens,
            notes=(*presentation.notes, *notes_at_end(end, "num_predict")) or UNSET,
            unmet=end.unmet or UNSET,
            generations=end.generations or UNSET,
            **asdict(self._clock()),
        )

    def managed(self, reason: str) -> bytes:
        """The only line if there was nothing to answer: the model was loaded, or unloaded."""
        notes = self.presentation.notes or UNSET
        return self._encoded(NOTHING_SAID, done=True, done_reason=reason, notes=notes)

    def logprobs(self, tokens: Iterable[Token]) -> list[Raw]:
        """The log probabilities of tokens, encoded."""
        return token_logprobs(tokens, self.presentation)

    def _encoded(self, said: Said, first_call: int = 0, **fields: Any) -> bytes:
        return msgspec.json.encode(self._line(said, first_call, **self._named, **fields))


def rfc3339(moment: float) -> str:
    """A time in UNIX seconds, as Ollama writes it."""
    return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")
