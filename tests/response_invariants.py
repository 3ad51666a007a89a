"""What every stream of a response keeps, whatever the model, the client and the transport: `check` proves it.

The checker follows a stream as the strictest client would: it rebuilds the items
from their events, and compares what it rebuilt with what the events say is whole.
"""

import json
from collections.abc import Iterable
from typing import Any

Event = dict[str, Any]

TERMINAL = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    "cancelled": "response.incomplete",  # there is no event for it
}
_REASONING = ("reasoning_text", "reasoning")  # OpenAI's name for raw thoughts, and Open Responses'
_PARTS = {
    # begins: (ends, the item's field, the index's name)
    "response.content_part.added": ("response.content_part.done", "content", "content_index"),
    "response.reasoning_summary_part.added": (
        "response.reasoning_summary_part.done",
        "summary",
        "summary_index",
    ),
}
_TEXTS = {
    # delta: (done, the part's type, the index's name)
    "response.output_text.delta": ("response.output_text.done", "output_text", "content_index"),
    "response.reasoning_summary_text.delta": (
        "response.reasoning_summary_text.done",
        "summary_text",
        "summary_index",
    ),
} | {
    f"response.{name}.delta": (f"response.{name}.done", "reasoning_text", "content_index")
    for name in _REASONING
}
_FIELDS = {
    # delta: (done, the item's type, its field)
    "response.function_call_arguments.delta": (
        "response.function_call_arguments.done",
        "function_call",
        "arguments",
    ),
    "response.custom_tool_call_input.delta": (
        "response.custom_tool_call_input.done",
        "custom_tool_call",
        "input",
    ),
}


def read_sse(body: bytes) -> list[bytes]:
    """The payloads of a stream. Every `event:` line equals its `type`, and the stream ends with `[DONE]`."""
    blocks = [block for block in body.split(b"\n\n") if block and not block.startswith(b":")]
    assert blocks, "an empty stream"
    assert blocks.pop() == b"data: [DONE]"
    payloads = []
    for block in blocks:
        name, data = block.split(b"\n")
        assert name.startswith(b"event: ")
        assert data.startswith(b"data: ")
        payloads.append(data.removeprefix(b"data: "))
        assert json.loads(payloads[-1])["type"].encode() == name.removeprefix(b"event: ")
    return payloads


def check(payloads: Iterable[bytes], *, after: int = -1) -> Event:
    """Check a whole stream, and return the final response.

    With `after`, the stream is the rest behind this sequence number, and only
    its numbers and its end are checked.
    """
    events = [json.loads(payload) for payload in payloads]
    numbers = [event["sequence_number"] for event in events]
    assert numbers == list(range(after + 1, after + 1 + len(events))), "sequence numbers have gaps"
    for event, payload in zip(events, payloads, strict=True):
        assert list(event)[:2] == ["type", "sequence_number"], payload
    follower = _Follower()
    last = _last(events)
    if after < 0:
        _check_beginning(events)
        for event in events:
            follower.follow(event)
        follower.check_end(last)
    return last


def _check_beginning(events: list[Event]) -> None:
    types = [event["type"] for event in events]
    assert types[0] == "response.created"
    assert types.count("response.created") == 1
    ids = {event["response"]["id"] for event in events if "response" in event}
    assert len(ids) == 1, "the response changes its id"
    if "response.queued" in types:
        assert types[1] == "response.queued"
        assert events[0]["response"]["status"] == events[1]["response"]["status"] == "queued"


def _last(events: list[Event]) -> Event:
    """The response of the terminal event, of which there is one, at the end."""
    response: Event = events[-1]["response"]
    assert events[-1]["type"] == TERMINAL[response["status"]]
    assert sum(event["type"] in TERMINAL.values() for event in events) == 1
    assert (response["error"] is not None) == (response["status"] == "failed")
    assert (response["incomplete_details"] is not None) == (response["status"] == "incomplete")
    assert (response["completed_at"] is not None) == (response["status"] == "completed")
    if response["status"] == "failed":
        assert events[-2]["type"] == "error"
    return response


class _Follower:
    """Rebuilds the items of a stream."""

    def __init__(self) -> None:
        self.done: list[Event] = []
        self.item: Event | None = None  # the one that is open
        self.part: Event | None = None
        self.whole: set[str] = set()  # the done events that the open item had

    def follow(self, event: Event) -> None:
        type_ = event["type"]
        if type_ == "response.output_item.added":
            self._add(event)
        elif type_ == "response.output_item.done":
            self._finish(event)
        elif type_ in _PARTS:
            self._add_part(event, *_PARTS[type_][1:])
        elif type_ in {ends for ends, *_ in _PARTS.values()}:
            self._finish_part(event)
        elif type_ in _TEXTS:
            self._add_text(event, *_TEXTS[type_])
        elif type_ in _FIELDS:
            self._add_to_field(event, *_FIELDS[type_])
        elif type_.endswith(".done"):
            self._check_done(event)
        else:
            assert "response" in event or type_ == "error", f"an unknown event: {type_}"

    def check_end(self, response: Event) -> None:
        assert self.item is None, "an item never ended"
        assert response["output"] == self.done, "the final items are not the streamed ones"
        statuses = [item.get("status") for item in self.done]
        assert "in_progress" not in statuses
        assert "incomplete" not in statuses[:-1], "an incomplete item is not the last"
        if "incomplete" in statuses:
            assert response["status"] != "completed"
        ids = [item["id"] for item in self.done]
        assert len(set(ids)) == len(ids)

    def _add(self, event: Event) -> None:
        assert self.item is None, "items overlap"
        assert event["output_index"] == len(self.done)
        self.item, self.part = event["item"], None
        self.whole = set()

    def _finish(self, event: Event) -> None:
        assert self.item is not None
        assert event["output_index"] == len(self.done)
        assert self.part is None, "a part never ended"
        final = event["item"]
        for name in ("id", "type", "role", "call_id", "name", "namespace", "phase"):
            assert final.get(name) == self.item.get(name), f"{name} changed"
        for name in ("content", "summary", "arguments", "input"):
            assert final.get(name) == self.item.get(name), f"{name} is not what was streamed"
        for done, type_, _ in _FIELDS.values():
            assert type_ != final["type"] or done in self.whole, f"no {done}"
        self.done.append(final)
        self.item = None

    def _add_part(self, event: Event, field: str, index: str) -> None:
        self._check_place(event)
        assert self.item is not None
        assert self.part is None, "parts overlap"
        parts = self.item[field]
        assert event[index] == len(parts)
        self.part = event["part"]
        assert self.part is not None
        assert self.part["text"] == ""
        parts.append(self.part)

    def _finish_part(self, event: Event) -> None:
        self._check_place(event)
        assert event["part"] == self.part
        assert self.part is not None
        text_done = {done for done, type_, _ in _TEXTS.values() if type_ == self.part["type"]}
        assert text_done & self.whole, "the text of the part was not done"
        self.whole -= text_done
        self.part = None

    def _add_text(self, event: Event, done: str, type_: str, index: str) -> None:
        self._check_place(event)
        assert self.part is not None
        assert self.part["type"] == type_
        assert event[index] == 0
        assert done not in self.whole, "a delta after the end"
        self.part["text"] += event["delta"]
        if type_ == "output_text":
            self.part["logprobs"] += event["logprobs"]

    def _add_to_field(self, event: Event, done: str, type_: str, field: str) -> None:
        self._check_place(event)
        assert self.item is not None
        assert self.item["type"] == type_
        assert done not in self.whole, "a delta after the end"
        self.item[field] += event["delta"]

    def _check_done(self, event: Event) -> None:
        """What is said to be whole is what was streamed."""
        self._check_place(event)
        assert self.item is not None
        self.whole.add(event["type"])
        known = self.part if self.part is not None else self.item
        for name in ("text", "arguments", "input", "logprobs", "name"):
            if name in event:
                assert event[name] == known[name], f"{name} is not what was streamed"

    def _check_place(self, event: Event) -> None:
        assert self.item is not None, f"{event['type']} outside of an item"
        assert (event["item_id"], event["output_index"]) == (self.item["id"], len(self.done))
