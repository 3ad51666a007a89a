"""`code_interpreter` in the Messages API: Anthropic's code execution."""

from typing import Any

from antiphon.apis.messages.server_tools import Seal, ToolView, outcome
from antiphon.core.tool_result import ToolResult
from antiphon.toolkits.code_interpreter.details import TYPE, ProgramDetails


class CodeMessageView(ToolView):
    """A program, and what it printed."""

    type = TYPE
    implements = {"code_execution": None}  # noqa: RUF012 - of the class
    blocks = {None: "code_execution"}  # noqa: RUF012

    def content(self, name: str, result: ToolResult, seal: Seal) -> Any:
        """The output of the program, or why it was not run."""
        match result.details:
            case ProgramDetails(logs):
                return outcome(f"{name}_result", logs, "", int(result.failed))
        return outcome(f"{name}_result", "", result.text, 1)
