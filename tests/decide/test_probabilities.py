"""The arithmetic of decisions: its laws, and the numbers of its specification."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from antiphon.decide.probabilities import (
    bound,
    choice_confidence,
    expectation,
    likeliest,
    log_sum,
    mean,
    read_labels,
    score_confidence,
    softmax,
)

LOGPROBS = st.lists(st.floats(-40, 0), min_size=1, max_size=12)
WEIGHTS = st.lists(st.floats(0.001, 1), min_size=1, max_size=12)
TEMPERATURES = st.floats(0.05, 20)


@given(LOGPROBS, TEMPERATURES)
def test_probabilities_sum_to_one(logprobs, temperature):
    probabilities = softmax(logprobs, temperature)
    assert math.fsum(probabilities) == pytest.approx(1, abs=1e-15)
    assert all(0 <= probability <= 1 for probability in probabilities)


@given(LOGPROBS, TEMPERATURES)
def test_a_temperature_keeps_the_order(logprobs, temperature):
    probabilities = softmax(logprobs, temperature)
    for first, one in zip(logprobs, probabilities, strict=True):
        for second, other in zip(logprobs, probabilities, strict=True):
            assert one >= other if first >= second else one <= other


@given(LOGPROBS, st.floats(0.01, 5), st.data())
def test_more_of_a_label_is_more_of_its_option(logprobs, more, data):
    place = data.draw(st.integers(0, len(logprobs) - 1))
    raised = [value + more * (place == index) for index, value in enumerate(logprobs)]
    assert softmax(raised)[place] >= softmax(logprobs)[place]


@given(LOGPROBS, st.randoms(use_true_random=False))
def test_permuted_labels_have_permuted_probabilities(logprobs, rng):
    order = rng.sample(range(len(logprobs)), len(logprobs))
    permuted = softmax([logprobs[index] for index in order])
    assert permuted == pytest.approx([softmax(logprobs)[index] for index in order])


@given(LOGPROBS)
def test_a_shift_of_all_changes_nothing(logprobs):
    assert softmax([value - 700 for value in logprobs]) == pytest.approx(softmax(logprobs))


def test_an_impossible_label_has_no_probability():
    assert softmax((-math.inf, -1.0)) == (0.0, 1.0)


@given(st.lists(WEIGHTS, min_size=1, max_size=5).filter(lambda rows: len({*map(len, rows)}) == 1))
def test_a_mean_is_a_distribution(rows):
    average = mean([softmax([math.log(weight) for weight in row]) for row in rows])
    assert math.fsum(average) == pytest.approx(1, abs=1e-15)


@given(WEIGHTS)
def test_figures_are_within_their_bounds(weights):
    probabilities = mean([weights])
    assert 0 <= choice_confidence(probabilities) <= 1
    assert 0 <= score_confidence(probabilities) <= 1
    assert -1e-9 <= expectation(probabilities) <= len(weights) - 1 + 1e-9
    assert probabilities[likeliest(probabilities)] == max(probabilities)


def test_the_numbers_of_the_specification():
    assert choice_confidence((0.9, 0.1)) == pytest.approx(0.8)
    assert score_confidence((0.2, 0.3, 0.5)) == 0
    assert expectation((0.2, 0.3, 0.5)) == pytest.approx(1.3)
    assert score_confidence((0.05, 0.9, 0.05)) == pytest.approx(1 - 0.1 / (2 / 3))
    assert choice_confidence((1.0,)) == score_confidence((1.0,)) == 1
    assert choice_confidence((0.25,) * 4) == 0
    assert likeliest((0.4, 0.4, 0.2)) == 0


def log(*probabilities):
    return [math.log(probability) for probability in probabilities]


def told(**probabilities):
    ordered = sorted(probabilities.items(), key=lambda pair: -pair[1])
    return [(form, math.log(probability)) for form, probability in ordered]


def test_forms_are_summed():
    reading = read_labels(told(A=0.4, a=0.3, B=0.2, x=0.1), [("A", "a"), ("B",)], complete=True)
    assert [math.exp(value) for value in reading.logprobs] == pytest.approx([0.7, 0.2])
    assert (reading.label_mass, reading.label_is_likeliest) == (pytest.approx(0.9), True)
    assert not reading.truncated


def test_texts_of_several_tokens_that_are_alike_are_summed():
    reading = read_labels([("A", math.log(0.4)), ("A", math.log(0.2))], [("A",)], complete=True)
    assert reading.label_mass == pytest.approx(0.6)


def test_another_token_may_be_the_likeliest():
    reading = read_labels(told(You=0.6, A=0.3, B=0.1), [("A",), ("B",)], complete=True)
    assert not reading.label_is_likeliest


def test_without_any_label_there_is_no_reading():
    assert read_labels(told(You=0.6), [("A",), ("B",)], complete=False) is None
    assert read_labels([], [("A",)], complete=True) is None
    assert read_labels([("A", -math.inf)], [("A",)], complete=True) is None


def test_a_label_that_is_not_told_has_its_bound():
    reading = read_labels(told(A=0.5, You=0.3), [("A",), ("B",)], complete=False)
    assert reading.truncated
    assert [math.exp(value) for value in reading.logprobs] == pytest.approx([0.5, 0.2])
    assert reading.label_mass == pytest.approx(0.5)  # only what was told


def test_a_label_that_is_impossible_has_none():
    reading = read_labels(told(A=0.5, You=0.3), [("A",), ("B",)], complete=True)
    assert not reading.truncated
    assert reading.logprobs[1] == -math.inf


@given(st.lists(st.floats(0.001, 1), min_size=3, max_size=30), st.data())
def test_a_bound_is_never_below_the_truth(weights, data):
    """Of a whole vocabulary the likeliest are told: no other token has more than the bound."""
    probabilities = sorted((weight / sum(weights) for weight in weights), reverse=True)
    shown = data.draw(st.integers(1, len(probabilities) - 1))
    highest = bound(log(*probabilities[:shown]))
    assert all(math.log(hidden) <= highest + 1e-9 for hidden in probabilities[shown:])


def test_a_bound_is_at_most_the_last_one():
    assert bound(log(0.3, 0.1)) == pytest.approx(math.log(0.1))
    assert bound(log(0.7, 0.2)) == pytest.approx(math.log(0.1))


def test_a_bound_is_nothing_if_nothing_is_left():
    assert bound(log(0.5, 0.5)) == -math.inf


@given(LOGPROBS)
def test_the_log_of_a_sum(logprobs):
    assume(max(logprobs) > -30)
    assert math.exp(log_sum(logprobs)) == pytest.approx(math.fsum(map(math.exp, logprobs)))
    assert log_sum(()) == -math.inf
