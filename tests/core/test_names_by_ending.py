"""Names of functions without their namespaces."""

from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.turn import Function, names_by_ending

WORDS = st.sampled_from(["a", "b", "c_d"])
NAMES = st.lists(WORDS, min_size=1, max_size=4).map("__".join)


@given(st.lists(NAMES, max_size=8))
def test_an_ending_names_the_only_function_that_has_it(names: list[str]) -> None:
    endings = names_by_ending(map(Function, names))
    having = {
        ending: {name for name in names if name.endswith(f"__{ending}")} for ending in [*endings, "a", "b"]
    }

    assert not endings.keys() & set(names)
    assert all(having[ending] == {name} for ending, name in endings.items())
    assert all(
        ending in endings for ending, found in having.items() if len(found) == 1 and ending not in names
    )
