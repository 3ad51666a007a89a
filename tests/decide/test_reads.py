"""Labels, orders, the text of questions, and how their reads become one answer."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.decision import Option, Question, QuestionKind
from antiphon.core.items import MediaKind, MediaPart, TextPart, text_in
from antiphon.decide.labels import LETTERS, PAIRS, distinct, forms_of, labels_of
from antiphon.decide.orders import orders_of
from antiphon.decide.probabilities import Reading
from antiphon.decide.reads import reads_of, verdict_of

CHOICE, SCORE, PREDICATE = QuestionKind


def question(kind, *options, instructions="Which?"):
    named = tuple(one if isinstance(one, Option) else Option(one) for one in options)
    return Question(kind, (TextPart(instructions),) if instructions else (), named, "questions[0]")


def text_of(asked, orders=1):
    ((read,),) = reads_of(asked, orders)
    return text_in(read.parts, "\n")


def test_a_choice_as_text():
    asked = question(CHOICE, Option("billing", "payments"), "shipping", instructions="Which team?")
    assert text_of(asked) == (
        "\n\nQuestion: Which team?\nA: billing - payments\nB: shipping\nAnswer with the letter only."
    )


def test_a_score_as_text():
    assert text_of(question(SCORE, "low", "high")) == (
        "\n\nQuestion: Which?\n0: low\n1: high\nAnswer with the digit only."
    )


def test_a_predicate_as_text():
    asked = question(PREDICATE, Option("", "it is"), "", instructions="Is it?")
    assert text_of(asked) == "\n\nQuestion: Is it?\nyes: it is\nno:\nAnswer with yes or no only."


def test_without_instructions_it_is_still_a_question():
    asked = question(PREDICATE, Option("", "it is cold"), "", instructions="")
    assert "Question: Which of these is right?\nyes: it is cold" in text_of(asked)


def test_an_option_is_one_line():
    assert "A: x B: fake - a b\n" in text_of(question(CHOICE, Option("x\nB: fake", "a\nb"), "y"))


def test_media_stay_in_their_places():
    image = MediaPart(MediaKind.IMAGE, "0", "image/png", b"")
    asked = Question(CHOICE, (image, TextPart("Which?")), (Option("a"), Option("b")), "q")
    ((read,),) = reads_of(asked, 1)
    assert [type(part) for part in read.parts] == [TextPart, MediaPart, TextPart, TextPart]
    assert read.parts[1] is image


def test_many_options_have_labels_of_two_letters():
    asked = question(CHOICE, *map(str, range(255)))
    ((read,),) = reads_of(asked, 1, PAIRS)
    assert read.labels == PAIRS[:255]
    assert text_in(read.parts).endswith("Answer with the two letters only.")


def test_or_are_asked_in_two_steps():
    asked = question(CHOICE, *map(str, range(40)))
    ((which, *inner),) = reads_of(asked, 1)
    assert which.labels == ("A", "B", "C")
    assert [len(group) for group in which.options] == [16, 16, 8] == [len(read.labels) for read in inner]
    assert "C: 32; 33; 34; 35; 36; 37; 38; 39\n" in text_in(which.parts)


def test_labels():
    assert labels_of(CHOICE, 26) == LETTERS
    assert labels_of(CHOICE, 27) is None
    assert labels_of(CHOICE, 27, PAIRS[:27]) == PAIRS[:27]
    assert labels_of(SCORE, 10) == tuple("0123456789")
    assert labels_of(PREDICATE, 2) == ("yes", "no")
    assert forms_of("yes") == ("yes", "Yes", "YES", " yes", " Yes", " YES")
    assert forms_of("A") == ("A", " A")
    assert forms_of("AB") == ("AB", " AB")


def test_a_form_of_two_labels_is_dropped():
    assert distinct(((1, 2, 2), (2, 3), ())) == ((1,), (3,), ())


def test_orders():
    assert orders_of(CHOICE, 3) == ((0, 1, 2), (1, 2, 0), (2, 0, 1))
    assert orders_of(CHOICE, 5) == ((0, 1, 2, 3, 4), (4, 3, 2, 1, 0))
    assert orders_of(CHOICE, 5, 1) == ((0, 1, 2, 3, 4),)
    assert orders_of(SCORE, 3) == orders_of(PREDICATE, 3, 1) == ((0, 1, 2),)
    assert orders_of(SCORE, 3, 9) == ((0, 1, 2), (2, 1, 0))
    assert orders_of(CHOICE, 1) == ((0,),)


@given(st.sampled_from(QuestionKind), st.integers(1, 40), st.none() | st.integers(1, 50))
def test_orders_are_different_and_whole(kind, options, count):
    orders = orders_of(kind, options, count)
    assert len({*orders}) == len(orders) >= 1
    assert orders[0] == tuple(range(options))
    assert all(sorted(order) == [*range(options)] for order in orders)
    assert count is None or len(orders) <= count


def test_all_rotations_put_each_option_into_each_position():
    orders = orders_of(CHOICE, 7, 7)
    assert [sorted(column) for column in zip(*orders, strict=True)] == [[*range(7)]] * 7


def test_levels_keep_their_labels_in_any_order():
    (_,), (backward,) = reads_of(question(SCORE, "low", "mid", "high"), 2)
    assert (backward.labels, backward.options) == (("2", "1", "0"), ((2,), (1,), (0,)))
    assert "2: high\n1: mid\n0: low\n" in text_in(backward.parts)


def reading(*logprobs, mass=1.0, likeliest=True, truncated=False):
    return Reading(logprobs, mass, likeliest, truncated)


def log(*probabilities):
    return tuple(math.log(probability) for probability in probabilities)


def test_probabilities_of_orders_are_averaged():
    plan = reads_of(question(CHOICE, "a", "b"), 2)
    results = [[reading(*log(0.8, 0.2), mass=0.5)], [reading(*log(0.6, 0.4), mass=0.7, likeliest=False)]]
    verdict = verdict_of(plan, results, 2)
    assert verdict.probabilities == pytest.approx((0.6, 0.4))  # (0.8 + 0.4) / 2
    assert (verdict.label_mass, verdict.label_is_likeliest, verdict.orders) == (pytest.approx(0.6), False, 2)


@given(st.lists(st.floats(-5, 0), min_size=2, max_size=6), st.lists(st.floats(-5, 0), min_size=6, max_size=6))
def test_over_all_rotations_a_bias_of_position_cancels(preferences, bias):
    """A model that adds a bias to positions: rotated options have exactly the rotated probabilities."""
    count = len(preferences)

    def answer(names):
        plan = reads_of(question(CHOICE, *map(str, names)), count)
        results = []
        for (read,) in plan:
            shown = [names[index] for (index,) in read.options]
            results.append([reading(*(preferences[name] + bias[at] for at, name in enumerate(shown)))])
        return verdict_of(plan, results, count).probabilities

    first = answer([*range(count)])
    rotated = answer([*range(1, count), 0])
    assert rotated == pytest.approx([*first[1:], first[0]])


def test_two_steps_multiply():
    asked = question(CHOICE, *map(str, range(33)))  # groups of 16, 16 and 1
    plan = reads_of(asked, 1)
    assert [len(read.labels) for read in plan[0]] == [3, 16, 16]
    inner = log(*([1 / 32] * 15 + [17 / 32]))
    results = [[reading(*log(0.5, 0.3, 0.2), mass=0.9), reading(*inner, mass=0.8), reading(*inner, mass=0.6)]]
    verdict = verdict_of(plan, results, 33)
    assert verdict.probabilities[15] == pytest.approx(0.5 * 17 / 32)
    assert verdict.probabilities[16] == pytest.approx(0.3 / 32)
    assert verdict.probabilities[32] == pytest.approx(0.2)
    assert verdict.label_mass == pytest.approx(0.9 * (0.5 * 0.8 + 0.3 * 0.6 + 0.2))


def test_a_temperature_applies_to_each_order():
    plan = reads_of(question(PREDICATE, "", ""), 1)
    hot = verdict_of(plan, [[reading(*log(0.8, 0.2))]], 2, temperature=2.0)
    assert hot.probabilities == pytest.approx((2 / 3, 1 / 3))
    assert hot.temperature == 2
