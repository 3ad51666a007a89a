"""How log probabilities are kept until an answer has them all."""

import json

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.json import encode

from antiphon.apis.logprobs import EncodedList


@given(st.lists(st.lists(st.one_of(st.none(), st.integers(), st.text(), st.lists(st.booleans())))))
def test_a_list_that_grows_is_json_all_the_time(batches: list[list[object]]) -> None:
    growing, known = EncodedList(), list[object]()
    assert json.loads(encode(growing.raw)) == []
    for batch in batches:
        growing.extend(Raw(encode(value)) for value in batch)
        known += batch
        assert json.loads(encode({"content": growing.raw})) == {"content": known}
