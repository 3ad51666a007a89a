"""What an answer is wrapped in: its identity and its prompts, and how the client wants to see it."""

from collections.abc import Mapping
from enum import IntEnum

from msgspec import UNSET, Struct, UnsetType

from antiphon.core.chunks import Token

REASONING_NAMES = ("reasoning_content", "reasoning")
"""Thoughts go by two names among clients. Answers say both: each client knows one of them."""


class PromptView(Struct, frozen=True):
    """A prompt as the model read it. `tokens` are there, with log probabilities, if those were asked for."""

    text: str
    ids: tuple[int, ...]
    tokens: tuple[Token, ...] = ()


class Envelope(Struct, frozen=True):
    """The identity of an answer. `model` is the client's name for it, `prompt_tokens` counts all prompts."""

    id: str
    model: str
    created: int
    prompt_tokens: int
    prompts: tuple[PromptView, ...] = ()
    system_fingerprint: str | UnsetType = UNSET


class UsageReports(IntEnum):
    """How often a stream tells of its usage. A server's own wish and the client's: the greater counts."""

    NONE = 0
    LAST = 1
    """Once, behind the last choice."""
    EACH = 2
    """In each chunk, as far as it got."""


class View(Struct, frozen=True):
    """How an answer is shown. A server has one that it begins with; requests change it.

    `reasoning` are the fields that thoughts are shown in, none to hide them.
    Calls of `custom` tools are shown with their input. `legacy` shows the one call as
    OpenAI did before there were tools. `logprobs` is the number of alternatives
    to each token of the text, None to show no log probabilities; `tokens_as_ids`
    names tokens there by id. `token_ids` shows all ids, `prompt_text` and `prompt_logprobs` the prompt.
    `echo` is text that the answer is shown to begin with. `padded` hides how long
    a stream's pieces are.
    """

    reasoning: tuple[str, ...] = REASONING_NAMES
    custom: frozenset[str] = frozenset()
    legacy: bool = False
    logprobs: int | None = None
    tokens_as_ids: bool = False
    token_ids: bool = False
    prompt_text: bool = False
    prompt_logprobs: bool = False
    echo: str = ""
    usage: UsageReports = UsageReports.NONE
    padded: bool = False
    service_tier: str | UnsetType = UNSET
    metadata: Mapping[str, str] | UnsetType = UNSET


DEFAULT_VIEW = View()
"""How answers are shown unless someone says otherwise."""
