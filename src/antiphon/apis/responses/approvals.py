"""Calls that a client has to approve: the requests, and their answers.

The id of an `mcp_approval_request` is signed: it proves that this server asked this owner about this very
call, of this tool, with these arguments, on this server. Clients may keep the item themselves, so nothing
else in it is trusted. The store ensures that a request is answered only once (`AnsweredApproval`).
"""

import time
from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec import Struct

from antiphon.apis.request_object import RequestObject
from antiphon.apis.responses.kinds import KINDS
from antiphon.apis.responses.output.item import ItemPosition, OpenItem
from antiphon.apis.responses.presenters.presenter import output_item
from antiphon.apis.responses.tools import Toolbox
from antiphon.apis.sealing import Signer
from antiphon.core import items
from antiphon.core.items import FunctionCall, Item
from antiphon.core.plain_tokens import SequenceNumbers
from antiphon.core.turn import Function, Hosted

REQUEST = "mcp_approval_request"
RESPONSE = "mcp_approval_response"
LIFETIME = 30 * 24 * 60 * 60
"""Seconds for which a request can be answered."""
MAX_REASON = 2000

_PREFIX = f"{KINDS[REQUEST].prefix}_"
_TIME, _NONCE = 8, 16  # hexadecimal digits
_DENIED = "The user did not approve this call. Do not repeat it; continue without it."
_OPEN = "The user has not decided about this call. It was not run."
_OUTCOME_UNKNOWN = "The user approved this call, but it is not known whether it was run."


class AnsweredApproval(Struct, frozen=True):
    """A request that a client answers now, the place of the answer, and its deadline."""

    id: str
    where: str
    until: float


class ConversationApprovals(Struct, frozen=True):
    """The approvals of a conversation: request id → items for the model; calls to run; new answers."""

    shown: Mapping[str, tuple[Item, ...]] = {}
    approved: tuple[FunctionCall, ...] = ()
    answered: tuple[AnsweredApproval, ...] = ()


class ApprovalRequestItem(Struct, tag_field="type", tag=REQUEST):
    """A call that needs the client's approval."""

    id: str
    server_label: str
    name: str
    arguments: str


class OpenApproval(OpenItem):
    """A call that is not run before the client has approved it. It is shown when it is complete."""

    def __init__(
        self,
        numbers: SequenceNumbers,
        position: ItemPosition,
        hosted: Hosted,
        created_at: int,
        signer: Signer,
    ) -> None:
        super().__init__(numbers, position)
        self._hosted = hosted
        self._created_at = created_at
        self._signer = signer

    def start(self) -> list[bytes]:
        """Its id is not known yet."""
        return []

    def item(self, status: str) -> ApprovalRequestItem:
        """The request. It has no status."""
        return ApprovalRequestItem(self.position.id, self._hosted.server, self._hosted.action, self.text)

    def end(self, item: items.Item) -> list[bytes]:
        """All arguments, and the id, which is signed for them."""
        assert isinstance(item, FunctionCall)
        self.text = item.arguments
        nonce = f"{self._created_at:0{_TIME}x}" + self.position.id.rpartition("_")[2][:_NONCE]
        signature = self._signer.sign(_signed_text(nonce, self._hosted, self.text))
        self.position = ItemPosition(f"{_PREFIX}{nonce}{signature}", self.position.output_index)
        return [self.added()]


def _signed_text(nonce: str, hosted: Hosted, arguments: str) -> str:
    settings = hosted.settings
    server = [settings.get("server_url"), settings.get("connector_id"), hosted.label]
    return msgspec.json.encode([nonce, *server, hosted.action, arguments]).decode()


def approvals(
    history: Iterable[RequestObject], given: Iterable[RequestObject], tools: Toolbox, signer: Signer
) -> ConversationApprovals:
    """The approvals of a conversation. Raises RequestError for an invalid answer."""
    before, new = [*history], [*given]
    requests = {_id(item): item for item in (*before, *new) if item.value["type"] == REQUEST}
    run = {
        item.value.get("approval_request_id") for item in (*before, *new) if item.value["type"] == "mcp_call"
    }
    decided = {_answers(item): item for item in before if item.value["type"] == RESPONSE}
    shown: dict[str, tuple[Item, ...]] = {}
    approved, answered = [], []
    for item in new:
        if item.value["type"] != RESPONSE:
            continue
        id_ = _answers(item)
        if id_ in run and id_ in requests and id_ not in decided:
            decided[id_] = item  # the client repeats the whole conversation
            continue
        if id_ in decided or id_ in run:
            raise item.wrong("approval_request_id", "This request was answered before. Leave the answer out.")
        if id_ not in requests:
            raise item.wrong("approval_request_id", "The conversation has no such request. Send it, too.")
        decided[id_] = item
        function = _checked(requests[id_], item, tools, signer)
        answered.append(
            AnsweredApproval(id_, item.place("approval_request_id"), _requested_at(id_) + LIFETIME)
        )
        call = _call(requests[id_], function.name)
        if item.flag_or_none("approve"):
            approved.append(call)
            shown[id_] = (call,)
    for id_, request in requests.items():
        if id_ not in shown and id_ not in run:
            shown[id_] = tuple(_call_not_run(request, decided.get(id_), tools))
    return ConversationApprovals(shown, tuple(approved), tuple(answered))


def _checked(request: RequestObject, answer: RequestObject, tools: Toolbox, signer: Signer) -> Function:
    """The function that a request is about. Raises RequestError if this server did not make it so."""
    function = _function(request, tools)
    if function is None or function.hosted is None:
        message = "Its server, or its tool, is not among the tools of this request. Offer it as before."
        raise answer.wrong("approval_request_id", message)
    id_ = _id(request)
    nonce, signature = (
        id_.removeprefix(_PREFIX)[: _TIME + _NONCE],
        id_.removeprefix(_PREFIX)[_TIME + _NONCE :],
    )
    text = _signed_text(nonce, function.hosted, request.text("arguments"))
    if not signer.signed(text, signature):
        message = "This server has not asked this of you: of this tool, with these arguments, on this server."
        raise answer.wrong("approval_request_id", message)
    if _requested_at(id_) + LIFETIME < time.time():
        raise answer.wrong("approval_request_id", "It is too old. Let the model call the tool again.")
    if answer.flag_or_none("approve") is None:
        raise answer.missing("approve")
    return function


def _call_not_run(request: RequestObject, answer: RequestObject | None, tools: Toolbox) -> Iterator[Item]:
    """A call that was not run, and why."""
    function = _function(request, tools)
    yield _call(request, function.name if function else request.text("name"))
    if answer is None:
        why = _OPEN
    elif answer.value.get("approve"):
        why = _OUTCOME_UNKNOWN
    else:
        reason = answer.text_or_none("reason")
        why = f"{_DENIED} The reason: {reason[:MAX_REASON]}" if reason else _DENIED
    yield output_item(_id(request), why)


def _function(request: RequestObject, tools: Toolbox) -> Function | None:
    label, name = request.text("server_label"), request.text("name")
    for function in tools.functions:
        hosted = function.hosted
        if hosted and hosted.label == label and hosted.action == name:
            return function
    return None


def _call(request: RequestObject, name: str) -> FunctionCall:
    return FunctionCall(_id(request), name, request.text("arguments"), hosted=True)


def _requested_at(id_: str) -> int:
    """When a request whose signature is right was made."""
    return int(id_.removeprefix(_PREFIX)[:_TIME], 16)


def _id(item: RequestObject) -> str:
    return item.text("id")


def _answers(item: RequestObject) -> str:
    return item.text("approval_request_id")


def is_approved(call_id: str) -> bool:
    """Whether the client has approved this call: such calls have the ids of their requests."""
    return call_id.startswith(_PREFIX)
