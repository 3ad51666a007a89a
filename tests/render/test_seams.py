import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.render.seams import SEAM, pieces, with_seams

TEXT = st.lists(st.sampled_from(["<|", "|>", "<", "|", ">", "end", "a", SEAM])).map("".join)


@given(text=TEXT)
def test_the_pieces_are_the_text(text: str) -> None:
    assert "".join(pieces(with_seams(text))) == text.replace(SEAM, "")


@given(text=TEXT, name=st.sampled_from(["end", "im_start", "reserved_200013"]))
def test_no_piece_holds_what_looks_like_a_special_token(text: str, name: str) -> None:
    assert not any(f"<|{name}|>" in piece for piece in pieces(with_seams(f"{text}<|{name}|>{text}")))


@pytest.mark.parametrize("text", ["", "a <| b", "f <|g", "<||>", "<|a b|>", "List<|>"])
def test_other_text_is_one_piece(text: str) -> None:
    assert with_seams(text) == text
