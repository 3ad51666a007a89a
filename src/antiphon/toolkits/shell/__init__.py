"""`shell`: models run commands, in a sandbox that the operator chooses."""

from dataclasses import KW_ONLY, dataclass

from antiphon.toolkits.options import ServerParts
from antiphon.toolkits.shell.details import TYPE, CommandDetails
from antiphon.toolkits.shell.message_view import ShellMessageView
from antiphon.toolkits.shell.presenter import ShellPresenter
from antiphon.toolkits.toolkit import Toolkit
from antiphon.tools.tool import ServerTool


@dataclass(frozen=True)
class Options:
    """The options of the tool."""

    _: KW_ONLY

    shell: str | None = None
    """The command that starts a shell in a sandbox, for models that run commands.
    {workspace} in it is replaced by a folder that is made for each answer."""

    def open(self, server: ServerParts) -> ServerTool | None:
        from antiphon.toolkits.shell.tool import Shell  # noqa: PLC0415

        return None if self.shell is None else Shell(self.shell)


TOOLKIT = Toolkit(
    type=TYPE,
    options=Options,
    remedy="Start it with --shell COMMAND.",
    presenter=ShellPresenter,
    message_view=ShellMessageView(),
    details=(CommandDetails,),
)
