"""The parameters of a request for sampling, length and stop strings."""

from typing import Any

from msgspec.structs import replace

from antiphon.apis.fields import refuse
from antiphon.apis.request import Request, SamplingParams
from antiphon.core.errors import RequestError
from antiphon.core.turn import Sampling


def check(request: Request) -> None:
    """Refuse what no API can do, and what contradicts itself. Raises RequestError."""
    refuse(request)
    if request.stream_options is not None and not request.stream:
        raise RequestError("'stream_options' is only allowed with 'stream': true.", param="stream_options")
    if request.prompt_logprobs is not None and request.stream:
        raise RequestError("'prompt_logprobs' is not available in streams.", param="prompt_logprobs")
    if request.skip_special_tokens is False:
        message = "Special tokens are never part of an answer. Use 'return_token_ids'."
        raise RequestError(message, param="skip_special_tokens")
    if request.truncation_side not in (None, "left"):
        message = "Prompts are cut at their beginning only. Use 'left'."
        raise RequestError(message, param="truncation_side")
    if request.truncate_prompt_tokens == 0:
        message = "A prompt cannot be cut to nothing. Use at least 1, or -1 for the model's context."
        raise RequestError(message, param="truncate_prompt_tokens")


def shared_sampling(request: SamplingParams, *, max_tokens: int | None, logprobs: int | None) -> Sampling:
    """How tokens are drawn. `logprobs` is how many alternatives are wanted, None for no log probabilities."""
    if request.min_tokens and max_tokens is not None and request.min_tokens > max_tokens:
        message = f"'min_tokens' is {request.min_tokens}, more than the {max_tokens} that are allowed."
        raise RequestError(message, param="min_tokens")
    return Sampling(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=-1 if request.top_k == 0 else request.top_k,
        min_p=request.min_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=request.logit_bias or {},
        seed=request.seed,
        max_tokens=max_tokens,
        min_tokens=request.min_tokens or None,
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=request.ignore_eos or None,
        bad_words=tuple(request.bad_words or ()),
        logprobs=logprobs,
        priority=request.priority,
        cache_salt=request.cache_salt or None,
    )


def sampling(request: Request, *, max_tokens: int | None, logprobs: int | None) -> Sampling:
    """The same, with what only OpenAI's older APIs have."""
    return replace(
        shared_sampling(request, max_tokens=max_tokens, logprobs=logprobs),
        prompt_logprobs=request.prompt_logprobs,
        beam_width=(request.n or 1) if request.use_beam_search else None,
        length_penalty=request.length_penalty,
    )


def stops(request: SamplingParams) -> tuple[str, ...]:
    """The strings that end an answer."""
    return (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())


def variables(effort: str | None, verbosity: str | None) -> dict[str, Any]:
    """The variables of a chat template for reasoning effort and verbosity."""
    values: dict[str, Any] = {}
    if effort is not None:
        # Templates ask for the effort, or in either of two ways whether to reason, if they ask at all.
        reasons = effort != "none"
        values = {"reasoning_effort": effort, "enable_thinking": reasons, "thinking": reasons}
    return values if verbosity is None else {**values, "verbosity": verbosity}
