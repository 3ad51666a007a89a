"""`code_interpreter`: models run Python, in Monty, an interpreter that is a sandbox by itself.

Code is run like the cells of a notebook: variables are kept from one call to the next, and the model reads
the output, with the value of the last expression. Each answer has its own process, which begins with the
first call. A program that exceeds a limit ends its process: the next call starts a new one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from pydantic_monty import AsyncMontySession, MontyCrashedError, MontyRuntimeError, MontySyntaxError

from antiphon.core.errors import ToolError
from antiphon.core.hosts import unread
from antiphon.core.tool_result import OutputCallback, ToolResult, ignore_output
from antiphon.core.turn import Function, Hosted
from antiphon.toolkits.code_interpreter.cell import ACTION, SILENT, as_cell, code_of
from antiphon.toolkits.code_interpreter.details import TYPE, ProgramDetails
from antiphon.toolkits.code_interpreter.processes import GRACE, MEMORY, MODULES, Processes
from antiphon.tools.settings import check_container, invalid_setting
from antiphon.tools.text import Excerpt
from antiphon.tools.tool import RequestedTool, ToolOffer

SECONDS = 30.0
"""How long a call may compute."""

MAX_CHARS = 32_000
"""The most characters of a call's output that are returned."""

FUNCTION = Function(
    ACTION,
    f"""\
Runs Python code and shows what it prints and the value of its last expression. Later calls can use its \
variables.
It is a subset of Python in a sandbox, without files, network or packages. A call may take at most \
{SECONDS:.0f} seconds. Inheritance, properties and generator functions are not supported.
Modules: {", ".join(MODULES)}.""",
    {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The code to run."}},
        "required": ["code"],
    },
    hosted=Hosted(TYPE, ACTION, idempotent=True),
)

_ANEW = "Its variables are lost. The next call starts a new interpreter."
_TIMEOUT = f"The code was stopped: it took too long. {_ANEW}"
_MEMORY = f"The code was stopped: it took more than {MEMORY >> 20} MiB of memory. {_ANEW}"
_CRASH = f"The interpreter crashed. {_ANEW}"


class CodeInterpreter:
    """The tool. All answers take their processes from one pool. `seconds`: how long a call may compute."""

    type = TYPE
    aliases = ()

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._processes = Processes()

    async def offer(self, requested: RequestedTool) -> ToolOffer:
        notes = unread(requested.settings, requested.where, ("type", "container"))
        container, where = requested.settings.get("container"), f"{requested.where}.container"
        if container is not None:
            if not isinstance(container, Mapping) or container.get("type", "auto") != "auto":
                raise invalid_setting(where, "Containers are not kept. Use {'type': 'auto'}.")
            notes += check_container(container, where)
        return ToolOffer((FUNCTION,), notes)

    def open(self, requested: RequestedTool) -> "PythonSession":
        return PythonSession(self._begin, self._seconds)

    async def close(self) -> None:
        await self._processes.close()

    async def _begin(self) -> AsyncMontySession:
        """A process for an answer. Raises ToolError if there is none."""
        # There is nothing to wait for, so sleeping takes no time.
        return await self._processes.begin(self._seconds, {"sleep": "zero"})


class PythonSession:
    """The Python of one answer: a `Session`. `begin` makes its process, or raises ToolError."""

    def __init__(self, begin: Callable[[], Awaitable[AsyncMontySession]], seconds: float) -> None:
        self._begin = begin
        self._seconds = seconds
        self._process: AsyncMontySession | None = None

    async def run(
        self, action: str, arguments: Mapping[str, Any], on_output: OutputCallback = ignore_output
    ) -> ToolResult:
        """An exception in the program is no failure: the model can correct it."""
        code = code_of(action, arguments)
        if isinstance(code, ToolResult):
            return code
        # The output arrives in another thread.
        printed = Excerpt(MAX_CHARS, partial(asyncio.get_running_loop().call_soon_threadsafe, on_output))
        try:
            await self._feed(as_cell(code), printed)
        except ToolError as error:
            await self.close()
            printed.write_line(error.message)
            return ToolResult(str(printed), ProgramDetails(str(printed)), failed=True)
        return ToolResult(str(printed) or SILENT, ProgramDetails(str(printed)))

    async def recall(self, action: str, arguments: Mapping[str, Any], result: ToolResult) -> None:
        """The code is run again, for the variables that it sets."""
        if result.failed:
            await self.close()
        else:
            await self.run(action, arguments)

    async def close(self) -> None:
        """A running program is killed."""
        process, self._process = self._process, None
        if process is not None:
            await process.__aexit__(None, None, None)

    async def _feed(self, code: str, printed: Excerpt) -> None:
        """Run code. Raises ToolError, with the reason, if its process is lost."""
        if self._process is None:
            self._process = await self._begin()
        try:
            async with asyncio.timeout(self._seconds + GRACE):
                await self._process.feed_run(code, print_callback=lambda _, text: printed.write(text))
        except TimeoutError as error:
            raise ToolError(_TIMEOUT) from error
        except MontyCrashedError as error:
            raise ToolError(_TIMEOUT if error.timed_out else _CRASH) from error
        except (MontyRuntimeError, MontySyntaxError) as error:
            if not error.traceback():  # no line of the program raised it: a limit was met
                raise ToolError(_limit_message(error.exception())) from error
            printed.write_line(error.display())


def _limit_message(error: BaseException) -> str:
    """The message for a limit that was met. The program is not to be trusted with more after it."""
    match error:
        case TimeoutError():
            return _TIMEOUT
        case MemoryError():
            return _MEMORY
    return _CRASH
