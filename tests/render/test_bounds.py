import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.render import bounds
from antiphon.render.meter import Meter

METER = Meter({})
SHORT = st.text(max_size=20)
WIDTH = st.integers(0, 50)


@given(SHORT, SHORT, SHORT)
def test_replace_stays_in_its_bound(text: str, old: str, new: str) -> None:
    assert len(text.replace(old, new)) <= bounds.replace(METER, text, old, new)


@given(SHORT, st.lists(SHORT))
def test_join_stays_in_its_bound(separator: str, parts: list[str]) -> None:
    assert len(separator.join(parts)) <= bounds.joined(METER, separator, parts)
    assert len(separator.join(parts)) <= bounds.join(METER, parts, separator)


@given(SHORT, WIDTH)
def test_widths_stay_in_their_bound(text: str, width: int) -> None:
    for name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
        assert len(getattr(text, name)(width)) <= max(len(text), bounds.METHODS[name](METER, text, width))


@given(st.text(alphabet="ab \n"), st.sampled_from([None, "a", " ", "ab"]))
def test_split_stays_in_its_bound(text: str, separator: str | None) -> None:
    pieces = text.split(separator)
    assert sum(map(len, pieces)) + len(pieces) <= bounds.split(METER, text, separator)


@given(SHORT, WIDTH)
def test_fields_stay_in_their_bound(value: str, width: int) -> None:
    assert len(f"%{width}s%s" % (value, value)) <= bounds.percent(METER, f"%{width}s%s", (value, value))
    text = f"{{0:{width}}}{{0}}"
    assert len(text.format(value)) <= bounds.braces(METER, text, value)


@pytest.mark.parametrize("text", ["%100000d", "%.100000f", "%*d", "%(a(b)c)100000s", "%-0100000d"])
def test_wide_percent_fields_are_refused(text: str) -> None:
    assert bounds.percent(METER, text, 1) == float("inf")


@pytest.mark.parametrize("text", ["{:100000}", "{:.100000f}", "{:{}}", "{0!r:>100000}", "{{{:100000}}}"])
def test_wide_brace_fields_are_refused(text: str) -> None:
    assert bounds.braces(METER, text, 1) == float("inf")


@pytest.mark.parametrize("text", ["at 1700000000: %s", "100% {} 123456", "no fields 1234567"])
def test_long_numbers_beside_fields_are_fine(text: str) -> None:
    assert bounds.percent(METER, text, 1) < float("inf")
    assert bounds.braces(METER, text, 1) < float("inf")


def test_huge_integers_are_not_computed_with() -> None:
    huge = 1 << 5000
    for operator in ("*", "/", "//", "%"):
        assert bounds.OPERATORS[operator](METER, huge, 3) == float("inf")
    assert bounds.OPERATORS["**"](METER, 10, 10**9) == float("inf")
    assert bounds.OPERATORS["**"](METER, 2, 64) == 0
