"""`configuration_update`: settings that count from their place in the input on, see `core/positions.py`.

The request's own settings hold before the first of them, and are what its response shows. Of updates before a
compaction the last counts like a setting of the request: the prompt begins anew.
"""

from collections.abc import Mapping, Sequence
from typing import get_args

from msgspec import Struct

from antiphon.apis.formats import Named
from antiphon.apis.request import Effort
from antiphon.apis.request_object import RequestObject
from antiphon.apis.responses.added_tools import last_compaction
from antiphon.apis.responses.settings import PLAIN, read_format
from antiphon.core.constraint import Format
from antiphon.core.positions import effort_text, format_text

UPDATE = "configuration_update"


class Settings(Struct, frozen=True):
    """The effort, and the format with its parameter; None for plain text."""

    effort: str | None = None
    format: tuple[Named, ...] = ()

    @property
    def form(self) -> Format | None:
        """The format alone."""
        return self.format[0][1] if self.format else None


class Updates(Struct, frozen=True):
    """The settings that the prompt begins with, and those that count in the end.

    `texts` are what the conversation says about changes, by the index of the item that makes them.
    """

    first: Settings
    last: Settings
    texts: Mapping[int, str] = {}


def updates_of(items: Sequence[RequestObject], own: Settings) -> Updates:
    """The settings of a conversation after those of its request. Raises RequestError."""
    compacted, first, last = last_compaction(items), own, own
    texts: dict[int, str] = {}
    for index, item in enumerate(items):
        if item.value["type"] != UPDATE:
            continue
        before, last = last, _updated(item, last)
        if index < compacted:
            first = last
        else:
            texts[index] = "\n".join(_changes(before, last))
    return Updates(first, last, texts)


def _updated(item: RequestObject, before: Settings) -> Settings:
    reasoning, text = item.object_or_none("reasoning"), item.object_or_none("text")
    effort = reasoning.text_or_none("effort") if reasoning is not None else None
    form = text.object_or_none("format") if text is not None else None
    if effort is None and form is None:
        raise item.missing("reasoning", "Set 'reasoning.effort' or 'text.format'.")
    if reasoning is not None and effort is not None and effort not in get_args(Effort):
        raise reasoning.wrong("effort", f"Use one of: {', '.join(get_args(Effort))}.")
    formats = before.format if form is None else read_format(form.value or PLAIN, form.where)
    return Settings(effort or before.effort, formats)


def _changes(before: Settings, after: Settings) -> list[str]:
    """What changes."""
    efforts = [effort_text(str(after.effort))] if after.effort != before.effort else []
    return [*efforts, *([format_text(after.form)] if after.form != before.form else [])]
