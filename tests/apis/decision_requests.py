"""Requests for decisions: a good one of each API with all of its fields, and spoiled ones."""

from typing import Any

from hypothesis import strategies as st

Json = Any

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""One pixel, in base64."""
IMAGE = f"data:image/png;base64,{PNG}"

OPENAI: dict[str, Json] = {
    "model": "m",
    "input": [{"role": "user", "content": [{"type": "input_json", "data": {"ticket": "Charged twice."}}]}],
    "questions": [
        {
            "type": "choice",
            "name": "route",
            "instructions": "Which team?",
            "choices": [{"value": "billing", "description": "payments"}, {"value": "shipping"}],
        },
        {
            "type": "score",
            "name": "urgency",
            "instructions": "How urgent?",
            "levels": [
                {"label": "can wait"},
                {"label": "today"},
                {"label": "now", "description": "within an hour"},
            ],
        },
        {"type": "predicate", "instructions": "Is the customer angry?"},
    ],
}
SYSTEMONE: dict[str, Json] = {
    "model": "m",
    "state": {"ticket": "Charged twice."},
    "questions": {
        "route": {
            "type": "choice",
            "instructions": "Which team?",
            "criteria": {"billing": "payments", "shipping": None},
        },
        "urgency": {"type": "score", "instructions": "How urgent?", "criteria": ["can wait", "today", "now"]},
        "angry": {"type": "noul", "instructions": "Is the customer angry?"},
    },
}

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
"""Any JSON."""


def places(value: Json, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, member in inner for place in places(member, (*path, key)))]


def replaced(value: Json, path: tuple[Any, ...], new: Json) -> Json:
    """The value with another at a place."""
    if not path:
        return new
    changed = value.copy()
    changed[path[0]] = replaced(value[path[0]], path[1:], new)
    return changed


def spoiled(whole: Json) -> st.SearchStrategy[Json]:
    """The request with any JSON in the place of one of its values."""
    return st.builds(lambda path, new: replaced(whole, path, new), st.sampled_from(places(whole)), values)
