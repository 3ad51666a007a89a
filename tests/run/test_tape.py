"""What was recorded is played again the same, and the engine goes on behind it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.constrain import gbnf, structural_tag
from antiphon.constrain.compile import Enforced
from antiphon.constrain.form import EMPTY, Language, Until, choice, sequence
from antiphon.core.chunks import Candidate, Chunk, Finish, FinishReason, Token
from antiphon.core.constraint import Constraint
from antiphon.core.turn import Sampling
from antiphon.engines.engine import Generation
from antiphon.engines.scripted import ScriptedEngine
from antiphon.run.plan import Held
from antiphon.run.tape import Tape, read_entries
from tests.run.support import PROMPT, STOP, Speaker, chunk, chunks, generation

FREE = Held()
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
recorded = st.lists(
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
    tape: Tape, engine: Speaker, wanted: Generation | None = None, held: Held = FREE
) -> list[Chunk]:
    batches = tape.go_on(engine, wanted or generation(), held)
    return [each async for batch in batches for each in batch]


# Recording


@given(recorded, st.lists(st.integers(0, 12)))
def test_what_is_stored_piece_by_piece_is_all_there_is(said: list[Chunk], cuts: list[int]) -> None:
    tape, pieces, at = Tape(), [], 0
    for cut in [*sorted(cuts), len(said)]:
        tape.write(*said[at:cut])
        at = max(at, cut)
        pieces.append(tape.new())

    read = read_entries(pieces)
    assert read == said[: len(read)]
    assert not any(each.text or each.finish for each in said[len(read) :])
    assert tape.new() == b""
    assert Tape(read).new() == b""  # what was read is stored already


def test_a_character_that_has_only_begun_waits() -> None:
    tape = Tape()
    tape.write(chunk("a", 1), Chunk("", (Token(7, ""),)))
    first = tape.new()
    tape.write(chunk("é", 8))

    assert read_entries([first]) == [chunk("a", 1)]
    assert read_entries([first, tape.new()]) == tape.chunks


# Going on


@given(st.integers(0, len(TEXT)))
async def test_an_answer_that_is_gone_on_with_is_the_same(cut: int) -> None:
    engine = ScriptedEngine([{"output": TEXT, "split": "chars"}])
    await engine.start()
    whole = [each async for batch in engine.generate(generation()) for each in batch]
    tape = Tape(whole[:cut] if cut < len(whole) else whole[:-1])
    before = len(tape.chunks)

    rest = [each async for batch in tape.go_on(engine, generation(), FREE) for each in batch]

    assert rest == whole[before:]
    assert tape.chunks == whole


async def test_the_engine_is_asked_for_the_rest() -> None:
    engine = Speaker([chunks("de")])
    tape = Tape([chunk("a", 11), chunk("bc", 12, 13)])
    wanted = generation(
        max_tokens=10, sampling=Sampling(min_tokens=5, temperature=0), preserve=frozenset({"<x>"})
    )

    await went_on(tape, engine, wanted)

    [asked] = engine.asked
    assert asked.prompt.text == PROMPT.text + "abc"
    assert asked.prompt.ids == (*PROMPT.ids, 11, 12, 13)
    assert (asked.begun, asked.max_tokens) == ("abc", 7)
    assert asked.sampling == Sampling(min_tokens=2, temperature=0)
    assert asked.preserve == {"<x>"}
    assert engine.closed == 1


async def test_without_a_past_the_engine_is_asked_for_all() -> None:
    engine, wanted = Speaker([chunks("ab")]), generation(constraint=gbnf.write(Language(sequence("ab"))))
    tape = Tape()
    assert await went_on(tape, engine, wanted) == chunks("ab") == tape.chunks
    assert engine.asked == [wanted]


@pytest.mark.parametrize(
    "played",
    [
        [chunk("a", 11), chunk("bc", -1)],
        [chunk("a", 11), Chunk("bc")],
        [Chunk("abc")],
        [Chunk("abc", (Token(11, "ab"),))],
    ],
)
async def test_tokens_that_the_engine_did_not_name_are_found_anew(played: list[Chunk]) -> None:
    engine = Speaker([chunks("d")])
    await went_on(Tape(played), engine)
    assert engine.asked[0].prompt.ids == (*PROMPT.ids, *map(ord, "abc"))
    assert engine.asked[0].max_tokens == 97


@pytest.mark.parametrize("room", [1, 2])
async def test_an_answer_that_is_full_ends(room: int) -> None:
    engine = Speaker()
    tape = Tape([chunk("ab", 1, 2)])
    assert await went_on(tape, engine, generation(max_tokens=room)) == [
        Chunk("", finish=Finish(FinishReason.LENGTH))
    ]
    assert engine.asked == []


async def test_the_rest_is_counted_as_part_of_the_whole() -> None:
    engine = Speaker(
        [[chunk("c", 3, cached_tokens=50)], [chunk("d", 4, finish=Finish(FinishReason.STOP, None, 2))]]
    )
    first = chunk("a", 1, 2, cached_tokens=2)

    rest = await went_on(Tape([first]), engine)

    assert [each.cached_tokens for each in rest] == [0, 0]  # of the prompt, the first chunk told
    assert rest[-1].finish == Finish(FinishReason.STOP, None, 4)


async def test_a_reader_that_leaves_closes_the_engine() -> None:
    engine = Speaker([[chunk("a")], [chunk("b", finish=STOP)]])
    batches = Tape([chunk("x")]).go_on(engine, generation(), FREE)
    assert await anext(batches) == [chunk("a")]
    await batches.aclose()
    assert engine.closed == 1


# Held to a form

AB_OR_CD = Language(choice(sequence("a", "bcd"), sequence("x", "yz")))


async def constraint_after(written: str, held: Held) -> Constraint | None:
    engine = Speaker([chunks("z")])
    await went_on(Tape([chunk(written)]), engine, generation(constraint=held.constraint), held)
    return engine.asked[0].constraint


@pytest.mark.parametrize("write", [gbnf.write, structural_tag.write])
async def test_the_rest_is_held_to_the_rest_of_the_form(write: type) -> None:
    held = Held(Enforced(AB_OR_CD), write(AB_OR_CD))
    assert await constraint_after("ab", held) == write(Language(sequence("cd")))


async def test_what_broke_the_form_already_is_held_to_nothing() -> None:
    assert await constraint_after("ay", Held(Enforced(AB_OR_CD), gbnf.write(AB_OR_CD))) is None


async def test_a_form_that_waits_for_its_trigger_goes_on_waiting() -> None:
    held = Held(Enforced(AB_OR_CD, ("a", "x")), gbnf.write(AB_OR_CD, ("a", "x")))
    assert await constraint_after("12", held) == held.constraint
    assert await constraint_after("12xy", held) == gbnf.write(Language(sequence("z")))


@pytest.mark.parametrize("write", [gbnf.write, structural_tag.write])
async def test_a_trigger_that_has_only_begun_is_read_on(write: type) -> None:
    held = Held(
        Enforced(Language(sequence("<f>", "12")), ("<f>",)), write(Language(sequence("12")), ("<f>",))
    )
    half = await constraint_after("a <", held)
    assert half == write(Language(choice(Until((("<f>", sequence("12")),), open=True, begun="<"), EMPTY)))
    assert await constraint_after("a <f>1", held) == write(Language(sequence("2")))
    assert await constraint_after("a <f>3", held) is None


async def test_nothing_is_held_to_nothing() -> None:
    assert await constraint_after("ab", FREE) is None
