"""Stop strings: the first one, and of those the longest, however the text is cut; each character costs the same."""

from collections.abc import Sequence
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from antiphon.decode.stops import StopMatcher
from tests.counting import lines

END = "\0"
"""Appended to a text, so that nothing is held back."""


def first(text: str, stops: Sequence[str], least: int = 0) -> tuple[str, str | None]:
    """What is visible of a text, and the stop string that ends it, after the `least` first characters."""
    for start in range(len(text)):
        found = [stop for stop in stops if text.startswith(stop, start) and start + len(stop) > least]
        if found:
            return text[:start], max(found, key=len)
    return text, None


def read(
    pieces: Sequence[str], stops: Sequence[str], least: int = 0, *, include: bool = False
) -> tuple[str, str | None]:
    matcher, visible, held = StopMatcher(stops, include), "", ""
    for piece in pieces:
        text = held + piece
        end, found = matcher.find(text, least - len(visible))
        visible, held = visible + text[:end], text[end:]
        if found is not None:
            return visible, found
    return visible, None


@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=6), min_size=1),
    st.lists(st.integers(0, 30)),
    st.integers(0, 12),
)
def test_the_first_and_longest_is_found_whatever_the_cuts(
    text: str, stops: list[str], cuts: list[int], least: int
) -> None:
    text += END
    ends = sorted({*(cut for cut in cuts if cut < len(text)), len(text)})
    pieces = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert read(pieces, stops, least) == first(text, stops, least)
    assert read([*text], stops, least) == first(text, stops, least)


def test_a_stop_string_may_be_shown() -> None:
    assert read(["one ST", "OP two"], ["STOP"], include=True) == ("one STOP", "STOP")
    assert read(["one ST", "OP two"], ["STOP"]) == ("one ", "STOP")


def test_at_the_end_of_a_text_nothing_has_begun() -> None:
    matcher = StopMatcher(["STOP"], include_stop=False)
    assert matcher.find("one ST") == (4, None)
    assert matcher.find_final("ST") == (2, None)
    assert matcher.find("OP two") == (6, None)


def test_the_shorter_of_two_is_found_if_the_text_ends_there() -> None:
    matcher = StopMatcher(["a", "ab"], include_stop=False)
    assert matcher.find("one a") == (4, None)
    assert matcher.find_final("a") == (0, "a")


def test_the_cost_of_a_character_does_not_depend_on_the_length_of_the_stop_strings() -> None:
    text = ["a"] * 3000
    short, long = (lines(partial(read, text, ["a" * length + "b"])) for length in (10, 2000))
    assert long < 1.5 * short
