"""Notes on what a request has that has no effect here, so that nothing is passed over in silence.

Tools have theirs in `tools.py`. What would make the answer wrong is refused instead: see `accept.py`.
"""

from collections.abc import Iterator, Mapping

from antiphon.apis.messages.schema import CountTokens
from antiphon.apis.request_object import RequestObject
from antiphon.core.hosts import Note

WITHOUT_EFFECT: Mapping[str, str] = {
    "diagnostics": "It is not known why a prompt was not in the cache. 'usage' has the cached tokens.",
    "fallback_credit_token": "Nothing is charged for.",
    "fallbacks": "No other model answers in the place of one that declines.",
    "inference_geo": "Answers are computed where this server and its engines run.",
}
"""Parameter → what happens instead."""
_BUDGET = "The model is not told of it. Use 'max_tokens', and the thinking's 'budget_tokens'."
_BINDING = "Reasoning that another server has signed is shown by its text; a changed signature is refused."
_EDITS = {
    "clear_tool_uses_20250919": "Results of tools stay in the prompt.",
    "clear_thinking_20251015": "Which reasoning stays in the prompt is up to the chat template.",
    "compact_20260112": "Conversations are not summarised in this API.",
}
"""Type of an edit of the conversation → what happens instead."""


def parameter_notes(request: CountTokens) -> Iterator[Note]:
    """Notes on parameters of a request. Raises RequestError for unknown edits of the conversation."""
    for name, instead in WITHOUT_EFFECT.items():
        if getattr(request, name):
            yield _note(name, instead)
    if request.output_config is not None and request.output_config.task_budget:
        yield _note("output_config.task_budget", _BUDGET)
    if request.thinking is not None and request.thinking.block_binding:
        yield _note("thinking.block_binding", _BINDING)
    if request.context_management is not None:
        yield from _edits(RequestObject(request.context_management, "context_management"))


def _edits(management: RequestObject) -> Iterator[Note]:
    for edit in management.objects("edits"):
        type_ = edit.text("type")
        if type_ not in _EDITS:
            raise edit.wrong("type", f"There is no such edit. Use one of: {', '.join(_EDITS)}.")
        if edit.value.get("keep") != "all":
            yield _note(edit.where, _EDITS[type_])


def _note(param: str, instead: str) -> Note:
    return Note(param, f"'{param}' has no effect on this server. {instead}")
