"""The chunks of one generation, as they were recorded: to play them again, and to go on after them.

A generation that was interrupted continues from what it had written. The same
happens whether a server died in the middle of an answer, or a thought was cut
short on purpose: what is on the tape is played to a new decoder, and the
engine goes on after prompt and tape.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

import msgspec
from msgspec.structs import replace

from antiphon.constrain import gbnf, structural_tag
from antiphon.constrain.matcher import Matcher
from antiphon.core.chunks import Chunk, Finish, FinishReason
from antiphon.core.constraint import Constraint, Gbnf
from antiphon.core.turn import Sampling
from antiphon.engines.engine import Engine, Generation, Prompt
from antiphon.run.plan import Held

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Chunk]).decode


class Tape:
    """Plays what was recorded before, then records what follows."""

    def __init__(self, played: Iterable[Chunk] = ()) -> None:
        self.chunks = list(played)
        self._stored = len(self.chunks)

    def new(self) -> bytes:
        """The chunks since this was last called, to be stored.

        Tokens at the end that have no text yet wait: they may have begun a character, which an engine
        that goes on after them cannot end.
        """
        end = len(self.chunks)
        while end > self._stored and not (self.chunks[end - 1].text or self.chunks[end - 1].finish):
            end -= 1
        fresh, self._stored = self.chunks[self._stored : end], end
        return _encode(fresh) if fresh else b""

    async def go_on(
        self, engine: Engine, generation: Generation, held: Held
    ) -> AsyncGenerator[list[Chunk], None]:
        """Generate what comes after the tape, and record it. `held` is what the whole answer is held to."""
        batches = self._after(engine, generation, held) if self.chunks else engine.generate(generation)
        async with aclosing(batches):
            async for batch in batches:
                self.chunks += batch
                yield batch

    def write(self, chunk: Chunk) -> None:
        """Record what the model did not write, but shall believe that it did."""
        self.chunks.append(chunk)

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


def read_chunks(stored: Iterable[bytes]) -> list[Chunk]:
    """The chunks in what `Tape.new` gave, in order."""
    return [chunk for piece in stored if piece for chunk in _decode(piece)]


def _constraint_after(held: Held, written: str) -> Constraint | None:
    """What holds the engine for the rest of an answer; nothing, if what is written broke the rules."""
    language, triggers = held.enforced.language, held.enforced.triggers
    if held.constraint is None or language is None:
        return held.constraint
    begins = [at for trigger in triggers if (at := written.find(trigger)) >= 0]
    if triggers and not begins:
        return held.constraint
    matcher = Matcher(language)
    if not matcher.feed(written[min(begins, default=0) :]):
        return None
    write = gbnf.write if isinstance(held.constraint, Gbnf) else structural_tag.write
    return write(matcher.residual())


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
