"""Why the cache missed, in OpenAI's words: `prompt_cache_options.comparison_response_id`.

Beside OpenAI's fields a miss has the `part` of the request that made the difference.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from antiphon.apis.request_object import RequestObject
from antiphon.apis.responses.resource import CacheDiagnostics, ResponseSettings
from antiphon.apis.responses.schema import CreateResponse
from antiphon.core.cache_trace import (
    CacheHit,
    CacheMiss,
    CacheResult,
    NotCompared,
    RequestParts,
    hash_of,
    settings_of,
)

_REASONS = {
    "model": "model_changed",
    "cache_salt": "prompt_cache_key_changed",
    "tools": "tools_changed",
    "text.format": "text_format_changed",
    "reasoning.effort": "reasoning_effort_changed",
    "text.verbosity": "verbosity_changed",
    "compaction": "context_compacted",
    "context_management": "context_compacted",
    "truncation": "context_compacted",
}
"""Part → the reason; others are `input_changed`."""
_INPUT = "input_changed"
_NOT_SHOWN = frozenset({"id", "status", "annotations", "logprobs", "phase"})
"""Fields of items that the model is not shown."""
_TEXTS = frozenset({"input_text", "output_text", "text"})


def diagnostics_of(result: CacheResult | None, settings: ResponseSettings) -> CacheDiagnostics | UnsetType:
    """The report of a result, for requests that have named a response to compare with."""
    if result is None or not compares_with(settings):
        return UNSET
    match result:
        case CacheHit():
            return CacheDiagnostics("cache_hit")
        case NotCompared(unknown=unknown):
            return CacheDiagnostics("comparison_response_not_found" if unknown else "unavailable")
        case CacheMiss(part=part):
            reason = _REASONS.get(part, _INPUT)
            return CacheDiagnostics("cache_miss", reason, result.missed, result.reusable, part)


def compares_with(settings: ResponseSettings) -> str | None:
    """The id of the response to compare with."""
    caching = settings.prompt_cache_options
    wanted = UNSET if isinstance(caching, UnsetType) else caching.comparison_response_id
    return None if isinstance(wanted, UnsetType) else wanted


def request_parts(
    request: CreateResponse, history: Sequence[RequestObject], items: Sequence[RequestObject]
) -> RequestParts:
    """What the prompt of a request is made of."""
    text, reasoning = request.text, request.reasoning
    given = [*history, *items]
    settings = {
        "model": [request.model, request.lora],
        "cache_salt": request.cache_salt,
        "tools": request.tools,
        "instructions": request.instructions,
        "text.format": text and text.format,
        "reasoning.effort": reasoning and reasoning.effort,
        "text.verbosity": text and text.verbosity,
        "tool_choice": request.tool_choice,
        "reasoning.context": reasoning and reasoning.context,
        "chat_template_kwargs": [request.chat_template_kwargs, request.documents, request.chat_template],
    }
    return RequestParts(
        settings_of(**settings),
        tuple(item.made_by(_hash) for item in given),
        "input",
        len(history),
        sum(item.value["type"] == "compaction" for item in given),
        _leaves_out(request),
    )


def _hash(item: RequestObject) -> bytes:
    """The hash of what the model may be shown of an item."""
    return hash_of(_shown(item.value))


def _leaves_out(request: CreateResponse) -> str:
    """The parameter by which some of the conversation may have been left out."""
    if request.context_management:
        return "context_management"
    return "truncation" if request.truncation == "auto" else ""


def _shown(value: Any) -> Any:
    """What the model may be shown of an item, in one form for what was stored and what a client sends."""
    if isinstance(value, Mapping):
        type_ = value.get("type")
        if isinstance(type_, str) and type_ in _TEXTS:
            return value.get("text")
        return {
            name: _shown(member)
            for name, member in value.items()
            if member is not None and name not in _NOT_SHOWN
        }
    if isinstance(value, list):
        return [*map(_shown, value)]
    return value
