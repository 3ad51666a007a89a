"""Requests as token ids, without HTTP: what each API would have its model continue. Nothing is generated.

A scheduler routes by them, and `/inference/v1/generate`, here or at a vLLM, continues them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from antiphon.apis.chat.accept import accept as accept_chat
from antiphon.apis.chat.schema import ChatRequest
from antiphon.apis.completions.accept import accept as accept_completion
from antiphon.apis.completions.schema import CompletionRequest
from antiphon.apis.generate.rendered import RenderSource, rendered
from antiphon.apis.generate.resource import Features, Placeholders, RenderedRequest
from antiphon.apis.messages.accept import accept as accept_message
from antiphon.apis.messages.schema import CreateMessage
from antiphon.apis.request import Request
from antiphon.apis.responses.accept import accept as accept_response
from antiphon.apis.responses.accept import check_conflicts
from antiphon.apis.responses.schema import CreateResponse
from antiphon.app import chat as chats
from antiphon.app import messages
from antiphon.app.app import App
from antiphon.app.ids import answer_id, random_id
from antiphon.app.responses.create import PREFIX as RESPONSE
from antiphon.app.responses.create import as_kept
from antiphon.app.responses.history import read_context
from antiphon.core.hosts import Note
from antiphon.core.turn import Turn
from antiphon.engines.engine import Prompt
from antiphon.run.model import Model

COMPLETION = "cmpl-"


async def chat(app: App, request: ChatRequest, owner: str, header_id: str | None = None) -> RenderedRequest:
    """The prompt of a conversation. Raises RequestError."""
    model = await app.models.model(request.model)
    accepted = accept_chat(request, owner, await chats.defaults(app, model, request, owner))
    app.check_template(accepted.turn.template)
    notes = (*accepted.presentation.notes, *_unchecked(request))
    source = await _source(model, await app.attached(model, accepted.turn), notes)
    source = replace(
        source, parses=True, reasoning_shown=request.include_reasoning is not False, **_shown(request)
    )
    return rendered(source, answer_id(chats.PREFIX, accepted.request_id, header_id), "chat.completion.render")


async def completion(
    app: App, request: CompletionRequest, owner: str, header_id: str | None = None
) -> Sequence[RenderedRequest]:
    """The prompts of texts to go on with. Raises RequestError."""
    model = await app.models.model(request.model)
    accepted = accept_completion(request, owner, app.presentation(model))
    base = answer_id(COMPLETION, accepted.request_id, header_id)
    several = len(accepted.turns) > 1
    return [
        rendered(
            replace(await _source(model, turn), **_shown(request)),
            f"{base}-{index}" if several else base,
            "text_completion.render",
        )
        for index, turn in enumerate(accepted.turns)
    ]


async def message(
    app: App, request: CreateMessage, owner: str, header_id: str | None = None
) -> RenderedRequest:
    """The prompt of a conversation in Anthropic's API. Raises RequestError."""
    model = await app.models.model(request.model)
    contents = app.contents(owner)
    reading = await messages.context_of(app, model, request, owner, contents)
    accepted = await app.large.run_on_items(request.messages, lambda: accept_message(request, reading))
    turn = await app.attached(model, accepted.turn, contents)
    source = await _source(model, turn, accepted.presentation.tools.notes)
    source = replace(source, parses=True, stream=bool(request.stream))
    return rendered(source, answer_id(messages.PREFIX, request.request_id, header_id), "message.render")


async def response(
    app: App, wire: CreateResponse, owner: str, header_id: str | None = None
) -> RenderedRequest:
    """The prompt of a response, with the stored items that it continues. Raises RequestError."""
    request = as_kept(app, wire)
    model = await app.models.model(request.model)
    check_conflicts(request)
    context = await read_context(app, model, request, owner, random_id(RESPONSE, 48))
    accepted = await app.large.run_on_items(
        request.input, lambda: accept_response(request, context), context.history
    )
    notes = (*accepted.notes, *_unchecked(request))
    source = await _source(model, await app.attached(model, accepted.turn), notes)
    source = replace(source, stream=bool(request.stream))
    return rendered(source, answer_id(RESPONSE, request.request_id, header_id), "response.render")


def _unchecked(request: ChatRequest | CreateResponse) -> Sequence[Note]:
    """A note for who wants a guard to check the request or its answer."""
    if request.moderation is None:
        return ()
    message = "Nothing is checked: neither this request, nor the answer to its token ids."
    return (Note("moderation", message),)


def _shown(request: Request) -> Mapping[str, Any]:
    """What a rendered request repeats of one of OpenAI's older APIs."""
    options = request.stream_options
    return {
        "ids_shown": request.return_token_ids,
        "stream": bool(request.stream),
        "stream_options": None if options is None else to_builtins(options),
    }


async def _source(model: Model, turn: Turn, notes: Sequence[Note] = ()) -> RenderSource:
    """The turn with its prompt. `notes` are on parts of its request."""
    prompt = await model.compose(turn)
    card = model.card
    features, on_media = (await _features(model, prompt)) if prompt.media else (None, ())
    return RenderSource(
        turn=turn,
        text=prompt.text,
        ids=prompt.ids,
        context=card.context,
        defaults={**card.defaults, **card.sampling},
        forced=card.forced,
        features=features,
        notes=(*notes, *on_media),
    )


async def _features(model: Model, prompt: Prompt) -> tuple[Features, tuple[Note, ...]]:
    """Where the media of a prompt are: the tokens of their placeholders, found in the order of the prompt."""
    features = Features({}, {})
    start = 0
    for media, placeholder in zip(prompt.media, prompt.placeholders, strict=True):
        ids = (await model.compose(Turn(model.card.name, prompt=placeholder))).ids
        if ids[:1] == (model.card.opening,) and len(ids) > 1:
            ids = ids[1:]
        offset = _find(prompt.ids, ids, start)
        start = offset + len(ids)
        features.mm_hashes.setdefault(media.kind.value, []).append(media.digest)
        features.mm_placeholders.setdefault(media.kind.value, []).append(Placeholders(offset, len(ids)))
    what = "The engine computes the tensors of media, and may put more tokens in the place of each."
    return features, (Note("features", what),)


def _find(ids: tuple[int, ...], part: tuple[int, ...], start: int) -> int:
    """Where a part of ids begins, from a place on; that place, if it is not there."""
    first = part[0] if part else -1
    while True:
        try:
            start_of_part = ids.index(first, start)
        except ValueError:
            return start
        if ids[start_of_part : start_of_part + len(part)] == part:
            return start_of_part
        start = start_of_part + 1
