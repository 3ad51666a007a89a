"""llama-server, and other servers with llama.cpp's own HTTP interface.

Requests and answers are nearly the same as those of the process (`llama_request`, `llama_stream`), and so
are the results. Only the native endpoint returns tokens to every client, and reports the number of slots:
the server never gets more requests than that, because a request that waits there cannot be cancelled.

A prompt with media is sent as text, with markers in their places: the server takes no media with tokens. A
word joiner splits text of clients that looks like a special token.

Adapters are those that the server was started with, under the names of their files. It finds what it has
computed of a prompt whatever adapters it was computed with: in slots, if a request names none, and in its
main memory. So after the first request that names some, no prompt is looked for there. Adapters by number are
those of our own process, which is asked in a way that needs no such care (`llama_cpp`).
"""

import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import PurePath
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.chunks import Chunk
from antiphon.core.constraint import Gbnf
from antiphon.core.errors import EngineError
from antiphon.core.items import MediaKind
from antiphon.core.turn import Adapter, Sampling
from antiphon.engines.engine import (
    Capabilities,
    GenerationRequest,
    ModelCard,
    NextToken,
    NextTokenRequest,
    Prompt,
)
from antiphon.engines.http_client import HttpClient, HttpError
from antiphon.engines.llama_request import COLUMN, check, check_ids, defaults_of, lora_field, request_of
from antiphon.engines.llama_stream import MessageReader, TokenPiece, reader_of
from antiphon.engines.samplers import ranges, supported
from antiphon.engines.shared_prompts import SharedPrompts
from antiphon.engines.upstreams.kind import (
    EVENT,
    Answers,
    CountTokens,
    Lookups,
    ReadLines,
    UpstreamSettings,
    ask,
    texts_around_media,
    unreachable,
)
from antiphon.engines.upstreams.llama_next_token import SlotScorer
from antiphon.engines.upstreams.tokenizers import opening_of

NAME = "llama-server"

SPARE_THREADS = 4
"""Threads of its HTTP server in addition to one for each slot: to tokenize while all slots work.

It is llama-server's own least number, and those of a process of ours.
"""

_MODALITIES = {"vision": MediaKind.IMAGE, "audio": MediaKind.AUDIO}
"""Video is missing here: it needs programs on the server."""


class _Tokens(Struct, frozen=True):
    pieces: Any
    text: Any


class LlamaServer:
    """A llama-server."""

    kind = NAME
    path = "/completion"

    def __init__(  # noqa: PLR0913, PLR0917 - what it reports
        self, client: HttpClient, card: ModelCard, slots: int, cells: int, vocabulary: int, marker: str = ""
    ) -> None:
        self.card = card
        self.cells = cells
        self._marker = marker
        self.slots = slots
        self.prompts = SharedPrompts(slots)
        self._client = client
        self._vocabulary = vocabulary
        self._numbers = {name: number for number, name in enumerate(card.adapters)}
        self._scorer = SlotScorer(self.prompts, vocabulary, client.limits, self._prompt)
        pieces: Lookups[str, list[TokenPiece]] = Lookups(self._pieces)
        texts: Lookups[int, str] = Lookups(lambda token: self.detokenize((token,)))
        self._tokenizer = _Tokens(pieces.__getitem__, texts.__getitem__)

    async def tokenize(self, pieces: Sequence[str]) -> list[int]:
        return await _tokenize(self._client, {"content": pieces})

    async def _pieces(self, text: str) -> list[TokenPiece]:
        answer = await ask(self._client, "/tokenize", {"content": text, "with_pieces": True})
        return [
            TokenPiece(
                token["id"],
                token["piece"].encode() if isinstance(token["piece"], str) else bytes(token["piece"]),
            )
            for token in answer["tokens"]
        ]

    async def detokenize(self, ids: Sequence[int]) -> str:
        check_ids(ids, self._vocabulary, "tokens")
        text: str = (await ask(self._client, "/detokenize", {"tokens": ids}))["content"]
        return text

    def encode_request(self, request: GenerationRequest) -> tuple[str, bytes]:
        check(request, self._vocabulary)
        changes: dict[str, Any] = {}
        if request.prompt.media:
            changes["prompt"] = self._multimodal(request.prompt)
        request = replace(request, sampling=self._with_numbers(request.sampling))
        if not self.prompts.found:
            changes["cache_prompt"] = False
        body = request_of(request)
        return self.path, msgspec.json.encode(msgspec.json.decode(body) | changes) if changes else body

    def _with_numbers(self, sampling: Sampling) -> Sampling:
        """The sampling with the adapters that it names by their numbers, as the server knows them."""
        lora = sampling.lora
        if not self._numbers or lora is None or any(isinstance(one.name, int) for one in lora):
            return sampling
        self.prompts.found = False
        return replace(sampling, lora=self._all_scales(lora))

    async def score_in_slot(
        self, request: NextTokenRequest, lines: ReadLines, count: CountTokens
    ) -> tuple[NextToken, ...]:
        """In one slot, see `SlotScorer`: in that, prompts are found even if adapters are named."""
        for ids in (request.beginning.ids, *(end.ids for end in request.ends), *request.tokens):
            check_ids(ids, self._vocabulary, "tokens")
        return await self._scorer.score(
            request, lora_field(self._with_numbers(request.sampling)), lines, count
        )

    def _prompt(self, prompt: Prompt) -> Any:
        """A prompt as it is sent."""
        return self._multimodal(prompt) if prompt.media else prompt.ids

    def _all_scales(self, lora: Sequence[Adapter]) -> tuple[Adapter, ...]:
        """The scale of each of the server's adapters: it takes an empty list for none at all."""
        scales = {adapter.name: adapter.scale for adapter in lora}
        return tuple(Adapter(number, scales.get(name, 0.0)) for name, number in self._numbers.items())

    def _multimodal(self, prompt: Prompt) -> Mapping[str, Any]:
        """The prompt as text, with the media. The token that it begins with is added there."""
        texts = [text.replace(self._marker, "") for text in texts_around_media(prompt, self.card)]
        data = [b64encode(part.data).decode() for part in prompt.media]
        return {"prompt_string": self._marker.join(texts), "multimodal_data": data}

    def reader(self, request: GenerationRequest) -> "_Reader":
        messages = reader_of(request.sampling, self._tokenizer)
        return _MediaReader(messages, request.prompt) if request.prompt.media else _Reader(messages)


class _Reader:
    """Reads the events of a stream."""

    complete = ended = False
    line_limit = EVENT

    def __init__(self, messages: MessageReader) -> None:
        self._messages = messages

    def read(self, line: bytes) -> Chunk | None:
        if not line.startswith(b"data:"):
            return None
        chunk = self._messages.read(line[5:])
        if chunk is not None and chunk.finish is not None:
            self.complete = not isinstance(chunk.finish.stop, int)  # it does not know about stop tokens
        return chunk

    def end(self) -> Chunk | None:
        return None


class _Total(Struct, frozen=True):
    total: int


class _Progress(Struct, frozen=True):
    prompt_progress: _Total | None = None


class _MediaReader(_Reader):
    """Reads an answer to a prompt with media: the first chunk has the number of their tokens."""

    def __init__(self, messages: MessageReader, prompt: Prompt) -> None:
        super().__init__(messages)
        self._prompt = prompt
        self._tokens = 0  # not yet reported

    def read(self, line: bytes) -> Chunk | None:
        if line.startswith(b"data:") and b'"prompt_progress"' in line:
            progress = msgspec.json.decode(line[5:], type=_Progress).prompt_progress
            if progress is not None:
                self._tokens = max(0, progress.total - len(self._prompt.ids))
        chunk = super().read(line)
        if chunk is None or not self._tokens:
            return chunk
        tokens, self._tokens = self._tokens, 0
        return replace(chunk, media_tokens=tokens)


async def recognise(client: HttpClient, answers: Answers, settings: UpstreamSettings) -> LlamaServer | None:
    """The server, if it is llama-server."""
    props, models = answers.get("/props"), answers.get("/v1/models")
    if not isinstance(props, dict) or "default_generation_settings" not in props or not models:
        return None
    if settings.tokenizer:
        raise EngineError("This server has the model's template and its tokenizer. Leave --tokenizer out.")
    model = next((entry for entry in models["data"] if settings.model in (None, entry["id"])), None)
    if model is None:
        names = ", ".join(entry["id"] for entry in models["data"])
        raise EngineError(f"The server has no model '{settings.model}'. It has {names}.")
    name = str(model["id"])
    adapters = await _adapters(client)
    card = ModelCard(
        name=PurePath(name).stem if name.endswith(".gguf") else name,
        context=min(props["default_generation_settings"]["n_ctx"], settings.context or 2**31),
        chat_template=props.get("chat_template") or None,
        bos=props.get("bos_token", ""),
        eos=props.get("eos_token", ""),
        created=int(time.time()),
        adapters=adapters,
        known_as=(name, PurePath(str(props.get("model_path", ""))).stem),
        opening=opening_of(
            await _tokenize(client, {"content": "a"}),
            await _tokenize(client, {"content": "a", "add_special": True}),
        ),
        capabilities=Capabilities(
            token_ids=True,
            sampling=supported(COLUMN),
            ranges=ranges(COLUMN),
            scales_adapters=True,
            constraints=(Gbnf,),
            media=_media_of(props),
            media_remedy="If the model takes images: start llama-server with its encoder, --mmproj.",
        ),
        defaults=defaults_of(props["default_generation_settings"].get("params", {})),
    )
    client.limit_connections(props["total_slots"] + SPARE_THREADS)
    slots = min(props["total_slots"], settings.parallel or 2**31)
    cells = slots * props["default_generation_settings"]["n_ctx"]
    return LlamaServer(client, card, slots, cells, model["meta"]["n_vocab"], props.get("media_marker", ""))


async def _adapters(client: HttpClient) -> tuple[str, ...]:
    """The names of the server's adapters: their files', or their paths if two files have one name."""
    try:
        answer = await client.request("GET", "/lora-adapters")
    except HttpError as error:
        raise unreachable(error) from error
    listed = answer.json() if answer.status == 200 else None
    try:
        paths = [entry["path"] for entry in sorted(listed or (), key=itemgetter("id"))]
        names = [PurePath(path).stem for path in paths]
    except (TypeError, KeyError):  # another server's, with llama.cpp's interface
        return ()
    return (*(names if len({*names}) == len(names) else paths),)


def _media_of(props: Mapping[str, Any]) -> frozenset[MediaKind]:
    """The media that the model takes: none, if the server does not report its media marker."""
    modalities = props.get("modalities") if props.get("media_marker") else None
    return frozenset(kind for name, kind in _MODALITIES.items() if (modalities or {}).get(name))


async def _tokenize(client: HttpClient, body: Any) -> list[int]:
    tokens: list[int] = (await ask(client, "/tokenize", body))["tokens"]
    return tokens
