"""Runs a turn: prompt, engine, decoder, events. The same for every API, streamed or not."""

from collections.abc import AsyncGenerator
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.call_filter import CallFilter
from antiphon.core.turn import Calling, Turn
from antiphon.engines.engine import Generation, Prompt
from antiphon.run.check import Check
from antiphon.run.choice import Choice, Guards, ThinkingLimit
from antiphon.run.choices import Batch, join
from antiphon.run.model import Model
from antiphon.run.plan import honoured
from antiphon.run.tape import Tape


class Run(Struct, frozen=True):
    """One turn or several that are under way.

    `batches` yields what each choice said since the last time; the choices of the
    first turn come first. Closing it, or cancelling the task that awaits it,
    stops the engine.
    """

    prompts: tuple[Prompt, ...]
    batches: AsyncGenerator[Batch, None]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(len(prompt.ids) for prompt in self.prompts)


class Recording(Struct, frozen=True):
    """What makes a run repeatable, so that another server can go on with it.

    `dice` make the ids of calls. `prompt` holds the tokens of the prompt as it was rendered then.
    """

    tape: Tape | None = None
    dice: Random | None = None
    prompt: tuple[int, ...] | None = None


async def start(*turns: Turn, model: Model, recording: Recording | None = None) -> Run:
    """Render the prompts and set up the choices; the engine starts with the first batch asked for.

    Only one turn with one choice can be recorded. Raises RequestError for what the model cannot do.
    """
    set_up = [await _set_up(turn, model, recording or Recording()) for turn in turns]
    prompts = tuple(prompt for prompt, _ in set_up)
    return Run(prompts, join([choice for _, choices in set_up for choice in choices]))


async def _set_up(turn: Turn, model: Model, recording: Recording) -> tuple[Prompt, list[Choice]]:
    sampling = honoured(turn.sampling, model.card.capabilities)
    prompt = await model.prompt(turn, recording.prompt)
    held = await model.held(turn, prompt)
    room = model.card.context - len(prompt.ids)
    generation = Generation(
        prompt,
        max_tokens=min(room, sampling.max_tokens or room),
        sampling=sampling,
        preserve=model.markers,
        constraint=held.constraint,
    )
    limit = turn.thinking_limit
    closing = None if limit is None else await model.closing_thought()
    thinking = ThinkingLimit(limit, closing) if limit is not None and closing else None
    return prompt, [
        Choice(
            model.engine,
            _for_choice(generation, index),
            model.decoder(turn, prompt, recording.dice),
            Guards(recording.tape, _filter(turn), thinking, Check(turn, held) if held.loose else None, held),
        )
        for index in range(turn.choices)
    ]


def _filter(turn: Turn) -> CallFilter | None:
    """What keeps calls from the client that it did not ask for; most turns need none."""
    choice = turn.tool_choice
    free = choice.parallel and choice.names is None and choice.calling is not Calling.NONE
    return None if free else CallFilter(choice)


def _for_choice(generation: Generation, index: int) -> Generation:
    """Choices differ: each has its own seed, counted up from the client's."""
    seed = generation.sampling.seed
    if seed is None or index == 0:
        return generation
    return replace(generation, sampling=replace(generation.sampling, seed=seed + index))
