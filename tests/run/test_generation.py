"""One generation and several: what ends them, what makes them go on, what is held back, and what a failure does."""

import asyncio
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from structlog.testing import capture_logs

from antiphon.core.accumulator import Accumulator
from antiphon.core.chunks import Candidate, Chunk, FinishReason, Token
from antiphon.core.errors import EngineBusyError, EngineError
from antiphon.core.events import CallStarted, Event, Finished, Malformed, TextDelta, TextEnded, TextStarted
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.turn import Function, Sampling, ToolChoice
from antiphon.decode.decoder import Decoder
from antiphon.decode.ids import ids_by, openai_call_id
from antiphon.decode.table import Table
from antiphon.dialects.registry import find
from antiphon.engines.engine import Engine
from antiphon.run.answer_source import AnswerSource
from antiphon.run.bounded import BoundedPool
from antiphon.run.call_filter import CallFilter
from antiphon.run.endings import ClientStalledError
from antiphon.run.generation import MAX_CLOSINGS, PIECE, GenerationRun, Interceptors, ReasoningLimit
from antiphon.run.replay import ReplayContext, ReplayLog, read_entries
from tests.laws import merge
from tests.run.support import (
    STOP,
    Handheld,
    Heard,
    Speaker,
    answered,
    chunk,
    chunks,
    fold,
    raw,
    request,
    scripted,
    served,
    turn,
    until,
)
from tests.search import examples

TABLE = Table(find("hermes").grammar)
CLOSING = Chunk("</think>", (Token(900, ""), Token(901, "</think>")))
ANSWER = '<think>Let me see.</think>Well:\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TOOLS = (Function("f", parameters={"type": "object"}), Function("g", parameters={"type": "object"}))


def generation(engine: Engine, *, stop: tuple[str, ...] = (), **interceptors: object) -> GenerationRun:
    decoder = Decoder(TABLE, stop=stop, ids=ids_by(openai_call_id, 0, Random(0)))
    return GenerationRun(
        engine,
        request(),
        decoder,
        Interceptors(**interceptors),  # type: ignore[arg-type]
        Accumulator(),
    )


async def said(generation: GenerationRun) -> list[Event]:
    heard = Heard()
    await generation.run(heard, 0)
    return heard.events


@pytest.mark.parametrize(
    "text", ['<tool_call>{"name": "f", "arguments": {"a": one}}', '<tool_call>{"name": "f", "arg']
)
async def test_broken_markup_is_logged_once(text: str) -> None:
    with capture_logs() as logs:
        events = await said(generation(Speaker([chunks(f"<tool_call>{{}} {text}")])))

    [line] = logs
    assert (line["event"], line["verdict"]) == ("broken markup", "a marker that opens no call")
    assert line["places"] == sum(isinstance(event, Malformed) for event in events) == 2


# Its end


async def test_the_last_chunk_is_the_end() -> None:
    engine = Speaker([chunks("ab")])
    output = fold(await said(generation(engine)))
    assert (output.text, output.reason, engine.over) == ("ab", FinishReason.STOP, 1)


async def test_events_have_their_items() -> None:
    events = await said(generation(Speaker([chunks("ab")])))
    [started] = [event for event in events if isinstance(event, TextStarted)]
    [ended] = [event for event in events if isinstance(event, TextEnded)]
    assert (started.index, ended.index) == (0, 0)
    assert ended.item is not None
    assert ended.item.text == "ab"


async def test_a_stop_string_stops_the_engine() -> None:
    engine = Speaker([[each] for each in chunks("abcdef")])
    output = fold(await said(generation(engine, stop=("cd",))))
    assert (output.text, output.stop) == ("ab", "cd")
    assert engine.over == 1


@pytest.mark.parametrize("end", ["its own", "a failure", "a cancellation"])
async def test_it_counts_as_running_until_it_ends_even_if_others_refer_to_it(end: str) -> None:
    script = [[chunk("a")], EngineBusyError()] if end == "a failure" else [[chunk("a")], chunks("b")]
    engine, running = Speaker(script), set[GenerationRun]()
    run = GenerationRun(engine, request(), Decoder(TABLE), Interceptors(running=running), Accumulator())
    task = asyncio.create_task(run.run(Heard(), 0))
    await asyncio.sleep(0)
    assert running == {run}
    if end == "a cancellation":
        task.cancel()
    await asyncio.wait([task])
    assert not running
    if end == "a failure":
        assert isinstance(task.exception(), EngineBusyError)


async def test_an_engine_that_fails_fails_the_generation() -> None:
    engine = Speaker([[chunk("a")], EngineBusyError()])
    run, heard = generation(engine), Heard()
    with pytest.raises(EngineBusyError):
        await run.run(heard, 0)
    output = fold([*heard.events, *run.abandon()])
    assert (output.text, output.reason) == ("a", FinishReason.ERROR)


async def test_what_is_whole_has_nothing_to_abandon() -> None:
    run = generation(Speaker([chunks("ab")]))
    await said(run)
    assert run.abandon() == []


async def test_one_call_is_the_end_if_there_may_be_one_only() -> None:
    engine = Speaker([[each] for each in chunks(ANSWER + ANSWER)])
    events = await said(generation(engine, calls=CallFilter(ToolChoice(parallel=False))))
    assert [event.name for event in events if isinstance(event, CallStarted)] == ["f"]
    assert isinstance(events[-1], Finished)
    assert len(raw(events)) <= len(ANSWER)
    assert engine.over == 1


async def test_a_turn_with_one_call_only() -> None:
    model = await scripted({"output": ANSWER + "\n" + ANSWER, "split": "chars"})
    heard = await answered(turn(tools=TOOLS, tool_choice=ToolChoice(parallel=False)), model)
    assert [call.name for call in fold(heard.events).calls] == ["f"]
    assert model.engine.load.running == 0


async def test_cancelling_stops_the_engine() -> None:
    engine, heard = Handheld(), Heard()
    running = asyncio.create_task(generation(engine).run(heard, 0))
    await until(lambda: engine.receivers)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not engine.working


# Its reasoning


def limited(tokens: int) -> ReasoningLimit:
    return ReasoningLimit(tokens, CLOSING)


async def test_reasoning_that_is_too_long_is_closed_and_the_answer_goes_on() -> None:
    first = [[chunk("<think>")], *([each] for each in map(chunk, "Hmmmmmm"))]
    engine = Speaker(first, [chunks("So.")])

    events = await said(generation(engine, reasoning=limited(4)))  # the tag is one of them

    output = fold(events)
    assert (output.reasoning, output.text) == ("Hmm", "So.")
    assert raw(events) == "<think>Hmm</think>So."
    assert output.usage.completion_tokens == 1 + 3 + 2 + 3
    assert engine.over == 2
    _, second = engine.asked
    assert second.answer_start == "<think>Hmm</think>"
    assert second.prompt.ids[-2:] == (900, 901)
    assert second.max_tokens == request().max_tokens - 6


@given(st.integers(0, 4), st.lists(st.sampled_from(["<think>", "</think>", "ab"]), max_size=6), st.booleans())
async def test_no_reasoning_is_longer_than_its_limit(limit: int, texts: list[str], batched: bool) -> None:
    pieces = [piece for text in texts for piece in ([text] if "think" in text else text)]
    pushed = [*map(chunk, pieces), chunk("", finish=STOP)]
    steps = [pushed] if batched else [[each] for each in pushed]
    engine = Speaker(*([steps] * 50))
    output = fold(await said(generation(engine, reasoning=limited(limit))))
    closings = len(engine.asked) - 1
    assert output.usage.reasoning_tokens <= limit + closings * 3


async def test_reasoning_is_not_closed_inside_a_character() -> None:
    """The first tokens of one are dropped, and not counted."""
    step = Chunk("Hm", (Token(1, "H"), Token(2, "m"), Token(3, "")))
    engine = Speaker([[chunk("<think>")], [step, Chunk("", (Token(4, ""),))]], [chunks("So.")])
    output = fold(await said(generation(engine, reasoning=limited(3))))
    assert (output.reasoning, output.text) == ("Hm", "So.")
    assert engine.asked[1].prompt.ids[-4:] == (1, 2, 900, 901)
    assert output.usage.completion_tokens == 1 + 2 + 2 + 3


async def test_no_reasoning_at_all() -> None:
    engine = Speaker([[chunk("<think>")], [chunk("H")]], [chunks("So.")])
    output = fold(await said(generation(engine, reasoning=limited(0))))
    assert (output.reasoning, output.text) == ("", "So.")


async def test_what_closes_reasoning_may_end_the_answer() -> None:
    engine = Speaker([[chunk("<think>")], [chunk("H")]])
    limit = ReasoningLimit(2, chunk("</think>Enough."))
    assert fold(await said(generation(engine, reasoning=limit, stop=("gh",)))).text == "Enou"
    assert len(engine.asked) == 1


async def test_a_model_that_opens_its_reasoning_again_and_again_comes_to_an_end() -> None:
    engine = Speaker(*([[chunk("<think>")], [chunk("Hm")]] for _ in range(MAX_CLOSINGS + 9)))

    output = fold(await said(generation(engine, reasoning=limited(2))))

    assert (output.reasoning, output.text, output.reason) == ("Hm", "", FinishReason.LENGTH)
    assert len(engine.asked) == MAX_CLOSINGS + 1


@pytest.mark.parametrize("most", range(1, 12))
async def test_the_text_that_closes_reasoning_is_part_of_the_limit(most: int) -> None:
    model = await scripted({"output": "<think>" + "a b " * 20 + "</think>" + "c d " * 20})
    output = fold((await answered(turn(reasoning_limit=3, sampling=Sampling(max_tokens=most)), model)).events)

    assert output.usage.completion_tokens <= most
    assert output.reason is FinishReason.LENGTH


async def test_reasoning_within_the_limit_is_left_alone() -> None:
    engine = Speaker([[each] for each in [chunk("<think>"), chunk("H"), chunk("</think>"), *chunks("So.")]])
    assert fold(await said(generation(engine, reasoning=limited(3)))).text == "So."
    assert len(engine.asked) == 1


async def test_an_answer_may_be_full_once_its_reasoning_is_closed() -> None:
    model = await scripted({"output": "<think>" + "a b " * 20})
    heard = await answered(turn(reasoning_limit=3, sampling=Sampling(max_tokens=5)), model)
    assert fold(heard.events).reason is FinishReason.LENGTH


# Played again


@settings(max_examples=examples(40))
@given(st.integers(0, len(ANSWER)))
async def test_an_answer_that_is_played_again_is_the_same(cut: int) -> None:
    """Law: interrupt it anywhere, and the events are those of an answer that was not."""

    async def run(log: ReplayLog, leave_after: float = float("inf")) -> list[Event]:
        model = await scripted({"output": ANSWER, "split": "chars"})
        return (await answered(turn(tools=TOOLS), model, ReplayContext(log, Random(1)), leave_after)).events

    whole = await run(ReplayLog())
    log = ReplayLog()
    before = await run(log, cut)
    after = await run(ReplayLog(read_entries([log.new()])))

    assert merge(after) == merge(whole)
    assert before == whole[: len(before)]


async def test_much_that_was_recorded_is_played_in_pieces() -> None:
    recorded = [chunk(f"{number} ") for number in range(2 * PIECE)]
    heard = Heard()
    await generation(Speaker(), replay=ReplayLog(recorded)).run(heard, 0)  # no more tokens may follow
    assert fold(heard.events).text == "".join(each.text for each in recorded)
    played = [sum(len(event.tokens) for event in events) for _, events in heard.batches]
    assert max(played) <= PIECE


async def test_reasoning_that_was_closed_stays_closed() -> None:
    first = [[each] for each in [chunk("<think>"), *map(chunk, "Hmm")]]
    log = ReplayLog()
    before = await said(generation(Speaker(first, [chunks("So.")]), reasoning=limited(4), replay=log))

    for kept in (4, 5, 6):  # before it was closed, right after, and in the answer
        engine = Speaker([chunks("So."[max(0, kept - 5) :])])
        replay = ReplayLog(log.chunks[:kept])
        after = await said(generation(engine, reasoning=limited(4), replay=replay))
        assert merge(after) == merge(before)
        assert engine.asked[0].answer_start.startswith("<think>Hmm</think>")


async def test_a_log_with_the_end_asks_no_engine() -> None:
    engine = Speaker()
    assert fold(await said(generation(engine, replay=ReplayLog(chunks("ab"))))).text == "ab"
    assert engine.asked == []


async def test_a_log_with_a_stop_string_asks_no_engine() -> None:
    engine = Speaker()
    log = ReplayLog([chunk("a"), chunk("STOP")])
    assert fold(await said(generation(engine, replay=log, stop=("STOP",)))).text == "a"
    assert engine.asked == []


async def test_unknown_tokens_are_played_too() -> None:
    engine = Speaker([chunks("cd")])
    output = fold(await said(generation(engine, replay=ReplayLog([chunk("ab", -1, -1)]))))
    assert (output.text, output.usage.completion_tokens) == ("abcd", 4)


# Held back


async def paused(
    most: int = 16, **interceptors: object
) -> tuple[Handheld, GenerationRun, Heard, asyncio.Task[None]]:
    """A generation whose client has got `a`, and does not read any more; `most` chunks are held for it."""
    engine, heard = Handheld(), Heard()
    run = generation(engine, pool=BoundedPool(Limits(unread_chunks=most)), **interceptors)
    running = asyncio.create_task(run.run(heard, 0))
    await until(lambda: engine.receivers)
    engine.receivers[0].push([chunk("a")])
    heard.hold()
    return engine, run, heard, running


async def test_alternatives_to_tokens_count_among_what_waits_for_a_client() -> None:
    engine, _, _, running = await paused(most=12)
    scored = Chunk("b", (Token(1, "b", -0.1, tuple(Candidate(number, "c", -1.0) for number in range(5))),))
    engine.receivers[0].push([scored] * 2)
    await asyncio.sleep(0)
    assert not running.done()
    engine.receivers[0].push([scored])
    with pytest.raises(ClientStalledError):
        await running


async def test_what_is_held_back_comes_as_one_event_and_in_order() -> None:
    engine, _, heard, running = await paused()
    before = len(heard.batches)
    for each in map(chunk, "bcd"):
        engine.receivers[0].push([each])
    assert len(heard.batches) == before

    heard.resume()
    [(_, [delta])] = heard.batches[before:]
    assert isinstance(delta, TextDelta)
    assert (delta.text, len(delta.tokens)) == ("bcd", 3)

    engine.receivers[0].push([chunk("e", finish=STOP)])
    await running
    output = fold(heard.events)
    assert (output.text, output.usage.completion_tokens) == ("abcde", 5)


async def test_what_is_held_back_for_a_client_may_end_inside_a_character() -> None:
    log = ReplayLog()
    engine, run, heard, running = await paused(replay=log)
    engine.receivers[0].push([chunk("b", 2)])
    engine.receivers[0].push([Chunk("", (Token(3, ""),))])
    heard.resume()
    assert [token.id for each in log.chunks for token in each.tokens] == [97, 2]
    engine.receivers[0].fail(EngineError())
    with pytest.raises(EngineError):
        await running
    [*_, end] = run.abandon()
    assert isinstance(end, Finished)
    assert end.usage.completion_tokens == 3


async def test_much_that_was_held_back_comes_in_pieces_and_in_order() -> None:
    engine, _, heard, running = await paused(most=3 * PIECE)
    before = len(heard.batches)
    for _ in range(3):
        engine.receivers[0].push([chunk("b")] * (PIECE - 1))
    heard.resume()
    asyncio.get_running_loop().call_soon(engine.receivers[0].push, [chunk("c")])  # after all of it
    assert [len(event.tokens) for _, [event] in heard.batches[before:]] == [PIECE]
    heard.hold()  # it has enough for now
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(heard.batches) == before + 1
    heard.resume()
    await until(lambda: len(heard.batches) == before + 3)
    engine.receivers[0].push([chunk("d", finish=STOP)])
    await running
    assert fold(heard.events).text == "a" + "b" * 3 * (PIECE - 1) + "cd"


async def test_much_that_nobody_reads_on_ends_in_pieces() -> None:
    engine, run, heard, running = await paused(most=PIECE)
    engine.receivers[0].push([chunk("b")] * (2 * PIECE))
    with pytest.raises(ClientStalledError):
        await running
    last = run.abandon()
    assert [len(event.tokens) for event in last if isinstance(event, TextDelta)] == [PIECE, PIECE]
    assert fold([*heard.events, *last]).text == "a" + "b" * 2 * PIECE


async def test_the_ends_of_large_answers_do_not_come_all_at_once() -> None:
    token = Token(1, "b", -0.1, tuple(Candidate(number, "c", -1.0) for number in range(20)))
    scored = replace(request(), sampling=Sampling(logprobs=20))
    engine, heard = Handheld(), [Heard() for _ in range(3)]
    runs = [
        GenerationRun(engine, scored, Decoder(TABLE), Interceptors(), Accumulator())
        for _ in range(len(heard))
    ]
    running = [asyncio.create_task(run.run(each, 0)) for run, each in zip(runs, heard, strict=True)]
    await until(lambda: len(engine.receivers) == len(heard))
    for receiver in engine.receivers:
        receiver.push([Chunk("b" * 300, (token,) * 300)])
        receiver.push([chunk("c", finish=STOP)])
    pushed = [sum(len(each.batches) for each in heard)]
    while not all(isinstance(each.events[-1], Finished) for each in heard):
        await asyncio.sleep(0)
        pushed.append(sum(len(each.batches) for each in heard))
    assert {after - before for before, after in pairwise(pushed)} == {0, 1}
    assert all(len(events) == 1 for each in heard for _, events in each.batches[1:])
    await asyncio.gather(*running)
    assert [fold(each.events).text for each in heard] == ["b" * 300 + "c"] * 3


async def test_a_large_answer_that_is_given_up_at_its_end_is_whole() -> None:
    engine, heard = Handheld(), Heard()
    scored = replace(request(), sampling=Sampling(logprobs=20))
    run = GenerationRun(engine, scored, Decoder(TABLE), Interceptors(), Accumulator())
    running = asyncio.create_task(run.run(heard, 0))
    await until(lambda: engine.receivers)
    engine.receivers[0].push([Chunk("b" * 300, (Token(1, "b", -0.1),) * 300)])
    engine.receivers[0].push([chunk("c", finish=STOP)])
    heard.hold()  # from now on its client does not read
    for _ in range(5):
        await asyncio.sleep(0)
    assert not isinstance(heard.events[-1], Finished)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    output = fold([*heard.events, *run.abandon()])
    assert (output.text, output.reason) == ("b" * 300 + "c", FinishReason.STOP)
    assert run.abandon() == []


async def test_what_is_held_back_behind_a_stop_string_is_nothing() -> None:
    engine, heard = Handheld(), Heard()
    run = generation(engine, stop=("stop",))
    running = asyncio.create_task(run.run(heard, 0))
    await until(lambda: engine.receivers)
    heard.hold()
    engine.receivers[0].push([chunk("a"), chunk("stop"), *[chunk("b")] * (3 * PIECE)])
    heard.resume()
    await running
    assert fold(heard.events).text == "a"


async def test_an_end_that_is_held_back_comes_last() -> None:
    engine, _, heard, running = await paused()
    engine.receivers[0].push([chunk("b")])
    engine.receivers[0].push([chunk("c", finish=STOP)])
    await asyncio.sleep(0)
    assert not running.done()
    heard.resume()
    await running
    assert isinstance(heard.events[-1], Finished)
    assert fold(heard.events).text == "abc"


async def test_a_failure_is_told_after_what_was_held_back() -> None:
    engine, run, heard, running = await paused()
    engine.receivers[0].push([chunk("b")])
    engine.receivers[0].fail(EngineBusyError())
    await asyncio.sleep(0)
    assert not running.done()
    heard.resume()
    with pytest.raises(EngineBusyError):
        await running
    assert fold([*heard.events, *run.abandon()]).text == "ab"


async def test_a_failure_with_nothing_held_back_is_told_at_once() -> None:
    engine, _, _, running = await paused()
    engine.receivers[0].fail(EngineBusyError())
    with pytest.raises(EngineBusyError):
        await running


async def test_who_never_reads_on_is_given_up() -> None:
    engine, run, heard, running = await paused(most=3)
    for _ in range(3):
        engine.receivers[0].push([chunk("b")])
    await asyncio.sleep(0)
    assert not running.done()
    engine.receivers[0].push([chunk("b")])
    with pytest.raises(ClientStalledError):
        await running
    assert not engine.working
    assert fold([*heard.events, *run.abandon()]).text == "abbbb"


async def test_what_was_held_back_stands_although_nobody_reads_on_in_time() -> None:
    engine, run, heard, running = await paused(most=3)
    engine.receivers[0].push([chunk("b")] * 4)
    heard.resume()  # too late
    with pytest.raises(ClientStalledError):
        await running
    assert fold([*heard.events, *run.abandon()]).text == "abbbb"


async def test_reasoning_is_limited_also_in_what_was_held_back() -> None:
    engine, heard = Handheld(), Heard()
    run = generation(engine, reasoning=limited(3))
    running = asyncio.create_task(run.run(heard, 0))
    await until(lambda: engine.receivers)
    heard.hold()
    for each in (chunk("<think>"), *map(chunk, "Hmmm")):
        engine.receivers[0].push([each])
    engine.receivers[0].fail(EngineError())  # that of a cancelled generation
    heard.resume()
    await until(lambda: len(engine.receivers) == 2)
    heard.hold()
    engine.receivers[1].push(chunks("So."))
    heard.resume()
    await running
    output = fold(heard.events)
    assert (output.reasoning, output.text) == ("Hm", "So.")


# What it costs


async def test_no_task_is_switched_for_a_token() -> None:
    """The event loop has as much to do for an answer of many steps as for one of few."""

    async def callbacks(tokens: int) -> int:
        engine, heard = Handheld(), Heard()
        running = asyncio.create_task(generation(engine).run(heard, 0))
        await until(lambda: engine.receivers)
        loop, scheduled = asyncio.get_running_loop(), 0
        schedule = loop.call_soon

        def counting(*args: object, **options: object) -> object:
            nonlocal scheduled
            scheduled += 1
            return schedule(*args, **options)  # type: ignore[arg-type]

        loop.call_soon = counting  # type: ignore[method-assign, assignment]
        try:
            for each in chunks("x" * tokens):
                engine.receivers[0].push([each])
            await running
        finally:
            loop.call_soon = schedule  # type: ignore[method-assign]
        assert fold(heard.events).text == "x" * tokens
        return scheduled

    assert await callbacks(10) == await callbacks(1000)


async def test_events_are_there_when_the_engine_returns() -> None:
    engine, heard = Handheld(), Heard()
    running = asyncio.create_task(generation(engine).run(heard, 0))
    await until(lambda: engine.receivers)
    for number, each in enumerate(chunks("abc"), 1):
        engine.receivers[0].push([each])
        assert raw(heard.events) == "abc"[:number]
    await running


# Several


async def choices_of(*engines: Engine) -> Heard:
    """The choices of an answer to which each engine gives one."""
    return await answered(turn(prompt="Q", choices=len(engines)), await served(Several(*engines)))


class Several(Speaker):
    """An engine that has another one for each generation."""

    def __init__(self, *engines: Engine) -> None:
        super().__init__()
        self._engines = engines

    def generate(self, request, receiver):  # type: ignore[no-untyped-def]
        self.asked.append(request)
        return self._engines[len(self.asked) - 1].generate(request, receiver)


async def test_a_choice_that_fails_ends_alone() -> None:
    fails = Speaker([[chunk("a")], EngineBusyError()])
    works = [Speaker([[each] for each in chunks("bcd")]) for _ in range(2)]

    events = (await choices_of(works[0], fails, works[1])).choices

    outputs = {index: fold(said) for index, said in events.items()}
    assert {index: output.text for index, output in outputs.items()} == {0: "bcd", 1: "a", 2: "bcd"}
    assert [outputs[index].reason for index in range(3)] == [
        FinishReason.STOP,
        FinishReason.ERROR,
        FinishReason.STOP,
    ]
    end = events[1][-1]
    assert isinstance(end, Finished)
    assert end.error == EngineBusyError().message


async def test_a_choice_that_fails_is_told_while_others_go_on() -> None:
    engine, heard = Handheld(), Heard()
    asked = turn(prompt="Q", choices=2)
    running = asyncio.create_task(AnswerSource([asked], await served(engine)).run(heard))
    await until(lambda: len(engine.receivers) == 2)
    failing, working = engine.receivers
    failing.push([chunk("a")])
    failing.fail(EngineBusyError())
    await until(lambda: isinstance(heard.choices[0][-1], Finished))
    for each in chunks("bcd"):
        working.push([each])
    await running
    assert [fold(heard.choices[index]).text for index in range(2)] == ["a", "bcd"]


async def test_a_failure_of_the_inside_is_that_of_one_choice_and_told_as_one_of_the_engine() -> None:
    class Forgetful(Heard):
        def push(self, choice: int, events: list[Event]) -> None:
            if choice == 0 and any(isinstance(event, TextDelta) for event in events):
                raise KeyError("secret")
            super().push(choice, events)

    engine = Several(Speaker([[each] for each in chunks("abc")]), Speaker([[each] for each in chunks("def")]))
    model = await served(engine)
    heard = Forgetful()
    await AnswerSource([turn(prompt="Q", choices=2)], model).run(heard)
    end = heard.choices[0][-1]
    assert isinstance(end, Finished)
    assert end.error == EngineError().message
    assert fold(heard.choices[1]).text == "def"


async def test_if_all_fail_the_first_failure_is_raised() -> None:
    with pytest.raises(EngineBusyError):
        await choices_of(Speaker([EngineBusyError()]), Speaker([EngineError()]))
    with pytest.raises(EngineBusyError):
        await choices_of(Speaker([EngineBusyError()]))


async def test_a_client_that_never_reads_on_ends_all_choices() -> None:
    engine, heard = Handheld(), Heard()
    asked = turn(prompt="Q", choices=2)
    running = asyncio.create_task(AnswerSource([asked], await served(engine)).run(heard))
    await until(lambda: len(engine.receivers) == 2)
    heard.hold()
    engine.receivers[0].push([chunk("a")] * (DEFAULTS.unread_chunks + 1))
    with pytest.raises(ClientStalledError):
        await running
    assert not engine.working


async def test_leaving_stops_all_generations() -> None:
    model = await scripted({"output": "word ", "tokens": 100_000})
    await answered(turn(choices=3), model, leave_after=1)
    assert model.engine.load.running == 0


async def test_choices_have_seeds_of_their_own() -> None:
    model = await scripted({"output": "word"})
    await answered(turn(choices=3, sampling=Sampling(seed=7)), model)
    seen = model.engine.seen  # type: ignore[attr-defined]
    assert [request.sampling.seed for request in seen] == [7, 8, 9]


async def test_a_model_can_be_served_by_any_engine() -> None:
    model = await served(Speaker([chunks("ab")]))
    heard = await answered(turn(prompt="Q"), model)
    assert fold(heard.events).text == "ab"
    assert [prompt.text for prompt in heard.prompts] == ["Q"]
