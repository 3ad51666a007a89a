import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.render import meter as module
from antiphon.render.meter import BASE_ALLOWANCE, LimitError, Meter

JSON = st.recursive(
    st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


def test_what_is_given_costs_nothing() -> None:
    text = "x" * BASE_ALLOWANCE
    given_list = [text]
    meter = Meter({"a": given_list})
    for _ in range(100):
        meter.charge(text)
        meter.charge(given_list)


def test_what_is_made_and_held_is_counted() -> None:
    meter = Meter({})
    held = [meter.charge(letter * (BASE_ALLOWANCE // 4)) for letter in "abc"]
    with pytest.raises(LimitError):
        meter.charge("d" * (BASE_ALLOWANCE // 3))
    assert len(held) == 3


def test_what_nothing_holds_is_given_back() -> None:
    meter = Meter({})
    for _ in range(100):
        meter.charge("x" * (BASE_ALLOWANCE // 4))


def test_a_shared_part_weighs_each_time() -> None:
    meter = Meter({})
    nested: list = [1]
    for _ in range(10):
        nested = meter.charge([nested, nested])
    assert meter.weigh(nested) > 2**10 * meter.weigh([1])


@given(JSON)
def test_a_list_weighs_more_than_its_parts(value: object) -> None:
    meter = Meter({})
    assert meter.weigh([value, value]) > 2 * meter.weigh(value)


def test_time_that_others_used_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Meter({})
    late = module.monotonic() + 100
    monkeypatch.setattr(module, "monotonic", lambda: late)
    assert meter.charge("x") == "x"
    later, used = late + 100, module.thread_time() + 3
    monkeypatch.setattr(module, "monotonic", lambda: later)
    monkeypatch.setattr(module, "thread_time", lambda: used)
    with pytest.raises(LimitError):
        meter.charge("x")
