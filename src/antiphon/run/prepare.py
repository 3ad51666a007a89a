"""One generation of an answer: what it is made from, the same for all choices of a turn."""

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.accumulator import Accumulator
from antiphon.core.call_filter import CallFilter
from antiphon.core.turn import Calling, Turn
from antiphon.engines.engine import GenerationRequest, Prompt
from antiphon.run.check import OutputCheck
from antiphon.run.constraints import ConstraintPlan, supported
from antiphon.run.generation import GenerationRun, Interceptors, ReasoningLimit
from antiphon.run.model import Model
from antiphon.run.replay import ReplayContext

TOKEN_BYTES = 100
"""What a token takes in an answer, about, and a log probability as much again."""


class Prepared(Struct, frozen=True):
    """A generation that can begin."""

    turn: Turn
    model: Model
    prompt: Prompt
    request: GenerationRequest
    plan: ConstraintPlan
    reasoning: ReasoningLimit | None

    def generation(self, index: int, context: ReplayContext, items: Accumulator) -> GenerationRun:
        """The generation for one of the choices; `items` builds those of its answer."""
        interceptors = Interceptors(
            context.log,
            _filter(self.turn),
            self.reasoning,
            OutputCheck(self.turn, self.plan, self.model.pool) if self.plan.loose else None,
            frozenset(tool.name for tool in self.turn.tools if tool.hosted),
            self.plan,
            self.model.pool,
        )
        decoder = self.model.decoder(self.turn, self.prompt, context.rng)
        request = _for_choice(self.request, index)
        return GenerationRun(self.model.engine, request, decoder, interceptors, items)


async def prepare(
    turn: Turn, model: Model, ids: tuple[int, ...] | None = None, choices: int | None = None
) -> Prepared:
    """Render the prompt, which is `ids` if it was rendered before. Raises RequestError.

    The answer has so many `choices` in all, where it is not to this turn alone.
    """
    most = _most_tokens(turn, model, choices or turn.choices)
    sampling = supported(turn.sampling, model.card.capabilities)
    prompt = await model.prompt(turn, ids)
    plan = await model.plan(turn, prompt)
    room = min(model.card.context - len(prompt.ids), most)
    request = GenerationRequest(
        prompt,
        max_tokens=min(room, sampling.max_tokens or room),
        sampling=sampling,
        preserve=model.markers,
        constraint=plan.constraint,
    )
    limit = turn.reasoning_limit
    closing = None if limit is None else await model.reasoning_end()
    reasoning = ReasoningLimit(limit, closing) if limit is not None and closing else None
    return Prepared(turn, model, prompt, request, plan, reasoning)


def _most_tokens(turn: Turn, model: Model, choices: int) -> int:
    """Tokens that each of so many choices may have: all of an answer is kept until it is sent.

    Raises RequestError if the request wants more of each.
    """
    logprobs = turn.sampling.logprobs
    size = TOKEN_BYTES if logprobs is None else TOKEN_BYTES * (2 + logprobs)
    most = max(1, model.limits.answer_bytes // (size * choices))
    wanted = min(turn.sampling.max_tokens or 0, model.card.context)
    if wanted > most:
        what = f"{choices} choices of {wanted} tokens may have {choices * wanted * size} bytes"
        model.limits.refuse("answer_bytes", "max_tokens", what)
    return most


def _filter(turn: Turn) -> CallFilter | None:
    """What keeps calls from the client that it does not allow; most turns need none."""
    choice = turn.tool_choice
    free = choice.most is None and choice.names is None and choice.calling is not Calling.NONE
    return None if free else CallFilter(choice)


def _for_choice(request: GenerationRequest, index: int) -> GenerationRequest:
    """Choices differ: each has its own seed, counted up from the client's."""
    seed = request.sampling.seed
    if seed is None or index == 0:
        return request
    return replace(request, sampling=replace(request.sampling, seed=seed + index))
