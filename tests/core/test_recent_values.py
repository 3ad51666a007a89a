"""The values that were used last are there."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.recent_values import RecentValues

LIMIT = 5
STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 4)))


def known(values):
    """The keys that have a value, without using any."""
    return {**values._older, **values._recent}.keys()


@given(steps=STEPS)
def test_those_used_last_are_there_and_never_more_than_twice_as_many(steps):
    values, used = RecentValues[int, int](LIMIT), OrderedDict()
    for puts, key, size in steps:
        if puts and key not in known(values):
            values.put(key, size, size)
        found = values.get(key)
        if found is not None:
            used[key] = found
            used.move_to_end(key)
        left = LIMIT
        for last, its_size in reversed(used.items()):
            left -= its_size
            if left < 0:
                break
            assert last in known(values)
        assert sum(used[key] for key in known(values)) <= 2 * (LIMIT + 4)


def test_what_was_never_put_is_not_there():
    values = RecentValues[str, int](LIMIT)
    assert values.get("a") is None
    assert "a" not in known(values)
    values.put("a", 1, LIMIT + 1)  # larger than all that may be there
    values.put("b", 2, 1)
    assert (values.get("a"), values.get("b")) == (1, 2)
