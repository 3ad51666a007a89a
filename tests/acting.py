"""A server tool with prepared results, and a model that calls it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from antiphon.core.errors import RequestError
from antiphon.core.hosts import Hosts, unread
from antiphon.core.tool_result import OutputCallback, ToolResult, ignore_output
from antiphon.core.turn import Function, Hosted
from antiphon.engines.script import ScriptedAnswer
from antiphon.engines.scripted import ScriptedEngine
from antiphon.toolkits.code_interpreter.details import ProgramDetails
from antiphon.toolkits.registry import built_in
from antiphon.toolkits.web_search.tool import WebSearch
from antiphon.tools.discovery import NO_FUNCTIONS, ToolRequester, by_type, discover
from antiphon.tools.tool import RequestedTool, ToolOffer

CODE = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
PYTHON = Function(
    "python", "Runs Python.", CODE, hosted=Hosted("code_interpreter", "python", idempotent=True)
)
SAID = ToolResult("42\n", ProgramDetails("42\n"))


REFUSED = {"refused", "filters"}
KEPT_AWAY = [("external_web_access", False), ("environment", {"type": "local"})]
"""Settings that keep a tool from the server."""


class ActingTool:
    """Answers with `results`, one after the other, the last one for ever; None never comes, an error is raised.

    `done` is what its sessions were asked, in order: actions with their arguments, `recall` and `close`.
    """

    def __init__(
        self,
        type_: str = "code_interpreter",
        functions: tuple[Function, ...] = (PYTHON,),
        results: Sequence[ToolResult | Exception | None] = (SAID,),
        closing: Exception | None = None,
        aliases: tuple[str, ...] = (),
    ) -> None:
        self.closing = closing
        self.type = type_
        self.aliases = WebSearch.aliases if type_ == WebSearch.type else aliases
        self.functions = functions
        self.done: list[tuple[str, Any]] = []
        self.running = asyncio.Event()
        self.results = list(results)

    async def offer(self, requested: RequestedTool) -> ToolOffer:
        settings = requested.settings
        for name in REFUSED & settings.keys():
            raise RequestError("Leave it out.", param=f"{requested.where}.{name}")
        kept_away = any(settings.get(name) == value for name, value in KEPT_AWAY)
        notes = unread(settings, requested.where, settings.keys() - {"wibble"})
        return ToolOffer() if kept_away else ToolOffer(self.functions, notes)

    def open(self, requested: RequestedTool) -> "ActingSession":
        self.done.append(("open", dict(requested.settings)))
        return ActingSession(self)

    async def close(self) -> None:
        self.done.append(("closed", None))

    async def next(self) -> ToolResult:
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if result is None:
            self.running.set()
            await asyncio.Event().wait()
        if isinstance(result, Exception):
            raise result
        assert result is not None
        return result


class ActingSession:
    def __init__(self, tool: ActingTool) -> None:
        self._tool = tool

    async def run(
        self, action: str, arguments: Mapping[str, Any], on_output: OutputCallback = ignore_output
    ) -> ToolResult:
        self._tool.done.append((action, dict(arguments)))
        return await self._tool.next()

    async def recall(self, action: str, arguments: Mapping[str, Any], result: ToolResult) -> None:
        self._tool.done.append(("recall", dict(arguments)))

    async def close(self) -> None:
        self._tool.done.append(("close", None))
        if self._tool.closing is not None:
            raise self._tool.closing


Offers = Mapping[str, tuple[Function, ...]]
"""Type of a tool → its functions."""


def hosts_for(
    offers: Offers,
    requested: Mapping[str, Any],
    trained: Offers = NO_FUNCTIONS,
    optional: frozenset[str] = frozenset(),
) -> Hosts:
    """What is offered of the requested tools by a server with these, which need not run the `optional` ones."""
    tools = by_type(ActingTool(type_, functions) for type_, functions in offers.items())
    asked = discover(
        tools, requested, trained, ToolRequester(optional=optional, remedies=built_in().remedies)
    )
    with ThreadPoolExecutor(1) as thread:  # the caller may have a loop of its own
        return thread.submit(asyncio.run, asked).result()


def hermes_turns(prompt: str) -> int:
    """How often the model has spoken."""
    return prompt.count("<|im_start|>assistant") - 1


def harmony_turns(prompt: str) -> int:
    """The same, where it makes one call in each generation."""
    return prompt.count(" to=assistant<|channel|>")


class TakingTurns(ScriptedEngine):
    """Generates the next of its lines: `turns` returns the number of its turns in the prompt."""

    def __init__(self, *answers: str, turns: Callable[[str], int] = hermes_turns, **options: Any) -> None:
        super().__init__([{"output": answer, "split": "chars"} for answer in answers], **options)
        self._turns = turns

    def answer_to(self, prompt: str) -> ScriptedAnswer:
        return self.answers[self._turns(prompt)]
