"""A model whose engine continues prompts: turns become prompts, and the generated text is decoded."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from functools import lru_cache, partial
from hashlib import sha256
from random import Random
from types import MappingProxyType

import msgspec
import structlog
from msgspec.structs import replace

from antiphon.core.call_results import pair_results
from antiphon.core.chunks import Chunk, Token
from antiphon.core.decision import Decision, Verdicts
from antiphon.core.errors import EngineError, RequestError, naming
from antiphon.core.grammar import Grammar, Span, SpanKind, State
from antiphon.core.items import FunctionCall, Item, Message, Role, TextPart
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.observation import observed
from antiphon.core.positions import begun_anew
from antiphon.core.turn import CallMode, Sampling, ToolChoice, Turn
from antiphon.core.vectors import Scores
from antiphon.decide.relevance import relevance
from antiphon.decode.decoder import Decoder, Start, answer_header, start_after
from antiphon.decode.ids import ids_by
from antiphon.decode.table import Table
from antiphon.dialects.detection.foreign import ForeignCalls
from antiphon.dialects.dialect import TEXT, Dialect
from antiphon.dialects.tool_description import tool_prompt_of
from antiphon.engines.engine import (
    WORD_JOINER,
    Engine,
    GenerationRequest,
    Prompt,
    Task,
)
from antiphon.engines.next_token import score_answers, written_text
from antiphon.render.fill_in import FAMILIES, FillIn
from antiphon.render.media import FENCE, media_in
from antiphon.render.renderer import ChatTemplateRenderer, Renderer
from antiphon.run.closing import FIRST, least_tokens
from antiphon.run.constraints import (
    ConstraintPlan,
    is_free,
    plan_after,
    plan_for,
    requirements_of,
    supported,
)
from antiphon.run.decisions import Decider, DecisionOptions
from antiphon.run.direct_answers import DirectAnswers
from antiphon.run.engine_model import EngineModel
from antiphon.run.generation import ReasoningLimit
from antiphon.run.model import (
    ModelTraits,
    NextTokens,
    PlainAnswer,
    Prepared,
    PromptSize,
    characters_in,
    check_turn,
    max_tokens_of,
    other_characters,
    repaired,
    room,
    without,
)
from antiphon.run.prompts import PromptReader, too_long
from antiphon.run.recording import LOGPROBS, DecoderSettings
from antiphon.tools.tool import ServerTool

log = structlog.get_logger()

MANY_ITEMS = 64
"""With at least this number of items and tools, a prompt is rendered in a thread: it may take
milliseconds."""
MANY_CHARACTERS = 64 * 1024
"""The same for its number of characters."""
TEMPLATES = 8
"""The number of clients' templates in the cache: compiling and probing one takes long."""
PLANS = 64
"""The number of compiled plans in the cache; agents send the same demands again."""
PLAN_BYTES = 512 * 1024
"""The largest size in bytes of a plan in the cache."""


class TokenModel(EngineModel):
    """Renders turns to prompts, and decodes the engine's output.

    `reasons`: the model may begin an answer with reasoning, if its dialect has any. With
    `exclude_tools_when_tool_choice_none`, the prompt of a turn that may not call tools has none.
    """

    def __init__(  # noqa: PLR0913 - the settings of a model
        self,
        engine: Engine,
        renderer: Renderer,
        dialect: Dialect,
        *,
        reasons: bool = True,
        exclude_tools_when_tool_choice_none: bool = False,
        tools: Mapping[str, ServerTool] = MappingProxyType({}),
        limits: Limits = DEFAULTS,
        deciding: DecisionOptions = DecisionOptions(),  # noqa: B008 - it is immutable
    ) -> None:
        super().__init__(engine, tools, limits)
        self.native_tools = renderer.native_tools
        self.read_messages = renderer.read_messages
        self.dialect = dialect
        self.markers = dialect.grammar.markers
        self._renderer = renderer
        self._prompts = PromptReader(engine)
        grammar = dialect.grammar
        self._table = Table(grammar).compile()
        self._table_without_calls = Table(grammar.without_calls()).compile()
        self._table_without_tools = self._table if grammar.has_message_headers else self._table_without_calls
        self._answer_header = _answer_header(renderer, dialect.grammar)
        self._reasons = reasons
        self.traits = _traits(dialect, renderer, reasons=reasons)
        self._exclude_tools = exclude_tools_when_tool_choice_none
        self._calls_elsewhere = ForeignCalls(dialect.names[0])
        self._fill_in: FillIn | None = None
        self._plans: dict[bytes, ConstraintPlan] = {}
        self._foreign = lru_cache(TEMPLATES)(self._compile)
        direct = DirectAnswers(renderer, dialect, reasons=deciding.reasons, state_after=self._state_after)
        self.decider = Decider(engine, self._for_decisions, direct, deciding, limits)

    async def prepare(
        self, turn: Turn, ids: tuple[int, ...] | None = None, choices: int | None = None
    ) -> Prepared:
        turn = repaired(turn)
        observation, card = observed(), self.engine.card
        observation.dialect = self.dialect.names[0]
        max_tokens = max_tokens_of(turn, self.limits, choices or turn.choices, card.context)
        sampling, recording = supported(turn, card.capabilities), observation.record is not None
        if recording and sampling.logprobs is None and "logprobs" in card.capabilities.sampling:
            sampling = replace(sampling, logprobs=LOGPROBS)
        # The errors are named by the source of the answer.
        prompt = await self._compose(turn, ids, context=card.context)
        if len(prompt.ids) >= card.context:
            raise too_long(len(prompt.ids), card.context)
        plan = _FREE if is_free(turn) else await self.plan(turn, prompt)
        room = min(card.context - len(prompt.ids), max_tokens)
        max_tokens = min(room, sampling.max_tokens or room)
        if sampling.beam_width is None:  # it has no form, and is refused later
            await self._check_room(plan, max_tokens, room)
        request = GenerationRequest(
            prompt,
            max_tokens=max_tokens,
            sampling=sampling,
            preserve=self.markers,
            constraint=plan.constraint,
        )
        limit = turn.reasoning_limit
        closing = None if limit is None else await self.reasoning_end(turn.tool_choice)
        reasoning = ReasoningLimit(limit, closing) if limit is not None and closing else None

        def decoder(rng: Random | None) -> Decoder:
            return self.decoder(turn, prompt, rng)

        look = partial(self._look_for_calls, turn) if turn.tools and turn.prompt is None else None
        reading = self.reading(turn, prompt) if recording else _UNRECORDED
        return Prepared(
            turn=turn,
            model=self,
            prompt=prompt,
            engine=self.engine,
            request=request,
            decoder=decoder,
            pool=self.pool,
            plan=plan,
            reasoning=reasoning,
            on_end=look,
            reading=reading,
        )

    async def _check_room(self, plan: ConstraintPlan, max_tokens: int, room: int) -> None:
        """Refuse a form that no answer of so many tokens has; `room` is what the context leaves for it."""
        if plan.closing is None or plan.closing.size + FIRST <= max_tokens:
            return
        least = await least_tokens(self.engine, plan.closing)
        if least <= max_tokens:
            return
        if max_tokens < room:
            message = (
                f"An answer in the required format has at least {least} tokens, and may have {max_tokens}. "
                "Raise the limit, or require less."
            )
            raise RequestError(message, param="max_tokens")
        message = (
            f"An answer in the required format has at least {least} tokens, and the prompt leaves {room}. "
            "Shorten the conversation, or require less."
        )
        raise RequestError(message, param="conversation", code="context_length_exceeded")

    def _look_for_calls(self, turn: Turn, items: Sequence[Item]) -> None:
        """Log a hint, once, if an answer has calls of another dialect in its text."""
        text = "\n".join(item.text for item in items if isinstance(item, Message))
        dialects = self._calls_elsewhere.find(text, {tool.name: tool.parameters for tool in turn.tools})
        if dialects:
            hint = " or ".join(f"--dialect {name}" for name in dialects)
            log.warning(
                "an answer has calls of another dialect in its text",
                model=self.card.name,
                dialect=self.dialect.names[0],
                hint=f"Try {hint}.",
            )

    async def count(self, turn: Turn) -> PromptSize:
        return PromptSize(len((await self.compose(turn)).ids))

    async def compose(self, turn: Turn) -> Prompt:
        """The prompt without a limit on its length, for display and counts. Raises RequestError."""
        with naming(turn.parameters):
            return await self._compose(repaired(turn), context=0)

    async def _compose(self, turn: Turn, ids: tuple[int, ...] | None = None, *, context: int) -> Prompt:
        """The prompt of the turn: these `ids`, if it was rendered before. Raises RequestError.

        Text that cannot fit a `context` is refused before any work is put into it; 0: text of any length.
        """
        prompt = await self._whole(turn, check_turn(turn, self.limits, context), context)
        if prompt.media:
            if turn.prompt_limit is not None and len(prompt.ids) > self._limit(turn):
                message = (
                    "A prompt with media cannot be cut. Leave 'truncate_prompt_tokens' "
                    "out, or shorten the conversation."
                )
                raise RequestError(message, param="truncate_prompt_tokens")
            return prompt
        if ids is not None and ids != prompt.ids:  # templates may contain the time
            text = await self.engine.detokenize(ids)
            # What splits special tokens may be lost: then a server that takes text gets the new prompt.
            lost = text.count(WORD_JOINER) < prompt.text.count(WORD_JOINER)
            return prompt if self.card.capabilities.text_prompts and lost else Prompt(text, ids)
        if turn.prompt_limit is not None and len(prompt.ids) > self._limit(turn):
            last = prompt.ids[-self._limit(turn) :]
            text = await self.engine.detokenize(last)
            if self.card.capabilities.text_prompts and not prompt.text.endswith(text):
                text = prompt.text[-len(text) :]  # with what splits special tokens, as above
            prompt = Prompt(text, last)
        return prompt

    def _whole(self, turn: Turn, size: int, context: int) -> Awaitable[Prompt]:
        if turn.suffix is not None:
            return self._filled(turn, turn.suffix, context)
        if isinstance(turn.prompt, tuple):
            return self._given(turn.prompt)
        if turn.shorten:
            return self._shortened(turn, size)
        if isinstance(turn.prompt, str):
            return self._prompts.texts([turn.prompt], context)
        return self._rendered(turn, size, context)

    async def _given(self, ids: tuple[int, ...]) -> Prompt:
        return Prompt(await self._text(ids), ids)

    async def _filled(self, turn: Turn, suffix: str, context: int) -> Prompt:
        """The prompt for the text between a prompt and a suffix."""
        if self._fill_in is None:
            self._fill_in = await self._find_fill_in()
        prefix = turn.prompt if isinstance(turn.prompt, str) else await self._text(turn.prompt or ())
        return await self._prompts.texts([*filter(None, self._fill_in.pieces(prefix, suffix))], context)

    async def _find_fill_in(self) -> FillIn:
        """The model's tokens for filling in. Raises RequestError if it has none."""
        if self.card.capabilities.token_ids:
            fill_in = self.card.fill_in
            for family in (*([] if fill_in is None else [FillIn(*fill_in)]), *FAMILIES):
                ids = [await self.engine.tokenize([token]) for token in family.tokens]
                if all(len(token_ids) == 1 for token_ids in ids) and len({*map(tuple, ids)}) == len(ids):
                    return family
        message = (
            f"The model '{self.card.name}' has no special tokens for a 'suffix'. Name a model that has them."
        )
        raise RequestError(message, param="suffix", code="unsupported_model")

    async def _rendered(self, turn: Turn, size: int, context: int) -> Prompt:
        """The prompt of a conversation of this number of characters."""
        if self._exclude_tools and turn.tool_choice.calling is CallMode.NONE:
            turn = replace(turn, tools=())
        renderer = self._renderer
        if turn.template is not None:
            renderer = await asyncio.to_thread(self._foreign, turn.template)
        text = await _render(renderer, turn, size)
        return await self._prompts.rendered(text, media_in(turn.items) if FENCE in text else (), context)

    async def decide(self, decision: Decision) -> Verdicts:
        if self.card.capabilities.answers_questions:
            return await super().decide(decision)
        return await self.decider.decide(decision)

    async def next_tokens(self, turn: Turn, after: Sequence[str]) -> NextTokens:
        """Empty if the engine tells no log probabilities."""
        if "logprobs" not in self.card.capabilities.sampling:
            return NextTokens()
        prompt = await self._own_prompt(turn)
        requests = []
        for text in after:
            ids = tuple(await self.engine.tokenize([text])) if text else ()
            requests.append(GenerationRequest(prompt.continued(text, ids) if text else prompt, max_tokens=1))
        readings = await score_answers(self.engine, requests)
        return NextTokens(readings, len(prompt.ids))

    async def plain_answer(self, turn: Turn, max_tokens: int) -> PlainAnswer:
        prompt = await self._own_prompt(turn)
        request = GenerationRequest(prompt, max_tokens=max_tokens, sampling=Sampling(max_tokens=max_tokens))
        return PlainAnswer(await written_text(self.engine, request), len(prompt.ids))

    async def _own_prompt(self, turn: Turn) -> Prompt:
        """The prompt of a turn of the server's own. Raises RequestError if it is too long."""
        context = self.card.context
        prompt = await self._compose(repaired(turn), context=context)
        if len(prompt.ids) >= context > 0:
            raise too_long(len(prompt.ids), context)
        return prompt

    async def score(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        """A model that neither ranks nor embeds decides, if it can: the score is the probability of yes."""
        able = self.card.capabilities
        if able.tasks & {Task.RANK, Task.EMBED} or "logprobs" not in able.sampling:
            return await super().score(pairs)
        queries = dict.fromkeys(query for query, _ in pairs)
        scores: dict[tuple[str, str], float] = {}
        tokens = 0
        for query in queries:
            documents = [*dict.fromkeys(document for other, document in pairs if other == query)]
            verdicts = await self.decide(relevance(query, documents))
            tokens += verdicts.prompt_tokens
            for document, verdict in zip(documents, verdicts.verdicts, strict=True):
                scores[query, document] = verdict.probabilities[0]
        return Scores(tuple(scores[pair] for pair in pairs), tokens)

    async def _for_decisions(self, turn: Turn) -> str:
        return await _render(self._renderer, turn, characters_in(turn.items))

    def _state_after(self, prompt: str) -> State:
        """The state of the grammar in which an answer to this prompt begins."""
        grammar = self._table_without_tools.grammar
        return grammar.states[self.answer_start(self._table_without_tools, prompt).state or grammar.start]

    async def _text(self, ids: tuple[int, ...]) -> str:
        """The text of a prompt that the client sent as ids."""
        try:
            return await self.engine.detokenize(ids)
        except RequestError as error:
            raise RequestError(error.message, param="prompt") from error

    def _limit(self, turn: Turn) -> int:
        """The most tokens of the prompt that are wanted."""
        if turn.prompt_limit == -1:
            return self.card.context - room(turn, self.card.context)
        return turn.prompt_limit or 1

    async def _shortened(self, turn: Turn, size: int) -> Prompt:
        """The prompt with as few of the oldest messages left out as makes it fit, found by halving.

        It begins anew: what they said about tools and settings is said at its head.
        """
        limit = self.card.context - room(turn, self.card.context)
        prompt = await self._rendered(turn, size, context=0)
        if len(prompt.ids) <= limit:
            return prompt
        too_few, enough, anew = 0, len(turn.items), begun_anew(turn)
        while enough - too_few > 1:
            count = (too_few + enough) // 2
            items = pair_results(without(turn.items, count), [])
            shorter = await self._rendered(replace(anew, items=items), size, context=0)
            if len(shorter.ids) > limit:
                too_few = count
            else:
                enough, prompt = count, shorter
        return prompt

    def _compile(self, template: str) -> Renderer:
        try:
            return ChatTemplateRenderer(
                template,
                bos=self.card.bos,
                eos=self.card.eos,
                tool_prompt=tool_prompt_of(self.dialect),
                special_tokens=self.card.special_tokens | self.dialect.grammar.special_tokens,
                tags=self.dialect.grammar.tags,
            )
        except EngineError as error:
            raise RequestError(error.message, param="template") from error

    def decoder(self, turn: Turn, prompt: Prompt, rng: Random | None = None) -> Decoder:
        """A decoder for one answer to this prompt. `rng` makes the ids of its calls."""
        table = self.table(turn)
        calls = len([item for item in turn.items if type(item) is FunctionCall])
        start = self.answer_start(table, prompt.text)
        decoder = Decoder(
            table,
            state=start.state,
            stop=turn.stop,
            include_stop=turn.stop_shown,
            least=turn.sampling.min_tokens or 0,
            ids=ids_by(self.dialect.ids, calls, rng),
            tools={tool.name: tool.parameters for tool in turn.tools} if turn.tools else None,
            call_prefix=start.call_prefix,
        )
        if start.mid_text:
            decoder.keep_space()
        return decoder

    async def plan(self, turn: Turn, prompt: Prompt) -> ConstraintPlan:
        """The constraint plan for the answer to this prompt, which is not free. Raises RequestError."""
        table = self.table(turn)
        start = self.answer_start(table, prompt.text)
        plan = await self._plan(turn, table, start)
        if not start.call_prefix:
            return plan
        param = "prefix" if turn.prefix else "conversation"
        rest_plan = await self.pool.run(param, plan_after, plan, start.call_prefix)
        if rest_plan is None:
            raise _unfitting(turn)
        return rest_plan

    async def _plan(self, turn: Turn, table: Table, start: Start) -> ConstraintPlan:
        """How an answer is held that begins there."""
        required = requirements_of(turn, start.state, self.card.context, mid_text=start.mid_text)
        key = sha256(msgspec.msgpack.encode((required, turn.prompt is None))).digest()
        plan = self._plans.get(key)
        if plan is None:
            grammar = table.grammar if self._reasons else self._without_reasoning(table)
            param = "tools" if turn.format is None else "format"
            plan = await self.pool.run(param, plan_for, required, grammar, self.card.capabilities)
            if len(plan.demands) <= PLAN_BYTES:
                self._plans[key] = plan
            if len(self._plans) > PLANS:
                del self._plans[next(iter(self._plans))]
        return plan

    def _without_reasoning(self, table: Table) -> Grammar:
        """The grammar without reasoning: a constrained model would begin it to avoid the constraint."""
        calls = self.dialect.calls
        return table.grammar if table is _PLAIN else calls if table is self._table else calls.without_calls()

    def table(self, turn: Turn) -> Table:
        """How answers to the turn are read."""
        if turn.prompt is not None:
            return _PLAIN
        if turn.tool_choice.calling is CallMode.NONE and not self._exclude_tools:
            return self._table_without_calls
        return self._table if turn.tools else self._table_without_tools

    def answer_start(self, table: Table, prompt: str) -> Start:
        """Where the answer begins: a template may have written its first markers, a client some text."""
        tail = self._tail(table, prompt)
        return start_after(table, tail) if tail else _FROM_START

    def _tail(self, table: Table, prompt: str) -> str:
        """The end of the prompt that belongs to the answer."""
        if not self._answer_header or table is _PLAIN:
            return ""
        _, header, tail = prompt.rpartition(self._answer_header)
        return tail if header else ""

    def reading(self, turn: Turn, prompt: Prompt) -> DecoderSettings:
        """How `decoder` reads the answer to this prompt, to be recorded."""
        table = self.table(turn)
        return DecoderSettings(
            dialect=None if table is _PLAIN else self.dialect.names[0],
            calls=table is self._table,
            tail=self._tail(table, prompt.text),
            stop=turn.stop,
            stop_shown=turn.stop_shown,
            least=turn.sampling.min_tokens or 0,
            tools={tool.name: tool.parameters for tool in turn.tools},
        )

    async def reasoning_end(self, choice: ToolChoice) -> Chunk | None:
        """The text that ends reasoning and begins the answer; None for a model without reasoning.

        If the choice demands a call, it begins no other answer.

        Raises RequestError if the end of reasoning is not known for the dialect.
        """
        must_call = choice.calling is CallMode.REQUIRED
        text = self.dialect.reasoning_end_before_call if must_call else self.dialect.reasoning_end
        if text is None:
            if not any(map(_is_reasoning, self.dialect.grammar.states.values())):
                return None
            message = "The reasoning of this model cannot be ended by the server. Leave it out."
            raise RequestError(message, param="reasoning_limit")
        ids = await self.engine.tokenize([text])
        return Chunk(text, tuple(Token(token, piece) for token, piece in _spread(ids, text)))


async def _render(renderer: Renderer, turn: Turn, size: int) -> str:
    """The prompt of a conversation of this number of characters.

    It is rendered in a thread if it is long, or by a client's template, which may take any time.
    """
    has_few_items = len(turn.items) + len(turn.tools) < MANY_ITEMS
    if turn.template is None and has_few_items and size + other_characters(turn) < MANY_CHARACTERS:
        return renderer.render(turn)
    return await asyncio.to_thread(renderer.render, turn)


_PLAIN = Table(TEXT)
_FROM_START = Start()
_FREE = ConstraintPlan()
_UNRECORDED = DecoderSettings()


def _is_reasoning(state: State) -> bool:
    return isinstance(state, Span) and state.kind is SpanKind.REASONING


def _spread(ids: Sequence[int], text: str) -> list[tuple[int, str]]:
    """The ids of a text; the last one carries the text."""
    return [*((token, "") for token in ids[:-1]), *((token, text) for token in ids[-1:])]


def _unfitting(turn: Turn) -> RequestError:
    message = (
        f"{turn.parameter('prefix')} starts a call that tool_choice, or the strict schema of its tool, "
        "does not allow. Start another call, or leave it to the model."
    )
    return RequestError(message, param="prefix" if turn.prefix else "conversation")


_HELLO = "Hello"


def _answer_header(renderer: Renderer, grammar: Grammar) -> str:
    """The text that the template writes before every answer, up to the first marker of the dialect.

    It is the part of a prompt that a transcript does not have; or, if a template always writes it, the text
    after the message, up to a marker.
    """
    turn = Turn("", (Message(Role.USER, (TextPart(_HELLO),)),))
    prompt, transcript = renderer.render(turn), renderer.transcript(turn)
    added = prompt[len(transcript) :] if prompt.startswith(transcript) else ""
    if header := answer_header(added, grammar):
        return header
    follows = prompt.rpartition(_HELLO)[2]
    header = answer_header(follows, grammar)
    return header if header != follows else ""


def _traits(dialect: Dialect, renderer: Renderer, *, reasons: bool) -> ModelTraits:
    """What a dialect and a template say of a model that may reason, or not."""
    grammar = dialect.grammar
    return ModelTraits(
        dialect.names[0],
        calls=grammar.states.keys() != grammar.without_calls().states.keys(),
        reasons=reasons and (dialect.reasoning is not None or dialect.has_own_reasoning),
        kept_reasoning=renderer.kept_reasoning,
    )
