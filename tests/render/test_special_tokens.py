import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.render.special_tokens import (
    GENERIC_ESCAPER,
    SEPARATOR,
    SpecialTokenEscaper,
    restore_separators,
    split_at_separators,
)

TEXT = st.lists(
    st.sampled_from(["<|", "|>", "<", "|", ">", "end", "a", "\\", "ufdd0", "</s>", SEPARATOR])
).map("".join)
put = SpecialTokenEscaper("<s>", "</s>", "[END]", "", "x").escape
escape = GENERIC_ESCAPER.escape


@given(text=TEXT)
def test_the_pieces_are_the_text(text: str) -> None:
    assert "".join(split_at_separators(put(text))) == text.replace(SEPARATOR, "")
    assert put(put(text)) == put(text)


@given(
    text=TEXT,
    name=st.sampled_from(["end", "im_start", "reserved_200013", "START_OF_TURN", "a:b", "begin▁of"]),
)
def test_no_piece_holds_what_looks_like_a_special_token(text: str, name: str) -> None:
    for special in (f"<|{name}|>", f"<｜{name}｜>"):
        assert not any(special in piece for piece in split_at_separators(escape(text + special + text)))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a<s>b", ["a<", "s>b"]),
        ("a</s>b", ["a</", "s>b"]),
        ("[END]", ["[", "END]"]),
        ("x <b>", ["x <b>"]),
    ],
)
def test_the_model_s_own_tokens_are_known_by_their_texts(text: str, parts: list[str]) -> None:
    assert split_at_separators(put(text)) == parts


@pytest.mark.parametrize(
    "text", ["", "a <| b", "f <|g", "<||>", "<|a b|>", "List<|>", "</s>", "</think>", "[END]"]
)
def test_other_text_is_one_piece(text: str) -> None:
    assert escape(text) == text


def test_all_texts_of_a_value_are_reached() -> None:
    value = {"<|a|>": ["<|b|>", ("<|c|>", 1)], "d": None}
    seen = GENERIC_ESCAPER.escape_json(value)
    assert seen == {f"<|{SEPARATOR}a|>": [f"<|{SEPARATOR}b|>", [f"<|{SEPARATOR}c|>", 1]], "d": None}


@given(text=TEXT)
def test_separators_are_restored_from_escapes(text: str) -> None:
    """A template may print a value as JSON in ASCII, or as Python does."""
    said = text.replace(SEPARATOR, "")
    for printed, read in ((json.dumps, json.loads), (repr, None)):
        found = split_at_separators(restore_separators(printed([escape(f"{text}<|end|>")])))
        assert not any("<|end|>" in piece for piece in found)
        assert "".join(found) == printed([f"{said}<|end|>"])
        assert read is None or read("".join(found)) == [f"{said}<|end|>"]
    assert restore_separators(escape(text)) == escape(text)


@pytest.mark.parametrize(
    "tokens",
    [
        pytest.param(["<image>" + "<patch>" * 500 + "</image>"], id="long"),
        pytest.param([f"[{'A' * length}]" for length in range(1, 500)], id="each-begins-like-the-next"),
    ],
)
def test_tokens_may_be_long_and_begin_alike(tokens: list[str]) -> None:
    """A placeholder of an image may be written as one token for each part of it."""
    escaper = SpecialTokenEscaper(*tokens)
    for token in (tokens[0], tokens[-1]):
        assert not any(token in piece for piece in split_at_separators(escaper.escape(f"a {token} b")))
        assert escaper.escape_json([token]) == [escaper.escape(token)]
    assert escaper.escape("a [B] <image>") == "a [B] <image>"
