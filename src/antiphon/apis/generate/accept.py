"""A request of token ids → a turn. Every error names the parameter."""

from collections.abc import Container, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.apis.envelope import DEFAULT_PRESENTATION, PresentationOptions, UsageReports
from antiphon.apis.formats import answer_format
from antiphon.apis.generate.errors import IN_SAMPLING, OUTSIDE, PARAMETERS
from antiphon.apis.generate.schema import (
    IGNORED,
    NOTHING,
    STRUCTURED_IGNORED,
    GenerateTokens,
    SamplingOptions,
)
from antiphon.apis.request import StreamOptions
from antiphon.apis.sampling import check, shared_sampling, stops, token_limit
from antiphon.apis.wire import typed_at
from antiphon.core.errors import RequestError
from antiphon.core.turn import Sampling, Turn

NEUTRAL: Mapping[str, float | int] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""How tokens are drawn unless the request says otherwise: as the model gives them, as in vLLM.

In other APIs it is the model's own default.
"""

_FIELDS = frozenset(SamplingOptions.__struct_fields__) - {"request_id", "deadline_seconds", "response_format"}
_STRUCTURED = "structured_outputs"
_EMPTY: tuple[Any, ...] = (None, False, [], {}, "")


class AcceptedTokens(Struct, frozen=True):
    """A request that can be answered: with `text`, choices have it beside their tokens."""

    turn: Turn
    presentation: PresentationOptions
    text: bool


def accept(request: GenerateTokens, owner: str, able: Container[str]) -> AcceptedTokens:
    """The turn for a request; `able` are the sampling fields of its engine. Raises RequestError."""
    _check_supported(request)
    options = _options(request.sampling_params)
    try:
        source, form = answer_format(options)
    except RequestError as error:
        error.param = f"{IN_SAMPLING}.{error.param}"
        raise
    if form is not None and request.reasoning_ended is False:
        message = "A form is demanded of the first token on here: reasoning has ended. Send true."
        raise RequestError(message, param="reasoning_ended")
    sampling = shared_sampling(options, max_tokens=token_limit(options.max_tokens), logprobs=options.logprobs)
    unset = {name: value for name, value in NEUTRAL.items() if name in able and _is_unset(sampling, name)}
    kv = request.kv_transfer_params or {}
    if kv.get("do_remote_decode") and request.stream:
        message = "'do_remote_decode' is not available in streams. Set 'stream' to false."
        raise RequestError(message, param="kv_transfer_params")
    sampling = replace(
        sampling,
        **unset,
        prompt_logprobs=options.prompt_logprobs,
        cache_salt=request.cache_salt or None,
        priority=request.priority or None,
        kv_transfer_params=kv,
    )
    turn = Turn(
        model=request.model,
        prompt=(*request.token_ids,),
        format=form,
        sampling=sampling,
        stop=stops(options),
        stop_shown=bool(options.include_stop_str_in_output),
        choices=options.n or 1,
        copies=1 if request.stream else 2,
        token_ids="output_mode",  # noqa: S106 - the name of a parameter
        owner=owner,
        parameters={**PARAMETERS, "format": f"{IN_SAMPLING}.{source}"},
    )
    return AcceptedTokens(turn, _presentation(request, options), request.output_mode == "text")


def _is_unset(sampling: Sampling, name: str) -> bool:
    return getattr(sampling, name) is None


def _presentation(request: GenerateTokens, options: SamplingOptions) -> PresentationOptions:
    wanted = request.stream_options or StreamOptions()
    usage = UsageReports.LAST if wanted.include_usage else UsageReports.NONE
    return replace(
        DEFAULT_PRESENTATION,
        logprobs=options.logprobs,
        token_ids=True,
        prompt_logprobs=options.prompt_logprobs is not None,
        usage=UsageReports.EACH if wanted.continuous_usage_stats else usage,
    )


def _check_supported(request: GenerateTokens) -> None:
    """Refuse by name what no engine of this server can do. Raises RequestError."""
    refused = {
        "output_mode": (
            request.output_mode == "derender",
            "An answer is not parsed here. Use 'tokens' or 'text', or the API that it was rendered for.",
        ),
        "features": (
            bool(request.features),
            "Media are not taken with token ids. Send them in a conversation, to another API.",
        ),
        "content_parts": (
            bool(request.content_parts),
            "Media are not taken with token ids. Send them in a conversation, to another API.",
        ),
        "ec_transfer_params": (
            bool(request.ec_transfer_params),
            "Encoders are not shared. Leave it out.",
        ),
        "stream_options": (
            request.stream_options is not None and not request.stream,
            "'stream_options' is only allowed with 'stream': true.",
        ),
    }
    for param, (given, message) in refused.items():
        if given:
            raise RequestError(message, param=param)
    if request.stream and request.sampling_params.get("prompt_logprobs") is not None:
        message = "'prompt_logprobs' is not available in streams. Leave it out, or set 'stream' to false."
        raise RequestError(message, param=f"{IN_SAMPLING}.prompt_logprobs")


def _options(given: Mapping[str, Any]) -> SamplingOptions:
    """The members of `sampling_params`. Raises RequestError for what is not supported."""
    known = {name: value for name, value in given.items() if name in _FIELDS}
    extra = given.get("extra_args") or {}
    if isinstance(extra, dict):
        known |= {"vllm_xargs": extra} if extra else {}
        given = {name: value for name, value in given.items() if name != "extra_args"}
    if isinstance(structured := known.get(_STRUCTURED), dict):
        known[_STRUCTURED] = _structured(structured)
    for name, value in given.items():
        if name not in _FIELDS and name not in IGNORED and value not in (*_EMPTY, *NOTHING.get(name, ())):
            param = f"{IN_SAMPLING}.{name[:64]}"
            raise RequestError(f"'{param}' is not supported. Leave it out.", param=param)
    for name in OUTSIDE & known.keys():
        if known[name] not in (*_EMPTY, 0):
            message = f"'{name}' is a member of '{IN_SAMPLING}'. Send it there."
            raise RequestError(message, param=f"{IN_SAMPLING}.{name}")
        del known[name]
    options: SamplingOptions = typed_at(known, SamplingOptions, IN_SAMPLING)
    try:
        check(options)
    except RequestError as error:
        error.param = f"{IN_SAMPLING}.{error.param}"
        raise
    return options


def _structured(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The form of vLLM's `structured_outputs` that a request has. Raises RequestError."""
    known = {name: value for name, value in given.items() if name not in STRUCTURED_IGNORED}
    for name in ("disable_any_whitespace", "disable_additional_properties"):
        if known.pop(name, None):
            param = f"{IN_SAMPLING}.{_STRUCTURED}.{name}"
            raise RequestError(f"'{param}' is chosen by the engine. Leave it out.", param=param)
    return known if any(value not in _EMPTY for value in known.values()) else None
