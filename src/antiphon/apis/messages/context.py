"""What a request wants left out of its conversation: `context_management`, and `compaction`.

Anthropic's names and meanings. The limits from which on something is left out are Anthropic's, or shares of a
context that is smaller. There is no least limit for a compaction: contexts differ.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.apis.messages.schema import CountTokens
from antiphon.apis.request_object import RequestObject, object_at
from antiphon.apis.summaries import SUMMARY_REQUEST
from antiphon.core.edits import ClearReasoning, ClearResults, Edit
from antiphon.core.errors import RequestError

CLEAR_THINKING = "clear_thinking_20251015"
CLEAR_TOOL_USES = "clear_tool_uses_20250919"
COMPACT = "compact_20260112"

CLEAR_FROM = 100_000
COMPACT_FROM = 150_000
"""Tokens of a prompt from which on it is edited by default, or the share (1/2, 3/4) of a smaller context."""


class Compact(Struct, frozen=True):
    """Has a prompt of so many tokens summarised, with this request to the model; then, perhaps, no answer."""

    tokens: int
    request: str
    pauses: bool = False


class ContextPlan(Struct, frozen=True):
    """What is left out. `reports`: the answer says what was; `summarises`: the answer is a summary.

    `summarises` is the request for it to the model. `keeps_thinking`: thinking that is not cleared is shown.
    """

    reports: bool = False
    edits: tuple[Edit, ...] = ()
    compact: Compact | None = None
    summarises: str | None = None
    keeps_thinking: bool = False

    @property
    def acts(self) -> bool:
        """Whether something may be left out."""
        return bool(self.edits or self.compact or self.summarises)


NO_PLAN = ContextPlan()


def context_plan(request: CountTokens, names: Mapping[str, frozenset[str]], context: int = 0) -> ContextPlan:
    """What a request wants left out. `names` are the model's of the client's tools. Raises RequestError."""
    if request.compaction is not None:
        return ContextPlan(summarises=_summary_request(request))
    if request.context_management is None:
        return NO_PLAN
    found: dict[str, Edit | Compact | None] = {}
    for edit in RequestObject(request.context_management, "context_management").objects("edits"):
        type_ = edit.text("type")
        if type_ not in _EDITS:
            raise edit.wrong("type", f"There is no such edit. Use one of: {', '.join(_EDITS)}.")
        if type_ in found:
            raise edit.wrong("type", "There is one of this type already. Leave one of them out.")
        if type_ == CLEAR_THINKING and found:
            raise edit.wrong("type", "It has to be the first of the edits.")
        found[type_] = _EDITS[type_](edit, names, context)
    compact = found.pop(COMPACT, None)
    assert not isinstance(compact, Edit)
    edits = tuple(edit for edit in found.values() if isinstance(edit, Edit))
    keeps = CLEAR_THINKING in found
    return ContextPlan(bool(request.context_management), edits, compact, keeps_thinking=keeps)


def _summary_request(request: CountTokens) -> str:
    """What the model is told to summarise. Raises RequestError."""
    wanted = object_at(request.compaction, "compaction")
    if wanted.text("type") != "summarize":
        raise wanted.wrong("type", "Use 'summarize'.")
    if request.context_management:
        message = "A conversation that is summarised is not edited. Leave out 'context_management'."
        raise RequestError(message, param="context_management")
    if getattr(request, "max_tokens", None) == 0:
        raise RequestError(
            "A summary needs output tokens. Set 'max_tokens', or leave out 'compaction'.", param="compaction"
        )
    instructions = wanted.text_or_none("instructions") or ""
    return instructions if instructions.strip() else SUMMARY_REQUEST


# Edits


def _clear_thinking(edit: RequestObject, *_: object) -> ClearReasoning | None:
    keep = edit.value.get("keep")
    if keep is None:
        return ClearReasoning()
    if keep == "all":
        return None
    kept = _object(edit, "keep")
    match kept.text("type"):
        case "all":
            return None
        case "thinking_turns":
            return ClearReasoning(_number(kept, "value", 1))
    raise kept.wrong("type", "Use 'thinking_turns' or 'all'.")


def _clear_tool_uses(edit: RequestObject, names: Mapping[str, frozenset[str]], context: int) -> ClearResults:
    trigger = _amount(edit, "trigger", "input_tokens", "tool_uses")
    tokens = min(CLEAR_FROM, context // 2 or CLEAR_FROM) if trigger is None else None
    uses = None
    if trigger is not None:
        type_, value = trigger
        tokens, uses = (value, None) if type_ == "input_tokens" else (None, value)
    keep = _amount(edit, "keep", "tool_uses")
    least = _amount(edit, "clear_at_least", "input_tokens")
    inputs = edit.value.get("clear_tool_inputs")
    return ClearResults(
        tokens=tokens,
        uses=uses,
        keep=ClearResults().keep if keep is None else keep[1],
        at_least=0 if least is None else least[1],
        excluded=_functions(edit, "exclude_tools", names),
        arguments=_functions(edit, "clear_tool_inputs", names)
        if isinstance(inputs, list)
        else bool(edit.flag_or_none("clear_tool_inputs")),
    )


def _compact(edit: RequestObject, _: object, context: int) -> Compact:
    trigger = _amount(edit, "trigger", "input_tokens")
    tokens = min(COMPACT_FROM, context * 3 // 4 or COMPACT_FROM) if trigger is None else trigger[1]
    instructions = edit.text_or_none("instructions") or ""
    request = f"{SUMMARY_REQUEST}\n\n{instructions}" if instructions.strip() else SUMMARY_REQUEST
    return Compact(max(1, tokens), request, bool(edit.flag_or_none("pause_after_compaction")))


_EDITS: Mapping[str, Callable[[RequestObject, Any, int], Edit | Compact | None]] = {
    CLEAR_THINKING: _clear_thinking,
    CLEAR_TOOL_USES: _clear_tool_uses,
    COMPACT: _compact,
}


# Their fields


def _amount(edit: RequestObject, name: str, *types: str) -> tuple[str, int] | None:
    """The type and the value of an amount, None if it is absent. Raises RequestError."""
    amount = edit.object_or_none(name)
    if amount is None:
        return None
    if (type_ := amount.text("type")) not in types:
        raise amount.wrong("type", f"Use one of: {', '.join(types)}.")
    return type_, _number(amount, "value", 0)


def _number(amount: RequestObject, name: str, least: int) -> int:
    value = amount.value.get(name)
    if value is None:
        raise amount.missing(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise amount.wrong(name, f"Expected an integer from {least} on.")
    return value


def _object(edit: RequestObject, name: str) -> RequestObject:
    value = edit.object_or_none(name)
    assert value is not None
    return value


def _functions(edit: RequestObject, name: str, names: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The functions of the tools that a list names. Raises RequestError."""
    given: Sequence[Any] = edit.value.get(name) or ()
    if not isinstance(given, list | tuple) or not all(isinstance(tool, str) for tool in given):
        raise edit.wrong(name, "Expected an array of names.")
    return frozenset(function for tool in given for function in (tool, *names.get(tool, ())))
