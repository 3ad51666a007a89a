"""One request for an answer, whichever API it came through."""

from collections.abc import Mapping
from enum import Enum, StrEnum, auto
from typing import Any

from msgspec import Struct

from antiphon.core.constraint import Format
from antiphon.core.items import FunctionCall, Item


class Hosted(Struct, frozen=True):
    """How the server runs a function: by the tool of this `type`, as its `action`.

    `settings` is the tool as the request gave it. Of calls that need an `approval` the client is asked: the
    server runs them in the answer to its reply. A `native` one is a tool that the model's family was
    trained with, under this very name. Where a request may have several tools of a type, such as
    MCP servers, `label` tells them apart. Calls that are `parallel` may run side by side, and one that is
    `idempotent` may be run again if nobody knows what became of it.
    """

    type: str
    action: str
    settings: Mapping[str, Any] = {}
    native: bool = False
    label: str = ""
    approval: bool = False
    parallel: bool = False
    idempotent: bool = False

    @property
    def server(self) -> str:
        """What clients may call the tool by in a request: its label, or its type where there is one only."""
        return self.label or self.type

    @property
    def key(self) -> tuple[str, str]:
        """Equal for the functions of one tool of a request: a session for each."""
        return self.type, self.label


class Function(Struct, frozen=True):
    """A function that the model may call. `parameters` is a JSON Schema, `{}` if it takes none.

    `source` names the request's parameter that holds this schema, for errors.
    Without `hosted` it is the client's.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] = {}
    strict: bool | None = None
    source: str = "tools"
    hosted: Hosted | None = None


class CallMode(StrEnum):
    """Whether the model calls its tools."""

    NONE = "none"
    """It may not. What looks like a call is text, or is not shown where it can be no text."""
    AUTO = "auto"
    REQUIRED = "required"


MAX_DEMANDED_CALLS = 16
"""Calls of a generation that must call."""


class ToolChoice(Struct, frozen=True):
    """Which calls an answer may have, and whether it must have one.

    `names` are the only tools that may be called, None for all; all stay
    visible to the model. If they are `named`, that is for the demanded call alone. Without
    `parallel` a generation ends after one call.
    """

    calling: CallMode = CallMode.AUTO
    names: frozenset[str] | None = None
    parallel: bool = True
    named: bool = False

    def admits(self, name: str) -> bool:
        """Whether the tool of this name may be called."""
        return self.names is None or name in self.names

    @property
    def most(self) -> int | None:
        """How many calls a generation may have; None if that is left to the model.

        A named call is demanded once. A model that must call, and cannot say anything else, may repeat
        itself without end.
        """
        if self.named or not self.parallel:
            return 1
        return MAX_DEMANDED_CALLS if self.calling is CallMode.REQUIRED else None


class Sampling(Struct, frozen=True):
    """How tokens are drawn. None, or what is empty, leaves a value to the engine's default.

    `temperature` ≥ 0 (0 is greedy), `top_p` in [0, 1], `top_k` ≥ 1 (-1: off),
    `min_p` and `typical_p` in [0, 1], penalties in [-2, 2], `repetition_penalty` > 0 (1: off);
    penalties look at the last `repeat_last_n` tokens (-1: all). `top_n_sigma`, `xtc_…`, `dynatemp_…`,
    `mirostat…` (0: off, 1, 2) and `dry_…` are llama.cpp's samplers, and mean what they mean there.
    `logit_bias` adds to a token's logit, in [-100, 100]; `banned_tokens` are never drawn. `max_tokens`
    counts every generated token, reasoning included; before `min_tokens` no answer ends.
    `stop_token_ids` end an answer beside the model's own ends, which
    `ignore_eos` takes away. `bad_words` are never written. `logprobs` asks for the
    log probability of each token, and of so many most likely ones beside it;
    `prompt_logprobs` for the prompt's. A higher `priority` waits longer.
    Prompts with different `cache_salt` share no cache. `beam_width` asks for a
    beam search. Only `allowed_token_ids` are drawn. `vllm_xargs` and `kv_transfer_params` are what
    vLLM passes on to its plugins and its KV connector; `data_parallel_rank` is which of its ranks works.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_last_n: int | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: tuple[str, ...] = ()
    logit_bias: Mapping[int, float] = {}
    banned_tokens: tuple[int, ...] = ()
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool | None = None
    bad_words: tuple[str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    beam_width: int | None = None
    length_penalty: float | None = None
    allowed_token_ids: tuple[int, ...] = ()
    vllm_xargs: Mapping[str, Any] = {}
    kv_transfer_params: Mapping[str, Any] = {}
    data_parallel_rank: int | None = None


class PromptEnding(Enum):
    """How a prompt ends."""

    ANSWER = auto()
    """With the beginning of the assistant's answer."""
    TRANSCRIPT = auto()
    """After the last message, as it is."""
    CONTINUED = auto()
    """Inside the last message, which is the assistant's: the answer continues it."""


class Turn(Struct, frozen=True):
    """A request, in terms that do not depend on its API.

    `stop` strings end the visible text, and with `stop_shown` stay in it.
    `choices` is how many independent answers are wanted. The server answers at
    most `tool_limit` calls of its own tools. `format` is what the
    visible text has to look like. `variables` go to the chat template;
    `template` stands in for the model's own. `prefix` is text that the answer
    begins with, written by the client. Of a prompt longer than `prompt_limit`
    (-1: what fits) only the last so many tokens are used; a conversation that
    does not fit loses its oldest messages if `shorten`. After `reasoning_limit`
    tokens of reasoning the answer is made to begin. `prompt` is a text, or its
    token ids, that stands in for a conversation; with a `suffix` it is what is before a gap, and that what is
    behind it: the answer fills it in. `owner` is the identity
    behind the request: what is stored belongs to it. `id` is that of the answer, where what tools leave
    belongs to it. `media_fallback` is what becomes of media that the
    model does not take, `error` or `note`, None for what the server does. `parameters` is what the
    request calls what errors blame, where that has another name there:
    conversation, format, prefix, reasoning_limit, template, tool_limit. `approved` are calls among the
    items that the client has approved: they are run before the model answers. `copies` is how often the
    answer has each log probability: in all of its events, or while it is built.
    """

    model: str
    items: tuple[Item, ...] = ()
    tools: tuple[Function, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    format: Format | None = None
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    stop_shown: bool = False
    choices: int = 1
    variables: Mapping[str, Any] = {}
    template: str | None = None
    ending: PromptEnding = PromptEnding.ANSWER
    prefix: str = ""
    prompt_limit: int | None = None
    reasoning_limit: int | None = None
    shorten: bool = False
    prompt: str | tuple[int, ...] | None = None
    suffix: str | None = None
    tool_limit: int | None = None
    owner: str = ""
    id: str = ""
    media_fallback: str | None = None
    parameters: Mapping[str, str] = {}
    approved: tuple[FunctionCall, ...] = ()
    copies: int = 1

    def parameter(self, name: str) -> str:
        """What the request calls this."""
        return self.parameters.get(name, name)
