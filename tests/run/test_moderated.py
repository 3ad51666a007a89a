"""A guard before an answer: whenever the client leaves, the guard or the source fails, nothing is left at work."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import product, zip_longest
from typing import Any

import pytest

from antiphon.core.chunks import FinishReason
from antiphon.core.errors import AntiphonError, EngineError, RequestError
from antiphon.core.events import Event, Finished, TextDelta, TextEnded, TextStarted, Usage
from antiphon.core.items import Message, Role, TextPart
from antiphon.core.moderation import (
    GuardFailure,
    GuardOutcome,
    GuardVerdict,
    ModerationFailedError,
    ModerationMode,
    ModerationPolicy,
)
from antiphon.run.drive import Output
from antiphon.run.guarding import OVERLAP, WINDOW
from antiphon.run.moderated import ModeratedInput, ModeratedSource

BAD = "bad thing"
SCORE, BLOCK = ModerationMode.SCORE, ModerationMode.BLOCK
LATE = TextDelta("late" * 4, raw="")
POLICIES = [ModerationPolicy(*modes) for modes in product((SCORE, BLOCK), repeat=2)]


def answer(text: str, size: int) -> list[Event]:
    """The events of a text, in deltas of so many characters."""
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    deltas = [TextDelta(piece, raw=piece) for piece in pieces]
    ended = TextEnded(item=Message(Role.ASSISTANT, (TextPart(text),)))
    return [TextStarted(), *deltas, ended, Finished(FinishReason.STOP, Usage())]


class Heard:
    """The output of an answer: its events. It is never held back, unless `paused` is set."""

    has_begun = True

    def __init__(self) -> None:
        self.events: list[tuple[int, Event]] = []
        self.paused = False

    def text(self, choice: int = 0) -> str:
        return "".join(
            event.text for index, event in self.events if (index, type(event)) == (choice, TextDelta)
        )

    def ends(self) -> dict[int, FinishReason]:
        return {index: event.reason for index, event in self.events if isinstance(event, Finished)}

    def push(self, choice: int, events: Sequence[Event]) -> None:
        self.events += ((choice, event) for event in events)

    def delta_writer(self, choice: int, delta: type[Any]) -> None:
        return None

    def announce(self) -> None: ...

    def set_prompts(self, prompts: Sequence[Any]) -> None: ...

    async def calls_begin(self, count: int) -> None: ...

    def stop(self, reason: Exception) -> None: ...

    def on_pause(self, call: Callable[[], None]) -> None: ...

    def on_resume(self, call: Callable[[], None]) -> None: ...


class Places:
    """What tasks hold as long as they are at work."""

    def __init__(self) -> None:
        self.taken = 0

    def __enter__(self) -> None:
        self.taken += 1

    def __exit__(self, *_: object) -> None:
        self.taken -= 1


class Source:
    """Pushes answers, one event in a turn, in deltas of so many characters; it ends in `rest` turns more, also when it is cancelled.

    It fails before its event number `fails`. When it is cut short, it pushes `late`.
    """

    def __init__(
        self,
        texts: Sequence[str],
        *,
        fails: int | None = None,
        size: int = 4,
        rest: int = 3,
        late: Sequence[Event] = (),
        forever: bool = False,
    ) -> None:
        self.places = Places()
        self.rested = False
        self._texts = texts
        self._fails = fails
        self._size = size
        self._rest = rest
        self._late = late
        self._forever = forever

    async def run(self, output: Output) -> None:
        over = False
        with self.places:
            try:
                for number, step in enumerate(
                    zip_longest(*(answer(text, self._size) for text in self._texts))
                ):
                    if number == self._fails:
                        raise EngineError("It died.")
                    await asyncio.sleep(0)
                    for choice, event in enumerate(step):
                        if event is not None:
                            output.push(choice, [event])
                if self._forever:
                    await asyncio.Event().wait()
                over = True
            finally:
                for _ in range(self._rest):
                    await asyncio.sleep(0)
                if not over:
                    output.push(0, self._late)
                self.rested = True

    def abandon(self) -> Iterable[tuple[int, list[Event]]]:
        return ()


class Guard:
    """Judges texts in so many turns of the loop, None: never. Those with `dies` are failures."""

    def __init__(self, turns: int | None = 2, dies: str = "nothing", *, broken: bool = False) -> None:
        self.places = Places()
        self.seen: list[str] = []
        self.reports: list[Any] = []
        self._turns = turns
        self._dies = dies
        self._broken = broken

    async def input(self, texts: Sequence[str]) -> GuardOutcome:
        return await self._judged("\n".join(texts))

    async def output(self, text: str) -> GuardOutcome:
        self.seen.append(text)
        return await self._judged(text)

    def report(self, input_: GuardOutcome, outputs: Sequence[GuardOutcome]) -> None:
        self.reports.append((input_, outputs))

    async def _judged(self, text: str) -> GuardOutcome:
        with self.places:
            try:
                if self._turns is None:
                    await asyncio.Event().wait()
                for _ in range(self._turns or 0):
                    await asyncio.sleep(0)
            finally:
                await asyncio.sleep(0)  # as one that gives its slot back
        if self._dies in text:
            if self._broken:
                raise ZeroDivisionError
            return GuardFailure("moderation_failed", "It died.")
        return GuardVerdict(BAD in text)


def moderated(
    source: Source, guard: Guard, policy: ModerationPolicy, *, choices: int = 1, window: int = 8
) -> ModeratedSource:
    given = ModeratedInput(("Hello.",), "messages")
    return ModeratedSource(source, guard, policy, given, choices=choices, window=window)


def at_work() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]


FAILURES: dict[str, Callable[[], tuple[Source, Guard]]] = {
    "nothing": lambda: (Source(["All is well. " * 2] * 2), Guard()),
    "a text is flagged": lambda: (Source(["All is well", BAD + "  "], late=[LATE]), Guard()),
    "the guard dies": lambda: (Source(["All is well"] * 2, late=[LATE]), Guard(2, "is")),
    "the guard is broken": lambda: (Source(["All is well"] * 2), Guard(2, "is", broken=True)),
    "the guard hangs": lambda: (Source(["All is well"] * 2), Guard(None)),
    "the source dies": lambda: (Source(["All is well"] * 2, fails=4), Guard(None)),
    "the source hangs": lambda: (Source(["All is well"] * 2, forever=True), Guard()),
}


@pytest.mark.parametrize("failing", FAILURES)
@pytest.mark.parametrize("policy", POLICIES, ids=str)
async def test_nothing_is_left_at_work_when_a_client_leaves_in_any_turn(
    failing: str, policy: ModerationPolicy
) -> None:
    """Once, or again while its answer is being ended: each of them is seen as what it is."""
    for turns, again in product(range(40), (None, 0, 1, 2, 5)):
        source, guard = FAILURES[failing]()
        heard = Heard()
        checked = moderated(source, guard, policy, choices=2)
        running = asyncio.ensure_future(checked.run(heard))
        for _ in range(turns):
            await asyncio.sleep(0)
        was_over = running.done()
        running.cancel()
        if again is not None:
            for _ in range(again):
                await asyncio.sleep(0)
            running.cancel()
        with suppress(asyncio.CancelledError, AntiphonError, ZeroDivisionError):
            await running
        case = (turns, again)
        assert running.cancelled() is not was_over, case
        assert (source.places.taken, guard.places.taken, at_work()) == (0, 0, set()), case
        heard_before = len(heard.events)
        await asyncio.sleep(0)
        assert len(heard.events) == heard_before, case
        if policy.output is BLOCK:
            assert not any(text in heard.text(index) for index in range(2) for text in (BAD, "late")), case


@pytest.mark.parametrize("policy", POLICIES, ids=str)
async def test_a_source_that_fails_ends_the_checks(policy: ModerationPolicy) -> None:
    """Its failure does not wait for a guard that hangs, except where the model has to."""
    if policy.input is BLOCK:
        policy = ModerationPolicy(SCORE, policy.output)
    source, guard = Source(["All is well"], fails=4), Guard(None)
    with pytest.raises(EngineError, match="It died"):
        await asyncio.wait_for(moderated(source, guard, policy).run(Heard()), 20)
    assert (guard.places.taken, at_work()) == (0, set())


@pytest.mark.parametrize("input_", [SCORE, BLOCK])
async def test_a_guard_that_fails_ends_the_source(input_: ModerationMode) -> None:
    """The answer ends when the source has: its slots are free then."""
    source, guard = Source(["All is well"], forever=True), Guard(2, "is")
    with pytest.raises(ModerationFailedError):
        await moderated(source, guard, ModerationPolicy(input_, BLOCK)).run(Heard())
    assert source.rested
    assert (source.places.taken, at_work()) == (0, set())


async def test_a_check_that_breaks_ends_the_others() -> None:
    source, guard = Source(["All is well", "All was well"]), Guard(2, "is", broken=True)
    with pytest.raises(ZeroDivisionError):
        await moderated(source, guard, ModerationPolicy(), choices=2).run(Heard())
    assert (guard.places.taken, at_work()) == (0, set())


async def test_a_source_that_ends_is_not_cut_short() -> None:
    """Its last event was passed on before it has closed what it used."""
    source, heard = Source(["All is well"], rest=100), Heard()
    await moderated(source, Guard(), ModerationPolicy(output=BLOCK)).run(heard)
    assert (heard.text(), heard.ends(), source.rested) == ("All is well", {0: FinishReason.STOP}, True)


async def test_a_choice_that_is_blocked_ends_and_the_others_go_on() -> None:
    source, heard = Source(["All is well", BAD + "  "], forever=True), Heard()
    await moderated(source, Guard(), ModerationPolicy(output=BLOCK), choices=2).run(heard)
    assert heard.ends() == {0: FinishReason.STOP, 1: FinishReason.CONTENT_FILTER}
    assert heard.text(0) == "All is well"
    assert BAD not in heard.text(1)


@pytest.mark.parametrize("window", [1, 7, 8, 64, WINDOW, 2 * WINDOW])
@pytest.mark.parametrize("size", [1, 64, WINDOW + 1])
async def test_each_window_is_seen_with_what_was_before(window: int, size: int) -> None:
    text = "".join(map(chr, range(ord("一"), ord("一") + 3 * WINDOW)))
    source, guard, heard = Source([text], size=size), Guard(0), Heard()
    await moderated(source, guard, ModerationPolicy(output=BLOCK), window=window).run(heard)
    assert heard.text() == text
    end = 0
    for seen in guard.seen:
        start = text.index(seen)
        assert start <= max(0, end - min(OVERLAP, end)), (start, end)
        end = start + len(seen)
    assert end == len(text)


async def test_a_request_is_refused_before_the_source_begins() -> None:
    source = Source(["All is well"])
    given = ModeratedInput((f"A {BAD}",), "messages")
    checked = ModeratedSource(source, Guard(), ModerationPolicy(BLOCK, BLOCK), given, choices=1, window=8)
    with pytest.raises(RequestError) as refused:
        await checked.run(Heard())
    assert refused.value.param == "messages"
    assert not source.rested
