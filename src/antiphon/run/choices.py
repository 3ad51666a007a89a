"""Joins the choices of a turn into one stream of batches."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from antiphon.core.events import Event
from antiphon.engines.mailbox import Mailbox

Choice = AsyncGenerator[list[Event], None]
Batch = list[tuple[int, list[Event]]]
"""What each choice said, with its index."""


def join(choices: list[Choice]) -> AsyncGenerator[Batch, None]:
    """Run all choices at once. The first failure ends them all."""
    return _alone(choices[0]) if len(choices) == 1 else _together(choices)


async def _alone(choice: Choice) -> AsyncGenerator[Batch, None]:
    """One choice needs no task and no queue."""
    async with aclosing(choice):
        async for events in choice:
            yield [(0, events)]


async def _together(choices: list[Choice]) -> AsyncGenerator[Batch, None]:
    mailbox: Mailbox[tuple[int, list[Event] | None]] = Mailbox()
    tasks = [asyncio.create_task(_deliver(index, choice, mailbox)) for index, choice in enumerate(choices)]
    running = len(tasks)
    try:
        while running:
            batch: Batch = []
            for index, events in await mailbox.get():
                if events is None:
                    running -= 1
                else:
                    batch.append((index, events))
            if batch:
                yield batch
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _deliver(index: int, choice: Choice, mailbox: Mailbox[tuple[int, list[Event] | None]]) -> None:
    """Put what a choice says into the mailbox, None at its end."""
    try:
        async with aclosing(choice):
            async for events in choice:
                mailbox.put((index, events))
    except Exception as error:
        mailbox.fail(error)  # raised again where the batches are awaited
    else:
        mailbox.put((index, None))
