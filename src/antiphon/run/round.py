"""One generation of an answer: what it is made from, the same for all choices of a turn."""

from random import Random

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.call_filter import CallFilter
from antiphon.core.turn import Calling, Turn
from antiphon.engines.engine import Generation, Prompt
from antiphon.run.check import Check
from antiphon.run.choice import Choice, Guards, ThinkingLimit
from antiphon.run.model import Model
from antiphon.run.plan import Held, honoured
from antiphon.run.tape import Tape


class Recording(Struct, frozen=True):
    """What makes a run repeatable, so that another server can go on with it.

    `dice` make the ids of calls. `prompt` holds the tokens of the prompt as it was rendered then.
    """

    tape: Tape | None = None
    dice: Random | None = None
    prompt: tuple[int, ...] | None = None


class Round(Struct, frozen=True):
    """A generation that can begin."""

    turn: Turn
    model: Model
    prompt: Prompt
    generation: Generation
    held: Held
    thinking: ThinkingLimit | None

    def choice(self, index: int, recording: Recording) -> Choice:
        """The generation for one of the choices."""
        check = Check(self.turn, self.held) if self.held.loose else None
        return Choice(
            self.model.engine,
            _for_choice(self.generation, index),
            self.model.decoder(self.turn, self.prompt, recording.dice),
            Guards(recording.tape, _filter(self.turn), self.thinking, check, self.held),
        )


async def prepare(turn: Turn, model: Model, ids: tuple[int, ...] | None = None) -> Round:
    """Render the prompt, which is `ids` if it was rendered before. Raises RequestError."""
    sampling = honoured(turn.sampling, model.card.capabilities)
    prompt = await model.prompt(turn, ids)
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
    return Round(turn, model, prompt, generation, held, thinking)


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
