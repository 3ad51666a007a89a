"""The response after one that was steered: whether it can be answered, and which one holds waiting input.

A response that has ended with calls of the client has to get their outputs before anything else. The one
that follows it by itself then ends as soon as it begins, and only holds the input: a request with the outputs
goes on with that one, whichever of the two it names.
"""

import msgspec

from antiphon.apis.responses.steering import NO_SUCCESSOR, required_of
from antiphon.app.responses.record import RequiredInputError, end_from_record
from antiphon.core.errors import RequestError
from antiphon.run.endings import CancelRequestedError
from antiphon.store.records import ResponseRecord, ResponseStatus
from antiphon.store.store import Store


async def check_predecessor(store: Store, record: ResponseRecord) -> None:
    """Raise the reason if a response that follows another by itself cannot be answered."""
    if record.previous_id is None:
        return
    previous = await store.responses.get(record.owner, record.previous_id)
    if previous is None or previous.successor_id != record.id:
        return
    if previous.status is ResponseStatus.CANCELLED:
        raise CancelRequestedError
    if previous.status is ResponseStatus.FAILED:
        message = f"The response '{previous.id}' has failed, so none follows it. Send the input again."
        raise RequestError(message, code=NO_SUCCESSOR)
    if required := required_of(msgspec.json.decode(previous.body)):
        raise RequiredInputError(required)


async def with_steers(store: Store, record: ResponseRecord) -> ResponseRecord:
    """The response to go on with in the place of this one: the last that holds input for the next request."""
    while record.status.terminal and record.successor_id is not None:
        required = required_of(msgspec.json.decode(record.body))
        following = await store.responses.get(record.owner, record.successor_id) if required else None
        if following is None:
            break
        if not following.status.terminal and following.lease is None:  # no worker has looked at it yet
            end = await end_from_record(store, following, RequiredInputError(required), None)
            await store.responses.finish(end)
            following = await store.responses.get(record.owner, following.id) or following
        record = following
    return record
