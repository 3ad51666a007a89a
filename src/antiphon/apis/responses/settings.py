"""The settings of a request: the format of the text that it demands, and what its response shows of them.

A response has every setting, with defaults for those that were not given.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from antiphon.apis.formats import Named
from antiphon.apis.request import PromptCacheOptions
from antiphon.apis.request_object import Object, RequestObject
from antiphon.apis.responses.reasoning_context import context_in_effect
from antiphon.apis.responses.resource import (
    CacheSettings,
    ConversationSettings,
    ReasoningSettings,
    ResponseSettings,
    TextSettings,
)
from antiphon.apis.responses.schema import CreateResponse, ReasoningOptions, TextOptions
from antiphon.apis.responses.tools import echo
from antiphon.apis.sampling import token_limit
from antiphon.core.constraint import Format, JsonObject, JsonSchema
from antiphon.core.turn import CallMode

T = TypeVar("T")

PLAIN: Object = {"type": "text"}
SOURCE = "text.format"

_SHOWN = frozenset({"temperature", "top_p", "presence_penalty", "frequency_penalty"})
"""The sampling parameters that a response shows."""


def response_settings(
    request: CreateResponse,
    defaults: Mapping[str, float],
    forced: frozenset[str] = frozenset(),
    kept_reasoning: Mapping[str, Any] | None = None,
) -> ResponseSettings:
    """The settings of the request's response. `defaults` are the model's own, and `forced` hold in any case.

    See `ModelCard`, and `ModelTraits` for `kept_reasoning`.
    """
    if forced:
        names = dict.fromkeys(forced & _SHOWN)
        max_tokens = int(defaults["max_tokens"]) if "max_tokens" in forced else request.max_output_tokens
        request = replace(request, **names, max_output_tokens=max_tokens)
    text, reasoning = request.text, request.reasoning or ReasoningOptions()
    conversation = request.conversation_id
    choice = request.tool_choice
    return ResponseSettings(
        model=request.model,
        instructions=request.instructions,
        previous_response_id=request.previous_response_id,
        conversation=None if conversation is None else ConversationSettings(conversation),
        tools=echo(request.tools),
        tool_choice=CallMode.AUTO.value if choice is None else choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        max_tool_calls=request.max_tool_calls,
        max_output_tokens=token_limit(request.max_output_tokens),
        temperature=_given(request.temperature, defaults.get("temperature", 1.0)),
        top_p=_given(request.top_p, defaults.get("top_p", 1.0)),
        presence_penalty=_given(request.presence_penalty, defaults.get("presence_penalty", 0.0)),
        frequency_penalty=_given(request.frequency_penalty, defaults.get("frequency_penalty", 0.0)),
        top_logprobs=_given(request.top_logprobs, 0),
        text=TextSettings(echo_format(text), (text and text.verbosity) or UNSET),
        reasoning=ReasoningSettings(
            reasoning.effort,
            summary_of(request),
            "standard" if reasoning.mode else UNSET,
            context_in_effect(reasoning, kept_reasoning) or UNSET,
        ),
        truncation=request.truncation or "disabled",
        store=request.store is not False,
        background=bool(request.background),
        background_options=request.background_options or UNSET,
        metadata=request.metadata or {},
        safety_identifier=request.safety_identifier,
        prompt_cache_key=request.prompt_cache_key,
        prompt_cache_options=_cache_settings(request.prompt_cache_options),
        prompt_cache_retention=request.prompt_cache_retention,
        user=request.user or UNSET,
    )


def _cache_settings(options: PromptCacheOptions | None) -> CacheSettings | UnsetType:
    if options is None:
        return UNSET
    default = CacheSettings()
    return CacheSettings(
        options.mode or default.mode, options.ttl or default.ttl, options.comparison_response_id or UNSET
    )


def summary_of(request: CreateResponse) -> str | None:
    """The kind of reasoning summary that is requested, if any."""
    reasoning = request.reasoning or ReasoningOptions()
    return reasoning.summary or reasoning.generate_summary


def _given(value: T | None, default: T) -> T:
    return default if value is None else value


def text_format(text: TextOptions | None) -> tuple[Named, ...]:
    """The format that `text.format` requests, none for plain text. Raises RequestError."""
    given = text.format if text else None
    return () if given is None else read_format(given, SOURCE)


def read_format(given: Mapping[str, Any], source: str) -> tuple[Named, ...]:
    """The format of the parameter `source`, none for plain text. Raises RequestError."""
    form = _format(RequestObject(given, source))
    return () if form is None else ((source, form),)


def _format(form: RequestObject) -> Format | None:
    match form.text("type"):
        case "text":
            return None
        case "json_object":
            return JsonObject()
        case "json_schema":
            schema = form.object_or_none("schema")
            if schema is None:
                raise form.missing("schema")
            strict = bool(form.flag_or_none("strict"))
            about = form.text_or_none("description")
            return JsonSchema(schema.value, strict, form.named("name"), about)
    raise form.wrong("type", "Use 'text', 'json_object' or 'json_schema'.")


def echo_format(text: TextOptions | None) -> Object:
    """The format as the response returns it, with every field."""
    form = (text.format if text else None) or PLAIN
    if form["type"] != "json_schema":
        return form
    # OpenAI does not allow null here, and Open Responses requires the field: an empty text is valid in both.
    return {"description": "", "strict": False} | {
        name: value for name, value in form.items() if value is not None
    }
