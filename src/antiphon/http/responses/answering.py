"""A response, answered while the client waits: streamed or whole, stored or not.

A stream that is stored is written while it is sent. Its last event is sent
when the response is stored whole: a client that has seen the end can rely on it.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from random import Random

import msgspec

from antiphon.apis.responses.schema import CreateResponse
from antiphon.apis.responses.stream import Responder
from antiphon.core.errors import StoreError
from antiphon.http.context import Context
from antiphon.http.errors import log_failure
from antiphon.http.responses.asking import Asked
from antiphon.http.responses.compacting import shorten
from antiphon.http.responses.projection import ResponseProjection, as_records
from antiphon.run.choices import Batch
from antiphon.run.loop import Run, start
from antiphon.run.record import Past, Recorder
from antiphon.run.round import Recording
from antiphon.store.records import Append, Entry, ItemRecord, Outcome, ResponseRecord, ResponseStatus

Payloads = AsyncGenerator[list[bytes], None]
"""The wire events of a response, as they come."""


class Answering:
    """One response that a client waits for."""

    def __init__(self, context: Context, request: CreateResponse, asked: Asked) -> None:
        self._context = context
        self._request = request
        self._asked = asked
        self._created_at = time.time()
        accepted = asked.accepted
        self.id = accepted.id
        self._seal = partial(context.sealer.seal, accepted.turn.owner)
        responder = Responder(accepted, int(self._created_at), self._seal)
        self.projection = ResponseProjection(responder, queued=bool(request.background))

    async def _start(self) -> Run:
        accepted, model = self._asked.accepted, self._asked.model
        short = await shorten(accepted, model, self._seal)
        if short is not None:
            self.projection.compacted(short)
            if accepted.compacts:
                return Run((), _nothing())
        # The ids of calls hang on the id of the response, as all others do.
        dice = Random(self.id)  # noqa: S311 - not secret
        turn = short.turn if short else accepted.turn
        run = await start(turn, model=model, recording=Recording(dice=dice))
        self.projection.count_prompt(run.prompt_tokens)
        return run

    # Not stored

    async def forgotten(self) -> Payloads:
        """The events of a response that is not stored."""
        run = await self._start()
        async with aclosing(run.batches) as batches:
            batch: Batch = await anext(batches, [])  # an engine that fails at once is an HTTP error
            yield [*self.projection.begin(), *self._push(batch)]
            async for batch in batches:
                yield self._push(batch)
        yield self.projection.finish()

    def _push(self, batch: Batch) -> list[bytes]:
        return [line for _, events in batch for line in self.projection.push(events)]

    async def whole(self) -> bytes:
        """The response, once it is there; stored if it shall be."""
        run = await self._start()
        self.projection.begin()
        async with aclosing(run.batches) as batches:
            async for batch in batches:
                self._push(batch)
        self.projection.finish()
        body = self.projection.body()
        if self._asked.accepted.settings.store:
            await self._store(body)
        return body

    # Stored

    async def _store(self, body: bytes) -> None:
        """Store a response that has ended, in one transaction."""
        projection, worker = self.projection, self._context.worker
        output = projection.output()
        outcome = Outcome(
            response_id=self.id,
            worker=worker.desk.worker,
            status=projection.status,
            body=body,
            output=output,
            conversation=(*self.input, *output) if self._into_conversation else (),
        )
        responses = worker.store.responses
        await asyncio.gather(responses.create(self.record(body), self.input), responses.finish(outcome))

    async def recorded(self) -> Payloads:
        """The events of a response that is stored while it is sent."""
        run = await self._start()
        worker, projection = self._context.worker, self.projection
        async with aclosing(run.batches) as batches:
            batch: Batch = await anext(batches, [])  # an engine that fails at once leaves nothing behind
            await worker.store.responses.create(self.record(projection.body()), self.input)
            recorder = Recorder(self.id, projection, worker.desk, Past(conversation=self.conversation_input))
            with worker.desk.lying(recorder):
                try:
                    yield recorder.add(projection.begin())
                    async for lines in _recorded(recorder, batch, batches):
                        yield lines
                    last = projection.finish()
                except StoreError:
                    raise  # it cannot be written, or is not ours any more
                except Exception as error:
                    log_failure(error)
                    last = projection.fail(error)
                except BaseException:  # the client has left, or the server stops
                    await recorder.end(projection.cancel())
                    raise
                # A client that has seen enough may leave now: what is whole is stored whole.
                yield await asyncio.shield(recorder.end(last))

    async def queued(self) -> None:
        """Store a response that some worker shall answer."""
        store = self._context.worker.store
        lines = self.projection.responder.queue()
        entry = Entry(0, len(lines) - 1, b"\n".join(lines))
        # In one transaction, before a worker can be there.
        await asyncio.gather(
            store.responses.create(self.record(self.projection.body()), self.input),
            store.log.append(Append(response_id=self.id, worker=None, entries=(entry,))),
        )

    def record(self, body: bytes) -> ResponseRecord:
        """The row of the response, with the response object as it is now."""
        settings, context = self._asked.accepted.settings, self._context
        conversation = settings.conversation
        return ResponseRecord(
            id=self.id,
            owner=self._asked.accepted.turn.owner,
            created_at=self._created_at,
            status=ResponseStatus.QUEUED if settings.background else ResponseStatus.IN_PROGRESS,
            model=settings.model,
            request=msgspec.json.encode(self._request),
            body=body,
            background=settings.background,
            previous_id=settings.previous_response_id,
            conversation_id=None if conversation is None else conversation.id,
            lease=None if settings.background else context.worker.lease(),
            expires_at=self._created_at + context.options.keep,
        )

    @property
    def input(self) -> tuple[ItemRecord, ...]:
        """What went in."""
        return as_records(self._asked.accepted.items)

    @property
    def conversation_input(self) -> tuple[ItemRecord, ...] | None:
        """What of it goes into a conversation, None without one."""
        return self.input if self._into_conversation else None

    @property
    def _into_conversation(self) -> bool:
        return self._asked.accepted.settings.conversation is not None


async def _nothing() -> AsyncGenerator[Batch, None]:
    """What is said where nothing is asked."""
    return
    yield


async def _recorded(
    recorder: Recorder, first: Batch, batches: AsyncGenerator[Batch, None]
) -> AsyncGenerator[list[bytes], None]:
    """The wire events of all batches. Raises what stopped the recorder."""
    reasons: list[Exception] = []
    recorder.stop = reasons.append
    yield _push(recorder, first)
    async for batch in batches:
        yield _push(recorder, batch)
        if reasons:
            raise reasons[0]


def _push(recorder: Recorder, batch: Batch) -> list[bytes]:
    return [line for _, events in batch for line in recorder.push(events)]
