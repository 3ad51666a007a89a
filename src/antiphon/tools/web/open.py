"""`web_search` as the operator configured it: a search engine, by address or name, or a folder of pages."""

from pathlib import Path

from antiphon.core.errors import ToolError
from antiphon.tools.web.folder import FolderPages
from antiphon.tools.web.search import WITH_KEY, SearxngSearch
from antiphon.tools.web_search import WebSearch


def open_web_search(where: str, key: str | None) -> WebSearch:
    """The tool. Raises ToolError if `where` is not a search engine, or its key is missing."""
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
