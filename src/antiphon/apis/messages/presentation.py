"""How an answer is shown, as its request wants it."""

from enum import Enum, auto

from msgspec import Struct

from antiphon.apis.messages.citations import Citable
from antiphon.apis.messages.tools import Tools


class ThinkingShown(Enum):
    """What is shown of the reasoning."""

    NOTHING = auto()
    SIGNATURE = auto()
    """Blocks without text, which the client sends back."""
    ALL = auto()


class Presentation(Struct, frozen=True):
    """`max_tokens` tells an answer that was cut by the client's limit from one that filled the context.

    `edits_context`: the client wants to know what was done to the conversation. `citable` is what of the
    request may be cited.
    """

    thinking: ThinkingShown = ThinkingShown.ALL
    max_tokens: int = 0
    tools: Tools = Tools()
    edits_context: bool = False
    citable: tuple[Citable, ...] = ()
