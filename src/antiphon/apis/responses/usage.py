"""Counts the tokens of a response, over all its generations."""

from antiphon.apis.responses.resource import InputTokensDetails, OutputTokensDetails, Usage
from antiphon.core import events


class Tally:
    """What was counted so far. `usage` is None until an answer is over.

    `prompt_tokens` are those of the first prompt of each; an answer counts its others itself.
    """

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self._generations: list[events.Usage] = []

    def add(self, usage: events.Usage) -> None:
        """A generation is over."""
        self._generations.append(usage)

    @property
    def usage(self) -> Usage | None:
        """The usage of the response."""
        if not self._generations:
            return None
        prompts = self.prompt_tokens + sum(usage.prompt_tokens for usage in self._generations)
        output = sum(usage.completion_tokens for usage in self._generations)
        return Usage(
            prompts,
            InputTokensDetails(sum(usage.cached_tokens for usage in self._generations)),
            output,
            OutputTokensDetails(sum(usage.reasoning_tokens for usage in self._generations)),
            prompts + output,
        )
