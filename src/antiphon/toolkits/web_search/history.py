"""The pages that an answer has seen, each under its cursor: the number of the display that showed it."""

from collections.abc import Awaitable, Callable

from antiphon.core.errors import ToolError
from antiphon.toolkits.web_search.page import WebPage

PAGES_KEPT = 32
"""The number of the most recent pages that are kept. Older cursors are not reused."""

Visit = WebPage | Callable[[], Awaitable[WebPage]]
"""A page, or a function that gets one that was seen on another server."""


class PageHistory:
    """Pages by their cursors, which count from 0."""

    def __init__(self) -> None:
        self._visits: dict[int, Visit] = {}
        self._next = 0

    @property
    def next_cursor(self) -> int:
        """The cursor that the next page gets."""
        return self._next

    def add(self, visit: Visit) -> None:
        """Remember a page, and forget the oldest if there are too many."""
        self._visits[self._next] = visit
        self._visits.pop(self._next - PAGES_KEPT, None)
        self._next += 1

    def visit(self, cursor: int | None) -> Visit:
        """The entry at a cursor, None for the newest. Raises ToolError if there is none."""
        if not self._visits:
            raise ToolError("No page is open yet. Search first, or open a URL.")
        visit = self._visits.get(self._next - 1 if cursor is None else cursor)
        if visit is None:
            first, last = next(iter(self._visits)), self._next - 1
            raise ToolError(
                f"There is no page with cursor {cursor}. Those from {first} to {last} can be used."
            )
        return visit

    async def page(self, cursor: int | None) -> WebPage:
        """The page at a cursor. Raises ToolError if there is none, or it cannot be fetched again."""
        visit = self.visit(cursor)
        if isinstance(visit, WebPage):
            return visit
        page = await visit()
        self._visits[self._next - 1 if cursor is None else cursor] = page
        return page

    def page_of(self, url: str) -> WebPage | None:
        """The newest page with this URL, if there is one."""
        pages = (visit for visit in reversed(self._visits.values()) if isinstance(visit, WebPage))
        return next((page for page in pages if page.url == url), None)

    def clear(self) -> None:
        """Forget all pages."""
        self._visits.clear()
