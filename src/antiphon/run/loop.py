"""Runs a turn: prompt, engine, decoder, events. The same for every API, streamed or not."""

from collections.abc import AsyncGenerator

from msgspec import Struct

from antiphon.core.errors import EngineError
from antiphon.core.turn import Turn
from antiphon.engines.engine import Prompt
from antiphon.run.choices import Answer, Batch, join
from antiphon.run.model import Model
from antiphon.run.round import Recording, Round, prepare
from antiphon.run.rounds import Rounds, hosts_tools


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
        """Tokens of all prompts that the answers begin with."""
        return sum(len(prompt.ids) for prompt in self.prompts)


async def start(*turns: Turn, model: Model, recording: Recording | None = None) -> Run:
    """Render the prompts and set up the choices; the engine starts with the first batch asked for.

    Only one turn with one choice can be recorded. Raises RequestError for what the model cannot do,
    and EngineError for what this server cannot go on with.
    """
    recording = recording or Recording()
    rounds = [await prepare(turn, model, recording.prompt) for turn in turns]
    answers = [_answer(each, index, recording) for each in rounds for index in range(each.turn.choices)]
    return Run(tuple(each.prompt for each in rounds), join(answers))


def _answer(first: Round, index: int, recording: Recording) -> Answer:
    """One of the answers to a turn. Most take one generation."""
    if hosts_tools(first.turn):
        return Rounds(first, index, recording)
    if recording.tape is not None and recording.tape.answered:
        raise EngineError("This answer was begun with tools that this server does not run.")
    return first.choice(index, recording)
