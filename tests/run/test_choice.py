"""One answer and several: what ends them, what makes them go on, and what a failure does to them."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.call_filter import CallFilter
from antiphon.core.chunks import Chunk, FinishReason, Token
from antiphon.core.errors import EngineBusyError, EngineError
from antiphon.core.events import CallStarted, Event, Finished, merge
from antiphon.core.fold import Fold, Output
from antiphon.core.turn import Function, Sampling, ToolChoice
from antiphon.decode.decoder import Decoder
from antiphon.decode.ids import ids_by, openai_call_id
from antiphon.decode.table import Table
from antiphon.dialects.registry import find
from antiphon.engines.engine import Engine
from antiphon.run.choice import Choice, Guards, ThinkingLimit
from antiphon.run.choices import join
from antiphon.run.loop import start
from antiphon.run.round import Recording
from antiphon.run.tape import Tape, read_entries
from tests.run.support import STOP, Speaker, chunk, chunks, generation, scripted, served, turn

TABLE = Table(find("hermes").grammar)
CLOSING = Chunk("</think>", (Token(900, ""), Token(901, "</think>")))
ANSWER = '<think>Let me see.</think>Well:\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TOOLS = (Function("f", parameters={"type": "object"}), Function("g", parameters={"type": "object"}))


def choice(engine: Engine, *, stop: tuple[str, ...] = (), **guards: object) -> Choice:
    decoder = Decoder(TABLE, stop=stop, ids=ids_by(openai_call_id, 0, Random(0)))
    return Choice(engine, generation(), decoder, Guards(**guards))  # type: ignore[arg-type]


async def said(choice: Choice) -> list[Event]:
    return [event async for events in choice.events() for event in events]


def fold(events: list[Event]) -> Output:
    fold = Fold()
    for event in events:
        fold.push(event)
    return fold.output


def raw(events: list[Event]) -> str:
    return "".join(event.raw for event in events)


# Its end


async def test_the_last_chunk_is_the_end() -> None:
    engine = Speaker([chunks("ab")])
    output = fold(await said(choice(engine)))
    assert (output.text, output.reason, engine.closed) == ("ab", FinishReason.STOP, 1)


async def test_a_stop_string_stops_the_engine() -> None:
    engine = Speaker([[each] for each in chunks("abcdef")])
    output = fold(await said(choice(engine, stop=("cd",))))
    assert (output.text, output.stop) == ("ab", "cd")
    assert engine.closed == 1


async def test_an_engine_that_does_not_end_breaks_its_contract() -> None:
    with pytest.raises(EngineError):
        await said(choice(Speaker([[chunk("a")]])))


async def test_one_call_is_the_end_if_there_may_be_one_only() -> None:
    engine = Speaker([[each] for each in chunks(ANSWER + ANSWER)])
    events = await said(choice(engine, calls=CallFilter(ToolChoice(parallel=False))))
    assert [event.name for event in events if isinstance(event, CallStarted)] == ["f"]
    assert isinstance(events[-1], Finished)
    assert len(raw(events)) <= len(ANSWER)
    assert engine.closed == 1


async def test_a_turn_with_one_call_only() -> None:
    model = await scripted({"output": ANSWER + "\n" + ANSWER, "split": "chars"})
    run = await start(turn(tools=TOOLS, tool_choice=ToolChoice(parallel=False)), model=model)
    output = fold([event async for batch in run.batches for _, events in batch for event in events])
    assert [call.name for call in output.calls] == ["f"]
    assert model.engine.active == 0  # type: ignore[attr-defined]


# Its thoughts


def thinking(tokens: int) -> ThinkingLimit:
    return ThinkingLimit(tokens, CLOSING)


async def test_a_thought_that_is_too_long_is_closed_and_the_answer_goes_on() -> None:
    first = [[chunk("<think>")], *([each] for each in map(chunk, "Hmmmmmm"))]
    engine = Speaker(first, [chunks("So.")])

    events = await said(choice(engine, thinking=thinking(4)))  # the tag is one of them

    output = fold(events)
    assert (output.reasoning, output.text) == ("Hmm", "So.")
    assert raw(events) == "<think>Hmm</think>So."
    assert output.usage.completion_tokens == 1 + 3 + 2 + 3
    assert engine.closed == 2
    _, second = engine.asked
    assert second.begun == "<think>Hmm</think>"
    assert second.prompt.ids[-2:] == (900, 901)
    assert second.max_tokens == generation().max_tokens - 6


@given(st.integers(0, 4), st.lists(st.sampled_from(["<think>", "</think>", "ab"]), max_size=6))
async def test_no_thought_is_longer_than_its_limit(limit: int, texts: list[str]) -> None:
    pieces = [piece for text in texts for piece in ([text] if "think" in text else text)]
    one_by_one = [[each] for each in [*map(chunk, pieces), chunk("", finish=STOP)]]
    engine = Speaker(*([one_by_one] * 50))
    output = fold(await said(choice(engine, thinking=thinking(limit))))
    closings = len(engine.asked) - 1
    assert output.usage.reasoning_tokens <= limit + closings * 3


async def test_no_thought_at_all() -> None:
    engine = Speaker([[chunk("<think>")], [chunk("H")]], [chunks("So.")])
    output = fold(await said(choice(engine, thinking=thinking(0))))
    assert (output.reasoning, output.text) == ("", "So.")


async def test_what_closes_a_thought_may_end_the_answer() -> None:
    engine = Speaker([[chunk("<think>")], [chunk("H")]])
    limit = ThinkingLimit(2, chunk("</think>Enough."))
    assert fold(await said(choice(engine, thinking=limit, stop=("gh",)))).text == "Enou"
    assert len(engine.asked) == 1


async def test_thoughts_within_the_limit_are_left_alone() -> None:
    engine = Speaker([[each] for each in [chunk("<think>"), chunk("H"), chunk("</think>"), *chunks("So.")]])
    assert fold(await said(choice(engine, thinking=thinking(3)))).text == "So."
    assert len(engine.asked) == 1


async def test_an_answer_may_be_full_once_its_thought_is_closed() -> None:
    model = await scripted({"output": "<think>" + "a b " * 20})
    limited = turn(thinking_limit=3, sampling=Sampling(max_tokens=5))
    run = await start(limited, model=model)
    output = fold([event async for batch in run.batches for _, events in batch for event in events])
    assert output.reason is FinishReason.LENGTH


# Played again


@given(st.integers(0, len(ANSWER)), st.booleans())
async def test_an_answer_that_is_played_again_is_the_same(cut: int, fresh: bool) -> None:
    """Law: interrupt it anywhere, and the events are those of an answer that was not."""
    line = {"output": ANSWER, "split": "chars"}
    whole_tape, tape = Tape(), Tape()

    async def run(tape: Tape, events: list[Event], until: int) -> None:
        model = await scripted(line)
        run = await start(turn(tools=TOOLS), model=model, recording=Recording(tape, Random(1)))
        async for batch in run.batches:
            for _, said in batch:
                events += said
            if len(tape.chunks) >= until:
                break
        await run.batches.aclose()

    whole: list[Event] = []
    before: list[Event] = []
    after: list[Event] = []
    await run(whole_tape, whole, 10_000)
    await run(tape, before, cut)
    await run(Tape(read_entries([tape.new()])), after, 10_000)

    assert after == whole
    assert before == whole[: len(before)]


async def test_a_thought_that_was_closed_stays_closed() -> None:
    first = [[each] for each in [chunk("<think>"), *map(chunk, "Hmm")]]
    tape = Tape()
    before = await said(choice(Speaker(first, [chunks("So.")]), thinking=thinking(4), tape=tape))

    for kept in (4, 5, 6):  # before it was closed, right after, and in the answer
        engine = Speaker([chunks("So."[max(0, kept - 5) :])])
        after = await said(choice(engine, thinking=thinking(4), tape=Tape(tape.chunks[:kept])))
        assert merge(after) == merge(before)
        assert engine.asked[0].begun.startswith("<think>Hmm</think>")


async def test_a_tape_with_the_end_asks_no_engine() -> None:
    engine = Speaker()
    assert fold(await said(choice(engine, tape=Tape(chunks("ab"))))).text == "ab"
    assert engine.asked == []


async def test_a_tape_with_a_stop_string_asks_no_engine() -> None:
    engine = Speaker()
    tape = Tape([chunk("a"), chunk("STOP")])
    assert fold(await said(choice(engine, tape=tape, stop=("STOP",)))).text == "a"
    assert engine.asked == []


async def test_unknown_tokens_are_played_too() -> None:
    engine = Speaker([chunks("cd")])
    output = fold(await said(choice(engine, tape=Tape([chunk("ab", -1, -1)]))))
    assert (output.text, output.usage.completion_tokens) == ("abcd", 4)


# Several


async def batches_of(*engines: Engine) -> list[list[tuple[int, list[Event]]]]:
    return [batch async for batch in join([choice(engine) for engine in engines])]


def by_index(batches: list[list[tuple[int, list[Event]]]]) -> dict[int, list[Event]]:
    events: dict[int, list[Event]] = {}
    for batch in batches:
        for index, said in batch:
            events.setdefault(index, []).extend(said)
    return events


async def test_a_choice_that_fails_ends_alone() -> None:
    fails = Speaker([[chunk("a")], EngineBusyError()])
    works = [Speaker([[each] for each in chunks("bcd")]) for _ in range(2)]

    events = by_index(await batches_of(works[0], fails, works[1]))

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


async def test_a_failure_of_the_inside_is_told_as_one_of_the_engine() -> None:
    events = by_index(await batches_of(Speaker([KeyError("secret")]), Speaker([chunks("a")])))
    end = events[0][-1]
    assert isinstance(end, Finished)
    assert end.error == EngineError().message


async def test_if_all_fail_the_first_failure_is_raised() -> None:
    with pytest.raises(EngineBusyError):
        await batches_of(Speaker([EngineBusyError()]), Speaker([EngineError()]))
    with pytest.raises(EngineBusyError):
        await batches_of(Speaker([EngineBusyError()]))


async def test_closing_stops_all_engines() -> None:
    model = await scripted({"output": "word ", "tokens": 100_000})
    run = await start(turn(choices=3), model=model)
    await anext(run.batches)
    await run.batches.aclose()
    assert model.engine.active == 0  # type: ignore[attr-defined]


async def test_a_model_can_be_served_by_any_engine() -> None:
    model = await served(Speaker([chunks("ab")]))
    run = await start(turn(prompt="Q"), model=model)
    assert (
        fold([event async for batch in run.batches for _, events in batch for event in events]).text == "ab"
    )
