r"""An engine that replays written text: for tests, docs, demos and load benches.

It stands where a model would, so that everything above it (rendering,
decoding, HTTP) runs for real and the answer is known beforehand. The first line
of its script (see `script.py`) whose `when` occurs in the rendered prompt
answers. All of its text is shown, whatever `GenerationRequest.preserve` says: what a
real model would hide is simply not written. One chunk is one step of the engine.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts.types import PositiveInt
from msgspec.structs import replace

from antiphon.core.chunks import Chunk
from antiphon.core.errors import EngineBusyError, EngineError, EngineNotReadyError, RequestError
from antiphon.core.items import MediaKind, MediaPart
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.options import COMMON_ENGINE
from antiphon.core.vectors import EmbeddingRequest, Embeddings, Scores
from antiphon.engines.admission import Admission, Slot
from antiphon.engines.engine import (
    Capabilities,
    GenerationRequest,
    Load,
    ModelCard,
    Receiver,
    Task,
    TranscriptionRequest,
    Work,
)
from antiphon.engines.figures import UNKNOWN, CacheFigures
from antiphon.engines.samplers import supported
from antiphon.engines.script import (
    Line,
    ScriptedAnswer,
    answer_of,
    check_lines,
    iter_pieces,
    pieces_of,
    read_script,
    token_id,
)

TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}
{{- 'You may call these functions:\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}
{{- '\\n</tools>\\nFor each call write <tool_call>\\n' }}
{{- '{"name": NAME, "arguments": OBJECT}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif not (tools and loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking %}{{ '<think>\\n' }}{% endif %}
{%- endif %}
"""
"""ChatML with Hermes-style tools. With `enable_thinking` true the prompt ends in `<think>`."""

CAPABILITIES = Capabilities(
    token_ids=True,
    sampling=supported("scripted"),
    media=frozenset(MediaKind) - {MediaKind.FILE},
    tasks=frozenset(Task),
    embedding=frozenset({"ids", "dimensions", "truncate"}),
)
"""Before `min_tokens`, and with `ignore_eos`, a line begins again instead of ending. Fields that control how
tokens are sampled have no effect: a script samples none, and has no cache.
"""

DIMENSIONS = 64
"""Numbers of a vector: each token of a text adds to one of them, which depends on its id."""

PATCH = 28
"""Pixels of the side of a square that is one token of an image. Other media have a token for each KiB."""

REMEMBERED_PIECES = 65536
"""Pieces of prompts whose ids can be turned into text again."""

LONG = 64 * 1024
"""Texts with at least this number of characters are tokenized in a thread."""

PART = 4096
"""Pieces whose ids are looked up at once."""

PAUSE = 64
"""The number of texts that are tokenized before the event loop may do other work."""

REMEMBERED_REQUESTS = 64


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the scripted engine."""

    script: Annotated[Path, COMMON_ENGINE]
    """The file that is played back: JSON Lines, each an answer."""

    context: PositiveInt = 32768
    """The most tokens that a prompt and its answer may have together."""

    parallel: PositiveInt = 256
    """How many answers are played at the same time; further requests wait."""

    def build(self, limits: Limits = DEFAULTS) -> "ScriptedEngine":
        """Read the script."""
        return ScriptedEngine(self.script, context=self.context, parallel=self.parallel, limits=limits)


class ScriptedEngine:
    """Answers by `script`: the path of a JSON Lines file, or its lines as mappings.

    `capabilities` are those that it claims; features that it does not really have do not change the answer.
    `steps` is the number of chunks pushed in all, `seen` are the last generation requests, `playing` those
    that run or wait. `memory` is the number of bytes that it claims to need, and `figures` are those of the
    cache that it claims to have. Raises EngineError at once if the script is malformed.
    """

    def __init__(  # noqa: PLR0913 - settings of tests
        self,
        script: Path | Iterable[Line | Mapping[str, Any]],
        *,
        name: str = "scripted",
        context: int = 32768,
        parallel: int = 256,
        memory: int = 0,
        figures: CacheFigures = UNKNOWN,
        capabilities: Capabilities = CAPABILITIES,
        limits: Limits = DEFAULTS,
    ) -> None:
        lines = read_script(script) if isinstance(script, Path) else check_lines(script)
        self.answers = [answer_of(line) for line in lines]
        self._pieces = _Pieces(
            text
            for answer in self.answers
            for text in (*(chunk.text for chunk in answer.chunks), *(answer.line.next or ()))
        )
        self._admission = Admission(parallel, limits)
        self._clocks: dict[float, _Clock] = {}
        self.playing: dict[_Generation, None] = {}
        self._ready = False
        self.card = ModelCard(
            name=name, context=context, chat_template=TEMPLATE, eos="<|im_end|>", capabilities=capabilities
        )
        self.memory = memory
        self.figures = figures
        self.steps = 0
        self.seen: deque[GenerationRequest] = deque(maxlen=REMEMBERED_REQUESTS)

    @property
    def load(self) -> Load:
        """How many generations play, and how many wait for a slot."""
        return self._admission.load

    async def cache_figures(self) -> CacheFigures:
        """The claimed ones."""
        return self.figures

    async def start(self) -> None:
        """Begin to accept generations."""
        self._ready = True

    async def stop(self) -> None:
        """Accept no more; those that run, or wait, fail."""
        self._ready = False
        for generation in [*self.playing]:
            generation.fail(EngineNotReadyError())
        self._clocks.clear()  # it may be started again in another event loop

    async def tokenize(self, pieces: Sequence[str]) -> list[int]:
        """The ids of word-like pieces: each depends on the text of its piece only."""
        size = sum(map(len, pieces))
        if size < LONG:
            return self._pieces.ids(pieces, pieces_of)
        return await asyncio.to_thread(self._pieces.ids, pieces, iter_pieces)

    async def token_texts(self, ids: Sequence[int]) -> list[str]:
        """The pieces with these ids."""
        if len(ids) < LONG:
            return [*map(self._pieces.text, ids)]
        return await asyncio.to_thread(lambda: [*map(self._pieces.text, ids)])

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The pieces with these ids: those of the script, and those that were tokenized recently.

        Raises RequestError, which blames `tokens`, for any other id.
        """
        return "".join(await self.token_texts(ids))

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        """Replay the first line that matches the prompt, one chunk per step."""
        loop = asyncio.get_running_loop()
        if not self._ready:
            return loop.call_soon(receiver.fail, EngineNotReadyError())
        self.seen.append(request)
        answer = self.answer_to(request.prompt.text)
        if answer is None:
            return loop.call_soon(receiver.fail, EngineError(_NO_LINE))
        chunks = answer.play(request)
        if request.prompt.media:
            chunks = _counted(chunks, sum(map(media_tokens, request.prompt.media)))
        generation = _Generation(self, chunks, receiver, answer.line.delay_ms / 1000)
        try:
            generation.slot = self._admission.enter(
                generation.begin, request.sampling.priority or 0, request.tokens
            )
        except EngineBusyError as error:
            return loop.call_soon(receiver.fail, error)
        self.playing[generation] = None
        return generation

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Vectors by the tokens of the texts: texts with the same words have vectors with a small angle."""
        dimensions = request.dimensions or DIMENSIONS
        if dimensions > DIMENSIONS:
            raise RequestError(f"A vector has at most {DIMENSIONS} dimensions.", param="dimensions")
        vectors, tokens = [], 0
        for place, text in enumerate(request.inputs):
            ids = await self._input(text, request)
            vectors.append(_vector(ids, dimensions))
            tokens += len(ids)
            if place % PAUSE == 0:
                await asyncio.sleep(0)
        async with self._slot():
            return Embeddings((*vectors,), tokens)

    async def _input(self, text: str | tuple[int, ...], request: EmbeddingRequest) -> Sequence[int]:
        ids = await self.tokenize([text]) if isinstance(text, str) else text
        limit = self.card.context if request.truncate in (None, -1) else request.truncate or 0
        if len(ids) > limit and request.truncate is None:
            message = f"An input has {len(ids)} tokens, but the context of this model is {limit} tokens."
            raise RequestError(message, param="input", code="context_length_exceeded")
        return ids[-limit:] if request.keep_end else ids[:limit]

    async def score(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        """The share of the words of the query that the document has."""
        words = [({*query.split()}, {*document.split()}) for query, document in pairs]
        tokens = 0
        for place, pair in enumerate(pairs):
            tokens += len(await self.tokenize(pair))
            if place % PAUSE == 0:
                await asyncio.sleep(0)
        async with self._slot():
            return Scores(
                tuple(len(query & document) / (len(query) or 1) for query, document in words), tokens
            )

    async def transcribe(self, audio: TranscriptionRequest) -> AsyncGenerator[bytes, None]:
        """The name and size of the file, and the prompt, as text, as JSON or as a stream."""
        fields = dict(audio.fields)
        text = f"{audio.name}: {len(audio.data)} bytes, {fields.get('prompt', 'no prompt')}"
        async with self._slot():
            if fields.get("stream") == "true":
                events: list[dict[str, str]] = [
                    {"type": "transcript.text.delta", "delta": word} for word in text.split(" ")
                ]
                for event in (*events, {"type": "transcript.text.done", "text": text}):
                    yield b"data: " + msgspec.json.encode(event) + b"\n\n"
            elif fields.get("response_format") in ("text", "srt", "vtt"):
                yield text.encode()
            else:
                yield msgspec.json.encode({"text": text})

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        async with self._admission.hold():
            if not self._ready:
                raise EngineNotReadyError
            yield

    def answer_to(self, prompt: str) -> ScriptedAnswer | None:
        """The answer to this prompt; None if no line matches it."""
        for answer in self.answers:
            line = answer.line
            if line.when is None or line.when in (prompt if line.last is None else prompt[-line.last :]):
                return answer
        return None

    def clock(self, pause: float) -> "_Clock":
        """The steps with this pause between them."""
        if pause not in self._clocks:
            self._clocks[pause] = _Clock(pause)
        return self._clocks[pause]


def _vector(ids: Iterable[int], dimensions: int) -> list[float]:
    counts = Counter(token % dimensions for token in ids)
    length = math.hypot(*counts.values()) or 1.0
    return [counts[place] / length for place in range(dimensions)]


class _Generation:
    """One generation: its remaining chunks, and its receiver."""

    def __init__(
        self, engine: ScriptedEngine, chunks: Iterator[Chunk], receiver: Receiver, pause: float
    ) -> None:
        self._engine = engine
        self._chunks = chunks
        self._receiver = receiver
        self._pause = pause
        self.over = False
        self._generated = 0
        self.slot: Slot

    def begin(self) -> None:
        """There is a slot: play from the next step on."""
        self._engine.clock(self._pause).join(self)

    def step(self) -> None:
        """Deliver the next chunk, or the failure."""
        try:
            chunk = next(self._chunks)
        except EngineError as error:
            self.fail(error)
            return
        self._engine.steps += 1
        self._generated += len(chunk.tokens)
        if chunk.finish is not None:
            self.cancel()  # the slot must be free before the receiver gets the end
        self._receiver.push([chunk])

    def fail(self, error: EngineError) -> None:
        """End with an error, unless it is over."""
        if not self.over:
            self.cancel()
            self._receiver.fail(error)

    def cancel(self) -> None:
        if not self.over:
            self.over = True
            del self._engine.playing[self]
            self.slot.generated = self._generated
            self.slot.leave()


class _Clock:
    """Steps of the engine: each reaches every generation with the same pause, as a real engine's do."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._playing: list[_Generation] = []

    def join(self, generation: _Generation) -> None:
        """Play a generation from the next step on."""
        self._playing.append(generation)
        if len(self._playing) == 1:
            self._wait()

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        if self._pause:
            loop.call_later(self._pause, self._step)
        else:
            loop.call_soon(self._step)  # between steps, the loop runs other callbacks

    def _step(self) -> None:
        try:
            for generation in [*self._playing]:  # generations added now begin with the next step
                if not generation.over:
                    generation.step()
        finally:  # a receiver that raises, which is a bug, must not stop the others
            self._playing = [generation for generation in self._playing if not generation.over]
            if self._playing:
                self._wait()


def media_tokens(part: MediaPart) -> int:
    """The number of tokens of a prompt that these media take."""
    if part.width:
        return -(-part.width // PATCH) * -(-part.height // PATCH)
    return -(-len(part.data) // 1024)


def _counted(chunks: Iterator[Chunk], tokens: int) -> Iterator[Chunk]:
    """The chunks; the first one has the number of tokens of the media."""
    yield replace(next(chunks), media_tokens=tokens)
    yield from chunks


_NO_LINE = "No line of the script fits this prompt. Add one whose `when` occurs in it, or one without."


class _Ids(dict[str, int]):
    """The ids of pieces. A new one is added when it is looked up, and to `pieces`, which is by id."""

    def __init__(self, pieces: dict[int, str]) -> None:
        super().__init__()
        self._pieces = pieces

    def __missing__(self, piece: str) -> int:
        token = self[piece] = token_id(piece)
        self._pieces[token] = piece
        return token


class _Pieces:
    """The ids of pieces: all of `own`, and a limited number of others."""

    def __init__(self, own: Iterable[str]) -> None:
        self._own = {token_id(piece): piece for piece in own}
        self._others: dict[int, str] = {}  # pieces that are not in the script
        self._ids = _Ids(self._others)

    def ids(self, texts: Iterable[str], cut: Callable[[str], Iterable[str]]) -> list[int]:
        """The ids of the pieces that `cut` makes of each text."""
        cache = self._ids
        ids: list[int] = []
        for text in texts:
            pieces = iter(cut(text))
            while part := [*map(cache.__getitem__, islice(pieces, PART))]:  # other threads run between them
                ids += part
            while len(cache) > REMEMBERED_PIECES:
                piece = next(iter(cache))
                self._others.pop(cache.pop(piece), None)
        return ids

    def text(self, token: int) -> str:
        piece = self._own.get(token) or self._others.get(token)
        if piece is None:
            raise RequestError(f"There is no token {token}.", param="tokens")
        return piece
