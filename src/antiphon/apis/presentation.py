"""The parameters of a request for how its answer is shown."""

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.apis.envelope import PresentationOptions, UsageReports
from antiphon.apis.request import Request

SERVICE_TIER = "default"
"""The one tier that there is, whichever was requested."""


def shared_presentation(
    request: Request, defaults: PresentationOptions, logprobs: int | None
) -> PresentationOptions:
    """What every request may change of the presentation that the server begins with."""
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
    )


def _usage(request: Request) -> UsageReports:
    options = request.stream_options
    if options is None or not options.include_usage:
        return UsageReports.NONE
    return UsageReports.EACH if options.continuous_usage_stats else UsageReports.LAST
