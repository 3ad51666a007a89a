"""Messages made of events, streamed and whole, and what Anthropic's own SDK makes of a stream."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import httpx2
from anthropic import Anthropic

from antiphon.apis.envelope import Envelope, RenderedPrompt
from antiphon.apis.framing import frame
from antiphon.apis.messages.accept import AcceptedMessage, MessageContext, accept
from antiphon.apis.messages.answer import MessageBuilder
from antiphon.apis.messages.presentation import Presentation
from antiphon.apis.messages.schema import CreateMessage
from antiphon.apis.messages.stream import MessageStream
from antiphon.apis.messages.tools import requested_tools
from antiphon.apis.wire import decode
from antiphon.core.accumulator import Accumulator
from antiphon.core.events import Event
from antiphon.core.items import Item
from antiphon.toolkits.registry import built_in
from antiphon.tools.discovery import NO_FUNCTIONS
from tests.acting import hosts_for
from tests.openai_schema import validate
from tests.response_invariants import read_events
from tests.server import NO_TLS

ANTHROPIC = "anthropic"
"""The document of Anthropic's API that `llm-comply` carries."""
ENVELOPE = Envelope("msg_1", "org/m\"odel'é", 1_700_000_000, (RenderedPrompt("Hi", (5, 6)),))
ALL = Presentation(max_tokens=1000)
_EVENTS = {
    "message_start": "MessageStartEvent",
    "content_block_start": "ContentBlockStartEvent",
    "content_block_delta": "ContentBlockDeltaEvent",
    "content_block_stop": "ContentBlockStopEvent",
    "message_delta": "MessageDeltaEvent",
    "message_stop": "MessageStopEvent",
    "error": "ErrorResponse",
}


def seal(text: str) -> str:
    return f"sealed:{text}"


def unseal(text: str) -> str | None:
    return text.removeprefix("sealed:") if text.startswith("sealed:") else None


def request(messages: Any = "Hi", **fields: Any) -> dict[str, Any]:
    """A request; a text is what the user says."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return {"model": "scripted", "max_tokens": 1000, "messages": messages, **fields}


def accepted(
    messages: Any = "Hi",
    context: MessageContext = MessageContext("", unseal=unseal, views=built_in().message_views),  # noqa: B008 (frozen)
    **fields: Any,
) -> AcceptedMessage:
    """What a request asks for, of a server that runs no tools but those that the context has."""
    wanted = decode(json.dumps(request(messages, **fields)).encode(), CreateMessage)
    if not context.hosts.functions:
        hosts_for(
            NO_FUNCTIONS, requested_tools(wanted.tools, wanted.mcp_servers, (), built_in().message_views)
        )
    return accept(wanted, context)


def items(messages: Any, **fields: Any) -> tuple[Item, ...]:
    """The conversation of a request."""
    return accepted(messages, **fields).turn.items


def streamed(
    events: Sequence[Event],
    presentation: Presentation = ALL,
    *,
    batch: int = 1,
    envelope: Envelope = ENVELOPE,
) -> list[bytes]:
    """The payloads of the stream, each checked."""
    stream, numbered = MessageStream(envelope, presentation, seal), Accumulator().extend(events)
    payloads = stream.begin()
    for start in range(0, len(events), batch):
        payloads += stream.push(0, numbered[start : start + batch])
    return read_events(b"".join(payloads + stream.finish()))


def answered(
    events: Sequence[Event], presentation: Presentation = ALL, envelope: Envelope = ENVELOPE
) -> dict[str, Any]:
    """The body of the full answer."""
    builder = MessageBuilder(envelope, presentation, seal)
    assert builder.push(0, Accumulator().extend(events)) == []
    body: dict[str, Any] = json.loads(builder.body())
    return body


def check_stream(payloads: Iterable[bytes], *, valid: bool = True) -> list[dict[str, Any]]:
    """The events of a stream, in Anthropic's order; each as the document has it, if that shall be checked."""
    events = [json.loads(payload) for payload in payloads]
    open_, next_ = False, 0
    for event in events:
        type_ = event["type"]
        if valid:
            validate(_EVENTS[type_], event, ANTHROPIC)
        if type_ == "content_block_start":
            assert (open_, event["index"]) == (False, next_)
            open_ = True
        elif type_ == "content_block_delta":
            assert (open_, event["index"]) == (True, next_)
        elif type_ == "content_block_stop":
            assert (open_, event["index"]) == (True, next_)
            open_, next_ = False, next_ + 1
    assert not open_
    assert events[0]["type"] == "message_start"
    middle = {event["type"] for event in events[1:-2]}
    assert middle <= {"content_block_start", "content_block_delta", "content_block_stop"}
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    return events


def sdk(body: bytes) -> Anthropic:
    """A client whose server answers this stream."""

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body)

    # Without TLS: each client would read all certificates of the system first.
    http = httpx2.Client(transport=httpx2.MockTransport(answer), verify=NO_TLS)
    return Anthropic(api_key="k", base_url="http://test", http_client=http, max_retries=0)


def accumulated(payloads: Sequence[bytes]) -> dict[str, Any]:
    """The message that Anthropic's SDK makes of a stream."""
    messages = [{"role": "user", "content": "Hi"}]
    client = sdk(frame(payloads))
    with client, client.messages.stream(model="m", max_tokens=9, messages=messages) as stream:
        return stream.get_final_message().to_dict(mode="json")


def essence(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without what only bodies have, or only SDKs."""
    content = [{k: v for k, v in block.items() if k != "parsed_output"} for block in message["content"]]
    return {k: v for k, v in message.items() if k not in ("unmet", "generations", "notes")} | {
        "content": content
    }
