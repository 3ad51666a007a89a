"""What an engine is asked for: the prompt, and how far it can be held to what the request demands.

What an engine cannot honour is refused by its name. What it cannot enforce is
checked when the answer is there, and the answer says what it does not meet.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.constrain import gbnf, structural_tag
from antiphon.constrain.compile import Demand, Enforced, constrain
from antiphon.core.constraint import Constraint, Gbnf
from antiphon.core.errors import RequestError
from antiphon.core.grammar import Grammar
from antiphon.core.turn import Calling, Sampling, ToolChoice, Turn
from antiphon.engines.engine import Capabilities
from antiphon.run.schemas import Schemas, schemas_of

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_k": (-1, 0),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "priority": (0,),
    "beam_width": (1,),
}
"""Values that change nothing: an engine may leave them out."""

_WIRE_NAMES = {"beam_width": "use_beam_search"}
"""The parameters that clients know under another name."""


class Held(Struct, frozen=True):
    """What the answer must be, and what of that the engine is held to: all or nothing of `enforced`.

    `schemas` are what is left to check.
    """

    enforced: Enforced = Enforced()
    constraint: Constraint | None = None
    schemas: Schemas = Schemas()

    @property
    def loose(self) -> bool:
        """There is something left to check."""
        return bool(self.enforced.unenforced) or (
            self.enforced.language is not None and self.constraint is None
        )


def honoured(sampling: Sampling, capabilities: Capabilities) -> Sampling:
    """The sampling without what changes nothing. Raises RequestError for what this engine cannot do."""
    neutral: dict[str, Any] = {}
    for name, default in _DEFAULTS.items():
        value = getattr(sampling, name)
        if name in capabilities.sampling or value == default:
            continue
        if value not in _NEUTRAL.get(name, ()):
            wire = _WIRE_NAMES.get(name, name)
            raise RequestError(
                f"'{wire}' is not supported by the engine of this model. Leave it out.", param=wire
            )
        neutral[name] = default
    return replace(sampling, **neutral) if neutral else sampling


_DEFAULTS = {name: getattr(Sampling(), name) for name in Sampling.__struct_fields__}


def demands_nothing(turn: Turn) -> bool:
    """The model may write what it likes: the common case, which costs nothing."""
    if turn.format is not None:
        return False
    if not turn.tools or turn.tool_choice.calling is Calling.NONE:
        return True
    return turn.tool_choice == ToolChoice() and not any(tool.strict for tool in turn.tools)


def demand_of(turn: Turn, state: str | None) -> Demand:
    """What the turn demands of an answer that begins in `state`."""
    may_call = turn.tool_choice.calling is not Calling.NONE
    return Demand(turn.tools if may_call else (), turn.tool_choice, turn.format, state)


def hold(demand: Demand, grammar: Grammar, capabilities: Capabilities) -> Held:
    """What an engine of these capabilities can be held to of a demand. Raises RequestError."""
    held = held_to(constrain(demand, grammar), capabilities)
    return replace(held, schemas=schemas_of(demand.format, demand.tools)) if held.loose else held


def held_to(enforced: Enforced, capabilities: Capabilities) -> Held:
    """What an engine of these capabilities can be held to."""
    if not capabilities.constraints:
        return Held(enforced)
    return Held(enforced, _written(enforced, capabilities.constraints[0]))


def held_after(held: Held, written: str) -> Held | None:
    """What holds the rest of an answer of which this much is written; None if it broke the rules."""
    enforced = held.enforced.after(written)
    if enforced is None or held.constraint is None:
        return None if enforced is None else replace(held, enforced=enforced)
    return replace(held, enforced=enforced, constraint=_written(enforced, type(held.constraint)))


def _written(enforced: Enforced, notation: type[Constraint]) -> Constraint | None:
    """What holds an engine that takes this notation."""
    if enforced.language is None:
        return None
    write = gbnf.write if notation is Gbnf else structural_tag.write
    return write(enforced.language, enforced.triggers)


def param_of(param: str | None, turn: Turn) -> str | None:
    """The client's name of a parameter that a demand has in other words."""
    return turn.format_source if param == "format" else param
