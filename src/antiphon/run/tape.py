"""What happened in one answer, as it was recorded: to play it again, and to go on after it.

A generation that was interrupted continues from what it had written. The same
happens whether a server died in the middle of an answer, or a thought was cut
short on purpose: what is on the tape is played to a new decoder, and the
engine goes on after prompt and tape.

An answer that calls the server's tools takes several generations. Between the
chunks of two of them stand the outcomes of the calls, and the next prompt.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.chunks import Chunk, Finish, FinishReason
from antiphon.core.constraint import Constraint
from antiphon.core.outcome import Outcome
from antiphon.core.turn import Sampling
from antiphon.engines.engine import Engine, Generation, Prompt
from antiphon.run.plan import Held, held_after

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Chunk | dict[str, Any]]).decode


class ToolAnswer(Struct, frozen=True, tag="answer"):
    """A call of the last generation was answered: the next one in their order."""

    outcome: Outcome


class NextPrompt(Struct, frozen=True, tag="prompt"):
    """Another generation begins, with this prompt."""

    ids: tuple[int, ...]


Entry = Chunk | ToolAnswer | NextPrompt


class Tape:
    """Plays what was recorded before, then records what follows.

    `chunks` are those of the generation that is under way.
    """

    def __init__(self, played: Iterable[Entry] = ()) -> None:
        self._entries = list(played)
        self._stored = len(self._entries)
        self._later = deque(self._entries)  # recorded before, and not played yet
        self.chunks = self._next_chunks()

    def _next_chunks(self) -> list[Chunk]:
        chunks = []
        while self._later and isinstance(self._later[0], Chunk):
            chunks.append(self._later.popleft())
        return chunks  # type: ignore[return-value]

    def new(self) -> bytes:
        """The entries since this was last called, to be stored.

        Tokens at the end that have no text yet wait: they may have begun a character, which an engine
        that goes on after them cannot end.
        """
        end = len(self._entries)
        while end > self._stored and _may_be_half(self._entries[end - 1]):
            end -= 1
        fresh, self._stored = self._entries[self._stored : end], end
        return _encode(fresh) if fresh else b""

    @property
    def answered(self) -> bool:
        """Calls of the server's tools were answered."""
        return any(isinstance(entry, ToolAnswer) for entry in self._entries)

    def play_answer(self) -> Outcome | None:
        """The outcome of the next call, if it was recorded."""
        entry = self._later.popleft() if self._later else None
        assert entry is None or isinstance(entry, ToolAnswer)
        return None if entry is None else entry.outcome

    def play_prompt(self) -> tuple[int, ...] | None:
        """The prompt of the next generation, if it was recorded: that generation is under way now."""
        entry = self._later.popleft() if self._later else None
        assert entry is None or isinstance(entry, NextPrompt)
        self.chunks = self._next_chunks()
        return None if entry is None else entry.ids

    def write(self, *entries: Entry) -> None:
        """Record what happens. Chunks may be the engine's, or what the model shall believe that it wrote."""
        self._entries += entries
        self.chunks += [entry for entry in entries if isinstance(entry, Chunk)]

    async def go_on(
        self, engine: Engine, generation: Generation, held: Held
    ) -> AsyncGenerator[list[Chunk], None]:
        """Generate what comes after the chunks, and record it. `held` is what the generation is held to."""
        batches = self._after(engine, generation, held) if self.chunks else engine.generate(generation)
        async with aclosing(batches):
            async for batch in batches:
                self.write(*batch)
                yield batch

    async def _after(
        self, engine: Engine, generation: Generation, held: Held
    ) -> AsyncGenerator[list[Chunk], None]:
        """What the engine says after the tape, counted as part of the whole answer."""
        text, ids = await self._written(engine)
        rest = Generation(
            Prompt(generation.prompt.text + text, generation.prompt.ids + ids),
            max_tokens=generation.max_tokens - len(ids),
            sampling=_sampling_after(generation.sampling, len(ids)),
            preserve=generation.preserve,
            constraint=await asyncio.to_thread(_constraint_after, held, text),
            begun=text,
        )
        if rest.max_tokens < 1:
            yield [Chunk("", finish=Finish(FinishReason.LENGTH))]
            return
        async with aclosing(engine.generate(rest)) as batches:
            async for batch in batches:
                yield [_counted(chunk, len(ids)) for chunk in batch]

    async def _written(self, engine: Engine) -> tuple[str, tuple[int, ...]]:
        """The text on the tape, and its tokens."""
        text = "".join(chunk.text for chunk in self.chunks)
        tokens = [token for chunk in self.chunks for token in chunk.tokens]
        ids = tuple(token.id for token in tokens)
        if min(ids, default=0) < 0 or "".join(token.text for token in tokens) != text:
            ids = tuple(await engine.tokenize(text))  # the engine did not name them all
        return text, ids


def read_entries(stored: Iterable[bytes]) -> list[Entry]:
    """The entries in what `Tape.new` gave, in order."""
    return [_read(entry) for piece in stored if piece for entry in _decode(piece)]


def _read(entry: Chunk | dict[str, Any]) -> Entry:
    """Chunks are arrays, what stands between them are objects."""
    return entry if isinstance(entry, Chunk) else msgspec.convert(entry, ToolAnswer | NextPrompt)


def _may_be_half(entry: Entry) -> bool:
    return isinstance(entry, Chunk) and not (entry.text or entry.finish)


def _constraint_after(held: Held, written: str) -> Constraint | None:
    """What holds the engine for the rest of an answer; nothing, if what is written broke the rules."""
    rest = held_after(held, written)
    return None if rest is None else rest.constraint


def _sampling_after(sampling: Sampling, written: int) -> Sampling:
    least = sampling.min_tokens
    return sampling if not least else replace(sampling, min_tokens=max(0, least - written))


def _counted(chunk: Chunk, before: int) -> Chunk:
    """The chunk as part of an answer that had `before` tokens already.

    What the engine had of the prompt was told by its first chunk; now the tape is part of the prompt.
    """
    finish = chunk.finish
    if finish is not None and finish.completion_tokens is not None:
        finish = replace(finish, completion_tokens=finish.completion_tokens + before)
    elif not chunk.cached_tokens:
        return chunk
    return replace(chunk, finish=finish, cached_tokens=0)
