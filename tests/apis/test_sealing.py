"""What is sealed can be opened by the same server, for the same owner, and by no one else."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.apis.sealing import Sealer


@given(st.text(), st.text())
def test_what_is_sealed_can_be_opened(owner: str, text: str) -> None:
    sealer = Sealer(["key"])

    sealed = sealer.seal(owner, text)

    assert sealer.unseal(owner, sealed) == text
    assert sealer.seal(owner, text) == sealed == Sealer(["key"]).seal(owner, text)
    assert sealer.unseal(owner + "x", sealed) is None


def test_it_cannot_be_read() -> None:
    sealed = Sealer(["key"]).seal("me", "a secret thought")

    assert b"secret" not in base64.urlsafe_b64decode(sealed.removeprefix("a1.") + "==")


def test_keys_can_be_changed() -> None:
    old, both, new = Sealer(["old"]), Sealer(["new", "old"]), Sealer(["new"])

    assert both.unseal("me", old.seal("me", "a")) == "a"
    assert new.unseal("me", both.seal("me", "a")) == "a"
    assert new.unseal("me", old.seal("me", "a")) is None


@given(st.data())
def test_what_was_changed_is_not_opened(data: st.DataObject) -> None:
    sealed = Sealer(["key"]).seal("me", "a secret thought")
    blob = bytearray(base64.urlsafe_b64decode(sealed.removeprefix("a1.")))
    blob[data.draw(st.integers(0, len(blob) - 1))] ^= 1 << data.draw(st.integers(0, 7))

    assert Sealer(["key"]).unseal("me", "a1." + base64.urlsafe_b64encode(blob).decode()) is None


@given(st.text() | st.text("ab01-_=.").map("a1.".__add__))
def test_anything_else_is_not_opened(text: str) -> None:
    assert Sealer(["key"]).unseal("me", text) is None


@pytest.mark.parametrize("keys", [[], [""]])
def test_there_has_to_be_a_key(keys: list[str]) -> None:
    with pytest.raises(ValueError, match="key"):
        Sealer(keys)
