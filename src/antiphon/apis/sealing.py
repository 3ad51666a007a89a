"""Seals text that a client keeps for the server: reasoning, and summaries of conversations.

Only this server can read a sealed text, and only for the owner that it was sealed for. Sealing is
deterministic (AES-SIV, RFC 5297): a response that is replayed after a crash seals its reasoning to the same
bytes, which a random nonce would not give. This reveals that two texts of one owner are equal, and nothing
else.
"""

import base64
import binascii
from collections.abc import Callable, Sequence
from hashlib import sha512
from hmac import compare_digest
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

_VERSION = "a1."
"""The beginning of sealed texts: the version of the method."""


def is_sealed(text: str) -> bool:
    """Whether a server of this kind has sealed the text: those of others begin otherwise."""
    return text.startswith(_VERSION)


class Sealer:
    """Seals with the first of its keys, and opens with any of them: so keys can be changed.

    There must be at least one key; each should have 32 random characters. Raises ValueError.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        if not all(keys) or not keys:
            raise ValueError("There has to be a key to seal with, and no key may be empty.")
        self._ciphers = [_cipher(key) for key in keys]

    def seal(self, owner: str, text: str) -> str:
        """The text, encrypted for this owner."""
        sealed = self._ciphers[0].encrypt(text.encode(), _bound_to(owner))
        return _VERSION + base64.urlsafe_b64encode(sealed).decode()

    def unseal(self, owner: str, sealed: str) -> str | None:
        """The text that was sealed for this owner, None if it was not."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415

        if not is_sealed(sealed):
            return None
        try:
            blob = base64.b64decode(sealed.removeprefix(_VERSION), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        for cipher in self._ciphers:
            try:
                return cipher.decrypt(blob, _bound_to(owner)).decode()
            except (InvalidTag, ValueError):  # another key's, another owner's, or too short to be anyone's
                continue
        return None

    def sign(self, owner: str, text: str) -> str:
        """A proof that this server wrote the text for this owner: 32 hexadecimal digits."""
        return _signature(self._ciphers[0], owner, text)

    def signed(self, owner: str, text: str, signature: str) -> bool:
        """Whether it does."""
        return any(
            compare_digest(_signature(cipher, owner, text).encode(), signature.encode(errors="replace"))
            for cipher in self._ciphers
        )


class Signer(NamedTuple):
    """`sign` and `signed` of a `Sealer`, for one owner."""

    sign: Callable[[str], str]
    signed: Callable[[str, str], bool]


NO_SIGNER = Signer(str, lambda _text, _signature: False)
"""For a server without keys: nothing is signed."""


def _signature(cipher: "AESSIV", owner: str, text: str) -> str:
    """The tag of the text: AES-SIV's depends on all of it (RFC 5297), and on the associated data."""
    return cipher.encrypt(text.encode(), [*_bound_to(owner), b"signature"])[:16].hex()


def _bound_to(owner: str) -> list[bytes]:
    return [_VERSION.encode(), owner.encode()]


def _cipher(key: str) -> "AESSIV":
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV  # noqa: PLC0415

    return AESSIV(sha512(b"antiphon sealing " + key.encode()).digest())
