"""The protocols of engines: an engine tokenizes a prompt, and pushes chunks of raw model text to a receiver.

An engine knows nothing of chat, tools or HTTP. It gets a prompt and delivers the model's output, unparsed,
always as a stream. It is driven from one event loop. Once per step it passes each generation its chunks, by
a plain call on that loop: nothing is awaited and no task is switched for a token.

Contract, checked by the suite in `tests/contracts/engine.py` for every engine:

* `generate` returns before it calls the receiver, and never raises: errors are reported to
  `Receiver.fail`, as an `EngineError`, or as a `RequestError` before the first chunk if the request cannot
  be served;
* `push` gets the chunks since the last call, at least one; the last chunk, and only the last, has
  `finish`; after it, or after `fail`, the receiver is not called again;
* `cancel` stops the work, at once while it is queued, within one step while
  decoding, within one prompt batch during prefill. The receiver is not called after
  it, even if it is called from within `push`. Cancelling again, or late, does nothing;
* special tokens named in `preserve` are returned as their text; others as tokens
  with empty text, unless `skip_special_tokens` is false: then only the one that ended the answer;
* the tokens' texts, joined, are the chunk's text, unless a chunk has no tokens; an engine
  without `token_ids` returns only tokens with log probabilities, whose ids are -1, and its last chunk's
  `completion_tokens` counts them;
* text consists of whole characters: bytes that do not complete one are held back;
* in the answer to a `resumable` request, the text of a chunk belongs to the token that completed it: tokens
  at the end of a chunk that only begin a character, or that are hidden, have none;
* requests that wait are served in their order of arrival;
* in a prompt with `media`, whose kinds the capabilities name, the engine reads each at its placeholder in
  the prompt, and its first chunk says how many tokens they took, or its last if it is not known before;
* an engine whose capabilities name the task `embed` has the methods of `Embedder`, one with `rank` those of
  `Reranker`: the result for an input does not depend on the other inputs of the request; one with
  `transcribe` those of `Transcriber`;
* an engine whose `sampling` names `prompt_logprobs` has the method of `PromptScorer`, one with `beam_width`
  that of `BeamSearcher`; `generate` ignores these fields;
* an engine that has the method of `NextTokenScorer` gives each prompt the same result in any company;
* an engine whose capabilities say `answers_questions` has the method of `DecisionServer`;
* an engine whose capabilities say `chat` gets conversations instead of prompts, and its
  chunks are `ChatChunk`s: it refuses to tokenize, and its tokens have no ids;
* and, of an engine whose capabilities name it: with `logprobs`, a token that has a
  chunk of its own has its log probability, and `top` holds at most the requested number of tokens,
  the most likely first; a token of `stop_token_ids` is the last one, its text is
  hidden, and the `finish` in the same chunk names its id as `stop`; the lowest `priority` is
  served first.
"""

from collections.abc import AsyncGenerator, Callable, Hashable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from antiphon.core.chunks import Candidate, Chunk, PromptToken
from antiphon.core.constraint import Constraint
from antiphon.core.conversation_template import ConversationTemplate
from antiphon.core.decision import Decision, Verdicts
from antiphon.core.errors import AntiphonError, EngineError, RequestError
from antiphon.core.items import MediaKind, MediaPart
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.links import CoreFacts, Link
from antiphon.core.shared_queue import SharedQueue
from antiphon.core.turn import Sampling, Turn
from antiphon.core.vectors import EmbeddingRequest, Embeddings, Scores

MAX_CHARACTERS_PER_TOKEN = 128
"""No known tokenizer has longer tokens; those of this length are runs of spaces. See `check_size`."""


class Range(Struct, frozen=True):
    """The numbers that an engine takes: from `least` to `most`, more than `above`; or `only` these."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    only: tuple[float, ...] | None = None

    def admits(self, value: float) -> bool:
        """Whether the number is one of them."""
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.only is None or value in self.only)
        )

    def both(self, other: "Range") -> "Range":
        """The numbers that are in both."""
        named = self.only if self.only is not None else other.only
        return Range(
            max((low for low in (self.least, other.least) if low is not None), default=None),
            min((high for high in (self.most, other.most) if high is not None), default=None),
            max((low for low in (self.above, other.above) if low is not None), default=None),
            None if named is None else tuple(filter(other.admits, filter(self.admits, named))),
        )

    def __str__(self) -> str:
        """For people: `0 to 10`."""
        if self.only is not None:
            return " or ".join(f"{value:g}" for value in self.only)
        if self.least is not None and self.most is not None:
            return f"{self.least:g} to {self.most:g}"
        bounds = (("at least", self.least), ("above", self.above), ("at most", self.most))
        return ", ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)


class Task(StrEnum):
    """The purpose of a model."""

    GENERATE = "generate"
    """It continues prompts, or answers conversations."""
    EMBED = "embed"
    """It makes vectors of texts."""
    RANK = "rank"
    """It scores how well a text answers a query."""
    TRANSCRIBE = "transcribe"
    """It transcribes audio."""


class Capabilities(Struct, frozen=True):
    """The features that an engine supports.

    At most `alternatives` to a token are returned with its log probability. `sampling` names the fields
    of `Sampling` that it supports: a request that sets another one is refused, and so is a value outside of
    its `ranges`. `constraints` are the kinds of `Constraint` that it enforces, the preferred one first.
    `media` are the kinds of media that its model takes.
    """

    token_ids: bool = False
    """Chunks have the tokens of their text."""
    text_prompts: bool = False
    """Prompts are sent as text, in which the server reads the special tokens: see `as_text`."""
    replicas: bool = False
    """After `ReplicaLostError` a generation may request the rest of its answer from another replica."""
    sampling: frozenset[str] = frozenset({"max_tokens"})
    ranges: Mapping[str, Range] = {}
    alternatives: int = 20
    constraints: tuple[type[Constraint], ...] = ()
    media: frozenset[MediaKind] = frozenset()
    triggers: bool = True
    """A constraint may begin to apply inside an answer, where a text of it is written."""
    media_remedy: str = ""
    """The remedy for the operator if the model takes media, but the engine cannot pass them on."""
    chat: bool = False
    """It takes conversations, and returns answers whose parts are separate."""
    tasks: frozenset[Task] = frozenset({Task.GENERATE})
    """The tasks that it supports. Servers of several models may refuse a task that not all models have."""
    embedding: frozenset[str] = frozenset()
    """The parameters of an `EmbeddingRequest` that it supports: `ids`, `dimensions`, `truncate`."""
    answers_questions: bool = False
    """It answers the questions of decisions itself: it has the method of `DecisionServer`."""
    scales_adapters: bool = False
    """A generation may have several adapters, each with its scale; otherwise one, with the scale 1."""


class ModelCard(Struct, frozen=True):
    """A loaded model.

    `name` is the default public name. `context` is the largest number of tokens of a prompt together with
    its answer, 0 if unknown. `chat_template` is Jinja source, None if the model has none; for a model
    with a `conversation_template`, that takes its place. `bos` and `eos`
    are token texts, empty if there are none. `known_as` are names that may indicate its family: titles,
    file, architecture. `response_template` is Hugging Face's, JSON text, None if there is none. `opening`
    is the token that the model needs before any text (BOS), None if it needs none. `defaults` are the
    fields of `Sampling` that the engine sets itself if a request does not; those of `forced` it sets in
    any case, as it does the `forced_variables` of the chat template. `sampling` are those that the model's
    makers recommend: they are sent if a request does not set them. `fill_in` are the texts of the tokens
    before the prefix, the suffix and the middle of a gap,
    None if its file names none. `special_tokens` are the texts of others than `bos` and `eos`, as far as they
    are known. `adapters` are the names of those that the model's server has loaded, by their numbers; those
    of an engine with the methods of `Adapters` are there instead.
    """

    name: str
    context: int
    chat_template: str | None = None
    bos: str = ""
    eos: str = ""
    created: int = 0
    known_as: tuple[str, ...] = ()
    response_template: str | None = None
    opening: int | None = None
    capabilities: Capabilities = Capabilities()
    defaults: Mapping[str, float] = {}
    forced: frozenset[str] = frozenset()
    forced_variables: Mapping[str, Any] = {}
    sampling: Mapping[str, float] = {}
    fill_in: tuple[str, str, str] | None = None
    special_tokens: frozenset[str] = frozenset()
    conversation_template: ConversationTemplate | None = None
    adapters: tuple[str, ...] = ()


class Prompt(Struct, frozen=True):
    """A rendered prompt, and its token ids as the engine's tokenizer returns them.

    In the places of `media`, both have the `placeholders` of the model's template. `around` is the text
    before, between and after the media, each in the pieces that were tokenized one by one. `tokens` are
    those of the ids with their log probabilities, if these were requested.
    """

    text: str
    ids: tuple[int, ...]
    media: tuple[MediaPart, ...] = ()
    around: tuple[tuple[str, ...], ...] = ()
    tokens: tuple[PromptToken, ...] = ()
    placeholders: tuple[str, ...] = ()

    def continued(self, text: str, ids: tuple[int, ...]) -> "Prompt":
        """The prompt followed by what the model has written."""
        around = self.around
        if around:
            *pieces, end = around[-1] or ("",)
            around = (*around[:-1], (*pieces, end + text))
        return Prompt(self.text + text, self.ids + ids, self.media, around, placeholders=self.placeholders)

    def followed_by(self, end: "Prompt") -> "Prompt":
        """The prompt followed by another one, with the media of both; their pieces are tokenized apart."""
        if not (self.media or end.media):
            return Prompt(self.text + end.text, self.ids + end.ids)
        *before, last = self.around or ((self.text,),)
        first, *after = end.around or ((end.text,),)
        return Prompt(
            self.text + end.text,
            self.ids + end.ids,
            self.media + end.media,
            (*before, (*last, *first), *after),
            placeholders=self.placeholders + end.placeholders,
        )


WORD_JOINER = "\u2060"
"""A character without width or meaning. It separates what would otherwise be read as a special token."""


def as_text(pieces: Sequence[str]) -> str:
    """The pieces of a prompt, which are tokenized one by one, as one text for a server that tokenizes it.

    They were split where text of clients looks like a special token: there is a word joiner now.
    """
    return WORD_JOINER.join(filter(None, pieces))


class Conversation(Struct, frozen=True):
    """The input of an engine that takes no prompts: the turn, and its items as OpenAI's messages.

    A content with media is a list of parts: `{"type": "text", "text": …}`, and `{"type": "image"}` or
    another `MediaKind` for the next one of the prompt's `media`.
    """

    turn: Turn
    messages: tuple[Mapping[str, Any], ...]


class Placement(Struct, frozen=True):
    """What a pool that follows the events of a server's cache asks of it.

    The data-parallel `rank` that generates, and to `tell_again` of the blocks that are in its cache.
    """

    rank: int | None = None
    tell_again: bool = False


class GenerationRequest(Struct, frozen=True):
    """A request to an engine for one generation.

    `answer_start` is the part of the answer that the prompt already ends with: the answer continues after an
    interruption. One that is `resumable` may have to be continued after any of its chunks.
    `max_tokens` is the rest of the context if the client set no limit. `preserve` holds the
    special tokens whose text the decoder must get. Of `sampling` only fields that the engine's capabilities
    name are set, and a `constraint` is of a kind that they name. An engine for conversations gets the
    `conversation`, and an empty prompt.
    """

    prompt: Prompt
    max_tokens: int
    sampling: Sampling = Sampling()
    preserve: frozenset[str] = frozenset()
    constraint: Constraint | None = None
    answer_start: str = ""
    resumable: bool = False
    conversation: Conversation | None = None
    placement: Placement = Placement()

    @property
    def tokens(self) -> tuple[int, int]:
        """The number of tokens of the prompt, as far as it is known, and the most of the answer."""
        return len(self.prompt.ids), self.max_tokens


class Load(Struct, frozen=True):
    """The load of an engine: its running generations, of at most `slots`, and those that wait."""

    running: int = 0
    waiting: int = 0
    slots: int = 0

    @property
    def idle(self) -> bool:
        """Nothing runs or waits."""
        return not (self.running or self.waiting)


class Receiver(Protocol):
    """Receives the chunks of a generation. Its methods are called on the event loop, and must not block."""

    def push(self, chunks: list[Chunk]) -> None:
        """Process the chunks of a step."""
        ...

    def fail(self, error: AntiphonError) -> None:
        """There will be no more, because of this."""
        ...


class Work(Protocol):
    """A generation that was requested from an engine."""

    def cancel(self) -> None:
        """Stop it."""
        ...


class Engine(Protocol):
    """A source of tokens."""

    @property
    def card(self) -> ModelCard:
        """The model; only after `start`."""
        ...

    @property
    def load(self) -> Load:
        """The current load."""
        ...

    @property
    def memory(self) -> int:
        """The approximate bytes of main and graphics memory that the model takes while it is loaded.

        It is known before `start`, and read for each request. 0 if the model is loaded elsewhere.
        """
        ...

    async def start(self) -> None:
        """Load the model, for the first time or again. Raises EngineError if that fails."""
        ...

    async def stop(self) -> None:
        """Free the model; running generations fail with EngineNotReadyError."""
        ...

    async def tokenize(self, pieces: Sequence[str]) -> list[int]:
        """The ids of all pieces of a prompt, each piece tokenized separately.

        Special tokens in a piece become their ids, and none are added. The text may be longer than the
        context: who generates checks that before (`check_size`), who counts does not.
        """
        ...

    async def token_texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each of these tokens, which come from `tokenize`."""
        ...

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of these tokens, special ones included.

        Raises RequestError, which blames `tokens`, for an unknown id.
        """
        ...

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        """Begin one generation, whose chunks go to `receiver`."""
        ...


@runtime_checkable
class Adapters(Protocol):
    """The methods of an engine that takes LoRA adapters.

    Adapters are loaded and unloaded before `start`, and while the model is loaded; running generations are
    not interrupted. They are kept when the model is stopped and started again.
    """

    @property
    def adapters(self) -> Mapping[str, str]:
        """The path of each by its name, which `Sampling.lora` uses, in the order of their numbers."""
        ...

    async def load_adapter(self, name: str, path: str) -> None:
        """Load the adapter at `path`. Raises RequestError that blames `lora_path`, or EngineError."""
        ...

    async def unload_adapter(self, name: str) -> None:
        """Unload it. Requests for it fail with an EngineError from now on."""
        ...


@runtime_checkable
class FromFiles(Protocol):
    """An engine whose model is in files that can be checked before others are unloaded for it."""

    def file_state(self) -> Hashable:
        """A value that changes when a file is replaced, deleted or created. It is quick, and never raises."""
        ...

    async def check_files(self) -> None:
        """Raise EngineError if the model cannot be loaded for a reason that shows without loading it.

        A file is missing, broken or cut off, or the machine does not have the memory.
        """
        ...


@runtime_checkable
class Monitored(Protocol):
    """An engine that knows whether it works."""

    @property
    def up(self) -> bool:
        """Whether it can take requests now; if it has several replicas, whether one of them can."""
        ...


@runtime_checkable
class Embedder(Protocol):
    """The method of an engine that embeds texts."""

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """The vectors. Raises RequestError for an input that cannot be read, or EngineError."""
        ...


@runtime_checkable
class Probed(Protocol):
    """An engine that may be unavailable for a time."""

    async def probe(self) -> None:
        """Raise EngineError if it does not answer."""
        ...


@runtime_checkable
class Reranker(Protocol):
    """The method of an engine that compares texts."""

    async def score(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        """The scores of pairs of a query and a document. Raises RequestError, EngineError."""
        ...


class TranscriptionRequest(Struct, frozen=True):
    """Audio to be transcribed: a file, and the fields of OpenAI's form for the text.

    `translated`: into English. `fields` are in their order, those of lists under one name.
    """

    data: bytes
    name: str
    media_type: str
    fields: tuple[tuple[str, str], ...] = ()
    translated: bool = False


@runtime_checkable
class Transcriber(Protocol):
    """The method of an engine that transcribes audio."""

    def transcribe(self, audio: TranscriptionRequest) -> AsyncGenerator[bytes, None]:
        """The body of the answer, in pieces, in the form that the fields want.

        Raises RequestError or EngineError, before the first piece if the audio cannot be transcribed.
        """
        ...


@runtime_checkable
class PromptScorer(Protocol):
    """The additional method of an engine that returns log probabilities of prompts."""

    async def score_prompt(self, request: GenerationRequest) -> tuple[PromptToken, ...]:
        """The tokens of the prompt, each but the first with its log probability.

        `top` holds the most likely tokens at its position, in the number that `prompt_logprobs` of the
        sampling requests. Raises RequestError, EngineError.
        """
        ...


@runtime_checkable
class BeamSearcher(Protocol):
    """The method of an engine that supports beam search."""

    async def search(self, request: GenerationRequest) -> Sequence[Sequence[Chunk]]:
        """The `beam_width` likeliest answers, the best first, each whole, as `generate` would push it.

        Raises RequestError, EngineError.
        """
        ...


class NextTokenRequest(Struct, frozen=True):
    """Prompts that begin alike, of each of which some next tokens are to be scored.

    Each prompt is the `beginning` followed by one of `ends`; none of them is empty, and the text of each end
    was tokenized apart from that of the beginning. `tokens` are the ids to be scored after each of the ends.
    Of `sampling` only `lora`, `cache_salt` and `priority` are set.
    """

    beginning: Prompt
    ends: tuple[Prompt, ...]
    tokens: tuple[tuple[int, ...], ...]
    sampling: Sampling = Sampling()


class NextToken(Struct, frozen=True):
    """Which token a prompt is followed by: candidates, the likeliest first, each with its log probability.

    The log probabilities are those of the model for all of its tokens, before anything that samplers do. With
    `complete`, all tokens that were to be scored are among the candidates; those that are not have at most
    the probability of the last one. An engine without `token_ids` gives texts: all ids are -1, and which of
    the tokens they are is not known. Of the beginning, `cached_tokens` were in the cache before the request.
    """

    candidates: tuple[Candidate, ...]
    complete: bool = True
    cached_tokens: int = 0


@runtime_checkable
class NextTokenScorer(Protocol):
    """The method of an engine that scores next tokens in another way than by generating one.

    For other engines `engines/next_token.py` generates one token after each prompt.
    """

    async def score_next(self, request: NextTokenRequest) -> tuple[NextToken, ...]:
        """The next token of each prompt, in the order of the ends.

        The beginning is computed once. The result for an end does not depend on the others, on their order,
        or on what the cache holds. If it is cancelled, all work ends. Raises RequestError, EngineError.
        """
        ...


class DecisionRequest(Struct, frozen=True):
    """A decision for an engine that answers questions itself.

    `messages` are the items of the decision, as those of a `Conversation`, and `media` those in them.
    """

    decision: Decision
    messages: tuple[Mapping[str, Any], ...]
    media: tuple[MediaPart, ...] = ()


@runtime_checkable
class DecisionServer(Protocol):
    """The method of an engine that answers questions itself, in a way of its own."""

    async def decide(self, request: DecisionRequest) -> Verdicts:
        """The answers to all questions.

        Raises RequestError, for what it cannot be told before it begins; UnsupportedModelError if its model
        does not decide after all; EngineError.
        """
        ...


@runtime_checkable
class SharesSlots(Protocol):
    """An engine outside of this process, whose slots several processes of a server share."""

    def share(self, permits: Callable[[], SharedQueue]) -> None:
        """Share the slots with the same engine of other processes. Called once, before `start`.

        Each process calls `permits` as often, in the same order.
        """
        ...


@runtime_checkable
class Attachable(Protocol):
    """An engine that runs once for all processes of a server, each of which has a link to it."""

    def attach(self, link: Link) -> None:
        """Use the engine at this link, instead of one of its own. Called once, before `start`."""
        ...


class Host(Protocol):
    """The engine of several processes, in a program of its own: `antiphon.host`."""

    def load(self, started: Callable[[CoreFacts], None]) -> None:
        """Start it, and wait until it has loaded; `started` is called as soon as its processes run.

        Raises EngineError.
        """
        ...

    async def run(self) -> None:
        """Run until it ends unexpectedly. Raises EngineError then."""
        ...

    async def forget(self, number: int) -> None:
        """End the requests of the client with the link of this number, which has ended."""
        ...

    def close(self) -> None:
        """End it."""
        ...


@runtime_checkable
class LinkedOptions(Protocol):
    """The options of an engine that can be attached."""

    def host(self, link: Link, inputs: Sequence[str], outputs: Sequence[str]) -> Host:
        """What runs the engine, for links with these addresses; one of them, `link`, is the host's own.

        Raises EngineError.
        """
        ...


class EngineOptions(Protocol):
    """The options of an engine: a frozen dataclass called `Options`, in the engine's module.

    Its fields are options of `antiphon serve --engine NAME`, with a variable and a TOML key each; a type of
    `cyclopts.types` restricts the values, and the string under a field is its help text. Neither the module
    nor the class imports an optional extra: `Engine.start` does, or `build` if that can fail early.
    """

    def build(self, limits: Limits = DEFAULTS) -> Engine:
        """The engine, for which requests wait within `limits`.

        Raises EngineError, with the remedy, for options that cannot be used.
        """
        ...


def check_size(size: int, context: int) -> None:
    """Refuse text of `size` characters that cannot fit the context before any work is put into it.

    Raises RequestError.
    """
    if size > context * MAX_CHARACTERS_PER_TOKEN:
        message = (
            f"The prompt is too long: it has {size} characters, but the context of this model is "
            f"{context} tokens. Shorten it."
        )
        raise RequestError(message, param="prompt", code="context_length_exceeded")


def failure_of(error: Exception) -> AntiphonError:
    """The error for a receiver. The original error is its cause, which clients do not see."""
    if isinstance(error, AntiphonError):
        return error
    failure = EngineError()
    failure.__cause__ = error
    return failure
