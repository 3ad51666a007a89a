"""Which turns' reasoning the model is shown: `reasoning.context`.

That of earlier turns can always be left out. Whether it can be shown is up to the chat template: some show
it, some have a variable for it, with others a note says that they do not. It is not refused, because agents
send it by themselves. By default the template decides.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from antiphon.apis.responses.schema import ReasoningOptions
from antiphon.core.edits import reasoning_of_this_turn
from antiphon.core.hosts import Note
from antiphon.core.items import Item

CURRENT, ALL = "current_turn", "all_turns"
PARAMETER = "reasoning.context"

Kept = Mapping[str, Any] | None
"""The template variables that keep all reasoning, None if nothing does: see `ModelTraits`."""


def shown_items(reasoning: ReasoningOptions | None, items: Sequence[Item]) -> tuple[Item, ...]:
    """The conversation with the reasoning that is wanted."""
    wants_current = reasoning is not None and reasoning.context == CURRENT
    return reasoning_of_this_turn(items) if wants_current else tuple(items)


def keeping_variables(reasoning: ReasoningOptions | None, kept: Kept) -> Mapping[str, Any]:
    """The template variables for the reasoning that is wanted."""
    return kept or {} if reasoning is not None and reasoning.context == ALL else {}


def context_in_effect(reasoning: ReasoningOptions, kept: Kept) -> str | None:
    """The value that a response shows; None if its request has named none."""
    match reasoning.context:
        case "auto":
            return ALL if kept == {} else CURRENT
        case "all_turns":
            return CURRENT if kept is None else ALL
    return reasoning.context


def context_notes(reasoning: ReasoningOptions | None, kept: Kept) -> Iterator[Note]:
    """A note that the template does not show what is wanted."""
    if reasoning is not None and reasoning.context == ALL and kept is None:
        message = "The chat template of this model shows no reasoning of earlier turns."
        yield Note(PARAMETER, f"'{PARAMETER}' has no effect on this server. {message}")
