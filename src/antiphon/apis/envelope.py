"""The envelope of an answer: its identity and its prompts, and its presentation."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from antiphon.apis.request import Request
from antiphon.core.chunks import PromptToken
from antiphon.core.hosts import Note

REASONING_NAMES = ("reasoning_content", "reasoning")
"""Clients use one of two names for reasoning. Answers have both."""
REASONING_FIELDS = {"both": REASONING_NAMES} | {name: (name,) for name in REASONING_NAMES}
"""The fields of answers that hold reasoning, by the option --reasoning-field."""


SERVICE_TIER = "default"
"""The only tier, for any request."""


class RenderedPrompt(Struct, frozen=True):
    """A prompt as the model read it.

    `tokens` have log probabilities; they are set if those were requested.
    """

    text: str
    ids: tuple[int, ...]
    tokens: tuple[PromptToken, ...] = ()


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
        tokens = 0
        for prompt in self.prompts:
            tokens += len(prompt.ids)
        return tokens


class UsageReports(IntEnum):
    """How often a stream reports usage. A server's own wish and the client's: the greater counts."""

    NONE = 0
    LAST = 1
    """Once, after the last choice."""
    EACH = 2
    """In each chunk, with the values so far."""


class PresentationOptions(Struct, frozen=True):
    """How an answer is presented. A server has defaults; requests change them.

    `role` is the answer's. `reasoning` are the names of the fields with the reasoning, none to hide it.
    Calls of `custom` tools are shown with their input. `legacy` shows the only call in OpenAI's older form.
    `logprobs` is the number of alternatives to each token of the text, None to show no log probabilities;
    `tokens_as_ids` names tokens there by id. `token_ids` shows all ids, `prompt_text` and `prompt_logprobs`
    the prompt. `echo` is text at the beginning of the shown answer. `padded` hides the lengths of a stream's
    pieces. `notes` are on parts of the request without effect.
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
"""The default presentation."""


def shared_presentation(
    request: Request, defaults: PresentationOptions, logprobs: int | None, **own: Any
) -> PresentationOptions:
    """The presentation for a request, from the server's default; `own` are the fields of one API."""
    options = request.stream_options
    by_id = request.return_tokens_as_token_ids
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
        **own,
    )


def _usage(request: Request) -> UsageReports:
    options, asked = request.stream_options, request.usage is not None and request.usage.include
    if options is not None:
        if options.continuous_usage_stats:
            return UsageReports.EACH
        asked = asked or bool(options.include_usage)
    return UsageReports.LAST if asked else UsageReports.NONE
