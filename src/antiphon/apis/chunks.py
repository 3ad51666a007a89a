"""How the chunks of a stream are written, for OpenAI's two older APIs.

What is said comes in pieces, one or more for each token. In a plain stream nothing
changes from piece to piece but the text: a chunk with a mark in the place of the text
is encoded once and split at the mark, and the pieces are joined from bytes. Where
a client wants more to change (log probabilities, ids, usage, padding), each
chunk is encoded whole. Both kinds are made of the same wire types, and cannot differ.

A `Form` knows the wire types of one API; a part is what a chunk adds to one choice.
"""

import secrets
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.apis.body import CompletionUsage, total
from antiphon.apis.envelope import PromptView, UsageReports, View
from antiphon.core.chunks import Token
from antiphon.core.events import Event, ReasoningDelta, Usage

Tokens = tuple[Token, ...]
Piece = Callable[[str, Tokens], bytes]
"""Text, and the tokens behind it → the chunk that says it."""
Usages = CompletionUsage | UnsetType | None
"""What a chunk says of usage: nothing, that there is none yet, or what there is."""

PADDED_LENGTH = 32
"""Pieces of a padded stream are multiples of so many bytes longer than an empty one."""

_MARK = secrets.token_hex(16)  # in no name that a client or a server may choose
_ENCODED_MARK = msgspec.json.encode(_MARK)
_encode = msgspec.json.Encoder().encode
_UNUSED = Usage()


class Saying(Enum):
    """What a piece is part of."""

    ECHO = auto()
    """Text that the client wrote."""
    TEXT = auto()
    THOUGHT = auto()
    CALL = auto()


class Part(Protocol):
    """What all parts have."""

    index: int
    token_ids: list[int] | UnsetType


_WITH_LOGPROBS = (Saying.TEXT, Saying.ECHO)

P = TypeVar("P", bound=Part)
P_contra = TypeVar("P_contra", bound=Part, contravariant=True)


class Form(Protocol[P_contra]):
    """The wire types of an API's stream."""

    def chunk(self, parts: tuple[P_contra, ...], usage: Usages, prompt: PromptView | None) -> Any:
        """A chunk, which has `obfuscation`; the first also tells of the prompt."""
        ...

    def add_logprobs(self, part: P_contra, tokens: Tokens) -> None:
        """Let the part of a text tell of its tokens."""
        ...


class Chunks(Generic[P]):
    """Writes the chunks of a plain stream. `prompt_tokens` are those of all prompts."""

    def __init__(self, form: Form[P], view: View, prompt_tokens: int) -> None:
        self._form = form
        self._view = view
        self._prompt_tokens = prompt_tokens
        self._usage: Usages = UNSET if view.usage is UsageReports.NONE else None

    def piece(self, saying: Saying, part_of: Callable[[str], P]) -> Piece:
        """Makes the pieces of one text of a choice."""
        frame = self.single(part_of(_MARK)).split(_ENCODED_MARK)
        return lambda text, tokens: _encode(text).join(frame)

    def single(self, part: P, prompt: PromptView | None = None) -> bytes:
        """A chunk that is no piece."""
        return _encode(self._form.chunk((part,), self._usage, prompt))

    def usage(self, usages: Iterable[Usage]) -> list[bytes]:
        """The chunk behind the last choice, if it was asked for."""
        if self._view.usage is UsageReports.NONE:
            return []
        return [_encode(self._form.chunk((), total(self._prompt_tokens, usages), None))]

    def note(self, choice: int, event: Event) -> None:
        """The model wrote something that no chunk shows."""

    def settle(self, choice: int, usage: Usage) -> None:
        """A choice is over, and this is what it used."""


class DetailedChunks(Chunks[P]):
    """Writes chunks that tell of tokens, or hide how long they are."""

    def __init__(self, form: Form[P], view: View, prompt_tokens: int) -> None:
        super().__init__(form, view, prompt_tokens)
        self._ids: dict[int, list[int]] = {}  # of each choice, those that no chunk has told yet
        self._used: dict[int, Usage] = {}  # by each choice so far

    def piece(self, saying: Saying, part_of: Callable[[str], P]) -> Piece:
        """See `Chunks`."""

        def write(text: str, tokens: Tokens) -> bytes:
            part = part_of(text)
            if saying is not Saying.ECHO:
                self._count(part.index, tokens, thoughts=len(tokens) if saying is Saying.THOUGHT else 0)
                self._tell(part.index, tokens)
            if saying in _WITH_LOGPROBS and self._view.logprobs is not None:
                self._form.add_logprobs(part, tokens)
            return self._write(part, padding=_padding(text) if self._view.padded else UNSET)

        return write

    def single(self, part: P, prompt: PromptView | None = None) -> bytes:
        """See `Chunks`."""
        return self._write(part, prompt)

    def note(self, choice: int, event: Event) -> None:
        """See `Chunks`. Thoughts come here only if they are hidden: then their tokens are, too."""
        hidden = isinstance(event, ReasoningDelta)
        self._count(choice, event.tokens, thoughts=len(event.tokens) if hidden else 0)
        if not hidden:
            self._tell(choice, event.tokens)

    def settle(self, choice: int, usage: Usage) -> None:
        """See `Chunks`."""
        self._used[choice] = usage

    def _count(self, choice: int, tokens: Tokens, thoughts: int) -> None:
        used = self._used.get(choice, _UNUSED)
        self._used[choice] = Usage(used.completion_tokens + len(tokens), used.reasoning_tokens + thoughts)

    def _tell(self, choice: int, tokens: Tokens) -> None:
        if self._view.token_ids:
            self._ids.setdefault(choice, []).extend(token.id for token in tokens)

    def _write(self, part: P, prompt: PromptView | None = None, padding: str | UnsetType = UNSET) -> bytes:
        if self._view.token_ids:
            part.token_ids = self._ids.pop(part.index, [])
        usage = self._usage
        if self._view.usage is UsageReports.EACH:
            usage = total(self._prompt_tokens, self._used.values())
        chunk = self._form.chunk((part,), usage, prompt)
        chunk.obfuscation = padding
        return _encode(chunk)


def chunks_for(form: Form[P], view: View, prompt_tokens: int) -> Chunks[P]:
    """The plainest writer that shows all that the client wants to see."""
    detailed = view.logprobs is not None or view.token_ids or view.padded
    kind = DetailedChunks if detailed or view.usage is UsageReports.EACH else Chunks
    return kind(form, view, prompt_tokens)


def _padding(text: str) -> str:
    """Random digits that bring a piece to one of few lengths."""
    return secrets.token_hex(PADDED_LENGTH // 2)[: -len(_encode(text)) % PADDED_LENGTH]
