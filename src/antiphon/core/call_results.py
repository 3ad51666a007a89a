"""Results of calls in the places where every prompt format takes them: after their calls, in the same order.

Clients send results in the order in which they came, leave some out, and cut conversations between a call
and its result. Formats without ids would give such a result to the wrong call, and many chat templates and
servers refuse the conversation. So results are sorted by their calls; a call without one gets a placeholder;
and before a result without a call, one is inserted.

A result counts for a call if it comes before the model's next answer. One that comes later gets its call
again: the model has answered to the placeholder, and the beginning of the prompt must not change.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec.structs import replace

from antiphon.core.items import FunctionCall, FunctionOutput, Item, Message, Reasoning, Role, TextPart

UNNAMED = "unnamed"
"""The name of a called function whose name was lost."""

NO_RESULT = "There is no result of this call."
"""The placeholder."""

STARTED = "It was started, and runs. Its result comes later."
"""The placeholder of a call that nobody waits for."""


def pair_results(items: tuple[Item, ...], repairs: list[str]) -> tuple[Item, ...]:
    """The conversation with each result after its call. What was added is noted in `repairs`."""
    return items if _is_paired(items) else _paired(items, repairs)


def _is_paired(items: Sequence[Item]) -> bool:
    """Whether results are in their places already, as in most conversations. Quick: they may be long."""
    open_ids: deque[str] = deque()  # ids of calls
    answering = False
    for item in items:
        kind = type(item)
        if kind is FunctionCall:
            if open_ids and answering:
                return False
            answering = False
            open_ids.append(item.call_id)  # type: ignore[union-attr]
        elif kind is FunctionOutput:
            answering = True
            if not open_ids or open_ids.popleft() != item.call_id:  # type: ignore[union-attr]
                return False
        elif open_ids:
            return False
    return not open_ids


def _paired(items: Sequence[Item], repairs: list[str]) -> tuple[Item, ...]:
    paired: list[Item] = []
    calls_by_id: dict[str, FunctionCall] = {}  # the calls so far, by their ids
    for answer, following in _exchanges(items):
        results = _Results(following, repairs)
        for others, calls in _in_steps(answer):
            paired += (*others, *calls)
            for call in calls:
                calls_by_id[call.call_id] = call
                paired += results.take(call)
        for item in following:
            if not isinstance(item, FunctionOutput):
                paired.append(item)
            elif results.is_left(item):
                paired += _with_call(item, calls_by_id.get(item.call_id), len(paired))
    return tuple(paired)


class _Results:
    """What follows an answer: the results of its calls, and others. `repairs` collects what is missing."""

    def __init__(self, following: Sequence[Item], repairs: list[str]) -> None:
        self._repairs = repairs
        self._left: defaultdict[str, deque[FunctionOutput]] = defaultdict(deque)
        for item in following:
            if isinstance(item, FunctionOutput):
                self._left[item.call_id].append(item)
        # A role that only a template knows may be that of results: `ipython`.
        self._may_differ = any(isinstance(item, Message) and item.template_role for item in following)

    def take(self, call: FunctionCall) -> list[FunctionOutput]:
        """The result of a call, or a placeholder; none if a message of another role may be the result."""
        if results := self._left.get(call.call_id):
            return [results.popleft()]
        if self._may_differ:
            return []
        if not call.unawaited:
            self._repairs.append(f"the call '{call.call_id}' has no result")
        text = STARTED if call.unawaited else NO_RESULT
        return [FunctionOutput(call.call_id, (TextPart(text),), call.name)]

    def is_left(self, result: FunctionOutput) -> bool:
        """Whether no call before it has taken the result. Asked once for each, in their order."""
        results = self._left.get(result.call_id)
        if not results or results[0] is not result:
            return False
        results.popleft()
        self._repairs.append(f"the result '{result.call_id}' answers no call")
        return True


def is_answer(item: Item) -> bool:
    """Whether the model wrote the item."""
    if isinstance(item, Message):
        return item.role is Role.ASSISTANT
    return isinstance(item, (FunctionCall, Reasoning))


def _exchanges(items: Sequence[Item]) -> Iterator[tuple[list[Item], list[Item]]]:
    """Each answer of the model, and what follows it up to the next. What precedes the first follows none."""
    answer: list[Item] = []
    for answered, group in groupby(items, is_answer):
        if answered:
            answer = list(group)
        else:
            yield answer, list(group)
            answer = []
    if answer:
        yield answer, []


def _in_steps(answer: Sequence[Item]) -> Iterator[tuple[list[Item], list[FunctionCall]]]:
    """Calls that follow each other, and what was written before them."""
    others: list[Item] = []
    calls: list[FunctionCall] = []
    for item in answer:
        if isinstance(item, FunctionCall):
            calls.append(item)
        elif calls:
            yield others, calls
            others, calls = [item], []
        else:
            others.append(item)
    yield others, calls


def _with_call(result: FunctionOutput, call: FunctionCall | None, number: int) -> tuple[Item, Item]:
    """A result, and the call for it: its own again, if it had another answer, under an id of its own."""
    if call is None:
        return FunctionCall(result.call_id, result.name or UNNAMED, "{}"), result
    call = replace(call, call_id=f"{result.call_id}_{number}")
    return call, replace(result, call_id=call.call_id, name=call.name)
