"""`shell`: a call is an item, and its result another."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.apis.request_object import RequestObject, json_text
from antiphon.apis.responses.client_tools import command_events
from antiphon.apis.responses.events import CALL, event
from antiphon.apis.responses.output.item import IN_PROGRESS, ItemPosition, OpenItem
from antiphon.apis.responses.presenters.presenter import Presenter, output_item, rest
from antiphon.apis.responses.stored import StoredItem
from antiphon.apis.responses.tools import Toolbox
from antiphon.core.items import FunctionCall, Item, object_in
from antiphon.core.plain_tokens import SequenceNumbers
from antiphon.core.tool_result import ToolResult
from antiphon.toolkits.shell.commands import parse
from antiphon.toolkits.shell.details import TYPE, CommandDetails
from antiphon.tools.containers import container_id

NOT_RUN, KILLED = 126, 137
"""The exit codes of shells for a command that could not be run, and for one that was killed."""
LOGIN_SHELL = ("bash", "-lc")
"""Runs a command line for a tool that takes programs with their arguments."""

_SHELLS = frozenset({"bash", "sh"})
_SCRIPTS = frozenset({"-c", "-lc"})


ShellOutputDelta = event("response.shell_call_output_content.delta", *CALL, "command_index", "delta")
ShellOutputDone = event("response.shell_call_output_content.done", *CALL, "command_index", "output")


class OutputDelta(Struct):
    """The output of a command since the last delta."""

    stdout: str
    stderr: str


class ShellAction(Struct):
    """Commands, and their limits, in milliseconds and characters, null if the model set none."""

    commands: tuple[str, ...]
    timeout_ms: int | None
    max_output_length: int | None


class ContainerReference(Struct, tag_field="type", tag="container_reference"):
    """Where commands are run."""

    container_id: str


class ShellCallItem(Struct, tag_field="type", tag="shell_call"):
    """Commands that the server runs."""

    id: str
    status: str
    call_id: str
    action: ShellAction
    environment: ContainerReference


class Exit(Struct, tag_field="type", tag="exit"):
    """A command ended by itself."""

    exit_code: int


class Timeout(Struct, tag_field="type", tag="timeout"):
    """The time of a command was up."""


class ShellOutput(Struct):
    """The output of a command, and its outcome."""

    stdout: str
    stderr: str
    outcome: Exit | Timeout


class ShellOutputItem(Struct, tag_field="type", tag="shell_call_output"):
    """The result of a shell call."""

    id: str
    status: str
    call_id: str
    output: tuple[ShellOutput, ...]
    max_output_length: int | None


class ShellPresenter(Presenter):
    """Commands for a shell. Like a call for the client, the item is complete when the call is written."""

    type = "shell_call"
    result_type = "shell_call_output"

    @classmethod
    def read(cls, item: RequestObject, tools: Toolbox) -> Iterator[Item]:
        """A call of the model's function for the tool, and its result."""
        if item.value["type"] == cls.result_type:
            call_id = item.text_or_none("call_id") or item.text("id")
            yield output_item(call_id, json_text(item.value.get("output") or ""))
            return
        function, action = tools.offered(TYPE), item.value.get("action")
        if function.hosted and isinstance(action, dict):
            action = shell_arguments(action, function.parameters.get("properties", {}))
        yield FunctionCall(item.text("call_id"), function.name, json_text(action))

    def item(self, status: str) -> ShellCallItem:
        """The commands; none before they have been streamed."""
        action = self._action
        shown = replace(action, commands=()) if status == IN_PROGRESS else action
        container = ContainerReference(container_id(TYPE, self.call.response_id))
        return ShellCallItem(self.position.id, status, self.call.id, shown, container)

    def end(self, item: Item) -> list[bytes]:
        """The item, and each command."""
        assert isinstance(item, FunctionCall)
        self._action = shell_action(item.arguments)
        return [self.added(), *command_events(self.numbers, self.position, self._action.commands)]

    def result_item(self, position: ItemPosition) -> "OpenShellOutput":
        """The item with the output of the commands."""
        return OpenShellOutput(self.numbers, position, self, self._action.max_output_length)

    def add_output(self, stdout: str, stderr: str) -> list[bytes]:
        """They have printed more."""
        assert isinstance(self.output, OpenShellOutput)
        return self.output.add_output(stdout, stderr)


class OpenShellOutput(OpenItem):
    """The result of a shell call. `limit` is that of its characters."""

    def __init__(
        self, numbers: SequenceNumbers, position: ItemPosition, of: ShellPresenter, limit: int | None
    ) -> None:
        super().__init__(numbers, position)
        self._of = of
        self._limit = limit
        self._streamed: OutputDelta | None = None
        self._output: tuple[ShellOutput, ...] = ()

    def item(self, status: str) -> ShellOutputItem:
        """The output; empty before it has been streamed."""
        return ShellOutputItem(self.position.id, status, self._of.call.id, self._output, self._limit)

    def add_output(self, stdout: str, stderr: str) -> list[bytes]:
        """The commands have printed more."""
        streamed = self._streamed or OutputDelta("", "")
        self._streamed = OutputDelta(streamed.stdout + stdout, streamed.stderr + stderr)
        return [self.numbers.encode(ShellOutputDelta, *self.position, 0, OutputDelta(stdout, stderr))]

    def close(self, status: str) -> tuple[StoredItem, list[bytes]]:
        """The output since the last delta, and all of it."""
        streamed, content = self._streamed or OutputDelta("", ""), []
        end = ShellOutput(streamed.stdout, streamed.stderr, Exit(KILLED))
        if self._of.result is not None:
            end = _output(self._of.result)
            more = rest(streamed.stdout, end.stdout), rest(streamed.stderr, end.stderr)
            if any(more) or self._streamed is None:
                content += self.add_output(*more)
            end = replace(end, stdout=streamed.stdout + more[0], stderr=streamed.stderr + more[1])
        self._output = (end,)
        content.append(self.numbers.encode(ShellOutputDone, *self.position, 0, self._output))
        stored, done = super().close(status)
        return stored, content + done


def shell_action(arguments: str) -> ShellAction:
    """The command lines of a call, as they are run, and its limits."""
    parsed = parse(object_in(arguments) or {})
    commands = (*parsed.lines, *([_command_line(parsed.words)] if parsed.words else []))
    return ShellAction(commands, parsed.timeout_ms, parsed.max_output_length)


def shell_arguments(action: Mapping[str, Any], properties: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call with this action, for a function with these properties."""
    if "cmd" not in properties:
        return {name: value for name, value in action.items() if value is not None}
    parsed = parse(action)
    words = [*LOGIN_SHELL, "\n".join(parsed.lines)]
    return {"cmd": words} if parsed.timeout_ms is None else {"cmd": words, "timeout": parsed.timeout_ms}


def _command_line(words: tuple[str, ...]) -> str:
    """The words of a command in the syntax of a shell; only the script, if they call a shell with one."""
    match words:
        case (shell, flag, script) if shell.rpartition("/")[2] in _SHELLS and flag in _SCRIPTS:
            return script
    return shlex.join(words)


def _output(result: ToolResult) -> ShellOutput:
    """The output of a command; or why it was not run."""
    match result.details:
        case CommandDetails(stdout, stderr, None):
            return ShellOutput(stdout, stderr, Timeout())
        case CommandDetails(stdout, stderr, int(code)):
            return ShellOutput(stdout, stderr, Exit(code))
    return ShellOutput("", result.text, Exit(NOT_RUN))
