"""The binding to vLLM: its engine core, used without vLLM's own frontend.

`AsyncLLM` is made as vLLM's own server makes it: for the configuration, the processes that compute, the
tokenizer, and the checks of requests. Its frontend is not used: the outputs of the core are read here, once
per step for all requests, see decision 13. These interfaces may change with any version of vLLM: what did is
in `vllm_versions`, and the extra pins the versions that are known.

`vllm_imports` imports it, `vllm_arguments` reads its arguments, and `vllm_sockets` has its sockets.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from secrets import token_hex
from typing import Any

from msgspec import Struct

from antiphon.core.constraint import StructuralTag
from antiphon.core.errors import RequestError
from antiphon.core.items import MediaKind
from antiphon.core.links import Link, Notes
from antiphon.core.turn import Sampling
from antiphon.core.vectors import EmbeddingRequest
from antiphon.engines.engine import GenerationRequest, Prompt, Task
from antiphon.engines.figures import AdapterFigures, CacheFigures
from antiphon.engines.samplers import supported
from antiphon.engines.vllm_arguments import unloadable
from antiphon.engines.vllm_beams import BeamParameters
from antiphon.engines.vllm_figures import NoLogger, SharedStatistics, Statistics
from antiphon.engines.vllm_imports import imported
from antiphon.engines.vllm_links import ID_BYTES, client_of, ends_of
from antiphon.engines.vllm_sockets import Messages, Sender, Steps
from antiphon.engines.vllm_stream import Vocabulary
from antiphon.engines.vllm_tokenizers import codec_of
from antiphon.engines.vllm_versions.version import VllmVersion

_SAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "logprobs",
)
_LISTS = ("stop_token_ids", "bad_words", "allowed_token_ids")
"""The fields of `Sampling` that vLLM has under the same names, with the same values."""

SUPPORTED = supported("vllm")
"""The fields of `Sampling` that are supported, see the table in `samplers.py`."""

_NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""vLLM's defaults if neither the request nor the model's generation_config sets the field."""

_UNSET = {name: getattr(Sampling(), name) for name in Sampling.__struct_fields__}
_LEAST_TOP_P = 1e-9
"""0 selects the most likely token; vLLM requires more than 0."""

_FLAGS, _PENDING = 6, 28
"""Indexes in /proc/PID/stat, after the name: the kernel's flags, pending signals; proc_pid_stat(5)."""

_EXITING = 0x4 | 0x400
"""PF_EXITING, and PF_SIGNALED: killed by a signal, and its memory may be written to a file first."""

_KILLED = 1 << (signal.SIGKILL - 1)

_FIGURES = frozenset({"block_size", "num_gpu_blocks"})
"""What `CacheFigures` has by itself, of the settings of the cache that vLLM writes into its metrics."""

_TOLD = os.path.exists("/proc/self/stat")
_WORKER = "VLLM::Worker"
"""vLLM's name for the processes of its core that compute, if the core does not compute itself."""


def is_ending(process: int) -> bool:
    """Whether the system is ending this process, or has ended it; False if it cannot say (macOS)."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the name may have spaces
    except (FileNotFoundError, ProcessLookupError):
        return _TOLD
    flags, pending = int(fields[_FLAGS]), int(fields[_PENDING])
    return bool(flags & _EXITING or pending & _KILLED)


def workers_of(process: int) -> list[int]:
    """The child processes that compute for a process of the core's; none if the system cannot list them."""
    with suppress(OSError):
        threads = Path(f"/proc/{process}/task").glob("*/children")
        children = [int(child) for thread in threads for child in thread.read_text().split()]
        return [child for child in children if Path(f"/proc/{child}/comm").read_text().startswith(_WORKER)]
    return []


class RequestExtras(Struct, frozen=True):
    """The parts of a request to the core except its prompt and its sampling.

    An adapter as `load_adapter` returns it, the headers of the trace that the request belongs to, and, for a
    prompt with media, the result of `rendered`.
    """

    adapter: Any = None
    trace: Mapping[str, str] = {}
    rendered: Any = None


def _refused(error: Exception, param: str | None) -> RequestError:
    message = f"vLLM refuses this: {str(error.args[0] if error.args else error).rstrip('.')}."
    return RequestError(message, param=param)


def _check_text(request: GenerationRequest, param: str) -> None:
    """Raise RequestError for features that need prompts of text only."""
    if request.prompt.media:
        raise RequestError(
            f"vLLM does not support '{param}' with images in the prompt. Leave it out.", param=param
        )


def _alone(args: Any) -> Any:
    """A core of its own, and its only client."""
    return imported("vllm.v1.engine.async_llm").AsyncLLM.from_engine_args(args, stat_loggers=[NoLogger])


class VllmCore:
    """A loaded model. The constructor returns when its processes are ready.

    With a `link` they are those of a core that all processes of a server use.
    Raises EngineError if that fails.
    """

    def __init__(self, args: Any, version: VllmVersion, link: Link | None = None) -> None:
        self._version = version
        self._notes = None if link is None else Notes(link.memory, link.number)
        self._statistics = Statistics() if self._notes is None else SharedStatistics(self._notes)
        try:
            self._llm = _alone(args) if link is None else client_of(args, link)
        except (RuntimeError, ValueError, OSError) as error:
            raise unloadable(args.model, error) from error
        client = self._llm.engine_core
        self._steps = client.outputs_queue = Steps()
        self._messages = Messages(client)
        client.resources.output_socket.recv_multipart = self._messages.recv_multipart
        self._sender = Sender(client.input_socket, self._steps.put_nowait)
        client.input_socket.send_multipart = self._sender.send_multipart
        own = [process.pid for process in getattr(client.resources.engine_manager, "processes", ())]
        self._ends: Sequence[int] = ()
        if link is not None:
            own = [*link.core.processes]
            self._ends = ends_of(own)
        self._processes = [*own, *(worker for process in own for worker in workers_of(process))]
        self._params = imported("vllm.sampling_params")
        self._refusal = imported("vllm.exceptions").VLLMClientError
        self._config = self._llm.model_config
        self.vocabulary = Vocabulary(codec_of(self.tokenizer))
        model_defaults: Mapping[str, Any] = self._config.get_diff_sampling_param()
        self.defaults = {
            name: value for name, value in {**_NEUTRAL, **model_defaults}.items() if name in _SAME
        }

    @property
    def context(self) -> int:
        """The most tokens that a prompt and its answer may have together."""
        limit: int = self._config.max_model_len
        return limit

    @property
    def slots(self) -> int:
        """How many requests are worked on at a time."""
        limit: int = self._llm.vllm_config.scheduler_config.max_num_seqs
        return limit

    @property
    def alternatives(self) -> int:
        """The largest number of log probabilities that it returns for a token."""
        limit: int = self._config.max_logprobs
        return self.vocabulary.size if limit < 0 else limit

    @property
    def logprobs_mode(self) -> str:
        """What it returns as the log probability of a token."""
        mode: str = self._config.logprobs_mode
        return mode

    @property
    def mixes_scores(self) -> bool:
        """Its model runner mixes up what requests of one step want scored: see `vllm_turns`."""
        return not self._llm.vllm_config.use_v2_model_runner

    @property
    def hybrid(self) -> bool:
        """Not all layers of the model keep keys and values of each token: its cache has only some places."""
        hybrid: bool = self._config.is_hybrid
        return hybrid

    @property
    def names(self) -> Sequence[str]:
        """Names that may indicate the model's family."""
        config = self._config.hf_config
        return (*(config.architectures or ()), str(config.model_type), str(self._config.model))

    @property
    def tokenizer(self) -> Any:
        """The tokenizer as vLLM has loaded it."""
        return self._llm.renderer.tokenizer

    @property
    def opening(self) -> int | None:
        """The token that the model needs before any text (BOS); None if it needs none."""
        bare, full = ([*self.tokenizer.encode("a", add_special_tokens=special)] for special in (False, True))
        return full[0] if bare and full[1 : 1 + len(bare)] == bare else None

    @property
    def folder(self) -> Path:
        """The folder of the model's files, if it is in one."""
        return Path(self._config.model)

    @property
    def media(self) -> frozenset[MediaKind]:
        """The media that the model takes and that are supported here: images."""
        if not self._config.is_multimodal_model or self.media_remedy:
            return frozenset()
        limits: Mapping[str, int] = self._llm.renderer.get_mm_processor().info.allowed_mm_limits
        return frozenset({MediaKind.IMAGE} if limits.get("image") else ())

    @property
    def media_remedy(self) -> str:
        """How the model would take images, if vLLM does not take them with the tokens of a prompt."""
        if not self._config.is_multimodal_model or self.vocabulary.codec.conversation_template is None:
            return ""
        return "Images need the tokenizer of Hugging Face's: --vllm tokenizer_mode=hf."

    @property
    def image_adapter(self) -> str | None:
        """The path of the adapter for prompts with images, `default_mm_loras`; None if there is none."""
        lora = self._llm.vllm_config.lora_config
        paths: Mapping[str, str] = (lora and lora.default_mm_loras) or {}
        return paths.get(MediaKind.IMAGE.value) if self.media else None

    async def rendered(self, prompt: Prompt) -> Any:
        """A prompt with images as the core takes it: with the tokens that they take. Raises RequestError.

        vLLM caches its results for an image under the digest of this, and so does its prefix cache.
        """
        reader = imported("vllm.multimodal.media").ImageMediaIO()
        try:
            inputs = {
                "prompt_token_ids": [*prompt.ids],
                "multi_modal_data": {
                    "image": [await asyncio.to_thread(reader.load_bytes, part.data) for part in prompt.media]
                },
                "multi_modal_uuids": {"image": [part.digest or None for part in prompt.media]},
            }
            [made] = await self._llm.renderer.render_cmpl_async([inputs])
        except (self._refusal, ValueError, RuntimeError) as error:
            raise _refused(error, "messages") from error
        return made

    @property
    def task(self) -> Task | None:
        """The task of the model: with `runner=pooling`, or an embedding model, it does not generate.

        None for a task that is not supported here, such as classification.
        """
        if str(self._config.runner_type) != "pooling":
            return Task.GENERATE
        if self._config.score_type != "cross-encoder":
            return Task.EMBED
        return Task.RANK if getattr(self._config.hf_config, "num_labels", 0) == 1 else None

    @cached_property
    def _pairs(self) -> Any:
        """Makes prompts from a query and a document, in the form that the model was trained with."""
        pairs = imported("vllm.entrypoints.pooling.scoring.io_processor").CrossEncoderIOProcessor
        templates = imported("vllm.renderers.chat_utils").ChatTemplateConfig()
        return pairs(self._llm.vllm_config, self._llm.renderer, templates)

    def ranking(self, query: str, document: str, around: RequestExtras) -> Any:
        """The request for how well a document answers a query. Raises RequestError."""
        prompt = self._version.pair(self._pairs, query, document)
        ids = prompt["prompt_token_ids"]
        if len(ids) > self.context:
            message = (
                f"A document and its query have {len(ids)} tokens, but the context of this model is "
                f"{self.context} tokens. Shorten them."
            )
            raise RequestError(message, param="documents", code="context_length_exceeded")
        types = prompt.get("token_type_ids")
        # Where the document is, in vLLM's short form.
        compress = imported("vllm.entrypoints.pooling.scoring.utils").compress_token_type_ids
        extra = None if types is None else {"compressed_token_type_ids": compress([*types])}
        params = partial(imported("vllm.pooling_params").PoolingParams, task="classify", extra_kwargs=extra)
        return self._accepted({"type": "token", "prompt_token_ids": [*ids]}, params, "classify", around)

    def input_of(self, text: str | tuple[int, ...], request: EmbeddingRequest) -> list[int]:
        """The tokens of an input, with those that the model needs around texts, cut if requested."""
        body = [*text] if isinstance(text, tuple) else self.vocabulary.encode(text)
        whole = body
        if isinstance(text, str):
            whole = [*self.tokenizer.encode(text, add_special_tokens=True)]
        limit = self.context if request.truncate in (None, -1) else min(request.truncate or 0, self.context)
        if len(whole) <= limit:
            return whole
        if request.truncate is None:
            message = f"An input has {len(whole)} tokens, but the context of this model is {limit} tokens."
            raise RequestError(message, param="input", code="context_length_exceeded")
        added = len(whole) - len(body)
        before = next((at for at in range(added + 1) if whole[at : at + len(body)] == body), added)
        room = max(limit - added, 0)
        middle = body[len(body) - room :] if request.keep_end else body[:room]
        return [*whole[:before], *middle, *whole[before + len(body) :]]

    def embedding(self, ids: Sequence[int], dimensions: int | None, around: RequestExtras) -> Any:
        """The request for the vector of these tokens, of length 1. Raises RequestError."""
        params = partial(
            imported("vllm.pooling_params").PoolingParams,
            task="embed",
            dimensions=dimensions,
            use_activation=True,
        )
        prompt = {"type": "token", "prompt_token_ids": [*ids]}
        try:
            return self._accepted(prompt, params, "embed", around)
        except RequestError as error:
            error.param = error.param or ("input" if dimensions is None else "dimensions")
            raise

    def request(self, request: GenerationRequest, around: RequestExtras) -> Any:
        """The request to the core; outputs have its `request_id`. Raises RequestError."""
        ids = request.prompt.ids
        # vLLM compares each id with those of its vocabulary: of a long prompt, for longer than all else takes
        # here. All of them are the vocabulary's, or were looked up in it.
        fits = around.rendered is None and len(ids) < self.context
        made = self._made(request, ids[:1] if fits else ids, self._sampling(request), around)
        if fits:
            made.prompt_token_ids = ids
        # It holds from the first token on.
        made.reasoning_ended = True if request.constraint is not None else None
        return made

    def scoring(self, request: GenerationRequest, around: RequestExtras) -> Any:
        """The request for the log probabilities of a prompt. Raises RequestError."""
        _check_text(request, "prompt_logprobs")
        params = {"max_tokens": 1, "prompt_logprobs": request.sampling.prompt_logprobs}
        return self._made(request, request.prompt.ids, params, around)

    def naming(self, request: GenerationRequest, tokens: Sequence[int], around: RequestExtras) -> Any:
        """The request for the log probabilities of these tokens after a prompt. Raises RequestError."""
        params = {"max_tokens": 1, "temperature": 0, "logprob_token_ids": [*tokens] or None}
        return self._made(request, request.prompt.ids, params, around)

    def step(self, request: GenerationRequest, written: Sequence[int], around: RequestExtras) -> Any:
        """The request for the next tokens of a beam search, after the tokens `written`.

        Raises RequestError. As many candidates are requested as by vLLM's own server.
        """
        _check_text(request, "use_beam_search")
        width = request.sampling.beam_width or 1
        if 2 * width > self._config.max_logprobs >= 0:
            message = (
                f"vLLM searches with at most {self._config.max_logprobs // 2} beams. Ask for fewer, or "
                "start it with a greater --vllm max_logprobs=…, which is two for each beam."
            )
            raise RequestError(message, param="n")
        params = {"max_tokens": 1, "logprobs": 2 * width}
        return self._made(request, (*request.prompt.ids, *written), params, around)

    def beam_parameters(self, request: GenerationRequest, step: Any) -> BeamParameters:
        """The settings of a beam search; `step` is one of its requests, which has the model's end tokens."""
        sampling, own = request.sampling, step.sampling_params.all_stop_token_ids
        return BeamParameters(
            sampling.beam_width or 1,
            request.max_tokens,
            len(request.prompt.ids),
            self._version.beam_length,
            {*sampling.stop_token_ids, *(() if sampling.ignore_eos else own)},
            sampling.stop_token_ids,
            1.0 if sampling.length_penalty is None else sampling.length_penalty,
        )

    def _made(
        self, request: GenerationRequest, ids: Sequence[int], params: Mapping[str, Any], around: RequestExtras
    ) -> Any:
        """A request to the core, for the text after `ids`. Raises RequestError."""
        sampling = request.sampling
        prompt = around.rendered or {"type": "token", "prompt_token_ids": [*ids]}
        if sampling.cache_salt is not None:
            prompt["cache_salt"] = sampling.cache_salt
        return self._accepted(
            prompt,
            partial(self._params.SamplingParams, skip_clone=True, **params),
            "generate",
            around,
            priority=sampling.priority or 0,
            data_parallel_rank=sampling.data_parallel_rank,
        )

    def _accepted(
        self, prompt: Any, params: Callable[[], Any], task: str, around: RequestExtras, **more: Any
    ) -> Any:
        """The request to the core, checked by vLLM, with these `params`. Raises RequestError."""
        try:
            made = self._llm.input_processor.process_inputs(
                token_hex(ID_BYTES),
                prompt,
                params(),
                supported_tasks=(task,),
                lora_request=around.adapter,
                trace_headers=around.trace or None,
                **more,
            )
        except (self._refusal, ValueError) as error:
            raise _refused(error, getattr(error, "parameter", None)) from error
        made.external_req_id = made.request_id  # vLLM's frontend, which is not used here, would set this
        return made

    def _sampling(self, request: GenerationRequest) -> dict[str, Any]:
        """The arguments of `SamplingParams`. Stop strings are not sent: the decoder finds them."""
        sampling = request.sampling
        values = {name: value for name in _SAME if (value := getattr(sampling, name)) != _UNSET[name]}
        values = {**self.defaults, **values}
        values |= {name: [*listed] for name in _LISTS if (listed := getattr(sampling, name))}
        values["top_p"] = max(values["top_p"], _LEAST_TOP_P)
        if sampling.seed is not None:
            values["seed"] = sampling.seed % 2**63  # -1 would select a random seed
        bias = {**sampling.logit_bias, **dict.fromkeys(sampling.banned_tokens, float("-inf"))}
        if isinstance(request.constraint, StructuralTag):
            values["structured_outputs"] = self._structured(request.constraint, sampling)
        if sampling.vllm_xargs or sampling.kv_transfer_params:
            values["extra_args"] = {**sampling.vllm_xargs, **self._transfer(sampling)}
        return {**values, "max_tokens": request.max_tokens, "logit_bias": bias or None}

    def _transfer(self, sampling: Sampling) -> Mapping[str, Any]:
        """The parameters for the KV connector. Raises RequestError if there is none."""
        params, param = sampling.kv_transfer_params, "kv_transfer_params"
        if not params:
            return {}
        if self._llm.vllm_config.kv_transfer_config is None:
            message = "vLLM has no KV connector here: it needs --vllm kv_transfer_config=…. Leave this out."
            raise RequestError(message, param=param)
        return {param: params}

    def _structured(self, tag: StructuralTag, sampling: Sampling) -> Any:
        if sampling.ignore_eos:
            raise RequestError("`ignore_eos` cannot be combined with structured output.", param="ignore_eos")
        return self._params.StructuredOutputsParams(structural_tag=tag.text)

    def cache_figures(
        self, *, idle: bool, running: Collection[str], waiting: Collection[str]
    ) -> CacheFigures:
        """The figures of the cache; `idle`: nothing runs, so that nothing of it is in use.

        `running` and `waiting` are the names of the adapters of requests.
        """
        cache, lora = self._llm.vllm_config.cache_config, self._llm.vllm_config.lora_config
        usage, queries, hits = self._statistics.total
        adapters = None
        if lora is not None:
            adapters = AdapterFigures(frozenset(running), frozenset(waiting), lora.max_loras)
        return CacheFigures(
            usage=0.0 if idle else usage,
            block_size=cache.block_size,
            blocks=cache.num_gpu_blocks,
            queries=queries,
            hits=hits,
            config={name: value for name, value in cache.metrics_info().items() if name not in _FIGURES},
            adapters=adapters,
        )

    async def load_adapter(self, name: str, number: int, path: str) -> Any:
        """Load a LoRA adapter; returns the `lora_request` of requests for it. Raises RequestError."""
        if self._llm.vllm_config.lora_config is None:
            message = "vLLM takes no adapters here: it needs --vllm enable_lora=true."
            raise RequestError(message, param="lora_path")
        adapter = imported("vllm.lora.request").LoRARequest(name, number, path)
        try:
            await self._llm.engine_core.add_lora_async(adapter)
        except Exception as error:  # the core reports its exceptions as text
            why = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise RequestError(f"vLLM cannot load the adapter at {path}: {why}", param="lora_path") from error
        return adapter

    async def unload_adapter(self, adapter: Any) -> None:
        """Free an adapter. Running requests for it continue: vLLM loads it again for them."""
        await self._llm.engine_core.remove_lora_async(adapter.lora_int_id)

    async def add(self, made: Any) -> None:
        """Have the core begin with a request."""
        if self._notes is not None:
            self._notes.add(int(made.request_id, 16))
        await self._llm.engine_core.add_request_async(made)

    def ended(self, request_id: str) -> None:
        """A request has ended, or is aborted next."""
        if self._notes is not None:
            self._notes.remove(int(request_id, 16))

    async def abort(self, request_ids: list[str]) -> None:
        """Make the core end requests, within a step. It returns no further outputs for them."""
        await self._llm.engine_core.abort_requests_async(request_ids)

    def forget_media(self, output: Any) -> bool:
        """Whether an output says that the core has dropped media of the request: it can be sent again."""
        if not output.mm_cache_miss_hashes:
            return False
        self._version.forget_media(self._llm.renderer, output.mm_cache_miss_hashes)
        return True

    async def read(self, take: Callable[[Sequence[Any]], None]) -> None:
        """Pass on the outputs of the core: for each step, those of all requests.

        Raises when the core has died. `take` must not raise.
        """

        def take_step(outputs: Any) -> None:
            self._statistics.add(outputs)
            take(outputs.outputs)

        self._steps.take = self._messages.take = take_step
        await self._llm.engine_core.get_output_async()

    @property
    def sentinels(self) -> Sequence[int]:
        """Descriptors that become readable when a process of the core's on this machine has ended.

        `read` raises then, too, but only after vLLM has cleaned up, which takes seconds.
        """
        manager = self._llm.engine_core.resources.engine_manager
        own: Sequence[int] = manager.sentinels() if hasattr(manager, "sentinels") else ()
        return (*own, *self._ends)

    @property
    def ending(self) -> bool:
        """Whether the system is ending a process of the core's, or one that computes for it, on this machine.

        `sentinels` notice the end of the core later, when its memory is free; vLLM notices that of others,
        seconds later.
        """
        return any(map(is_ending, self._processes))

    def leave(self) -> None:
        """Remove it from the event loop: nothing is read or sent any more."""
        self._messages.leave()
        self._sender.leave()

    def close(self) -> None:
        """End its processes, if it is their only client, after `leave`."""
        self._llm.shutdown()
        for end in self._ends:
            os.close(end)
