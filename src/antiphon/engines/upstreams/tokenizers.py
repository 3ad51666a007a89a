"""Tokenizers for prompts, for models on other servers: implementations of one protocol.

They use the server's own endpoints, the model's tokenizer in this process (Hugging Face's or Mistral's), or,
if neither is available, an estimate.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.conversation_template import ConversationTemplate
from antiphon.core.errors import EngineError, RequestError, install_extra
from antiphon.engines.http_client import HttpClient
from antiphon.engines.mistral_tokenizer import MistralTokenizer, mistral_file
from antiphon.engines.models import response_template, tokenizer_folder
from antiphon.engines.token_cache import TokenCache, added_tokens, encode_fast
from antiphon.engines.upstreams.kind import Answers, ask

MAX_ID = 2**31
"""No vocabulary is larger. Some servers fail on ids beyond it."""

ESTIMATE = 4
"""Bytes of UTF-8 that an estimated token has: about as many as those of real tokenizers have in English."""

SPARE = ESTIMATE - 1
"""How many tokens more than estimated a text may have for each of them: as many as bytes."""

NOTHING: Mapping[str, Any] = {}

USUAL = frozenset({"<s>", "</s>", "<bos>", "<eos>", "<pad>", "<unk>", "<mask>", "[gMASK]", "<sop>", "<eop>"})
"""Special tokens that many models have, for one whose tokenizer is not known."""


class Tokenizer(Protocol):
    """The tokenizer's part of the protocol `Engine`.

    `special` are the texts of special tokens, as far as it knows them. `conversation_template` writes
    conversations, if the tokenizer's library does that: see `ModelCard`; `eos` is then the text of the token
    that ends an answer.
    """

    @property
    def special(self) -> frozenset[str]: ...

    @property
    def conversation_template(self) -> ConversationTemplate | None: ...

    @property
    def eos(self) -> str: ...

    async def tokenize(self, pieces: Sequence[str]) -> list[int]: ...

    async def detokenize(self, ids: Sequence[int]) -> str: ...

    async def opening(self) -> int | None:
        """The id of the token that the model needs before any text (BOS); None if it needs none."""
        ...


def opening_of(bare: Sequence[int], full: Sequence[int]) -> int | None:
    """The token that the tokenizer adds before those of a text, for models that need it."""
    return full[0] if bare and full[1 : 1 + len(bare)] == bare else None


class WithoutTemplate:
    """What most tokenizers have in common: they do not write conversations."""

    conversation_template: ConversationTemplate | None = None
    eos: str = ""


class ServerTokenizer(WithoutTemplate):
    """vLLM's `/tokenize` and `/detokenize`, and servers that differ in some fields."""

    special: frozenset[str] = frozenset()

    def __init__(
        self, client: HttpClient, model: str, *, answer: str = "prompt", body: Mapping[str, Any] = NOTHING
    ) -> None:
        self._client = client
        self._model = model
        self._answer = answer
        self._body = body

    async def tokenize(self, pieces: Sequence[str]) -> list[int]:
        """A prompt has several pieces only where special tokens are spelled in it."""
        return [token for piece in pieces for token in await self._tokens(piece, special=False)]

    async def _tokens(self, text: str, *, special: bool) -> list[int]:
        if not text and not special:
            return []
        body: Mapping[str, Any] = {"model": self._model, "prompt": text, "add_special_tokens": special}
        tokens: list[int] = (await ask(self._client, "/tokenize", body))["tokens"]
        return tokens

    async def detokenize(self, ids: Sequence[int]) -> str:
        check_ids(ids)
        if not ids:
            return ""
        body = {"model": self._model, "tokens": ids, **self._body}
        text: str = (await ask(self._client, "/detokenize", body))[self._answer]
        return text

    async def opening(self) -> int | None:
        bare = await self._tokens("a", special=False)
        if not bare:  # for llama-server, which reads the text from another field
            raise KeyError("tokens")
        return opening_of(bare, await self._tokens("a", special=True))


def local_tokenizer(folder: Path) -> "LocalTokenizer | LocalMistralTokenizer":
    """The tokenizer in a folder. Raises EngineError if there is none that can be read.

    Mistral's own is used where Hugging Face's is not there, or not its chat template.
    """
    path = folder / "tokenizer.json"
    own = mistral_file(folder)
    if own is not None and not (path.is_file() and _in_folder(folder).chat_template):
        return LocalMistralTokenizer(own)
    return LocalTokenizer(path)


class LocalTokenizer(WithoutTemplate):
    """The model's own, from its tokenizer.json. Raises EngineError if it cannot be read."""

    def __init__(self, path: Path) -> None:
        try:
            import tokenizers  # noqa: PLC0415 - an optional extra
        except ImportError as error:
            raise EngineError(install_extra("--tokenizer", "tokenizer")) from error
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # it raises nothing more specific
            raise EngineError(f"There is no tokenizer that can be read in {path}: {error}.") from error
        self._encode = partial(encode_fast, self._tokenizer)
        self.tokenize = TokenCache(self._encode, added_tokens(self._tokenizer)).tokenize
        added = self._tokenizer.get_added_tokens_decoder().values()
        self.special = frozenset(token.content for token in added if token.special)

    async def detokenize(self, ids: Sequence[int]) -> str:
        check_ids(ids)
        for token in ids:
            if self._tokenizer.id_to_token(token) is None:
                raise _no_token(token)
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    async def opening(self) -> int | None:
        return opening_of(self._encode("a"), self._tokenizer.encode("a").ids)


class LocalMistralTokenizer:
    """Mistral's own, which also writes conversations. Raises EngineError if it cannot be read."""

    def __init__(self, path: Path) -> None:
        self._tokenizer = MistralTokenizer.from_file(path)
        self.tokenize = TokenCache(self._tokenizer.encode, self._tokenizer.added).tokenize
        self.special = frozenset(self._tokenizer.added)
        self.conversation_template: ConversationTemplate | None = self._tokenizer
        self.eos = self._tokenizer.eos

    async def detokenize(self, ids: Sequence[int]) -> str:
        for token in ids:
            if not 0 <= token < self._tokenizer.size:
                raise _no_token(token)
        return self._tokenizer.decode(ids)

    async def opening(self) -> int | None:
        return self._tokenizer.added[self._tokenizer.bos]


class EstimatedTokens(WithoutTemplate):
    """Counts every few bytes of text as a token. The ids hold these bytes, so that they can be decoded."""

    special = USUAL

    async def tokenize(self, pieces: Sequence[str]) -> list[int]:
        return [token for piece in pieces for token in _estimated(piece)]

    async def detokenize(self, ids: Sequence[int]) -> str:
        return b"".join(map(_bytes, ids)).decode(errors="replace")

    async def opening(self) -> int | None:
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


class ModelMetadata(Struct, frozen=True):
    """Further metadata of a model: the fields of `ModelCard` with these names."""

    chat_template: str | None = None
    bos: str = ""
    eos: str = ""
    response_template: str | None = None
    special_tokens: frozenset[str] = frozenset()


def model_metadata(answers: Answers, names: Iterable[str], folder: Path | None) -> ModelMetadata:
    """The metadata in the folder, else those of the server, else those of a known model with such a name."""
    if folder is not None:
        return _in_folder(folder)
    if isinstance(info := answers.get("/tokenizer_info"), dict):
        return _of_config(info)
    for name in names:
        known_folder = tokenizer_folder(name, download=False)
        if known_folder is not None:
            return _in_folder(known_folder)
    return ModelMetadata()


def _in_folder(folder: Path) -> ModelMetadata:
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = {}
    path = folder / "chat_template.jinja"
    if path.is_file():
        config["chat_template"] = path.read_text(encoding="utf-8")
    metadata = _of_config(config)
    return replace(metadata, response_template=response_template(path))


def _of_config(config: Mapping[str, Any]) -> ModelMetadata:
    template = config.get("chat_template")
    if isinstance(template, list):  # of several, one is the default
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    added = (config.get("added_tokens_decoder") or {}).values()
    special = (token for token in added if isinstance(token, dict) and token.get("special"))
    return ModelMetadata(
        template,
        _text_of(config.get("bos_token")),
        _text_of(config.get("eos_token")),
        special_tokens=frozenset(map(_text_of, special)),
    )


def _text_of(token: Any) -> str:
    """A special token, which is written as its text, or as an object with it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""
