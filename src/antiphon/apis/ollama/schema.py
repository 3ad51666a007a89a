"""The wire types of requests to Ollama's API.

Names and meanings are those of its documentation (docs/api.md) and of its source (api/types.go). The members
of `options` are parameters like the others: see `GROUPS` in `apis/fields.py`, which has other names of
samplers, too. In addition there are the parameters that all APIs share (`SamplingParams`).
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from antiphon.apis.request import AtLeastOne, Effort, NonEmptyStr, SamplingParams
from antiphon.apis.request_object import Object

MAX_ALTERNATIVES = 20
"""The most `top_logprobs`, as in Ollama."""

NumPredict = Annotated[int, Meta(ge=-2)]
"""-1 and 0 are no limit, -2 is what the context has room for."""
TopLogprobs = Annotated[int, Meta(ge=0, le=MAX_ALTERNATIVES)]
KeepAlive = str | float
"""A duration such as `5m`, or seconds."""


class NotedOptions(SamplingParams, kw_only=True):
    """Options that have no effect here, beside those that have: see `accept.NOTED`."""

    num_ctx: Any = None
    num_keep: Any = None
    num_batch: Any = None
    num_gpu: Any = None
    main_gpu: Any = None
    num_thread: Any = None
    use_mmap: Any = None
    use_mlock: Any = None
    low_vram: Any = None
    f16_kv: Any = None
    logits_all: Any = None
    vocab_only: Any = None
    embedding_only: Any = None
    numa: Any = None
    penalize_newline: Any = None


class AnswerRequest(NotedOptions, kw_only=True):
    """What both requests for an answer have. `stream` is true unless it is false."""

    model: str
    stream: bool | None = None
    format: Any = None
    think: bool | Effort | None = None
    keep_alive: KeepAlive | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    num_predict: NumPredict | None = None
    truncate: bool | None = None
    shift: bool | None = None

    def __post_init__(self) -> None:
        if self.stream is None:
            self.stream = True


class CalledFunction(Struct):
    """The function of an earlier call; its arguments are an object."""

    name: NonEmptyStr
    arguments: Object | None = None


class ToolCall(Struct):
    """A call that the assistant made earlier. Most clients send no ids."""

    function: CalledFunction
    id: str | None = None


class RequestMessage(Struct):
    """A message of a role; images are base64, of a result `tool_name` is the function that was called."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ChatRequest(AnswerRequest, kw_only=True):
    """POST /api/chat. Without messages the model is loaded, or unloaded if `keep_alive` is 0."""

    messages: list[RequestMessage] | None = None
    tools: list[Object] | None = None


class GenerateRequest(AnswerRequest, kw_only=True):
    """POST /api/generate. Without a prompt the model is loaded, or unloaded if `keep_alive` is 0.

    A `raw` prompt is not put into a chat template, and one with a `suffix` is the text before a gap.
    """

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    images: list[str] | None = None
    raw: bool | None = None

    # Refused: see `accept.REFUSED`
    template: Any = None
    context: Any = None
    width: Any = None
    height: Any = None
    steps: Any = None


class EmbedRequest(Struct, kw_only=True):
    """POST /api/embed: a text, or several. What is too long is cut, unless `truncate` is false."""

    model: str
    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: AtLeastOne | None = None
    keep_alive: KeepAlive | None = None


class EmbeddingsRequest(Struct, kw_only=True):
    """POST /api/embeddings: the older form, for one text."""

    model: str
    prompt: str | None = None
    keep_alive: KeepAlive | None = None


class ModelRequest(Struct, kw_only=True):
    """POST /api/show, /api/pull, and those that are refused. `name` is the older name of `model`.

    `verbose` would show the vocabulary, too, and `insecure` is for downloads.
    """

    model: str | None = None
    name: str | None = None
    stream: bool | None = None
    verbose: bool | None = None
    insecure: bool | None = None
