"""What the two APIs of decisions share: options of requests, limits, JSON that a model reads, diagnostics.

A question of either becomes a `Question` of `core/decision.py`, and a `Verdict` the answer in the API's form.
Requests may have fields of Antiphon's own, such as `x_orders`; answers have some only if they are asked for,
or if an answer would mislead without them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from antiphon.apis.request import MAX_ADAPTERS, AtLeastOne, CacheSalt, MediaFallback, ScaledAdapter
from antiphon.apis.sampling import adapters
from antiphon.apis.wire import decode, members_of, unknown_members
from antiphon.core.decision import Decision, Question, Verdicts
from antiphon.core.errors import RequestError
from antiphon.core.items import WITH_PARTS, FunctionCall, Item, Part, Reasoning, TextPart
from antiphon.core.limits import Limits
from antiphon.core.turn import Sampling
from antiphon.decide.labels import MOST_OPTIONS
from antiphon.decide.orders import orders_of

T = TypeVar("T")

BYTES_PER_TOKEN = 4
"""Of a text, about: limits count before anything is tokenized."""
_BREAKS = {*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029}
_THINKING = ("enable_thinking", "thinking")
_SAMPLED = "Nothing is sampled: the answer has the probability of every option. Leave it out."

REFUSED: Mapping[str, str] = {
    "stream": "The answer is one small body. Leave it out, or send false.",
    "temperature": _SAMPLED,
    "top_p": _SAMPLED,
    "top_k": _SAMPLED,
    "min_p": _SAMPLED,
    "logit_bias": _SAMPLED,
}
"""Parameter → the remedy."""


class DecisionParams(Struct, kw_only=True):
    """The fields of both APIs besides the text and the questions.

    Each question is asked in `x_orders` orders of its options; `x_diagnostics` asks for what is known of each
    answer. Those that are refused are read, so that they are not ignored like unknown ones.
    """

    model: str | None = None
    lora: Annotated[list[ScaledAdapter], Meta(max_length=MAX_ADAPTERS)] | None = None
    cache_salt: CacheSalt | None = None
    priority: int | None = None
    media_fallback: MediaFallback | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    x_diagnostics: bool | None = None
    x_orders: AtLeastOne | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    logit_bias: dict[str, Any] | None = None


class AppliedCalibration(Struct):
    """The calibration of a model, and the temperature that it has for a kind of question."""

    name: str
    temperature: float


class Diagnostics(Struct):
    """What is known of an answer, besides its probabilities.

    `label_mass` is the probability that the model answers with any of the options at all;
    `argmax_is_label`: the likeliest token was one. Both are null if the server of the model answers itself.
    `truncated`: some probabilities are upper bounds, because the server of the model did not tell them.
    """

    label_mass: float | None
    argmax_is_label: bool | None
    orders: int
    calibration: AppliedCalibration | None
    prompt_version: str
    truncated: bool


def diagnostics(verdicts: Verdicts) -> list[Diagnostics]:
    """The diagnostics of each question."""
    return [
        Diagnostics(
            verdict.label_mass,
            verdict.label_is_likeliest,
            verdict.orders,
            AppliedCalibration(verdicts.calibration, verdict.temperature) if verdicts.calibration else None,
            verdicts.prompt_version,
            verdict.truncated,
        )
        for verdict in verdicts.verdicts
    ]


def read(body: bytes, type_: type[T], limits: Limits) -> tuple[T, list[str]]:
    """A body as a request, and the names of its unknown fields. Raises RequestError.

    Objects in `questions` have each name once: a reader would keep only the last of several.
    """
    request = decode(body, type_, limits)
    questions = members_of(body).get("questions", b"null")
    try:
        json.loads(bytes(questions), object_pairs_hook=_unique)
    except RecursionError as error:  # Python's parser goes less deep than msgspec's
        raise RequestError("'questions' is nested too deeply.", param="questions") from error
    return request, unknown_members(body, type_)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            message = f"An object in 'questions' has the name '{name[:64]}' twice. Use each name once."
            raise RequestError(message, param="questions")
        members[name] = value
    return members


def check(request: DecisionParams) -> None:
    """Refuse what a decision cannot do. Raises RequestError."""
    for name, remedy in REFUSED.items():
        value = getattr(request, name)
        if value is not None and value is not False:
            raise RequestError(f"'{name}' is not supported. {remedy}", param=name)
    for name in _THINKING:
        if (request.chat_template_kwargs or {}).get(name):
            message = "A decision is read at the first token of the answer: nothing is reasoned before it."
            raise RequestError(f"{message} Leave it out.", param=f"chat_template_kwargs.{name}")


def sampling_of(request: DecisionParams) -> Sampling:
    """How the model is asked. Raises RequestError."""
    return Sampling(
        lora=adapters(request.lora), cache_salt=request.cache_salt or None, priority=request.priority
    )


def json_text(value: Any) -> str:
    """A value as JSON in one line, as a model reads it."""
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


def check_depth(value: Any, param: str, limits: Limits) -> None:
    """Raise RequestError for objects and lists that are nested too deeply."""
    if depth_of(value) > limits.data_depth:
        limits.refuse("data_depth", param, f"'{param}' is nested too deeply")


def depth_of(value: Any) -> int:
    """How many objects and lists are nested in a value."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return 1 + max(map(depth_of, inner), default=0)
    return 0


def is_empty(value: Any) -> bool:
    """Whether there is nothing to read: `""`, `{}`, `[]`, null, or space only."""
    return not (value.strip() if isinstance(value, str) else value)


def check_name(name: str, param: str, limits: Limits) -> None:
    """Raise RequestError for the name of an option that a line cannot show."""
    limits.check("name_characters", len(name), param)
    if is_empty(name) or any(ord(character) in _BREAKS for character in name):
        message = f"Invalid value for '{param}': The name of an option is a line of text, and not empty."
        raise RequestError(message, param=param)


def check_size(decision: Decision, limits: Limits) -> None:
    """Refuse a decision that is clearly too much work, before its model is loaded. Raises RequestError.

    The tokens are estimated, and the model's own orders unknown: what is really read is counted by the model.
    """
    for question in decision.questions:
        _check_labels(question)
    reads = sum(reads_of(question, decision.orders) for question in decision.questions)
    if reads > limits.reads:
        limits.refuse("reads", "questions", f"The questions would be read {reads} times")
    tokens = tokens_of(decision)
    if tokens > limits.read_tokens:
        limits.refuse("read_tokens", None, f"The request has about {tokens} tokens")


def _check_labels(question: Question) -> None:
    """Refuse more options than there are labels, whatever the limits of the server allow."""
    count, most = len(question.options), MOST_OPTIONS[question.kind]
    if count > most:
        message = f"'{question.source}' has {count} options, and a model can tell at most {most} apart."
        raise RequestError(f"{message} Leave some out.", param=question.source)


def reads_of(question: Question, orders: int | None) -> int:
    """How many prompts are read for a question: one for each order of its options."""
    return len(orders_of(question.kind, len(question.options), orders))


def tokens_of(decision: Decision) -> int:
    """About how many tokens are read for a decision: the conversation once, a question for each order."""
    size = sum(map(_size_of, decision.items))
    for question in decision.questions:
        own = _bytes_in(question.instructions)
        own += sum(len(f"{option.name} {option.description}".encode()) for option in question.options)
        size += own * reads_of(question, decision.orders)
    return -(-size // BYTES_PER_TOKEN)


def _size_of(item: Item) -> int:
    match item:
        case FunctionCall():
            return len(item.arguments.encode())
        case Reasoning():
            return len(item.text.encode())
    return _bytes_in(item.parts) if isinstance(item, WITH_PARTS) else 0


def _bytes_in(parts: Sequence[Part]) -> int:
    return sum(len(part.text.encode()) for part in _texts(parts))


def _texts(parts: Sequence[Part]) -> Iterable[TextPart]:
    return (part for part in parts if isinstance(part, TextPart))
