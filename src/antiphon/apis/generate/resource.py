"""The wire types of answers of token ids, of their chunks, and of rendered requests: vLLM 0.33's.

Every field of vLLM is there, as it writes them: null where there is nothing to tell.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType

from antiphon.apis.completion_body import ChoiceError, CompletionUsage, PromptLogprobs
from antiphon.core.hosts import Note


class TokenCandidate(Struct):
    """A token at a position. Its rank is null if the engine does not tell it."""

    token_id: int
    logprob: float
    rank: int | None = None


class ScoredToken(TokenCandidate, kw_only=True):
    """A generated token, with the candidates for its position: itself first, then the likeliest."""

    top_logprobs: list[TokenCandidate] = []


class NamedCandidate(Struct):
    """A token at a position, by its text."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class NamedToken(NamedCandidate, kw_only=True):
    """A generated token by its text, with the candidates for its position."""

    top_logprobs: list[NamedCandidate] = []


class ScoredTokens(Struct):
    """The log probabilities of tokens, each of them encoded: a `ScoredToken`, or a `NamedToken` with text."""

    content: list[Raw]


class GeneratedChoice(Struct):
    """One answer, or what a chunk adds to it. Only answers with text have `text`."""

    index: int
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] = []
    routed_experts: str | None = None
    sampling_mask: list[list[int]] | None = None
    weight_versions: list[Any] | None = None
    text: str | UnsetType = UNSET
    logprobs: ScoredTokens | None = None
    error: ChoiceError | UnsetType = UNSET
    unmet: tuple[str, ...] | UnsetType = UNSET
    notes: tuple[Note, ...] | UnsetType = UNSET


class Generated(Struct, kw_only=True):
    """The body of a full answer."""

    request_id: str
    model: str
    created: int
    usage: CompletionUsage
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_id_logprobs: str | None = None
    prompt_token_ids: Sequence[int] | None = None
    mm_placeholders: Mapping[str, Any] | None = None
    metrics: Mapping[str, Any] | None = None
    kv_transfer_params: Mapping[str, Any] | None = None
    ec_transfer_params: Mapping[str, Any] | None = None
    output_mode: str
    choices: list[GeneratedChoice]


class GeneratedChunk(Struct, kw_only=True):
    """One event of a stream. The ids of the prompt are in the first."""

    request_id: str
    usage: CompletionUsage | None = None
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    output_mode: str
    choices: list[GeneratedChoice]


class Placeholders(Struct):
    """The tokens in the place of an image, audio or a video: from `offset` on, `length` of them."""

    offset: int
    length: int


class Features(Struct):
    """The media of a prompt by their kind, in the order of the prompt: what they are, and where they are.

    A hash is the SHA-256 of the data. The model's engine computes their tensors, and may put more tokens in
    the place of each.
    """

    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[Placeholders]]
    kwargs_data: dict[str, list[str | None]] | None = None
    mm_metadata: dict[str, list[str | None]] | None = None


class ParseContext(Struct):
    """What a reader of the answer's text has to know of a conversation."""

    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = "none"
    parallel_tool_calls: bool = True
    include_reasoning: bool = True
    chat_template_kwargs: Mapping[str, Any] = {}
    history_tool_call_cnt: int = 0


class RenderedRequest(Struct, kw_only=True):
    """A request as the ids of its prompt: one to /inference/v1/generate, here or at a vLLM.

    Antiphon's own are `object`, `prompt`, `count` (the number of tokens), `max_model_len`, and `notes` on
    what these ids do not say.
    """

    request_id: str
    token_ids: Sequence[int]
    token_offsets: list[tuple[int, int]] | None = None
    features: Features | None = None
    content_parts: list[Any] | None = None
    sampling_params: dict[str, Any]
    model: str
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: Mapping[str, Any] | None = None
    return_token_ids: bool | None = None
    output_mode: str = "tokens"
    parse_context: ParseContext | None = None
    stream: bool = False
    stream_options: Mapping[str, Any] | None = None
    cache_salt: str | None = None
    priority: int = 0
    kv_transfer_params: Mapping[str, Any] | None = None
    ec_transfer_params: Mapping[str, Any] | None = None
    object: str
    prompt: str
    count: int
    max_model_len: int
    notes: tuple[Note, ...] | UnsetType = UNSET
