"""Ids become text, a character at a time, for any bytes."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.chunks import Chunk, Finish, FinishReason
from tests.detokenizer import Detokenizer

BYTES = [bytes([value]) for value in range(256)]
SPECIAL = {256: "<|end|>", 257: "<think>"}


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=6))
def test_gives_the_text_of_the_bytes_however_they_come(data: bytes, cuts: list[int]) -> None:
    borders = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    detokenizer = Detokenizer(BYTES)

    chunks = [detokenizer.feed(data[a:b]) for a, b in itertools.pairwise(borders)]
    chunks.append(detokenizer.finish(Finish(FinishReason.STOP)))

    assert "".join(chunk.text for chunk in chunks) == data.decode("utf-8", "replace")
    assert [token.id for chunk in chunks for token in chunk.tokens] == list(data)


def test_a_character_comes_with_its_last_token() -> None:
    detokenizer = Detokenizer(BYTES)

    texts = [detokenizer.feed([byte]).text for byte in "é!".encode()]

    assert texts == ["", "é", "!"]


def test_special_tokens_are_hidden_unless_preserved() -> None:
    detokenizer = Detokenizer(BYTES, SPECIAL, frozenset({"<think>"}))

    chunk = detokenizer.feed([257, 97, 256])

    assert chunk.text == "<think>a"
    assert [token.text for token in chunk.tokens] == ["<think>", "a", ""]


def test_unknown_ids_have_no_text() -> None:
    assert Detokenizer(BYTES).feed([9999]) == Chunk("", Detokenizer(BYTES).feed([9999]).tokens)
    assert Detokenizer(BYTES).feed([9999]).text == ""
