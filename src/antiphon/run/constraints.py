"""The constraint that an engine gets, and how far it can enforce what the request requires.

What an engine cannot do is refused by its name. What it cannot enforce is
checked when the answer is there, and its end reports the violations.
"""

import pickle
from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.constrain import gbnf, structural_tag
from antiphon.constrain.compile import CompiledConstraint, OutputRequirements, compile_constraint
from antiphon.core.constraint import Constraint, Gbnf
from antiphon.core.errors import RequestError
from antiphon.core.grammar import Grammar
from antiphon.core.turn import CallMode, Sampling, ToolChoice, Turn
from antiphon.engines.engine import Capabilities
from antiphon.run.schemas import Schemas, schemas_of

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_k": (-1, 0),
    "min_p": (0,),
    "typical_p": (1,),
    "top_n_sigma": (-1, 0),
    "xtc_probability": (0,),
    "dynatemp_range": (0,),
    "mirostat": (0,),
    "dry_multiplier": (0,),
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

_SEARCHED = frozenset(
    {
        *("beam_width", "length_penalty", "max_tokens", "stop_token_ids", "ignore_eos"),
        *("logprobs", "prompt_logprobs", "priority", "cache_salt", "data_parallel_rank"),
        *("temperature", "top_p", "top_k", "min_p", "typical_p", "seed"),
    }
)
"""What may be asked for beside a beam search. The last say how tokens are drawn, and it draws none."""

WIRE_NAMES = {"beam_width": "use_beam_search"}
"""The parameters that clients know under another name."""


class ConstraintPlan(Struct, frozen=True):
    """What is enforced of an answer: what the engine gets of it, all or nothing.

    `loose`: there is something left to check. `demands` are the `Demands` behind it as the process that
    compiled them wrote them: only such processes read them, in `plan_after` and `check.violations`.
    """

    constraint: Constraint | None = None
    loose: bool = False
    demands: bytes = b""


class Demands(Struct, frozen=True):
    """The demands on an answer; `schemas` are those that are left to check."""

    enforced: CompiledConstraint = CompiledConstraint()
    schemas: Schemas = Schemas()


def supported(sampling: Sampling, capabilities: Capabilities) -> Sampling:
    """The sampling without what changes nothing. Raises RequestError for what this engine cannot do."""
    able, neutral = capabilities.sampling, dict[str, Any]()
    if sampling == _NO_SAMPLING:
        return sampling
    searched = sampling.beam_width is not None and "beam_width" in able
    for name in _missing(able & _SEARCHED if searched else able):
        value, default = getattr(sampling, name), _DEFAULTS[name]
        if value == default:
            continue
        if value not in _NEUTRAL.get(name, ()):
            wire = WIRE_NAMES.get(name, name)
            why = (
                "has no effect on a beam search"
                if searched
                else "is not supported by the engine of this model"
            )
            raise RequestError(f"'{wire}' {why}. Leave it out.", param=wire)
        neutral[name] = default
    return replace(sampling, **neutral) if neutral else sampling


_NO_SAMPLING = Sampling()
_DEFAULTS = {name: getattr(_NO_SAMPLING, name) for name in Sampling.__struct_fields__}


@cache
def _missing(able: frozenset[str]) -> tuple[str, ...]:
    """What an engine cannot do that is able to do this."""
    return tuple(name for name in _DEFAULTS if name not in able)


def is_free(turn: Turn) -> bool:
    """The model may write what it likes: the common case, which costs nothing."""
    if turn.format is not None:
        return False
    if not turn.tools or turn.tool_choice.calling is CallMode.NONE:
        return True
    return turn.tool_choice == ToolChoice() and not any(tool.strict for tool in turn.tools)


def requirements_of(turn: Turn, state: str | None) -> OutputRequirements:
    """What the turn demands of an answer that begins in `state`."""
    may_call = turn.tool_choice.calling is not CallMode.NONE
    return OutputRequirements(turn.tools if may_call else (), turn.tool_choice, turn.format, state)


# What follows may not end: it is done in processes of its own, see `bounded.py`


def plan_for(required: OutputRequirements, grammar: Grammar, capabilities: Capabilities) -> ConstraintPlan:
    """What an engine of these capabilities can enforce of what is required. Raises RequestError."""
    enforced = compile_constraint(required, grammar)
    notation = capabilities.constraints[0] if capabilities.constraints else None
    plan = plan_of(Demands(enforced), notation)
    return plan if not plan.loose else plan_of(Demands(enforced, schemas_of(required)), notation)


def plan_to_check(required: OutputRequirements) -> ConstraintPlan:
    """What is checked of an answer, where another server sees to it that it is met. Raises RequestError."""
    return ConstraintPlan(loose=True, demands=pickle.dumps(Demands(schemas=schemas_of(required))))


def plan_of(demands: Demands, notation: type[Constraint] | None) -> ConstraintPlan:
    """What an engine can enforce that takes constraints in this notation."""
    enforced, constraint = demands.enforced, None
    if notation is not None and enforced.grammar_ir is not None:
        write = gbnf.write if notation is Gbnf else structural_tag.write
        constraint = write(enforced.grammar_ir, enforced.triggers)
    loose = bool(enforced.unenforced) or (enforced.grammar_ir is not None and constraint is None)
    return ConstraintPlan(constraint, loose, pickle.dumps(demands))


def demands_of(plan: ConstraintPlan) -> Demands:
    """What is behind a plan."""
    demands: Demands = pickle.loads(plan.demands) if plan.demands else Demands()  # noqa: S301 - our own
    return demands


def plan_after(plan: ConstraintPlan, written: str) -> ConstraintPlan | None:
    """What holds the rest of an answer of which this much is written; None if it broke the rules."""
    demands, notation = demands_of(plan), None if plan.constraint is None else type(plan.constraint)
    enforced = demands.enforced.after(written)
    return None if enforced is None else plan_of(replace(demands, enforced=enforced), notation)
