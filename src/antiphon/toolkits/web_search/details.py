"""What `web_search` tells of its results, besides their texts for the model."""

from msgspec import Struct

TYPE = "web_search"
"""The type of the tool."""
ALIASES = ("web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11")
"""Other types that clients may request."""


class SearchDetails(Struct, frozen=True, tag="searched"):
    """The web was searched. `sources` are the URLs of the results, in the order in which they are shown.

    `titles` are those of the same pages; old records have none.
    """

    query: str
    sources: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()


class OpenDetails(Struct, frozen=True, tag="opened"):
    """A page was opened. `url` is None if that is unknown."""

    url: str | None


class FindDetails(Struct, frozen=True, tag="found"):
    """A page was searched for a text."""

    url: str | None
    pattern: str
