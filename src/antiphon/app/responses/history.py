"""A request for a response → its history, its turn, its model."""

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.apis.responses.accept import (
    AcceptedResponse,
    ResponseContext,
    accept,
    check_conflicts,
    history_parameter,
    prompt_turn,
)
from antiphon.apis.responses.added_tools import raw_added_tools
from antiphon.apis.responses.diagnostics import compares_with
from antiphon.apis.responses.input import known_listings, last_container, references
from antiphon.apis.responses.output.reasoning import REASONING_FORMS
from antiphon.apis.responses.schema import CountTokens, CreateResponse, PromptParams
from antiphon.apis.responses.tools import ALWAYS_SENT, requested_tools
from antiphon.app.app import App
from antiphon.app.attachments import Contents
from antiphon.app.cache_traces import Diagnosis, earlier_trace
from antiphon.app.ids import random_id
from antiphon.app.responses.successors import with_steers
from antiphon.core.errors import NotFoundError, RequestError
from antiphon.core.hosts import Listing
from antiphon.run.model import Model, PromptSize
from antiphon.store.records import ItemRecord
from antiphon.store.store import Store
from antiphon.tools.discovery import ToolRequester, client_names

Earlier = Mapping[str, Sequence[bytes]]
"""Response id → the payloads of all items up to its end, for responses that are not stored."""


NO_EARLIER: Earlier = MappingProxyType({})
NO_LISTINGS: Mapping[str, Listing] = MappingProxyType({})
"""Label of a remote server → its listing."""


class ResponseRequest(Struct, frozen=True):
    """A valid request, and the model for its answer.

    `history` holds the payloads of the items before its input. `diagnose` says why the cache missed.
    """

    accepted: AcceptedResponse
    model: Model
    history: Sequence[bytes]
    diagnose: Diagnosis


async def read_request(  # noqa: PLR0913, PLR0917 - the context of a request
    app: App,
    request: CreateResponse,
    owner: str,
    response_id: str,
    earlier: Earlier = NO_EARLIER,
    listed: Mapping[str, Listing] = NO_LISTINGS,
    contents: Contents | None = None,
) -> ResponseRequest:
    """Read and check a request; servers with a listing in `listed` are not asked again. Raises RequestError.

    `contents` are those of its attachments, for callers that store them.
    """
    model = await app.models.model(request.model)
    check_conflicts(request)
    if request.conversation is not None and request.store is False:
        message = "A response of a conversation has to be stored. Leave out 'store' or 'conversation'."
        raise RequestError(message, param="conversation")
    reading = await read_context(app, model, request, owner, response_id, earlier, listed)
    accepted = await app.large.run_on_items(request.input, lambda: accept(request, reading), reading.history)
    app.limits.check("programs", len(accepted.turn.unfinished), "input")
    accepted = replace(accepted, notes=(*accepted.notes, *app.notes_on_forced(model, accepted.turn)))
    app.log_notes(accepted.notes)
    if accepted.compacts and request.background:
        raise RequestError(
            "A compaction cannot run in the background. Leave out 'background'.", param="background"
        )
    attached = replace(accepted, turn=await app.attached(model, accepted.turn, contents))
    # Last: a request that is refused for another reason must not use up its approvals.
    for answer in accepted.answered:
        if not await app.storage.store.approvals.claim(owner, answer.id, response_id, answer.until):
            message = "This request was answered before. An approval is good for one call."
            raise RequestError(message, param=answer.where)
    return ResponseRequest(attached, model, reading.history, await _diagnosis(app, accepted, owner))


async def _diagnosis(app: App, accepted: AcceptedResponse, owner: str) -> Diagnosis:
    """Compares the prompt with that of the response that the request names, or continues."""
    wanted, store = compares_with(accepted.settings), app.storage.store

    async def exists(response_id: str) -> bool:
        return app.settings.stores and await store.responses.get(owner, response_id) is not None

    if wanted is None:  # for the log
        previous = accepted.settings.previous_response_id
        earlier = await earlier_trace(app.traces, owner, previous)
    else:
        earlier = await earlier_trace(app.traces, owner, wanted, exists)
    return Diagnosis(app.traces, owner, accepted.id, accepted.parts, earlier)


async def read_context(  # noqa: PLR0913, PLR0917 - the context of a request
    app: App,
    model: Model,
    request: PromptParams,
    owner: str,
    response_id: str,
    earlier: Earlier = NO_EARLIER,
    listed: Mapping[str, Listing] = NO_LISTINGS,
) -> ResponseContext:
    """The context of a request: the items that it continues, and those that it refers to."""
    app.check_template(request.chat_template)
    history, continued = await _history(app, request, owner, earlier)

    def read() -> tuple[ToolRequester, Mapping[str, Any]]:
        """What the conversation says of tools: which have to be asked, and with which listings."""
        items = app.kept_items.read(owner, history, history_parameter(request))
        asking = ToolRequester(
            owner,
            ALWAYS_SENT,
            {**known_listings(items, request.input), **listed},
            last_container(items, request.input),
            client_names(request.tools),
            items=True,
        )
        return asking, requested_tools(request.tools, raw_added_tools(items, request.input))

    asking, requested = await app.large.run_on_items(request.input, read, history)
    return ResponseContext(
        id=response_id,
        owner=owner,
        history=history,
        continued=continued,
        referenced_items=await referenced_items(app, owner, request.input, "input"),
        unseal=partial(app.sealer.unseal, owner),
        signer=app.signer(owner),
        raw_reasoning=REASONING_FORMS[app.settings.reasoning_events],
        hosts=await app.hosts(model, requested, asking),
        presenters=app.toolkits.presenters,
        defaults=model.card.defaults,
        read_messages=model.read_messages,
        forced=model.card.forced,
        context=model.card.context,
        kept_reasoning=model.traits.kept_reasoning,
        kept_items=app.kept_items,
    )


async def referenced_items(
    app: App, owner: str, given: str | list[Any] | None, param: str
) -> Mapping[str, bytes]:
    """The payloads of the stored items that items of a request refer to, by id. Raises RequestError."""
    ids, limits = references(given), app.limits
    if not ids:
        return {}
    limits.check("references", len(ids), param)
    items = await app.storage.store.responses.items(owner, {*ids})
    if (size := sum(len(items.get(id_, b"")) for id_ in ids)) > limits.history_bytes:
        limits.refuse("history_bytes", param, f"The items that '{param}' refers to have {size} bytes")
    return items


async def count_input_tokens(app: App, request: CountTokens, owner: str) -> PromptSize:
    """The number of tokens of a request's prompt, without a limit. Raises RequestError."""
    model = await app.models.model(request.model)
    context = await read_context(app, model, request, owner, random_id("resp_", 48))
    turn = await app.large.run_on_items(request.input, lambda: prompt_turn(request, context), context.history)
    return await model.count(await app.attached(model, turn))


async def _history(
    app: App, request: PromptParams, owner: str, earlier: Earlier
) -> tuple[Sequence[bytes], str | None]:
    """The payloads of the items before those of the request, and the response that they belong to."""
    store, limits = app.storage.store, app.limits
    previous, conversation = request.previous_response_id, request.conversation_id
    if previous is None and conversation is None:
        return (), None
    if previous is not None and previous in earlier:
        if (size := sum(map(len, earlier[previous]))) > limits.history_bytes:
            limits.refuse("history_bytes", "previous_response_id", f"This history has {size} bytes")
        return earlier[previous], previous
    if previous is not None:
        return await _of_response(store, owner, previous)
    assert conversation is not None
    try:
        return _payloads(await store.conversations.history(owner, conversation)), None
    except NotFoundError as error:
        message = f"Conversation with id '{conversation}' not found."
        raise NotFoundError(message, param="conversation", code="conversation_not_found") from error


async def _of_response(store: Store, owner: str, response_id: str) -> tuple[Sequence[bytes], str]:
    param, code = "previous_response_id", "previous_response_not_found"
    record = await store.responses.get(owner, response_id)
    if record is None:
        message = f"Previous response with id '{response_id}' not found."
        raise NotFoundError(message, param=param, code=code)
    record = await with_steers(store, record)
    if not record.status.terminal:
        message = f"Previous response with id '{response_id}' is {record.status}. Wait until it has ended."
        raise RequestError(message, param=param, code="previous_response_not_ended")
    return _payloads(await store.responses.history(owner, record.id)), record.id


def _payloads(items: Sequence[ItemRecord]) -> Sequence[bytes]:
    return [item.payload for item in items]
