"""How an answer is shown, as its request wants it."""

from enum import Enum, auto

from msgspec import Struct

from antiphon.apis.messages.citations import Citable
from antiphon.apis.messages.context import NO_PLAN, ContextPlan
from antiphon.apis.messages.tools import Tools
from antiphon.core.programs import UnfinishedProgram


class ThinkingShown(Enum):
    """The form in which reasoning is shown."""

    NOTHING = auto()
    SIGNATURE = auto()
    """Blocks without text, which the client sends back."""
    ALL = auto()


class Presentation(Struct, frozen=True):
    """`max_tokens` distinguishes an answer that the client's limit has cut from one that filled the context.

    `context` is what is left out of the conversation. `citable` are the parts of the request that may be
    cited. If it `diagnoses`, the answer says why the cache missed. If it `warms` the prompt, there is none.
    `unfinished` are programs that go on in it.
    """

    thinking: ThinkingShown = ThinkingShown.ALL
    max_tokens: int = 0
    tools: Tools = Tools()
    context: ContextPlan = NO_PLAN
    citable: tuple[Citable, ...] = ()
    diagnoses: bool = False
    warms: bool = False
    unfinished: tuple[UnfinishedProgram, ...] = ()
