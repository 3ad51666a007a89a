"""A model on another server: sends prompts as tokens (or as text), and receives text and tokens.

The kind of the server is recognised by its answers to probes, see `upstreams/kind.py`. For every kind, the
connection is closed when an answer is not wanted any more, and requests that the server cannot serve are
refused here, because the capabilities of the card do not name the feature.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from contextvars import copy_context
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Annotated, Any

import structlog
from cyclopts import Parameter
from cyclopts.types import PositiveFloat, PositiveInt
from msgspec import structs

from antiphon.core.chunks import Chunk, Finish, FinishReason, PromptToken
from antiphon.core.decision import Verdicts
from antiphon.core.errors import (
    AntiphonError,
    EngineError,
    EngineNotReadyError,
    ReportedError,
    RequestError,
    UnsupportedModelError,
    needing_extra,
)
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.located import Located, file_or_name
from antiphon.core.nearest import did_you_mean
from antiphon.core.observation import observed
from antiphon.core.options import COMMON_ENGINE, COMMON_MODEL
from antiphon.core.shared_queue import SharedQueue
from antiphon.core.untrusted_json import UNREADABLE
from antiphon.core.vectors import EmbeddingRequest, Embeddings, Scores
from antiphon.engines.admission import Admission, Slot
from antiphon.engines.engine import (
    DecisionRequest,
    Engine,
    GenerationRequest,
    Load,
    ModelCard,
    NextToken,
    NextTokenRequest,
    Receiver,
    Task,
    TranscriptionRequest,
    Work,
    failure_of,
)
from antiphon.engines.figures import UNKNOWN, AdapterFigures, CacheFigures, completed
from antiphon.engines.http_client import Exchange, HttpClient, HttpError, LineSplitter, StreamedExchange
from antiphon.engines.kv_sources import PATHS, Source, is_endpoint, sources_of_option
from antiphon.engines.next_token import generate_next
from antiphon.engines.pool import Follow, PoolEngine, follow_of, member_of
from antiphon.engines.redact import know, redacted, without_known
from antiphon.engines.shared_admission import admission
from antiphon.engines.shared_prompts import PromptTicket, SharedPrompts
from antiphon.engines.token_limit import TokenLimit
from antiphon.engines.upstreams import (
    anthropic,
    chat,
    completions,
    llama_server,
    ollama,
    sglang,
    systemone,
    tabbyapi,
    tgi,
    vectors,
    vllm_server,
)
from antiphon.engines.upstreams.kind import (
    CUMULATIVE,
    MAX_REFUSAL,
    MODELS,
    PROBES,
    Answers,
    BeamSearchingServer,
    LineReader,
    NextTokenScoringServer,
    NotFetched,
    PromptScoringServer,
    PromptSharingServer,
    Recognise,
    SlotScoringServer,
    SlotServer,
    UpstreamServer,
    UpstreamSettings,
    ask,
    broken,
    refusal,
    unreachable,
)
from antiphon.engines.upstreams.metrics import NAMES, MetricsReader
from antiphon.engines.upstreams.vectors import vector_api

log = structlog.get_logger()

KINDS: Mapping[str, Recognise] = {
    **{provider.name: chat.recogniser(provider) for provider in chat.PROVIDERS_BY_MODEL},
    tabbyapi.EXLLAMAV3.name: tabbyapi.recognise,
    tabbyapi.EXLLAMAV2.name: tabbyapi.recognise_exllamav2,
    llama_server.NAME: llama_server.recognise,
    sglang.SGLANG.name: sglang.recognise,
    completions.VLLM.name: vllm_server.recognise,
    tgi.NAME: tgi.recognise,
    ollama.NAME: ollama.recognise,
    completions.ANY.name: completions.recognise,
    chat.ANY.name: chat.recogniser(chat.ANY),
    anthropic.NAME: anthropic.recognise,
}
"""How servers are recognised, in this order.

Other servers have Ollama's endpoints, too, TabbyAPI has llama-server's `/props`, Antiphon has both, and a
server that takes prompts does not get conversations.
"""


HEARD_SECONDS = 1.0
"""For how long a part of an answer shows that the server works."""

PIECE_LINES, PIECE_BYTES = 128, 64 * 1024
"""Lines, and bytes of them, that are read in one turn of the event loop: a server may send faster."""

MAX_AFTER_END = 64
"""Lines that are read after the end of an answer, until its usage comes."""

DRAIN_SECONDS = 0.05
"""Seconds between two checks for running requests."""

MISSING_STATUSES = (404, 405, 501)
"""The statuses of a server that does not have the requested endpoint."""

LOOKUPS = 4
"""Simultaneous requests for the texts of tokens. llama-server has as many threads besides those of its
slots, and a connection keeps its thread for 5 s after an answer: a further request would wait for that."""


def is_kind(_type: object, value: str | None) -> None:
    """Raise ValueError if there is no such kind of server."""
    if value is not None and value not in KINDS:
        hint = did_you_mean(value, KINDS)
        raise ValueError(f"The kinds of servers are {', '.join(KINDS)}.{hint}")


def is_events(_type: object, value: str) -> None:
    """Raise ValueError if this is no way to learn what caches hold."""
    if value not in {"auto", "off"} and not is_endpoint(value):
        raise ValueError("It is auto, off, or addresses: tcp://*:5557,tcp://*:5558")


def _event_reader() -> Follow:
    with needing_extra("--kv-events", "kv-events"):
        from antiphon.engines.upstreams.kv_reader import EventReader  # noqa: PLC0415 - an optional extra
    return EventReader


@dataclass(frozen=True)
class Options:
    """The options of a server that runs the model."""

    model: Annotated[str, COMMON_MODEL]
    """The URL of the server that runs the model: http://127.0.0.1:8080"""

    _: KW_ONLY

    upstream_kind: Annotated[str | None, Parameter(validator=is_kind)] = None
    """The kind of the server. Without it, the kind is recognised from the server's answers."""

    upstream_model: Annotated[str | None, COMMON_ENGINE] = None
    """Which of the server's models to use. Without it, the first that it lists."""

    task: Task | None = None
    """The task of the model: generate, embed, rank or transcribe. Without it, everything that the server
    does; only a model that generates needs a chat template."""

    upstream_key: Annotated[str | None, COMMON_ENGINE] = field(default=None, repr=False)
    """The key for the server. Prefer the variable: other users can see command lines."""

    tokenizer: Annotated[str | None, Located(file_or_name)] = None
    """The place of the model's tokenizer and chat template, if the server does not have endpoints for them:
    a folder with tokenizer.json in it, or ORG/REPO on the Hugging Face hub (needs the extra `tokenizer`)."""

    context: PositiveInt | None = None
    """The maximum number of tokens of a prompt and its answer together. Without it, the number that the
    server reports."""

    parallel: PositiveInt | None = None
    """How many answers are generated at the same time; further requests wait. Without it, as many as
    the server has slots, or 256 if that is unknown."""

    replica: Annotated[tuple[str, ...], Parameter(show_default=False)] = ()
    """The URL of another server that runs the same model; repeat it for several. Each answer is generated by
    the one where it costs least, and another continues it if that fails."""

    kv_events: Annotated[str, Parameter(validator=is_events)] = "off"
    """With several servers: how to learn what their caches hold. `auto` asks each server of vLLM or SGLang
    where it publishes events; tcp://*:5557,tcp://*:5558 says where, for events and for those missed,
    with * for the host of each server; `off` remembers what was sent (needs the extra `kv-events`)."""

    connect_seconds: PositiveFloat = 10
    """How long a connection to the server may take."""

    idle_seconds: PositiveFloat = 300
    """How long the server may send nothing during an answer, the time that it needs for a prompt included."""

    def build(self, limits: Limits = DEFAULTS) -> Engine:
        """Check the URLs. Raises AntiphonError for an option that one server alone cannot follow."""
        if not self.replica:
            if self.kv_events != "off":
                raise AntiphonError("--kv-events needs several servers: add --replica URL, or leave it out.")
            return UpstreamEngine(self, limits)
        members = [replace(self, model=url, replica=()) for url in (self.model, *self.replica)]
        engines = [(options.model, member_of(options, limits)) for options in members]
        return PoolEngine(engines, follow=follow_of(members))

    def build_member(self, limits: Limits) -> Engine:
        """See `MemberOptions`."""
        return self.build(limits) if self.replica else UpstreamEngine(self, limits)

    @property
    def follow(self) -> Follow | None:
        """See `MemberOptions`: several servers as one member are followed by their own pool."""
        return None if self.kv_events == "off" or self.replica else _event_reader()


def card_of(server: UpstreamServer, task: Task | None) -> ModelCard:
    """The card of the model of a server, with its tasks: this `task`, or all that such a server supports.

    Raises EngineError if the server does not support it.
    """
    api = vector_api(server.kind)
    if task is not None and task not in api.tasks:
        raise EngineError(f"A server of the kind {server.kind} has no models to {task}.")
    tasks = api.tasks if task is None else frozenset({task})
    able = structs.replace(server.card.capabilities, tasks=tasks, embedding=api.fields)
    return structs.replace(server.card, capabilities=able)


class UpstreamEngine:
    """The model of the server at the URL `options.model`. Raises EngineError if that is not a URL."""

    def __init__(self, options: Options, limits: Limits = DEFAULTS) -> None:
        self._options = options
        self._limits = limits
        self._client = client_of(options, limits)
        self._admission = Admission(1, limits)
        self._queue: SharedQueue | None = None
        self._scoring = Admission(1, limits)  # in one slot: one request after the other
        self._prompts: SharedPrompts | None = None
        self._generations: dict[_Generation, None] = {}
        self._lookups = _Lookups()
        self._metrics: MetricsReader | None = None
        self._loading: asyncio.Future[tuple[UpstreamServer, ModelCard]] | None = None
        self._server: UpstreamServer | None = None
        self._card: ModelCard | None = None

    @property
    def card(self) -> ModelCard:
        """The model. Raises EngineNotReadyError before `start`."""
        if self._card is None:
            raise EngineNotReadyError
        return self._card

    @property
    def load(self) -> Load:
        """How many answers the server works on for us, and how many wait here."""
        load = self._admission.load
        if self._prompts is None:
            return load
        others = self._prompts.waiting + self._scoring.waiting
        return structs.replace(load, waiting=load.waiting + others)

    def share(self, permits: Callable[[], SharedQueue]) -> None:
        """Share the slots of the server with other processes of this one."""
        self._queue = permits()

    @property
    def memory(self) -> int:
        """None on this machine."""
        return 0

    async def start(self) -> None:
        """Recognise the server. Raises EngineError if it cannot be reached, or is of no known kind."""
        self._loading = asyncio.ensure_future(self._recognised())
        server, card = await asyncio.shield(self._loading)
        if self._loading is None:  # stopped meanwhile
            return
        log.info("upstream", url=self._options.model, kind=server.kind, model=server.card.name)
        self._server, self._card = server, card
        self._admission = admission(server.slots, self._limits, self._queue)
        self._prompts = server.prompts if isinstance(server, PromptSharingServer) else None
        if (names := NAMES.get(server.kind)) is not None:
            self._metrics = MetricsReader(self._client, names, server.card.known_as[0], self._options.model)

    async def _recognised(self) -> tuple[UpstreamServer, ModelCard]:
        """The server, and its model. It answers questions itself where the next token cannot be read."""
        server = await recognised_server(self._options, self._client)
        card = card_of(server, self._options.task)
        able = card.capabilities
        if Task.GENERATE in able.tasks and "logprobs" in able.sampling:
            return server, card
        able = structs.replace(able, answers_questions=await systemone.is_served(self._client))
        return server, structs.replace(card, capabilities=able)

    async def event_sources(self) -> Sequence[Source]:
        """See `TellsEvents`."""
        option, host = self._options.kv_events, self._client.host
        if option not in {"auto", "off"}:
            return sources_of_option(option, host)
        path, read = PATHS.get(self._running().kind, ("", None))
        if option == "off" or read is None:
            return ()
        try:
            response = await self._client.request("GET", path)
            return read(response.json(), host) if response.status == 200 else ()
        except HttpError as error:
            raise unreachable(error) from error

    async def probe(self) -> None:
        """Raise EngineError if the server does not answer, or is not ready.

        It is not asked while parts of answers come: a server that is busy may take long for this.
        """
        if self._client.heard_within(HEARD_SECONDS):
            return
        try:
            response = await self._client.request("GET", "/health")
        except HttpError as error:
            raise unreachable(error) from error
        if response.status >= 500:  # a server without this path answers 404, which shows that it works
            raise refusal(response.status, response.body)

    async def stop(self, reason: type[EngineError] = EngineNotReadyError) -> None:
        """Close the connections; running and waiting requests fail for this reason."""
        loading, self._loading, self._server = self._loading, None, None
        if loading is not None and not loading.done():
            await asyncio.wait((loading,))
            with suppress(AntiphonError):
                loading.result()
        for generation in [*self._generations]:
            generation.fail(reason())
        metrics, self._metrics = self._metrics, None
        if metrics is not None:
            await metrics.close()
        self._client.close()

    async def cache_figures(self) -> CacheFigures:
        """What the server says of its cache; what it does not say, of the slots that it works in for us."""
        own = self.slot_figures
        if self._metrics is None:
            return own
        return structs.replace(completed(await self._metrics.figures(), own), told=True)

    @property
    def slot_figures(self) -> CacheFigures:
        """The figures of the slots of the server; unknown, if it has none.

        The tokens in use are counted here, because a server answers to such questions only after a batch of a
        prompt. Those of a prompt count from the start of its generation, before they are computed.
        """
        server = self._server
        if not isinstance(server, SlotServer) or Task.GENERATE not in self.card.capabilities.tasks:
            return UNKNOWN
        used = sum(generation.tokens for generation in self._generations if generation.sent)
        return CacheFigures(
            usage=min(1.0, used / server.cells),
            block_size=1,
            blocks=server.cells,
            queries=self._lookups.queries,
            hits=self._lookups.hits,
        )

    def adapter_figures(self, names: Sequence[str]) -> AdapterFigures:
        """The adapters in use, of which requests have the indexes in `names`."""

        def of(*, sent: bool) -> frozenset[str]:
            generations = (generation for generation in self._generations if generation.sent is sent)
            return frozenset(names[number] for generation in generations for number in generation.adapters)

        return AdapterFigures(of(sent=True), of(sent=False), len(names))

    async def drain(self) -> None:
        """Wait until no request runs, or waits for its turn."""
        while self._is_busy():  # noqa: ASYNC110 - there is no event for all of it
            await asyncio.sleep(DRAIN_SECONDS)

    def _is_busy(self) -> bool:
        """Whether a request runs or waits. One that was given the turn to score may not have a slot yet."""
        scores = bool(self._scoring.running)
        return scores or not self.load.idle or bool(self._generations) or self._client.busy

    def _running(self) -> UpstreamServer:
        if self._server is None:
            raise EngineNotReadyError
        return self._server

    async def tokenize(self, pieces: Sequence[str]) -> list[int]:
        """The ids of all pieces, each tokenized by itself."""
        server = self._running()
        return await server.tokenize(pieces)

    async def token_texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each of these tokens, which come from `tokenize`; `\ufffd` for half a character."""
        server, texts = self._running(), dict.fromkeys(ids, "")
        tokens = [*texts]
        for start in range(0, len(tokens), LOOKUPS):
            batch = tokens[start : start + LOOKUPS]
            texts |= zip(
                batch, await asyncio.gather(*(server.detokenize((token,)) for token in batch)), strict=True
            )
        return [texts[token] for token in ids]

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of these tokens, special ones included. Raises RequestError for an unknown id."""
        return await self._running().detokenize(ids)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        server = self._running()
        return await vectors.embed(self._post, vector_api(server.kind), server.card, request)

    async def score(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        server = self._running()
        return await vectors.score(self._post, vector_api(server.kind), server.card, pairs)

    async def transcribe(self, audio: TranscriptionRequest) -> AsyncGenerator[bytes, None]:
        async with self._admission.hold():
            server = self._running()
            body, media_type = vectors.form_of(server.card, audio)
            path = "/v1/audio/translations" if audio.translated else "/v1/audio/transcriptions"
            encoded = self._client.encode("POST", path, body, observed().trace, media_type)
            exchange = StreamedExchange(encoded, self._limits)
            self._client.send(exchange)
            error_body = b""
            try:
                async with aclosing(exchange.pieces()) as pieces:
                    async for piece in pieces:
                        if exchange.status == 200:
                            yield piece
                        else:
                            error_body = (error_body + piece)[:MAX_REFUSAL]
            except HttpError as error:
                raise unreachable(error) if not exchange.status else broken(error) from error
            if exchange.status in MISSING_STATUSES:
                raise self._unsupported_task()
            if exchange.status != 200:
                raise _without_key(refusal(exchange.status, error_body, exchange.retry_after))

    @staticmethod
    def _unsupported_task() -> RequestError:
        message = "The server of this model cannot do this with it. Name another model."
        return RequestError(message, param="model")

    async def score_prompt(self, request: GenerationRequest) -> tuple[PromptToken, ...]:
        server = self._running()
        assert isinstance(server, PromptScoringServer)
        return await server.score_prompt(self._post, request)

    async def search(self, request: GenerationRequest) -> Sequence[Sequence[Chunk]]:
        server = self._running()
        assert isinstance(server, BeamSearchingServer)
        return await server.search(self._post, request)

    async def score_next(self, request: NextTokenRequest) -> tuple[NextToken, ...]:
        server, priority = self._running(), request.sampling.priority or 0
        if isinstance(server, NextTokenScoringServer):
            return await server.score_next(partial(self._post, priority=priority), request)
        if not isinstance(server, SlotScoringServer):
            return await generate_next(self, request)
        async with self._scoring.hold(priority), self._admission.hold(priority):
            self._running()
            return await server.score_in_slot(request, self._lines, self._lookups.add)

    async def decide(self, request: DecisionRequest) -> Verdicts:
        self._running()
        try:
            post = partial(self._ask, priority=request.decision.sampling.priority or 0)
            return await systemone.decide(post, self.card, request)
        except AntiphonError as error:
            if not _is_missing(error):
                raise
            message = (
                f"The server of the model '{self.card.name}' does not support decisions. Name another model."
            )
            raise UnsupportedModelError(message, param="model") from error.__cause__

    async def _lines(self, path: str, body: bytes) -> AsyncGenerator[bytes, None]:
        """The lines of the server's answer. Raises AntiphonError."""
        exchange = StreamedExchange(self._client.encode("POST", path, body, observed().trace), self._limits)
        self._client.send(exchange)
        lines, error_body = LineSplitter(self._limits, CUMULATIVE), b""
        try:
            async with aclosing(exchange.pieces()) as pieces:
                async for piece in pieces:
                    if exchange.status != 200:
                        error_body = (error_body + piece)[:MAX_REFUSAL]
                        continue
                    lines.feed(piece)
                    while (line := lines.take()) is not None:
                        yield line
        except HttpError as error:
            raise _without_key(unreachable(error) if not exchange.status else broken(error)) from error
        if exchange.status != 200:
            raise _without_key(refusal(exchange.status, error_body, exchange.retry_after))

    async def _post(self, path: str, body: Any, form: Any = Any, priority: int = 0) -> Any:
        """The server's answer to a request for one of its tasks. Raises AntiphonError."""
        try:
            return await self._ask(path, body, form, priority)
        except AntiphonError as error:
            if _is_missing(error):
                raise self._unsupported_task() from error
            raise

    async def _ask(self, path: str, body: Any, form: Any = Any, priority: int = 0) -> Any:
        """The server's answer, after waiting for a slot. Raises AntiphonError."""
        async with self._admission.hold(priority):
            self._running()
            try:
                return await ask(self._client, path, body, form)
            except AntiphonError as error:
                raise _without_key(error) from error.__cause__

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        """Begin one generation."""
        loop = asyncio.get_running_loop()
        try:
            server = self._running()
            path, body = server.encode_request(request)
            if request.max_tokens < 1:  # servers would generate one token, or refuse it
                return loop.call_soon(receiver.push, [Chunk("", (), Finish(FinishReason.LENGTH))])
            encoded = self._client.encode("POST", path, body, _headers(request))
            generation = _Generation(
                encoded,
                server.reader(request),
                TokenLimit(request.max_tokens),
                self._limits,
                receiver,
                self._generations,
            )
        except AntiphonError as error:
            return loop.call_soon(receiver.fail, error)
        generation.prompt_tokens, generation.max_tokens = request.tokens
        generation.adapters = _numbers(request)
        generation.lookups = self._lookups
        self._generations[generation] = None
        enter = partial(self._enter, generation, request.sampling.priority or 0)
        if self._prompts is None:
            enter()
        else:
            # It may enter when another request ends, and waits as the client that it is of.
            generation.prompt = self._prompts.ticket(request, partial(copy_context().run, enter))
            generation.prompt.enter()
        return generation

    def _enter(self, generation: "_Generation", priority: int) -> None:
        """Have it begin when there is a slot for it."""
        try:
            generation.slot = self._admission.enter(
                lambda: self._begin(generation), priority, (generation.prompt_tokens, generation.max_tokens)
            )
        except AntiphonError as error:
            asyncio.get_running_loop().call_soon(generation.fail, error)

    def _begin(self, generation: "_Generation") -> None:
        generation.mark_sent()
        self._client.send(generation)


def _headers(request: GenerationRequest) -> Mapping[str, str]:
    """Those of the trace, and vLLM's for the rank that generates."""
    rank, trace = request.placement.rank, observed().trace
    return trace if rank is None else {**trace, "X-data-parallel-rank": str(rank)}


class _Lookups:
    """Tokens of prompts that a server has looked up in its cache, and those that it found there."""

    queries = hits = 0

    def add(self, queries: int, hits: int) -> None:
        """Count those of a prompt."""
        self.queries += queries
        self.hits += hits


class _Generation(Exchange):
    """One generation: the server's response on one side, the receiver on the other."""

    slot: Slot | None = None
    prompt: PromptTicket | None = None
    prompt_tokens = max_tokens = 0
    adapters: Sequence[int] = ()
    sent = False
    lookups: _Lookups

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of a generation
        self,
        request: bytes,
        reader: LineReader,
        limit: TokenLimit,
        limits: Limits,
        receiver: Receiver,
        running: dict["_Generation", None],
    ) -> None:
        super().__init__(request)
        self._reader = reader
        self._receiver = receiver
        self._generations = running
        self._limit = limit
        self._lines = LineSplitter(limits, reader.line_limit)
        self._error_body = b""
        self._turn: asyncio.Handle | None = None  # in which more lines are read
        self._request_task: asyncio.Task[None] | None = None
        self._ended: list[HttpError | None] = []  # the end of the response, once it has arrived
        self._over = False  # the receiver is not called any more
        self._answered = False
        self._late = 0  # lines after the end of the answer

    @property
    def tokens(self) -> int:
        """The tokens of its prompt, and of its answer so far."""
        return self.prompt_tokens + self._limit.tokens

    def mark_sent(self) -> None:
        """It is sent now."""
        self.sent = True
        if self.prompt is not None:
            self.prompt.mark_in_slot()

    def cancel(self) -> None:
        if not self._over:
            self._release_slot()
            self.abort()

    def fail(self, error: AntiphonError) -> None:
        """Stop, and report the error to the receiver."""
        if not self._over:
            self.cancel()
            self._receiver.fail(_without_key(error))

    def _release_slot(self) -> None:
        self._over = True
        self._generations.pop(self, None)
        if self.prompt is not None:
            self.prompt.leave()
        if self.slot is not None:
            self.slot.generated = self._limit.tokens
            self.slot.leave()
        if self._request_task is not None:
            self._request_task.cancel()
        if self._turn is not None:
            self._turn.cancel()

    @property
    def _behind(self) -> bool:
        """There are lines that are not read yet."""
        return self._request_task is not None or self._turn is not None

    # Called by the connection

    def on_body(self, data: bytes) -> None:
        """A server that sends more after the last chunk may send without end."""
        if self._over:
            self.abort()
            return
        if self.status != 200:
            self._error_body = (self._error_body + data)[:MAX_REFUSAL]
            return
        self._lines.feed(data)
        if not self._behind:
            self._read()

    def on_end(self, error: HttpError | None) -> None:
        if self._over:
            return
        try:
            self._end(error)
        except Exception as failure:  # nobody else would tell the receiver
            self.fail(failure_of(failure))

    def _end(self, error: HttpError | None) -> None:
        if self._behind:
            self._ended.append(error)
        elif self.status not in (0, 200):
            self.fail(refusal(self.status, self._error_body, self.retry_after))
        elif not self.status and error is not None:
            self.fail(unreachable(error))
        else:
            self._finish(error)

    def _finish(self, error: HttpError | None) -> None:
        """The response is over, and no error of the server's. An answer may have ended before."""
        if self.whole and error is None and (rest := self._lines.rest()):
            self._lines.feed(rest + b"\n")
            self._read()
            if self._behind:
                self._ended.append(None)
            if self._over or self._ended:
                return
        last = self._reader.end()
        if last is None:
            self.fail(broken(error))
        else:
            self._push([last])

    def _read(self) -> None:
        """Deliver the chunks of the next lines; of more than a turn is enough for, in later turns."""
        chunks: list[Chunk] = []
        failure: AntiphonError | None = None
        more = False
        try:
            more = self._take(chunks)
        except NotFetched as missing:
            self._request_task = asyncio.ensure_future(self._ask(missing))
            self.pause()
        except UNREADABLE as error:
            failure = failure_of(ReportedError(f"its answer cannot be read: {redacted(str(error))}"))
        except Exception as error:
            failure = failure_of(error)
        if chunks:
            self._push(chunks)
        if failure is not None:
            self.fail(failure)
        if more and not self._over:
            self.pause()
            self._turn = asyncio.get_running_loop().call_soon(self._read_on)

    def _take(self, chunks: list[Chunk]) -> bool:
        """Append the chunks of the next lines; whether there may be more. Raises what a reader does."""
        lines_left, bytes_left = PIECE_LINES, PIECE_BYTES
        while lines_left and bytes_left > 0:
            line = self._lines.take()
            if line is None:
                return False
            try:
                chunk = self._reader.read(line)
            except NotFetched:
                self._lines.put_back(line)
                raise
            lines_left -= 1
            bytes_left -= len(line)
            if chunk is None and self._reader.ended:
                self._late += 1
                chunk = self._reader.end() if self._late > MAX_AFTER_END else None
            if chunk is not None:
                chunks.append(chunk := self._limit.cut(chunk))
                if chunk.finish is not None:
                    return False
        return True

    def _read_on(self) -> None:
        """Read the next of the lines that have come; after them, the server may send more."""
        self._turn = None
        self._read()
        if self._behind:
            return
        self.resume()  # also after the end: the connection has to be read to its own
        if self._ended:
            self.on_end(self._ended.pop())

    def _push(self, chunks: list[Chunk]) -> None:
        if not self._answered:
            self._answered = True
            self._count_prompt(chunks[0])
        if chunks[-1].finish is not None:
            self._release_slot()  # the slot must be free before the receiver gets the end
            if not self._reader.complete:
                self.abort()
        self._receiver.push(chunks)

    def _count_prompt(self, first: Chunk) -> None:
        """The prompt is computed."""
        if self.prompt is not None:
            self.prompt.mark_computed()
        self.prompt_tokens += first.media_tokens
        self.lookups.add(self.prompt_tokens, first.cached_tokens)

    async def _ask(self, missing: NotFetched) -> None:
        """Look up what is missing, and continue to read."""
        try:
            await missing.fetch()
            self._request_task = None
            self._read_on()
        except Exception as error:
            self._request_task = None
            self.fail(failure_of(error))


def _is_missing(error: AntiphonError) -> bool:
    """Whether the server does not have the requested endpoint."""
    return isinstance(error.__cause__, HttpError) and error.__cause__.status in MISSING_STATUSES


def _without_key(error: AntiphonError) -> AntiphonError:
    """The error, and its cause, without keys of this server: others quote requests."""
    error.message = without_known(error.message)
    if isinstance(error.__cause__, HttpError):
        error.__cause__.args = (without_known(str(error.__cause__)),)
    return error


def client_of(options: Options, limits: Limits = DEFAULTS) -> HttpClient:
    """A client of the server. Raises EngineError if its URL is invalid."""
    key, messages = options.upstream_key, options.upstream_kind == anthropic.NAME
    if key is not None:
        know(key)
    try:
        return HttpClient(
            options.model,
            None if messages else key,
            headers=anthropic.headers(key) if messages else {},
            connect_seconds=options.connect_seconds,
            idle_seconds=options.idle_seconds,
            limits=limits,
        )
    except ValueError as error:
        raise EngineError(str(error)) from error


async def recognised_server(options: Options, client: HttpClient) -> UpstreamServer:
    """The server at the URL. Raises EngineError if it cannot be reached, or is of no known kind."""
    answers = await _probe(options, client)
    kind = options.upstream_kind
    models = chat.models_of(answers).values()
    if not kind and any(completions.is_owned_by(model, completions.ANTIPHON) for model in models):
        answers = {path: answer for path, answer in answers.items() if path == MODELS}
    settings = UpstreamSettings(
        kind, options.upstream_model, options.context, options.parallel, options.tokenizer
    )
    for name in [kind] if kind else KINDS:
        try:
            server = await KINDS[name](client, answers, settings)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise _missing_features_error(options, name) from error
        except AntiphonError as error:
            if _is_missing(error):
                raise _missing_features_error(options, name) from error
            raise
        if server is not None:
            return server
    why = f"does not answer as {kind} does" if kind else f"is none of the known kinds: {', '.join(KINDS)}"
    seen = (
        f"It answers at {', '.join(answers)}." if answers else f"It answers at none of {', '.join(PROBES)}."
    )
    raise EngineError(
        f"The server at {options.model} {why}. {seen} Check the URL, or say what it is with --upstream-kind."
    )


def _numbers(request: GenerationRequest) -> Sequence[int]:
    """The numbers of the adapters that a request uses, of an engine that knows them by their numbers."""
    used = (adapter.name for adapter in request.sampling.lora or () if adapter.scale)
    return [name for name in used if isinstance(name, int)]


def _missing_features_error(options: Options, kind: str) -> EngineError:
    """The error for the operator: the server looks like one of this kind, and lacks its features."""
    if options.upstream_kind:
        what = f"The server at {options.model} does not answer as {kind} does."
        return EngineError(f"{what} Leave out --upstream-kind, or say another.")
    return EngineError(
        f"The server at {options.model} answers as {kind} does, but not as expected. Say what it is with "
        "--upstream-kind."
    )


async def _probe(options: Options, client: HttpClient) -> Answers:
    try:
        responses = await asyncio.gather(*(client.request("GET", path) for path in PROBES))
        bodies = {path: response.json() for path, response in zip(PROBES, responses, strict=True)}
        if bodies[MODELS] is None and client.mounted:  # the version may be in the URL, under another name
            client.version = ""
            bodies[MODELS] = (await client.request("GET", MODELS)).json()
            client.version = "/v1" if bodies[MODELS] is None else ""
    except HttpError as error:
        raise EngineError(f"No server can be reached at {options.model}: {error}. Check the URL.") from error
    # Proxies forbid paths that they do not forward, which says nothing about the key.
    if responses[0].status == 403 or any(response.status == 401 for response in responses):
        raise EngineError(
            f"The server at {options.model} asks for a key, or for another one: set ANTIPHON_UPSTREAM_KEY."
        )
    return {path: answer for path, answer in bodies.items() if answer is not None}
