"""Conversations that are summed up: because a client asks for it, or because they have become too long."""

from collections.abc import Callable
from contextlib import aclosing

import msgspec
from msgspec import Struct

from antiphon.apis.responses.accept import Accepted
from antiphon.apis.responses.compact import after, compaction, summarising
from antiphon.core.events import Usage
from antiphon.core.fold import Fold
from antiphon.core.turn import Turn
from antiphon.run.loop import start
from antiphon.run.model import Model
from antiphon.store.records import Entry

_COMPACTION_DONE = b'{"type":"response.output_item.done"'


class Summary(Struct, frozen=True):
    """What a conversation comes to, and what it cost to find out."""

    text: str
    prompt_tokens: int = 0
    usage: Usage = Usage()


class Short(Struct, frozen=True):
    """The turn of a conversation that was summed up, and the fields of the item that says so."""

    turn: Turn
    fields: dict[str, str]
    summary: Summary


async def summarise(turn: Turn, model: Model) -> Summary:
    """What the model says to a turn that asks for a summary."""
    run = await start(turn, model=model)
    fold = Fold()
    async with aclosing(run.batches) as batches:
        async for batch in batches:
            for _, events in batch:
                for event in events:
                    fold.push(event)
    return Summary(fold.output.text, run.prompt_tokens, fold.output.usage)


async def shorten(accepted: Accepted, model: Model, seal: Callable[[str], str]) -> Short | None:
    """Sum the conversation up, if the request asks for it, or from so many tokens on as it says."""
    if not accepted.compacts and not await _is_due(accepted, model):
        return None
    return shortened(accepted.turn, await summarise(summarising(accepted.turn), model), seal)


def shortened(turn: Turn, summary: Summary, seal: Callable[[str], str]) -> Short:
    """The turn with the summary in the place of what it sums up."""
    return Short(after(turn, summary.text), compaction(summary.text, seal), summary)


async def _is_due(accepted: Accepted, model: Model) -> bool:
    if accepted.compact_from is None:
        return False
    return len((await model.prompt(accepted.turn)).ids) >= accepted.compact_from


def told(entries: list[Entry], unseal: Callable[[str], str | None]) -> Summary | None:
    """The summary that the log of a response tells of, if it does: nobody makes another one then."""
    for entry in entries:
        for line in entry.events.split(b"\n"):
            if line.startswith(_COMPACTION_DONE):
                item = msgspec.json.decode(line)["item"]
                if item["type"] == "compaction" and (text := unseal(item["encrypted_content"])) is not None:
                    return Summary(text)
    return None
