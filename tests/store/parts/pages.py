"""Pages of a list: each must be what the slow and obvious way gives."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.core.errors import NotFoundError
from antiphon.store.records import Page, Paging


def expected_page(ids: Sequence[str], paging: Paging) -> Page[str]:
    """What a page must be, the slow and obvious way."""
    ranked = list(ids) if paging.order == "asc" else list(ids)[::-1]
    start = ranked.index(paging.after) + 1 if paging.after else 0
    end = ranked.index(paging.before) if paging.before else len(ranked)
    between = ranked[start:end]
    backwards = paging.before is not None and paging.after is None
    data = between[-paging.limit :] if backwards else between[: paging.limit]
    return Page(data, len(between) > paging.limit)


async def check_pages(
    read: Callable[[Paging], Awaitable[Page[Any]]], ids: Sequence[str], most: int = 100
) -> None:
    """Every page of a list is correct; no page has more than this number of entries."""
    for order in ("asc", "desc"):
        for after in (None, *ids):
            for before in (None, *ids):
                for limit in (1, 3, len(ids)):
                    paging = Paging(order, after, before, limit)
                    page = await read(paging)
                    expected = expected_page(ids, replace(paging, limit=min(limit, most)))
                    assert Page([it.id for it in page.data], page.has_more) == expected, paging
    for cursor in ("after", "before"):
        with pytest.raises(NotFoundError) as caught:
            await read(Paging(**{cursor: "nobody"}))
        assert caught.value.param == cursor
