"""The names of the parameters of /inference/v1/generate, for errors."""

from antiphon.apis.request import SampledFields

IN_SAMPLING = "sampling_params"
"""The object with how tokens are sampled."""
OUTSIDE = frozenset({"priority", "cache_salt", "kv_transfer_params"})
"""The fields of a sampling that stand beside that object."""

PARAMETERS = {
    **{name: f"{IN_SAMPLING}.{name}" for name in SampledFields.__struct_fields__ if name not in OUTSIDE},
    **{name: f"{IN_SAMPLING}.{name}" for name in ("max_tokens", "stop", "prompt_logprobs")},
    "alternatives": f"{IN_SAMPLING}.logprobs",
    "prompt": "token_ids",
    "conversation": "token_ids",
}
"""Neutral name → the name in a request."""
