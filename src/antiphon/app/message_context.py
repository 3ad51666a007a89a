"""Answers a message with a part of its conversation left out: edited, or replaced by a summary.

After a summary the request is read anew, with its block at the end, as the client sends it the next time: so
the prompt of that request begins with the prompt of this one.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.apis.messages.answer import MessageBuilder
from antiphon.apis.messages.compaction import compaction_block
from antiphon.apis.messages.context import ContextPlan
from antiphon.apis.messages.resource import CompactionBlock
from antiphon.apis.messages.stream import MessageStream
from antiphon.apis.sealing import Signer
from antiphon.apis.summaries import summary_turn
from antiphon.app.summaries import summarise
from antiphon.core.edits import has_answers
from antiphon.core.errors import RequestError
from antiphon.core.events import GenerationUsage
from antiphon.core.turn import PromptEnding, Turn
from antiphon.run.answer_source import AnswerSource
from antiphon.run.context_edits import edited
from antiphon.run.drive import Output, Source
from antiphon.run.model import Model
from antiphon.run.replay import ReplayContext


class Summarising(Struct, frozen=True):
    """How a summary becomes a block, and what follows.

    `changes` are those of the tools before it. `read_after` reads the request with the block at its end.
    """

    seal: Callable[[str], str]
    signer: Signer
    changes: Sequence[Mapping[str, Any]]
    read_after: Callable[[CompactionBlock], Awaitable[Turn]]


class ManagedSource:
    """Answers a turn whose conversation is edited, or summarised, first. See `run.drive.Source`."""

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of an answer
        self,
        turn: Turn,
        plan: ContextPlan,
        model: Model,
        projection: MessageBuilder | MessageStream,
        context: ReplayContext,
        summarising: Summarising,
    ) -> None:
        self._turn = turn
        self._plan = plan
        self._model = model
        self._blocks = projection.blocks
        self._context = context
        self._summarising = summarising
        self._source: Source | None = None

    async def run(self, output: Output) -> None:
        plan = self._plan
        turn = await self._edited(self._turn)
        if plan.summarises is not None:
            await self._summarise(turn, plan.summarises, pauses=True)
            return
        compact = plan.compact
        if compact is not None and await self._is_due(turn, compact.tokens):
            block = await self._summarise(turn, compact.request, pauses=compact.pauses)
            if compact.pauses:
                return
            turn = await self._edited(await self._summarising.read_after(block))
        self._source = AnswerSource([turn], self._model, self._context)
        await self._source.run(output)

    async def _edited(self, turn: Turn) -> Turn:
        if not self._plan.edits:
            return turn
        result = await edited(turn, self._plan.edits, self._model)
        self._blocks.edited(result.applied)
        return result.turn

    async def _is_due(self, turn: Turn, tokens: int) -> bool:
        """Whether the prompt has so many tokens, and something that a summary replaces."""
        if turn.unfinished:
            return (
                False  # a summary would have its programs without what they print: the next request's has it
            )
        if not has_answers(turn.items) or (await self._model.count(turn)).tokens < tokens:
            return False
        if turn.ending is PromptEnding.CONTINUED:
            message = "This conversation has to be compacted, but ends with a message of the assistant's."
            raise RequestError(f"{message} Leave that message out.", param="messages")
        return True

    async def _summarise(self, turn: Turn, request: str, *, pauses: bool) -> CompactionBlock:
        summary = await summarise(summary_turn(turn, request), self._model)
        made = self._summarising
        block = compaction_block(summary.text, made.changes, made.seal, made.signer)
        usage = GenerationUsage.of(summary.usage, summary.prompt_tokens)
        self._blocks.compacted(block, usage, pauses=pauses)
        return block

    def abandon(self) -> Iterable[tuple[int, Any]]:
        return () if self._source is None else self._source.abandon()


def as_sent(block: CompactionBlock) -> dict[str, Any]:
    """The block as the client sends it back."""
    value: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(block))
    return value
