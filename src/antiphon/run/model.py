"""A model that is being served: an engine, and how to speak with what it runs."""

import asyncio

from antiphon.core.errors import RequestError
from antiphon.core.items import FunctionCall, Message, Role, TextPart
from antiphon.core.turn import Turn
from antiphon.decode.decoder import Decoder, header_of, state_after
from antiphon.decode.ids import counted_from
from antiphon.decode.table import Table
from antiphon.dialects.dialect import Dialect
from antiphon.engines.engine import Engine, ModelCard, Prompt
from antiphon.render.renderer import Renderer

MANY_ITEMS = 64
"""Items from which on a conversation is rendered beside the event loop: it may take milliseconds."""


class Model:
    """Knows how a turn becomes a prompt, and how what the engine answers is decoded."""

    def __init__(self, engine: Engine, renderer: Renderer, dialect: Dialect) -> None:
        self.engine = engine
        self.dialect = dialect
        self._renderer = renderer
        self._table = Table(dialect.grammar)
        self._table_without_calls = Table(dialect.grammar.without_calls())
        self.markers = dialect.grammar.markers
        self._answer_header = _answer_header(renderer, dialect)

    @property
    def card(self) -> ModelCard:
        """The engine's model."""
        return self.engine.card

    async def prompt(self, turn: Turn) -> Prompt:
        """The turn as the model wants to read it. Raises RequestError if it leaves no room to answer."""
        text = await self._render(turn)
        ids = tuple(await self.engine.tokenize(text))
        context = self.card.context
        if len(ids) >= context:
            message = (
                f"The prompt is too long: it has {len(ids)} tokens, but the context of this model is "
                f"{context} tokens, answer included. Shorten the messages."
            )
            raise RequestError(message, param="messages", code="context_length_exceeded")
        return Prompt(text, ids)

    async def _render(self, turn: Turn) -> str:
        """Render the turn; in a thread of its own if it is long, so that others do not wait for it."""
        if len(turn.items) < MANY_ITEMS:
            return self._renderer.render(turn)
        return await asyncio.to_thread(self._renderer.render, turn)

    def decoder(self, turn: Turn, prompt: Prompt) -> Decoder:
        """A decoder for one answer to this prompt."""
        table = self._table if turn.tools else self._table_without_calls
        calls = sum(isinstance(item, FunctionCall) for item in turn.items)
        return Decoder(
            table,
            state=self._begun(table, prompt.text),
            stop=turn.stop,
            ids=counted_from(calls, self.dialect.ids),
            tools={tool.name: tool.parameters for tool in turn.tools},
        )

    def _begun(self, table: Table, prompt: str) -> str | None:
        """Where the answer begins, if the template already wrote its first markers."""
        if not self._answer_header:
            return None
        _, found, tail = prompt.rpartition(self._answer_header)
        return state_after(table, tail) if found and tail else None


def _answer_header(renderer: Renderer, dialect: Dialect) -> str:
    """What the template writes before every answer, up to the first marker of the dialect.

    It is what a prompt has and a transcript has not.
    """
    turn = Turn("", (Message(Role.USER, (TextPart("Hello"),)),))
    asked, told = renderer.render(turn), renderer.transcript(turn)
    return header_of(asked[len(told) :], dialect.grammar) if asked.startswith(told) else ""
