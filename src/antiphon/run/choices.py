"""Joins the choices of a turn into one stream of batches."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from antiphon.core.events import Event
from antiphon.engines.mailbox import Mailbox

Batch = list[tuple[int, list[Event]]]
"""What each choice said, with its index."""

Said = tuple[int, list[Event] | Exception | None]
"""What a choice said, the failure that ended it, or None at its end."""


class Answer(Protocol):
    """One choice: whoever generates it."""

    def events(self) -> AsyncGenerator[list[Event], None]:
        """What is said, in batches as it comes. Raises EngineError."""
        ...

    def fail(self, error: Exception) -> list[Event]:
        """The last events of an answer that `error` ended."""
        ...


def join(choices: Sequence[Answer]) -> AsyncGenerator[Batch, None]:
    """Run all choices at once. One that fails ends alone; if all do, the failure is raised."""
    return _alone(choices[0]) if len(choices) == 1 else _together(choices)


async def _alone(choice: Answer) -> AsyncGenerator[Batch, None]:
    """One choice needs no task and no queue."""
    async with aclosing(choice.events()) as batches:
        async for events in batches:
            yield [(0, events)]


async def _together(choices: Sequence[Answer]) -> AsyncGenerator[Batch, None]:
    mailbox: Mailbox[Said] = Mailbox()
    tasks = [asyncio.create_task(_deliver(index, choice, mailbox)) for index, choice in enumerate(choices)]
    running, failures = len(tasks), dict[int, Exception]()
    try:
        while running:
            batch: Batch = []
            for index, said in await mailbox.get():
                if isinstance(said, list):
                    batch.append((index, said))
                    continue
                running -= 1
                if said is not None:
                    failures[index] = said
            if batch:
                yield batch
        if len(failures) == len(choices):
            raise failures[min(failures)]
        if failures:
            yield [(index, choices[index].fail(failure)) for index, failure in failures.items()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _deliver(index: int, choice: Answer, mailbox: Mailbox[Said]) -> None:
    """Put what a choice says into the mailbox."""
    try:
        async with aclosing(choice.events()) as batches:
            async for events in batches:
                mailbox.put((index, events))
    except Exception as failure:
        mailbox.put((index, failure))  # raised, or told to the client, where all choices are known
    else:
        mailbox.put((index, None))
