"""The tokenizers that vLLM loads, behind one protocol: Hugging Face's, Mistral's, and others.

`Codec` is the protocol. vLLM chooses a tokenizer by the files of a model, or by its argument tokenizer_mode.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from antiphon.core.conversation_template import ConversationTemplate
from antiphon.engines.mistral_tokenizer import MistralTokenizer
from antiphon.engines.token_cache import added_tokens, encode_fast

BROKEN = "\ufffd"
"""Stands for the bytes of an incomplete character."""

_APART = frozenset({"ByteLevel", "ByteFallback", "Metaspace", "Replace"})
"""The decoders of Hugging Face's tokenizers that write a complete character the same after any other text."""

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class Stream(Protocol):
    """Makes text from tokens, one after the other."""

    def step(self, token: int) -> str | None:
        """The text that this token completes."""
        ...


class Codec(Protocol):
    """Texts and tokens. The ids are those below `size`; `special` has the texts of special tokens.

    `added` are the tokens at which a text can be split without changing its tokens. `apart`: each complete
    character is written the same after any other text. `template` is Jinja source, None if there is none;
    `conversation_template` writes conversations instead.
    """

    size: int
    special: Mapping[int, str]
    added: Mapping[str, int]
    apart: bool
    bos: str
    eos: str
    template: str | None
    conversation_template: ConversationTemplate | None

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without any that begin or end it."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Their text, special ones included."""
        ...

    def raw(self, token: int) -> bytes | None:
        """The bytes of a token that has a part of a character; None if they are unknown."""
        ...

    def stream(self, before: list[int]) -> Stream:
        """Makes text of the tokens that follow these, which are a few."""
        ...


def codec_of(tokenizer: Any) -> Codec:
    """The codec of a tokenizer that vLLM has loaded."""
    if getattr(tokenizer, "IS_MISTRAL_TOKENIZER", False):
        return MistralCodec(MistralTokenizer(tokenizer.mistral))
    return HuggingFaceCodec(tokenizer)


class HuggingFaceCodec:
    """Nearly all tokenizers: written in Rust, or any other with at least `encode` and `decode`."""

    conversation_template: ConversationTemplate | None = None

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._fast = getattr(tokenizer, "_tokenizer", None)
        self.size = len(tokenizer)
        self.special = _special_tokens(tokenizer)
        self.added = {} if self._fast is None else added_tokens(self._fast)
        self.apart = self._fast is not None and _writes_apart(self._fast)
        self.bos = getattr(tokenizer, "bos_token", None) or ""
        self.eos = getattr(tokenizer, "eos_token", None) or ""
        template = getattr(tokenizer, "chat_template", None)
        if isinstance(template, dict):  # of several, one is the default
            template = template.get("default")
        self.template: str | None = template

    def encode(self, text: str) -> list[int]:
        if self._fast is not None:
            return encode_fast(self._fast, text)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = (self._fast or self._tokenizer).decode([*ids], skip_special_tokens=False)
        return text

    def raw(self, token: int) -> bytes | None:
        name: str | None = self._tokenizer.convert_ids_to_tokens([token])[0]
        if name is None:
            return None
        if match := _BYTE.fullmatch(name):
            return bytes.fromhex(match[1])
        values = [_BYTES.get(letter) for letter in name]
        return None if None in values else bytes(value for value in values if value is not None)

    def stream(self, before: list[int]) -> Stream:
        if self._fast is None:
            return PlainStream(self.decode, before)
        return FastStream(self._fast, before)


class MistralCodec:
    """The tokenizers of mistral-common."""

    template: str | None = None

    def __init__(self, tokenizer: MistralTokenizer) -> None:
        self._tokenizer = tokenizer
        self.size = tokenizer.size
        self.special, self.added = tokenizer.special, tokenizer.added
        self.apart = tokenizer.by_bytes
        self.bos, self.eos = tokenizer.bos, tokenizer.eos
        self.conversation_template: ConversationTemplate | None = tokenizer
        self.encode, self.decode = tokenizer.encode, tokenizer.decode

    def raw(self, token: int) -> bytes | None:
        if self._tokenizer.by_bytes:
            return self._tokenizer.token_bytes(token)
        match = _BYTE.fullmatch(self._tokenizer.piece(token))
        return bytes.fromhex(match[1]) if match else None

    def stream(self, before: list[int]) -> Stream:
        return PlainStream(self.decode, before)


class FastStream:
    """The stream of Hugging Face's tokenizers."""

    def __init__(self, tokenizer: Any, before: list[int]) -> None:
        from tokenizers.decoders import DecodeStream  # noqa: PLC0415 - an optional extra

        self._tokenizer = tokenizer
        self._step = DecodeStream(ids=before, skip_special_tokens=False).step

    def step(self, token: int) -> str | None:
        text: str | None = self._step(self._tokenizer, token)
        return text


class PlainStream:
    """Works with any tokenizer: the last tokens are decoded with and without the new one."""

    def __init__(self, decode: Callable[[list[int]], str], before: list[int]) -> None:
        self._decode = decode
        self._ids = before
        self._read = len(before)
        self._before = decode(before)

    def step(self, token: int) -> str | None:
        self._ids.append(token)
        text = self._decode(self._ids)
        if len(text) <= len(self._before) or text.endswith(BROKEN):
            return None
        new = text[len(self._before) :]
        self._ids = self._ids[self._read :]
        self._read = len(self._ids)
        self._before = self._decode(self._ids)
        return new


def _writes_apart(tokenizer: Any) -> bool:
    """Whether a tokenizer of Hugging Face's writes each complete character the same after any other text."""
    if tokenizer.decoder is None:  # it writes a space between any two tokens
        return False
    decoder = json.loads(tokenizer.decoder.__getstate__())
    kinds = [part["type"] for part in decoder.get("decoders", (decoder,)) if not _strips_start(part)]
    if "Fuse" in kinds[-1:]:  # it would need the whole text
        kinds.pop()
    return bool(kinds) and {*kinds} <= _APART


def _strips_start(decoder: Mapping[str, Any]) -> bool:
    """Whether all it does is to strip the beginning of the whole text."""
    return decoder["type"] == "Strip" and not decoder["stop"]


def _special_tokens(tokenizer: Any) -> Mapping[int, str]:
    """The texts of the special tokens by their ids."""
    ids, texts = tokenizer.all_special_ids, tokenizer.all_special_tokens
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return dict(zip(ids, texts, strict=True)) | {
        token: added_token.content for token, added_token in added.items() if added_token.special
    }


def _byte_letters() -> Mapping[str, int]:
    """The letters that tokenizers of bytes (GPT-2's and most since) have for each byte."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }


_BYTES = _byte_letters()
