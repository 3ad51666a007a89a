"""Mistral's own tokenizer, by their library mistral-common: for models that come with no other.

Their folders have `tekken.json`, or SentencePiece's `tokenizer.model.v3`. There is no chat template: the
library writes conversations, in the form of the tokenizer's version. It writes tokens; here they become text,
in which special tokens are spelled, so that prompts are tokenized, counted and continued as those of all
models are. `tests/engines/test_mistral_tokenizer.py` compares the tokens of that text with the library's.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from antiphon.core.errors import EngineError, RequestError, install_extra
from antiphon.engines.models import MISTRAL_FILES

_TURNS = {"system", "user", "assistant", "tool"}
"""The roles that the library knows."""


def mistral_file(folder: Path) -> Path | None:
    """The file of Mistral's tokenizer in a folder; None if there is none."""
    return next((file for pattern in MISTRAL_FILES for file in sorted(folder.glob(pattern))), None)


class MistralTokenizer:
    """Texts and tokens of a tokenizer of mistral-common's, its `MistralTokenizer`."""

    def __init__(self, tokenizer: Any) -> None:
        self._requests = tokenizer
        self._tokenizer = tokenizer.instruct_tokenizer.tokenizer
        self.size: int = self._tokenizer.n_words
        self.added: Mapping[str, int] = {
            self._tokenizer.id_to_piece(token): token
            for token in range(self.size)
            if self._tokenizer.is_special(token)
        }
        """The special tokens: their ids by their texts."""
        self.special: Mapping[int, str] = {token: text for text, token in self.added.items()}
        self.bos = self.special[self._tokenizer.bos_id]
        self.eos = self.special[self._tokenizer.eos_id]
        self.by_bytes = hasattr(self._tokenizer, "id_to_byte_piece")
        """Each token has bytes of its own. SentencePiece's depend on the tokens around them."""

    @classmethod
    def from_file(cls, path: Path) -> "MistralTokenizer":
        """Read `tekken.json`, or a file of SentencePiece's. Raises EngineError."""
        try:
            from mistral_common.protocol.instruct.validator import ValidationMode  # noqa: PLC0415 - an extra
            from mistral_common.tokens.tokenizers import mistral  # noqa: PLC0415
        except ImportError as error:
            raise EngineError(install_extra(f"The tokenizer in {path}", "mistral")) from error
        try:
            return cls(mistral.MistralTokenizer.from_file(str(path), mode=ValidationMode.test))
        except Exception as error:  # the library's errors have no common base
            raise EngineError(f"There is no tokenizer that can be read in {path}: {error}.") from error

    def encode(self, text: str) -> list[int]:
        """The tokens of a text without special ones."""
        ids: list[int] = self._tokenizer.encode(text, bos=False, eos=False)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Their text, special ones included; an incomplete character is `\ufffd`."""
        return "".join(self._texts(ids))

    def _texts(self, ids: Iterable[int]) -> Iterator[str]:
        for special, tokens in groupby(ids, key=self.special.__contains__):
            if special:
                yield from map(self.special.__getitem__, tokens)
            else:
                yield self._tokenizer.decode([*tokens])

    def piece(self, token: int) -> str:
        """The name of a token in the vocabulary."""
        name: str = self._tokenizer.id_to_piece(token)
        return name

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token that is not special, if tokens have bytes of their own."""
        from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy  # noqa: PLC0415 - an extra

        raw: bytes = self._tokenizer.id_to_byte_piece(token, SpecialTokenPolicy.KEEP)
        return raw

    def render(self, variables: Mapping[str, Any]) -> str:
        """See `ConversationTemplate`. A conversation that ends with an answer is rendered with its end."""
        from mistral_common.protocol.instruct.request import ChatCompletionRequest  # noqa: PLC0415 - an extra

        messages = [*map(_message, variables["messages"])]
        answered = bool(messages) and messages[-1]["role"] == "assistant"
        effort = variables.get("reasoning_effort")
        try:
            request = ChatCompletionRequest.from_openai(
                messages=messages,
                tools=variables.get("tools"),
                continue_final_message=answered,  # else it has to end with a user's
                **({} if effort is None else {"reasoning_effort": effort}),
            )
            tokens = self._requests.encode_chat_completion(request).tokens
        except Exception as error:  # the library's, pydantic's and assertions
            raise RequestError(_reason(error), param="messages") from error
        return self.decode(tokens) + (self.eos if answered else "")


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a message that the library has. Raises RequestError for a role that it has not."""
    if message["role"] not in _TURNS:
        why = f"Mistral's models have no role '{message['role']}'. Use another role."
        raise RequestError(why, param="messages")
    fields = ("role", "content", "reasoning", "tool_calls", "tool_call_id", "name")
    return {key: message[key] for key in fields if message.get(key) is not None}


def _reason(error: Exception) -> str:
    text = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return f"Mistral's format cannot express this conversation: {text.rstrip('.')}."
