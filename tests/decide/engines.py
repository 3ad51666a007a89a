"""An engine for tests of decisions: its next token has the log probabilities that a function gives."""

from collections.abc import Callable, Mapping

from antiphon.core.chunks import Candidate
from antiphon.engines.engine import NextToken, NextTokenRequest, Prompt
from antiphon.engines.script import token_id
from antiphon.engines.scripted import ScriptedEngine

Script = Callable[[str], Mapping[str, float]]
"""A prompt → the log probabilities of the tokens after it, by their texts."""


class DecidingEngine(ScriptedEngine):
    """Scores next tokens by `script`, and keeps the `requests`."""

    def __init__(self, script: Script, **given: object) -> None:
        super().__init__([{"output": "x"}], **given)  # type: ignore[arg-type]
        self._script = script
        self.requests: list[NextTokenRequest] = []

    async def score_next(self, request: NextTokenRequest) -> tuple[NextToken, ...]:
        self.requests.append(request)
        return tuple(self._next(request.beginning, end) for end in request.ends)

    def _next(self, beginning: Prompt, end: Prompt) -> NextToken:
        logprobs = self._script(beginning.text + end.text)
        candidates = (Candidate(token_id(text), text, value) for text, value in logprobs.items())
        return NextToken((*sorted(candidates, key=lambda candidate: -candidate.logprob),))
