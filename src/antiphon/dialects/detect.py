"""Chooses the dialect of a model by its chat template.

A template that renders history or prompts in a dialect holds that dialect's
markers. The dialect with the most of its markers in the template wins. A
template that mentions none gets `hermes`, whose tool prompt teaches the format
to models that know no other.
"""

from antiphon.dialects.dialect import Dialect
from antiphon.dialects.hermes import HERMES
from antiphon.dialects.registry import DIALECTS, find


def choose(name: str | None, chat_template: str | None) -> Dialect:
    """The dialect that a user named, or else the one that the template shows."""
    if name is not None:
        return find(name)
    return max(DIALECTS, key=lambda dialect: (_seen(dialect, chat_template or ""), dialect is HERMES))


def _seen(dialect: Dialect, chat_template: str) -> int:
    return sum(marker in chat_template for marker in dialect.grammar.markers)
