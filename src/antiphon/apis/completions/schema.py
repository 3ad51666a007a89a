"""The wire types of requests to Completions.

Names and meanings are those of OpenAI's OpenAPI document (CreateCompletionRequest), with vLLM's additions.
"""

from typing import Annotated

from msgspec import Meta

from antiphon.apis.request import Choices, Count, Request

Prompts = Annotated[list[str | Count | list[Count]], Meta(min_length=1)]


class CompletionRequest(Request, kw_only=True):
    """POST /v1/completions. `prompt` is a text or its token ids, or a list of either."""

    prompt: str | Prompts
    suffix: str | None = None
    best_of: Choices | None = None
    logprobs: Count | None = None
