"""Runs a turn: prompt, engine, decoder, events. The same for every API, streamed or not."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.chunks import Chunk, Finish, FinishReason
from antiphon.core.events import Event, hide_calls
from antiphon.core.turn import Turn
from antiphon.decode.decoder import Decoder
from antiphon.engines.engine import Engine, Generation
from antiphon.run.choices import Batch, join
from antiphon.run.model import Model


class Run(Struct, frozen=True):
    """A turn that is under way.

    `batches` yields what each choice said since the last time. Closing it, or
    cancelling the task that awaits it, stops the engine.
    """

    prompt_tokens: int
    batches: AsyncGenerator[Batch, None]


async def start(turn: Turn, model: Model) -> Run:
    """Render the prompt and set up the choices; the engine starts with the first batch asked for."""
    prompt = await model.prompt(turn)
    room = model.card.context - len(prompt.ids)
    generation = Generation(
        prompt,
        max_tokens=min(room, turn.sampling.max_tokens or room),
        sampling=turn.sampling,
        preserve=model.markers,
    )
    choices = [
        _choice(model.engine, _for_choice(generation, index), model.decoder(turn, prompt))
        for index in range(turn.choices)
    ]
    if turn.tools and not turn.calls:
        choices = [_without_calls(choice) for choice in choices]
    return Run(len(prompt.ids), join(choices))


def _for_choice(generation: Generation, index: int) -> Generation:
    """Choices differ: each has its own seed, counted up from the client's."""
    seed = generation.sampling.seed
    if seed is None or index == 0:
        return generation
    return replace(generation, sampling=replace(generation.sampling, seed=seed + index))


async def _choice(
    engine: Engine, generation: Generation, decoder: Decoder
) -> AsyncGenerator[list[Event], None]:
    """The events of one choice, in batches as they come."""
    async with aclosing(engine.generate(generation)) as batches:
        async for batch in batches:
            events, over = _decode(decoder, batch)
            if events:
                yield events
            if over:
                return


def _decode(decoder: Decoder, batch: list[Chunk]) -> tuple[list[Event], bool]:
    """The events of a batch, and whether it was the last."""
    events: list[Event] = []
    for chunk in batch:
        fed = decoder.feed(chunk)
        events = events + fed if events else fed
        finish = chunk.finish or (Finish(FinishReason.STOP) if decoder.stopped else None)
        if finish:
            events += decoder.finish(finish)
            return events, True
    return events, False


async def _without_calls(
    choice: AsyncGenerator[list[Event], None],
) -> AsyncGenerator[list[Event], None]:
    async with aclosing(choice):
        async for events in choice:
            yield hide_calls(events)
