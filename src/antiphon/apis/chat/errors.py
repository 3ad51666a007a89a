"""The names of parameters of this API in errors. The bodies of errors are those of `apis/errors.py`."""

PARAMETERS = {
    "alternatives": "top_logprobs",
    "conversation": "messages",
    "format": "response_format",
    "prefix": "response_prefix",
    "prompt": "messages",
    "reasoning_limit": "thinking_token_budget",
    "template": "chat_template",
    "tool_limit": "max_tool_calls",
}
"""Neutral name → parameter, where they differ; see `Turn.parameters`."""
