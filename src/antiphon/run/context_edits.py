"""Edits the conversation of a turn, with the counts of the model's own tokenizer.

Nothing is remembered between requests, and yet results are removed in steps: what is removed is what a server
would have removed that had seen the conversation grow. All places where the model was to answer are gone
through in their order; at each of them the prompt of that time, with the cut so far, is compared with the
limit of the edit. So a cut depends on what comes before it alone, later requests can only extend it, and
until then each prompt begins with the one before, which engines have in their cache.

Rendering a prompt for each place would take long. The sizes of items bound the size of a prompt from both
sides; it is counted only where these bounds do not decide. As what is counted, too, depends on the
conversation before it alone, the cut does.
"""

from collections.abc import Sequence
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.edits import (
    REMOVED_RESULT,
    AppliedEdit,
    ClearReasoning,
    ClearResults,
    Edit,
    ToolUse,
    cleared_turns,
    requests_in,
    tool_uses,
    without_reasoning,
    without_results,
)
from antiphon.core.items import WITH_PARTS, FunctionCall, Item, Reasoning, text_in
from antiphon.core.turn import PromptEnding, Turn
from antiphon.run.model import Model

MAX_COUNTS = 64
"""How many prompts are counted for one conversation; after that the upper bound decides."""
MARKUP = 32
"""The most tokens that a template writes around an item."""
SPREAD = 4
"""The part (1/4) of the tokens of a text that it may have more, or fewer, in a prompt."""


class EditedTurn(Struct, frozen=True):
    """A turn after its edits, and those that have changed it."""

    turn: Turn
    applied: tuple[AppliedEdit, ...] = ()


async def edited(turn: Turn, edits: Sequence[Edit], model: Model) -> EditedTurn:
    """The turn with these edits: first that of reasoning, if there is one. Raises RequestError."""
    whole, reasoning = turn, None
    applied: list[AppliedEdit] = []
    size: int | None = None  # of the prompt so far
    for edit in edits:
        match edit:
            case ClearReasoning():
                reasoning, count = edit, cleared_turns(turn.items, edit)
                shorter = replace(turn, items=without_reasoning(turn.items, edit))
            case ClearResults():
                uses = tool_uses(turn.items)[: await _Cut(whole, edit, reasoning, model).find()]
                count = sum(use.name not in edit.excluded for use in uses)
                shorter = replace(turn, items=without_results(turn.items, edit, uses))
        if count:
            before = await _tokens(turn, model) if size is None else size
            turn, size = shorter, await _tokens(shorter, model)
            applied.append(AppliedEdit(edit, count, before - size))
    return EditedTurn(turn, tuple(applied))


async def _tokens(turn: Turn, model: Model) -> int:
    return (await model.count(turn)).tokens


class _Cut:
    """Finds how many of the first uses of tools are removed. `reasoning` is edited before."""

    def __init__(
        self, turn: Turn, edit: ClearResults, reasoning: ClearReasoning | None, model: Model
    ) -> None:
        self._turn = turn
        self._edit = edit
        self._reasoning = reasoning
        self._model = model
        self._items = turn.items
        self._uses = tool_uses(turn.items)
        self._sizes: Sequence[int] = ()  # of the texts of items, in tokens
        self._removed_size = 0  # of the text in the place of a result
        self._most_freed = [0]  # by the first uses, at most, for each number of them
        self._least_freed = [0]
        self._there = 0  # uses so far
        self._cut = 0
        self._counts = 0
        self._is_above = False  # the prompt with this cut was over the limit, and has not become shorter
        self._least = 0  # bounds of its size
        self._most: int | None = None  # None before the first count

    async def find(self) -> int:
        if len(self._uses) <= self._edit.keep:
            return 0
        if self._edit.tokens is not None or self._edit.at_least:
            texts = [*map(_text, self._items), REMOVED_RESULT]
            *self._sizes, self._removed_size = await self._model.tokens_in(texts)
            gains = [*map(self._gain, self._uses)]
            self._most_freed = [*accumulate(map(_most, gains), initial=0)]
            self._least_freed = [*accumulate(map(_least, gains), initial=0)]
        before = 0
        for end in requests_in(self._items):
            self._grow(before, end)
            before = end
            while self._there < len(self._uses) and self._uses[self._there].result < end:
                self._there += 1
            cut = self._there - self._edit.keep
            if cut > self._cut and await self._is_due(end) and await self._frees_enough(end, cut):
                self._shrink(cut)
        return self._cut

    async def _is_due(self, end: int) -> bool:
        """Whether the conversation of this length is over the limit, with the cut so far."""
        edit = self._edit
        if edit.uses is not None:
            return self._there - self._cut > edit.uses
        limit = edit.tokens or 0
        if self._is_above or self._least > limit:
            return True
        if self._most is not None and self._most <= limit:
            return False
        if self._counts >= MAX_COUNTS:
            return True
        self._most = tokens = await self._count(end, self._cut)
        so_far = zip(self._sizes[:end], self._items, strict=False)
        self._least = tokens - sum(size for size, item in so_far if isinstance(item, Reasoning))
        self._is_above = tokens > limit
        return self._is_above

    async def _frees_enough(self, end: int, cut: int) -> bool:
        """Whether this cut removes enough tokens."""
        if not self._edit.at_least:
            return True
        most, least = self._freed(cut)
        if most < self._edit.at_least:
            return False
        if least >= self._edit.at_least or self._counts >= MAX_COUNTS:
            return True
        freed = await self._count(end, self._cut) - await self._count(end, cut)
        return freed >= self._edit.at_least

    async def _count(self, end: int, cut: int) -> int:
        """The tokens of the prompt of the conversation of this length, with this cut."""
        self._counts += 1
        items = self._items[:end]
        if self._reasoning is not None:
            items = without_reasoning(items, self._reasoning)
        items = without_results(items, self._edit, tool_uses(items)[:cut])
        return await _tokens(replace(self._turn, items=items, ending=PromptEnding.ANSWER), self._model)

    def _grow(self, start: int, end: int) -> None:
        """Items are added. Those with reasoning may be left out by the template."""
        for item, size in zip(self._items[start:end], self._sizes[start:end], strict=False):
            self._least += 0 if isinstance(item, Reasoning) else max(0, _least(size))
            if self._most is not None:
                self._most += _most(size)

    def _shrink(self, cut: int) -> None:
        """More results are removed."""
        self._is_above = False
        if self._sizes:
            most, least = self._freed(cut)
            self._least = max(0, self._least - most)
            if self._most is not None:
                self._most -= least
        self._cut = cut

    def _freed(self, cut: int) -> tuple[int, int]:
        """How many tokens this cut removes in addition, at most and at least."""
        return (
            self._most_freed[cut] - self._most_freed[self._cut],
            self._least_freed[cut] - self._least_freed[self._cut],
        )

    def _gain(self, use: ToolUse) -> int:
        """About so many tokens fewer a prompt has without this use."""
        if use.name in self._edit.excluded:
            return 0
        gain = self._sizes[use.result] - self._removed_size
        if use.call >= 0 and self._edit.removes_arguments(use.name):
            gain += self._sizes[use.call]
        return gain


def _text(item: Item) -> str:
    """What a prompt has of an item, besides the markup of the template."""
    if isinstance(item, WITH_PARTS):
        return text_in(item.parts)
    return item.arguments if isinstance(item, FunctionCall) else item.text


def _least(size: int) -> int:
    """The fewest tokens that a text of this size adds to a prompt."""
    return size - abs(size) // SPREAD - MARKUP


def _most(size: int) -> int:
    """The most tokens that it adds."""
    return size + abs(size) // SPREAD + MARKUP
