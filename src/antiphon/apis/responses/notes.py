"""Notes on what a request has that has no effect here, so that nothing is passed over in silence.

Tools have theirs in `tools.py`. What would make the answer wrong is refused instead.
"""

from collections.abc import Container, Iterable, Iterator, Mapping

from antiphon.apis.request_object import RequestObject
from antiphon.apis.responses.presenters.registry import Presenters
from antiphon.apis.responses.programs import PROGRAM
from antiphon.apis.responses.schema import CreateResponse
from antiphon.apis.responses.tools import NO_TOOLS
from antiphon.apis.sealing import is_sealed
from antiphon.core.hosts import Note

WITHOUT_EFFECT: Mapping[str, str] = {
    "access_programs": "A model answers all clients in the same way.",
    "image": "The model gets images as they are, within the limits of the server.",
}
"""Parameter → what happens instead."""
_MODE = "There is only one mode."
_CONTINUATION = "Responses continue others by 'previous_response_id'."
_OF_PROGRAM = "Its program is not in the conversation: the model sees this call as one of its own."
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
    reasoning = request.reasoning
    if reasoning is not None and reasoning.mode not in (None, "standard"):
        yield Note("reasoning.mode", f"'reasoning.mode' has no effect on this server. {_MODE}")


def item_notes(
    items: Iterable[RequestObject], history: Iterable[RequestObject], presenters: Presenters
) -> Iterator[Note]:
    """Notes on items of the input, after this history, that the model does not see, or not whole."""
    items = [*items]
    programs = {
        str(item.value.get("call_id")) for item in (*history, *items) if item.value["type"] == PROGRAM
    }
    for item in items:
        type_ = item.value["type"]
        if type_ == "reasoning":
            yield from _reasoning(item)
        elif _has_lost_program(item, programs):
            yield Note(item.place("caller"), _OF_PROGRAM)
        elif type_ in _SEARCHES and not any(presenters.readers[type_].read(item, NO_TOOLS)):
            yield Note(item.where, _NO_RESULTS)


def _has_lost_program(item: RequestObject, programs: Container[str]) -> bool:
    """Whether a program that is none of these has made the call."""
    caller = item.value.get("caller")
    if not isinstance(caller, dict) or caller.get("type") != PROGRAM:
        return False
    return str(caller.get("caller_id")) not in programs


def _reasoning(item: RequestObject) -> Iterator[Note]:
    """A note on reasoning that only another server can read, or that is empty."""
    sealed = item.value.get("encrypted_content")
    if sealed is None or item.value.get("content") or is_sealed(sealed):
        return
    if sealed:
        message = "Another server has encrypted it: the model does not see it."
        yield Note(item.place("encrypted_content"), message)
    elif not item.value.get("summary"):
        yield Note(item.place("encrypted_content"), "It is empty: there is nothing for the model to see.")
