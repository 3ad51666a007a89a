"""A recorded answer is replayed unchanged, and the engine continues after it."""

import asyncio
import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon.apis.responses.accept import ResponseContext, accept
from antiphon.apis.responses.schema import CreateResponse
from antiphon.apis.responses.stream import ResponseProjection
from antiphon.apis.wire import decode
from antiphon.constrain import gbnf, structural_tag
from antiphon.constrain.compile import CompiledConstraint
from antiphon.constrain.grammar_ir import EMPTY, GrammarIR, Until, alternation, sequence
from antiphon.core.accumulator import Accumulator, Output
from antiphon.core.chunks import Candidate, Chunk, Finish, FinishReason, Token
from antiphon.core.constraint import Constraint, Gbnf, StructuralTag
from antiphon.core.tool_result import ToolResult
from antiphon.core.turn import Sampling
from antiphon.decode.decoder import Decoder
from antiphon.decode.table import Table
from antiphon.dialects.registry import find
from antiphon.engines.engine import Engine, GenerationRequest
from antiphon.engines.scripted import ScriptedEngine
from antiphon.run.bounded import BoundedPool
from antiphon.run.constraints import ConstraintPlan, Demands, plan_of
from antiphon.run.generation import GenerationRun, Interceptors
from antiphon.run.replay import (
    PromptEntry,
    ReplayContext,
    ReplayLog,
    ToolResultEntry,
    read_entries,
    request_after,
)
from tests.response_invariants import check
from tests.run.support import (
    PROMPT,
    STOP,
    Handheld,
    Heard,
    Speaker,
    answered,
    chunk,
    chunks,
    fold,
    request,
    scripted,
    until,
)
from tests.search import examples

FREE = ConstraintPlan()
TABLE = Table(find("plain").grammar)
TEXT = "Once upon a time, in a land far away: the end!"

tokens = st.builds(
    Token,
    st.integers(-1, 2**31 - 1),
    st.text(max_size=3),
    st.none() | st.floats(-20, 0),
    st.lists(st.builds(Candidate, st.integers(0, 9), st.text(max_size=2), st.floats(-9, 0)), max_size=2).map(
        tuple
    ),
    st.none() | st.binary(max_size=3),
)
finishes = st.builds(
    Finish, st.sampled_from(FinishReason), st.none() | st.text(max_size=3) | st.integers(0, 9)
)
recorded_chunks = st.lists(
    st.builds(
        Chunk,
        st.text(max_size=4),
        st.lists(tokens, max_size=3).map(tuple),
        st.none() | finishes,
        st.integers(0, 9),
    ),
    max_size=12,
)


async def went_on(
    log: ReplayLog, engine: Engine, wanted: GenerationRequest | None = None, plan: ConstraintPlan = FREE
) -> Output:
    """The answer of which the log has the beginning, and the engine the rest."""
    interceptors = Interceptors(replay=log, plan=plan)
    heard = Heard()
    run = GenerationRun(engine, wanted or request(), Decoder(TABLE), interceptors, Accumulator())
    await run.run(heard, 0)
    return fold(heard.events)


# Recording


@given(recorded_chunks, st.lists(st.integers(0, 12)))
def test_what_is_stored_piece_by_piece_is_all_there_is(said: list[Chunk], cuts: list[int]) -> None:
    log, pieces, at = ReplayLog(), [], 0
    for cut in [*sorted(cuts), len(said)]:
        log.record(said[at:cut])
        at = max(at, cut)
        pieces.append(log.new())

    read = read_entries(pieces)
    assert read == said
    assert log.new() == b""
    assert ReplayLog(read).new() == b""  # what was read is stored already


async def test_a_character_that_has_only_begun_waits() -> None:
    step, begun = [chunk("a", 1), Chunk("", (Token(7, ""),))], [chunk("é", 8)]
    log, engine = ReplayLog(), Handheld()
    going = asyncio.create_task(went_on(log, engine))
    await until(lambda: engine.receivers)

    engine.receivers[0].push(step)
    first = log.new()
    engine.receivers[0].push(begun)

    assert read_entries([first]) == step[:1]
    assert read_entries([first, log.new()]) == step + begun
    engine.receivers[0].push([chunk("b", finish=STOP)])
    assert (await going).usage.completion_tokens == 4


def test_results_and_prompts_stand_between_the_chunks_of_two_generations() -> None:
    log = ReplayLog()
    log.record([chunk("a")])
    second, first = (ToolResultEntry(ToolResult(text), 0.5, number) for text, number in (("b", 1), ("a", 0)))
    log.write(second)  # calls that run side by side may be over in any order
    log.write(first)
    log.write(PromptEntry((1, 2)))
    log.record([chunk("b")])

    again = ReplayLog(read_entries([log.new()]))

    assert again.has_results
    assert again.chunks == [chunk("a")]
    assert [again.result_of(number) for number in range(3)] == [first, second, None]
    assert again.next_prompt() == (1, 2)
    assert again.chunks == [chunk("b")]
    assert again.next_prompt() is None


# Going on


@given(st.integers(0, len(TEXT)))
async def test_an_answer_that_is_gone_on_with_is_the_same(cut: int) -> None:
    engine = ScriptedEngine([{"output": TEXT, "split": "chars"}])
    await engine.start()
    whole = ReplayLog()
    await went_on(whole, engine)
    log = ReplayLog(whole.chunks[: min(cut, len(TEXT) - 1)])

    assert (await went_on(log, engine)).text == TEXT
    assert log.chunks == whole.chunks


async def test_the_engine_is_asked_for_the_rest() -> None:
    engine = Speaker([chunks("de")])
    log = ReplayLog([chunk("a", 11), chunk("bc", 12, 13)])
    wanted = request(
        max_tokens=10, sampling=Sampling(min_tokens=5, temperature=0), preserve=frozenset({"<x>"})
    )

    assert (await went_on(log, engine, wanted)).text == "abcde"

    [asked] = engine.asked
    assert asked.prompt.text == PROMPT.text + "abc"
    assert asked.prompt.ids == (*PROMPT.ids, 11, 12, 13)
    assert (asked.answer_start, asked.max_tokens) == ("abc", 7)
    assert asked.sampling == Sampling(min_tokens=2, temperature=0)
    assert asked.preserve == {"<x>"}
    assert engine.over == 1


async def test_with_nothing_recorded_the_engine_is_asked_for_all() -> None:
    engine, wanted = Speaker([chunks("ab")]), request(constraint=gbnf.write(GrammarIR(sequence("ab"))))
    log = ReplayLog()
    assert (await went_on(log, engine, wanted)).text == "ab"
    assert log.chunks == chunks("ab")
    assert engine.asked == [replace(wanted, resumable=True)]


@pytest.mark.parametrize(
    ("played", "written"),
    [
        ([chunk("a", 11), chunk("bc", -1)], 2),
        ([chunk("a", 11), Chunk("bc")], 3),
        ([Chunk("abc")], 3),
        ([Chunk("abc", (Token(11, "ab"),))], 3),
    ],
)
async def test_tokens_that_the_engine_did_not_name_are_found_anew(played: list[Chunk], written: int) -> None:
    """Those that it counted are counted as it did."""
    engine = Speaker([chunks("d")])
    await went_on(ReplayLog(played), engine)
    assert engine.asked[0].prompt.ids == (*PROMPT.ids, *map(ord, "abc"))
    assert engine.asked[0].max_tokens == 100 - written


@pytest.mark.parametrize("room", [1, 2])
async def test_an_answer_that_is_full_ends(room: int) -> None:
    engine = Speaker()
    output = await went_on(ReplayLog([chunk("ab", 1, 2)]), engine, request(max_tokens=room))
    assert (output.text, output.reason) == ("ab", FinishReason.LENGTH)
    assert engine.asked == []


async def test_the_rest_is_counted_as_part_of_the_whole() -> None:
    engine = Speaker(
        [[chunk("c", 3, cached_tokens=50)], [chunk("d", 4, finish=Finish(FinishReason.STOP, None, 2))]]
    )
    log = ReplayLog([chunk("a", 1, 2, cached_tokens=2)])

    output = await went_on(log, engine)

    assert [each.cached_tokens for each in log.chunks] == [2, 0, 0]  # the first chunk had those of the prompt
    assert log.chunks[-1].finish == Finish(FinishReason.STOP, None, 4)
    assert (output.usage.completion_tokens, output.usage.cached_tokens) == (4, 2)


# Held to a form

AB_OR_CD = GrammarIR(alternation(sequence("a", "bcd"), sequence("x", "yz")))


async def constraint_after(written: str, plan: ConstraintPlan) -> Constraint | None:
    asked = request(constraint=plan.constraint)
    rest, before, _ = await request_after([chunk(written)], Speaker(), asked, plan, BoundedPool())
    assert before == 1
    return rest.constraint


def held_to(grammar_ir: GrammarIR, *triggers: str, notation: type[Constraint] = Gbnf) -> ConstraintPlan:
    return plan_of(Demands(CompiledConstraint(grammar_ir, triggers)), notation)


NOTATIONS = pytest.mark.parametrize(
    ("write", "notation"), [(gbnf.write, Gbnf), (structural_tag.write, StructuralTag)]
)


@NOTATIONS
async def test_the_rest_is_held_to_the_rest_of_the_form(write: Any, notation: type[Constraint]) -> None:
    plan = held_to(AB_OR_CD, notation=notation)
    assert await constraint_after("ab", plan) == write(GrammarIR(sequence("cd")))


async def test_what_broke_the_form_already_is_held_to_nothing() -> None:
    plan = held_to(AB_OR_CD)
    assert await constraint_after("ay", plan) is None


async def test_a_form_that_waits_for_its_trigger_goes_on_waiting() -> None:
    plan = held_to(AB_OR_CD, "a", "x")
    assert await constraint_after("12", plan) == plan.constraint
    assert await constraint_after("12xy", plan) == gbnf.write(GrammarIR(sequence("z")))


@NOTATIONS
async def test_a_trigger_that_has_only_begun_is_read_on(write: Any, notation: type[Constraint]) -> None:
    plan = held_to(GrammarIR(sequence("<f>", "12")), "<f>", notation=notation)
    half = await constraint_after("a <", plan)
    assert half == write(
        GrammarIR(alternation(Until((("<f>", sequence("12")),), open=True, prefix="<"), EMPTY))
    )
    assert await constraint_after("a <f>1", plan) == write(GrammarIR(sequence("2")))
    assert await constraint_after("a <f>3", plan) is None


async def test_nothing_is_held_to_nothing() -> None:
    assert await constraint_after("ab", FREE) is None


async def test_the_generation_that_goes_on_is_held_to_the_rest() -> None:
    plan = held_to(AB_OR_CD)
    engine = Speaker([chunks("cd")])
    await went_on(ReplayLog([chunk("ab")]), engine, request(constraint=plan.constraint), plan)
    assert engine.asked[0].constraint == gbnf.write(GrammarIR(sequence("cd")))


# On the wire


@settings(max_examples=examples(30))
@given(st.integers(0, 100), st.sampled_from(["stop", "length"]))
async def test_the_wire_events_of_a_replayed_log_are_the_same_bytes(cut: int, finish: str) -> None:
    """Law: interrupt an answer anywhere, and the server that continues it makes the same bytes."""
    output = '<think>Let me see.</think>Well: é\U0001f600\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    wire = {
        "model": "scripted",
        "input": "Hi",
        "tools": [{"type": "function", "name": "f", "parameters": {}}],
    }
    accepted = accept(decode(json.dumps(wire).encode(), CreateResponse), ResponseContext("resp_1", "alice"))

    async def lines(log: ReplayLog, leave_after: float = float("inf")) -> list[bytes]:
        model = await scripted({"output": output, "split": "chars", "finish": finish})
        heard = await answered(accepted.turn, model, ReplayContext(log, Random("resp_1")), leave_after)
        projection = ResponseProjection(accepted, 1, lambda: 2.0)
        projection.set_prompts(heard.prompts)
        made = projection.begin()
        for choice, events in heard.batches:
            made += projection.push(choice, events)
        return made + (projection.finish() if leave_after == float("inf") else [])

    whole = await lines(ReplayLog())
    check(whole)
    log = ReplayLog()
    before = await lines(log, cut)
    assert before == whole[: len(before)]
    assert await lines(ReplayLog(read_entries([log.new()]))) == whole
