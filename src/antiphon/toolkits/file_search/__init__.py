"""`file_search`: models search the vector stores that a request names."""

from dataclasses import dataclass

from antiphon.toolkits.file_search.details import TYPE, FileSearchDetails
from antiphon.toolkits.file_search.presenter import FileSearchPresenter
from antiphon.toolkits.options import ServerParts
from antiphon.toolkits.toolkit import Toolkit
from antiphon.tools.tool import ServerTool


@dataclass(frozen=True)
class Options:
    """There are none: every server has the tool."""

    def open(self, server: ServerParts) -> ServerTool:
        from antiphon.toolkits.file_search.tool import FileSearch  # noqa: PLC0415

        return FileSearch(server.files)


TOOLKIT = Toolkit(
    type=TYPE,
    options=Options,
    remedy="Give the model a function of your own.",
    presenter=FileSearchPresenter,
    details=(FileSearchDetails,),
)
