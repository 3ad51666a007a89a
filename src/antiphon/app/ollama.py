"""Ollama's API without HTTP: answers, vectors, and what is told of the models.

A request without messages, or without a prompt, only loads its model; with `keep_alive` 0 a model is
unloaded, which needs the scope `admin` on a server with keys: other clients have to wait for it then.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from time import perf_counter
from typing import Any

import msgspec
from msgspec.structs import replace

from antiphon import __version__
from antiphon.apis.chat.accept import ServerDefaults
from antiphon.apis.envelope import Envelope, PresentationOptions
from antiphon.apis.ollama.accept import Accepted, accept_chat, accept_prompt, notes_on, unloads, with_tools
from antiphon.apis.ollama.answer import LineBuilder, ManagedLine
from antiphon.apis.ollama.lines import Lines, chat_line, generate_line, rfc3339
from antiphon.apis.ollama.resource import (
    Durations,
    EmbedBody,
    EmbeddingBody,
    Line,
    ListedModel,
    LoadedModel,
    LoadedModels,
    ModelDetails,
    ModelList,
    PullStatus,
    ShownModel,
    Version,
)
from antiphon.apis.ollama.schema import (
    AnswerRequest,
    ChatRequest,
    EmbeddingsRequest,
    EmbedRequest,
    GenerateRequest,
    ModelRequest,
)
from antiphon.apis.ollama.stream import LineStream
from antiphon.apis.vectors import EmbeddingsRequest as VectorRequest
from antiphon.app import chat as chats
from antiphon.app.app import App
from antiphon.app.ids import answer_id, created_now
from antiphon.app.vectors import embedded
from antiphon.core.errors import NotFoundError, RequestError, ScopeError, naming
from antiphon.core.hosts import Note
from antiphon.core.items import MediaKind
from antiphon.core.observation import observed
from antiphon.core.vectors import Embeddings
from antiphon.engines.engine import Task
from antiphon.run.answer_source import AnswerSource
from antiphon.run.drive import Driver, Output, Projection, Source
from antiphon.run.loading import ServedModel
from antiphon.run.model import Model
from antiphon.run.models import ModelEntry

PREFIX = "ollama-"
COMPATIBLE = "0.30.0"
"""The Ollama whose API this is: clients read from its version which fields there are."""
_LATEST = ":latest"
"""The tag that clients of Ollama add to a name without one."""
_FOREVER = "9999-12-31T00:00:00Z"
_SECOND = 1_000_000_000
_TASKS = {Task.GENERATE: "completion", Task.EMBED: "embedding"}
NO_VECTOR: Sequence[float] = ()
NO_VECTORS = Embeddings((), 0)
_ONLY_ADMIN = (
    "Only a key with the scope 'admin' may unload a model. Leave 'keep_alive' out, or use such a key."
)


async def chat(app: App, request: ChatRequest, owner: str, header_id: str | None) -> Driver:
    """Answer a conversation. Raises RequestError."""
    if not request.messages:
        return await _managed(app, request, chat_line)
    model = await app.models.model(known_name(app, request.model))
    defaults = await chats.defaults(app, model, with_tools(request), owner)
    accepted = await app.large.run_on_items(request.messages, lambda: accept_chat(request, owner, defaults))
    return await _answer(app, request, model, accepted, chat_line, header_id)


async def generate(app: App, request: GenerateRequest, owner: str, header_id: str | None) -> Driver:
    """Answer a prompt, go on with it, or fill a gap. Raises RequestError."""
    if not (request.prompt or request.suffix or request.images):
        return await _managed(app, request, generate_line)
    model = await app.models.model(known_name(app, request.model))
    accepted = accept_prompt(request, owner, ServerDefaults(app.presentation(model)))
    return await _answer(app, request, model, accepted, generate_line, header_id)


async def _answer(  # noqa: PLR0913, PLR0917 - what an answer is made of
    app: App,
    request: AnswerRequest,
    model: Model,
    accepted: Accepted,
    line: Callable[..., Line],
    header_id: str | None,
) -> Driver:
    """The driver of an answer in lines of this kind. Raises RequestError."""
    turn, presentation = accepted.turn, accepted.presentation
    notes = [*presentation.notes, *app.notes_on_forced(model, turn)]
    name, leaves = known_name(app, request.model), unloads(request.keep_alive)
    if leaves and (why := _why_it_stays(app, name)):
        leaves = False
        notes.append(Note("keep_alive", f"The model stays loaded. {why}"))
    app.log_notes(notes)
    observed().answer = answer = answer_id(PREFIX, request.request_id, header_id)
    envelope = Envelope(answer, request.model, int(created_now()))
    shown = replace(presentation, notes=(*notes,))
    lines = Lines(envelope, shown, line, _clock())
    projection: Projection = (LineStream if request.stream else LineBuilder)(envelope, lines)
    source: Source = AnswerSource([await app.attached(model, turn)], model)
    if leaves:
        source = _LastUse(app, name, source)
    return app.driver(source, projection, seconds=request.deadline_seconds)


class _NoAnswer:
    """The source of an answer without events."""

    async def run(self, output: Output) -> None:
        """There is nothing to do."""

    def abandon(self) -> Iterable[tuple[int, object]]:
        return ()


class _LastUse:
    """A source after which its model is unloaded, unless other requests use it."""

    def __init__(self, app: App, name: str, source: Source) -> None:
        self._app = app
        self._name = name
        self._source = source

    async def run(self, output: Output) -> None:
        await self._source.run(output)
        await _unload_unused(self._app, self._name)

    def abandon(self) -> Iterable[tuple[int, object]]:
        return self._source.abandon()


async def _managed(app: App, request: AnswerRequest, line: Callable[..., Line]) -> Driver:
    """Load the model, or unload it. Raises RequestError."""
    name, leaves = known_name(app, request.model), unloads(request.keep_alive)
    if leaves:
        if not _may_unload(app):
            raise ScopeError(_ONLY_ADMIN)
        await app.models.unload(name)
    else:
        await _load(app, name)
    notes = notes_on(request)
    app.log_notes(notes)
    envelope = Envelope("", request.model, int(created_now()))
    lines = Lines(envelope, PresentationOptions(notes=notes), line, _clock())
    return app.driver(_NoAnswer(), ManagedLine(lines, "unload" if leaves else "load"))


async def _load(app: App, name: str) -> None:
    """Have the model of that name loaded. Raises RequestError, EngineError."""
    model = await app.models.model(name)
    async with model.in_use():
        pass


def known_name(app: App, name: str) -> str:
    """The name without the tag that clients of Ollama add, if the server knows the model so."""
    short = name.removesuffix(_LATEST)
    return short if short != name and name not in app.models.names else name


def _may_unload(app: App) -> bool:
    return not app.keys.guarded or "admin" in observed().account.permissions.scopes


def _why_it_stays(app: App, name: str) -> str:
    """Why a model cannot be unloaded after a request; empty if it can."""
    if not _may_unload(app):
        return _ONLY_ADMIN
    return "" if _served(app, app.models.entry(name)).memory else "It takes no memory of this server."


async def _unload_unused(app: App, name: str) -> None:
    """Unload a model that can be unloaded now."""
    try:
        await app.models.unload(name)
    except RequestError as error:
        app.log.info("not unloaded", model=name, why=error.message)


def _clock() -> Callable[[], Durations]:
    """A function that tells how long the answer to this request took so far."""
    observation = observed()

    def durations() -> Durations:
        now, begun = perf_counter(), observation.started + observation.loading
        first = now if observation.first is None else observation.first
        seconds = (now - observation.started, observation.loading, max(0, first - begun), now - first)
        return Durations(*map(_nanoseconds, seconds))

    return durations


def _nanoseconds(seconds: float) -> int:
    return int(seconds * _SECOND)


# Vectors


async def embed(app: App, request: EmbedRequest) -> bytes:
    """The vectors of texts. Raises RequestError, EngineError."""
    texts = [request.input] if isinstance(request.input, str) else request.input or []
    truncate = True if request.truncate is None else request.truncate
    name, vectors = known_name(app, request.model), NO_VECTORS
    if texts in ([], [""]):
        await _load(app, name)
    else:
        asked = VectorRequest(
            model=name,
            input=[*texts],
            dimensions=request.dimensions,
            truncate=truncate,
        )
        vectors = await embedded(app, asked)
    await _keep(app, request)
    taken = _clock()()
    body = EmbedBody(
        request.model, vectors.vectors, taken.total_duration, taken.load_duration, vectors.tokens
    )
    return await app.large.run(lambda: msgspec.json.encode(body))


async def embeddings(app: App, request: EmbeddingsRequest) -> bytes:
    """The vector of a text, in the older form. Raises RequestError, EngineError."""
    name, vector = known_name(app, request.model), NO_VECTOR
    if not request.prompt:
        await _load(app, name)
    else:
        asked = VectorRequest(model=name, input=request.prompt, truncate=True)
        with naming({"input": "prompt"}):
            vector = (await embedded(app, asked)).vectors[0]
    await _keep(app, request)
    return msgspec.json.encode(EmbeddingBody(vector))


async def _keep(app: App, request: EmbedRequest | EmbeddingsRequest) -> None:
    """Unload the model if the request says so; log what of it has no effect. Raises RequestError."""
    app.log_notes(notes_on(request))
    name = known_name(app, request.model)
    if unloads(request.keep_alive):
        if why := _why_it_stays(app, name):
            app.log.info("not unloaded", model=name, why=why)
        else:
            await _unload_unused(app, name)


# Models


def tags(app: App) -> ModelList:
    """The models that requests may name. Raises EngineNotReadyError."""
    return ModelList([ListedModel(**_listed(app, entry)) for entry in app.models.entries()])


def loaded(app: App) -> LoadedModels:
    """Those of them that are loaded. Raises EngineNotReadyError."""
    return LoadedModels(
        [
            LoadedModel(
                **_listed(app, entry),
                expires_at=_FOREVER,
                context_length=0 if entry.card is None else entry.card.context,
            )
            for entry in app.models.entries()
            if _served(app, entry).loaded
        ]
    )


async def show(app: App, request: ModelRequest) -> ShownModel:
    """What is known of a model, which is loaded for it once. Raises RequestError, EngineError."""
    name = known_name(app, named(request))
    model, entry = await app.models.model(name), app.models.entry(name)
    card, family = model.card, model.traits.family or "unknown"
    parameters = {name: value for name, value in card.defaults.items() if value is not None}
    return ShownModel(
        modelfile=f"# {name} is served by Antiphon, which has no Modelfiles.\n",
        parameters="\n".join(f"{name:<30} {value}" for name, value in parameters.items()),
        template=card.chat_template or "",
        details=_details(entry, model),
        model_info={"general.architecture": family, f"{family}.context_length": card.context},
        capabilities=[*_capabilities(model)],
        modified_at=rfc3339(card.created),
    )


def pull(app: App, request: ModelRequest) -> PullStatus:
    """Nothing to do for a model that is there. Raises NotFoundError for another."""
    name = named(request)
    try:
        app.models.entry(known_name(app, name))
    except NotFoundError as error:
        message = f"{error.message} Models are not fetched here: the operator starts the server with them."
        raise NotFoundError(message, param="model", code=error.code) from error
    return PullStatus()


def version() -> Version:
    """The version of Ollama's API, and that of this server."""
    return Version(COMPATIBLE, __version__)


def named(request: ModelRequest) -> str:
    """The name in a request about a model. Raises RequestError."""
    name = request.model or request.name
    if not name:
        message = "Missing required parameter: 'model'."
        raise RequestError(message, param="model", code="missing_required_parameter")
    return name


def _served(app: App, entry: ModelEntry) -> ServedModel:
    """The model behind a name; that of an adapter is the one that it belongs to."""
    name = entry.root if entry.parent is None else entry.parent
    return next(served for served in app.models.served if name in served.names)


def _listed(app: App, entry: ModelEntry) -> dict[str, Any]:
    """The fields of an entry of a list."""
    served, created = _served(app, entry), 0 if entry.card is None else entry.card.created
    return {
        "name": entry.name,
        "model": entry.name,
        "modified_at": rfc3339(created),
        "size": served.memory,
        "digest": sha256(entry.name.encode()).hexdigest(),
        "details": _details(entry, served.model),
    }


def _details(entry: ModelEntry, model: Model | None) -> ModelDetails:
    family = "" if model is None else model.traits.family
    return ModelDetails(family, (family,) if family else (), parent_model=entry.parent or "")


def _capabilities(model: Model) -> Iterator[str]:
    """What a model can do, in Ollama's words."""
    able, traits = model.card.capabilities, model.traits
    yield from (word for task, word in _TASKS.items() if task in able.tasks)
    if traits.calls:
        yield "tools"
    if traits.reasons:
        yield "thinking"
    if MediaKind.IMAGE in able.media:
        yield "vision"
    if model.card.fill_in is not None:
        yield "insert"
