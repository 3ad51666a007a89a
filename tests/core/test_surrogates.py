import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.surrogates import with_whole_characters, with_whole_characters_in

HALVES = st.text(st.characters(min_codepoint=0xD7F0, max_codepoint=0xE010), max_size=6)
TEXTS = st.lists(HALVES | st.text(max_size=4) | st.sampled_from(["\\", "\\\\u", "ud83d", "\\ud83d"])).map(
    "".join
)


@given(text=TEXTS, ascii_only=st.booleans())
def test_every_half_becomes_a_replacement_and_nothing_else_changes(text: str, ascii_only: bool) -> None:
    """As a decoder of UTF-16 does it."""
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    written = json.dumps({text: [text]}, ensure_ascii=True).encode()
    assert json.loads(with_whole_characters(written)) == {whole: [whole]}
    if not ascii_only:
        plain = json.dumps(whole, ensure_ascii=False)
        assert with_whole_characters_in(plain) == plain


@pytest.mark.parametrize(
    ("written", "read"), [(r'"\uD83D\\ude00"', "\ufffd\\ude00"), (r'"\\ud83d\ude00"', "\\ud83d\ufffd")]
)
def test_an_escaped_backslash_begins_no_escape(written: str, read: str) -> None:
    assert json.loads(with_whole_characters(written.encode())) == read


@given(text=TEXTS)
def test_halves_that_are_not_escaped_are_replaced_too(text: str) -> None:
    written = json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")
    whole = "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)
    assert json.loads(with_whole_characters(written)) == whole
