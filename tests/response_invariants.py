"""The invariants of every stream of a response, for any model, client and transport: `check` verifies them.

The checker follows a stream as the strictest client would: it rebuilds the items from their events, and
compares them with the complete items in the events.
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
    "response.code_interpreter_call_code.delta": (
        "response.code_interpreter_call_code.done",
        "code_interpreter_call",
        "code",
    ),
    "response.mcp_call_arguments.delta": ("response.mcp_call_arguments.done", "mcp_call", "arguments"),
}
_STAGES = {
    # the item's type: its events, in this order; it waits for an answer after the last but one
    type_: [f"response.{type_}.{stage}" for stage in ("in_progress", at_work, "completed")]
    for type_, at_work in (
        ("code_interpreter_call", "interpreting"),
        ("web_search_call", "searching"),
        ("file_search_call", "searching"),
    )
} | {
    type_: [f"response.{type_}.in_progress", f"response.{type_}.completed"]
    for type_ in ("mcp_call", "mcp_list_tools")
}
_SERVED = (*_STAGES, "shell_call", "shell_call_output")
"""The items of tools that the server runs: they may be cut without being the last."""
_CALLS = ("function_call", "custom_tool_call")


def read_sse(body: bytes) -> list[bytes]:
    """The payloads of a stream. Every `event:` line equals its `type`, and the stream ends with `[DONE]`."""
    events, end = body.removesuffix(b"\n\n").rsplit(b"\n\n", 1)
    assert end == b"data: [DONE]"
    return read_events(events)


def read_events(body: bytes) -> list[bytes]:
    """The payloads of events. Every `event:` line equals its `type`."""
    blocks = [block for block in body.split(b"\n\n") if block and not block.startswith(b":")]
    assert blocks, "an empty stream"
    payloads = []
    for block in blocks:
        name, data = block.split(b"\n")
        assert name.startswith(b"event: ")
        assert data.startswith(b"data: ")
        payloads.append(data.removeprefix(b"data: "))
        assert json.loads(payloads[-1])["type"].encode() == name.removeprefix(b"event: ")
    return payloads


_STATES = (b'{"type":"response.in_progress"', b'{"type":"response.queued"')


def check(payloads: Iterable[bytes], *, after: int = -1) -> Event:
    """Check a whole stream, and return the final response.

    With `after`, the stream is the rest after this sequence number, and only its numbers and its end are
    checked. Events that only say once more how far the response is have the number of the one before.
    """
    payloads = [*payloads]
    known = [json.loads(payload)["sequence_number"] for payload in payloads]
    again = [number == before for number, before in zip(known, [None, *known], strict=False)]
    assert all(payload.startswith(_STATES) for payload, twice in zip(payloads, again, strict=True) if twice)
    payloads = [payload for payload, twice in zip(payloads, again, strict=True) if not twice]
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
    reasons = {
        "incomplete": ("max_output_tokens", "max_tool_calls", "content_filter", "steered"),
        "cancelled": ("cancelled",),
    }
    why = response["incomplete_details"] and response["incomplete_details"]["reason"]
    assert why in reasons.get(response["status"], (None,))
    assert why is None or response["usage"] is not None
    assert (response["completed_at"] is not None) == (response["status"] == "completed")
    if response["status"] == "failed":
        assert events[-2]["type"] == "error"
    return response


class _Item:
    """Rebuilds one item."""

    def __init__(self, item: Event, index: int) -> None:
        self.value = item
        self.index = index
        self.part: Event | None = None
        self.whole: set[str] = set()  # the done events that it had
        self.stages: list[str] = []
        self.failed = False
        self.told = 0  # how many commands are whole
        self.logs: str | None = None  # the streamed output of a program

    @property
    def waits(self) -> bool:
        """The model has written it, and it is not answered yet."""
        stages = _STAGES.get(self.value["type"], [])
        written = all(
            done in self.whole for done, type_, _ in _FIELDS.values() if type_ == self.value["type"]
        )
        return bool(stages) and self.stages == stages[:-1] and written

    def follow(self, event: Event) -> None:
        type_ = event["type"]
        assert event["output_index"] == self.index
        if not type_.startswith("response.shell_call_command."):  # which have no id
            assert event["item_id"] == self.value["id"]
        if self._is_run(event):
            return
        assert not self.waits, "it goes on while it waits"
        if type_ in _PARTS:
            self._add_part(event, *_PARTS[type_][1:])
        elif type_ in {ends for ends, *_ in _PARTS.values()}:
            self._finish_part(event)
        elif type_ in _TEXTS:
            self._add_text(event, *_TEXTS[type_])
        elif type_ == "response.output_text.annotation.added":
            assert self.part is not None
            assert event["annotation_index"] == len(self.part["annotations"])
            self.part["annotations"].append(event["annotation"])
        elif type_ in _FIELDS:
            self._add_to_field(event, *_FIELDS[type_])
        elif type_.startswith("response.shell_call_"):
            self._add_to_shell(event)
        else:
            assert type_.endswith(".done"), f"an unknown event: {type_}"
            self._check_done(event)

    def _is_run(self, event: Event) -> bool:
        """Whether the event is about running its call."""
        type_ = event["type"]
        if type_ in _STAGES.get(self.value["type"], ()):
            self.stages.append(type_)
        elif type_ in ("response.mcp_call.failed", "response.mcp_list_tools.failed"):
            self.failed = True
        elif type_.startswith("response.code_interpreter_call_logs."):
            self._add_to_logs(event)
        else:
            return False
        return True

    def check_final(self, final: Event) -> None:
        """Its end matches its events."""
        assert self.part is None, "a part never ended"
        for name in (
            "id",
            "type",
            "role",
            "call_id",
            "name",
            "namespace",
            "server_label",
            "phase",
            "container_id",
            "environment",
        ):
            assert final.get(name) == self.value.get(name), f"{name} changed"
        for name in ("content", "summary", "arguments", "input", "code"):
            assert final.get(name) == self.value.get(name), f"{name} is not what was streamed"
        for done, type_, _ in _FIELDS.values():
            assert type_ != final["type"] or done in self.whole, f"no {done}"
        self._check_stages(final)
        self._check_shell(final)
        self._check_logs(final)

    def _check_stages(self, final: Event) -> None:
        stages = _STAGES.get(final["type"], [])
        assert self.stages == stages[: len(self.stages)], "stages are missing"
        if final["type"] == "mcp_list_tools":
            assert self.failed == (final.get("error") is not None) == (self.stages != stages)
        elif stages:
            assert (final["status"] == "completed") == (self.stages == stages), "it ended otherwise"
        if final["type"] == "mcp_call":
            assert self.failed == (final["status"] == "failed") == (final["error"] is not None)
            assert (final["status"] == "completed") == (final["output"] is not None)

    def _check_shell(self, final: Event) -> None:
        if final["type"] == "shell_call":
            assert self.value["action"] == final["action"]
            assert self.told == len(final["action"]["commands"]), "a command never ended"
        elif final["type"] == "shell_call_output":
            assert self.value["output"] == final["output"]
            assert self.told == len(final["output"]), "an output never ended"

    def _add_to_logs(self, event: Event) -> None:
        assert self.waits, "it printed before it was run"
        assert "logs" not in self.whole, "a delta after the end"
        if event["type"].endswith(".delta"):
            assert event["delta"], "an empty delta"
            self.logs = (self.logs or "") + event["delta"]
        else:
            assert event["logs"] == (self.logs or ""), "the logs are not what was streamed"
            self.logs = event["logs"]
            self.whole.add("logs")

    def _check_logs(self, final: Event) -> None:
        """The streamed logs are all of them."""
        if self.logs is not None:
            assert "logs" in self.whole, "its logs never ended"
            assert final["outputs"][:1] == [{"type": "logs", "logs": self.logs}], "logs were not streamed"

    def _add_part(self, event: Event, field: str, index: str) -> None:
        assert self.part is None, "parts overlap"
        parts = self.value[field]
        assert event[index] == len(parts)
        self.part = event["part"]
        assert self.part is not None
        assert self.part["text"] == ""
        parts.append(self.part)

    def _finish_part(self, event: Event) -> None:
        assert event["part"] == self.part
        assert self.part is not None
        text_done = {done for done, type_, _ in _TEXTS.values() if type_ == self.part["type"]}
        assert text_done & self.whole, "the text of the part was not done"
        self.whole -= text_done
        self.part = None

    def _add_text(self, event: Event, done: str, type_: str, index: str) -> None:
        assert self.part is not None
        assert self.part["type"] == type_
        assert event[index] == 0
        assert done not in self.whole, "a delta after the end"
        self.part["text"] += event["delta"]
        if type_ == "output_text":
            self.part["logprobs"] += event["logprobs"]

    def _add_to_field(self, event: Event, done: str, type_: str, field: str) -> None:
        assert self.value["type"] == type_
        assert done not in self.whole, "a delta after the end"
        self.value[field] += event["delta"]

    def _add_to_shell(self, event: Event) -> None:
        """Its commands, or its outputs, come one after the other."""
        assert event["command_index"] == self.told
        assert event["type"].startswith(f"response.{self.value['type']}_")
        commands, outputs = self.value.get("action", {}).get("commands"), self.value.get("output")
        match event["type"].removeprefix(f"response.{self.value['type']}_"):
            case "command.added":
                commands.append(event["command"])
            case "command.delta":
                assert len(commands) == self.told + 1, "a delta before the beginning"
                commands[-1] += event["delta"]
            case "command.done":
                assert commands[self.told :] == [event["command"]], "it is not what was streamed"
                self.told += 1
            case "content.delta" if len(outputs) == self.told:
                outputs.append({**event["delta"]})
            case "content.delta":
                outputs[-1] = {name: outputs[-1][name] + text for name, text in event["delta"].items()}
            case "content.done":
                streamed = [event["output"][0] | output for output in outputs[self.told :]]
                assert streamed == event["output"], "it is not what was streamed"
                outputs[self.told :] = event["output"]
                self.told += 1

    def _check_done(self, event: Event) -> None:
        """What is said to be whole is what was streamed."""
        self.whole.add(event["type"])
        known = self.part if self.part is not None else self.value
        for name in ("text", "arguments", "input", "code", "logprobs", "name"):
            if name in event:
                assert event[name] == known[name], f"{name} is not what was streamed"


def items_so_far(payloads: Iterable[bytes]) -> list[Event]:
    """The items that a client knows of that has seen these events, the first of a stream."""
    follower = _Follower()
    for payload in payloads:
        follower.follow(json.loads(payload))
    known = follower.done | {index: item.value for index, item in follower.open.items()}
    return [known[index] for index in sorted(known)]


class _Follower:
    """Rebuilds the items of a stream: one is written at a time, and others may wait for an answer."""

    def __init__(self) -> None:
        self.done: dict[int, Event] = {}
        self.open: dict[int, _Item] = {}

    def follow(self, event: Event) -> None:
        type_ = event["type"]
        if type_ == "response.output_item.added":
            assert all(item.waits for item in self.open.values()), "items overlap"
            index = len(self.done) + len(self.open)
            assert event["output_index"] == index
            self.open[index] = _Item(event["item"], index)
        elif type_ == "response.output_item.done":
            index = event["output_index"]
            assert index in self.open, "an item ends that never began"
            self.open.pop(index).check_final(event["item"])
            self.done[index] = event["item"]
        elif "output_index" in event:
            assert event["output_index"] in self.open, f"{type_} outside of an item"
            self.open[event["output_index"]].follow(event)
        else:
            assert "response" in event or type_ == "error", f"an unknown event: {type_}"

    def check_end(self, response: Event) -> None:
        assert not self.open, "an item never ended"
        done = [self.done[index] for index in sorted(self.done)]
        assert response["output"] == done, "the final items are not the streamed ones"
        assert all(item.get("status") != "in_progress" for item in done)
        # A call of the client's is incomplete also if the model broke it, and a program if it was stopped.
        others = (*_CALLS, "program_output")
        cut = [item for item in done if item.get("status") == "incomplete" and item["type"] not in others]
        own = [item for item in cut if item["type"] not in _SERVED]
        assert own in ([], done[-1:]), "an incomplete item is not the last"
        if cut:
            assert response["status"] != "completed"
        ids = [item["id"] for item in done]
        assert len(set(ids)) == len(ids)
