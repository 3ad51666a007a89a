"""Notes on what a request has that has no effect here, so that nothing is passed over in silence.

Tools have theirs in `tools.py`. What would make the answer wrong is refused instead.
"""

from collections.abc import Iterable, Iterator, Mapping

from antiphon.apis.request_object import RequestObject
from antiphon.apis.responses.presenters.registry import Presenters
from antiphon.apis.responses.schema import CreateResponse
from antiphon.apis.responses.tools import NO_TOOLS
from antiphon.apis.sealing import is_sealed
from antiphon.core.hosts import Note

WITHOUT_EFFECT: Mapping[str, str] = {
    "access_programs": "Every model answers in one way, whoever asks.",
    "image": "The model gets images as they are, within the limits of the server.",
}
"""Parameter → what happens instead."""
_MODE = "There is one mode, in which the model answers as it does."
_CONTEXT = (
    "Whether the model is shown its earlier reasoning is up to its chat template. Some have a variable for "
    "it, which 'chat_template_kwargs' may set: 'preserve_thinking', 'clear_thinking'."
)
_CONTINUATION = "Responses continue others by 'previous_response_id'."
_COMPARISON = "It is not known why a prompt was not in the cache. 'usage' has the number of cached tokens."
_NO_RESULTS = "It has no results: the model does not see it."
_SEARCHES = ("file_search_call", "web_search_call")
"""Items that are shown to the model with their results only."""


def parameter_notes(request: CreateResponse) -> Iterator[Note]:
    """Notes on parameters of a request."""
    for name, instead in WITHOUT_EFFECT.items():
        if getattr(request, name):
            yield Note(name, f"'{name}' has no effect on this server. {instead}")
    options = request.background_options
    if options is not None and options.continuation_id:
        name = "background_options.continuation_id"
        yield Note(name, f"'{name}' has no effect on this server. {_CONTINUATION}")
    reasoning, caching = request.reasoning, request.prompt_cache_options
    if reasoning is not None and reasoning.mode not in (None, "standard"):
        yield Note("reasoning.mode", f"'reasoning.mode' has no effect on this server. {_MODE}")
    if reasoning is not None and reasoning.context not in (None, "auto"):
        yield Note("reasoning.context", f"'reasoning.context' has no effect on this server. {_CONTEXT}")
    if caching is not None and caching.comparison_response_id:
        yield Note("prompt_cache_options.comparison_response_id", _COMPARISON)


def item_notes(items: Iterable[RequestObject], presenters: Presenters) -> Iterator[Note]:
    """Notes on items of the input that the model does not see, or not whole."""
    for item in items:
        type_ = item.value["type"]
        if type_ == "reasoning":
            yield from _reasoning(item)
        elif type_ in _SEARCHES and not any(presenters.readers[type_].read(item, NO_TOOLS)):
            yield Note(item.where, _NO_RESULTS)


def _reasoning(item: RequestObject) -> Iterator[Note]:
    """A note on reasoning that only another server can read, or that is empty."""
    sealed = item.value.get("encrypted_content")
    if sealed is None or item.value.get("content") or is_sealed(sealed):
        return
    if sealed:
        message = "Another server has sealed it: the model does not see it."
        yield Note(item.place("encrypted_content"), message)
    elif not item.value.get("summary"):
        yield Note(item.place("encrypted_content"), "It is empty: there is nothing for the model to see.")
