"""A generation that is steered: at every chunk, with every part between engine and client, held back and replayed."""

import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.accumulator import Accumulator
from antiphon.core.chunks import Chunk, FinishReason, Token
from antiphon.core.events import Event
from antiphon.core.items import FunctionCall, Message, Reasoning
from antiphon.core.limits import Limits
from antiphon.core.permits import GIVE_BACK, LAST, PRIORITY
from antiphon.core.turn import ToolChoice
from antiphon.decode.decoder import Decoder
from antiphon.decode.ids import ids_by, openai_call_id
from antiphon.decode.table import Table
from antiphon.dialects.registry import find
from antiphon.engines.engine import Engine, GenerationRequest, Receiver, Work
from antiphon.run.bounded import BoundedPool
from antiphon.run.call_filter import CallFilter
from antiphon.run.generation import GenerationRun, Interceptors, ReasoningLimit
from antiphon.run.replay import ReplayLog, read_entries
from tests.laws import merge
from tests.run.support import Handheld, Heard, chunk, fold, request, until
from tests.search import examples

TABLE = Table(find("hermes").grammar)
CLOSING = Chunk("</think>", (Token(900, ""), Token(901, "</think>")))
ANSWER = '<think>Let me see.</think>Well:\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>And'
PARTS = {
    "nothing": dict,
    "a record": lambda: {"replay": ReplayLog()},
    "a limit of reasoning": lambda: {"reasoning": ReasoningLimit(100, CLOSING)},
    "a filter of calls": lambda: {"calls": CallFilter(ToolChoice())},
    "repetitions": lambda: {"pool": BoundedPool(Limits(repetitions=50))},
}


def generation(engine: Engine, **parts: object) -> GenerationRun:
    decoder = Decoder(TABLE, ids=ids_by(openai_call_id, 0, Random(0)))
    return GenerationRun(engine, request(), decoder, Interceptors(**parts), Accumulator())  # type: ignore[arg-type]


async def steered(after: int, *, held: bool, early: bool, **parts: object) -> tuple[list[Event], int]:
    """The events of an answer that is steered after so many chunks, and the chunks that the engine could push."""
    engine, heard = Handheld(), Heard()
    run = generation(engine, **parts)
    if early:
        run.steer()
    running = asyncio.create_task(run.run(heard, 0))
    await asyncio.sleep(0)
    pushed = 0
    if not early:
        await until(lambda: engine.receivers)
        for pushed, char in enumerate(ANSWER):
            if pushed == after:
                if held:
                    heard.hold()
                run.steer()
            if not engine.working:
                break
            engine.receivers[0].push([chunk(char)])
            if held and pushed == after + 2:
                heard.resume()
                await asyncio.sleep(0)
        if engine.working and held:
            heard.resume()
    async with asyncio.timeout(5):
        await running
    return heard.events, pushed


@pytest.mark.parametrize("parts", PARTS)
@settings(max_examples=examples(60))
@given(after=st.integers(0, len(ANSWER) - 1), held=st.booleans())
async def test_it_ends_soon_and_nothing_is_lost(parts: str, after: int, held: bool) -> None:
    events, pushed = await steered(after, held=held, early=False, **PARTS[parts]())
    output = fold(events)
    texts = {kind: "".join(i.text for i in output.items if type(i) is kind) for kind in (Reasoning, Message)}
    assert "Let me see.".startswith(texts[Reasoning])
    assert "Well:\nAnd".replace("\n", "").startswith(texts[Message].replace("\n", ""))
    call = ANSWER.index("<tool_call>"), ANSWER.index("And")
    calls = [item for item in output.items if isinstance(item, FunctionCall)]
    assert [item.arguments for item in calls] == ['{"a": 1}'] * len(calls)
    if call[0] < after < call[1]:
        assert len(calls) == 1
        assert output.reason in (FinishReason.STOP, FinishReason.STEERED)
    else:
        assert output.reason is FinishReason.STEERED or calls
        # A marker that may have begun is waited for; of what a client has not read, nobody knows where it is.
        assert held or pushed <= after + len("</think>") + 3


@pytest.mark.parametrize("parts", PARTS)
async def test_before_it_begins_the_engine_is_not_asked(parts: str) -> None:
    events, _ = await steered(0, held=False, early=True, **PARTS[parts]())
    output = fold(events)
    assert (output.items, output.reason) == ((), FinishReason.STEERED)


@pytest.mark.parametrize("after", range(1, len(ANSWER) - 1, 3))
async def test_a_record_of_it_is_the_same_answer(after: int) -> None:
    """A server that takes the answer over at its end makes the same events, and generates nothing."""
    log = ReplayLog()
    events, _ = await steered(after, held=False, early=False, replay=log)
    again, engine = Heard(), Handheld()
    run = generation(engine, replay=ReplayLog(read_entries([log.new()])))
    await run.run(again, 0)
    assert merge(again.events) == merge(events)
    assert not engine.asked


@pytest.mark.parametrize("after", range(1, len(ANSWER) - 1, 3))
async def test_what_was_recorded_is_repeated_before_it_ends(after: int) -> None:
    """The server that takes over is told before it has repeated anything: no event is missing."""
    log, engine, heard = ReplayLog(), Handheld(), Heard()
    running = asyncio.create_task(generation(engine, replay=log).run(heard, 0))
    await until(lambda: engine.receivers)
    for char in ANSWER[:after]:
        engine.receivers[0].push([chunk(char)])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    again, engine = Heard(), Handheld()
    run = generation(engine, replay=ReplayLog(read_entries([log.new()])))
    run.steer()
    running = asyncio.create_task(run.run(again, 0))
    await until(lambda: running.done() or engine.receivers)
    for char in ANSWER[after:]:
        if running.done() or not engine.working:
            break
        engine.receivers[0].push([chunk(char)])
    async with asyncio.timeout(5):
        await running
    whole = merge(heard.events)[:-1]  # the last may have gone on
    assert whole == merge(again.events)[: len(whole)]


class Lending(Handheld):
    """Takes its slot back when the test says so."""

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        given = GIVE_BACK.get()
        assert given is not None
        self.take_back = given
        return super().generate(request, receiver)


@pytest.mark.parametrize("parts", PARTS)
@settings(max_examples=examples(40))
@given(after=st.integers(0, len(ANSWER) - 1), lent=st.integers(0, len(ANSWER) - 1), first=st.booleans())
async def test_one_that_gives_its_slot_back_ends_as_well(
    parts: str, after: int, lent: int, first: bool
) -> None:
    engine, heard = Lending(), Heard()
    token = PRIORITY.set(LAST)
    try:
        run = generation(engine, **PARTS[parts]())
        running = asyncio.create_task(run.run(heard, 0))
    finally:
        PRIORITY.reset(token)
    pushed = 0
    for pushed, char in enumerate(ANSWER):
        await until(lambda: running.done() or engine.working)
        if running.done():
            break
        if pushed == after and first:
            run.steer()
        if pushed == lent:
            engine.take_back()
        if pushed == after and not first:
            run.steer()
        await until(lambda: running.done() or engine.working)
        for _ in range(3):  # what was given back is asked for again
            await asyncio.sleep(0)
        if running.done():
            break
        engine.receivers[-1].push([chunk(char)])
    async with asyncio.timeout(5):
        await running

    output = fold(heard.events)
    calls = [item for item in output.items if isinstance(item, FunctionCall)]
    assert [item.arguments for item in calls] == ['{"a": 1}'] * len(calls)
    assert output.reason is FinishReason.STEERED or calls
    call = ANSWER.index("<tool_call>"), ANSWER.index("And")
    assert call[0] < after < call[1] or pushed <= after + len("</think>") + 3
    assert not engine.working
    begun, *goes_on = engine.asked
    assert [len(request.prompt.ids) - len(begun.prompt.ids) for request in goes_on] in ([], [lent])
