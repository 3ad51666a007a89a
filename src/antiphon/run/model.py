"""The protocol `Model`, which answers turns, and `Prepared`, a generation that is ready to begin.

The layers above use a model only through this protocol. `TokenModel` renders a prompt, has an engine
continue it, and decodes the result.

To add a kind of model that is neither an engine nor a server: a class with the protocol `Model`, which
`run/loading.py` chooses; it inherits the suite in `tests/contracts/model.py`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any, NamedTuple, Protocol

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.accumulator import Accumulator
from antiphon.core.call_results import is_answer, pair_results
from antiphon.core.decision import Decision, Verdicts
from antiphon.core.items import WITH_PARTS, FunctionCall, Item, Message, Role, TextPart
from antiphon.core.limits import Limits
from antiphon.core.observation import observed
from antiphon.core.turn import Function, HostedNames, PromptEnding, ToolChoice, Turn, names_by_ending
from antiphon.core.vectors import EmbeddingRequest, Embeddings, Scores
from antiphon.decode.chat_decoder import BYTES_PER_TOKEN
from antiphon.engines.engine import (
    Engine,
    GenerationRequest,
    Load,
    ModelCard,
    NextToken,
    Prompt,
    TranscriptionRequest,
    check_size,
)
from antiphon.render.renderer import MessageReader
from antiphon.run.bounded import BoundedPool
from antiphon.run.call_filter import CallFilter
from antiphon.run.check import OutputCheck
from antiphon.run.constraints import ConstraintPlan
from antiphon.run.content import asks_for_content, content_of
from antiphon.run.generation import AnswerDecoder, GenerationRun, Interceptors, ReasoningLimit
from antiphon.run.recording import DecoderSettings, RecordingDecoder, record_of
from antiphon.run.replay import ReplayContext
from antiphon.tools.tool import ServerTool

log = structlog.get_logger()

MOST_REPAIRS = 20
"""The most repairs of a conversation in a log line."""
TOKEN_BYTES = 100
"""The approximate memory of a token in an answer; a log probability takes as much again."""
ANSWER_SHARE = 4
"""The fraction of the context (1/4) that is kept for the answer if a conversation is shortened to fit."""

_FREE = ToolChoice()
_FIRST = frozenset({Role.SYSTEM, Role.DEVELOPER})


class PromptSize(NamedTuple):
    """How many tokens a prompt has: counted, or `estimated`."""

    tokens: int
    estimated: bool = False


class NextTokens(Struct, frozen=True):
    """Which tokens may be next after each of some texts, and how many tokens were read for it."""

    readings: tuple[NextToken, ...] = ()
    tokens: int = 0


class PlainAnswer(Struct, frozen=True):
    """The text of an answer, and how many tokens its prompt has."""

    text: str
    tokens: int


class ModelTraits(Struct, frozen=True):
    """What is known of a model beyond its card: its `family`, and whether it calls tools and reasons.

    The family is the name of its dialect, empty if there is none. With the template variables of
    `kept_reasoning` it is shown the reasoning of earlier turns; None if it never is.
    """

    family: str = ""
    calls: bool = False
    reasons: bool = False
    kept_reasoning: Mapping[str, Any] | None = None


class Model(Protocol):
    """Answers turns.

    `tools` are the server's, by type; `stopping` is set when the server stops waiting for them.
    """

    @property
    def card(self) -> ModelCard:
        """Its properties, as the engine reports them."""
        ...

    @property
    def load(self) -> Load:
        """Its load: running generations, and those that wait."""
        ...

    @property
    def traits(self) -> ModelTraits:
        """What is known of it otherwise."""
        ...

    @property
    def native_tools(self) -> Mapping[str, tuple[Function, ...]]:
        """The functions that it was trained with, by type of the server's tool that runs them."""
        ...

    @property
    def read_messages(self) -> MessageReader | None:
        """Finds the messages of its prompts and answers; None if these are shown as one text."""
        ...

    @property
    def tools(self) -> Mapping[str, ServerTool]: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def stopping(self) -> asyncio.Event: ...

    @property
    def pool(self) -> BoundedPool:
        """Runs work for it that may not end."""
        ...

    @property
    def running(self) -> set[GenerationRun]:
        """Its generations that are under way."""
        ...

    def in_use(self) -> AbstractAsyncContextManager[None]:
        """Load the model if necessary, and keep it loaded while a block runs. Raises EngineError."""
        ...

    async def prepare(
        self, turn: Turn, ids: tuple[int, ...] | None = None, choices: int | None = None
    ) -> "Prepared":
        """Prepare the answer to the turn; its prompt is `ids` if it was rendered before.

        The caller holds the model. `choices` is the number of choices of the whole answer, if that has
        several turns. Raises RequestError.
        """
        ...

    async def count(self, turn: Turn) -> PromptSize:
        """The number of tokens of the turn's prompt, without a limit. Raises RequestError."""
        ...

    async def tokens_in(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each of these texts has: estimated where the tokenizer is on another server."""
        ...

    async def compose(self, turn: Turn) -> Prompt:
        """The prompt of the turn, without a limit on its length. Raises RequestError."""
        ...

    async def token_texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each of these tokens of a prompt. Raises RequestError."""
        ...

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of these tokens. Raises RequestError."""
        ...

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """The vectors of texts. Raises RequestError for unsupported parameters, EngineError."""
        ...

    async def score(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        """How well each document of the pairs answers its query. Raises RequestError, EngineError."""
        ...

    async def decide(self, decision: Decision) -> Verdicts:
        """The probabilities of the options of questions.

        Raises RequestError, before any work on them, UnsupportedModelError for a model that tells no log
        probabilities; EngineError.
        """
        ...

    async def next_tokens(self, turn: Turn, after: Sequence[str]) -> NextTokens:
        """The token that the answer to a turn goes on with, after each of these texts.

        Empty for a model that cannot tell. Raises RequestError, EngineError.
        """
        ...

    async def plain_answer(self, turn: Turn, max_tokens: int) -> PlainAnswer:
        """The likeliest answer to a turn, as text, for the server itself to read.

        Raises RequestError, EngineError.
        """
        ...

    def transcribe(self, audio: TranscriptionRequest) -> AsyncGenerator[bytes, None]:
        """A transcription, as the body of an answer. Raises RequestError, EngineError."""
        ...


class Prepared(Struct, frozen=True):
    """A generation that can begin, the same for all choices of a turn.

    `decoder` makes a decoder for one answer; `rng`, if given, makes its call ids. `on_end` is called with the
    items of each answer. `reading` has the settings of the decoder, for records.
    """

    turn: Turn
    model: Model
    prompt: Prompt
    engine: Engine
    request: GenerationRequest
    decoder: Callable[[Random | None], AnswerDecoder]
    pool: BoundedPool
    plan: ConstraintPlan = ConstraintPlan()
    reasoning: ReasoningLimit | None = None
    on_end: Callable[[Sequence[Item]], None] | None = None
    reading: DecoderSettings = DecoderSettings()

    def generation(self, index: int, context: ReplayContext, items: Accumulator) -> GenerationRun:
        """The generation for one of the choices; `items` builds the items of its answer."""
        interceptors = Interceptors(
            replay=context.log,
            calls=None if self.turn.tool_choice == _FREE else CallFilter(self.turn.tool_choice),
            reasoning=self.reasoning,
            check=OutputCheck(self.turn, self.plan, self.pool) if self.plan.has_unenforced else None,
            hosted=HostedNames(self.turn.tools, self.turn.in_programs) if self.turn.tools else frozenset(),
            names=names_by_ending(self.turn.tools) if self.turn.tools else {},
            plan=self.plan,
            pool=self.pool,
            on_end=self.on_end,
            content=content_of if asks_for_content(self.turn) else None,
            running=self.model.running,
        )
        request, decoder = self.request, self.decoder(context.rng)
        if index and (seed := request.sampling.seed) is not None:  # choices differ: it is counted up
            request = replace(request, sampling=replace(request.sampling, seed=seed + index))
        if (record := observed().record) is not None:
            generation_record = record_of(index, request, self.reading)
            record(self.turn.owner, generation_record)
            decoder = RecordingDecoder(decoder, generation_record)
        return GenerationRun(self.engine, request, decoder, interceptors, items)

    async def tokens_in(self, text: str) -> int:
        """How many tokens a text has: estimated where the model's tokenizer is on another server."""
        if self.request.conversation is not None:
            return -(-len(text) // BYTES_PER_TOKEN)
        return len(await self.engine.tokenize([text]))


def max_tokens_of(turn: Turn, limits: Limits, choices: int, context: int) -> int:
    """The largest number of tokens of each choice: an answer is kept in memory until it is sent.

    No choice has more than `context`, if that is known. Raises RequestError if each wants more.
    """
    logprobs = turn.sampling.logprobs
    size = TOKEN_BYTES if logprobs is None else TOKEN_BYTES * (1 + turn.copies * (1 + logprobs))
    maximum = max(1, limits.answer_bytes // (size * choices))
    requested = turn.sampling.max_tokens or 0
    if requested > maximum and (requested := min(requested, context or requested)) > maximum:
        what = f"{choices} choices of {requested} tokens may have {choices * requested * size} bytes"
        limits.refuse("answer_bytes", "max_tokens", what)
    return maximum


def check_turn(turn: Turn, limits: Limits, context: int) -> int:
    """Refuse a turn over a limit before any work is done. Raises RequestError.

    Returns the number of characters of its items.
    """
    for tool in turn.tools:
        limits.check("name_characters", len(tool.name), tool.source_of_name)
    if turn.tool_limit is not None:
        limits.check("tool_calls", turn.tool_limit, turn.parameter("tool_limit"))
    for stop in turn.stop:
        limits.check("stop_characters", len(stop), "stop")
    size = characters_in(turn.items)
    if context:
        check_size(size, context)
    return size


def repaired(turn: Turn) -> Turn:
    """The turn with each result after its call; what was added is logged.

    An answer at the end that is continued, or is only shown, may have calls without results.
    """
    end = len(turn.items)
    while turn.ending is not PromptEnding.ANSWER and end and is_answer(turn.items[end - 1]):
        end -= 1
    repairs: list[str] = []
    items = pair_results(turn.items[:end], repairs) + turn.items[end:]
    if repairs:
        log.info("request repaired", what=repairs[:MOST_REPAIRS])
    return turn if items == turn.items else replace(turn, items=items)


def characters_in(items: Iterable[Item]) -> int:
    """The number of characters of the texts of items."""
    size = 0
    for item in items:
        if isinstance(item, WITH_PARTS):
            for part in item.parts:
                if isinstance(part, TextPart):
                    size += len(part.text)
        else:
            size += len(item.arguments if isinstance(item, FunctionCall) else item.text)
    return size


def other_characters(turn: Turn) -> int:
    """The approximate number of characters of rendered texts that are not in the items."""
    if not (turn.variables or turn.tools):
        return 0
    return len(msgspec.json.encode((turn.variables, [tool.parameters for tool in turn.tools])))


def room(turn: Turn, context: int) -> int:
    """The tokens to keep for the answer."""
    share = context // ANSWER_SHARE
    return min(turn.sampling.max_tokens or share, share) or 1


def without(items: tuple[Item, ...], count: int) -> tuple[Item, ...]:
    """The conversation without this number of its oldest items; instructions are kept."""
    return tuple(item for item in items[:count] if _is_instruction(item)) + items[count:]


def _is_instruction(item: Item) -> bool:
    return isinstance(item, Message) and item.role in _FIRST
