"""Writes the chunks of a stream, for OpenAI's two older APIs.

Text is sent in pieces, one or more for each token. In a plain stream only the text changes from piece to
piece: a chunk with a mark in its place is encoded once and split at the mark, and the pieces are joined from
bytes. If other fields change as well (log probabilities, ids, usage, padding), each chunk is encoded
separately. Both ways use the same wire types, so they cannot differ.

A `ChunkFactory` makes the wire types of one API; a part is what a chunk adds to one choice.
"""

import secrets
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.apis.completion_body import CompletionUsage, total
from antiphon.apis.envelope import Envelope, PresentationOptions, RenderedPrompt, UsageReports
from antiphon.apis.framing import untyped_event
from antiphon.core.chunks import Token
from antiphon.core.events import Event, ReasoningDelta, Usage
from antiphon.core.plain_tokens import TextFrame

Tokens = tuple[Token, ...]
Piece = Callable[[str, Tokens], bytes]
"""Text and its tokens → the chunk."""
Usages = CompletionUsage | UnsetType | None
"""The usage in a chunk: absent, null before it is known, or its value."""

PADDED_LENGTH = 32
"""Pieces of a padded stream are longer than an empty one by a multiple of this number of bytes."""

_encode = msgspec.json.Encoder().encode
_UNUSED = Usage()


def _event(chunk: Any) -> bytes:
    return untyped_event(_encode(chunk))


class DeltaKind(Enum):
    """The field that a piece belongs to."""

    TEXT = auto()
    REASONING = auto()
    CALL = auto()


class Part(Protocol):
    """The common fields of parts."""

    index: int
    token_ids: list[int] | UnsetType


P = TypeVar("P", bound=Part)
P_contra = TypeVar("P_contra", bound=Part, contravariant=True)


class ChunkFactory(Protocol[P_contra]):
    """The wire types of an API's stream."""

    def chunk(self, parts: tuple[P_contra, ...], usage: Usages, prompt: RenderedPrompt | None) -> Any:
        """A chunk, which has `obfuscation`; the first also shows the prompt."""
        ...

    def add_logprobs(self, part: P_contra, tokens: Tokens) -> None:
        """Add the log probabilities of these tokens to the part of a text."""
        ...


class Chunks(Generic[P]):
    """Writes the chunks of a plain stream, whose prompts have this number of `choices` each."""

    def __init__(
        self, factory: ChunkFactory[P], presentation: PresentationOptions, envelope: Envelope, choices: int
    ) -> None:
        self._factory = factory
        self._presentation = presentation
        self._envelope = envelope
        self._choices = choices
        self._usage: Usages = UNSET if presentation.usage is UsageReports.NONE else None

    @property
    def no_usage(self) -> Usages:
        """The usage of a chunk before the last: absent, or null if it was requested."""
        return self._usage

    def piece(self, kind: DeltaKind, part_of: Callable[[str], P]) -> Piece:
        """A function that makes the pieces of one text of a choice."""
        return TextFrame(lambda text: self.single(part_of(text)))

    def single(self, part: P, prompt: RenderedPrompt | None = None) -> bytes:
        """A single chunk, which is not a piece."""
        return _event(self._factory.chunk((part,), self._usage, prompt))

    def echo(self, part: P, text: str) -> bytes:
        """The chunk with a text that the client wrote."""
        return self.single(part)

    def usage(self, usages: Iterable[Usage]) -> list[bytes]:
        """The chunk after the last choice, if it was requested."""
        if self._presentation.usage is UsageReports.NONE:
            return []
        return [_event(self._factory.chunk((), total(self._envelope.prompt_tokens, usages), None))]

    def note(self, choice: int, event: Event) -> None:
        """The model wrote something that no chunk shows."""

    def settle(self, choice: int, usage: Usage) -> None:
        """Count the usage of a choice that has ended."""


class DetailedChunks(Chunks[P]):
    """Writes chunks that show tokens or usage, or hide how long their text is."""

    def __init__(
        self, factory: ChunkFactory[P], presentation: PresentationOptions, envelope: Envelope, choices: int
    ) -> None:
        super().__init__(factory, presentation, envelope, choices)
        self._unshown: dict[int, list[Token]] = {}  # of each choice, those that no chunk has shown yet
        self._used: dict[int, Usage] = {}  # by each choice so far

    def piece(self, kind: DeltaKind, part_of: Callable[[str], P]) -> Piece:
        def write(text: str, tokens: Tokens) -> bytes:
            part = part_of(text)
            self._count(part.index, tokens, reasoning=len(tokens) if kind is DeltaKind.REASONING else 0)
            if self._presentation.token_ids:
                self._collect(part.index, tokens)
            elif kind is DeltaKind.TEXT and self._presentation.logprobs is not None:
                self._factory.add_logprobs(part, tokens)
            return self.echo(part, text)

        return write

    def echo(self, part: P, text: str) -> bytes:
        return self._write(part, padding=_padding(text) if self._presentation.padded else UNSET)

    def single(self, part: P, prompt: RenderedPrompt | None = None) -> bytes:
        return self._write(part, prompt)

    def note(self, choice: int, event: Event) -> None:
        """Reasoning is passed here only if it is hidden: then its tokens are hidden, too."""
        hidden = isinstance(event, ReasoningDelta)
        self._count(choice, event.tokens, reasoning=len(event.tokens) if hidden else 0)
        if self._presentation.token_ids and not hidden:
            self._collect(choice, event.tokens)

    def settle(self, choice: int, usage: Usage) -> None:
        self._used[choice] = usage

    def _count(self, choice: int, tokens: Tokens, reasoning: int) -> None:
        used = self._used.get(choice, _UNUSED)
        self._used[choice] = Usage(used.completion_tokens + len(tokens), used.reasoning_tokens + reasoning)

    def _collect(self, choice: int, tokens: Tokens) -> None:
        """The next chunk of the choice shows the ids of these tokens, and all that is known of each."""
        self._unshown.setdefault(choice, []).extend(tokens)

    def _write(
        self, part: P, prompt: RenderedPrompt | None = None, padding: str | UnsetType = UNSET
    ) -> bytes:
        if self._presentation.token_ids:
            tokens = (*self._unshown.pop(part.index, ()),)
            part.token_ids = [token.id for token in tokens]
            if tokens and self._presentation.logprobs is not None:
                self._factory.add_logprobs(part, tokens)
        usage = self._usage
        if self._presentation.usage is UsageReports.EACH:
            usage = self._usage_of(part.index)
        chunk = self._factory.chunk((part,), usage, prompt)
        chunk.obfuscation = padding
        return _event(chunk)

    def _usage_of(self, choice: int) -> CompletionUsage:
        """The usage of a choice so far, with its prompt, as vLLM reports it: the last chunk has the total."""
        prompts = self._envelope.prompts
        prompt = prompts[choice // self._choices].ids if prompts else ()
        return total(len(prompt), [self._used.get(choice, _UNUSED)])


def chunks_for(
    factory: ChunkFactory[P], presentation: PresentationOptions, envelope: Envelope, choices: int
) -> Chunks[P]:
    """The simplest writer that shows all that the client has requested."""
    detailed = presentation.logprobs is not None or presentation.token_ids or presentation.padded
    kind = DetailedChunks if detailed or presentation.usage is UsageReports.EACH else Chunks
    return kind(factory, presentation, envelope, choices)


def _padding(text: str) -> str:
    """Random digits that pad a piece to one of few lengths."""
    return secrets.token_hex(PADDED_LENGTH // 2)[: -len(_encode(text)) % PADDED_LENGTH]
