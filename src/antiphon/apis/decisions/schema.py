"""The wire types of OpenAI's Decisions: requests and answers.

Items of the input stay JSON in a request, because messages may leave their `type` out: `accept.py` reads them
as `InputMessage` and `InputCall`. A question has no other fields than these.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.apis.questions import DecisionParams, Diagnostics
from antiphon.apis.request import SafetyIdentifier

Phase = Literal["commentary", "final_answer"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
ImageDetail = Literal["low", "high", "auto", "original"]
Data = dict[str, Any] | list[dict[str, Any]]
"""JSON that the model reads as text."""


class CacheBreakpoint(Struct):
    """Marks the end of a beginning that other requests share. Engines find these by themselves."""

    mode: Literal["explicit"]


class InputText(Struct, tag="input_text"):
    """A text."""

    text: str
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class InputImage(Struct, tag="input_image"):
    """An image at a data URL, or at a URL of the web."""

    image_url: str
    detail: ImageDetail | None = None
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class InputJson(Struct, tag="input_json"):
    """An object, or a list of objects."""

    data: Data


class OutputText(Struct, tag="output_text"):
    """A text that a model wrote."""

    text: str


class RefusalText(Struct, tag="refusal"):
    """What a model wrote instead of an answer."""

    refusal: str


class UserMessage(Struct, tag_field="role", tag="user"):
    """A message of the user."""

    content: str | list[InputText | InputImage | InputJson]
    type: Literal["message"] = "message"


class DeveloperMessage(Struct, tag_field="role", tag="developer"):
    """A message of the developer."""

    content: str | list[InputText]
    type: Literal["message"] = "message"


class SystemMessage(Struct, tag_field="role", tag="system"):
    """A message of the system."""

    content: str | list[InputText]
    type: Literal["message"] = "message"


class AssistantMessage(Struct, tag_field="role", tag="assistant"):
    """An earlier answer."""

    content: str | list[OutputText | RefusalText]
    phase: Phase | None = None
    type: Literal["message"] = "message"


InputMessage = UserMessage | DeveloperMessage | SystemMessage | AssistantMessage


class InputFunctionCall(Struct, tag="function_call"):
    """A call of a function."""

    call_id: str
    name: str
    arguments: str
    id: str | None = None
    namespace: str | None = None
    status: ItemStatus | None = None


class InputFunctionOutput(Struct, tag="function_call_output"):
    """Its output."""

    call_id: str
    output: str | list[InputText | InputImage]
    id: str | None = None
    status: ItemStatus | None = None


class InputCustomCall(Struct, tag="custom_tool_call"):
    """A call of a tool that takes a text."""

    call_id: str
    name: str
    input: str
    id: str | None = None
    namespace: str | None = None
    status: ItemStatus | None = None


class InputCustomOutput(Struct, tag="custom_tool_call_output"):
    """Its output."""

    call_id: str
    output: str | list[InputText | InputImage]
    id: str | None = None
    status: ItemStatus | None = None


InputCall = InputFunctionCall | InputFunctionOutput | InputCustomCall | InputCustomOutput


class QuestionText(Struct, tag="input_text", forbid_unknown_fields=True):
    """A text of a question."""

    text: str


class QuestionImage(Struct, tag="input_image", forbid_unknown_fields=True):
    """An image of a question."""

    image_url: str
    detail: ImageDetail | None = None


class QuestionJson(Struct, tag="input_json", forbid_unknown_fields=True):
    """JSON of a question."""

    data: Data


Instructions = str | list[QuestionText | QuestionImage | QuestionJson]


class PredicateQuestion(Struct, tag="predicate", forbid_unknown_fields=True):
    """Whether something is true."""

    instructions: Instructions
    name: str | None = None


class ChoiceOption(Struct, forbid_unknown_fields=True):
    """One of the alternatives. `true` and `"true"` are different values."""

    value: str | bool
    description: str | None = None


class ChoiceQuestion(Struct, tag="choice", forbid_unknown_fields=True):
    """Which of some alternatives."""

    instructions: Instructions
    choices: Annotated[list[ChoiceOption], Meta(min_length=2)]
    name: str | None = None


class ScoreLevel(Struct, forbid_unknown_fields=True):
    """One of the levels of a scale."""

    label: str
    description: str | None = None


class ScoreQuestion(Struct, tag="score", forbid_unknown_fields=True):
    """How much, on a scale from its lowest level to its highest."""

    instructions: Instructions
    levels: Annotated[list[ScoreLevel], Meta(min_length=2)]
    name: str | None = None


DecisionQuestion = PredicateQuestion | ChoiceQuestion | ScoreQuestion


class PromptCacheOptions(Struct):
    """How to cache the prompt. Engines do so by themselves."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m"] | None = None


class CreateDecision(DecisionParams, kw_only=True):
    """POST /v1/decisions."""

    input: str | list[dict[str, Any]]
    questions: Annotated[list[DecisionQuestion], Meta(min_length=1)]
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    safety_identifier: SafetyIdentifier | None = None


class PredicateAnswer(Struct, tag="predicate"):
    """The probability that it is true. With `x_truncated` it is as high as it can be."""

    name: str | None
    probability: float
    x_truncated: bool | UnsetType = UNSET


class ChoiceProbability(Struct):
    """The probability of an alternative."""

    value: str | bool
    probability: float


class ChoiceAnswer(Struct, tag="choice"):
    """The likeliest alternative, and the probability of each."""

    name: str | None
    choice: str | bool
    confidence: float
    probabilities: list[ChoiceProbability]
    x_truncated: bool | UnsetType = UNSET


class ScoreProbability(Struct):
    """The probability of a level, whose `value` is its place in the scale."""

    value: int
    label: str
    probability: float


class ScoreAnswer(Struct, tag="score"):
    """The expected place in the scale, and the probability of each level."""

    name: str | None
    score: float
    confidence: float
    probabilities: list[ScoreProbability]
    x_truncated: bool | UnsetType = UNSET


DecisionAnswer = PredicateAnswer | ChoiceAnswer | ScoreAnswer


class InputDetails(Struct):
    """Tokens of the input that were, or are now, in the cache."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(Struct):
    """Nothing is reasoned."""

    reasoning_tokens: int = 0


class DecisionUsage(Struct):
    """Tokens: those that all questions share count once, and nothing is written."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class DecisionBody(Struct):
    """The answers, in the order of the questions."""

    model: str
    answers: list[DecisionAnswer]
    usage: DecisionUsage
    x_diagnostics: list[Diagnostics] | UnsetType = UNSET
