"""The source of the answers of a model: one turn or several, each with one choice or several.

Prompts are rendered when the answer runs. Each choice is one generation, or a tool loop if the model may
call server tools.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from antiphon.core.accumulator import Accumulator
from antiphon.core.errors import EngineError, RequestError, naming, public_error
from antiphon.core.events import Event, Finished
from antiphon.core.observation import observed
from antiphon.core.stream_record import STREAM_RECORD
from antiphon.core.turn import Turn
from antiphon.engines.engine import BeamSearcher, Prompt, PromptScorer
from antiphon.run.drive import Output
from antiphon.run.endings import ClientLeftError
from antiphon.run.generation import GenerationRun
from antiphon.run.model import TOKEN_BYTES, Model, Prepared
from antiphon.run.replay import ReplayContext, ReplayLog
from antiphon.run.resumed import StreamLog
from antiphon.run.tool_loop import EarlierCalls, ToolLoop, hosts_tools
from antiphon.run.warming import Warming

T = TypeVar("T")

Choice = GenerationRun | ToolLoop | Warming
"""The parts that generate one choice of an answer."""


class AnswerSource:
    """Answers turns; the choices of the first turn come first. See `Source`.

    Only an answer with one turn and one choice can be recorded. `run` raises RequestError if the model does
    not support the request, and EngineError if this server cannot continue the answer.
    """

    def __init__(
        self,
        turns: Sequence[Turn],
        model: Model,
        context: ReplayContext = ReplayContext(),  # noqa: B008 (frozen)
    ) -> None:
        self._turns = turns
        self._model = model
        self._context = context
        self._choices: Sequence[Choice | EarlierCalls] = []
        self._steered = False

    async def run(self, output: Output) -> None:
        """If a choice fails, the others continue; it ends at once if the answer has begun.

        If all fail, the first failure is raised. So is RateLimitError, if a key has used up its tokens.
        """
        try:
            # Of the key's account, a place for one answer; then the model, which may have to be loaded.
            account = observed().account
            await account.secure(place=True)
            with account:
                async with self._model.in_use():
                    await self._run(output)
        except RequestError as error:
            error.rename(self._turns[0].parameters)
            raise

    async def _run(self, output: Output) -> None:
        if self._turns[0].approved or self._turns[0].unfinished:
            await self._run_earlier(output)
            return
        choices = 0
        for turn in self._turns:
            choices += turn.choices
        if choices > 1 and self._turns[0].sampling.kv_transfer_params.get("do_remote_decode"):
            message = "With 'do_remote_decode' there is one answer: it says where its prompt is. Ask for one."
            raise RequestError(message, param="kv_transfer_params")
        prepared, prompts = [], []
        for turn in self._turns:
            with naming(turn.parameters):
                prepared_turn = await self._model.prepare(turn, self._context.prompt, choices)
            prepared.append(prepared_turn)
            prompts.append(prepared_turn.prompt)
        await _reserve(prepared)  # before the first event, so that a key over its limit gets a 429
        if prepared[0].request.sampling.prompt_logprobs is None:
            output.set_prompts(prompts)
        else:
            prompts = await _results_of(prepared, partial(_scored, choices=choices))
            await asyncio.to_thread(output.set_prompts, prompts)  # much is made of them
        if prepared[0].request.sampling.beam_width is None:
            choosing = [
                _choice(prepared_turn, index, self._recorded(prepared_turn, number))
                for number, (prepared_turn, index) in enumerate(
                    (turn, index) for turn in prepared for index in range(turn.turn.choices)
                )
            ]
        else:
            choosing = [
                choice for turn_choices in await _results_of(prepared, _searched) for choice in turn_choices
            ]
        self._begin(choosing)
        if len(choosing) == 1:
            await choosing[0].run(output, 0)
        else:
            await self._run_several(choosing, output)

    def _recorded(self, prepared: Prepared, choice: int) -> ReplayContext:
        """The context of a choice, which is recorded if its stream is, and chunks say all of it."""
        context, record = self._context, STREAM_RECORD.get()
        if record is None:
            return context
        turn = prepared.turn
        several = choice or turn.choices > 1 or turn.in_programs  # calls are counted in all of an answer
        unknown = context.log or turn.warms or prepared.request.conversation is not None
        if unknown or (several and hosts_tools(turn)):
            record.give_up()
            return context
        rng = context.rng or record.random_of(choice)
        return replace(context, log=StreamLog(record, choice), rng=rng, calls_begun=record.calls_begun)

    def _begin(self, choices: Sequence[Choice | EarlierCalls]) -> None:
        """These choices are generated now."""
        self._choices = choices
        if self._steered:
            self.steer()

    def steer(self) -> None:
        """End the answer as soon as a conversation can go on from there: its client has sent more input."""
        self._steered = True
        for choice in self._choices:
            choice.steer()

    async def _run_several(self, choosing: Sequence[Choice], output: Output) -> None:
        tasks = [asyncio.create_task(choice.run(output, index)) for index, choice in enumerate(choosing)]
        failures: dict[int, Exception] = {}
        try:
            async for index, failure in _failures(tasks):
                failures[index] = failure
                # Before the first event nothing is sent: if all fail, that can still be the HTTP status.
                if output.has_begun:
                    self._end_failed(output, failures)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if len(failures) == len(tasks):
            raise failures[0]
        self._end_failed(output, failures)

    async def _run_earlier(self, output: Output) -> None:
        """Run the calls that the client has approved, and programs, then answer.

        There is one turn, with one choice.
        """
        calls = EarlierCalls(self._turns[0], self._model, self._context)
        self._begin([calls])
        turn = await calls.run(output, 0)
        if turn is None:
            return
        prepared = await self._model.prepare(turn, self._context.prompt)
        output.set_prompts([prepared.prompt])
        choice = _choice(prepared, 0, self._context, calls.items)
        self._begin([choice])
        await choice.run(output, 0)

    def _end_failed(self, output: Output, failures: Mapping[int, Exception]) -> None:
        """End the choices that failed, if that was not done."""
        for index, failure in failures.items():
            if events := self._choices[index].abandon():
                output.push(index, _failed(events, failure))

    def abandon(self) -> Iterable[tuple[int, list[Event]]]:
        for index, choice in enumerate(self._choices):
            if events := choice.abandon():
                yield index, events


async def _results_of(
    prepared: Sequence[Prepared], work: Callable[[Prepared], Coroutine[Any, Any, T]]
) -> list[T]:
    """The result of each of them. A failure ends them all."""
    if len(prepared) == 1:
        return [await work(prepared[0])]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work(prepared_turn)) for prepared_turn in prepared]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def _scored(prepared: Prepared, choices: int) -> Prompt:
    """The prompt, with the log probabilities of its tokens. Each choice may show them."""
    alternatives = prepared.request.sampling.prompt_logprobs or 0
    size = len(prepared.prompt.ids) * choices * TOKEN_BYTES * (2 + alternatives)
    if size > prepared.model.limits.answer_bytes:
        what = f"The log probabilities of this prompt may have {size} bytes"
        prepared.model.limits.refuse("answer_bytes", "prompt_logprobs", what)
    assert isinstance(prepared.engine, PromptScorer)
    return replace(prepared.prompt, tokens=await prepared.engine.score_prompt(prepared.request))


async def _searched(prepared: Prepared) -> list[Choice]:
    """The results of a beam search for a turn, as choices that replay them."""
    _check_searched(prepared)
    assert isinstance(prepared.engine, BeamSearcher)
    beams = await prepared.engine.search(prepared.request)
    return [_choice(prepared, index, ReplayContext(ReplayLog(beam))) for index, beam in enumerate(beams)]


def _check_searched(prepared: Prepared) -> None:
    """Refuse features that a beam search does not support. Raises RequestError."""
    turn = prepared.turn
    for feature, requested in (
        ("tools or structured output", prepared.request.constraint is not None),
        ("tools that the server runs", hosts_tools(turn)),
        ("a limit of reasoning", turn.reasoning_limit is not None),
        ("another number of answers than beams", turn.choices != turn.sampling.beam_width),
    ):
        if requested:
            message = f"A beam search cannot be combined with {feature}. Leave one of them out."
            raise RequestError(message, param="use_beam_search")


async def _reserve(prepared: Iterable[Prepared]) -> None:
    """Reserve the tokens of prompts and answers, as far as their number is known."""
    observation, tokens = observed(), 0
    for prepared_turn in prepared:
        tokens += (
            len(prepared_turn.prompt.ids)
            + (prepared_turn.turn.sampling.max_tokens or 0) * prepared_turn.turn.choices
        )
    await observation.account.secure(tokens=tokens)
    observation.reserved += observation.account.reserve(tokens)


def _choice(
    prepared: Prepared, index: int, context: ReplayContext, opening: Accumulator | None = None
) -> Choice:
    """The part that generates one of the answers to a turn: usually a single generation.

    `opening` has the items that the answer has already.
    """
    if prepared.turn.warms:
        return Warming(prepared)
    items = opening or Accumulator()
    if hosts_tools(prepared.turn):
        return ToolLoop(prepared, index, context, items)
    if opening is None and context.log is not None and context.log.has_results:
        raise EngineError(
            "This answer was begun with tools that this server does not run. Start it with the same tools."
        )
    return prepared.generation(index, context, items)


async def _failures(choices: Sequence[asyncio.Task[None]]) -> AsyncIterator[tuple[int, Exception]]:
    """Wait for all choices: those that fail, when they do. Raises ClientLeftError, which is that of all."""
    pending = set(choices)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_EXCEPTION)
        for choice in done:
            failure = choice.exception()
            if isinstance(failure, ClientLeftError):
                raise failure
            if isinstance(failure, Exception):
                yield choices.index(choice), failure


def _failed(events: list[Event], failure: Exception) -> list[Event]:
    """The last events of a choice, with the failure."""
    *before, end = events
    assert isinstance(end, Finished)
    return [*before, replace(end, error=public_error(failure).message)]
