"""`shell` in the Messages API: Anthropic's code execution, as its commands of bash."""

from typing import Any

from antiphon.apis.messages.server_tools import Seal, ToolView, outcome
from antiphon.apis.request_object import Object
from antiphon.core.items import FunctionCall
from antiphon.core.tool_result import ToolResult
from antiphon.core.turn import Function
from antiphon.toolkits.shell.details import TYPE, CommandDetails
from antiphon.toolkits.shell.presenter import NOT_RUN, shell_action, shell_arguments


class ShellMessageView(ToolView):
    """One call has one command there, several lines of it."""

    type = TYPE
    substitutes = {"code_execution": None}  # noqa: RUF012 - of the class
    blocks = {None: "bash_code_execution"}  # noqa: RUF012

    def input(self, name: str, call: FunctionCall) -> Object:
        """The command lines."""
        return {"command": "\n".join(shell_action(call.arguments).commands)}

    def content(self, name: str, result: ToolResult, seal: Seal) -> Any:
        """Both outputs, and the exit code."""
        match result.details:
            case CommandDetails(stdout, stderr, code):
                return outcome(f"{name}_result", stdout, stderr, -1 if code is None else code)
        return outcome(f"{name}_result", "", result.text, NOT_RUN)

    def arguments(self, name: str, input_: Object, function: Function | None) -> Object:
        """The command, as the model's function has it."""
        if "command" not in input_:
            return input_
        properties = function.parameters.get("properties", {}) if function else {}
        return shell_arguments({"commands": [input_["command"]]}, properties)
