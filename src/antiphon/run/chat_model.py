"""A model behind a server that takes conversations only: it has the template, the tokens and the decoder.

Features that such a server does not have are refused by name: by the engine if they depend on the server,
else here. Sizes are estimates, until the server reports its counts.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from antiphon.core.decision import Decision, Verdicts
from antiphon.core.errors import RequestError, naming
from antiphon.core.items import FunctionCall, FunctionOutput
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.turn import CallMode, PromptEnding, Turn
from antiphon.decode.chat_decoder import BYTES_PER_TOKEN, ChatDecoder
from antiphon.decode.ids import ids_by, openai_call_id
from antiphon.engines.engine import (
    Conversation,
    Engine,
    GenerationRequest,
    Prompt,
)
from antiphon.engines.next_token import score_answers, written_text
from antiphon.engines.upstreams.kind import no_tokens
from antiphon.run.chat_decisions import ChatDecider
from antiphon.run.constraints import ConstraintPlan, is_free, plan_to_check, requirements_of, supported
from antiphon.run.decisions import DecisionOptions
from antiphon.run.engine_model import EngineModel
from antiphon.run.messages import messages_of
from antiphon.run.model import (
    ModelTraits,
    NextTokens,
    PlainAnswer,
    Prepared,
    PromptSize,
    characters_in,
    check_turn,
    max_tokens_of,
    repaired,
    room,
    without,
)
from antiphon.tools.tool import ServerTool

_REFUSED: Sequence[tuple[str, Callable[[Turn], bool], str]] = (
    ("prompt_limit", lambda turn: turn.prompt_limit is not None, "cuts no prompts"),
    ("template", lambda turn: turn.template is not None, "takes no chat templates"),
    ("prefix", lambda turn: bool(turn.prefix), "does not continue text that was begun"),
    (
        "conversation",
        lambda turn: turn.ending is PromptEnding.CONTINUED,
        "does not continue text that was begun",
    ),
    ("add_generation_prompt", lambda turn: turn.ending is PromptEnding.TRANSCRIPT, "always answers"),
)
"""Features that no server of conversations has: the name of the parameter, when it is set, and the reason."""


class ChatModel(EngineModel):
    """Passes conversations on to an engine for them.

    With `exclude_tools_when_tool_choice_none`, a turn that may not call tools is sent without them. It is not
    known whether such a model reasons.
    """

    traits = ModelTraits(calls=True)

    def __init__(
        self,
        engine: Engine,
        *,
        exclude_tools_when_tool_choice_none: bool = False,
        tools: Mapping[str, ServerTool] = MappingProxyType({}),
        limits: Limits = DEFAULTS,
        deciding: DecisionOptions = DecisionOptions(),  # noqa: B008 - it is immutable
    ) -> None:
        super().__init__(engine, tools, limits)
        self._decider = ChatDecider(engine, self._question, tokens_of, deciding, limits)
        self._exclude_tools = exclude_tools_when_tool_choice_none

    async def prepare(
        self, turn: Turn, ids: tuple[int, ...] | None = None, choices: int | None = None
    ) -> Prepared:
        """There are no `ids`."""
        turn = repaired(turn)
        card, choices = self.card, choices or turn.choices
        self._check(turn)
        max_tokens = max_tokens_of(turn, self.limits, choices, card.context)
        sampling = supported(turn, card.capabilities)
        plan = await self._plan(turn)
        sent_turn = self._as_sent(turn)
        prompt, messages = messages_of(sent_turn.items)
        request = GenerationRequest(
            prompt,
            max_tokens=max_tokens if sampling.max_tokens is None else sampling.max_tokens,
            sampling=sampling,
            conversation=Conversation(sent_turn, messages),
        )
        calls = sum(isinstance(item, FunctionCall) for item in turn.items)
        size, max_bytes = tokens_of(sent_turn), self.limits.answer_bytes // choices

        def decoder(rng: Random | None) -> ChatDecoder:
            return ChatDecoder(
                stop=turn.stop,
                include_stop=turn.stop_shown,
                ids=ids_by(openai_call_id, calls, rng),
                prompt_tokens=size,
                max_bytes=max_bytes,
            )

        return Prepared(
            turn=turn,
            model=self,
            prompt=prompt,
            engine=self.engine,
            request=request,
            decoder=decoder,
            pool=self.pool,
            plan=plan,
        )

    def _check(self, turn: Turn) -> None:
        """Refuse unsupported parameters before any work is done. Raises RequestError."""
        if turn.prompt is not None:
            raise no_tokens("prompt")
        for param, is_given, why in _REFUSED:
            if is_given(turn):
                message = (
                    f"The server of this model accepts only whole conversations, and {why}. Leave it out."
                )
                raise RequestError(message, param=_WIRE_NAMES.get(param, param))
        if turn.shorten and not self.card.context:
            message = (
                "The length of this model's context is not known. Leave it out, or start "
                "the server with --context."
            )
            raise RequestError(message, param="truncation")
        check_turn(turn, self.limits, self.card.context)

    async def _plan(self, turn: Turn) -> ConstraintPlan:
        """The checks for the complete answer, because the server may or may not enforce the demands."""
        if is_free(turn):
            return ConstraintPlan()
        param = "tools" if turn.format is None else "format"
        return await self.pool.run(param, plan_to_check, requirements_of(turn))

    def _as_sent(self, turn: Turn) -> Turn:
        """The turn as the server gets it: without tools that it must not see, shortened if necessary."""
        if self._exclude_tools and turn.tool_choice.calling is CallMode.NONE:
            turn = replace(turn, tools=())
        if turn.later_variables:
            turn = replace(turn, variables=turn.latest_variables)
        if not turn.shorten:
            return turn
        limit, dropped = self.card.context - room(turn, self.card.context), 0
        shorter = turn
        while tokens_of(shorter) > limit and dropped < len(turn.items) - 1:
            dropped += 1
            while dropped < len(turn.items) - 1 and isinstance(turn.items[dropped], FunctionOutput):
                dropped += 1  # its call was dropped
            shorter = replace(turn, items=without(turn.items, dropped))
        return shorter

    async def count(self, turn: Turn) -> PromptSize:
        """An estimate."""
        with naming(turn.parameters):
            self._check(turn)
        return PromptSize(tokens_of(repaired(turn)), estimated=True)

    async def tokens_in(self, texts: Sequence[str]) -> list[int]:
        """Estimates."""
        return [-(-len(text) // BYTES_PER_TOKEN) for text in texts]

    async def compose(self, turn: Turn) -> Prompt:
        """Raises RequestError, always."""
        with naming(turn.parameters):
            raise no_tokens("prompt" if turn.prompt is not None else "conversation")

    async def decide(self, decision: Decision) -> Verdicts:
        """The probability of a label that the server does not tell is bounded."""
        if self.card.capabilities.answers_questions:
            return await super().decide(decision)
        return await self._decider.decide(decision)

    async def next_tokens(self, turn: Turn, after: Sequence[str]) -> NextTokens:
        """Of an answer that has not begun only: such a server continues no text."""
        if "logprobs" not in self.card.capabilities.sampling or any(after):
            return NextTokens()
        readings = await score_answers(self.engine, [self._question(turn)])
        return NextTokens(readings * len(after), tokens_of(turn))

    async def plain_answer(self, turn: Turn, max_tokens: int) -> PlainAnswer:
        request = self._question(turn)
        sampling = replace(request.sampling, max_tokens=max_tokens)
        request = replace(request, max_tokens=max_tokens, sampling=sampling)
        return PlainAnswer(await written_text(self.engine, request), tokens_of(turn))

    def _question(self, turn: Turn) -> GenerationRequest:
        """The request for the first token of the answer to a turn. Raises RequestError."""
        turn = repaired(turn)
        self._check(turn)
        sampling = replace(supported(turn, self.card.capabilities), max_tokens=1)
        prompt, messages = messages_of(turn.items)
        return GenerationRequest(prompt, 1, sampling, conversation=Conversation(turn, messages))

    async def token_texts(self, ids: Sequence[int]) -> list[str]:
        """The same."""
        raise no_tokens("tokens")

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The same."""
        raise no_tokens("tokens")


_WIRE_NAMES = {"prompt_limit": "truncate_prompt_tokens"}


def tokens_of(turn: Turn) -> int:
    """How many tokens the prompt of a turn has, about."""
    offered = [(tool.name, tool.description, tool.parameters) for tool in turn.known_tools]
    characters = characters_in(turn.items)
    return -(-(characters + (len(msgspec.json.encode(offered)) if offered else 0)) // BYTES_PER_TOKEN)
