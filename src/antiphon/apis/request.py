"""The fields of a request for text, for every API.

Names and meanings are OpenAI's where OpenAI has the parameter, else vLLM's, else llama.cpp's. Reading is
lenient: null means absent. Other names of these fields, and the treatment of all others, are in `fields`.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

MAX_CHOICES = 128
"""The maximum of `n`, as OpenAI has it."""
MAX_STOPS = 16
"""The most `stop` strings in one request."""
MAX_STOP_TOKENS = 128
"""The most `stop_token_ids` in one request."""
MAX_BAD_WORDS = 1024
"""The most `bad_words` in one request."""
MAX_BANNED_TOKENS = 1024
"""The most `banned_tokens` in one request."""
MAX_BREAKERS = 64
"""The most `dry_sequence_breakers` in one request."""
MAX_SAMPLERS = 32
"""The most `samplers` in one request."""
MAX_ADAPTERS = 64
"""The most adapters that one request may name."""
MAX_METADATA = 16
"""The most `metadata` of one request; keys have up to 64 characters, values up to 512."""

NonNegative = Annotated[float, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
UnitInterval = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Meta(gt=0)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Scale = Annotated[float, Meta(ge=-100, le=100)]
Count = Annotated[int, Meta(ge=0)]
CountOrAll = Annotated[int, Meta(ge=-1)]
"""-1 means all."""
TokenLimit = CountOrAll
"""0 is no limit either: clients send both."""
AtLeastOne = Annotated[int, Meta(ge=1)]
TokenIds = Annotated[list[Count], Meta(max_length=MAX_STOP_TOKENS)]
Choices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
NonEmptyStr = Annotated[str, Meta(min_length=1)]
StopStrings = Annotated[list[str], Meta(max_length=MAX_STOPS)]
BadWords = Annotated[list[str], Meta(max_length=MAX_BAD_WORDS)]
BannedTokens = Annotated[list[Count], Meta(max_length=MAX_BANNED_TOKENS)]
Breakers = Annotated[list[str], Meta(max_length=MAX_BREAKERS)]
Samplers = Annotated[list[str], Meta(max_length=MAX_SAMPLERS)]
AtMostOne = Annotated[float, Meta(le=1)]
CacheSalt = Annotated[str, Meta(max_length=128, pattern=r"^[^@/\\\x00]*$")]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity = Literal["low", "medium", "high"]
MetadataKey = Annotated[str, Meta(max_length=64)]
MetadataValue = Annotated[str, Meta(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=MAX_METADATA)]
SafetyIdentifier = Annotated[str, Meta(max_length=128)]


class StreamOptions(Struct):
    """How to stream. `continuous_usage_stats`: usage in all chunks; `include_obfuscation`: random padding."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class PromptCacheOptions(Struct):
    """How to cache the prompt: engines do so by themselves. `prewarm`: only compute it, without an answer."""

    mode: str | None = None
    ttl: str | None = None
    prewarm: bool | None = None
    comparison_response_id: str | None = None


class UsageOptions(Struct):
    """Whether to report the usage, as OpenRouter has it: full answers do so anyhow, streams at their end."""

    include: bool | None = None


class TextFormat(Struct, tag="text"):
    """Any text."""


class JsonObjectFormat(Struct, tag="json_object"):
    """Any JSON object, or one of a schema, as in llama-server."""

    schema: dict[str, Any] | None = None


class NamedSchema(Struct):
    """A JSON Schema with a name, which the model sees."""

    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Struct, tag="json_schema"):
    """JSON that fits a schema."""

    json_schema: NamedSchema


class StructuralTagFormat(Struct, tag="structural_tag", omit_defaults=True):
    """Text with constrained parts, as xgrammar writes it today (`format`) or did before."""

    format: dict[str, Any] | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat


class StructuredOutputs(Struct):
    """The required form of the answer, in vLLM's fields: one of these."""

    json: dict[str, Any] | str | None = None
    regex: NonEmptyStr | None = None
    choice: Annotated[list[NonEmptyStr], Meta(min_length=1)] | None = None
    grammar: NonEmptyStr | None = None
    json_object: bool | None = None
    structural_tag: dict[str, Any] | str | None = None
    whitespace_pattern: str | None = None


class ScaledAdapter(Struct, omit_defaults=True):
    """A LoRA adapter of the model, by its number as in llama-server, or by its name; and its scale."""

    id: Count | None = None
    name: NonEmptyStr | None = None
    scale: Scale = 1.0


MediaFallback = Literal["error", "note"]
"""What to do with media that the model does not take: an error, or a note in their place."""


class SampledFields(Struct, kw_only=True):
    """How tokens are sampled: fields of `Sampling`."""

    temperature: NonNegative | None = None
    top_p: UnitInterval | None = None
    top_k: CountOrAll | None = None
    min_p: UnitInterval | None = None
    typical_p: UnitInterval | None = None
    top_n_sigma: float | None = None
    xtc_probability: UnitInterval | None = None
    xtc_threshold: UnitInterval | None = None
    dynatemp_range: NonNegative | None = None
    dynatemp_exponent: NonNegative | None = None
    mirostat: Literal[0, 1, 2] | None = None
    mirostat_tau: NonNegative | None = None
    mirostat_eta: NonNegative | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    repetition_decay: Count | None = None
    repeat_last_n: CountOrAll | None = None
    dry_multiplier: NonNegative | None = None
    dry_base: NonNegative | None = None
    dry_allowed_length: Count | None = None
    dry_penalty_last_n: CountOrAll | None = None
    dry_sequence_breakers: str | Breakers | None = None
    adaptive_target: AtMostOne | None = None
    adaptive_decay: UnitInterval | None = None
    tfs: UnitInterval | None = None
    top_a: NonNegative | None = None
    skew: float | None = None
    smoothing_factor: NonNegative | None = None
    cfg_scale: NonNegative | None = None
    negative_prompt: str | None = None
    token_healing: bool | None = None
    temperature_last: bool | None = None
    samplers: str | Samplers | None = None
    min_keep: Count | None = None
    loop_detect_window: Count | None = None
    watermark: bool | None = None
    logit_bias: dict[int, Bias] | None = None
    banned_tokens: str | BannedTokens | None = None
    seed: Seed | None = None
    min_tokens: Count | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    bad_words: str | BadWords | None = None
    length_penalty: float | None = None
    priority: int | None = None
    cache_salt: CacheSalt | None = None
    allowed_token_ids: list[Count] | None = None
    vllm_xargs: dict[str, Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    data_parallel_rank: Count | None = None
    skip_special_tokens: bool | None = None


class SamplingParams(SampledFields, kw_only=True):
    """The parameters that all APIs share: how tokens are sampled, and how the answer is constrained."""

    min_temp: NonNegative | None = None
    max_temp: NonNegative | None = None
    stop: str | StopStrings | None = None
    include_stop_str_in_output: bool | None = None
    truncate_prompt_tokens: CountOrAll | None = None
    truncation_side: str | None = None
    lora: Annotated[list[ScaledAdapter], Meta(max_length=MAX_ADAPTERS)] | None = None
    request_id: NonEmptyStr | None = None
    deadline_seconds: Seconds | None = None
    structured_outputs: StructuredOutputs | None = None
    response_format: ResponseFormat | None = None


ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
"""OpenAI's tiers. All are the same here."""


class Request(SamplingParams, kw_only=True):
    """The parameters that Chat Completions and Completions share beyond that."""

    model: str
    n: Choices | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    usage: UsageOptions | None = None
    max_tokens: TokenLimit | None = None
    use_beam_search: bool | None = None
    prompt_logprobs: CountOrAll | None = None
    echo: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    return_prompt_text: bool | None = None
    service_tier: ServiceTier | None = None
