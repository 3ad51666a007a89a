"""What the engine uses of vLLM, as far as it can be played: `install` puts it where vLLM would be.

Names and shapes are those of vLLM 0.32 and 0.33: `engine/arg_utils.py`, `sampling_params.py`, `exceptions.py`,
`v1/engine/__init__.py` (EngineCoreOutput), `v1/engine/async_llm.py`, `v1/engine/core_client.py`,
`v1/outputs.py` (LogprobsLists, LogprobsTensors). The tokenizer is a real one, of bytes. In place of a model, each token is the one after
the last, in the alphabet. What vLLM makes of its arguments, only the real one can say: `test_vllm_real.py`.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from math import hypot, inf
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as Bytes
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

SPECIAL = ("<|im_start|>", "<|im_end|>")
END = 257
"""The id of the last of them, which ends answers."""

POOLING = ("org/embeds", "org/ranks", "org/ranks-untyped", "org/classifies")
"""Models that go on with nothing."""

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class VLLMClientError(Exception):
    pass


class VLLMValidationError(VLLMClientError):
    def __init__(self, message: str, *, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class EngineDeadError(Exception):
    pass


class FakeTokenizer:
    """As transformers' `TokenizersBackend`."""

    chat_template: Any = "{{ messages[0]['content'] }}"
    bos_token, eos_token = None, "<|im_end|>"

    def __init__(self) -> None:
        letters = sorted(ByteLevel.alphabet())
        self._tokenizer = Tokenizer(BPE({letter: place for place, letter in enumerate(letters)}, []))
        self._tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
        self._tokenizer.decoder = Bytes()
        self._tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
        self.all_special_tokens = ["<|im_end|>"]
        self.all_special_ids = [self._tokenizer.token_to_id(each) for each in self.all_special_tokens]
        self.added_tokens_decoder = self._tokenizer.get_added_tokens_decoder()

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str | None]:
        return [self._tokenizer.id_to_token(token) for token in ids]


class SamplingParams(SimpleNamespace):
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: Sequence[int] | None = None
    temperature: float = 1.0
    stop_token_ids: Sequence[int] = ()

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        if self.temperature > 2:
            message = f"temperature must be in [0, 2], got {self.temperature}."
            raise VLLMValidationError(message, parameter="temperature")

    @property
    def all_stop_token_ids(self) -> set[int]:
        return {*self.stop_token_ids, END}


class PoolingParams(SimpleNamespace):
    pass


class CrossEncoderIOProcessor:
    """A query and a document are one text, with a space between them. Models with types know them apart."""

    model = None  # of those that need tokens after the pair

    def __init__(self, vllm_config: Any, renderer: "Renderer", templates: Any) -> None:
        self._renderer = renderer
        self._types = vllm_config.types

    def get_score_prompt(
        self, query: str, document: str, encode_kwargs: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        texts = (query + " ", document)
        ids = [self._renderer.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        prompt = {"prompt_token_ids": ids[0] + ids[1]}
        types = [0] * len(ids[0]) + [1] * len(ids[1])
        return "".join(texts), prompt | ({"token_type_ids": types} if self._types else {})


def compress_token_type_ids(types: Sequence[int]) -> tuple[int, int]:  # a number in 0.32
    return (types.index(1) if 1 in types else len(types)), len(types)


class LoRARequest(NamedTuple):
    lora_name: str
    lora_int_id: int
    lora_path: str


class StructuredOutputsParams(SimpleNamespace):
    pass


class Array(list[Any]):
    """As far as a NumPy array is asked for."""

    def tolist(self) -> list[Any]:
        return [*self]


class LogprobsLists(NamedTuple):
    logprob_token_ids: Array
    logprobs: Array


class LogprobsTensors(NamedTuple):
    logprob_token_ids: Array
    logprobs: Array
    selected_token_ranks: Array


class EngineCoreOutput(SimpleNamespace):
    finish_reason: str | None = None
    stop_reason: int | None = None
    new_logprobs: LogprobsLists | None = None
    new_prompt_logprobs_tensors: LogprobsTensors | None = None
    prefill_stats: Any = None
    kv_transfer_params: dict[str, Any] | None = None
    mm_cache_miss_hashes: list[str] | None = None


def structured_outputs_config(value: str) -> SimpleNamespace:
    return SimpleNamespace(**json.loads(value))


class AsyncEngineArgs:
    def __init__(self, **arguments: Any) -> None:
        self.__dict__.update(arguments)

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        parser.add_argument("--model", default="Qwen/Qwen3-0.6B")
        parser.add_argument("--dtype", choices=["auto", "bfloat16"], default="auto")
        parser.add_argument("--max-model-len", type=int)
        parser.add_argument("--max-num-seqs", type=int)
        parser.add_argument("--max-logprobs", type=int, default=20)
        parser.add_argument("--logprobs-mode", default="raw_logprobs")
        parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
        parser.add_argument("--enforce-eager", action=argparse.BooleanOptionalAction, default=False)
        parser.add_argument("--disable-log-stats", action="store_true")
        parser.add_argument("--enable-log-requests", action=argparse.BooleanOptionalAction, default=False)
        parser.add_argument("--allowed-media-domains", nargs="+")
        parser.add_argument("--default-mm-loras", type=json.loads)
        parser.add_argument("--structured-outputs-config", type=structured_outputs_config)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> "AsyncEngineArgs":
        if args.model == "org/nothing":
            raise FileNotFoundError("There is no repository org/nothing.\nLook elsewhere.")
        return cls(**vars(args))


class AsyncLLM:
    last: ClassVar["AsyncLLM"]
    """The one that was begun last."""

    def __init__(self, args: AsyncEngineArgs) -> None:
        AsyncLLM.last = self
        if args.model == "org/broken":  # type: ignore[attr-defined]
            raise RuntimeError("Engine core initialization failed. See root cause above.")
        self.args = args
        self.renderer = Renderer()
        self.model_config = SimpleNamespace(
            model=args.model,  # type: ignore[attr-defined]
            max_model_len=args.max_model_len or 2048,  # type: ignore[attr-defined]
            max_logprobs=args.max_logprobs,  # type: ignore[attr-defined]
            runner_type="pooling" if args.model in POOLING else "generate",  # type: ignore[attr-defined]
            score_type="bi-encoder" if args.model == "org/embeds" else "cross-encoder",  # type: ignore[attr-defined]
            is_multimodal_model=args.model == "org/images",  # type: ignore[attr-defined]
            is_hybrid=args.model == "org/hybrid",  # type: ignore[attr-defined]
            logprobs_mode=args.logprobs_mode,  # type: ignore[attr-defined]
            hf_config=SimpleNamespace(
                architectures=["LlamaForCausalLM"],
                model_type="llama",
                num_labels=3 if args.model == "org/classifies" else 1,  # type: ignore[attr-defined]
            ),
            get_diff_sampling_param=lambda: {"temperature": 0.6, "max_tokens": 9},
        )
        slots = args.max_num_seqs or 256  # type: ignore[attr-defined]
        self.vllm_config = SimpleNamespace(
            scheduler_config=SimpleNamespace(max_num_seqs=slots),
            kv_transfer_config=None,
            use_v2_model_runner=args.model == "org/hybrid",  # type: ignore[attr-defined]
            lora_config=None
            if args.default_mm_loras is None  # type: ignore[attr-defined]
            else SimpleNamespace(default_mm_loras=args.default_mm_loras),  # type: ignore[attr-defined]
            types=args.model == "org/ranks",  # type: ignore[attr-defined]
            cache_config=SimpleNamespace(
                block_size=16,
                num_gpu_blocks=100,
                metrics_info=lambda: {"block_size": "16", "num_gpu_blocks": "100", "cache_dtype": "auto"},
            ),
        )
        self.input_processor = InputProcessor()
        self.engine_core = EngineCore(self.renderer.tokenizer)

    @classmethod
    def from_engine_args(cls, args: AsyncEngineArgs, stat_loggers: Sequence[Any]) -> "AsyncLLM":
        assert stat_loggers, "the schedulers count nothing"
        return cls(args)

    def shutdown(self) -> None:
        core = self.engine_core
        sockets = (core.input_socket, core.resources.output_socket)
        for end in (*core.end, *(end for socket in sockets for end in socket.plain.ends)):
            os.close(end)


class Renderer:
    """The placeholder of an image, `*`, becomes a token for each of its bytes."""

    def __init__(self) -> None:
        self.tokenizer = FakeTokenizer()
        self.seen: list[Mapping[str, Any]] = []
        self.forgotten: list[str] = []
        self.mm_processor_cache = SimpleNamespace(invalidate=self.forgotten.append)

    def queue_mm_cache_invalidations(self, hashes: list[str]) -> None:  # since 0.33
        self.forgotten += hashes

    def get_mm_processor(self) -> SimpleNamespace:
        return SimpleNamespace(info=SimpleNamespace(allowed_mm_limits={"image": 9}))

    async def render_cmpl_async(self, prompts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        await asyncio.sleep(0)
        self.seen += prompts
        return [self._rendered(prompt) for prompt in prompts]

    def _rendered(self, prompt: Mapping[str, Any]) -> dict[str, Any]:
        ids: list[int] = []
        images, eye = (
            [*prompt["multi_modal_data"]["image"]],
            self.tokenizer.encode("*", add_special_tokens=False)[0],
        )
        for token in prompt["prompt_token_ids"]:
            ids += [token] * len(images.pop(0)) if token == eye else [token]
        if images:
            raise ValueError("There are more images than placeholders.")
        return {"type": "multimodal", "prompt_token_ids": ids}


class ImageMediaIO:
    def load_bytes(self, data: bytes) -> bytes:
        return data


class InputProcessor:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def process_inputs(  # noqa: PLR0917 - as vLLM has it
        self,
        request_id: str,
        prompt: Mapping[str, Any],
        params: SamplingParams,
        supported_tasks: Sequence[str],
        priority: int = 0,
        lora_request: Any = None,
        trace_headers: Mapping[str, str] | None = None,
        data_parallel_rank: int | None = None,
    ) -> SimpleNamespace:
        if isinstance(params, PoolingParams) and getattr(params, "dimensions", None) is not None:
            raise ValueError("This model cannot be cut.")
        if prompt["type"] not in ("token", "multimodal") or supported_tasks not in (
            ("generate",),
            ("embed",),
            ("classify",),
        ):
            raise TypeError
        request = SimpleNamespace(
            request_id=request_id,
            external_req_id=None,
            reasoning_ended=None,
            prompt_token_ids=prompt["prompt_token_ids"],
            cache_salt=prompt.get("cache_salt"),
            sampling_params=params,
            priority=priority,
            lora_request=lora_request,
            trace_headers=trace_headers,
            data_parallel_rank=data_parallel_rank,
        )
        self.seen.append(request)
        return request


EVENTS, POLLIN = 15, 1


class ZMQError(Exception):
    """What a socket raises."""


class Again(ZMQError):
    """Nothing has arrived."""


class Frame:
    """A part of a message; the first is the message, others are only counted. `more`: it is not the last."""

    def __init__(self, message: Any, more: bool) -> None:
        self.message = message
        self.more = more


def decoded(frames: Sequence[Frame]) -> Any:
    """The outputs in a message."""
    assert not frames[-1].more
    message = frames[0].message
    if not hasattr(message, "outputs"):
        raise ValueError("not outputs")
    return message


class PlainSocket:
    """A socket of zmq's: its descriptor is readable when something has arrived since it was looked at.

    `receive` gets what is sent.
    """

    def __init__(self, receive: Callable[..., None]) -> None:
        self.receive = receive
        self.messages: list[Frame] = []
        self.ends = os.pipe()
        self.signalled = False
        self.broken = False

    def getsockopt(self, option: str) -> int:
        assert option == "FD"
        return self.ends[0]

    def get(self, option: int) -> int:
        assert option == EVENTS
        if self.signalled:
            os.read(self.ends[0], 1)
            self.signalled = False
        return POLLIN if self.messages else 0

    def recv(self, flags: str, copy: bool) -> Frame:
        assert (flags, copy) == ("NOBLOCK", False)
        if self.broken:
            raise ZMQError("closed")
        if not self.messages:
            raise Again
        return self.messages.pop(0)

    def send_multipart(self, parts: Sequence[Any], flags: str, copy: bool) -> None:
        assert (flags, copy) == ("NOBLOCK", False)
        self.receive(*parts)

    @staticmethod
    def shadow(socket: "Socket") -> "PlainSocket":
        return socket.plain


class Socket:
    """The same, bound to asyncio, which is not asked."""

    recv_multipart: Any = None
    send_multipart: Any = None

    def __init__(self, receive: Callable[..., None]) -> None:
        self.plain = PlainSocket(receive)

    def arrive(self, message: Any, more: int = 0) -> None:
        """Receive it, with `more` further parts."""
        self.plain.messages += [Frame(message, more > place) for place in range(more + 1)]
        if not self.plain.signalled:
            self.plain.signalled = True
            os.write(self.plain.ends[1], b"!")


class EngineCore:
    """Yields a token for each request per step. `script` replaces that; `held` pauses, `dies` and `end` end it.

    `processes` are those of the next one, if it has any.
    """

    processes: ClassVar[list[Any]] = []

    def __init__(self, tokenizer: FakeTokenizer) -> None:
        self._next: dict[int, int] = {}
        ids = tokenizer.encode(LETTERS, add_special_tokens=False)
        self._next = dict(zip(ids, [*ids[1:], ids[0]], strict=True))
        self.requests: dict[str, list[int]] = {}
        self._params: dict[str, Any] = {}
        self.script: list[EngineCoreOutput] = []
        self.aborted: list[str] = []
        self.adapters: dict[int, str] = {}
        self.dies = False
        self.held = False
        self.unreachable = False
        self.end = os.pipe()
        self.input_socket = Socket(self._receive)
        self.outputs_queue: Any = asyncio.Queue()
        self.decoder = SimpleNamespace(decode=decoded)
        self.read_by_task: list[Any] = []
        self._tasks: list[asyncio.Future[None]] = []
        self.resources = SimpleNamespace(
            engine_manager=SimpleNamespace(sentinels=lambda: [self.end[0]], processes=self.processes),
            output_socket=Socket(self._receive),
        )

    async def add_request_async(self, request: Any) -> None:
        await self.input_socket.send_multipart((self._add, request), copy=False)

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        await self.input_socket.send_multipart((self._abort, request_ids), copy=False)

    def _receive(self, what: Callable[[Any], None], argument: Any) -> None:
        """What the other process does with a message."""
        if self.unreachable:
            raise ZMQError("no route to host")
        what(argument)

    def _add(self, request: Any) -> None:
        self.requests[request.request_id] = [*request.prompt_token_ids]
        self._params[request.request_id] = (request.sampling_params, len(request.prompt_token_ids))

    def _abort(self, request_ids: list[str]) -> None:
        self.aborted += request_ids
        for request_id in request_ids:
            self.requests.pop(request_id, None)

    async def add_lora_async(self, lora_request: Any) -> bool:
        if lora_request.lora_path == "nowhere":
            raise RuntimeError("Call to add_lora method failed: No adapter found for nowhere")
        self.adapters[lora_request.lora_int_id] = lora_request.lora_name
        return True

    async def remove_lora_async(self, lora_id: int) -> bool:
        return self.adapters.pop(lora_id, None) is not None

    async def get_output_async(self) -> Any:
        self._tasks = self._tasks or [*map(asyncio.ensure_future, (self._compute(), self._read()))]
        outputs = await self.outputs_queue.get()
        if isinstance(outputs, Exception):
            raise outputs
        return outputs

    async def _compute(self) -> None:
        """What the other process does: it sends a message for each step."""
        socket = self.resources.output_socket
        while not self.dies:
            await asyncio.sleep(0.001 if self.held or not self.requests else 0)
            if self.requests and not self.held:
                outputs = [self._output(each) for each in [*self.requests]]
                socket.arrive(
                    SimpleNamespace(
                        outputs=outputs,
                        utility_output=None,
                        engine_index=0,
                        scheduler_stats=SimpleNamespace(
                            kv_cache_usage=len(self.requests) / 16,
                            prefix_cache_stats=SimpleNamespace(queries=10, hits=4),
                        ),
                    )
                )
        socket.arrive(EngineDeadError())

    async def _read(self) -> None:
        """What the client does, in a task of its own."""
        queue, socket = self.outputs_queue, self.resources.output_socket
        try:
            while True:
                message = (await socket.recv_multipart(copy=False))[0].message
                self.read_by_task.append(message)
                queue.put_nowait(message)
        except ZMQError as error:
            queue.put_nowait(error)

    def _score(self, output: EngineCoreOutput, token: int, prompt: Sequence[int], params: Any) -> None:
        """Add the log probabilities that are wanted of a token and of a prompt."""
        if params.logprobs is not None:
            most = [token, *(each for each in self._next if each != token)][: params.logprobs]
            scores = [-0.5, *(-0.5 - place for place in range(len(most)))]
            output.new_logprobs = LogprobsLists(Array([[token, *most]]), Array([scores]))
        if params.logprob_token_ids:
            output.new_logprobs = self._named(token, params.logprob_token_ids)
        if params.prompt_logprobs is not None:
            rows = [[each, *[*self._next][: params.prompt_logprobs]] for each in prompt]
            scored = [[-0.25 * place for place in range(len(row))] for row in rows]
            output.new_prompt_logprobs_tensors = LogprobsTensors(
                Array(rows), Array(scored), Array([*range(7, 7 + len(rows))])
            )

    def _named(self, token: int, named: Sequence[int]) -> "LogprobsLists":
        """The scores of a token and of those that a request names, as long as the longest of a step."""
        longest = max(len(params.logprob_token_ids or ()) for params, _ in self._params.values())
        ids = [token, *named, *[0] * (longest - len(named))]
        scores = [-0.5, *(-0.5 if each == token else -4.0 - each / 1000 for each in named)]
        scores += [-inf] * (len(ids) - len(scores))
        return LogprobsLists(Array([ids]), Array([scores]))

    def _output(self, request_id: str) -> EngineCoreOutput:
        ids = self.requests[request_id]
        params, prompt = self._params[request_id]
        if (
            isinstance(params, PoolingParams) and params.task == "classify"
        ):  # what of the document is in the query
            start, _ = (params.extra_kwargs or {}).get("compressed_token_type_ids", (1, 1))
            query, document = ids[:start], ids[start:]
            share = sum(token in query for token in document) / len(document)
            output = EngineCoreOutput(
                request_id=request_id, pooling_output=Array([share]), finish_reason="stop"
            )
        elif isinstance(params, PoolingParams):  # how much of the alphabet's halves a text has
            early = sum(token in [*self._next][:13] for token in ids)
            length = hypot(early, len(ids) - early)
            vector = Array([early / length, (len(ids) - early) / length])
            output = EngineCoreOutput(request_id=request_id, pooling_output=vector, finish_reason="stop")
        elif self.script:
            output = self.script.pop(0)
            output.request_id = request_id
        else:
            token = self._next.get(ids[-1], min(self._next))
            ids.append(token)
            output = EngineCoreOutput(request_id=request_id, new_token_ids=[token])
            self._score(output, token, ids[1:prompt], params)
            if len(ids) - prompt == 1:
                output.prefill_stats = SimpleNamespace(num_cached_tokens=0)
            if token in params.stop_token_ids:
                output.finish_reason, output.stop_reason = "stop", token
            elif len(ids) - prompt == params.max_tokens:
                output.finish_reason = "length"
        if output.finish_reason is not None:
            del self.requests[request_id]
        return output


def install(monkeypatch: pytest.MonkeyPatch, version: str = "0.33.0") -> None:
    """Have it imported for this version of vLLM."""
    modules: Mapping[str, Mapping[str, Any]] = {
        "vllm": {"__version__": version},
        "vllm.engine": {},
        "vllm.engine.arg_utils": {"AsyncEngineArgs": AsyncEngineArgs},
        "vllm.utils": {},
        "vllm.utils.argparse_utils": {"FlexibleArgumentParser": argparse.ArgumentParser},
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.async_llm": {"AsyncLLM": AsyncLLM},
        "vllm.multimodal": {},
        "vllm.multimodal.media": {"ImageMediaIO": ImageMediaIO},
        "vllm.entrypoints": {},
        "vllm.entrypoints.pooling": {},
        "vllm.entrypoints.pooling.scoring": {},
        "vllm.entrypoints.pooling.scoring.io_processor": {"CrossEncoderIOProcessor": CrossEncoderIOProcessor},
        "vllm.entrypoints.pooling.scoring.utils": {"compress_token_type_ids": compress_token_type_ids},
        "vllm.renderers": {},
        "vllm.renderers.chat_utils": {"ChatTemplateConfig": SimpleNamespace},
        "vllm.pooling_params": {"PoolingParams": PoolingParams},
        "vllm.sampling_params": {
            "SamplingParams": SamplingParams,
            "StructuredOutputsParams": StructuredOutputsParams,
        },
        "vllm.lora": {},
        "vllm.lora.request": {"LoRARequest": LoRARequest},
        "zmq": {
            "Socket": PlainSocket,
            "EVENTS": EVENTS,
            "POLLIN": POLLIN,
            "NOBLOCK": "NOBLOCK",
            "FD": "FD",
            "ZMQError": ZMQError,
            "Again": Again,
        },
        "vllm.exceptions": {"VLLMClientError": VLLMClientError},
    }
    for name, contents in modules.items():
        module = ModuleType(name)
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, module)
