"""The driver: the order of events, held events, and the end of an answer, as sent and stored."""

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.errors import (
    AntiphonError,
    EngineBusyError,
    EngineError,
    EngineNotReadyError,
    RequestError,
    StoreError,
)
from antiphon.core.events import Event, Finished, TextDelta
from antiphon.core.plain_tokens import DeltaEncoder
from antiphon.core.turn import Sampling
from antiphon.run.answer_source import AnswerSource
from antiphon.run.drive import (
    CLIENT,
    LARGE,
    Client,
    Driver,
    call_in_turn,
    pieces,
    wait_for_turn,
)
from antiphon.run.endings import (
    ENDINGS,
    CancelRequestedError,
    ClientLeftError,
    ClientResult,
    DeadlineError,
    Ending,
    LostError,
    Stored,
    ending_of,
)
from tests.run.support import Handheld, chunk, chunks, scripted, served, turn, until

Step = str | Exception | asyncio.Event | Callable[[], Any]


class Steps:
    """A source that does one thing after the other: says a word, fails, waits for an event, or calls.

    A wait for an event that is never set is that of an engine that works for long.
    """

    def __init__(self, *steps: Step, closing: str = "") -> None:
        self._steps = steps
        self._closing = closing
        self.stopped = False
        self.ended = False

    async def run(self, output: Driver) -> None:
        self.output = output
        try:
            for step in self._steps:
                match step:
                    case str():
                        output.push(0, [step])
                    case Exception():
                        raise step
                    case asyncio.Event():
                        await step.wait()
                    case _:
                        step()
        except asyncio.CancelledError:
            self.stopped = True
            raise
        self.ended = True

    def abandon(self) -> Iterable[tuple[int, Any]]:
        return [(0, [self._closing])] if self._closing and not self.ended else []


class Words:
    """A projection that makes a line of each word."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.status = ""

    def set_prompts(self, prompts: Sequence[Any]) -> None: ...

    def begin(self) -> list[bytes]:
        return [b"begin"]

    def push(self, choice: int, events: Any) -> list[bytes]:
        self.said += events
        return [word.encode() for word in events]

    def finish(self) -> list[bytes]:
        self.status = "finished"
        return [b"finish"]

    def fail(self, error: AntiphonError) -> list[bytes]:
        self.status = "failed"
        return [f"fail {error.message}".encode()]

    def cancel(self) -> list[bytes]:
        self.status = "cancelled"
        return [b"cancel"]

    def body(self) -> bytes:
        return json.dumps([*self.said, self.status]).encode()


class Notes:
    """A journal that keeps what it is given; `opening` is what has to be awaited before the first line."""

    def __init__(
        self,
        opening: Awaitable[None] | None = None,
        *,
        background: bool = False,
        replaying: bool = False,
        closing: Exception | asyncio.Event | None = None,
    ) -> None:
        self.background = background
        self.replaying = replaying
        self._opening = opening
        self._closing = closing
        self.lines: list[bytes] = []
        self.ending: Ending | None = None
        self.reason: BaseException | None = None
        self.released = False
        self.closing = asyncio.Event()

    def set_prompts(self, prompts: Sequence[Any]) -> None: ...

    def open(self, stop: Callable[[Exception], None]) -> Awaitable[None] | None:
        self.stop = stop
        return self._opening

    def record(self, choice: int, events: Any, lines: list[bytes]) -> list[bytes]:
        self.lines += lines
        return lines

    def delta_encoder(self, encode: DeltaEncoder) -> None: ...

    async def close(self, ending: Ending, reason: BaseException | None, lines: list[bytes]) -> list[bytes]:
        self.closing.set()
        if isinstance(self._closing, Exception):
            raise self._closing
        if self._closing is not None:
            await self._closing.wait()
        self.lines += lines
        self.ending, self.reason = ending, reason
        return lines

    async def release(self) -> None:
        self.released = True


class Viewer(Client):
    """A client that keeps its lines. It disconnects, or stops reading, on request."""

    def __init__(self, *, gone: bool = False) -> None:
        self.started = False
        self.lines: list[bytes] = []
        self.body: bytes | None = None
        self.batches = 0
        self._gone = gone

    def attach(self, driver: Driver) -> None:
        self.driver = driver
        if self._gone:
            self.leave()

    def leave(self) -> None:
        self.driver.stop(ClientLeftError())

    def write(self, lines: list[bytes]) -> None:
        assert lines
        assert self.body is None, "a line after the end"
        self.started = True
        self.batches += 1
        self.lines += lines

    def end(self, lines: list[bytes], body: Callable[[], bytes]) -> None:
        assert self.body is None, "two ends"
        self.lines += lines
        self.body = body()


NEVER = asyncio.Event


async def driven(source: Steps, **parts: Any) -> tuple[Viewer, Notes]:
    """What a client and a journal get of an answer."""
    viewer, notes = parts.pop("viewer", None) or Viewer(), parts.pop("notes", None) or Notes()
    await Driver(source, Words(), notes, **parts).run(viewer)
    return viewer, notes


# An answer that comes to its end


async def test_everything_comes_once_and_in_order() -> None:
    viewer, notes = await driven(Steps("a", "b"))
    assert viewer.lines == notes.lines == [b"begin", b"a", b"b", b"finish"]
    assert viewer.body == b'["a", "b", "finished"]'
    assert notes.ending == Ending(ClientResult.RESULT, Stored.RESULT)
    assert notes.reason is None


async def test_an_answer_of_nothing_has_a_beginning_and_an_end() -> None:
    viewer, notes = await driven(Steps())
    assert viewer.lines == notes.lines == [b"begin", b"finish"]


async def test_the_client_sees_only_what_is_new_to_it() -> None:
    class Known(Notes):
        def record(self, choice: int, events: Any, lines: list[bytes]) -> list[bytes]:
            super().record(choice, events, lines)
            return [line for line in lines if line not in (b"begin", b"a")]

    viewer, _ = await driven(Steps("a", "b"), notes=Known())
    assert viewer.lines == [b"b", b"finish"]


async def test_who_sees_the_end_can_rely_on_what_is_stored() -> None:
    closed = asyncio.Event()
    notes, viewer = Notes(closing=closed), Viewer()
    running = asyncio.create_task(Driver(Steps("a"), Words(), notes).run(viewer))
    await notes.closing.wait()
    assert viewer.body is None
    closed.set()
    assert await running == Ending(ClientResult.RESULT, Stored.RESULT)
    assert viewer.body is not None


async def test_without_a_client_or_a_journal_an_answer_is_only_folded() -> None:
    words = Words()
    await Driver(Steps("a"), words).run()
    assert words.body() == b'["a", "finished"]'
    with pytest.raises(EngineBusyError):
        await Driver(Steps("a", EngineBusyError()), Words()).run(Client())


# Why it does not


async def test_a_failure_before_the_first_event_is_raised_and_nothing_is_stored() -> None:
    viewer, notes = Viewer(), Notes()
    with pytest.raises(RequestError, match="wrong"):
        await driven(Steps(RequestError("wrong")), viewer=viewer, notes=notes)
    assert (viewer.lines, viewer.body, notes.lines) == ([], None, [])
    assert notes.released


async def test_what_was_held_back_comes_behind_the_beginning() -> None:
    source, viewer, notes = Steps(NEVER(), closing="held back"), Viewer(), Notes(background=True)
    driver = Driver(source, Words(), notes)
    running = asyncio.create_task(driver.run(viewer))
    await asyncio.sleep(0)
    driver.stop(CancelRequestedError())
    await running
    assert viewer.lines == notes.lines == [b"begin", b"held back", b"cancel"]


async def test_what_is_much_is_done_one_after_the_other_and_others_have_their_turn_between() -> None:
    done: list[str] = []

    def fail() -> None:
        raise ValueError("one that fails")

    async def other() -> None:
        for _ in range(3):
            done.append("other")
            await asyncio.sleep(0)

    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))
    call_in_turn(lambda: done.append("first"))
    call_in_turn(fail)
    call_in_turn(lambda: done.append("third"))
    await asyncio.gather(other(), wait_for_turn())
    assert done == ["first", "other", "other", "third", "other"]
    assert [str(failure) for failure in failures] == ["one that fails"]


async def test_what_nobody_will_see_is_not_written() -> None:
    viewer, words = Viewer(), Words()
    driver = Driver(Steps("a", NEVER(), closing="held back"), words)
    running = asyncio.create_task(driver.run(viewer))
    await until(lambda: words.said)
    driver.stop(ClientLeftError())
    await running
    assert (words.said, viewer.lines, viewer.body) == (["a"], [b"begin", b"a"], None)


async def test_a_failure_in_the_middle_is_told_in_the_stream_and_stored() -> None:
    viewer, notes = await driven(Steps("a", EngineError("broken"), closing="open items"))
    assert viewer.lines == notes.lines == [b"begin", b"a", b"open items", b"fail broken"]
    assert notes.ending == Ending(ClientResult.ERROR, Stored.FAILED)
    assert isinstance(notes.reason, EngineError)


async def test_a_failure_in_the_middle_is_raised_where_nothing_was_shown() -> None:
    class Whole(Viewer):
        def write(self, lines: list[bytes]) -> None: ...

    viewer, notes = Whole(), Notes()
    with pytest.raises(EngineError, match="broken"):
        await driven(Steps("a", EngineError("broken")), viewer=viewer, notes=notes)
    assert viewer.body is None
    assert notes.ending == Ending(ClientResult.ERROR, Stored.FAILED)


async def test_nothing_of_the_inside_is_told() -> None:
    viewer, _ = await driven(Steps("a", KeyError("secret")))
    assert viewer.lines[-1] == b"fail " + EngineError().message.encode()


async def test_a_client_that_leaves_stops_the_source_and_what_was_said_is_stored() -> None:
    source, viewer, notes = Steps("a", NEVER()), Viewer(), Notes()
    running = asyncio.create_task(Driver(source, Words(), notes).run(viewer))
    await until(lambda: viewer.lines)
    viewer.leave()
    await running
    assert source.stopped
    assert notes.lines == [b"begin", b"a", b"cancel"]
    assert notes.ending is not None
    assert notes.ending.stored is Stored.CANCELLED
    assert viewer.body is None


async def test_a_client_that_left_before_anything_began_stops_it_all() -> None:
    source, viewer, notes = Steps(NEVER(), "a"), Viewer(gone=True), Notes()
    await driven(source, viewer=viewer, notes=notes)
    assert source.stopped
    assert (notes.lines, notes.released) == ([], True)


async def test_a_stop_of_a_source_that_does_not_wait_ends_it_and_nothing_else() -> None:
    """Neither the journal nor the caller of the driver is cancelled in its place."""
    task = asyncio.current_task()
    assert task is not None
    for steps in (("a",), (RequestError("nobody is told"),)):
        viewer, notes = Viewer(gone=True), Notes()
        await driven(Steps(*steps), viewer=viewer, notes=notes)
        await asyncio.sleep(0)
        assert notes.lines == ([b"begin", b"a", b"cancel"] if steps == ("a",) else [])
        assert not task.cancelling()


async def test_the_first_reason_counts() -> None:
    viewer, notes = Viewer(), Notes()
    driver = Driver(Steps("a", NEVER()), Words(), notes)
    running = asyncio.create_task(driver.run(viewer))
    await until(lambda: viewer.lines)
    driver.stop(CancelRequestedError())
    driver.stop(ClientLeftError())
    await running
    assert isinstance(notes.reason, CancelRequestedError)
    assert viewer.lines == [b"begin", b"a", b"cancel"]
    assert viewer.body == b'["a", "cancelled"]'


async def test_no_reason_counts_once_the_source_has_ended() -> None:
    closed = asyncio.Event()
    viewer, notes = Viewer(), Notes(closing=closed)
    driver = Driver(Steps("a"), Words(), notes)
    running = asyncio.create_task(driver.run(viewer))
    await notes.closing.wait()
    driver.stop(ClientLeftError())
    await asyncio.sleep(0)
    closed.set()
    await running
    assert notes.ending == Ending(ClientResult.RESULT, Stored.RESULT)
    assert viewer.lines[-1] == b"finish"


async def test_a_reason_counts_more_than_how_the_source_takes_it() -> None:
    class Clumsy(Steps):
        async def run(self, output: Driver) -> None:
            try:
                await super().run(output)
            except asyncio.CancelledError as error:
                raise KeyError("while it cleaned up") from error

    viewer, notes = Viewer(), Notes()
    driver = Driver(Clumsy("a", NEVER()), Words(), notes)
    running = asyncio.create_task(driver.run(viewer))
    await until(lambda: viewer.lines)
    driver.stop(ClientLeftError())
    await running
    assert isinstance(notes.reason, ClientLeftError)


async def test_an_answer_that_takes_too_long_fails() -> None:
    source = Steps("a", NEVER())
    viewer, notes = await driven(source, deadline=0.02)
    assert source.stopped
    assert viewer.lines == notes.lines == [b"begin", b"a", b"fail " + DeadlineError().message.encode()]
    assert isinstance(notes.reason, DeadlineError)
    with pytest.raises(DeadlineError):
        await driven(Steps(NEVER()), deadline=0.02)


async def test_a_server_that_cancels_is_told_and_stored_as_a_failure() -> None:
    source, viewer, notes = Steps("a", NEVER()), Viewer(), Notes()
    running = asyncio.create_task(Driver(source, Words(), notes).run(viewer))
    await until(lambda: viewer.lines)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert source.stopped
    assert isinstance(notes.reason, EngineNotReadyError)
    assert viewer.lines[-1] == b"fail " + EngineNotReadyError().message.encode()


@pytest.mark.parametrize("reason", [StoreError(), LostError("gone")])
async def test_what_cannot_be_stored_is_told_and_left_as_it_is(reason: Exception) -> None:
    viewer, notes = Viewer(), Notes()
    running = asyncio.create_task(Driver(Steps("a", NEVER(), closing="x"), Words(), notes).run(viewer))
    await until(lambda: viewer.lines)
    notes.stop(reason)
    await running
    assert (notes.released, notes.ending, notes.lines) == (True, None, [b"begin", b"a"])
    assert viewer.lines == [b"begin", b"a", b"x", f"fail {reason}".encode()]


async def test_an_end_that_cannot_be_stored_is_told_as_a_failure() -> None:
    viewer, _ = await driven(Steps("a"), notes=Notes(closing=StoreError()))
    assert viewer.lines == [b"begin", b"a", b"fail " + StoreError().message.encode()]

    class Whole(Viewer):
        def write(self, lines: list[bytes]) -> None: ...

    with pytest.raises(StoreError):
        await driven(Steps("a"), viewer=Whole(), notes=Notes(closing=StoreError()))


async def test_an_end_that_cannot_be_stored_is_no_surprise_when_nobody_waits_for_it() -> None:
    class Late(Notes):
        async def close(self, *_: Any) -> list[bytes]:
            self.closing.set()
            await away.wait()
            raise StoreError

    surprises: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: surprises.append(context))
    away, notes = asyncio.Event(), Late()
    running = asyncio.create_task(Driver(Steps("a"), Words(), notes).run(Viewer()))
    await notes.closing.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    del running
    away.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gc.collect()
    assert not surprises


@pytest.mark.parametrize("reason", [EngineNotReadyError(), EngineBusyError(), StoreError()])
@pytest.mark.parametrize("begun", [True, False])
async def test_in_the_background_another_server_goes_on_with_what_cannot_be_done_now(
    reason: Exception, begun: bool
) -> None:
    notes = Notes(background=True)
    steps = ("a", reason) if begun else (reason,)
    with pytest.raises(type(reason)):
        await Driver(Steps(*steps), Words(), notes).run()
    assert (notes.released, notes.ending) == (True, None)


async def test_in_the_background_a_failure_is_stored_also_before_the_first_event() -> None:
    notes = Notes(background=True)
    with pytest.raises(RequestError):
        await Driver(Steps(RequestError("wrong")), Words(), notes).run()
    assert notes.lines == [b"begin", b"fail wrong"]


async def test_what_was_not_made_again_is_not_closed() -> None:
    """The log of a continued answer has more events than were replayed: nothing can follow it."""
    notes = Notes(background=True, replaying=True)
    with pytest.raises(EngineError):
        await Driver(Steps("a", EngineError(), closing="open items"), Words(), notes).run()
    assert b"open items" not in notes.lines


# The table


def test_every_reason_has_an_ending() -> None:
    for begun in (True, False):
        for background in (True, False):
            for kind in ENDINGS:
                reason = kind("x") if kind is LostError else kind()
                assert isinstance(ending_of(reason, has_begun=begun, background=background), Ending)


def test_in_the_foreground_nothing_is_stored_before_the_first_event() -> None:
    for reason in (EngineError(), ClientLeftError(), DeadlineError(), KeyError()):
        assert ending_of(reason, has_begun=False, background=False).stored is Stored.UNCHANGED
        assert ending_of(reason, has_begun=True, background=False).stored is not Stored.UNCHANGED


# The journal's beginning


async def opening(opened: asyncio.Event, error: Exception | None = None) -> None:
    await opened.wait()
    if error is not None:
        raise error


async def test_nothing_is_shown_before_the_journal_is_open() -> None:
    opened, go_on = asyncio.Event(), asyncio.Event()
    viewer, notes = Viewer(), Notes(opening(opened))
    driver = Driver(Steps("a", "b", go_on, "c"), Words(), notes)
    running = asyncio.create_task(driver.run(viewer))
    await until(lambda: notes.lines)
    assert driver.paused
    assert viewer.lines == []
    opened.set()
    await until(lambda: viewer.lines)
    assert viewer.lines == [b"begin", b"a", b"b"]
    assert viewer.batches == 1
    assert not driver.paused
    go_on.set()
    await running
    assert viewer.lines == notes.lines == [b"begin", b"a", b"b", b"c", b"finish"]


async def test_the_end_waits_for_the_journal_to_open() -> None:
    opened = asyncio.Event()
    viewer, notes, source = Viewer(), Notes(opening(opened)), Steps("a")
    running = asyncio.create_task(Driver(source, Words(), notes).run(viewer))
    await until(lambda: source.ended)
    assert (viewer.lines, notes.ending) == ([], None)
    opened.set()
    await running
    assert viewer.lines == notes.lines == [b"begin", b"a", b"finish"]


@pytest.mark.parametrize("steps", [("a", NEVER()), ("a",), ()])
async def test_a_journal_that_cannot_be_opened_stops_the_answer(steps: tuple[Step, ...]) -> None:
    opened = asyncio.Event()
    opened.set()
    source, viewer, notes = Steps(*steps), Viewer(), Notes(opening(opened, StoreError()))
    with pytest.raises(StoreError):
        await driven(source, viewer=viewer, notes=notes)
    assert source.stopped or source.ended
    assert (viewer.lines, viewer.body, notes.ending) == ([], None, None)


async def test_a_client_that_leaves_while_the_journal_opens() -> None:
    opened = asyncio.Event()
    source, viewer, notes = Steps("a", NEVER()), Viewer(), Notes(opening(opened))
    running = asyncio.create_task(Driver(source, Words(), notes).run(viewer))
    await until(lambda: notes.lines)
    viewer.leave()
    await until(lambda: source.stopped)
    opened.set()
    await running
    assert notes.lines == [b"begin", b"a", b"cancel"]


# Back-pressure


async def test_an_answer_is_held_back_until_nothing_holds_it_back() -> None:
    opened = asyncio.Event()
    viewer, notes = Viewer(), Notes(opening(opened))
    source = Steps("a", NEVER())
    driver = Driver(source, Words(), notes)
    running = asyncio.create_task(driver.run(viewer))
    await until(lambda: notes.lines)
    resumed: list[int] = []
    for number in range(3):
        driver.on_resume(lambda number=number: resumed.append(number))  # type: ignore[misc]
    driver.pause(CLIENT)
    opened.set()
    await until(lambda: viewer.lines)
    assert driver.paused
    assert resumed == []
    driver.resume(CLIENT)
    driver.resume(CLIENT)
    assert resumed == [0, 1, 2]
    viewer.leave()
    await running


async def test_who_pauses_again_at_once_leaves_the_others_waiting() -> None:
    driver = Driver(Steps(), Words())
    resumed: list[int] = []

    def pausing() -> None:
        resumed.append(0)
        driver.pause(CLIENT)

    driver.pause(CLIENT)
    driver.on_resume(pausing)
    driver.on_resume(lambda: resumed.append(1))
    driver.resume(CLIENT)
    assert resumed == [0]
    driver.resume(CLIENT)
    assert resumed == [0, 1]


class Texts(Words):
    """The events of a model: each delta of text is a line, and the end is one."""

    def push(self, choice: int, events: list[Event]) -> list[bytes]:
        lines = []
        for event in events:
            if isinstance(event, TextDelta):
                lines.append(event.text.encode())
            elif isinstance(event, Finished):
                lines.append(event.reason.encode())
        return lines

    def delta_encoder(self, choice: int, delta: type[TextDelta]) -> Callable[[str, Any], bytes]:
        return lambda text, tokens: self.push(choice, [delta(text, text, tokens)])[0]


async def test_what_a_client_did_not_read_comes_as_one_event_when_it_reads_on() -> None:
    engine, viewer = Handheld(), Viewer()
    model = await served(engine)
    driver = Driver(AnswerSource([turn(prompt="Q")], model), Texts())
    running = asyncio.create_task(driver.run(viewer))
    await until(lambda: engine.receivers)
    [receiver] = engine.receivers
    receiver.push([chunk("a")])
    driver.pause(CLIENT)
    for each in chunks("bcd"):
        receiver.push([each])
    await asyncio.sleep(0)
    assert viewer.lines == [b"begin", b"a"]
    driver.resume(CLIENT)
    await running
    assert viewer.lines == [b"begin", b"a", b"bcd", b"stop", b"finish"]


async def test_what_came_while_the_journal_opened_comes_as_one_event() -> None:
    engine, viewer, opened = Handheld(), Viewer(), asyncio.Event()
    notes = Notes(opening(opened))
    driver = Driver(AnswerSource([turn(prompt="Q")], await served(engine)), Texts(), notes)
    running = asyncio.create_task(driver.run(viewer))
    await until(lambda: engine.receivers)
    for each in chunks("abcd"):
        engine.receivers[0].push([each])
    opened.set()
    await running
    assert viewer.lines == notes.lines == [b"begin", b"a", b"bcd", b"stop", b"finish"]


async def test_a_failure_is_told_after_what_a_client_did_not_read() -> None:
    engine, viewer = Handheld(), Viewer()
    driver = Driver(AnswerSource([turn(prompt="Q")], await served(engine)), Texts())
    running = asyncio.create_task(driver.run(viewer))
    await until(lambda: engine.receivers)
    [receiver] = engine.receivers
    receiver.push([chunk("a")])
    driver.pause(CLIENT)
    receiver.push([chunk("b")])
    receiver.fail(EngineError("broken"))
    driver.resume(CLIENT)
    await running
    assert viewer.lines == [b"begin", b"a", b"b", b"error", b"fail broken"]


# A bug of ours


async def test_a_projection_that_fails_ends_its_own_answer_only() -> None:
    """The engine continues with the others, in the same step."""

    class Broken(Texts):
        def push(self, choice: int, events: list[Event]) -> list[bytes]:
            if any(isinstance(event, TextDelta) and event.text == "c" for event in events):
                raise KeyError("secret")
            return super().push(choice, events)

    model = await scripted({"output": "abcdef", "split": "chars"})
    viewers = [Viewer(), Viewer()]
    await asyncio.gather(
        *(
            Driver(AnswerSource([turn()], model), projection).run(viewer)
            for projection, viewer in zip((Broken(), Texts()), viewers, strict=True)
        )
    )
    assert viewers[0].lines == [b"begin", b"a", b"b", b"error", b"fail " + EngineError().message.encode()]
    assert viewers[1].lines == [b"begin", *(bytes([each]) for each in b"abcdef"), b"stop", b"finish"]
    assert model.engine.load.running == 0


# What it costs


async def test_a_token_is_one_callback_of_the_engine_and_no_task() -> None:
    model = await scripted({"output": "x", "tokens": 1000})

    async def cost(tokens: int) -> tuple[int, int]:
        """Callbacks beyond the engine's own steps, and tasks, of an answer with a journal and a client."""
        limited = turn(prompt="Q", sampling=Sampling(max_tokens=tokens))
        driver = Driver(AnswerSource([limited], model), Texts(), Notes())
        loop = asyncio.get_running_loop()
        steps = model.engine.steps  # type: ignore[attr-defined]
        counts = {"callbacks": 0, "tasks": 0}
        schedule = loop.call_soon

        def counting(*args: Any, **options: Any) -> Any:
            counts["callbacks"] += 1
            return schedule(*args, **options)

        def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
            counts["tasks"] += 1
            return asyncio.Task(coroutine, loop=loop, **options)

        loop.call_soon = counting  # type: ignore[method-assign]
        loop.set_task_factory(make)
        try:
            viewer = Viewer()
            await driver.run(viewer)
        finally:
            loop.call_soon = schedule  # type: ignore[method-assign]
            loop.set_task_factory(None)
        assert len(viewer.lines) == tokens + 3
        return counts["callbacks"] - (model.engine.steps - steps), counts["tasks"]  # type: ignore[attr-defined]

    few, many = await cost(10), await cost(500)
    assert few == many


@given(st.lists(st.integers(0, LARGE + LARGE // 2), max_size=12))
def test_pieces_are_as_many_as_it_takes(sizes: list[int]) -> None:
    """Law: they are the whole, none is large that could be less, and no two next to each other could be one."""
    cut = list(pieces(sizes, lambda size: size))
    assert [size for piece in cut for size in piece] == sizes
    assert all(len(piece) == 1 or sum(piece) <= LARGE for piece in cut)
    assert all(sum(one) + other[0] > LARGE for one, other in pairwise(cut))
