"""Pages are read in the encoding that a browser would choose."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.tools.web.charset import decode


@pytest.mark.parametrize(
    ("body", "declared", "text"),
    [
        ("déjà".encode(), None, "déjà"),
        ("déjà".encode(), "utf-8", "déjà"),
        ("déjà".encode("latin-1"), "ISO-8859-1", "déjà"),
        (b"\x93quoted\x94", "iso-8859-1", "“quoted”"),
        ("日本語".encode("shift_jis"), "shift_jis", "日本語"),
        ("日本".encode("gbk"), "gb2312", "日本"),
        ("\ufeffимя".encode(), "windows-1251", "имя"),
        ("имя".encode("windows-1251"), "made-up", "èìÿ"),
        ("déjà".encode("latin-1"), None, "déjà"),
    ],
)
def test_a_declared_encoding_is_used_and_a_mark_in_front_is_believed(
    body: bytes, declared: str | None, text: str
) -> None:
    assert decode(body, declared) == text


@pytest.mark.parametrize(
    "tag",
    [
        '<meta charset="windows-1251">',
        "<META http-equiv=Content-Type content='text/html; charset=windows-1251'>",
    ],
)
def test_a_page_may_declare_its_encoding_itself(tag: str) -> None:
    assert decode(f"{tag}имя".encode("windows-1251"), None) == f"{tag}имя"


def test_a_tag_that_can_be_read_is_not_utf16() -> None:
    assert decode('<meta charset="utf-16">é'.encode(), None).endswith("é")


def test_a_character_that_is_cut_at_the_end_does_not_spoil_the_rest() -> None:
    assert decode("ééé".encode()[:-1], None) == "éé\ufffd"


@given(
    st.binary(max_size=200),
    st.none()
    | st.text(max_size=20)
    | st.sampled_from(["utf-16", "hz-gb-2312", "x-user-defined", "iso-2022-jp"]),
)
def test_anything_can_be_read(body: bytes, declared: str | None) -> None:
    assert isinstance(decode(body, declared), str)
