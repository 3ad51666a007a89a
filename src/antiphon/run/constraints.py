"""The constraint that an engine gets, and which of the demands of a request it enforces.

Features that an engine does not have are refused by name. Demands that it cannot enforce are checked when
the answer is complete, and its end reports the violations.
"""

import pickle
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.constrain import gbnf, structural_tag
from antiphon.constrain.budget import LONGEST_ANSWER
from antiphon.constrain.compile import (
    CompiledConstraint,
    OutputRequirements,
    compile_constraint,
    format_grammar,
)
from antiphon.constrain.grammar_ir import GrammarIR
from antiphon.core.constraint import Constraint, Gbnf
from antiphon.core.errors import RequestError
from antiphon.core.grammar import Grammar
from antiphon.core.turn import Adapter, CallMode, PromptEnding, Sampling, ToolChoice, Turn
from antiphon.engines.engine import MAX_CHARACTERS_PER_TOKEN, Capabilities
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
    "skip_special_tokens": (True,),
    "lora": ((),),
}
"""Values without effect: they are accepted by every engine."""

_SEARCHED = frozenset(
    {
        *("beam_width", "length_penalty", "max_tokens", "stop_token_ids", "ignore_eos"),
        *("logprobs", "prompt_logprobs", "priority", "cache_salt", "data_parallel_rank"),
        *("temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "skip_special_tokens"),
        "lora",
    }
)
"""Parameters that can be combined with a beam search.

The last ones control sampling, and it does not sample.
"""

WIRE_NAMES = {"beam_width": "use_beam_search"}
"""The parameters that have another name for clients."""


class ConstraintPlan(Struct, frozen=True):
    """The part of the demands on an answer that the engine enforces: all or nothing.

    `has_unenforced`: some demands are left to check. `demands` are the encoded `Demands`, as the process that
    compiled them wrote them: only such processes decode them, in `plan_after` and `check.violations`.
    """

    constraint: Constraint | None = None
    has_unenforced: bool = False
    demands: bytes = b""


class Demands(Struct, frozen=True):
    """The demands on an answer: for the engine, and those that are left to check.

    `form` is that of the visible text if it has no schema.
    """

    enforced: CompiledConstraint = CompiledConstraint()
    schemas: Schemas = Schemas()
    form: GrammarIR | None = None


def supported(turn: Turn, capabilities: Capabilities) -> Sampling:
    """The sampling without values that have no effect. Raises RequestError for what is not supported."""
    sampling = turn.sampling
    if turn.token_ids and not capabilities.token_ids:
        message = "The server of this model does not tell the ids of its tokens. Leave it out."
        raise RequestError(message, param=turn.token_ids)
    if (sampling.logprobs or 0) > capabilities.alternatives:
        message = f"This model gives at most {capabilities.alternatives} alternatives to a token."
        raise RequestError(message, param="alternatives")
    if sampling == _NO_SAMPLING:
        return sampling
    able = capabilities.sampling
    neutral: dict[str, Any] = {}
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
    if sampling.lora and not capabilities.scales_adapters:
        _check_single(sampling.lora)
    return replace(sampling, **neutral) if neutral else sampling


def _check_single(lora: Sequence[Adapter]) -> None:
    """Refuse what an engine cannot do that applies one adapter to a generation, as it is."""
    if len(lora) > 1 or lora[0].scale != 1:
        message = "The engine of this model takes one adapter for a request, with the scale 1. Name one."
        raise RequestError(message, param="lora")


_NO_SAMPLING = Sampling()
_DEFAULTS = {name: getattr(_NO_SAMPLING, name) for name in Sampling.__struct_fields__}


@cache
def _missing(able: frozenset[str]) -> tuple[str, ...]:
    """The features that an engine with these abilities does not have."""
    return tuple(name for name in _DEFAULTS if name not in able)


def is_free(turn: Turn) -> bool:
    """There are no demands on the text: the common case, which takes no time."""
    if turn.format is not None:
        return False
    if not turn.tools or turn.tool_choice.calling is CallMode.NONE:
        return True
    return turn.tool_choice == ToolChoice() and not any(tool.strict for tool in turn.tools)


def requirements_of(
    turn: Turn, state: str | None = None, context: int = 0, *, mid_text: bool = False
) -> OutputRequirements:
    """The demands of the turn on an answer that begins in `state`, in a context of so many tokens.

    Its length is rounded up, so that few lengths occur: plans are kept. A client may have begun it.
    """
    may_call = turn.tool_choice.calling is not CallMode.NONE
    continued = turn.prefix or turn.ending is PromptEnding.CONTINUED
    tokens = min(filter(None, (context, None if continued else turn.sampling.max_tokens)), default=0)
    longest = MAX_CHARACTERS_PER_TOKEN << tokens.bit_length() if tokens else LONGEST_ANSWER
    tools = turn.tools if may_call else ()
    return OutputRequirements(tools, turn.tool_choice, turn.format, state, longest, mid_text)


# The functions below may not end: they run in separate processes, see `bounded.py`


def plan_for(required: OutputRequirements, grammar: Grammar, capabilities: Capabilities) -> ConstraintPlan:
    """The plan for these demands, for an engine of these capabilities. Raises RequestError."""
    enforced = compile_constraint(required, grammar)
    notation = capabilities.constraints[0] if capabilities.constraints else None
    plan = plan_of(Demands(enforced), notation)
    if not plan.has_unenforced:
        return plan
    schemas, form = schemas_of(required), None
    if required.format is not None and schemas.format is None:
        form = format_grammar(required, required.format)
    return plan_of(Demands(enforced, schemas, form), notation)


def plan_to_check(required: OutputRequirements) -> ConstraintPlan:
    """The plan for an answer of another server, which may enforce the demands. Raises RequestError."""
    return ConstraintPlan(has_unenforced=True, demands=pickle.dumps(Demands(schemas=schemas_of(required))))


def plan_of(demands: Demands, notation: type[Constraint] | None) -> ConstraintPlan:
    """The plan for an engine that takes constraints in this notation."""
    enforced, constraint = demands.enforced, None
    if notation is not None and enforced.grammar_ir is not None:
        write = gbnf.write if notation is Gbnf else structural_tag.write
        constraint = write(enforced.grammar_ir, enforced.triggers)
    has_unenforced = bool(enforced.unenforced) or (enforced.grammar_ir is not None and constraint is None)
    return ConstraintPlan(constraint, has_unenforced, pickle.dumps(demands))


def demands_of(plan: ConstraintPlan) -> Demands:
    """The demands of a plan."""
    demands: Demands = pickle.loads(plan.demands) if plan.demands else Demands()  # noqa: S301 - our own
    return demands


def plan_after(plan: ConstraintPlan, text: str) -> ConstraintPlan | None:
    """The constraint on the rest of an answer after `text`; None if that violates the demands."""
    demands, notation = demands_of(plan), None if plan.constraint is None else type(plan.constraint)
    enforced = demands.enforced.after(text)
    return None if enforced is None else plan_of(replace(demands, enforced=enforced), notation)
