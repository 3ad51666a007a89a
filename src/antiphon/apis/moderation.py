"""The wire types of moderation: POST /v1/moderations, and `moderation` of requests and answers.

Names and meanings are those of OpenAI's OpenAPI document (CreateModerationRequest, ModerationParam,
ChatCompletionModeration, Moderation). A result has all of OpenAI's categories, those that the guard does not
tell of with the score 0 and no type of input, and those of the guard that OpenAI does not have. `x_scores` is
Antiphon's: whether scores are probabilities, or the verdict that the guard has written.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from antiphon.apis.request import NonEmptyStr
from antiphon.apis.request_object import Object
from antiphon.core.errors import RequestError
from antiphon.core.limits import Limits
from antiphon.core.moderation import (
    CATEGORIES,
    GuardFailure,
    GuardOutcome,
    GuardVerdict,
    ModerationMode,
    ModerationPolicy,
    ModerationResult,
)

ALIASES = frozenset(
    {
        *("omni-moderation-latest", "omni-moderation-2024-09-26"),
        *("text-moderation-latest", "text-moderation-stable", "text-moderation-007"),
    }
)
"""OpenAI's names of models: they mean the guard of this server."""


class ModerationConfig(Struct):
    """What is done with texts that are flagged."""

    mode: Literal["score", "block"]


class ModerationModes(Struct):
    """The same for the request, and for its answer. By default both are scored."""

    input: ModerationConfig | None = None
    output: ModerationConfig | None = None


class ModerationParam(Struct):
    """`moderation` of a request."""

    model: NonEmptyStr
    policy: ModerationModes | None = None


def policy_of(param: ModerationParam) -> ModerationPolicy:
    """The policy that a request asks for."""
    modes = param.policy or ModerationModes()
    return ModerationPolicy(_mode(modes.input), _mode(modes.output))


def _mode(config: ModerationConfig | None) -> ModerationMode:
    return ModerationMode.SCORE if config is None else ModerationMode(config.mode)


class CreateModeration(Struct):
    """POST /v1/moderations. The `input` is a text, a list of texts, or the parts of one."""

    input: str | list[str | Object]
    model: str | None = None


def texts_of(request: CreateModeration, limits: Limits) -> list[str]:
    """The texts to be judged. Raises RequestError for more than is allowed, and for media."""
    given = request.input
    texts: list[str] = [given] if isinstance(given, str) else []
    parts: list[str] = []
    for index, part in enumerate(() if isinstance(given, str) else given):
        if isinstance(part, str):
            texts.append(part)
        else:
            parts.append(_text(part, f"input[{index}]"))
    if texts and parts:
        message = "A list holds texts, each judged for itself, or the parts of one text: not some of each."
        raise RequestError(message, param="input")
    texts += ["\n\n".join(parts)] if parts else []
    if not texts:
        raise RequestError("'input' has no text to check. Send a text.", param="input")
    limits.check("moderation_inputs", len(texts), "input")
    check_size(texts, "input", limits)
    return texts


def check_size(texts: Sequence[str], param: str, limits: Limits) -> None:
    """Raise RequestError for more characters than a guard is to read for one request."""
    if (size := sum(map(len, texts))) > limits.moderation_characters:
        limits.refuse("moderation_characters", param, f"The texts to be moderated have {size} characters")


def _text(part: Object, where: str) -> str:
    kind, text = part.get("type"), part.get("text")
    if kind != "text":
        message = "The guard model reads text only. Leave out images."
        raise RequestError(message, param=where)
    if not isinstance(text, str):
        raise RequestError(f"'{where}.text' must be a text.", param=f"{where}.text")
    return text


class Judged(Struct):
    """What the guard says of a text."""

    flagged: bool
    categories: Mapping[str, bool]
    category_scores: Mapping[str, float]
    category_applied_input_types: Mapping[str, list[str]]
    x_scores: Literal["probability", "verdict"]


class Moderations(Struct):
    """The body of an answer: a result for each text."""

    id: str
    model: str
    results: list[Judged]


class ModerationResultBody(Struct, tag_field="type", tag="moderation_result"):
    """The same, with the name of the guard."""

    model: str
    flagged: bool
    categories: Mapping[str, bool]
    category_scores: Mapping[str, float]
    category_applied_input_types: Mapping[str, list[str]]
    x_scores: Literal["probability", "verdict"]


class ModerationErrorBody(Struct, tag_field="type", tag="error"):
    """Why there is no result."""

    code: str
    message: str


class ModerationResults(Struct, tag_field="type", tag="moderation_results"):
    """The results of a request, or of each of its choices."""

    model: str
    results: list[ModerationResultBody]


class ChatModeration(Struct):
    """`moderation` of a chat completion."""

    input: ModerationResults | ModerationErrorBody
    output: ModerationResults | ModerationErrorBody


class ResponseModeration(Struct):
    """`moderation` of a response."""

    input: ModerationResultBody | ModerationErrorBody
    output: ModerationResultBody | ModerationErrorBody


def judged(verdict: GuardVerdict) -> Judged:
    """A verdict as a result of /v1/moderations."""
    names = dict.fromkeys((*CATEGORIES, *verdict.scores))
    return Judged(
        flagged=verdict.flagged,
        categories={name: verdict.categories.get(name, False) for name in names},
        category_scores={name: verdict.scores.get(name, 0.0) for name in names},
        category_applied_input_types={name: ["text"] if name in verdict.scores else [] for name in names},
        x_scores="probability" if verdict.read else "verdict",
    )


def chat_moderation(result: ModerationResult) -> ChatModeration:
    """The results of a chat request and its choices."""
    return ChatModeration(_results(result.model, (result.input,)), _results(result.model, result.outputs))


def response_moderation(result: ModerationResult) -> ResponseModeration:
    """The results of a request for a response, which has one answer."""
    [output] = result.outputs
    return ResponseModeration(_body(result.model, result.input), _body(result.model, output))


def _results(model: str, outcomes: Sequence[GuardOutcome]) -> ModerationResults | ModerationErrorBody:
    """The results of several texts; the first failure, if there is one."""
    for outcome in outcomes:
        if isinstance(outcome, GuardFailure):
            return ModerationErrorBody(outcome.code, outcome.message)
    verdicts = (outcome for outcome in outcomes if isinstance(outcome, GuardVerdict))
    return ModerationResults(model, [_result(model, verdict) for verdict in verdicts])


def _body(model: str, outcome: GuardOutcome) -> ModerationResultBody | ModerationErrorBody:
    if isinstance(outcome, GuardFailure):
        return ModerationErrorBody(outcome.code, outcome.message)
    return _result(model, outcome)


def _result(model: str, verdict: GuardVerdict) -> ModerationResultBody:
    shown = judged(verdict)
    return ModerationResultBody(
        model,
        shown.flagged,
        shown.categories,
        shown.category_scores,
        shown.category_applied_input_types,
        shown.x_scores,
    )
