"""What an answer is wrapped in: its identity and its prompts, and how the client wants to see it."""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from operator import attrgetter
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from antiphon.apis.request import Request
from antiphon.core.chunks import Token
from antiphon.core.hosts import Note

REASONING_NAMES = ("reasoning_content", "reasoning")
"""Clients know reasoning by one of two names. Answers have both."""


SERVICE_TIER = "default"
"""The one tier that there is, whichever was requested."""


class RenderedPrompt(Struct, frozen=True):
    """A prompt as the model read it. `tokens` are there, with log probabilities, if those were asked for."""

    text: str
    ids: tuple[int, ...]
    tokens: tuple[Token, ...] = ()


class Envelope(Struct, frozen=True):
    """The identity of an answer, and its prompts. `model` is the client's name for it."""

    id: str
    model: str
    created: int
    prompts: tuple[RenderedPrompt, ...] = ()
    system_fingerprint: str | UnsetType = UNSET

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum([len(prompt.ids) for prompt in self.prompts])

    def around(self, prompts: Iterable[Any]) -> "Envelope":
        """The same, with prompts, each of which has a `text`, `ids` and `tokens`."""
        rendered = [RenderedPrompt(prompt.text, prompt.ids, prompt.tokens) for prompt in prompts]
        return replace(self, prompts=tuple(rendered))


class UsageReports(IntEnum):
    """How often a stream reports usage. A server's own wish and the client's: the greater counts."""

    NONE = 0
    LAST = 1
    """Once, behind the last choice."""
    EACH = 2
    """In each chunk, as far as it got."""


class PresentationOptions(Struct, frozen=True):
    """How an answer is shown. A server has defaults; requests change them.

    `role` is the answer's. `reasoning` are the fields that reasoning is shown in, none to hide them.
    Calls of `custom` tools are shown with their input. `legacy` shows the one call as
    OpenAI did before there were tools. `logprobs` is the number of alternatives
    to each token of the text, None to show no log probabilities; `tokens_as_ids`
    names tokens there by id. `token_ids` shows all ids, `prompt_text` and `prompt_logprobs` the prompt.
    `echo` is text that the answer is shown to begin with. `padded` hides how long
    a stream's pieces are. `notes` are on what of the request has no effect.
    """

    role: str = "assistant"
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
    notes: tuple[Note, ...] = ()


DEFAULT_PRESENTATION = PresentationOptions()
"""How answers are shown unless someone says otherwise."""


_shown = attrgetter(
    "stream_options",
    "return_tokens_as_token_ids",
    "return_token_ids",
    "return_prompt_text",
    "prompt_logprobs",
    "service_tier",
)
_UNSAID = (None,) * 6


def shared_presentation(
    request: Request, defaults: PresentationOptions, logprobs: int | None
) -> PresentationOptions:
    """What every request may change of the presentation that the server begins with."""
    options = request.stream_options
    by_id = request.return_tokens_as_token_ids
    if logprobs is defaults.logprobs is None and _shown(request) == _UNSAID:
        return defaults
    return replace(
        defaults,
        logprobs=logprobs,
        tokens_as_ids=defaults.tokens_as_ids if by_id is None else by_id,
        token_ids=bool(request.return_token_ids),
        prompt_text=bool(request.return_prompt_text),
        prompt_logprobs=request.prompt_logprobs is not None,
        usage=max(defaults.usage, _usage(request)),
        padded=options is not None and bool(options.include_obfuscation),
        service_tier=UNSET if request.service_tier is None else SERVICE_TIER,
    )


def _usage(request: Request) -> UsageReports:
    options = request.stream_options
    if options is None or not options.include_usage:
        return UsageReports.NONE
    return UsageReports.EACH if options.continuous_usage_stats else UsageReports.LAST
