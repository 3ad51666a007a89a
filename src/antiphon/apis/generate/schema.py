"""The wire type of requests to /inference/v1/generate: vLLM 0.33's `GenerateRequest`, field by field.

`sampling_params` are vLLM's own: those that this server takes are read as `SamplingOptions`. Of all others,
`IGNORED` change nothing of the answer, and the rest is refused, unless its value requests nothing.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from antiphon.apis.request import (
    CacheSalt,
    Choices,
    Count,
    NonEmptyStr,
    SamplingParams,
    Seconds,
    StreamOptions,
    TokenLimit,
)
from antiphon.core.chunks import TokenId

PromptIds = Annotated[list[TokenId], Meta(min_length=1)]


class SamplingOptions(SamplingParams, kw_only=True):
    """The members of `sampling_params` that are taken."""

    n: Choices | None = None
    max_tokens: TokenLimit | None = None
    logprobs: Count | None = None
    prompt_logprobs: Count | None = None


class GenerateTokens(Struct, kw_only=True):
    """POST /inference/v1/generate: the ids of a prompt, which the model continues."""

    model: str = ""
    token_ids: PromptIds
    sampling_params: dict[str, Any]
    request_id: NonEmptyStr | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    output_mode: Literal["tokens", "text", "derender"] = "tokens"
    return_token_ids: bool | None = None
    cache_salt: CacheSalt | None = None
    priority: int | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    features: dict[str, Any] | None = None
    content_parts: list[Any] | None = None
    reasoning_ended: bool | None = None
    deadline_seconds: Seconds | None = None

    # Told by /render for readers and for other modes, and without effect on tokens
    object: Any = None
    prompt: Any = None
    count: Any = None
    max_model_len: Any = None
    notes: Any = None
    token_offsets: list[Any] | None = None
    reasoning_parser_kwargs: dict[str, Any] | None = None
    parse_context: dict[str, Any] | None = None


IGNORED = frozenset(
    {
        *("flat_logprobs", "detokenize", "spaces_between_special_tokens", "output_kind", "stream_interval"),
        *("skip_clone", "output_text_buffer_length", "watermarking", "_watermarking_skipped"),
        *("_eos_token_id", "_all_stop_token_ids", "_bad_words_token_ids"),
    }
)
"""Members that say how vLLM works, not which tokens an answer has; it overwrites most of them itself."""

NOTHING: Mapping[str, tuple[Any, ...]] = {"routed_experts_prompt_start": (0,)}
"""Values of other members that request nothing, besides null, false and what is empty."""

STRUCTURED_IGNORED = frozenset({"_backend", "_backend_was_auto"})
"""The same of `structured_outputs`: which program vLLM enforces them with."""
