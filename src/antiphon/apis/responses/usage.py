"""Counts the tokens of a response, over all its generations."""

from antiphon.apis.responses.resource import InputTokensDetails, OutputTokensDetails, Usage
from antiphon.core import events


class Tally:
    """What was counted so far. `usage` is None until a generation is over."""

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
        output = sum(usage.completion_tokens for usage in self._generations)
        return Usage(
            self.prompt_tokens,
            InputTokensDetails(sum(usage.cached_tokens for usage in self._generations)),
            output,
            OutputTokensDetails(sum(usage.reasoning_tokens for usage in self._generations)),
            self.prompt_tokens + output,
        )
