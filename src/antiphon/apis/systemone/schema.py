"""The wire types of System One: requests and answers.

A question stays JSON in a request, so that errors can say which one they are about: `accept.py` reads it as a
`SystemOneQuestion`. It has no other fields than these. What is said in them is text, or JSON that the model
reads as text (`Content`).
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from antiphon.apis.questions import DecisionParams, Diagnostics

Content = str | dict[str, Any] | list[Any]


class NoulCriteria(Struct, forbid_unknown_fields=True):
    """When the answer is yes, and when it is no."""

    yes: Content | None = field(name="true", default=None)
    no: Content | None = field(name="false", default=None)


class NoulQuestion(Struct, tag="noul", forbid_unknown_fields=True):
    """A question that yes or no answers. It needs one of the two."""

    instructions: Content | None = None
    criteria: NoulCriteria | None = None


class OptionQuestion(Struct, tag="choice", forbid_unknown_fields=True):
    """Which of some alternatives: their names, and what each means."""

    instructions: Content
    criteria: Annotated[dict[str, Content | None], Meta(min_length=1)]


class LevelQuestion(Struct, tag="score", forbid_unknown_fields=True):
    """How much: the levels of a scale, the lowest first."""

    instructions: Content
    criteria: Annotated[list[Content], Meta(min_length=2)]


class BoxQuestion(Struct, tag="box", forbid_unknown_fields=True):
    """Where something is in an image. No model of this server finds that."""

    instructions: Content | None = None


SystemOneQuestion = NoulQuestion | OptionQuestion | LevelQuestion | BoxQuestion


class Asset(Struct):
    """An image: in base64, or the name of a part of the form. Its format is read from its bytes."""

    type: Literal["image"] | None = None
    format: Literal["png", "jpg", "jpeg"] | None = None
    data_base64: str | None = None
    part: str | None = None


class SystemOneRequest(DecisionParams, kw_only=True):
    """POST /v1/systemone.

    The names of `assets` are placeholders, which stand somewhere in the texts. A `state` that is a list of
    messages, as in Chat Completions, is a conversation. `instructions`, `images` and `videos` are those of
    vLLM, SGLang and llama-server: a system message, and data URLs of what is shown before the state.
    """

    state: Content
    questions: Annotated[dict[str, Any], Meta(min_length=1)]
    assets: Annotated[dict[str, Asset], Meta(min_length=1)] | None = None
    instructions: str | None = None
    images: list[str] | None = None
    videos: list[str] | None = None


class SystemOneBody(SystemOneRequest, kw_only=True):
    """The same with the types of its questions, for the OpenAPI document."""

    questions: Annotated[dict[str, SystemOneQuestion], Meta(min_length=1)]


class NoulAnswer(Struct, tag="noul"):
    """The probability of yes. With `x_truncated` it is as high as it can be."""

    noul: float
    x_truncated: bool | UnsetType = UNSET


class OptionAnswer(Struct, tag="choice"):
    """The likeliest alternative, and the probability of each by its name."""

    choice: str
    confidence: float
    probabilities: dict[str, float]
    x_truncated: bool | UnsetType = UNSET


class LevelAnswer(Struct, tag="score"):
    """The expected level, from 0 on, and the probability of each by its number."""

    score: float
    confidence: float
    legend: dict[str, Content]
    probabilities: dict[str, float]
    x_truncated: bool | UnsetType = UNSET


SystemOneAnswer = NoulAnswer | OptionAnswer | LevelAnswer


class SystemOneUsage(Struct):
    """Tokens: those that all questions share count once, and nothing is written."""

    input_tokens: int
    output_tokens: int = 0


class SystemOneAnswers(Struct):
    """The answers by the ids of their questions, in the order of the request."""

    model: str
    answers: dict[str, SystemOneAnswer]
    usage: SystemOneUsage
    x_diagnostics: dict[str, Diagnostics] | UnsetType = UNSET


class SystemOneFailure(Struct):
    """An error, with the status as its `code`."""

    message: str
    type: str
    code: int


class Problem(Struct):
    """What is wrong with a request, and where."""

    loc: list[str | int]
    msg: str
    type: str


class ErrorDetail(Struct):
    """The same error in the form of Jev."""

    error_type: str
    message: str


class SystemOneFailureBody(Struct):
    """The body of an error. `detail` lists problems of a request that is wrong."""

    error: SystemOneFailure
    detail: list[Problem] | ErrorDetail
