"""The names of parameters of this API in errors. The bodies of errors are those of `apis/errors.py`."""

PARAMETERS = {"alternatives": "logprobs", "conversation": "prompt"}
"""Neutral name → parameter, where they differ; see `Turn.parameters`."""

INFILL_PARAMETERS = {"conversation": "input_prefix", "prompt": "input_prefix", "suffix": "input_suffix"}
"""The same, of `/infill`."""
