"""A model that is being served: an engine, and how to speak with what it runs."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from antiphon.core.chunks import Chunk, Token
from antiphon.core.errors import EngineError, RequestError
from antiphon.core.grammar import Grammar, Kind, Span, State
from antiphon.core.items import FunctionCall, Item, Message, Role, TextPart
from antiphon.core.turn import Function, Turn
from antiphon.decode.decoder import Decoder, Start, header_of, start_after
from antiphon.decode.ids import ids_by
from antiphon.decode.table import Table
from antiphon.dialects.dialect import TEXT, Dialect
from antiphon.engines.engine import Engine, ModelCard, Prompt
from antiphon.render.renderer import ChatTemplateRenderer, Renderer
from antiphon.render.seams import pieces
from antiphon.run.plan import Held, demand_of, demands_nothing, held_after, hold, param_of
from antiphon.tools.tool import ServerTool

MANY_ITEMS = 64
"""Items from which on a conversation is rendered beside the event loop: it may take milliseconds."""
TEMPLATES = 8
"""Templates of clients that are remembered: to compile and probe one takes long."""
DEMANDS = 64
"""Demands (tools with a choice, formats) whose compiled form is remembered; agents repeat themselves."""
ANSWER_SHARE = 4
"""One part in so many of the context is kept for the answer where a conversation is shortened to fit."""

_FIRST = frozenset({Role.SYSTEM, Role.DEVELOPER})


class Model:
    """Knows how a turn becomes a prompt, and how what the engine answers is decoded.

    `thinks` says whether the model may begin an answer with a thought, where its dialect has any.
    `tools` are those of the server, by type; `stopping` is set when none of them is waited for any more.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        dialect: Dialect,
        *,
        thinks: bool = True,
        tools: Mapping[str, ServerTool] = MappingProxyType({}),
    ) -> None:
        self.engine = engine
        self.tools = tools
        self.stopping = asyncio.Event()
        self.dialect = dialect
        self.markers = dialect.grammar.markers
        self._renderer = renderer
        self._table = Table(dialect.grammar)
        self._table_without_calls = (
            self._table if dialect.grammar.addressed else Table(dialect.grammar.without_calls())
        )
        self._answer_header = _answer_header(renderer, dialect.grammar)
        self._thinks = thinks
        self._demands: dict[bytes, Held] = {}
        self._foreign = lru_cache(TEMPLATES)(self._compile)

    @property
    def hosted(self) -> Mapping[str, tuple[Function, ...]]:
        """What the model is offered of each of the server's tools: what it was trained with, if anything."""
        trained = self._renderer.trained
        return {
            type_: tuple(_described(function, tool) for function in trained.get(type_, tool.functions))
            for type_, tool in self.tools.items()
        }

    @property
    def card(self) -> ModelCard:
        """The engine's model."""
        return self.engine.card

    async def prompt(self, turn: Turn, ids: tuple[int, ...] | None = None) -> Prompt:
        """The turn as the model wants to read it: these `ids`, if it was rendered before.

        Raises RequestError if it leaves no room to answer.
        """
        prompt = await self.compose(turn, ids)
        if len(prompt.ids) >= self.card.context:
            raise _too_long(len(prompt.ids), self.card.context, turn.source)
        return prompt

    async def compose(self, turn: Turn, ids: tuple[int, ...] | None = None) -> Prompt:
        """The same, however long it is: to be looked at, or counted. Raises RequestError."""
        prompt = await self._whole(turn)
        if ids is not None and ids != prompt.ids:  # templates may tell the time
            return Prompt(await self.engine.detokenize(ids), ids)
        if turn.prompt_limit is not None and len(prompt.ids) > self._limit(turn):
            last = prompt.ids[-self._limit(turn) :]
            prompt = Prompt(await self.engine.detokenize(last), last)
        return prompt

    async def _whole(self, turn: Turn) -> Prompt:
        if isinstance(turn.prompt, tuple):
            return Prompt(await self._text(turn.prompt), turn.prompt)
        if turn.shorten:
            return await self._shortened(turn)
        if isinstance(turn.prompt, str):
            return await self._read([turn.prompt])
        return await self._read(pieces(await self._render(turn)))

    async def _text(self, ids: tuple[int, ...]) -> str:
        """The text of a prompt that came as ids."""
        try:
            return await self.engine.detokenize(ids)
        except RequestError as error:
            raise RequestError(error.message, param="prompt") from error

    async def _read(self, texts: Sequence[str]) -> Prompt:
        """The prompt made of these texts, each read for itself."""
        ids = [token for text in texts for token in await self.engine.tokenize(text)]
        opening = self.card.opening
        if opening is not None and ids[:1] != [opening]:
            ids = [opening, *ids]
        return Prompt("".join(texts), tuple(ids))

    def _limit(self, turn: Turn) -> int:
        """The most tokens of the prompt that are wanted."""
        if turn.prompt_limit == -1:
            return self.card.context - _room(turn, self.card.context)
        return turn.prompt_limit or 1

    async def _shortened(self, turn: Turn) -> Prompt:
        """The prompt with as few of the oldest messages left out as makes it fit, found by halving."""
        limit = self.card.context - _room(turn, self.card.context)
        prompt = await self._read(pieces(await self._render(turn)))
        if len(prompt.ids) <= limit:
            return prompt
        too_few, enough = 0, len(turn.items)
        while enough - too_few > 1:
            dropped = (too_few + enough) // 2
            items = _without(turn.items, dropped)
            shorter = await self._read(pieces(await self._render(replace(turn, items=items))))
            if len(shorter.ids) > limit:
                too_few = dropped
            else:
                enough, prompt = dropped, shorter
        return prompt

    async def _render(self, turn: Turn) -> str:
        """Render the turn; in a thread of its own if it is long, so that others do not wait for it."""
        if turn.template is not None:
            renderer: Renderer = await asyncio.to_thread(self._foreign, turn.template)
        else:
            renderer = self._renderer
        if len(turn.items) < MANY_ITEMS:
            return renderer.render(turn)
        return await asyncio.to_thread(renderer.render, turn)

    def _compile(self, template: str) -> Renderer:
        bos, eos = self.card.bos, self.card.eos
        try:
            return ChatTemplateRenderer(template, bos=bos, eos=eos, tool_prompt=self.dialect.tool_prompt)
        except EngineError as error:
            raise RequestError(error.message, param="chat_template") from error

    def decoder(self, turn: Turn, prompt: Prompt, dice: Random | None = None) -> Decoder:
        """A decoder for one answer to this prompt. `dice` make the ids of its calls."""
        table = self.table(turn)
        calls = sum(isinstance(item, FunctionCall) for item in turn.items)
        start = self.begun(table, prompt.text)
        decoder = Decoder(
            table,
            state=start.state,
            stop=turn.stop,
            shown=turn.stop_shown,
            ids=ids_by(self.dialect.ids, calls, dice),
            tools={tool.name: tool.parameters for tool in turn.tools},
            opened=start.opened,
        )
        if start.amid:
            decoder.keep_space()
        return decoder

    async def held(self, turn: Turn, prompt: Prompt) -> Held:
        """How the answer to this prompt is held to what the turn demands. Raises RequestError."""
        if demands_nothing(turn):
            return Held()
        table = self.table(turn)
        start = self.begun(table, prompt.text)
        held = await self._held(turn, table, start.state)
        if not start.opened:
            return held
        rest = await asyncio.to_thread(held_after, held, start.opened)
        if rest is None:
            raise _unfitting(turn)
        return rest

    async def _held(self, turn: Turn, table: Table, state: str | None) -> Held:
        """How an answer is held that begins in this state."""
        demand = demand_of(turn, state)
        key = msgspec.msgpack.encode((demand, turn.prompt is None))
        if key not in self._demands:
            grammar = table.grammar if self._thinks else self._thoughtless(table)
            try:
                # Beside the event loop: many tools, or a large schema, take tens of milliseconds.
                held = await asyncio.to_thread(hold, demand, grammar, self.card.capabilities)
            except RequestError as error:
                raise RequestError(error.message, param=param_of(error.param, turn)) from error
            if len(self._demands) >= DEMANDS:
                del self._demands[next(iter(self._demands))]
            self._demands[key] = held
        return self._demands[key]

    def _thoughtless(self, table: Table) -> Grammar:
        """The grammar of a model that does not think: held to a form, it would think to escape it."""
        calls = self.dialect.calls
        return table.grammar if table is _PLAIN else calls if table is self._table else calls.without_calls()

    def table(self, turn: Turn) -> Table:
        """How answers to the turn are read."""
        if turn.prompt is not None:
            return _PLAIN
        return self._table if turn.tools else self._table_without_calls

    def begun(self, table: Table, prompt: str) -> Start:
        """Where the answer begins: a template may have written its first markers, a client some words."""
        if not self._answer_header or table is _PLAIN:
            return Start()
        _, found, tail = prompt.rpartition(self._answer_header)
        return start_after(table, tail) if found and tail else Start()

    async def closing_thought(self) -> Chunk | None:
        """What ends a thought and begins the answer; None for a model that has no thoughts to end.

        Raises RequestError if nobody knows how its thoughts end.
        """
        text = self.dialect.closing
        if text is None:
            if not any(map(_is_thought, self.dialect.grammar.states.values())):
                return None
            message = "This model's thoughts have no end that could be written for it. Leave it out."
            raise RequestError(message, param="thinking_token_budget")
        ids = await self.engine.tokenize(text)
        return Chunk(text, tuple(Token(token, piece) for token, piece in _spread(ids, text)))


_PLAIN = Table(TEXT)


def _described(function: Function, tool: ServerTool) -> Function:
    """The function with what the tool says of it, where the family has no words of its own."""
    told = {own.hosted.action: own.description for own in tool.functions if own.hosted}
    if function.description or function.hosted is None:
        return function
    return replace(function, description=told.get(function.hosted.action))


def _is_thought(state: State) -> bool:
    return isinstance(state, Span) and state.kind is Kind.REASONING


def _spread(ids: Sequence[int], text: str) -> list[tuple[int, str]]:
    """The ids of a text, of which the last stands for it."""
    return [*((token, "") for token in ids[:-1]), *((token, text) for token in ids[-1:])]


def _room(turn: Turn, context: int) -> int:
    """Tokens to keep for the answer."""
    share = context // ANSWER_SHARE
    return min(turn.sampling.max_tokens or share, share) or 1


def _without(items: tuple[Item, ...], dropped: int) -> tuple[Item, ...]:
    """The conversation without so many of its oldest items; instructions stay."""
    return tuple(item for item in items[:dropped] if _stays(item)) + items[dropped:]


def _stays(item: Item) -> bool:
    return isinstance(item, Message) and item.role in _FIRST


def _too_long(tokens: int, context: int, param: str) -> RequestError:
    message = (
        f"The prompt is too long: it has {tokens} tokens, but the context of this model is "
        f"{context} tokens, answer included. Shorten the conversation."
    )
    return RequestError(message, param=param, code="context_length_exceeded")


def _unfitting(turn: Turn) -> RequestError:
    message = (
        "The call that the prompt begins is none that the request demands: its tool choice and the "
        "strict schemas of its tools hold that call, too. Begin another, or leave it to the model."
    )
    return RequestError(message, param="response_prefix" if turn.prefix else turn.source)


def _answer_header(renderer: Renderer, grammar: Grammar) -> str:
    """What the template writes before every answer, up to the first marker of the dialect.

    It is what a prompt has and a transcript has not.
    """
    turn = Turn("", (Message(Role.USER, (TextPart("Hello"),)),))
    asked, told = renderer.render(turn), renderer.transcript(turn)
    return header_of(asked[len(told) :], grammar) if asked.startswith(told) else ""
