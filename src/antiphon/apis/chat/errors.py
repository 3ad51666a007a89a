"""What errors call the parameters of this API. Their bodies are those of `apis/errors.py`."""

PARAMETERS = {
    "prefix": "response_prefix",
    "prompt": "messages",
    "reasoning_limit": "thinking_token_budget",
    "template": "chat_template",
    "tool_limit": "max_tool_calls",
}
"""Neutral name → parameter, where they differ; see `Turn.parameters`."""
