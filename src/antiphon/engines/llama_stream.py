"""The wire between us and llama.cpp's completions: the request we build, the messages we read.

llama.cpp drops token ids: while its text ends inside a character it sends
nothing, and of the tokens that it then covers with one message it names only the
last. Its count stays right, so a jump of the count shows how many are missing.
Tokenizing the text again recovers them if it gives that many ids with the same
last one; if not, they are reported as `UNKNOWN_ID`: the number of tokens is
always right.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct, field

from antiphon.core.chunks import Chunk, Finish, FinishReason, Token
from antiphon.core.errors import EngineError
from antiphon.engines.engine import Generation

UNKNOWN_ID = -1
"""Stands for a token that llama.cpp counted but did not name."""

RECOVERED_TEXTS = 4096
"""Texts whose ids are remembered: mostly single characters, and few of them recur often."""

_SEED_BITS = 0xFFFF_FFFF  # all ones means "draw a seed" to llama.cpp


def request_of(generation: Generation) -> bytes:
    """The completion request for `generation`, as JSON.

    Stop strings are not sent: the decoder above finds them, and llama.cpp would
    cut text that it must see.
    """
    sampling = generation.sampling
    wanted: dict[str, Any] = {
        "prompt": generation.prompt.ids,
        "n_predict": generation.max_tokens,
        "preserved_tokens": sorted(generation.preserve) or None,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "seed": None if sampling.seed is None else sampling.seed % _SEED_BITS,
        # A prompt that is partly cached is computed in other batches, which rounds otherwise:
        # enough to draw another token. So a seed costs the prompt cache.
        "cache_prompt": None if sampling.seed is None else False,
        "stream": True,
        "return_progress": True,  # a message for each prompt batch: the chance to cancel
        "verbose": True,  # the only way to get ids in process
    }
    return msgspec.json.encode({name: value for name, value in wanted.items() if value is not None})


class _Choice(Struct, frozen=True):
    text: str = ""
    finish_reason: FinishReason | None = None


class _Verbose(Struct, frozen=True):
    tokens: tuple[int, ...] = ()
    tokens_predicted: int = 0


class _Progress(Struct, frozen=True):
    cache: int = 0


class _Usage(Struct, frozen=True):
    completion_tokens: int = 0


class _Error(Struct, frozen=True):
    message: str = ""
    code: int = 500


class _Message(Struct, frozen=True):
    choices: tuple[_Choice, ...] = (_Choice(),)
    verbose: _Verbose = field(default=_Verbose(), name="__verbose")
    usage: _Usage = _Usage()
    prompt_progress: _Progress | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Message).decode


class ChunkReader:
    """Turns the messages of one completion into chunks. `tokenize` is used to recover lost ids."""

    def __init__(self, tokenize: Callable[[str], list[int]]) -> None:
        self._tokenize = tokenize
        self._counted = 0
        self._cached = 0  # not yet told

    def read(self, raw: bytes) -> Chunk | None:
        """The chunk in a message, None if it only reports progress. Raises EngineError if it is an error."""
        message = _decode(raw)
        if message.error is not None:
            raise _failure(message.error)
        if message.prompt_progress is not None:
            self._cached = message.prompt_progress.cache
            return None
        choice = message.choices[0]
        cached, self._cached = self._cached, 0
        if choice.finish_reason is not None:
            return self._last(choice, message.usage, cached)
        return self._next(choice.text, message.verbose, cached)

    def _next(self, text: str, verbose: _Verbose, cached: int) -> Chunk:
        new = verbose.tokens_predicted - self._counted
        self._counted = verbose.tokens_predicted
        if new == len(verbose.tokens) == 1:
            return Chunk(text, (Token(verbose.tokens[0], text),), None, cached)
        # All the text goes to the last token: it is the one that made it whole.
        *begun, last = self._recover(text, new, verbose.tokens)
        return Chunk(text, (*(Token(token, "") for token in begun), Token(last, text)), None, cached)

    def _recover(self, text: str, count: int, known: tuple[int, ...]) -> list[int]:
        """`count` ids, of which the last are `known`."""
        ids = self._tokenize(text)
        if len(ids) == count and tuple(ids[-len(known) :]) == known:
            return ids
        return [UNKNOWN_ID] * (count - len(known)) + list(known)

    def _last(self, choice: _Choice, usage: _Usage, cached: int) -> Chunk:
        assert choice.finish_reason is not None
        lost = usage.completion_tokens - self._counted  # they began a character that never came
        finish = Finish(choice.finish_reason, completion_tokens=usage.completion_tokens)
        tokens = (Token(UNKNOWN_ID, ""),) * lost
        return Chunk(choice.text, tokens, finish, cached)


def remembering(tokenize: Callable[[str], list[int]]) -> Callable[[str], list[int]]:
    """`tokenize` with a memory, for the few texts that need to be tokenized again and again."""
    return lru_cache(RECOVERED_TEXTS)(tokenize)


def _failure(error: _Error) -> EngineError:
    """What a client may be told: llama.cpp's words if it blames the request, else not."""
    blamed = 400 <= error.code < 500
    failure = EngineError(f"The model refused the prompt: {error.message}." if blamed else None)
    failure.__cause__ = RuntimeError(error.message)
    return failure
