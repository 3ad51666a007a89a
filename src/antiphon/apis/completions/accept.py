"""Completion request → one turn for each prompt. Every error names the parameter."""

from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from antiphon.apis.completions.errors import PARAMETERS
from antiphon.apis.completions.schema import CompletionRequest
from antiphon.apis.envelope import DEFAULT_PRESENTATION, PresentationOptions, shared_presentation
from antiphon.apis.formats import answer_format
from antiphon.apis.request import MAX_CHOICES
from antiphon.apis.sampling import check, copies, ids_parameter, sampling, stops, token_limit
from antiphon.core.errors import RequestError
from antiphon.core.turn import Turn

DEFAULT_MAX_TOKENS = 16
"""Tokens of a completion, if the client sets no limit: as OpenAI has it."""

Prompt = str | tuple[int, ...]


class ChoiceLayout(Struct, frozen=True):
    """How the completions of several prompts are arranged.

    Each prompt has `best_of` completions, of which the best `n` are shown. With `echo` each begins with its
    prompt.
    """

    prompts: int
    best_of: int
    n: int
    echo: bool = False


class AcceptedCompletion(Struct, frozen=True):
    """A request that can be answered: a turn for each prompt, and how to present the answers.

    The choices of the first turn come first: `index = prompt * layout.best_of + choice`.
    """

    turns: tuple[Turn, ...]
    layout: ChoiceLayout
    presentation: PresentationOptions = DEFAULT_PRESENTATION
    request_id: str | None = None


def accept(
    request: CompletionRequest, owner: str, defaults: PresentationOptions = DEFAULT_PRESENTATION
) -> AcceptedCompletion:
    """The turns for a request of `owner`; `defaults` is the server's presentation. Raises RequestError."""
    check(request)
    prompts = _prompts(request.prompt)
    layout = _layout(request, len(prompts))
    if request.max_tokens == 0:
        message = "A completion has at least one token. Use at least 1, or -1 for what there is room for."
        raise RequestError(message, param="max_tokens")
    max_tokens = token_limit(DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens)
    # The best are found by their log probabilities, whether these are shown or not.
    logprobs = 0 if request.logprobs is None and layout.best_of > layout.n else request.logprobs
    sampling_ = sampling(request, max_tokens=max_tokens, logprobs=logprobs)
    if layout.echo and request.logprobs is not None and sampling_.prompt_logprobs is None:
        sampling_ = replace(sampling_, prompt_logprobs=request.logprobs)
    format_source, format_ = answer_format(request)
    turn = Turn(
        model=request.model,
        format=format_,
        sampling=sampling_,
        stop=stops(request),
        stop_shown=bool(request.include_stop_str_in_output),
        choices=layout.best_of,
        copies=copies(request),
        token_ids=ids_parameter(request, request.logprobs),
        prompt_limit=request.truncate_prompt_tokens,
        suffix=_suffix(request),
        owner=owner,
        parameters=PARAMETERS | {"format": format_source},
    )
    turns = tuple(replace(turn, prompt=prompt) for prompt in prompts)
    return AcceptedCompletion(
        turns, layout, shared_presentation(request, defaults, request.logprobs), request.request_id
    )


def _suffix(request: CompletionRequest) -> str | None:
    """The text after the gap that the completion fills."""
    if request.suffix is None or request.suffix == "":
        return None
    for param in ("echo", "truncate_prompt_tokens"):
        if getattr(request, param):
            message = "A completion with a 'suffix' is the text between the two. Leave it out."
            raise RequestError(message, param=param)
    return request.suffix


def _layout(request: CompletionRequest, prompts: int) -> ChoiceLayout:
    n = request.n or 1
    best_of = request.best_of or n
    if best_of < n:
        raise RequestError(f"'best_of' must be at least 'n', which is {n}.", param="best_of")
    if best_of > n and request.stream:
        message = "The best of several completions is known only at the end: it cannot be streamed."
        raise RequestError(message, param="best_of")
    if prompts * best_of > MAX_CHOICES:
        message = (
            f"These are {prompts * best_of} completions; at most {MAX_CHOICES} are allowed in one request."
        )
        raise RequestError(message, param="best_of" if request.best_of else "n")
    return ChoiceLayout(prompts, best_of, n, bool(request.echo))


def _prompts(prompt: str | list[str | int | list[int]]) -> tuple[Prompt, ...]:
    """The prompts, in any of four forms."""
    if isinstance(prompt, str):
        return (prompt,)
    kinds = {type(part) for part in prompt}
    if len(kinds) > 1:
        message = "A list of prompts holds texts, token ids, or lists of token ids: not some of each."
        raise RequestError(message, param="prompt")
    if kinds == {int}:
        return (tuple(cast("list[int]", prompt)),)
    return tuple(_prompt(part, index) for index, part in enumerate(cast("list[str | list[int]]", prompt)))


def _prompt(part: str | list[int], index: int) -> Prompt:
    if isinstance(part, str):
        return part
    if not part:
        raise RequestError("A prompt of token ids needs at least one id.", param=f"prompt[{index}]")
    return tuple(part)
