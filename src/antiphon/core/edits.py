"""Edits of conversations that have become long: what a model is not shown any more, in terms of no API.

Reasoning of earlier turns is left out, old results of tools are replaced by a line. The client's conversation
stays as it is: each request has all of it, and which part is left out is derived from it anew.

To add an edit: a struct here with its settings, a function that makes its view of the items, its turn in
`run/context_edits.py`, and its type in `apis/messages/context.py`.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.call_results import is_answer
from antiphon.core.items import FunctionCall, FunctionOutput, Item, Message, Reasoning, Role, TextPart

REMOVED_RESULT = "[Old result, left out. Call again if you need it.]"
"""What the model is shown in the place of a result."""
NO_ARGUMENTS = "{}"


class ClearReasoning(Struct, frozen=True):
    """Leaves out the reasoning of all but the last `turns` turns that have any, at least 1."""

    turns: int = 1


class ClearResults(Struct, frozen=True):
    """Replaces the oldest results of calls, but for the last `keep`.

    It begins when the prompt has more than `tokens`, or more than `uses` results are left, whichever is set.
    A cut is made only if it frees `at_least` so many tokens. Calls of `excluded` functions stay as they are.
    `arguments` are those of which functions are removed, too: of all, or of these.
    """

    tokens: int | None = None
    uses: int | None = None
    keep: int = 3
    at_least: int = 0
    excluded: frozenset[str] = frozenset()
    arguments: bool | frozenset[str] = False

    def removes_arguments(self, name: str | None) -> bool:
        """Whether the arguments of calls of this function are removed."""
        return self.arguments if isinstance(self.arguments, bool) else name in self.arguments


Edit = ClearReasoning | ClearResults


class AppliedEdit(Struct, frozen=True):
    """An edit that has changed a prompt: how many turns or results it has left out, and how many tokens."""

    edit: Edit
    count: int
    tokens: int


class ToolUse(Struct, frozen=True):
    """A call with its result: the indices of both, -1 for a result without its call."""

    call: int
    result: int
    name: str | None


def tool_uses(items: Sequence[Item]) -> list[ToolUse]:
    """The calls of a conversation that have a result, in the order of these."""
    calls: dict[str, int] = {}
    uses = []
    for index, item in enumerate(items):
        if isinstance(item, FunctionCall):
            calls[item.call_id] = index
        elif isinstance(item, FunctionOutput):
            place = calls.get(item.call_id, -1)
            call = items[place] if place >= 0 else None
            name = call.name if isinstance(call, FunctionCall) else item.name
            uses.append(ToolUse(place, index, name))
    return uses


def without_results(items: Sequence[Item], edit: ClearResults, uses: Iterable[ToolUse]) -> tuple[Item, ...]:
    """The conversation without the results of these uses, as the edit has it."""
    shown = [*items]
    for use in uses:
        if use.name in edit.excluded:
            continue
        result, call = shown[use.result], shown[use.call]
        assert isinstance(result, FunctionOutput)
        shown[use.result] = replace(result, parts=(TextPart(REMOVED_RESULT),))
        if use.call >= 0 and isinstance(call, FunctionCall) and edit.removes_arguments(use.name):
            shown[use.call] = replace(call, arguments=NO_ARGUMENTS)
    return tuple(shown)


def without_reasoning(items: Sequence[Item], edit: ClearReasoning) -> tuple[Item, ...]:
    """The conversation without the reasoning that the edit leaves out."""
    gone = {*_turns_that_reason(items)[: -edit.turns]}
    return tuple(
        item
        for item, turn in zip(items, _turns(items), strict=True)
        if not isinstance(item, Reasoning) or turn not in gone
    )


def cleared_turns(items: Sequence[Item], edit: ClearReasoning) -> int:
    """How many turns lose their reasoning."""
    return max(0, len(_turns_that_reason(items)) - edit.turns)


def reasoning_of_this_turn(items: Sequence[Item]) -> tuple[Item, ...]:
    """The conversation with the reasoning since the last message of the user."""
    turns = [*_turns(items)]
    return tuple(
        item
        for item, turn in zip(items, turns, strict=True)
        if not isinstance(item, Reasoning) or turn == turns[-1]
    )


def _turns_that_reason(items: Sequence[Item]) -> list[int]:
    pairs = zip(items, _turns(items), strict=True)
    return [*dict.fromkeys(turn for item, turn in pairs if isinstance(item, Reasoning))]


def _turns(items: Iterable[Item]) -> Iterator[int]:
    """The number of the turn of each item: a message of the user begins one."""
    number = 0
    for item in items:
        number += isinstance(item, Message) and item.role is Role.USER
        yield number


def requests_in(items: Sequence[Item]) -> list[int]:
    """The lengths that a conversation had when the model was to answer: after what others have said."""
    return [
        index
        for index, item in enumerate(items, 1)
        if not is_answer(item) and (index == len(items) or is_answer(items[index]))
    ]


def has_answers(items: Iterable[Item]) -> bool:
    """Whether the model has said anything so far."""
    return any(map(is_answer, items))
