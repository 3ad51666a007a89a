"""New items of a conversation → items as they are stored. Every error names the parameter."""

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.apis.responses.history import Unseal, to_core
from antiphon.apis.responses.input import complete, parse_items, resolved, to_stored
from antiphon.apis.responses.presenters.registry import NO_PRESENTERS, Presenters
from antiphon.apis.responses.stored import StoredItem


def accept_items(
    items: Sequence[Any] | None,
    owner: str,
    referenced_items: Mapping[str, bytes],
    unseal: Unseal,
    presenters: Presenters = NO_PRESENTERS,
) -> tuple[StoredItem, ...]:
    """The complete items of a request. Raises RequestError.

    Their ids are derived from `owner`, which has to be new for each request. Items that a model could not be
    shown later are refused now.
    """
    given = parse_items(items or (), "items", presenters.readers)
    whole = complete(list(resolved(given, referenced_items)), owner)
    to_core(whole, unseal, presenters=presenters)
    return to_stored(whole)
