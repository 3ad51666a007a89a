"""Servers of every kind, in memory, with a model whose tokens may end inside a character.

The model continues a prompt that ends with `MARK` with its answer, and a prompt that ends with a beginning of
the answer with the rest. What a server makes of tokens is what the real one does: vLLM 0.32
(`v1/engine/detokenizer.py`, tokenizers' `DecodeStream`), SGLang 0.5 (`managers/detokenizer_manager.py`) and
llama.cpp's server. `test_vllm_characters.py` has the same with a real vLLM.
"""

import asyncio
import codecs
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, islice, repeat
from random import Random
from types import SimpleNamespace
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as Bytes
from tokenizers.models import BPE

from antiphon.core.chunks import Chunk
from antiphon.core.errors import EngineError
from antiphon.core.limits import DEFAULTS
from antiphon.engines.engine import Capabilities, Engine, GenerationRequest, Load, ModelCard, Receiver
from antiphon.engines.http_client import Exchange, HttpError, HttpResponse
from antiphon.engines.scripted import TEMPLATE
from antiphon.engines.upstream import Options, UpstreamEngine
from antiphon.engines.vllm_stream import OutputReader, Vocabulary
from antiphon.engines.vllm_tokenizers import _BYTES as BYTES
from antiphon.engines.vllm_tokenizers import HuggingFaceCodec
from antiphon.render.renderer import CHATML

MARK = "assistant\n"
"""The end of every prompt."""
BROKEN = "\ufffd"
OFF = "the model is lost"
"""The answer to a prompt that ends neither with the mark nor with a beginning of the answer."""

PIECES = [
    *(bytes([value]) for value in range(256)),
    *(text.encode() for text in ("Hello", " the", "日本", "語", "é", "한", "ال", "<tool_call>", "</think>")),
    " 🎉".encode()[:3],  # a space, and half an emoji
    " 🎉".encode()[3:],
    "日".encode()[:2],
    "本".encode()[1:] + "語".encode()[:1],  # the end of one, and the beginning of another
    "日".encode() + "本".encode()[:1],
    BROKEN.encode(),
    "\u200d".encode() + b"\xf0\x9f",  # of two people in one emoji
]
IDS = {piece: token for token, piece in reversed([*enumerate(PIECES)])}
END = len(PIECES)
"""The id of the token that ends answers. Its text is hidden."""
END_TEXT = "<|im_end|>"


def decode(ids: Iterable[int]) -> str:
    """The text of tokens: broken characters are replaced, as tokenizers of bytes do."""
    return b"".join(END_TEXT.encode() if token == END else PIECES[token] for token in ids).decode(
        errors="replace"
    )


def tokenize(
    text: str | bytes, choose: Callable[[Sequence[bytes]], bytes] = lambda found: max(found, key=len)
) -> list[int]:
    """The tokens of a text: of the pieces that it goes on with, the longest, or one that is chosen."""
    raw, ids = text.encode() if isinstance(text, str) else text, []
    while raw:
        piece = choose([raw[:size] for size in range(1, 13) if raw[:size] in IDS and size <= len(raw)])
        ids.append(IDS[piece])
        raw = raw[len(piece) :]
    return ids


def spelled(text: str | bytes, seed: int) -> list[int]:
    """One of the many ways in which a model may write a text."""
    return tokenize(text, Random(seed).choice)


class ByteModel:
    """Writes `answer`, tokens. An `exact` one goes on after these very tokens only, else after their bytes."""

    def __init__(self, answer: Sequence[int], *, exact: bool = True) -> None:
        self._answer = [*answer, END]
        self._exact = exact

    def rest(self, prompt: Sequence[int]) -> list[int]:
        """The tokens after these."""
        raw = [PIECES[token] for token in prompt if token != END]
        at = b"".join(raw).rfind(MARK.encode()) + len(MARK)
        read = place = 0
        while read < at:
            read, place = read + len(raw[place]), place + 1
        begun = [*prompt[place:]]
        if begun == self._answer[: len(begun)]:
            return self._answer[len(begun) :]
        return [*tokenize(OFF), END] if self._exact else self._after(b"".join(raw[place:]))

    def _after(self, begun: bytes) -> list[int]:
        whole = b"".join(PIECES[token] for token in self._answer[:-1])
        if not whole.startswith(begun):
            return [*tokenize(OFF), END]
        written = place = 0
        while written < len(begun):
            written, place = written + len(PIECES[self._answer[place]]), place + 1
        return [*whole[len(begun) : written], *self._answer[place:]]


# Text of tokens


class VllmText:
    """As tokenizers' `DecodeStream`, which begins with the prompt."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._ids = [*prompt]
        self._prefix, self._read = "", 0

    def feed(self, token: int) -> str:
        if not self._prefix and not (before := decode(self._ids)).endswith(BROKEN):
            self._prefix, self._read = before, len(self._ids)
        self._ids.append(token)
        text = decode(self._ids)
        if len(text) <= len(self._prefix) or text.endswith(BROKEN):
            return ""
        new = text.removeprefix(self._prefix)
        self._ids = self._ids[self._read :]
        self._read = len(self._ids)
        self._prefix = decode(self._ids)
        return new


class SglangText:
    """As SGLang's `DetokenizerManager`: what precedes a broken character is sent, up to a space."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._ids = [*prompt[-5:]]
        self._from, self._read = 0, len(self._ids)
        self._whole = ""
        self._sent = 0

    def feed(self, tokens: Sequence[int], *, ended: bool) -> str:
        self._ids += tokens
        new = decode(self._ids[self._from :])[len(decode(self._ids[self._from : self._read])) :]
        if not ended and new and not new.endswith(BROKEN):
            self._whole += new
            self._from, self._read = self._read, len(self._ids)
            new = ""
        elif not ended:
            is_chinese = len(new) > 1 and "\u4e00" <= new[-2] <= "\u9fff"
            new = new[:-1] if is_chinese else new[: new.rfind(" ") + 1]
        # SGLang itself goes back here, and repeats text, if it sends less of an unfinished word than before.
        sent, self._sent = self._sent, max(self._sent, len(self._whole + new))
        return (self._whole + new)[sent:]


class LlamaText:
    """As llama.cpp's: nothing is sent while the text ends inside a character."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""

    def feed(self, token: int) -> str | None:
        """The text to send; None if this is not the time for it."""
        self._text += self._utf8.decode(PIECES[token])
        if self._utf8.getstate()[0]:
            return None
        text, self._text = self._text, ""
        return text


# Servers: what they answer to probes, and the events of an answer


def _steps(tokens: Sequence[int], sizes: Iterable[int]) -> Iterator[list[int]]:
    """The tokens of each step."""
    at, forever = 0, chain(sizes, repeat(1))
    while at < len(tokens):
        size = next(forever)
        yield [*tokens[at : at + size]]
        at += size


def _cut(tokens: list[int], most: int) -> tuple[list[int], str]:
    return (tokens, "stop") if len(tokens) <= most else (tokens[:most], "length")


class Vllm:
    kind = "vllm"

    def __init__(self, model: ByteModel, sizes: Iterable[int] = ()) -> None:
        self._model = model
        self._sizes = [*sizes]
        self.asked: list[str] = []

    def answer(self, path: str, body: Any) -> Any:
        self.asked.append(path)
        match path:
            case "/v1/models":
                return {"data": [{"id": "bytes", "owned_by": self.kind, "max_model_len": 4096}]}
            case "/tokenizer_info":
                return {"chat_template": TEMPLATE, "eos_token": END_TEXT}
            case "/tokenize":
                return {"tokens": tokenize(body["prompt"])}
            case "/detokenize":
                return {"prompt": decode(body["tokens"])}
        return None

    def events(self, body: Any) -> Iterator[str]:
        tokens, reason = _cut(self._model.rest(body["prompt"]), body["max_tokens"])
        text, left = VllmText(body["prompt"]), len(tokens)
        for ids in _steps(tokens, self._sizes):
            left -= len(ids)
            new = "".join(text.feed(token) for token in ids if token != END)
            choice = {"text": new, "token_ids": ids, "finish_reason": None if left else reason}
            if "logprobs" in body:
                choice["logprobs"] = {
                    "token_logprobs": [-token / 100 for token in ids],
                    "top_logprobs": [{f"token_id:{token}": -token / 100} for token in ids],
                }
            yield _event({"choices": [choice]})
        yield _event({"choices": [], "usage": {"completion_tokens": len(tokens)}})
        yield "data: [DONE]\n\n"


class Sglang(Vllm):
    kind = "sglang"
    cumulative = False

    def answer(self, path: str, body: Any) -> Any:
        if path == "/detokenize":
            return {"text": decode(body["tokens"])}
        return super().answer(path, body)

    def events(self, body: Any) -> Iterator[str]:
        params = body["sampling_params"]
        tokens, reason = _cut(self._model.rest(body["input_ids"]), params["max_new_tokens"])
        text, done, whole = SglangText(body["input_ids"]), 0, ""
        for ids in _steps(tokens, self._sizes):
            done += len(ids)
            ended = done == len(tokens)
            new = text.feed([token for token in ids if token != END], ended=ended)
            whole += new
            meta: dict[str, Any] = {"completion_tokens": done, "prompt_tokens": len(body["input_ids"])}
            meta["finish_reason"] = {"type": reason} if ended else None
            scored = tokens[:done]
            if "return_logprob" in body:
                meta["output_token_logprobs"] = [(-token / 100, token, None) for token in scored]
                meta["output_top_logprobs"] = [[(-token / 100, token, None)] for token in scored]
            shown = (whole, scored) if self.cumulative else (new, ids)
            yield _event({"text": shown[0], "output_ids": shown[1], "meta_info": meta})


class CumulativeSglang(Sglang):
    cumulative = True


class Llama(Vllm):
    kind = "llama-server"

    def answer(self, path: str, body: Any) -> Any:
        match path:
            case "/props":
                shape = {"n_ctx": 4096}
                return {"default_generation_settings": shape, "total_slots": 4, "chat_template": TEMPLATE}
            case "/v1/models":
                return {"data": [{"id": "bytes", "meta": {"n_vocab": END + 1}}]}
            case "/tokenize" if body.get("with_pieces"):
                tokens = tokenize(body["content"])
                return {"tokens": [{"id": token, "piece": [*PIECES[token]]} for token in tokens]}
            case "/tokenize":
                content = body["content"]
                return {"tokens": tokenize(content if isinstance(content, str) else "".join(content))}
            case "/detokenize":
                return {"content": decode(body["tokens"])}
        return None

    def events(self, body: Any) -> Iterator[str]:
        tokens, reason = _cut(self._model.rest(body["prompt"]), body["n_predict"])
        text = LlamaText()
        for count, token in enumerate(tokens, 1):
            if token != END and (new := text.feed(token)) is not None:
                yield _event({"content": new, "tokens": [token], "tokens_predicted": count})
        stop = {"stop": True, "stop_type": "eos" if reason == "stop" else "limit"}
        yield _event({"content": "", "tokens_predicted": len(tokens), **stop})


class Text(Vllm):
    """Takes text, and returns it."""

    kind = "completions"

    def answer(self, path: str, body: Any) -> Any:
        if path == "/v1/completions":
            return {}
        return super().answer(path, body) if path in ("/v1/models", "/tokenizer_info") else None

    def events(self, body: Any) -> Iterator[str]:
        tokens, reason = _cut(self._model.rest(tokenize(body["prompt"])), body["max_tokens"])
        text, left = LlamaText(), len(tokens)
        for ids in _steps(tokens, self._sizes):
            left -= len(ids)
            new = "".join(text.feed(token) or "" for token in ids if token != END)
            yield _event({"choices": [{"text": new, "finish_reason": None if left else reason}]})
        yield _event({"choices": [], "usage": {"completion_tokens": len(tokens)}})
        yield "data: [DONE]\n\n"


class Ollama(Text):
    kind = "ollama"

    def answer(self, path: str, body: Any) -> Any:
        return {"/api/tags": {"models": [{"name": "bytes"}]}, "/api/show": {}}.get(path)

    def events(self, body: Any) -> Iterator[str]:
        tokens, reason = _cut(self._model.rest(tokenize(body["prompt"])), body["options"]["num_predict"])
        text = LlamaText()
        for ids in _steps(tokens, self._sizes):
            new = "".join(text.feed(token) or "" for token in ids if token != END)
            yield json.dumps({"response": new, "done": False}) + "\n"
        yield json.dumps({"done": True, "done_reason": reason, "eval_count": len(tokens)}) + "\n"


def _event(value: Any) -> str:
    return f"data: {json.dumps(value)}\n\n"


SERVERS: Mapping[str, type[Vllm]] = {
    "vllm": Vllm,
    "sglang": Sglang,
    "sglang, whole texts": CumulativeSglang,
    "llama-server": Llama,
    "completions": Text,
    "ollama": Ollama,
}


class Wire:
    """In place of an `HttpClient`: the server is called. Connections are lost after numbers of events."""

    mounted = busy = False
    version = "/v1"
    limits = DEFAULTS

    def __init__(self, server: Vllm, cuts: Iterable[int] = ()) -> None:
        self._server = server
        self._cuts = iter(cuts)

    async def request(self, method: str, path: str, body: Any = None) -> HttpResponse:
        if path == "/generate":
            return HttpResponse(400, b"keys in [0, %d]" % END)
        found = self._server.answer(path, body)
        return HttpResponse(404, b"") if found is None else HttpResponse(200, json.dumps(found).encode())

    def encode(self, method: str, path: str, body: bytes | None = None, *more: Any) -> bytes:
        return body or b""

    def send(self, exchange: Exchange) -> None:
        events = self._server.events(json.loads(exchange.request))
        cut = next(self._cuts, None)
        exchange.status = 200
        exchange.connection = _Sending(exchange, events, cut)  # type: ignore[assignment]

    def limit_connections(self, most: int) -> None:
        """There are no connections."""

    def close(self) -> None:
        """There is nothing to close."""


class _Sending:
    """The events of one answer, one in each turn of the loop."""

    def __init__(self, exchange: Exchange, events: Iterator[str], cut: int | None) -> None:
        self._exchange = exchange
        self._events = events if cut is None else islice(events, cut)
        self._lost = cut is not None
        self._turn: asyncio.Handle | None = None
        self.resume()

    def close(self) -> None:
        self._events, self._lost = iter(()), False
        self.pause()

    def pause(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def resume(self) -> None:
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._turn = None
        event = next(self._events, None)
        if event is None:
            self._exchange.on_end(HttpError("it closed the connection") if self._lost else None)
            return
        self.resume()
        self._exchange.on_body(event.encode())


def upstream(server: Vllm, cuts: Iterable[int] = ()) -> UpstreamEngine:
    """The engine for a server, whose connections are lost after these numbers of events."""
    engine = UpstreamEngine(Options("http://127.0.0.1:1", upstream_kind=server.kind))
    engine._client = Wire(server, cuts)  # type: ignore[assignment]
    return engine


# vLLM in the process


@cache
def _vocabulary() -> Vocabulary:
    letters = {value: letter for letter, value in BYTES.items()}
    words = {"".join(letters[value] for value in piece): token for token, piece in enumerate(PIECES)}
    fast = Tokenizer(BPE(words, []))
    fast.decoder = Bytes()
    fast.add_special_tokens([AddedToken(END_TEXT, special=True)])
    return Vocabulary(HuggingFaceCodec(_Tokenizer(fast)))


class _Tokenizer:
    """As transformers' `TokenizersBackend`."""

    def __init__(self, fast: Tokenizer) -> None:
        self._tokenizer = fast
        self.all_special_ids, self.all_special_tokens = [END], [END_TEXT]

    def __len__(self) -> int:
        return END + 1

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str | None]:
        return [self._tokenizer.id_to_token(token) for token in ids]


class InProcess:
    """What vLLM's engine core returns, read as `engines/vllm.py` does. It fails after numbers of steps."""

    card = ModelCard(
        "bytes", 4096, CHATML, capabilities=Capabilities(token_ids=True, sampling=frozenset({"logprobs"}))
    )
    load = Load()
    memory = 0

    def __init__(self, model: ByteModel, sizes: Iterable[int] = (), cuts: Iterable[int] = ()) -> None:
        self._model = model
        self._sizes = [*sizes]
        self._cuts = iter(cuts)
        self._vocabulary = _vocabulary()

    async def start(self) -> None:
        """It has nothing to load."""

    async def stop(self) -> None:
        """Or to free."""

    async def tokenize(self, pieces: Sequence[str]) -> list[int]:
        return [token for piece in pieces for token in tokenize(piece)]

    async def token_texts(self, ids: Sequence[int]) -> list[str]:
        return [decode([token]) for token in ids]

    async def detokenize(self, ids: Sequence[int]) -> str:
        return decode(ids)

    def generate(self, request: GenerationRequest, receiver: Receiver) -> "_Steps":
        return _Steps(receiver, self._chunks(request), next(self._cuts, None))

    def _chunks(self, request: GenerationRequest) -> Iterator[list[Chunk]]:
        tokens, reason = _cut(self._model.rest(request.prompt.ids), request.max_tokens)
        reader, left = OutputReader(self._vocabulary, request), len(tokens)
        for ids in _steps(tokens, self._sizes):
            left -= len(ids)
            rows = [([token, token], [-token / 100] * 2) for token in ids]
            scores = SimpleNamespace(
                logprob_token_ids=SimpleNamespace(tolist=lambda rows=rows: [row[0] for row in rows]),
                logprobs=SimpleNamespace(tolist=lambda rows=rows: [row[1] for row in rows]),
            )
            output = SimpleNamespace(
                new_token_ids=ids,
                finish_reason=None if left else reason,
                stop_reason=None,
                new_logprobs=scores if request.sampling.logprobs is not None else None,
                prefill_stats=None,
                kv_transfer_params=None,
            )
            chunk = reader.read(output)
            yield [] if chunk is None else [chunk]


class _Steps:
    """One generation, a step in each turn of the loop."""

    def __init__(self, receiver: Receiver, steps: Iterator[list[Chunk]], cut: int | None) -> None:
        self._receiver = receiver
        self._steps = steps if cut is None else islice(steps, cut)
        self._over = False
        asyncio.get_running_loop().call_soon(self._step)

    def cancel(self) -> None:
        self._over = True

    def _step(self) -> None:
        if self._over:
            return
        chunks = next(self._steps, None)
        if chunks is None:
            self._receiver.fail(EngineError("It died."))
            return
        asyncio.get_running_loop().call_soon(self._step)
        if chunks:
            self._over = chunks[-1].finish is not None
            self._receiver.push(chunks)


IN_PROCESS = "vLLM in the process"
KINDS = (*SERVERS, IN_PROCESS)
NAMING = frozenset({"vllm", "sglang", "sglang, whole texts", IN_PROCESS})
"""They name each token: an answer goes on after the very tokens that were written."""
TEXTUAL = frozenset({"completions", "ollama"})
"""They take and return text."""


def engine_of(kind: str, model: ByteModel, sizes: Iterable[int] = (), cuts: Iterable[int] = ()) -> Engine:
    """An engine of this kind. Steps have `sizes` tokens, and generations fail after `cuts` steps."""
    if kind == IN_PROCESS:
        return InProcess(model, sizes, cuts)
    return upstream(SERVERS[kind](model, sizes), cuts)
