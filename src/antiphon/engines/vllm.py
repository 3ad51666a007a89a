"""Models in the safetensors format, run by vLLM: on one GPU, on several, or on the processor.

vLLM computes in its own processes. The outputs of each step, for all generations, are passed to their
receivers by plain calls in the task that reads them. vLLM forms the batches, and can drop a request at any
time. It never holds more requests than it works on: others wait here, in fair shares.

Chat, tools and stop strings are not known here. `vllm_core` is the binding, `vllm_stream` makes chunks from
its outputs, `vllm_beams` does beam searches, `vllm_next_token` reads the scores of next tokens.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import structlog
from cyclopts import Parameter
from cyclopts.types import PositiveInt

from antiphon.core.chunks import Chunk, Finish, FinishReason, PromptToken
from antiphon.core.constraint import StructuralTag
from antiphon.core.errors import AntiphonError, EngineDiedError, EngineError, EngineNotReadyError
from antiphon.core.items import MediaKind
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.links import Link
from antiphon.core.located import Located, file_or_name
from antiphon.core.observation import observed
from antiphon.core.options import COMMON_ENGINE, COMMON_MODEL
from antiphon.core.shared_queue import SharedQueue
from antiphon.core.vectors import EmbeddingRequest, Embeddings, Scores
from antiphon.engines.admission import Admission, Slot
from antiphon.engines.engine import (
    Capabilities,
    GenerationRequest,
    Load,
    ModelCard,
    NextToken,
    NextTokenRequest,
    Prompt,
    Receiver,
    Work,
    check_size,
    failure_of,
)
from antiphon.engines.figures import UNKNOWN, CacheFigures
from antiphon.engines.models import response_template
from antiphon.engines.next_token import read_each
from antiphon.engines.shared_admission import admission
from antiphon.engines.silence import SilenceTimer
from antiphon.engines.vllm_arguments import engine_args
from antiphon.engines.vllm_beams import Beam, Row, search
from antiphon.engines.vllm_core import SUPPORTED, RequestExtras, VllmCore
from antiphon.engines.vllm_imports import installed_version
from antiphon.engines.vllm_links import Host, adapter_number
from antiphon.engines.vllm_next_token import check_mode, groups_of, next_token
from antiphon.engines.vllm_stream import NO_CHUNKS, OutputReader, next_row, prompt_tokens
from antiphon.engines.vllm_turns import ScoreKind, Turns
from antiphon.engines.vllm_versions.version import VllmVersion

log = structlog.get_logger()

SILENT_SECONDS = 0.08
"""After this time without outputs, while requests run, vLLM's processes are checked."""

CHECK_SECONDS = 0.64
"""After each such time they are checked again: a check takes 0.2 ms, and a long prompt seconds."""

HUNG_CHECKS = 188
"""After so many checks, two minutes, vLLM is taken to hang, until it sends something."""


@dataclass(frozen=True)
class Options:
    """The options of vLLM."""

    model: Annotated[str, Located(file_or_name), COMMON_MODEL]
    """The model: a folder with its safetensors, or ORG/REPO on the Hugging Face hub."""

    _: KW_ONLY

    context: Annotated[PositiveInt | None, COMMON_ENGINE] = None
    """The maximum number of tokens of a prompt and its answer together. Without it, what the model was
    trained for."""

    parallel: PositiveInt | None = None
    """How many answers are generated at the same time; further requests wait. Without it, as many as
    vLLM takes."""

    vllm: Annotated[tuple[str, ...], Parameter(show_default=False), COMMON_ENGINE] = ()
    """An engine argument of vLLM, KEY=VALUE, as in tensor_parallel_size=2; repeat it for several.
    vLLM's documentation lists them."""

    vllm_untested: bool = False
    """Try a version of vLLM that is not one of those that this Antiphon knows."""

    def build(self, limits: Limits = DEFAULTS) -> "VllmEngine":
        """Import vLLM, and check its version and the arguments."""
        version = installed_version(untested=self.vllm_untested)
        return VllmEngine(self._args, limits, version=version)

    def host(self, link: Link, inputs: Sequence[str], outputs: Sequence[str]) -> Host:
        """The core, for several processes: see `LinkedOptions`."""
        installed_version(untested=self.vllm_untested)
        return Host(self._args, link, inputs, outputs)

    @property
    def _args(self) -> Any:
        own = {"max_model_len": self.context, "max_num_seqs": self.parallel}
        return engine_args(self.model, self.vllm, own)


class VllmEngine:
    """The model that vLLM's `AsyncEngineArgs` name."""

    def __init__(self, args: Any, limits: Limits = DEFAULTS, *, version: VllmVersion) -> None:
        self._args = args
        self._version = version
        self._limits = limits
        self._admission = Admission(1, limits)
        self._turns = Turns(apart=False)
        self._waiting: dict[_Generation, None] = {}
        self._running: dict[str, _Generation | _SingleOutput] = {}
        self._silence = SilenceTimer(SILENT_SECONDS, CHECK_SECONDS, self._check_core)
        self._checks = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._adapters: dict[str, str] = {}  # by name: the path
        self._loaded: dict[str, Any] = {}  # by name: vLLM's object
        self._of_images: Any = None  # the adapter of prompts with images whose requests name none
        numbers = count(1)  # they are never reused: vLLM identifies an adapter by its number
        self._number: Callable[[str, str], int] = lambda name, path: next(numbers)
        self._link: Link | None = None
        self._queue: SharedQueue | None = None
        self._loading: asyncio.Future[VllmCore] | None = None
        self._core: VllmCore | None = None
        self._card: ModelCard | None = None

    @property
    def card(self) -> ModelCard:
        """The model. Raises EngineNotReadyError before `start`."""
        if self._card is None:
            raise EngineNotReadyError
        return self._card

    @property
    def load(self) -> Load:
        """How many generations vLLM works on, and how many wait here."""
        return self._admission.load

    async def cache_figures(self) -> CacheFigures:
        """Those of its schedulers, as of the last step."""
        if self._core is None:
            return UNKNOWN
        return self._core.cache_figures(
            idle=not self._running,
            running={work.adapter for work in self._running.values() if work.adapter is not None},
            waiting={generation.adapter for generation in self._waiting if generation.adapter is not None},
        )

    def share(self, permits: Callable[[], SharedQueue]) -> None:
        """Share the slots of the core with other processes."""
        self._queue = permits()

    def attach(self, link: Link) -> None:
        """Use the core at this link, instead of one of its own."""
        self._link = link
        self._number = adapter_number

    @property
    def up(self) -> bool:
        return self._core is not None and self._checks < HUNG_CHECKS

    @cached_property
    def memory(self) -> int:
        """The size of its weights, if they are in a folder. vLLM itself determines its further memory."""
        weights = Path(str(self._args.model)).glob("*.safetensors")
        return sum(file.stat().st_size for file in weights) or 1  # 0 would mean that it is loaded elsewhere

    async def start(self) -> None:
        """Load the model. Raises EngineError if that fails."""
        self._loading = asyncio.ensure_future(
            asyncio.to_thread(VllmCore, self._args, self._version, self._link)
        )
        # Shielded: a thread cannot be cancelled. `stop` waits for it, and ends its processes.
        core = await asyncio.shield(self._loading)
        if self._loading is None:  # stopped meanwhile
            return
        for name, path in self._adapters.items():
            self._loaded[name] = await core.load_adapter(name, self._number(name, path), path)
        if core.image_adapter is not None:
            name, path = MediaKind.IMAGE.value, core.image_adapter
            self._of_images = await core.load_adapter(name, self._number(name, path), path)
        self._card = _card(core)
        self._admission = admission(core.slots, self._limits, self._queue)
        self._turns = Turns(apart=core.mixes_scores)
        self._core = core
        self._silence.open()
        for sentinel in core.sentinels:
            asyncio.get_running_loop().add_reader(sentinel, self._died)
        self._spawn(self._read(core))
        log.info("vllm", model=self._card.name, context=core.context, slots=core.slots)

    async def stop(self) -> None:
        """End vLLM's processes; running and waiting requests fail."""
        loading, self._loading = self._loading, None
        self._fail_all(EngineNotReadyError)
        for task in [*self._tasks]:
            task.cancel()
        if loading is not None:
            await asyncio.wait((loading,))
            with suppress(AntiphonError):
                await asyncio.to_thread(loading.result().close)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._keep(asyncio.create_task(work))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _running_core(self) -> VllmCore:
        if self._core is None:
            raise EngineNotReadyError
        return self._core

    async def tokenize(self, pieces: Sequence[str]) -> list[int]:
        """The ids of all pieces, each tokenized by itself."""
        tokenize = self._running_core().vocabulary.tokenize
        return await tokenize(pieces)

    async def token_texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each of these tokens, half a character as `\ufffd`."""
        return [*map(self._running_core().vocabulary.text, ids)]

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of these tokens, special ones included. Raises RequestError for an unknown id."""
        return self._running_core().vocabulary.decode(ids)

    @property
    def adapters(self) -> Mapping[str, str]:
        return self._adapters

    async def load_adapter(self, name: str, path: str) -> None:
        if self._core is not None:
            before, number = self._loaded.get(name), self._number(name, path)
            self._loaded[name] = await self._core.load_adapter(name, number, path)
            if before is not None and before.lora_int_id != number:
                await self._core.unload_adapter(before)
        self._adapters[name] = path

    async def unload_adapter(self, name: str) -> None:
        self._adapters.pop(name, None)
        adapter = self._loaded.pop(name, None)
        if adapter is not None and self._core is not None:
            await self._core.unload_adapter(adapter)

    def _adapter(self, request: GenerationRequest) -> Any:
        """The adapter of a request; None if it has none. Raises EngineError for one that is not loaded."""
        name = _adapter_of(request)  # `supported` refuses more than one, and other scales
        if name is None:
            return None
        if name not in self._loaded:
            raise EngineError(f"There is no adapter '{name}' any more. Load it again.")
        return self._loaded[name]

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        """Begin one generation. Its text consists of whole characters."""
        loop = asyncio.get_running_loop()
        try:
            core = self._running_core()
            if request.max_tokens < 1:  # vLLM would refuse it
                return loop.call_soon(receiver.push, [Chunk("", (), Finish(FinishReason.LENGTH))])
            reader = OutputReader(core.vocabulary, request)
            generation = _Generation(self, receiver, reader, request, observed().trace)
            generation.slot = self._admission.enter(
                lambda: loop.call_soon(self._start, core, generation),
                request.sampling.priority or 0,
                request.tokens,
            )
        except AntiphonError as error:
            return loop.call_soon(receiver.fail, error)
        self._waiting[generation] = None
        return generation

    def _start(self, core: VllmCore, generation: "_Generation") -> None:
        """A slot is free."""
        self._spawn(self._begin(core, generation))

    async def _begin(self, core: VllmCore, generation: "_Generation") -> None:
        """Send the request to vLLM."""
        request = generation.request
        try:
            around = await self._rendered(core, request, generation.trace)
            if around.rendered is not None:
                size = len(around.rendered["prompt_token_ids"])
                generation.reader.media_tokens = size - len(request.prompt.ids)
            if request.constraint is None:
                made = core.request(request, around)
            else:  # it compiles the grammar to check it
                made = await asyncio.to_thread(core.request, request, around)
            if request.sampling.logprobs is not None and generation.turns is None:
                await self._turns.enter(ScoreKind.LIKELIEST)
                generation.turns = self._turns
            if generation.over:
                generation.leave_turn()
                return
            self._waiting.pop(generation, None)
            generation.id = made.request_id
            self._register(generation)
            await core.add(made)
        except Exception as error:
            generation.fail(failure_of(error))

    async def _rendered(
        self, core: VllmCore, request: GenerationRequest, trace: Mapping[str, str]
    ) -> RequestExtras:
        """The parts of a request besides prompt and sampling, also for a prompt with media."""
        rendered = await core.rendered(request.prompt) if request.prompt.media else None
        adapter = self._adapter(request)
        if adapter is None and rendered is not None:
            adapter = self._of_images
        return RequestExtras(adapter, trace, rendered)

    async def score_prompt(self, request: GenerationRequest) -> tuple[PromptToken, ...]:
        """VLLM computes the whole prompt; the generation then finds it in the cache."""
        async with self._admission.hold(request.sampling.priority or 0):
            core = self._running_core()
            made = core.scoring(request, self._around(request))
            [output] = await self._outputs(core, [made])
            return await asyncio.to_thread(prompt_tokens, core.vocabulary, request.prompt.ids, output)

    async def score_next(self, request: NextTokenRequest) -> tuple[NextToken, ...]:
        """Each prompt takes one slot. All come together: vLLM computes their beginning once.

        Of a hybrid model, it finds the beginning only after that was computed.
        """
        core, trace = self._running_core(), observed().trace
        check_mode(core.logprobs_mode)

        async def read(prompt: Prompt, tokens: Sequence[int]) -> NextToken:
            one = GenerationRequest(prompt, 1, request.sampling)
            groups = groups_of(tokens)
            async with self._admission.hold(request.sampling.priority or 0):
                outputs = await self._named(core, one, groups, trace)
                lost = [output for output in outputs if self.forget_media(output)]
                if lost:
                    outputs = await self._named(core, one, groups, trace)
                return next_token(core.vocabulary, outputs, groups)

        return await read_each(request, read, beginning_first=core.hybrid)

    async def _named(
        self,
        core: VllmCore,
        request: GenerationRequest,
        groups: Sequence[Sequence[int]],
        trace: Mapping[str, str],
    ) -> list[Any]:
        """The outputs to requests that name these tokens."""
        if core is not self._core:
            raise EngineNotReadyError
        around = await self._rendered(core, request, trace)
        made = [core.naming(request, group, around) for group in groups]
        async with self._turns.hold(ScoreKind.NAMED):
            return await self._outputs(core, made)

    async def search(self, request: GenerationRequest) -> list[list[Chunk]]:
        """It takes one slot, whatever its width: its requests are for one token each."""
        async with self._admission.hold(request.sampling.priority or 0):
            core, around = self._running_core(), self._around(request)

            async def rows(beams: Sequence[Beam]) -> list[Row]:
                made = [core.step(request, beam.ids, around) for beam in beams]
                async with self._turns.hold(ScoreKind.LIKELIEST):
                    return [next_row(output) for output in await self._outputs(core, made)]

            parameters = core.beam_parameters(request, core.step(request, (), around))
            beams = await search(parameters, rows)
            return [OutputReader(core.vocabulary, request).whole(beam) for beam in beams]

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Each input takes one slot; vLLM forms the batches."""
        core, around = self._running_core(), RequestExtras(trace=observed().trace)
        for text in request.inputs:
            if isinstance(text, tuple):
                core.vocabulary.decode(text)  # refuses unknown ids
            elif request.truncate is None:
                check_size(len(text), core.context)

        def requests() -> list[Any]:
            inputs = (core.input_of(text, request) for text in request.inputs)
            return [core.embedding(ids, request.dimensions, around) for ids in inputs]

        vectors, tokens = await self._pooled(core, requests)
        return Embeddings((*vectors,), tokens)

    async def score(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        """Scores are those of vLLM's own server: for most models, from 0 to 1."""
        core, around = self._running_core(), RequestExtras(trace=observed().trace)
        for pair in pairs:
            check_size(sum(map(len, pair)), core.context)
        scores, tokens = await self._pooled(core, lambda: [core.ranking(*pair, around) for pair in pairs])
        return Scores(tuple(score for [score] in scores), tokens)

    async def _pooled(
        self, core: VllmCore, make_requests: Callable[[], Sequence[Any]]
    ) -> tuple[list[Sequence[float]], int]:
        """The model's outputs for the inputs of requests, each of which takes one slot; and their tokens.

        Making requests takes time, because texts are tokenized.
        """
        requests = await asyncio.to_thread(make_requests)

        async def pooled(request: Any) -> Sequence[float]:
            async with self._admission.hold():
                [output] = await self._outputs(core, [request])
                vector: Sequence[float] = output.pooling_output.tolist()
                return vector

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(pooled(request)) for request in requests]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks], sum(len(request.prompt_token_ids) for request in requests)

    def _around(self, request: GenerationRequest) -> RequestExtras:
        return RequestExtras(self._adapter(request), observed().trace)

    async def _outputs(self, core: VllmCore, requests: Sequence[Any]) -> list[Any]:
        """The outputs to requests for one token. Raises EngineError."""
        waiting = [_SingleOutput(request.request_id) for request in requests]
        self._register(*waiting)
        try:
            for request in requests:
                await core.add(request)
            outputs = [await single.output for single in waiting]
        except Exception as error:
            raise EngineError from error
        finally:
            for single in waiting:
                self.leave(single)
        if None in outputs:
            raise EngineError
        return outputs

    def _register(self, *works: "_Generation | _SingleOutput") -> None:
        """From now on vLLM has these to do."""
        if not self._running:
            self._silence.postpone()
            self._checks = 0
        self._running |= {work.id: work for work in works}

    def _check_core(self) -> None:
        """Check whether vLLM's processes run, if requests run: there were no outputs for some time."""
        if self._core is None or not self._running:
            self._silence.pause()
        elif self._core.ending:
            self._died()
        else:
            self._checks += 1

    async def _read(self, core: VllmCore) -> None:
        """Deliver vLLM's outputs, until it is stopped or ends unexpectedly."""
        try:
            await core.read(self._take)
        except Exception:
            log.debug("vLLM cannot be read", exc_info=True)
            self._died()

    def _take(self, outputs: Sequence[Any]) -> None:
        """Deliver the outputs of a step."""
        self._silence.postpone()
        self._checks = 0
        running = self._running
        for output in outputs:
            generation = running.get(output.request_id)
            if generation is not None:
                generation.take(output)

    def _died(self) -> None:
        if self._core is not None:
            remedy = "Start Antiphon again." if self._link is None else "It is started again."
            log.error(f"vLLM has ended unexpectedly: see its log. {remedy}")
            self._fail_all(EngineDiedError)

    def _fail_all(self, error: type[EngineError]) -> None:
        """The core has ended: running and waiting requests fail."""
        core, self._core = self._core, None
        self._silence.close()
        if core is not None:
            core.leave()
            for sentinel in core.sentinels:
                asyncio.get_running_loop().remove_reader(sentinel)
        for generation in [*self._running.values(), *self._waiting]:
            generation.fail(error())

    def forget_media(self, output: Any) -> bool:
        """Whether the request of an output has to be sent again, see `VllmCore.forget_media`."""
        return self._core is not None and self._core.forget_media(output)

    def repeat(self, generation: "_Generation") -> None:
        """Send the request of a generation again, which vLLM has ended. Until it is sent, it waits."""
        self._running.pop(generation.id, None)
        assert self._core is not None  # it has ended the request
        self._core.ended(generation.id)
        generation.ended = False
        self._waiting[generation] = None
        self._start(self._core, generation)

    def leave(self, generation: "_Generation | _SingleOutput") -> None:
        """A generation is over, whether vLLM has ended it or not."""
        if isinstance(generation, _Generation):
            self._waiting.pop(generation, None)
        core = self._core
        if self._running.pop(generation.id, None) is None or core is None:
            return
        core.ended(generation.id)
        if not generation.ended:
            self._spawn(core.abort([generation.id]))


class _Generation:
    """One generation: vLLM's outputs on one side, the receiver on the other.

    `over`: the receiver is not called any more. `ended`: vLLM knows that. `adapter` is the name of that of
    its request.
    """

    def __init__(
        self,
        engine: VllmEngine,
        receiver: Receiver,
        reader: OutputReader,
        request: GenerationRequest,
        trace: Mapping[str, str],
    ) -> None:
        self.request = request
        self.trace = trace
        self.adapter = _adapter_of(request)
        self._engine = engine
        self._receiver = receiver
        self._chunks = NO_CHUNKS  # those of tokens that may come next and need not be read
        self._repeated = False
        self.turns: Turns | None = None  # if it has entered them
        self.reader = reader
        self.id = ""
        self.over = False
        self.ended = False
        self._generated = 0
        self.slot: Slot

    def take(self, output: Any) -> None:
        """Deliver an output. A receiver that raises, which is a bug, must not stop the others."""
        chunk, ids = None, output.new_token_ids
        self._generated += len(ids)
        if len(ids) == 1 and output.finish_reason is None and output.prefill_stats is None:
            chunk = self._chunks[ids[0]]
        if chunk is None:
            chunk = self._read(output)
        if chunk is not None:
            try:
                self._receiver.push([chunk])
            except Exception:
                log.exception("a receiver has failed")

    def _read(self, output: Any) -> Chunk | None:
        """The chunk in any output, if there is one."""
        self.ended = output.finish_reason is not None
        if self.ended and not self._repeated and self._engine.forget_media(output):
            self._repeated = True
            self._engine.repeat(self)
            return None
        try:
            chunk = self.reader.read(output)
        except Exception as error:
            self.fail(failure_of(error))
            return None
        self._chunks = self.reader.known
        if self.ended:
            self.cancel()  # the slot must be free before the receiver gets the end
        return chunk

    def fail(self, error: AntiphonError) -> None:
        """Stop, and report the error to the receiver."""
        if not self.over:
            self.cancel()
            self._receiver.fail(error)

    def cancel(self) -> None:
        if not self.over:
            self.over = True
            self._engine.leave(self)
            self.leave_turn()
            self.slot.generated = self._generated
            self.slot.leave()

    def leave_turn(self) -> None:
        """Let requests begin that vLLM must not have in the same step."""
        turns, self.turns = self.turns, None
        if turns is not None:
            turns.leave()


class _SingleOutput:
    """A request for one token: its only output is awaited, None if there will be none."""

    adapter: str | None = None

    def __init__(self, request_id: str) -> None:
        self.id = request_id
        self.ended = False
        self.output: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def take(self, output: Any) -> None:
        """This is it."""
        self.ended = True
        if not self.output.done():
            self.output.set_result(output)

    def fail(self, error: AntiphonError) -> None:
        """There will be no output, because vLLM has ended."""
        self.take(None)


def _adapter_of(request: GenerationRequest) -> str | None:
    """The name of the adapter of a request."""
    return str(request.sampling.lora[0].name) if request.sampling.lora else None


def _card(core: VllmCore) -> ModelCard:
    codec = core.vocabulary.codec
    return ModelCard(
        name=core.folder.name if core.folder.is_dir() else str(core.folder),
        context=core.context,
        chat_template=codec.template,
        conversation_template=codec.conversation_template,
        bos=codec.bos,
        eos=codec.eos,
        special_tokens=frozenset(core.vocabulary.special.values()),
        created=int(time.time()),
        known_as=tuple(core.names),
        response_template=response_template(core.folder / "tokenizer.json"),
        opening=core.opening,
        capabilities=Capabilities(
            token_ids=True,
            sampling=SUPPORTED,
            alternatives=core.alternatives,
            constraints=(StructuralTag,),
            media=core.media,
            media_remedy=core.media_remedy,
            tasks=frozenset({core.task} if core.task else ()),
            embedding=frozenset({"ids", "dimensions", "truncate"}),
        ),
        defaults={name: float(value) for name, value in core.defaults.items()},
    )
