"""What Antiphon asks of an engine: tokenize a prompt, and yield chunks of raw model text.

An engine knows nothing of chat, tools or HTTP. It gets a prompt and yields
what the model wrote, unparsed, always as a stream. It is driven from one event
loop. Closing the generator that `generate` returned (`aclose`, or cancelling
the task that awaits it) stops the work: within one step while decoding, within
one prompt batch during prefill, at once while queued.

Contract, held by the suite in `tests/contracts/engine.py` for every engine:

* the last chunk, and only the last, has `finish`; after it the generator ends;
* a batch is what has piled up since the last one: never empty;
* special tokens named in `preserve` come as their text; others come as tokens
  with empty text;
* the tokens' texts, joined, are the chunk's text, unless a chunk has no tokens;
* text is whole characters: bytes that do not complete one wait for the rest;
* with `logprobs`, a token that has a chunk of its own has its log probability,
  and `top` holds at most so many tokens, the most likely first;
* a token of `stop_token_ids` is the last one: its text is hidden, and the
  `finish` beside it names its id as `stop`;
* of those that wait, the lowest `priority` is served first, then who came first;
* a failure is an `EngineError`, before or between chunks, or a `RequestError`
  before the first chunk: what was asked for cannot be done.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.core.chunks import Chunk
from antiphon.core.constraint import Constraint
from antiphon.core.turn import Sampling


class Capabilities(Struct, frozen=True):
    """What an engine can do.

    `sampling` names the fields of `Sampling` that it honours: a request that sets
    another one is refused. `constraints` are the kinds of `Constraint` that it
    enforces, the preferred one first.
    """

    token_ids: bool = False
    """Chunks carry the tokens behind their text."""
    sampling: frozenset[str] = frozenset({"max_tokens"})
    constraints: tuple[type[Constraint], ...] = ()


class ModelCard(Struct, frozen=True):
    """A loaded model.

    `name` is the default public name. `context` is the most tokens that a prompt and
    its answer may have together. `chat_template` is Jinja source, None if the
    model has none. `bos` and `eos` are token texts, empty if there are none.
    `known_as` are names that may tell its family: titles, file, architecture.
    `response_template` is Hugging Face's, JSON text, None if there is none.
    `opening` is the token that the model wants before any text (BOS), None if it wants none.
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


class Prompt(Struct, frozen=True):
    """A rendered prompt, and its token ids as the engine's tokenizer gives them."""

    text: str
    ids: tuple[int, ...]


class Generation(Struct, frozen=True):
    """One answer wanted of an engine.

    `begun` is the part of the answer that the prompt already ends with: an answer
    that goes on after it was interrupted.
    `max_tokens` is the room left in the context if the client set no limit.
    `preserve` holds the special tokens whose text the decoder must see. Of
    `sampling` only what the engine's capabilities name is set, and a `constraint`
    is of a kind that they name.
    """

    prompt: Prompt
    max_tokens: int
    sampling: Sampling = Sampling()
    preserve: frozenset[str] = frozenset()
    constraint: Constraint | None = None
    begun: str = ""


class Engine(Protocol):
    """A source of tokens."""

    @property
    def card(self) -> ModelCard:
        """The model; only after `start`."""
        ...

    async def start(self) -> None:
        """Load the model. Raises EngineError if that fails."""
        ...

    async def stop(self) -> None:
        """Free the model; running generations end with EngineNotReadyError."""
        ...

    async def tokenize(self, text: str) -> list[int]:
        """The ids of a text; special tokens in it become their ids, and none are added."""
        ...

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of these tokens, special ones written out.

        Raises RequestError, which blames `tokens`, for an id that is no token's.
        """
        ...

    def generate(self, generation: Generation) -> AsyncGenerator[list[Chunk], None]:
        """Generate one answer, in batches of chunks."""
        ...
