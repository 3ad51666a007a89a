"""llama-server's `/infill`, for editors: a completion with a suffix, under other names.

The request is converted to one for a completion, so that there is one implementation; only the answer
differs. Names and meanings are those of llama-server's documentation.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from antiphon.apis.completions.schema import CompletionRequest
from antiphon.apis.envelope import Envelope
from antiphon.apis.errors import encode_error
from antiphon.apis.framing import untyped_event
from antiphon.apis.projection import BodyProjection, ChoiceResult, StreamProjection
from antiphon.apis.request import Request
from antiphon.core.chunks import FinishReason, Token
from antiphon.core.errors import AntiphonError, RequestError
from antiphon.core.events import Event, Finished, TextDelta

_SNIPPET = "--- {} ---\n\n{}\n\n"
"""The form of texts of other files, before that of the file."""

_STOPS = {FinishReason.LENGTH: "limit", FinishReason.STOP: "eos"}


class InputExtra(Struct):
    """Text of another file."""

    text: str
    filename: str = "snippet"


class InfillRequest(Request, kw_only=True):
    """POST /infill. Generates the text between `input_prefix` and `input_suffix`; it begins with `prompt`.

    `samplers`, `t_max_prompt_ms`, `t_max_predict_ms` and `n_indent` have no effect: the engine has an order
    of its samplers, and `n_predict` bounds an answer.
    """

    input_prefix: str = ""
    input_suffix: str = ""
    prompt: str = ""
    input_extra: list[InputExtra] | None = None
    response_fields: list[str] | None = None
    samplers: Any = None
    t_max_prompt_ms: int | None = None
    t_max_predict_ms: int | None = None
    n_indent: int | None = None


def completion_of(request: InfillRequest) -> CompletionRequest:
    """The equivalent request for a completion. Raises RequestError."""
    if (request.n or 1) > 1:
        raise RequestError("This endpoint returns a single text. Leave 'n' out.", param="n")
    shared = {name: getattr(request, name) for name in Request.__struct_fields__}
    shared["samplers"] = None  # editors always send them, to any server
    if request.max_tokens is None:
        shared["max_tokens"] = -1
    extra = "".join(_SNIPPET.format(file.filename, file.text) for file in request.input_extra or ())
    before = f"{extra}{request.input_prefix}{request.prompt}"
    return CompletionRequest(**shared, prompt=before, suffix=request.input_suffix)


class Infill(Struct):
    """An answer, or a piece of one: the last piece has `stop`, and the other fields.

    A request that names some fields gets only those of the last piece.
    """

    index: int | UnsetType = UNSET
    content: str | UnsetType = UNSET
    stop: bool | UnsetType = UNSET
    model: str | UnsetType = UNSET
    tokens_predicted: int | UnsetType = UNSET
    tokens_evaluated: int | UnsetType = UNSET
    tokens_cached: int | UnsetType = UNSET
    has_new_line: bool | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET
    stop_type: str | UnsetType = UNSET
    stopping_word: str | UnsetType = UNSET
    prompt: str | UnsetType = UNSET


def _last(envelope: Envelope, content: str, text: str, end: Finished) -> Infill:
    """The end of an answer with so much `text` in all."""
    word = end.stop if isinstance(end.stop, str) else ""
    return Infill(
        0,
        content,
        stop=True,
        model=envelope.model,
        tokens_predicted=end.usage.completion_tokens,
        tokens_evaluated=envelope.prompt_tokens,
        tokens_cached=end.usage.cached_tokens,
        has_new_line="\n" in text,
        truncated=False,
        stop_type="word" if word else _STOPS.get(end.reason, "none"),
        stopping_word=word,
        prompt="".join(prompt.text for prompt in envelope.prompts),
    )


def _encoded(infill: Infill, fields: list[str] | None) -> bytes:
    """The answer, or those of its fields that are wanted: all of them if none is named, as in llama.cpp."""
    if not fields or not infill.stop:
        return msgspec.json.encode(infill)
    whole: Mapping[str, Any] = msgspec.to_builtins(infill)
    return msgspec.json.encode({name: whole[name] for name in fields if name in whole})


class InfillBuilder(BodyProjection):
    """Builds the full answer."""

    def __init__(self, envelope: Envelope, fields: list[str] | None) -> None:
        self._envelope = envelope
        self._fields = fields
        self._result = ChoiceResult(None, list[Token]())

    def push(self, choice: int, events: list[Event]) -> list[bytes]:
        """Process the next events."""
        self._result.push(events)
        return []

    def body(self) -> bytes:
        """The JSON body."""
        text = self._result.text
        return _encoded(_last(self._envelope, text, text, self._result.end), self._fields)


class InfillStream(StreamProjection):
    """The answer in pieces. There is no end mark."""

    def __init__(self, envelope: Envelope, fields: list[str] | None) -> None:
        self._envelope = envelope
        self._fields = fields
        self._text: list[str] = []

    def begin(self) -> list[bytes]:
        """There is nothing before the text."""
        return []

    def push(self, choice: int, events: list[Event]) -> list[bytes]:
        """The pieces of the next events."""
        out = []
        for event in events:
            if type(event) is TextDelta:
                self._text.append(event.text)
                out.append(untyped_event(_encoded(Infill(0, event.text, stop=False), None)))
            elif isinstance(event, Finished) and event.reason is not FinishReason.ERROR:
                last = _last(self._envelope, "", "".join(self._text), event)
                out.append(untyped_event(_encoded(last, self._fields)))
        return out

    def delta_encoder(self, choice: int, delta: type[Event]) -> None:
        """No encoder: each event is kept for the last piece."""

    def finish(self) -> list[bytes]:
        """There is nothing after the last piece."""
        return []

    cancel = finish

    def fail(self, error: AntiphonError) -> list[bytes]:
        """The last event of a stream that failed."""
        return [untyped_event(encode_error(error))]
