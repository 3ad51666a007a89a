"""One request for an answer, the same type for every API.

To add something that an engine can do: a field of `Sampling` (or a kind of `Constraint`,
`core/constraint.py`); in the table of `engines/samplers.py` its name at each engine that supports it, and for
each other one the reason, which refuses it by name (`run/constraints.py`); then `scripts/parameter_table`.
Its test is in `tests/contracts/engine.py`, skipped for engines without it.
"""

import re
from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum, auto
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from antiphon.core.constraint import Format
from antiphon.core.items import FunctionCall, Item
from antiphon.core.programs import UnfinishedProgram


class Hosted(Struct, frozen=True):
    """How the server runs a function: with the tool of this `type`, as its `action`.

    `settings` is the tool as the request has it. Calls that need an `approval` are shown to the client: the
    server runs them in the answer to its reply. A `native` one is a tool that the model's family was trained
    with, under this very name. If a request may have several tools of a type, such as MCP servers, `label`
    distinguishes them. Calls that are `parallel` may run at the same time, and one that is `idempotent` may
    be run again if its outcome is unknown.
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
        """The name of the tool in a request: its label, or its type if there is only one of that type."""
        return self.label or self.type

    @property
    def key(self) -> tuple[str, str]:
        """Equal for the functions of one tool of a request, which share a session."""
        return self.type, self.label


TOOL_SEARCH = "tool_search"
"""The type of the tool that finds further functions. Every server has it: it needs nothing but the turn."""


class SearchAction(StrEnum):
    """How functions are found."""

    QUERY = "bm25"
    """By the words of a query."""
    PATTERN = "regex"
    """By a regular expression."""
    CALL = "call"
    """By a call of one that was not found yet."""


class Placement(StrEnum):
    """Where a function is described to the model."""

    PROMPT = "prompt"
    """At the head of the prompt, which lists it."""
    CONVERSATION = "conversation"
    """By the conversation itself, at the place from which on it may be called."""
    SEARCH = "search"
    """Nowhere yet, but for its name: a search finds it. A call of it counts as one."""
    REPLACED = "replaced"
    """At the head of the prompt; but the conversation has described another one of its name, which counts."""


_IN_PROMPT = (Placement.PROMPT, Placement.REPLACED)
_KNOWN = (Placement.PROMPT, Placement.CONVERSATION)


class Function(Struct, frozen=True):
    """A function that the model may call. `parameters` is a JSON Schema, `{}` if it takes none.

    `source` names the request's parameter that holds this schema, for errors. `more` are further members of
    its description, for chat templates that show them.
    Without `hosted` it is the client's. `placement` is where it is described.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] = {}
    strict: bool | None = None
    source: str = "tools"
    hosted: Hosted | None = None
    more: Mapping[str, Any] = {}
    placement: Placement = Placement.PROMPT

    @property
    def answered_by(self) -> Hosted | None:
        """How the server answers its calls; None if the client does."""
        return _FOUND_BY_CALL if self.placement is Placement.SEARCH else self.hosted

    @property
    def source_of_name(self) -> str:
        """The request's parameter that holds its name, beside the schema. A server tool has none."""
        if self.hosted is not None:
            return self.source
        return re.sub(r"\.(parameters|input_schema|format)$", ".name", self.source)


_FOUND_BY_CALL = Hosted(TOOL_SEARCH, SearchAction.CALL, parallel=True, idempotent=True)


def role_parameter(role: str) -> str:
    """The neutral name of a parameter that holds a role which only a chat template may know."""
    return f"role {role}"


UNKNOWN = "unknown"
"""The type of the tool of a function that nobody offers."""


def unknown_function(name: str) -> Function:
    """A function of this name that nobody offers: the server answers its calls."""
    return Function(name, hosted=Hosted(UNKNOWN, name, parallel=True, idempotent=True))


class HostedNames:
    """The names of functions whose calls the server answers.

    They are those of its own tools that it runs without asking the client; those of functions that were not
    found yet; and names that nobody offers, if all tools are the server's, or if the name begins like those
    of a tool: its label, or a namespace that models were trained with. So are those of functions that only
    programs may call.
    """

    def __init__(self, tools: Iterable[Function], in_programs: Iterable[Function] = ()) -> None:
        # Name → whether the server answers its calls
        self._offered: dict[str, bool] = dict.fromkeys((tool.name for tool in in_programs), True)
        self._beginnings: set[str] = set()
        self._all_hosted = True
        for tool in tools:
            hosted, answered_by = tool.hosted, tool.answered_by
            self._offered[tool.name] = answered_by is not None and not answered_by.approval
            self._all_hosted = self._all_hosted and hosted is not None
            if hosted is not None and hosted.native and "." in tool.name:
                self._beginnings.add(tool.name.partition(".")[0] + ".")
            if hosted is not None and hosted.label:
                self._beginnings.add(f"{hosted.label}__")

    def __contains__(self, name: object) -> bool:
        if name in self._offered:
            return self._offered[str(name)]
        return (self._all_hosted and bool(self._offered)) or str(name).startswith((*self._beginnings,))


PREFIX_END = "__"
"""Between a namespace, or the label of a remote server, and the name of a tool in it."""


def names_by_ending(tools: Iterable[Function]) -> dict[str, str]:
    """The names of functions by their endings without a namespace: models may leave that out.

    An ending that several have, or that is the name of another function, is left out.
    """
    names = {tool.name for tool in tools if tool.name}
    endings: dict[str, list[str]] = {}
    for name in names:
        _, separator, ending = name.partition(PREFIX_END)
        while separator:
            endings.setdefault(ending, []).append(name)
            _, separator, ending = ending.partition(PREFIX_END)
    return {
        ending: having[0] for ending, having in endings.items() if ending not in names and len(having) == 1
    }


class CallMode(StrEnum):
    """Whether the model calls its tools."""

    NONE = "none"
    """It must not. Text that looks like a call is text, or is hidden where there can be no text."""
    AUTO = "auto"
    REQUIRED = "required"


MAX_DEMANDED_CALLS = 16
"""Calls of a generation that must call."""


class ToolChoice(Struct, frozen=True):
    """Which calls an answer may have, and whether it must have one.

    `names` are the only tools that may be called, None for all; the model still sees all. If they are
    `named`, exactly one call of one of them is demanded. Without `parallel` a generation ends after one call.
    """

    calling: CallMode = CallMode.AUTO
    names: frozenset[str] | None = None
    parallel: bool = True
    named: bool = False

    def admits(self, name: str) -> bool:
        """Whether the tool of this name may be called."""
        return self.names is None or name in self.names

    @property
    def max_calls(self) -> int | None:
        """The largest number of calls in a generation; None if there is no limit.

        A named call is demanded once. A model that must call, and cannot write anything else, may repeat
        itself endlessly.
        """
        if self.named or not self.parallel:
            return 1
        return MAX_DEMANDED_CALLS if self.calling is CallMode.REQUIRED else None


class Adapter(Struct, frozen=True):
    """A LoRA adapter of a generation: its name, or its number among those of the model, and its scale.

    The scale is the factor of its weights: 1 is the adapter as it was trained, below 0 its opposite.
    """

    name: str | int
    scale: float = 1.0


class Sampling(Struct, frozen=True):
    """The sampling parameters. None, or an empty value, selects the engine's default.

    `temperature` ≥ 0 (0 is greedy), `top_p` in [0, 1], `top_k` ≥ 1 (-1: off), `min_p` and `typical_p` in [0,
    1], penalties in [-2, 2], `repetition_penalty` > 0 (1: off); penalties consider the last `repeat_last_n`
    tokens (-1: all). `top_n_sigma`, `xtc_…`, `dynatemp_…`, `mirostat…` (0: off, 1, 2), `dry_…`, `adaptive_…`
    (a target below 0: off), `samplers` (their order) and `min_keep` are llama.cpp's, with the meaning that
    they have there; `tfs`, `top_a`, `skew`, `smoothing_factor`, `repetition_decay`, `temperature_last`,
    `cfg_scale` with its `negative_prompt`, `token_healing` and `loop_detect_window` are TabbyAPI's, and
    `watermark` is TGI's. `logit_bias` adds to a token's logit, in [-100, 100]; `banned_tokens` are never
    generated. `max_tokens` counts every generated token, reasoning included; no answer ends before
    `min_tokens`. `stop_token_ids` end an answer, as do the model's own end tokens unless `ignore_eos` is set.
    `bad_words` are never generated. `logprobs` requests the log probability of each token, and of this number
    of the most likely tokens at its position; `prompt_logprobs` does so for the prompt. A higher `priority`
    value means later. Prompts with different `cache_salt` share no cache. `beam_width` requests a beam
    search. Only `allowed_token_ids` are generated. `vllm_xargs` and `kv_transfer_params` are passed on to
    vLLM's plugins and its KV connector; `data_parallel_rank` selects one of its ranks. Special tokens that
    are not markers of the dialect are part of the text only if `skip_special_tokens` is false. `lora` are the
    adapters of the generation, all of them: without any it is the model's own, and None is what its server
    was started with.
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
    repetition_decay: int | None = None
    repeat_last_n: int | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: tuple[str, ...] = ()
    adaptive_target: float | None = None
    adaptive_decay: float | None = None
    tfs: float | None = None
    top_a: float | None = None
    skew: float | None = None
    smoothing_factor: float | None = None
    cfg_scale: float | None = None
    negative_prompt: str | None = None
    token_healing: bool | None = None
    temperature_last: bool | None = None
    samplers: tuple[str, ...] = ()
    min_keep: int | None = None
    loop_detect_window: int | None = None
    watermark: bool | None = None
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
    skip_special_tokens: bool | None = None
    lora: tuple[Adapter, ...] | None = None


class PromptEnding(Enum):
    """How a prompt ends."""

    ANSWER = auto()
    """With the beginning of the assistant's answer."""
    TRANSCRIPT = auto()
    """After the last message, without a generation prompt."""
    CONTINUED = auto()
    """Inside the last message, which is the assistant's: the answer continues it."""


class Turn(Struct, frozen=True):
    """A request, in terms that do not depend on its API.

    `stop` strings end the visible text, and with `stop_shown` stay in it. `choices` is the number of
    independent answers. The server runs at most `tool_limit` calls of its own tools. `format` is the required
    form of the visible text. `variables` are passed to the chat template; `later_variables` replace some of
    them from a place of the conversation on, which says so: the prompt before it stays as it is with
    `variables`. So does `first_format`, that of the beginning, if the conversation has replaced it.
    `template` replaces the model's own. `prefix` is the beginning of the answer, written by the client. If a
    prompt is longer than `prompt_limit` (-1: than the context), only its last tokens are used; a conversation
    that is too long loses its oldest messages if `shorten`. After `reasoning_limit` tokens of reasoning the
    model is made to begin the answer. `prompt` is a text, or its token ids, in place of a conversation; with
    a `suffix` it is the text before a gap, the suffix the text after it, and the answer fills the gap.
    `owner` is the identity that the stored answer belongs to. `id` is that of the answer; objects that tools
    store belong to it. `token_ids` is the parameter that requests the ids of tokens, if one does.
    `media_fallback` says what to do with media that the model does not take, `error` or `note`, None for the
    server's default. `parameters` maps neutral names in errors to those of the request: alternatives,
    conversation, format, prefix, reasoning_limit, template, tool_limit. `approved` are calls among the items
    that the client has approved, `unfinished` are programs among them: they are run before the model answers.
    `in_programs` are the functions that programs may call. Their time is that of `created_at`, in seconds
    since the epoch. `copies` is how often the answer
    holds each log probability: in all of its events, or while it is built. If it `warms` the prompt, that is
    only computed, for later turns, and the answer is empty.
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
    later_variables: Mapping[str, Any] = {}
    first_format: Format | UnsetType | None = UNSET
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
    token_ids: str = ""
    parameters: Mapping[str, str] = {}
    approved: tuple[FunctionCall, ...] = ()
    unfinished: tuple[UnfinishedProgram, ...] = ()
    in_programs: tuple[Function, ...] = ()
    created_at: int = 0
    copies: int = 1
    warms: bool = False

    @property
    def listed_tools(self) -> tuple[Function, ...]:
        """The tools that a prompt lists: the conversation itself describes the others, at their places."""
        return tuple([tool for tool in self.tools if tool.placement in _IN_PROMPT])

    @property
    def listed_format(self) -> Format | None:
        """The form that a prompt tells: the conversation itself tells a later one, at its place."""
        return self.format if isinstance(self.first_format, UnsetType) else self.first_format

    @property
    def latest_variables(self) -> Mapping[str, Any]:
        """The variables that count in the end."""
        return {**self.variables, **self.later_variables}

    @property
    def known_tools(self) -> tuple[Function, ...]:
        """The tools that the model knows how to call: those that are described, wherever that is."""
        return tuple([tool for tool in self.tools if tool.placement in _KNOWN])

    def parameter(self, name: str) -> str:
        """The request's name of this parameter."""
        return self.parameters.get(name, name)
