"""Programs in the Messages API: blocks of Anthropic's code execution, whose calls have a `caller`."""

from typing import Any, ClassVar

from antiphon.apis.messages.server_tools import Seal, ToolView, outcome
from antiphon.core.programs import PROGRAMS
from antiphon.core.tool_result import ToolResult


class ProgramMessageView(ToolView):
    """A program, and all that it printed.

    Errors are results, too: Anthropic's blocks for them have no text, which the model is shown.
    """

    type = PROGRAMS
    blocks: ClassVar = {None: "code_execution"}
    shares_blocks = True

    def content(self, name: str, result: ToolResult, seal: Seal) -> Any:
        """The output; if it was stopped, as that of errors."""
        if result.failed:
            return outcome(f"{name}_result", "", result.text, 1)
        return outcome(f"{name}_result", result.text, "", 0)
