"""`shell`: models run commands, in a sandbox that the operator chooses.

The operator configures the command that starts a shell in it, and the shell reads its script from standard
input. Each call starts a new shell; they share the workspace, a folder that is made with the first call of
an answer and removed with the answer.
"""

import asyncio
import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import structlog

from antiphon.core.errors import ToolError
from antiphon.core.hosts import unread
from antiphon.core.tool_result import OutputCallback, ToolResult, ignore_output
from antiphon.core.turn import Function, Hosted
from antiphon.toolkits.shell.commands import MAX_SECONDS, SECONDS, Commands, parse_commands
from antiphon.toolkits.shell.details import TYPE, CommandDetails
from antiphon.tools.process import Program, all_ended, execute
from antiphon.tools.settings import check_container, invalid_setting
from antiphon.tools.tool import RequestedTool, ToolOffer

ACTION = "exec"

WORKSPACE = "{workspace}"
"""The placeholder for the path of the workspace in the operator's command."""

FUNCTION = Function(
    TYPE,
    f"""\
Runs commands one after the other in a shell in a sandbox, and shows their output and the exit code of the \
last one. Each call starts a new shell. Files are kept until your answer is complete.
A call may take {SECONDS:.0f} seconds, or `timeout_ms` milliseconds, at most {MAX_SECONDS * 1000:.0f}.""",
    {
        "type": "object",
        "properties": {
            "commands": {"type": "array", "items": {"type": "string"}, "description": "Command lines."},
            "timeout_ms": {"type": "number", "description": "The time limit in milliseconds."},
        },
        "required": ["commands"],
    },
    hosted=Hosted(TYPE, ACTION),
)

_FILES_LOST = "The files of earlier commands are lost: the sandbox was created again."
_BROKEN = "Commands cannot be run at the moment. Continue without them."

_TRY = Commands("exit 0\n", 30.0, 1000)
"""The test of a sandbox at the start of the server: a script that does nothing, and its time limit."""
_REMEDY = "Give a command that starts a shell which reads its script from standard input."

log = structlog.get_logger()


class Shell:
    """The tool. `command` begins a shell. Raises ToolError if it cannot be split into words."""

    type = TYPE
    aliases = ()

    def __init__(self, command: str) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise ToolError(f"The shell's command cannot be read: {error}. Check its quotes.") from error
        if not self._words:
            raise ToolError("The shell's command is empty. Give the one that begins a shell.")

    async def check(self) -> None:
        """Runs a shell that does nothing."""
        workspace = Workspace(self._words)
        try:
            done = await workspace.execute(_TRY)
        except OSError as error:
            why = error.strerror or str(error)
            raise ToolError(f"--shell cannot be used: {self._words[0]}: {why}. {_REMEDY}") from error
        finally:
            await workspace.close()
        if done.exit_code is None:
            raise ToolError(
                f"--shell cannot be used: it did nothing for {_TRY.seconds:.0f} seconds. {_REMEDY}"
            )
        if done.exit_code:
            why = " ".join((done.stderr or done.stdout).split()) or "it says nothing"
            message = f"--shell cannot be used: it ends with code {done.exit_code}: {why.rstrip('.')}. "
            raise ToolError(message + _REMEDY)

    async def offer(self, requested: RequestedTool) -> ToolOffer:
        """A `local` shell is the client's."""
        notes = unread(requested.settings, requested.where, ("type", "environment"))
        environment, where = requested.settings.get("environment"), f"{requested.where}.environment"
        if environment is None:
            return ToolOffer((FUNCTION,), notes)
        if not isinstance(environment, Mapping):
            raise invalid_setting(where, "Expected an object.")
        match environment.get("type", "container_auto"):
            case "container_auto":
                return ToolOffer((FUNCTION,), notes + check_container(environment, where))
            case "local":
                return ToolOffer()
        raise invalid_setting(where, "Containers are not kept. Use {'type': 'container_auto'}.")

    def open(self, requested: RequestedTool) -> "Workspace":
        return Workspace(self._words)

    async def close(self) -> None:
        """Waits for the ends of shells whose answers have not waited."""
        await all_ended()


class Workspace:
    """The shell of one answer: a `Session`. `words` are the operator's command."""

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._path: Path | None = None
        self._notice = ""

    async def run(
        self, action: str, arguments: Mapping[str, Any], on_output: OutputCallback = ignore_output
    ) -> ToolResult:
        if action != ACTION:
            return ToolResult(f"There is no action '{action[:100]}' here. Use '{ACTION}'.", failed=True)
        try:
            commands = parse_commands(arguments)
            executed = await self.execute(commands, on_output)
        except OSError:
            log.exception("the command of the shell cannot be started", command=self._words[0])
            return ToolResult(_BROKEN, failed=True)
        except ToolError as error:
            return ToolResult(error.message, failed=True)
        notice, self._notice = self._notice, ""
        return ToolResult(
            "\n".join(filter(None, (notice, *commands.notes, _result_text(executed, commands)))), executed
        )

    async def recall(self, action: str, arguments: Mapping[str, Any], result: ToolResult) -> None:
        """Commands cannot be run again: the model is told that their effects are lost."""
        if result.details is not None:
            self._notice = _FILES_LOST

    async def close(self) -> None:
        """The workspace is removed."""
        path, self._path = self._path, None
        if path is not None:
            await asyncio.to_thread(_remove, path)

    async def execute(self, commands: Commands, on_output: OutputCallback = ignore_output) -> CommandDetails:
        """Run commands. Raises OSError if there is no shell."""
        if self._path is None:
            self._path = Path(mkdtemp(prefix="antiphon-"))
        program = self._program(commands.script, self._path)
        output = await execute(program, commands.seconds, commands.limit, on_output)
        return CommandDetails(output.stdout, output.stderr, output.exit_code)

    def _program(self, script: str, path: Path) -> Program:
        words = [word.replace(WORKSPACE, str(path)) for word in self._words]
        # Models must not see other variables of the server's environment, such as keys.
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            "HOME": str(path),
            "TERM": "dumb",
        }
        return Program(words, script, path, environment)


def _result_text(executed: CommandDetails, commands: Commands) -> str:
    """The text for the model: both outputs, and how the script ended."""
    parts = [executed.stdout.removesuffix("\n")]
    if executed.stderr:
        parts += ["[stderr]", executed.stderr.removesuffix("\n")]
    if executed.exit_code is None:
        parts.append(f"[stopped after {commands.seconds:g} seconds: this is the time limit]")
    else:
        parts.append(f"[exit code {executed.exit_code}]")
    return "\n".join(filter(None, parts))


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        log.warning("a workspace cannot be removed", path=str(path))
