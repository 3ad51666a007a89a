"""The `JsonScanner` for models that write `&quot;` for a quote around a string.

An entity is such a quote where a string may begin; and in a string of an object or array, if what follows it
can only follow the end of one. There it is held back until that is known. Any other is text of the string.
"""

import re

from antiphon.core.json_scanner import JsonScanner

MAX_HELD = 256
"""Characters that are held back: an entity and the space after it."""

_QUOTE = "&quot;"
_AFTER_KEY = re.compile(r"\s*:")
_AFTER_VALUE = re.compile(r'\s*(?:[}\]]|,\s*(?:"|&quot;|[\[{]))')
_UNDECIDED = re.compile(r"\s*(?:,\s*(?:&(?:q(?:u(?:o(?:t)?)?)?)?)?)?")


class EntityScanner(JsonScanner):
    """Reads exactly one JSON value. See `JsonScanner`."""

    def __init__(self) -> None:
        super().__init__()
        self._held = ""

    def feed(self, text: str, start: int, out: list[str]) -> int:
        held, self._held = self._held, ""
        whole, position = held + text[start:], 0
        while position < len(whole) and not self.done and not self.broken:
            at = whole.find("&", position)
            piece = whole[position : len(whole) if at < 0 else at] or "&"
            if position == at and (is_quote := self._is_quote(whole, at)) is not False:
                if is_quote is None:
                    self._held = whole[at:]
                    position = len(whole)
                    break
                if super().feed('"', 0, out):
                    position += len(_QUOTE)
                continue
            end = super().feed(piece, 0, out)
            position += end
            if end < len(piece):
                break
        return max(start, start + position - len(held))

    def _is_quote(self, text: str, at: int) -> bool | None:
        """Whether a quote is at this position; None as long as that is not known."""
        entity, after = text[at : at + len(_QUOTE)], at + len(_QUOTE)
        if entity != _QUOTE:
            return None if _QUOTE.startswith(text[at:]) else False
        if not self.in_string or self.outermost:  # a name has no entities, and nothing after it may be read
            return True
        if (_AFTER_KEY if self.in_key else _AFTER_VALUE).match(text, after):
            return True
        undecided = len(text) - at <= MAX_HELD and _UNDECIDED.fullmatch(text, after)
        return None if undecided else False
