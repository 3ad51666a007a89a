"""Notes on what a request has that has no effect here, so that nothing is passed over in silence.

Tools have theirs in `tools.py`. What would make the answer wrong is refused instead: see `accept.py`.
"""

from collections.abc import Iterator, Mapping

from antiphon.apis.messages.schema import CountTokens
from antiphon.core.hosts import Note

WITHOUT_EFFECT: Mapping[str, str] = {
    "fallback_credit_token": "Nothing is charged.",
    "fallbacks": "If a model declines, no other model answers in its place.",
    "inference_geo": "Answers are computed where this server and its engines run.",
}
"""Parameter → what happens instead."""
_BUDGET = "The model is not told of it. Use 'max_tokens', and the thinking's 'budget_tokens'."
_BINDING = "Reasoning that another server has signed is shown by its text; a changed signature is refused."


def parameter_notes(request: CountTokens) -> Iterator[Note]:
    """Notes on parameters of a request."""
    for name, instead in WITHOUT_EFFECT.items():
        if getattr(request, name):
            yield _note(name, instead)
    if request.output_config is not None and request.output_config.task_budget:
        yield _note("output_config.task_budget", _BUDGET)
    if request.thinking is not None and request.thinking.block_binding:
        yield _note("thinking.block_binding", _BINDING)


def _note(param: str, instead: str) -> Note:
    return Note(param, f"'{param}' has no effect on this server. {instead}")
