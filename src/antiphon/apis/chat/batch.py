"""Several conversations in one request, with one answer to each."""

from msgspec import Struct

from antiphon.apis.chat.accept import NO_DEFAULTS, ServerDefaults, accept_messages
from antiphon.apis.chat.schema import BatchRequest
from antiphon.apis.envelope import PresentationOptions
from antiphon.core.errors import RequestError
from antiphon.core.turn import Turn

_NOT_IN_BATCHES = ("stream", "echo", "store", "return_prompt_text", "use_beam_search")


class AcceptedBatch(Struct, frozen=True):
    """Requests that can be answered: the choices of the answer are those of the turns, in their order."""

    turns: tuple[Turn, ...]
    presentation: PresentationOptions
    repairs: tuple[str, ...] = ()
    request_id: str | None = None


def accept_batch(request: BatchRequest, owner: str, defaults: ServerDefaults = NO_DEFAULTS) -> AcceptedBatch:
    """What the request asks for, on behalf of `owner`. Raises RequestError."""
    for name in _NOT_IN_BATCHES:
        if getattr(request, name):
            raise RequestError(f"'{name}' is not available in batches. Leave it out.", param=name)
    if request.n not in (None, 1):
        raise RequestError("In a batch each conversation has one answer. Leave out 'n'.", param="n")
    accepted = [
        accept_messages(request, messages, f"messages[{index}]", owner, defaults)
        for index, messages in enumerate(request.messages)
    ]
    return AcceptedBatch(
        turns=tuple(one.turn for one in accepted),
        presentation=accepted[0].presentation,
        repairs=tuple(what for one in accepted for what in one.repairs),
        request_id=request.request_id,
    )
