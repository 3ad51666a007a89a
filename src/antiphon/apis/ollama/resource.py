"""The wire types of Ollama's answers: lines of a stream, each of which a full answer is one.

Names and meanings are those of its source (api/types.go). Additional fields of the last line are those of
other APIs here: `notes`, on parts of a request without effect; `unmet`, the demands that an answer does not
meet; `generations`, the usage of each of several. Durations are nanoseconds.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType

from antiphon.core.events import GenerationUsage
from antiphon.core.hosts import Note


class Durations(Struct, frozen=True):
    """How long an answer took so far: in all, for loading, to read the prompt, and to write."""

    total_duration: int
    load_duration: int
    prompt_eval_duration: int
    eval_duration: int


class CalledFunction(Struct):
    """A function that the model calls; `index` counts the calls of an answer."""

    index: int
    name: str
    arguments: Mapping[str, Any]


class ToolCall(Struct):
    """A call, which is always whole."""

    id: str
    function: CalledFunction


class AnswerMessage(Struct):
    """The assistant's message, or the next part of it."""

    role: str = "assistant"
    content: str = ""
    thinking: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class Line(Struct, kw_only=True):
    """What both kinds of lines have; all but the first three fields are in the last line of an answer."""

    model: str
    created_at: str
    done: bool = False
    done_reason: str | UnsetType = UNSET
    logprobs: list[Raw] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    notes: tuple[Note, ...] | UnsetType = UNSET
    unmet: tuple[str, ...] | UnsetType = UNSET
    generations: tuple[GenerationUsage, ...] | UnsetType = UNSET


class ChatLine(Line, kw_only=True):
    """A line of /api/chat."""

    message: AnswerMessage


class GenerateLine(Line, kw_only=True):
    """A line of /api/generate."""

    response: str = ""
    thinking: str | UnsetType = UNSET


class EmbedBody(Struct):
    """The vectors of texts, each of the length 1."""

    model: str
    embeddings: Sequence[Sequence[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class EmbeddingBody(Struct):
    """The vector of a text, in the older form."""

    embedding: Sequence[float]


class ModelDetails(Struct):
    """What is known of a model. `family` is its dialect; what no engine tells is empty."""

    family: str = ""
    families: tuple[str, ...] = ()
    format: str = ""
    parent_model: str = ""
    parameter_size: str = ""
    quantization_level: str = ""


class ListedModel(Struct):
    """A name that requests may use; `size` is in bytes, and `digest` that of the name."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: ModelDetails


class ModelList(Struct):
    """The body of /api/tags."""

    models: list[ListedModel]


class LoadedModel(ListedModel):
    """A model that is loaded; no engine tells how much of it is in the memory of an accelerator."""

    expires_at: str
    context_length: int
    size_vram: int = 0


class LoadedModels(Struct):
    """The body of /api/ps."""

    models: list[LoadedModel]


class ShownModel(Struct):
    """The body of /api/show. The template is Jinja."""

    modelfile: str
    parameters: str
    template: str
    details: ModelDetails
    model_info: Mapping[str, Any]
    capabilities: list[str]
    modified_at: str
    license: str = ""


class PullStatus(Struct):
    """The body of /api/pull, and its only line."""

    status: str = "success"


class Version(Struct):
    """The body of /api/version: the Ollama whose API this is, which clients compare, and this server's."""

    version: str
    antiphon: str
