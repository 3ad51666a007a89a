"""Writes conversations as prompts in place of a Jinja chat template: a library of the model's maker."""

from collections.abc import Mapping
from typing import Any, Protocol


class ConversationTemplate(Protocol):
    """Renders the variables of a chat template."""

    def render(self, variables: Mapping[str, Any]) -> str:
        """The prompt, with its special tokens as text.

        `messages` and `tools` are those of Chat Completions, `add_generation_prompt` says whether an answer
        is to follow. Raises RequestError if the conversation cannot be rendered.
        """
        ...
