"""`programmatic_tool_calling`: models write programs that call tools, and read only what these print."""

from dataclasses import KW_ONLY, dataclass

from antiphon.core.errors import needing_extra
from antiphon.core.programs import PROGRAMS
from antiphon.toolkits.options import ServerParts
from antiphon.toolkits.programs.message_view import ProgramMessageView
from antiphon.toolkits.programs.presenter import ProgramPresenter
from antiphon.toolkits.toolkit import Toolkit
from antiphon.tools.tool import ServerTool


@dataclass(frozen=True)
class Options:
    """The options of the tool."""

    _: KW_ONLY

    programs: bool = False
    """Run programs that call tools, for models whose requests have programmatic_tool_calling, in a sandbox
    (needs the extra `code-interpreter`)."""

    def open(self, server: ServerParts) -> ServerTool | None:
        if not self.programs:
            return None
        with needing_extra("--programs", "code-interpreter"):
            from antiphon.toolkits.programs.tool import Programs  # noqa: PLC0415
        return Programs(server.limits)


TOOLKIT = Toolkit(
    type=PROGRAMS,
    options=Options,
    remedy="Start it with --programs, for the Responses API and code execution in Messages.",
    presenter=ProgramPresenter,
    message_view=ProgramMessageView(),
)
