"""Beam search over a model that is a table: a token depends on the one before it."""

from itertools import product
from math import inf, isclose, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.chunks import Finish, FinishReason
from antiphon.engines.vllm_beams import BeamParameters, search
from antiphon.engines.vllm_versions import v0_32, v0_33

TOKENS = 3
END = TOKENS - 1


def rows_of(table):
    """What may follow beams: all tokens, as vLLM gives them, the drawn one first."""

    async def rows(beams):
        found = []
        for beam in beams:
            logprobs = table[beam.ids[-1] if beam.ids else 0]
            order = sorted(range(TOKENS), key=lambda token: -logprobs[token])
            found.append(([order[0], *order], [logprobs[order[0]], *(logprobs[token] for token in order)]))
        return found

    return rows


def likelihood(table, ids):
    return sum(table[before][token] for before, token in zip((0, *ids), ids, strict=False))


def answers(most):
    """All that may be written: what ends, and what is cut."""
    for length in range(1, most + 1):
        for ids in product(range(TOKENS), repeat=length):
            if END not in ids[:-1] and (ids[-1] == END or length == most):
                yield ids


def normalised(weights):
    total = sum(weights)
    return [log(weight / total) for weight in weights]


tables = st.lists(
    st.lists(st.integers(1, 100), min_size=TOKENS, max_size=TOKENS).map(normalised),
    min_size=TOKENS,
    max_size=TOKENS,
)

lengths = st.sampled_from([v0_32.beam_length, v0_33.beam_length])


@given(tables, st.integers(1, 4), st.integers(0, 5), st.sampled_from([0.0, 1.0, 2.0]), lengths)
async def test_a_search_that_is_wide_enough_finds_the_best_of_all(table, most, prompt, penalty, length):
    wanted = BeamParameters(TOKENS**most, most, prompt, length, {END}, penalty=penalty)
    found = await search(wanted, rows_of(table))

    def score(ids):
        return likelihood(table, ids) / max(length(prompt, len(ids), ended=ids[-1] == END), 1) ** penalty

    assert len({beam.ids for beam in found}) == len(found) == len([*answers(most)])
    assert isclose(score(found[0].ids), max(map(score, answers(most))))
    scores = [score(beam.ids) for beam in found]
    assert scores == sorted(scores, reverse=True)
    for beam in found:
        assert isclose(beam.total, likelihood(table, beam.ids))
        assert [row[0][0] for row in beam.rows] == [*beam.ids]
        assert isclose(sum(row[1][0] for row in beam.rows), beam.total)


@given(tables, st.integers(1, 5))
async def test_one_beam_takes_the_likeliest_that_goes_on(table, most):
    [beam] = await search(BeamParameters(1, most, 0, v0_33.beam_length, ()), rows_of(table))
    before = 0
    for token in beam.ids:
        assert table[before][token] == max(table[before])
        before = token
    assert (len(beam.ids), beam.finish) == (most, None)


@pytest.mark.parametrize(("stops", "stop"), [((), None), ((END,), END)])
async def test_an_answer_that_ends_says_whose_end_it_was(stops, stop):
    table = [[-inf, -9.0, -0.1]] * TOKENS
    [beam] = await search(BeamParameters(1, 5, 0, v0_33.beam_length, {END}, stops), rows_of(table))
    assert (beam.ids, beam.finish) == ((END,), Finish(FinishReason.STOP, stop))
