"""llama.cpp in this process, as `xllamacpp` binds it: load a model, tokenize, run one completion.

Everything here blocks, and knows nothing of asyncio. Two doors lead into the
same server core. Completions go through `handle_completions`, in process.
Tokenizing exists only on the server's own HTTP port, which is bound to
loopback and locked with a random key.

The GIL is free while llama.cpp works, except while the model loads and while
it is freed: xllamacpp holds it then.
"""

import http.client
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.core.errors import EngineError, missing_extra

PROMPT_BATCH = 256
"""Prompt tokens computed between two looks at who has gone away."""

PROMPT_CACHE_MIB = 512
"""Main memory for the prompts of conversations that no slot holds."""

QUIET = 0
"""The log level at which llama.cpp writes nothing to stderr (its default is 3)."""

TOKENIZE_TIMEOUT = 60.0
"""Seconds. Tokenizing a megabyte takes about one."""


class Props(Struct, frozen=True):
    """What the loaded model's own server says of it."""

    class Defaults(Struct, frozen=True):
        """What is of use of the settings: the context of one slot, in tokens, and the sampling."""

        n_ctx: int
        params: dict[str, Any] = {}

    default_generation_settings: Defaults
    bos_token: str = ""
    eos_token: str = ""


class Piece(Struct, frozen=True):
    """A token of a text, and its bytes, which need not be whole characters."""

    id: int
    raw: bytes


class _Tokens(Struct, frozen=True):
    tokens: list[int]


class _Piece(Struct, frozen=True):
    id: int
    piece: str | list[int]


class _Pieces(Struct, frozen=True):
    tokens: list[_Piece]


class _Text(Struct, frozen=True):
    content: str


class _Models(Struct, frozen=True):
    class Model(Struct, frozen=True):
        class Meta(Struct, frozen=True):
            n_vocab: int

        meta: Meta

    data: tuple[Model]


class LlamaServer:
    """A loaded model with `parallel` slots of `context` tokens each.

    `threads` compute, by default one for each core that this process may use.
    Raises EngineError if the model cannot be loaded. `close` frees it, once no
    `complete` is running.
    """

    def __init__(self, path: Path, *, context: int, parallel: int, threads: int | None = None) -> None:
        xllamacpp = _import()
        self._key = secrets.token_urlsafe(24)
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        for name, value in self._settings(context, parallel).items():
            setattr(params, name, value)
        params.cpuparams.n_threads = threads or _threads()
        try:
            self._server = xllamacpp.Server(params)
        except (RuntimeError, ValueError) as error:
            raise EngineError(
                f"llama.cpp could not load {path.name}. The file may be damaged, of a kind that this version "
                "does not know, or too large for the memory: try a smaller context or fewer parallel slots."
            ) from error
        self.host = self._server.listening_address.rpartition("/")[2]

    def _settings(self, context: int, parallel: int) -> Mapping[str, Any]:
        return {
            # Slots share `n_ctx` in equal parts: each must be able to use the whole context.
            "n_ctx": context * parallel,
            "n_parallel": parallel,
            "n_batch": PROMPT_BATCH,
            "n_ubatch": PROMPT_BATCH,
            "cache_ram_mib": PROMPT_CACHE_MIB,
            "verbosity": QUIET,
            "hostnames": ["127.0.0.1"],
            "port": 0,
            "api_keys": [self._key],
            "cors_origins": "",
            "n_threads_http": 2,
            "ui": False,
            "endpoint_slots": False,
            "sse_ping_interval": -1,
        }

    def props(self) -> Props:
        """The model's special tokens, and the context of a slot."""
        return msgspec.json.decode(self._call("GET", "/props"), type=Props)

    def vocabulary(self) -> int:
        """How many tokens there are: their ids are below this."""
        return msgspec.json.decode(self._call("GET", "/v1/models"), type=_Models).data[0].meta.n_vocab

    def tokenize(self, pieces: Sequence[str]) -> list[int]:
        """The ids of these texts, each tokenized by itself; special tokens become ids, none are added."""
        return self._tokenize({"content": pieces})

    def pieces(self, text: str) -> list[Piece]:
        """The tokens of `text`, as `tokenize` finds them, with their bytes."""
        body = json.dumps({"content": text, "with_pieces": True})
        found = msgspec.json.decode(self._call("POST", "/tokenize", body), type=_Pieces).tokens
        return [Piece(one.id, _bytes(one.piece)) for one in found]

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of these tokens, all of which there must be; special ones are written out."""
        answer = self._call("POST", "/detokenize", json.dumps({"tokens": ids}))
        return msgspec.json.decode(answer, type=_Text).content

    def opening_token(self) -> int | None:
        """The id that this model wants before any text (BOS); None if it wants none."""
        bare, full = self.tokenize(["a"]), self._tokenize({"content": "a", "add_special": True})
        return full[0] if full[1 : 1 + len(bare)] == bare else None

    def _tokenize(self, body: Mapping[str, Any]) -> list[int]:
        return msgspec.json.decode(self._call("POST", "/tokenize", json.dumps(body)), type=_Tokens).tokens

    def _call(self, method: str, path: str, body: str | None = None) -> bytes:
        connection = http.client.HTTPConnection(self.host, timeout=TOKENIZE_TIMEOUT)
        try:
            connection.request(method, path, body, {"Authorization": f"Bearer {self._key}"})
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise EngineError("llama.cpp did not answer.") from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise EngineError("llama.cpp refused to tokenize this.") from RuntimeError(answer)
        return answer

    def complete(self, request: bytes, on_message: Callable[[bytes], bool]) -> None:
        """Run one completion, given as JSON, to its end or until `on_message` returns True.

        `on_message` gets each message as JSON, in this thread; it must not raise.
        Raises ValueError or RuntimeError out of llama.cpp.
        """
        self._server.handle_completions(request, on_message)

    def close(self) -> None:
        """Free the model."""
        del self._server


def _bytes(piece: str | list[int]) -> bytes:
    return piece.encode() if isinstance(piece, str) else bytes(piece)


def _import() -> Any:
    try:
        import xllamacpp  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise EngineError(missing_extra("GGUF models", "llama-cpp")) from error
    return xllamacpp


def _threads() -> int:
    """One thread for each core that this process may use; -1, "you choose", if it may use all.

    llama.cpp's own choice is the number of physical cores.
    """
    if not hasattr(os, "sched_getaffinity"):
        return -1
    allowed = len(os.sched_getaffinity(0))
    return allowed if allowed != os.cpu_count() else -1
