"""The constraint that an engine gets, and which of the demands of a request it enforces.

Features that an engine does not have are refused by name. Demands that it cannot enforce are checked when
the answer is complete, and its end reports the violations.
"""

import pickle
import re
from collections.abc import Mapping, Sequence
from functools import cache
from math import isinf
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.constrain import gbnf, structural_tag
from antiphon.constrain.analysis import without_unused_rules
from antiphon.constrain.budget import LONGEST_ANSWER
from antiphon.constrain.compile import (
    CompiledConstraint,
    OutputRequirements,
    compile_constraint,
    format_grammar,
)
from antiphon.constrain.grammar_ir import Alternation, GrammarIR
from antiphon.constrain.growth import Farthest, Growth, growth_of
from antiphon.constrain.matcher import Matcher, matches
from antiphon.constrain.shortest import Shortest
from antiphon.constrain.way_out import WaysOut
from antiphon.core.constraint import (
    Constraint,
    Format,
    Gbnf,
    JsonObject,
    JsonSchema,
    OneOf,
    Regex,
    StructuralTag,
    WholePattern,
    WholeSchema,
)
from antiphon.core.errors import RequestError
from antiphon.core.grammar import Grammar
from antiphon.core.turn import Adapter, CallMode, PromptEnding, Sampling, ToolChoice, Turn
from antiphon.engines.engine import MAX_CHARACTERS_PER_TOKEN, Capabilities
from antiphon.run.schemas import Schemas, schemas_of

MAX_SHORTEST = 64 * 1024
"""Bytes of the longest way out that is written."""

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_k": (-1, 0),
    "min_p": (0,),
    "typical_p": (1,),
    "top_n_sigma": (-1, 0),
    "xtc_probability": (0,),
    "dynatemp_range": (0,),
    "mirostat": (0,),
    "dry_multiplier": (0,),
    "adaptive_target": (-1, 1),
    "tfs": (1,),
    "top_a": (0,),
    "skew": (0,),
    "smoothing_factor": (0,),
    "cfg_scale": (1,),
    "min_keep": (0,),
    "loop_detect_window": (0,),
    "repetition_decay": (0,),
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

_PARTS: Mapping[str, str] = {
    "xtc_threshold": "xtc_probability",
    "dynatemp_exponent": "dynatemp_range",
    "mirostat_tau": "mirostat",
    "mirostat_eta": "mirostat",
    "dry_base": "dry_multiplier",
    "dry_allowed_length": "dry_multiplier",
    "dry_penalty_last_n": "dry_multiplier",
    "dry_sequence_breakers": "dry_multiplier",
    "adaptive_decay": "adaptive_target",
    "negative_prompt": "cfg_scale",
}
"""Parameters of samplers, and the one that switches the sampler on: without that they have no effect."""

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


Notation = type[Gbnf] | type[StructuralTag]
"""A kind of constraint that any grammar can be written as."""


class Closing(Struct, frozen=True):
    """How an answer that is cut can be ended in its form, from where a plan applies.

    `shortest` is the shortest way, of `size` bytes; it is empty if it is very long. After any text that the
    grammar allows, it has at most `bound` bytes and `growth` for each byte of that text.
    """

    shortest: str
    size: int
    bound: int
    growth: Growth


class ConstraintPlan(Struct, frozen=True):
    """The part of the demands on an answer that the engine enforces: all or nothing.

    `has_unenforced`: some demands are left to check, all if the constraint is in the client's words.
    `demands` are the encoded `Demands`, as the process that
    compiled them wrote them: only such processes decode them, in functions that such a process runs.
    `closing` is None if there is no grammar.
    """

    constraint: Constraint | None = None
    has_unenforced: bool = False
    demands: bytes = b""
    closing: Closing | None = None

    @property
    def notation(self) -> Notation | None:
        """How the constraint on a part of the answer is written; None if the engine enforces no grammar."""
        return _notation(type(self.constraint))


class WayOut(Struct, frozen=True):
    """The shortest way out from a place in an answer; the longest is `longer` bytes longer."""

    text: str
    longer: int = 0


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
        message = "The server of this model does not report the ids of tokens. Leave it out."
        raise RequestError(message, param=turn.token_ids)
    if (sampling.logprobs or 0) > capabilities.alternatives:
        message = (
            f"This model returns at most {capabilities.alternatives} alternatives to a token. Ask for fewer."
        )
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
        if not (value in _NEUTRAL.get(name, ()) or _is_off(sampling, _PARTS.get(name))):
            wire = WIRE_NAMES.get(name, name)
            why = (
                "has no effect on a beam search"
                if searched
                else "is not supported by the engine of this model"
            )
            raise RequestError(f"'{wire}' {why}. Leave it out.", param=wire)
        neutral[name] = default
    _check_ranges(sampling, capabilities)
    if sampling.lora and not capabilities.scales_adapters:
        _check_single(sampling.lora)
    return replace(sampling, **neutral) if neutral else sampling


def _is_off(sampling: Sampling, switch: str | None) -> bool:
    """Whether the request does not use the sampler that this parameter switches on."""
    return switch is not None and getattr(sampling, switch) in (None, *_NEUTRAL[switch])


def _check_ranges(sampling: Sampling, capabilities: Capabilities) -> None:
    """Raise RequestError for a number that the engine does not take."""
    for name, within in capabilities.ranges.items():
        value = getattr(sampling, name)
        if value is not None and not within.admits(value):
            message = f"'{name}' is {value}, and the engine of this model allows {within}. Use such a number."
            raise RequestError(message, param=name)


def _check_single(lora: Sequence[Adapter]) -> None:
    """Refuse what an engine cannot do that applies one adapter to a generation, as it is."""
    if len(lora) > 1 or lora[0].scale != 1:
        message = "The engine of this model uses one adapter for a request, with the scale 1. Name only one."
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
    return turn.tool_choice == ToolChoice() and not any(tool.strict for tool in turn.known_tools)


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
    tools = turn.known_tools if may_call else ()
    return OutputRequirements(tools, turn.tool_choice, turn.format, state, longest, mid_text)


# The functions below may not end: they run in separate processes, see `bounded.py`


def plan_for(required: OutputRequirements, grammar: Grammar, capabilities: Capabilities) -> ConstraintPlan:
    """The plan for these demands, for an engine of these capabilities. Raises RequestError."""
    enforced = compile_constraint(required, grammar)
    notation = _notation(*capabilities.constraints)
    if enforced.triggers and not capabilities.triggers:
        notation = None
    plan = plan_of(Demands(enforced), notation)
    if not plan.has_unenforced:
        return plan
    schemas, form = schemas_of(required), None
    if required.format is not None and schemas.format is None:
        form = format_grammar(required, required.format)
    plan = plan_of(Demands(enforced, schemas, form), notation)
    if notation is None and capabilities.constraints:
        return replace(plan, constraint=_in_own_words(required, enforced, capabilities))
    return plan


def _notation(*kinds: type[Any]) -> Notation | None:
    """The first of these kinds that any grammar can be written as."""
    for kind in kinds:
        if kind is Gbnf or kind is StructuralTag:
            return kind
    return None


def _in_own_words(
    required: OutputRequirements, enforced: CompiledConstraint, capabilities: Capabilities
) -> Constraint | None:
    """The client's format, if the answer consists of nothing else, and the engine reads such formats."""
    format_, grammar_ir = required.format, enforced.grammar_ir
    if format_ is None or grammar_ir is None or enforced.triggers or required.mid_text:
        return None
    constraint = _client_format(format_)
    if constraint is None or type(constraint) not in capabilities.constraints:
        return None
    return constraint if grammar_ir.start == format_grammar(required, format_).start else None


def _client_format(format_: Format) -> Constraint | None:
    match format_:
        case JsonSchema(schema):
            return WholeSchema(schema)
        case JsonObject():
            return WholeSchema({"type": "object"})
        case Regex(pattern):
            return WholePattern(pattern)
        case OneOf(texts):
            return WholePattern("|".join(map(re.escape, texts)))
        case _:
            return None


def plan_to_check(required: OutputRequirements) -> ConstraintPlan:
    """The plan for an answer of another server, which may enforce the demands. Raises RequestError."""
    return ConstraintPlan(has_unenforced=True, demands=pickle.dumps(Demands(schemas=schemas_of(required))))


def plan_of(demands: Demands, notation: Notation | None) -> ConstraintPlan:
    """The plan for an engine that takes constraints in this notation."""
    enforced, constraint = demands.enforced, None
    if notation is not None and enforced.grammar_ir is not None:
        constraint = _written(notation, enforced.grammar_ir, enforced.triggers)
    has_unenforced = bool(enforced.unenforced) or (enforced.grammar_ir is not None and constraint is None)
    return ConstraintPlan(constraint, has_unenforced, pickle.dumps(demands), _closing(enforced))


def _written(notation: Notation, grammar_ir: GrammarIR, triggers: tuple[str, ...] = ()) -> Constraint:
    write = gbnf.write if notation is Gbnf else structural_tag.write
    return write(grammar_ir, triggers)


def _closing(enforced: CompiledConstraint) -> Closing | None:
    if enforced.grammar_ir is None:
        return None
    grammar_ir = without_unused_rules(enforced.whole or enforced.grammar_ir)
    shortest, farthest = Shortest(grammar_ir.rules), Farthest(grammar_ir.rules)
    size, start = shortest.size(grammar_ir.start), grammar_ir.start
    if isinf(size):
        return None
    options = start.options if isinstance(start, Alternation) else (start,)
    bound = max(int(size) for size in map(farthest.size, options) if not isinf(size))
    text = shortest.text(start) if size <= MAX_SHORTEST else ""
    return Closing(text, int(size), bound, growth_of(grammar_ir, farthest))


def demands_of(plan: ConstraintPlan) -> Demands:
    """The demands of a plan."""
    demands: Demands = pickle.loads(plan.demands) if plan.demands else Demands()  # noqa: S301 - our own
    return demands


def plan_after(plan: ConstraintPlan, text: str) -> ConstraintPlan | None:
    """The constraint on the rest of an answer after `text`; None if that violates the demands."""
    demands = demands_of(plan)
    enforced = demands.enforced.after(text)
    return None if enforced is None else plan_of(replace(demands, enforced=enforced), plan.notation)


def plans_after(
    plan: ConstraintPlan, passed: str, held: str
) -> tuple[ConstraintPlan | None, ConstraintPlan | None]:
    """The plan after `passed`, and that after `held`, which follows it, with its `closing`.

    They have no constraint, and are None where the texts violate the demands.
    """
    demands = demands_of(plan)
    enforced = demands.enforced.after(passed)
    if enforced is None:
        return None, None
    before = ConstraintPlan(demands=pickle.dumps(replace(demands, enforced=enforced)))
    return before, plan_after(before, held)


def ways_out(plan: ConstraintPlan, text: str, texts: Sequence[str]) -> list[WayOut | None]:
    """The way out after `text` and each of these texts, which follow each other; None if it is too long.

    Those from the first text on that is not in the form are left out.
    """
    grammar_ir = demands_of(plan).enforced.whole
    assert grammar_ir is not None
    matcher, shortest = Matcher(grammar_ir), Shortest(grammar_ir.rules)
    ways, found = WaysOut(grammar_ir.rules, shortest), list[WayOut | None]()
    matcher.feed(text)
    for more in texts:
        if not matcher.feed(more):
            break
        rest = matcher.residual().start
        size = shortest.size(rest)
        if size > MAX_SHORTEST:
            found.append(None)
        else:
            found.append(WayOut(shortest.text(rest), ways.of(rest)[1] - int(size) if size else 0))
    return found


def constraint_out(plan: ConstraintPlan, text: str, notation: Notation) -> Constraint:
    """The constraint on the ways out after `text`, of which there is one at least."""
    enforced = demands_of(plan).enforced.after(text)
    assert enforced is not None
    assert enforced.grammar_ir is not None
    rules = enforced.grammar_ir.rules
    ways, _ = WaysOut(rules, Shortest(rules)).of(enforced.grammar_ir.start)
    return _written(notation, ways)


def is_whole(plan: ConstraintPlan, text: str) -> bool:
    """Whether an answer with this text is in its form."""
    grammar_ir = demands_of(plan).enforced.whole
    return grammar_ir is not None and matches(grammar_ir, text)
