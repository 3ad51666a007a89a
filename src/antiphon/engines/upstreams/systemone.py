"""Decisions of a server that answers questions itself: System One's `POST /v1/systemone`.

vLLM, SGLang, llama-server, transformers, Ollama and LM Studio have it for some models. It is used for those
whose next token cannot be read. The server puts the questions to its model in its own way, and tells no more
than probabilities. Its form:

    {"model": "m", "state": "Charged twice.", "questions": {"q1": {"type": "noul", "instructions": "Angry?"}}}
    {"model": "m", "answers": {"q1": {"type": "noul", "noul": 0.7}}, "usage": {"input_tokens": 21}}

A single text of a user is sent as it is, any other conversation as messages with their images. The ids are
those of this module: some servers show them to the model.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from antiphon.core.chunks import TokenCount
from antiphon.core.decision import Option, Question, QuestionKind, Verdict, Verdicts
from antiphon.core.errors import RequestError
from antiphon.core.items import MediaKind, MediaPart, Message, Part, Role, TextPart
from antiphon.decide.probabilities import normalised
from antiphon.engines.engine import DecisionRequest, ModelCard
from antiphon.engines.http_client import HttpClient
from antiphon.engines.upstreams.chat import REASONING_KEYS, medium
from antiphon.engines.upstreams.kind import Post, read_usage, unexpected
from antiphon.engines.upstreams.tasks import INCOMPLETE, status_of

PATH = "/v1/systemone"

PROMPT_VERSION = "server"
"""The version of the prompts, which are the server's own."""

MAX_QUESTIONS = 64
"""Questions in a request: as many as vLLM and transformers take."""

MAX_IMAGES = 8
"""Images in a request: as many as llama-server takes."""

_Probability = Annotated[float, Meta(ge=0, le=1.001)]
"""As it is told, perhaps rounded."""


class _Answer(Struct, frozen=True):
    noul: _Probability | None = None
    probabilities: dict[str, _Probability] | None = None
    x_truncated: bool = False


class _Usage(Struct, frozen=True):
    input_tokens: TokenCount = 0


class _Answers(Struct, frozen=True):
    answers: dict[str, _Answer]
    usage: Any = None


async def is_served(client: HttpClient) -> bool:
    """Whether the server has the route: it refuses a request without questions as incomplete."""
    return await status_of(client, PATH, {}) in INCOMPLETE


async def decide(post: Post, card: ModelCard, request: DecisionRequest) -> Verdicts:
    """The server's answers to all questions.

    Its tokens are those that it reports: of many questions, the conversation is read several times. Raises
    RequestError, before the server is asked, for what it cannot be told; AntiphonError.
    """
    questions = request.decision.questions
    state = _state(request)
    encoded = {f"q{number}": _encoded(question) for number, question in enumerate(questions, 1)}
    told: dict[str, _Answer] = {}
    tokens = 0
    ids = [*encoded]
    for start in range(0, len(ids), MAX_QUESTIONS):
        batch = {id_: encoded[id_] for id_ in ids[start : start + MAX_QUESTIONS]}
        body = {"model": card.known_as[0], "state": state, "questions": batch}
        answers = await post(PATH, body, _Answers)
        told |= answers.answers
        tokens += (read_usage(answers.usage, _Usage) or _Usage()).input_tokens
    if not told.keys() >= encoded.keys():
        raise unexpected()
    verdicts = (_verdict(question, told[id_]) for id_, question in zip(ids, questions, strict=True))
    return Verdicts((*verdicts,), tokens, reads=len(questions), prompt_version=PROMPT_VERSION)


# What is sent


def _state(request: DecisionRequest) -> str | Sequence[Mapping[str, Any]]:
    """The conversation. Raises RequestError for media that the server cannot be told."""
    for part in request.media:
        if part.kind is not MediaKind.IMAGE:
            message = "The server of this model answers questions about texts and images only. Leave it out."
            raise RequestError(message, param=part.param or "conversation")
    if len(request.media) > MAX_IMAGES:
        message = (
            f"The server of this model accepts {MAX_IMAGES} images in a decision, and there are "
            f"{len(request.media)}. Send fewer."
        )
        raise RequestError(message, param="conversation")
    match request.decision.items:
        case (Message(role=Role.USER, parts=parts),) if not request.media:
            return _text(parts)
    media = iter(request.media)
    return [_message(message, media) for message in request.messages]


def _message(message: Mapping[str, Any], media: Iterator[MediaPart]) -> dict[str, Any]:
    """A message as in Chat Completions. `media` are those that are still to be sent."""
    sent = {key: value for key, value in message.items() if key not in REASONING_KEYS}
    if isinstance(sent["content"], list):
        sent["content"] = [part if "text" in part else medium(next(media)) for part in sent["content"]]
    if sent["role"] == "developer":
        sent["role"] = "system"
    return sent


def _encoded(question: Question) -> Mapping[str, Any]:
    """A question in System One's form. Raises RequestError for one with media."""
    for part in question.instructions:
        if isinstance(part, MediaPart):
            message = (
                "The server of this model accepts images only in the text, not in "
                "questions. Move the image to the text."
            )
            raise RequestError(message, param=part.param or question.source)
    instructions = _text(question.instructions)
    match question.kind:
        case QuestionKind.CHOICE:
            criteria: Any = {option.name: option.description or None for option in question.options}
            return {"type": "choice", "instructions": instructions, "criteria": criteria}
        case QuestionKind.SCORE:
            criteria = [*map(_meaning, question.options)]
            return {"type": "score", "instructions": instructions, "criteria": criteria}
    sides = {
        side: meaning
        for side, option in zip(("true", "false"), question.options, strict=True)
        if (meaning := _meaning(option))
    }
    fields = {"instructions": instructions, "criteria": sides}
    return {"type": "noul", **{name: value for name, value in fields.items() if value}}


def _meaning(option: Option) -> str:
    return ": ".join(filter(None, (option.name, option.description)))


def _text(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextPart))


# What is received


def _verdict(question: Question, answer: _Answer) -> Verdict:
    """The probabilities, in the order of the options. Raises EngineError if one is missing."""
    if question.kind is QuestionKind.PREDICATE:
        if answer.noul is None:
            raise unexpected()
        probability = min(1.0, answer.noul)
        weights = [probability, 1 - probability]
    else:
        told = answer.probabilities or {}
        numbered = question.kind is QuestionKind.SCORE
        names = [str(index) if numbered else option.name for index, option in enumerate(question.options)]
        if not told.keys() >= {*names} or not any(told[name] for name in names):
            raise unexpected()
        weights = [told[name] for name in names]
    return Verdict(normalised(weights), None, None, truncated=answer.x_truncated)
