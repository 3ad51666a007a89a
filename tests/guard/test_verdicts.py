"""What guards write, and what it means: the formats of the model cards, and anything else."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.moderation import CATEGORIES, GuardVerdict, merged
from antiphon.guard.formats import (
    DECISIONS,
    DEFINITIONS,
    FORMATS,
    LLAMA_GUARD,
    QWEN_GUARD,
    SHIELD_GEMMA,
    format_of,
)
from antiphon.guard.verdicts import (
    NoVerdictError,
    categories_in,
    read_verdict,
    reading_of,
    score_of,
    shares_of,
    weight_of,
    written,
)
from antiphon.run.guarding import OVERLAP, WINDOW, windows_of


@pytest.mark.parametrize(
    ("form", "text", "weight", "categories"),
    [
        (LLAMA_GUARD, "safe", 0, []),
        (LLAMA_GUARD, "\n\nsafe", 0, []),
        (LLAMA_GUARD, "\n\nunsafe\nS1,S10", 1, ["violence", "illicit/violent", "hate"]),
        (LLAMA_GUARD, "unsafe\nS4", 1, ["sexual/minors"]),
        (LLAMA_GUARD, "unsafe\nS99", 1, []),
        (LLAMA_GUARD, "unsafe", 1, []),
        (QWEN_GUARD, "Safety: Safe\nCategories: None", 0, []),
        (QWEN_GUARD, "Safety: Safe\nCategories: None\nRefusal: Yes", 0, []),
        (QWEN_GUARD, "Safety: Unsafe\nCategories: Violent", 1, ["violence", "illicit/violent"]),
        (
            QWEN_GUARD,
            "Safety: Unsafe\nCategories: PII, Suicide & Self-Harm\nRefusal: No",
            1,
            ["privacy", "self-harm"],
        ),
        (
            QWEN_GUARD,
            "<think>\n\n</think>\n\nSafety: Controversial\nCategories: Unethical Acts",
            0.5,
            ["hate", "harassment"],
        ),
        (SHIELD_GEMMA, "Yes, because", 1, []),
        (SHIELD_GEMMA, "No.", 0, []),
    ],
)
def test_verdicts_of_the_model_cards(form: Any, text: str, weight: float, categories: list[str]) -> None:
    assert weight_of(form, text) == weight
    assert categories_in(form, text) == categories


@pytest.mark.parametrize("form", FORMATS.values(), ids=str)
@pytest.mark.parametrize(
    "text", ["", "  ", "I cannot help with that.", "Safety", "unsafely", "maybe\nS1", "\0"]
)
def test_other_answers_are_no_verdicts(form: Any, text: str) -> None:
    with pytest.raises(NoVerdictError):
        weight_of(form, text)


@given(st.sampled_from([*FORMATS.values()]), st.text())
def test_whatever_a_guard_writes_is_a_verdict_or_none(form: Any, text: str) -> None:
    try:
        verdict = written(form, text)
    except NoVerdictError:
        return
    assert set(verdict.scores) == set(form.names)
    assert verdict.flagged or not any(verdict.categories.values())


def test_a_controversial_text_is_not_flagged_but_scored() -> None:
    verdict = written(QWEN_GUARD, "Safety: Controversial\nCategories: Copyright Violation")
    assert (verdict.flagged, verdict.scores["intellectual-property"]) == (False, 0.5)
    assert not any(verdict.categories.values())


def test_categories_are_openais_or_the_guards_own() -> None:
    assert DEFINITIONS.keys() == set(CATEGORIES)
    for form in FORMATS.values():
        assert len({category.label for category in form.categories}) == len(form.categories)
        assert set(form.names) & set(CATEGORIES)


def tokens(**shares: float) -> list[tuple[str, float]]:
    return sorted(((text, math.log(share)) for text, share in shares.items()), key=lambda pair: -pair[1])


def test_a_score_is_read_where_the_model_says_most_words() -> None:
    after_nothing = [("\n\n", math.log(0.99)), ("safe", math.log(0.001))]
    after_lines = tokens(unsafe=0.6, safe=0.2)
    assert score_of(LLAMA_GUARD, [after_nothing, after_lines]) == pytest.approx(0.75)
    assert score_of(LLAMA_GUARD, [[], [("Hello", -0.1)]]) is None


@pytest.mark.parametrize("pieces", [(" Unsafe", " Safe"), ("Uns", "Saf"), ("UNSAFE", "SAFE"), ("u", "s")])
def test_tokens_of_any_tokenizer_are_read(pieces: tuple[str, str]) -> None:
    unsafe, safe = pieces
    candidates = [(unsafe, math.log(0.7)), (safe, math.log(0.1))]
    reading = reading_of(["safe", "unsafe"], candidates)
    assert reading is not None
    assert math.exp(reading.logprobs[1]) == pytest.approx(0.7)
    assert reading.label_mass == pytest.approx(0.8)


def test_a_token_that_begins_several_labels_counts_for_none_unless_it_is_one() -> None:
    shares = shares_of(LLAMA_GUARD, [("1", math.log(0.5)), ("10", math.log(0.25)), ("12", math.log(0.25))])
    assert shares["hate"] == pytest.approx(0.25)
    assert shares["violence"] == pytest.approx(0.5)
    assert reading_of(["sexual", "suicide"], [("s", -0.1)]) is None


@given(
    st.sampled_from([LLAMA_GUARD, QWEN_GUARD]),
    st.floats(0, 1),
    st.lists(st.tuples(st.text(max_size=3), st.floats(-20, -0.01)), max_size=8),
)
def test_scores_are_probabilities(form: Any, score: float, candidates: list[tuple[str, float]]) -> None:
    verdict = read_verdict(form, score, shares_of(form, candidates))
    assert all(0 <= value <= score + 1e-9 for value in verdict.scores.values())
    assert verdict.flagged == (score > 0.5)


@given(
    st.lists(st.builds(GuardVerdict, st.booleans(), st.dictionaries(st.sampled_from("ab"), st.floats(0, 1))))
)
def test_a_text_is_as_bad_as_its_worst_part(verdicts: list[GuardVerdict]) -> None:
    whole = merged(verdicts)
    assert whole.flagged == any(verdict.flagged for verdict in verdicts)
    for verdict in verdicts:
        assert all(whole.scores[name] >= score for name, score in verdict.scores.items())


@given(st.text(), st.integers(0, 3 * WINDOW))
def test_windows_cover_a_text_and_overlap(text: str, length: int) -> None:
    text = (text * (1 + length // max(len(text), 1)))[: max(len(text), length)]
    windows = [*windows_of(text)]
    if not text.strip():
        assert windows == []
        return
    assert all(len(window) <= WINDOW for window in windows)
    assert windows[0] + "".join(window[OVERLAP:] for window in windows[1:]) == text


@pytest.mark.parametrize(
    ("names", "form"),
    [
        (("guard", "meta-llama/Llama-Guard-3-8B"), "llama-guard"),
        (("Qwen3Guard-Gen-0.6B-Q8_0.gguf",), "qwen3guard"),
        (("guard", "google/shieldgemma-2b"), "shieldgemma"),
        (("Qwen/Qwen3-8B",), DECISIONS),
    ],
)
def test_the_names_of_a_model_say_its_format(names: tuple[str, ...], form: str) -> None:
    assert format_of(names) == form
