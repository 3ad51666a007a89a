"""`web_search`: models search the web, and open pages, with a search engine or in a folder of pages."""

from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from antiphon.core.errors import ToolError, needing_extra
from antiphon.toolkits.options import ServerParts
from antiphon.toolkits.toolkit import Toolkit
from antiphon.toolkits.web_search.details import ALIASES, TYPE, FindDetails, OpenDetails, SearchDetails
from antiphon.toolkits.web_search.message_view import WebMessageView
from antiphon.toolkits.web_search.presenter import WebPresenter
from antiphon.tools.tool import ServerTool


@dataclass(frozen=True)
class Options:
    """The options of the tool."""

    _: KW_ONLY

    web_search: str | None = None
    """The search engine for models that search the web: the address of a SearXNG server, such as
    http://127.0.0.1:8888; `brave` or `tavily`, with a key; or a folder of pages, one folder in
    it for each site (needs the extra `web-search`)."""

    web_search_key: str | None = field(default=None, repr=False)
    """The key for `brave` or `tavily`."""

    def open(self, server: ServerParts) -> ServerTool | None:
        where, key = self.web_search, self.web_search_key
        if where is None:
            return None
        with needing_extra("--web-search", "web-search"):
            from antiphon.toolkits.web_search.folder import FolderPages  # noqa: PLC0415
            from antiphon.toolkits.web_search.search import WITH_KEY, SearxngSearch  # noqa: PLC0415
            from antiphon.toolkits.web_search.tool import WebSearch  # noqa: PLC0415
        if where in WITH_KEY:
            if not key:
                raise ToolError(f"'{where}' needs a key. Give it with --web-search-key.")
            return WebSearch(WITH_KEY[where](key))
        if key:
            raise ToolError(f"--web-search-key is for {' and '.join(WITH_KEY)} only. Leave it out.")
        if "://" in where or not Path(where).expanduser().is_dir():
            return WebSearch(SearxngSearch(where))
        pages = FolderPages(Path(where).expanduser())
        return WebSearch(pages, pages)


TOOLKIT = Toolkit(
    type=TYPE,
    options=Options,
    remedy="Start it with --web-search.",
    aliases=ALIASES,
    presenter=WebPresenter,
    message_view=WebMessageView(),
    details=(SearchDetails, OpenDetails, FindDetails),
)
