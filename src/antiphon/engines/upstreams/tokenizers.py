"""Who makes tokens of a prompt, where the server that runs the model may not: three ways, one protocol.

The server's own endpoints, the model's tokenizer in this process, or, for text that nobody can
tokenize, an estimate.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from antiphon.core.errors import RequestError
from antiphon.engines.http_client import HttpClient
from antiphon.engines.upstreams.kind import ask

MAX_ID = 2**31
"""No vocabulary is larger. Some servers fail on ids beyond it."""

ESTIMATE = 4
"""Bytes of UTF-8 that an estimated token has: about as many as those of real tokenizers have in English."""


class Tokenizer(Protocol):
    """What an engine asks, see `Engine`. `counts`: the tokens are the model's."""

    counts: bool

    async def tokenize(self, pieces: Sequence[str]) -> list[int]: ...  # noqa: D102

    async def detokenize(self, ids: Sequence[int]) -> str: ...  # noqa: D102

    async def opening(self) -> int | None:
        """The id that the model wants before any text (BOS); None if it wants none."""
        ...


class ServerTokenizer:
    """vLLM's `/tokenize` and `/detokenize`."""

    counts = True

    def __init__(self, client: HttpClient, model: str) -> None:
        self._client = client
        self._model = model

    async def tokenize(self, pieces: Sequence[str]) -> list[int]:
        """See `Engine`. A prompt has several pieces only where special tokens are spelled in it."""
        return [token for piece in pieces for token in await self._tokens(piece, special=False)]

    async def _tokens(self, text: str, *, special: bool) -> list[int]:
        if not text and not special:
            return []
        body: Mapping[str, Any] = {"model": self._model, "prompt": text, "add_special_tokens": special}
        tokens: list[int] = (await ask(self._client, "/tokenize", body))["tokens"]
        return tokens

    async def detokenize(self, ids: Sequence[int]) -> str:
        """See `Engine`."""
        check_ids(ids)
        if not ids:
            return ""
        text: str = (await ask(self._client, "/detokenize", {"model": self._model, "tokens": ids}))["prompt"]
        return text

    async def opening(self) -> int | None:
        """See `Tokenizer`."""
        bare, full = await self._tokens("a", special=False), await self._tokens("a", special=True)
        return full[0] if full[1 : 1 + len(bare)] == bare else None


class EstimatedTokens:
    """Takes every few bytes of text for a token. The ids hold these bytes, so that they can be read back."""

    counts = False

    async def tokenize(self, pieces: Sequence[str]) -> list[int]:
        """See `Engine`."""
        return [token for piece in pieces for token in _estimated(piece)]

    async def detokenize(self, ids: Sequence[int]) -> str:
        """See `Engine`."""
        return b"".join(map(_bytes, ids)).decode(errors="replace")

    async def opening(self) -> int | None:
        """See `Tokenizer`."""
        return None


def _estimated(text: str) -> Iterable[int]:
    raw = text.encode()
    for start in range(0, len(raw), ESTIMATE):
        yield int.from_bytes(b"\1" + raw[start : start + ESTIMATE])


def _bytes(token: int) -> bytes:
    raw = token.to_bytes(ESTIMATE + 1).lstrip(b"\0") if 0 <= token < 2 ** (8 * (ESTIMATE + 1)) else b""
    if raw[:1] != b"\1":
        raise _no_token(token)
    return raw[1:]


def check_ids(ids: Iterable[int]) -> None:
    """Raise RequestError for an id that no vocabulary has."""
    for token in ids:
        if not 0 <= token < MAX_ID:
            raise _no_token(token)


def _no_token(token: int) -> RequestError:
    return RequestError(f"There is no token {token}.", param="tokens")
