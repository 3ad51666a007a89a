"""A tool of the server, and a model that calls it, which do as they are told."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.core.errors import RequestError
from antiphon.core.outcome import Outcome, Printed
from antiphon.core.turn import Function, Hosted
from antiphon.engines.script import Answer
from antiphon.engines.scripted import ScriptedEngine

CODE = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
PYTHON = Function("python", "Runs Python.", CODE, hosted=Hosted("code_interpreter", "python"))
SAID = Outcome("42\n", Printed("42\n"))


class ActingTool:
    """Answers with `outcomes`, one after the other, the last one for ever; None never comes, an error is raised.

    `done` is what its sessions were asked, in order: actions with their arguments, `recall` and `close`.
    """

    def __init__(
        self,
        type_: str = "code_interpreter",
        functions: tuple[Function, ...] = (PYTHON,),
        outcomes: Sequence[Outcome | Exception | None] = (SAID,),
        closing: Exception | None = None,
    ) -> None:
        self.closing = closing
        self.type = type_
        self.functions = functions
        self.done: list[tuple[str, Any]] = []
        self.running = asyncio.Event()
        self.outcomes = list(outcomes)

    def check(self, settings: Mapping[str, Any], where: str) -> None:
        if "refused" in settings:
            raise RequestError("Leave it out.", param=f"{where}.refused")

    def open(self, settings: Mapping[str, Any]) -> "ActingSession":
        self.done.append(("open", dict(settings)))
        return ActingSession(self)

    async def close(self) -> None:
        self.done.append(("closed", None))

    async def next(self) -> Outcome:
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if outcome is None:
            self.running.set()
            await asyncio.Event().wait()
        if isinstance(outcome, Exception):
            raise outcome
        assert outcome is not None
        return outcome


class ActingSession:
    def __init__(self, tool: ActingTool) -> None:
        self._tool = tool

    async def run(self, action: str, arguments: Mapping[str, Any]) -> Outcome:
        self._tool.done.append((action, dict(arguments)))
        return await self._tool.next()

    async def recall(self, action: str, arguments: Mapping[str, Any], outcome: Outcome) -> None:
        self._tool.done.append(("recall", dict(arguments)))

    async def close(self) -> None:
        self._tool.done.append(("close", None))
        if self._tool.closing is not None:
            raise self._tool.closing


def hermes_turns(prompt: str) -> int:
    """How often the model has spoken."""
    return prompt.count("<|im_start|>assistant") - 1


def harmony_turns(prompt: str) -> int:
    """The same, where it makes one call in each generation."""
    return prompt.count(" to=assistant<|channel|>")


class TakingTurns(ScriptedEngine):
    """Says the next of its lines whenever it has spoken in the prompt: `turns` tells how often."""

    def __init__(self, *answers: str, turns: Callable[[str], int] = hermes_turns, **options: Any) -> None:
        super().__init__([{"output": answer, "split": "chars"} for answer in answers], **options)
        self._turns = turns

    def _find(self, prompt: str) -> Answer:
        return self._answers[self._turns(prompt)]
