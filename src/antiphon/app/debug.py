"""The record of an answer as JSON: prompt, tokens, events, verdicts, constraint. And the server's status.

Records that `--debug-answers` keeps are shown to the owner of the answer. A background response without a
record, because it is older or was answered by another server, is decoded again from its replay log.
"""

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict, replace

from antiphon import __version__
from antiphon.apis.logprobs import text_of
from antiphon.apis.responses.schema import CreateResponse
from antiphon.app.app import App
from antiphon.app.journal import unpacked
from antiphon.app.records import AnswerRecord
from antiphon.app.responses.history import read_request
from antiphon.app.responses.record import log_of
from antiphon.app.siblings import Call
from antiphon.core.chunks import ChatChunk, Chunk, Token
from antiphon.core.errors import AntiphonError, NotFoundError, RequestError
from antiphon.core.events import Event, Malformed
from antiphon.core.observation import Observation
from antiphon.engines.engine import GenerationRequest, Load
from antiphon.run.models import Health
from antiphon.run.recording import GenerationRecord, RecordingDecoder, Step, name_of, record_of
from antiphon.run.replay import PromptEntry, read_entries

RECORD_SECONDS = 10.0
"""How long a process may take to show a record: it may have megabytes."""
_LOOKS_SPECIAL = re.compile(r"<[|｜][^\s<>|｜]+[|｜]>")


class RecordsNotKeptError(RequestError):
    """This server does not keep records of answers. Start it with an option such as --debug-answers 20."""

    status = 403
    type = "permission_error"
    code = "debug_answers"


class KeptAnswer(Struct, tag_field="object", tag="debug.answer"):
    """An answer whose record is kept."""

    id: str
    created_at: float
    model: str | None
    finish: str | None
    generations: int


class KeptAnswers(Struct, tag_field="object", tag="list"):
    """The kept answers, the last first."""

    data: list[KeptAnswer]


class PromptToken(Struct):
    """A token of a prompt. `special` ones are markers of the dialect, or look like special tokens."""

    id: int
    text: str
    special: bool


class ShownPrompt(Struct):
    """The prompt of the model.

    Its text and tokens (None if the model is not available to detokenize them), or messages.
    """

    text: str
    tokens: list[PromptToken] | None
    media: int
    messages: Sequence[Mapping[str, Any]] | None


class Alternative(Struct):
    """A token that the model might have written."""

    id: int
    text: str
    logprob: float | None


class ShownToken(Alternative, kw_only=True):
    """A generated token, and the most likely ones at its position."""

    top: list[Alternative]


class ShownPiece(Struct):
    """A part of the output of a server that takes conversations."""

    kind: str
    text: str
    name: str


class ShownStep(Struct, kw_only=True):
    """A chunk, and its events: each has a `type`, and its own fields."""

    text: str
    tokens: list[ShownToken]
    pieces: list[ShownPiece] | UnsetType = UNSET
    finish: dict[str, Any] | UnsetType = UNSET
    events: list[dict[str, Any]]


class ShownGeneration(Struct, kw_only=True):
    """One generation: the request to the engine, the settings of the decoder, and the result."""

    choice: int
    prompt: ShownPrompt
    sampling: dict[str, Any]
    max_tokens: int | None
    constraint: dict[str, Any] | None
    reading: dict[str, Any]
    text: str
    steps: list[ShownStep]
    end: list[dict[str, Any]]
    verdicts: list[str]


class ShownRecord(Struct, tag_field="object", tag="debug.answer"):
    """The record of an answer."""

    id: str
    request_id: str | None
    created_at: float
    model: str | None
    served_model: str | None
    dialect: str | None
    finish: str | None
    unmet: list[str]
    generations: list[ShownGeneration]


class ModelNow(Struct, kw_only=True):
    """The load of a model, and its tokens read and written so far. It has no slots before it is loaded.

    Its memory is None if it is unknown.
    """

    id: str
    names: Sequence[str]
    loaded: bool
    running: int
    waiting: int
    slots: int
    memory_bytes: int | None
    prompt_tokens: int
    generated_tokens: int
    tokens_now: int


class PermitsNow(Struct):
    """How much of some work may be done at a time, is done, and waits."""

    work: str
    slots: int
    running: int
    waiting: int


class ServerNow(Struct, tag_field="object", tag="status", kw_only=True):
    """How the server is doing."""

    version: str = __version__
    health: Health
    background_running: int
    debug_answers: int
    permits: list[PermitsNow]
    models: list[ModelNow]


async def list_records(app: App, owner: str) -> bytes:
    """The answers whose records are kept, the last first. Raises RecordsNotKeptError."""
    _check_kept(app)
    kept = [answer for process in await app.ask(KEPT, owner) for answer in process]
    kept.sort(key=lambda answer: answer.created_at, reverse=True)
    return msgspec.json.encode(KeptAnswers(kept))


async def _kept_here(app: App, owner: str) -> list[KeptAnswer]:
    return [
        KeptAnswer(
            record.observation.answer or record.observation.request_id,
            record.created_at,
            record.observation.model,
            record.observation.finish,
            len(record.generations),
        )
        for record in app.records.last(owner)
    ]


class _Asked(Struct, frozen=True):
    """Which record is asked for."""

    owner: str
    answer: str


async def retrieve(app: App, owner: str, answer_id: str) -> bytes:
    """The record of an answer, also while it is generated. Raises RecordsNotKeptError, NotFoundError."""
    _check_kept(app)
    if app.records.find(owner, answer_id) is None:
        for shown in filter(None, await app.ask(RECORD, _Asked(owner, answer_id))):
            return shown
    record = app.records.find(owner, answer_id) or await _from_log(app, owner, answer_id)
    if record is None:
        limit = app.settings.debug_answers
        message = (
            f"No details are kept of '{answer_id}'. The details of the last {limit} answers of a key are, "
            "on the server that gave them, until it stops."
        )
        raise NotFoundError(message, param="id")
    return await _show(app, answer_id, record)


async def _record_here(app: App, asked: _Asked) -> bytes | None:
    """The record that this process keeps, if it does."""
    record = app.records.find(asked.owner, asked.answer)
    return None if record is None else await _show(app, asked.answer, record)


async def _show(app: App, answer_id: str, record: AnswerRecord) -> bytes:
    texts = [
        await _prompt_texts(app, generation.request, record.observation) for generation in record.generations
    ]
    copies = [replace(generation, steps=[*generation.steps]) for generation in record.generations]
    return await asyncio.to_thread(_encoded, answer_id, record, copies, texts)


KEPT = Call("kept_records", _kept_here, str, list[KeptAnswer])
RECORD = Call("record", _record_here, _Asked, bytes | None, RECORD_SECONDS)


def _check_kept(app: App) -> None:
    if not app.settings.debug_answers:
        raise RecordsNotKeptError


async def _prompt_texts(app: App, request: GenerationRequest, observation: Observation) -> list[str] | None:
    """The text of each token of the prompt; None if the model is not available."""
    with suppress(AntiphonError):
        model = await app.models.model(observation.model or "")
        return await model.token_texts(request.prompt.ids)
    return None


async def _from_log(app: App, owner: str, response_id: str) -> AnswerRecord | None:
    """The record of a stored response whose chunks are in its log. Raises AntiphonError."""
    store = app.storage.store
    row = await store.responses.get(owner, response_id)
    if row is None:
        return None
    entries = read_entries(entry.chunks for entry in await log_of(store, row))
    if not entries:  # it is not a background response, or has not begun
        return None
    wire = msgspec.json.decode(row.request, type=CreateResponse)
    accepted = (await read_request(app, wire, owner, row.id)).accepted
    model = await app.models.model(accepted.turn.model)
    record = AnswerRecord(Observation(answer=row.id, model=row.model), row.created_at)
    ids = unpacked(row.prompt_ids)  # None if the answer ended before they were written
    decoder = None
    for entry in entries:
        if isinstance(entry, PromptEntry):
            ids, decoder = entry.ids, None
        elif isinstance(entry, Chunk):
            if decoder is None:
                async with model.in_use():
                    prepared = await model.prepare(accepted.turn, ids)
                generation = record_of(0, prepared.request, prepared.reading)
                record.generations.append(generation)
                decoder = RecordingDecoder(prepared.decoder(None), generation)
            decoder.feed(entry)
            if entry.finish is not None:
                decoder.finish(entry.finish)
    return record


def _encoded(
    answer_id: str,
    record: AnswerRecord,
    generations: Sequence[GenerationRecord],
    texts: Sequence[list[str] | None],
) -> bytes:
    observation = record.observation
    return msgspec.json.encode(
        ShownRecord(
            id=observation.answer or answer_id,
            request_id=observation.request_id or None,
            created_at=record.created_at,
            model=observation.model,
            served_model=observation.served,
            dialect=observation.dialect,
            finish=observation.finish,
            unmet=observation.unmet,
            generations=[
                _shown(generation, text) for generation, text in zip(generations, texts, strict=True)
            ],
        )
    )


def _shown(record: GenerationRecord, texts: list[str] | None) -> ShownGeneration:
    """One generation."""
    request, events = record.request, [event for _, step_events in record.steps for event in step_events]
    conversation = request.conversation
    return ShownGeneration(
        choice=record.choice,
        prompt=ShownPrompt(
            request.prompt.text,
            None if texts is None else _prompt_tokens(request, texts),
            record.media,
            None if conversation is None else conversation.messages,
        ),
        sampling=_without_empty(asdict(request.sampling)),
        max_tokens=request.max_tokens,
        constraint=_constraint(request),
        reading=asdict(record.reading),
        text="".join(chunk.text for chunk, _ in record.steps),
        steps=[_step(step) for step in record.steps],
        end=[_event(event) for event in record.end],
        verdicts=[event.why for event in (*events, *record.end) if isinstance(event, Malformed)],
    )


def _prompt_tokens(request: GenerationRequest, texts: list[str]) -> list[PromptToken]:
    return [
        PromptToken(token, text, text in request.preserve or bool(_LOOKS_SPECIAL.fullmatch(text)))
        for token, text in zip(request.prompt.ids, texts, strict=True)
    ]


def _constraint(request: GenerationRequest) -> dict[str, Any] | None:
    """The constraint of the engine."""
    constraint = request.constraint
    return None if constraint is None else {"type": name_of(constraint), **asdict(constraint)}


def _step(step: Step) -> ShownStep:
    chunk, events = step
    pieces = (
        [ShownPiece(piece.kind, piece.text, piece.name) for piece in chunk.pieces]
        if isinstance(chunk, ChatChunk)
        else []
    )
    return ShownStep(
        text=chunk.text,
        tokens=[_token(token) for token in chunk.tokens],
        pieces=pieces or UNSET,
        finish=asdict(chunk.finish) if chunk.finish else UNSET,
        events=[_event(event) for event in events],
    )


def _token(token: Token) -> ShownToken:
    top = [
        Alternative(alternative.id, text_of(alternative), alternative.logprob) for alternative in token.top
    ]
    return ShownToken(token.id, text_of(token), token.logprob, top=top)


def _event(event: Event) -> dict[str, Any]:
    """An event by its name, with its fields."""
    return {"type": name_of(event), **_without_empty(asdict(event), _HIDDEN)}


def _without_empty(fields: Mapping[str, Any], hidden: Collection[str] = ()) -> dict[str, Any]:
    """The fields that are not empty."""
    return {name: value for name, value in fields.items() if name not in hidden and value not in _EMPTY}


_HIDDEN = frozenset({"tokens", "index", "item"})
_EMPTY: tuple[Any, ...] = (None, "", (), {})


async def status(app: App, owner: str) -> bytes:
    """The state of the server: its models, their load, and the number of tokens written so far.

    Tokens are those of completed requests; `tokens_now` are those of running generations.
    """
    return msgspec.json.encode(_summed(await app.ask(STATUS, None)))


async def _status_here(app: App, _: None) -> ServerNow:
    data = []
    for served in app.models.served:
        name = served.names[0] if served.names else ""
        load = served.load_now if served.loaded else Load()
        prompt_tokens, generated_tokens = app.metrics.tokens(name)
        data.append(
            ModelNow(
                id=name,
                names=served.names,
                loaded=served.loaded,
                running=load.running,
                waiting=load.waiting,
                slots=load.slots,
                memory_bytes=served.memory,
                prompt_tokens=prompt_tokens,
                generated_tokens=generated_tokens,
                tokens_now=served.tokens_now,
            )
        )
    return ServerNow(
        health=app.models.health,
        background_running=app.metrics.background,
        debug_answers=app.settings.debug_answers,
        permits=[
            PermitsNow(work, load.slots, load.running, load.waiting) for work, load in app.permits.items()
        ],
        models=data,
    )


STATUS = Call("status", _status_here, None, ServerNow)


def _summed(processes: Sequence[ServerNow]) -> ServerNow:
    """The state of a server of these processes, which share the slots of their models."""
    first, *others = sorted(processes, key=lambda process: process.health is not Health.READY)
    for other in others:
        for model, also in zip(first.models, other.models, strict=True):
            model.loaded |= also.loaded
            model.slots = max(model.slots, also.slots)
            for field in ("running", "waiting", "prompt_tokens", "generated_tokens", "tokens_now"):
                setattr(model, field, getattr(model, field) + getattr(also, field))
        permits = {permits.work: permits for permits in first.permits}
        for also_given in other.permits:
            given = permits.setdefault(also_given.work, PermitsNow(also_given.work, 0, 0, 0))
            given.slots += also_given.slots
            given.running += also_given.running
            given.waiting += also_given.waiting
        first.permits = [*permits.values()]
        first.background_running += other.background_running
    return first
