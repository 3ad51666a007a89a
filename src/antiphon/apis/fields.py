"""What becomes of the parameters that Antiphon does not act on: one table for two kinds.

`HINTS` are not read: whatever their value, the answer is the right one.
`REFUSED` request something that Antiphon cannot give; to ignore them would be
to answer another question. All other parameters of `Request` and of the
APIs' own requests are acted on; what no table and no request knows is ignored.
"""

from collections.abc import Mapping

from msgspec import Struct

from antiphon.core.errors import RequestError

HINTS: Mapping[str, str] = {
    "add_special_tokens": "a prompt gets the token that it has to begin with, once, whoever wrote it",
    "guided_decoding_backend": "the engine chooses how it constrains",
    "prediction": "it would only make the same answer faster",
    "prompt_cache_key": "engines find common beginnings of prompts by themselves",
    "prompt_cache_options": "engines keep what they have room for",
    "prompt_cache_retention": "engines keep what they have room for",
    "safety_identifier": "users are not tracked",
    "service_tier": "there is one tier; an answer to a request that named one has `default`",
    "session_id": "sessions are not tracked",
    "spaces_between_special_tokens": "special tokens are not shown",
    "stream_interval": "a stream sends what there is, when it is there",
    "user": "users are not tracked",
}
"""Parameter → why there is nothing to do."""

_NO_MEDIA = "Antiphon reads and writes text only."
_NO_EXTENSION = "Antiphon does not pass parameters through to engines."

REFUSED: Mapping[str, str] = {
    "allowed_token_ids": "Use 'logit_bias' or 'structured_outputs'.",
    "audio": _NO_MEDIA,
    "ec_transfer_params": _NO_EXTENSION,
    "guided_whitespace_pattern": "The engine chooses which space it allows.",
    "kv_transfer_params": _NO_EXTENSION,
    "logits_processors": _NO_EXTENSION,
    "logprob_token_ids": "Use 'top_logprobs'.",
    "media_io_kwargs": _NO_MEDIA,
    "mm_payload": _NO_MEDIA,
    "mm_processor_kwargs": _NO_MEDIA,
    "modalities": _NO_MEDIA,
    "moderation": "Antiphon does not moderate: do that before and after.",
    "repetition_detection": "Use 'repetition_penalty' or 'frequency_penalty'.",
    "return_mm_kwargs": _NO_MEDIA,
    "return_token_offsets": "Use 'return_token_ids' or 'logprobs'.",
    "routed_experts_prompt_start": _NO_EXTENSION,
    "suffix": "Antiphon does not fill in the middle.",
    "vllm_xargs": _NO_EXTENSION,
    "watermarking": "Antiphon does not watermark.",
}
"""Parameter → what to do instead."""

_UNUSED_VALUES: tuple[object, ...] = (None, False, [], {}, "", ["text"])


def refuse(request: Struct) -> None:
    """Refuse each of these parameters that has an effect. Raises RequestError."""
    for name, remedy in REFUSED.items():
        if getattr(request, name, None) not in _UNUSED_VALUES:
            raise RequestError(f"'{name}' is not supported. {remedy}", param=name)
