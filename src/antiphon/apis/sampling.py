"""The parameters of a request for sampling, length and stop strings."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from antiphon.apis.request import Count, Request, SampledFields, SamplingParams, ScaledAdapter
from antiphon.core.errors import RequestError
from antiphon.core.turn import Adapter, Sampling

T = TypeVar("T")


def check(request: SamplingParams) -> None:
    """Refuse unsupported parameters and contradictions, for all APIs. Raises RequestError."""
    if request.truncation_side not in (None, "left"):
        message = "Prompts are cut at their beginning only. Use 'left'."
        raise RequestError(message, param="truncation_side")
    if request.truncate_prompt_tokens == 0:
        message = "A prompt cannot be cut to nothing. Use at least 1, or -1 for the model's context."
        raise RequestError(message, param="truncate_prompt_tokens")
    if request.kv_transfer_params and request.kv_transfer_params.get("do_remote_decode"):
        _check_remote(request)
    if not isinstance(request, Request):
        return
    if request.stream_options is not None and not request.stream:
        raise RequestError("'stream_options' is only allowed with 'stream': true.", param="stream_options")
    if request.prompt_logprobs is not None and request.stream:
        raise RequestError(
            "'prompt_logprobs' is not available in streams. Leave it out, or set 'stream' to false.",
            param="prompt_logprobs",
        )


def ids_parameter(request: Request, logprobs: int | None) -> str:
    """The parameter that requests the ids of tokens, if one does."""
    if request.return_token_ids:
        return "return_token_ids"
    named = request.return_tokens_as_token_ids and logprobs is not None
    return "return_tokens_as_token_ids" if named else ""


def copies(request: Request) -> int:
    """How often an answer of an API without items holds each log probability: a full one is built first."""
    return 1 if request.stream else 2


def _check_remote(request: SamplingParams) -> None:
    """Refuse remote prefill if the answer cannot return its parameters: only full ones of two APIs can."""
    if not isinstance(request, Request) or request.stream:
        message = (
            "'do_remote_decode' is available in Chat Completions and Completions only, and not in streams: "
            "the full answer has 'kv_transfer_params'."
        )
        raise RequestError(message, param="kv_transfer_params")


def token_limit(limit: int | None) -> int | None:
    """The most tokens of an answer. None is no limit, which requests also write as 0 or -1."""
    return None if limit in (0, -1) else limit


_SHARED_FIELDS = SampledFields.__struct_fields__


def shared_sampling(request: SamplingParams, *, max_tokens: int | None, logprobs: int | None) -> Sampling:
    """The sampling parameters. `logprobs` is the number of alternatives, None for no log probabilities."""
    if request.min_tokens and max_tokens is not None and request.min_tokens > max_tokens:
        message = f"'min_tokens' is {request.min_tokens}, more than the {max_tokens} that are allowed."
        raise RequestError(message, param="min_tokens")
    given = {name: value for name in _SHARED_FIELDS if (value := getattr(request, name)) is not None}
    given |= _dynamic_temperature(request)
    for name in _READ.keys() & given.keys():
        given[name] = _READ[name](given[name])
    return Sampling(max_tokens=max_tokens, logprobs=logprobs, lora=adapters(request.lora), **given)


def adapters(lora: Sequence[ScaledAdapter] | None) -> tuple[Adapter, ...] | None:
    """The adapters that a request names. Raises RequestError."""
    if lora is None:
        return None
    read: list[Adapter] = []
    for index, entry in enumerate(lora):
        name = entry.name if entry.id is None else entry.id
        if name is None or None not in (entry.name, entry.id):
            message = f"'lora[{index}]' must say which adapter it is: by 'id' or by 'name', one of both."
            raise RequestError(message, param="lora")
        read.append(Adapter(name, entry.scale))
    return (*read,)


def _dynamic_temperature(request: SamplingParams) -> dict[str, float]:
    """The temperature and its range, if the request has its bounds, as TabbyAPI's clients write them.

    Equal ones mean that the temperature is not dynamic. Raises RequestError.
    """
    low = 1.0 if request.min_temp is None else request.min_temp
    high = 1.0 if request.max_temp is None else request.max_temp
    if low == high:
        return {}
    if low > high:
        message = f"'min_temp' is {low}, more than 'max_temp', which is {high}."
        raise RequestError(message, param="max_temp" if request.min_temp is None else "min_temp")
    if request.dynatemp_range is not None:
        message = "'dynatemp_range' cannot be combined with 'min_temp' and 'max_temp'. Leave it out."
        raise RequestError(message, param="dynatemp_range")
    return {"temperature": (low + high) / 2, "dynatemp_range": (high - low) / 2}


def _listed(value: str | list[T] | None, name: str, type_: type[list[T]]) -> tuple[T, ...]:
    """A list, which may be given as text, with or without brackets. Raises RequestError."""
    if isinstance(value, str):
        text = value.strip()
        try:
            value = msgspec.json.decode(text if text.startswith("[") else f"[{text}]", type=type_)
        except (msgspec.DecodeError, RecursionError) as error:
            raise RequestError(f"'{name}' must be a list, or a text with a list.", param=name) from error
    return tuple(value or ())


def _names(value: str | list[str]) -> tuple[str, ...]:
    """Names, which may be one text with semicolons between them, as on llama-server's command line."""
    return _texts(value.split(";") if isinstance(value, str) else value)


def _texts(value: str | list[str] | None) -> tuple[str, ...]:
    """One text or several, without empty ones."""
    return tuple(text for text in ((value,) if isinstance(value, str) else value or ()) if text)


_READ: Mapping[str, Callable[[Any], Any]] = {
    "top_k": lambda count: count or -1,
    "banned_tokens": lambda value: _listed(value, "banned_tokens", list[Count]),
    "dry_sequence_breakers": lambda value: _listed(value, "dry_sequence_breakers", list[str]),
    "samplers": _names,
    "negative_prompt": lambda text: text or None,
    "min_tokens": lambda count: count or None,
    "stop_token_ids": tuple,
    "ignore_eos": lambda ignored: ignored or None,
    "token_healing": lambda wanted: wanted or None,
    "temperature_last": lambda wanted: wanted or None,
    "watermark": lambda wanted: wanted or None,
    "bad_words": _texts,
    "allowed_token_ids": tuple,
    "cache_salt": lambda salt: salt or None,
    "skip_special_tokens": lambda hidden: None if hidden else False,
}
"""Field → what its value, if it is set, means here."""


def sampling(request: Request, *, max_tokens: int | None, logprobs: int | None) -> Sampling:
    """The sampling parameters, with those of OpenAI's older APIs."""
    shared = shared_sampling(request, max_tokens=max_tokens, logprobs=logprobs)
    if request.prompt_logprobs is None and not request.use_beam_search:
        return shared
    width = (request.n or 1) if request.use_beam_search else None
    return replace(shared, prompt_logprobs=request.prompt_logprobs, beam_width=width)


def stops(request: SamplingParams) -> tuple[str, ...]:
    """The strings that end an answer."""
    return () if request.stop is None else _texts(request.stop)


def variables(effort: str | None, verbosity: str | None) -> dict[str, Any]:
    """The variables of a chat template for reasoning effort and verbosity."""
    values: dict[str, Any] = {}
    if effort is not None:
        # Templates ask for the effort, or in either of two ways whether to reason, if they ask at all.
        reasons = effort != "none"
        values = {"reasoning_effort": effort, "enable_thinking": reasons, "thinking": reasons}
    return values if verbosity is None else {**values, "verbosity": verbosity}
