"""The checks of the Messages API, by Anthropic's API reference."""

from typing import Any

from antiphon.check.asks import (
    COUNTING,
    DESCRIPTION,
    FEW,
    FORCED,
    FUNCTION,
    GREETING,
    LETTERS,
    PARAMETERS,
    PERSON,
    PERSON_SCHEMA,
    STOPS,
    TOKENS,
    WEATHER,
)
from antiphon.check.chat import EVENT_STREAM, check_call
from antiphon.check.checks import (
    COUNT,
    NAME,
    NULLABLE_STRING,
    OBJECT,
    STRING,
    Inconclusive,
    Table,
    answered,
    array,
    conforms,
    constant,
    error_shape,
    expect,
    object_of,
    required,
)
from antiphon.check.client import Answer, Event, Server

MESSAGES = Table("messages")

PATH = "/v1/messages"
DOCS = "https://platform.claude.com/docs/en"
CREATE = f"{DOCS}/api/messages/create"
STREAMING = f"{DOCS}/build-with-claude/streaming"
TOOLS = f"{DOCS}/agents-and-tools/tool-use/implement-tool-use"

REASONS = [
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "pause_turn",
    "refusal",
    "model_context_window_exceeded",
    "compaction",
]
FIELDS = {
    "id": NAME,
    "type": constant("message"),
    "role": constant("assistant"),
    "model": NAME,
    "stop_sequence": NULLABLE_STRING,
    "content": array(required({"type": NAME})),
}
USAGE = required({"input_tokens": COUNT, "output_tokens": COUNT})
MESSAGE = required({**FIELDS, "stop_reason": {"enum": REASONS}, "usage": OBJECT})
ANSWER = required({"content": FIELDS["content"], "stop_reason": {"enum": REASONS}, "usage": OBJECT})
"""What each check needs of a message; `messages.shape` looks at the whole."""
STARTED = required({**FIELDS, "content": {"const": []}, "stop_reason": {"type": "null"}, "usage": OBJECT})
TEXT = required({"type": constant("text"), "text": STRING})
CALL = required({"type": constant("tool_use"), "id": NAME, "name": NAME, "input": OBJECT})
ERROR = required({"type": constant("error"), "error": required({"type": NAME, "message": STRING})})
EVENTS = {
    "message_start": {"message": OBJECT},
    "content_block_start": {"index": COUNT, "content_block": required({"type": NAME})},
    "content_block_delta": {"index": COUNT, "delta": required({"type": NAME})},
    "content_block_stop": {"index": COUNT},
    "message_delta": {"delta": required({"stop_reason": {"enum": [*REASONS, None]}}), "usage": OBJECT},
    "message_stop": {},
}
TOOL = {"name": FUNCTION, "description": DESCRIPTION, "input_schema": PARAMETERS}


def request(server: Server, text: str, /, **fields: Any) -> dict[str, Any]:
    """A request with one message."""
    body = {"model": server.model, "messages": [{"role": "user", "content": text}]}
    return body | {"max_tokens": TOKENS} | fields


async def message(server: Server, text: str = GREETING, /, *, optional: bool = False, **fields: Any) -> Any:
    """An answer that can be read."""
    body = answered(await server.post(PATH, request(server, text, **fields)), optional=optional)
    conforms(body, ANSWER)
    return body


async def stream(server: Server, text: str = GREETING, /, *, optional: bool = False, **fields: Any) -> Answer:
    """A streamed answer."""
    answer = await server.post(PATH, request(server, text, stream=True, **fields))
    if answer.status != 200:
        answered(answer, optional=optional)
    return answer


async def events(
    server: Server, text: str = GREETING, /, *, optional: bool = False, **fields: Any
) -> list[Any]:
    """The events of a streamed answer, but for those that only keep it alive; their shapes are right."""
    found = events_of((await stream(server, text, optional=optional, **fields)).events())
    for event in found:
        fields_of_type = EVENTS.get(event["type"])
        if fields_of_type is not None:
            conforms(event, required(fields_of_type), event["type"])
    return [event for event in found if event["type"] in EVENTS]


def events_of(raw: list[Event]) -> list[Any]:
    """The events of a stream, each with a type."""
    found = [object_of(event.data, "an event") for event in raw]
    expect(found, "the stream has no event")
    for event in found:
        conforms(event, required({"type": NAME}), "an event")
        expect(event["type"] != "error", f"the stream has an error: {event.get('error')}")
    return found


def text_of(body: Any) -> str:
    """The text of an answer."""
    blocks = [block for block in body["content"] if block["type"] == "text"]
    conforms(blocks, array(TEXT), "content")
    return "".join(block["text"] for block in blocks)


@MESSAGES.check(
    "shape",
    "SDKs raise, or show an empty answer.",
    CREATE,
)
async def shape(server: Server) -> None:
    """A message has id, type, role, model, content, stop_reason, stop_sequence and usage."""
    body = await message(server)
    conforms(body, MESSAGE)
    if not text_of(body) and body["stop_reason"] == "max_tokens":
        raise Inconclusive(f"the model has not come to an answer in {TOKENS} tokens")
    expect(text_of(body), f"the answer has no text: {body['content']}")


@MESSAGES.check(
    "usage",
    "Costs and the size of the context are counted wrongly.",
    CREATE,
)
async def usage(server: Server) -> None:
    """The usage has input_tokens and output_tokens."""
    found = (await message(server))["usage"]
    conforms(found, USAGE, "usage")
    cached = sum(found.get(f"cache_{kind}_input_tokens") or 0 for kind in ("read", "creation"))
    expect(found["input_tokens"] + cached and found["output_tokens"], f"no tokens are counted: {found}")


@MESSAGES.check(
    "system",
    "Claude Code, which always sends lists, cannot use the server.",
    CREATE,
)
async def system(server: Server) -> None:
    """The field system may be a list of text blocks, and so may the content of a message."""
    blocks = [{"type": "text", "text": "Answer briefly.", "cache_control": {"type": "ephemeral"}}]
    content = [{"type": "text", "text": GREETING}]
    await message(server, system=blocks, messages=[{"role": "user", "content": content}])


@MESSAGES.check(
    "stream.framing",
    "Anthropic's SDKs see no event without its name, and fail without its type.",
    f"{STREAMING}; {EVENT_STREAM}",
)
async def framing(server: Server) -> None:
    """A stream is text/event-stream, and the name of each event is its type."""
    answer = await stream(server)
    expect(answer.media_type == "text/event-stream", f"the media type is {answer.media_type!r}")
    raw = answer.events()
    for event, each in zip(events_of(raw), raw, strict=True):
        expect(event["type"] == each.name, f"the event {each.name!r} has the type {event['type']!r}")


@MESSAGES.check(
    "stream.shape",
    "SDKs raise TypeError, or lose the text.",
    STREAMING,
)
async def stream_shape(server: Server) -> None:
    """Events have the fields of their types; message_start has a whole message without content."""
    for event in await events(server):
        if event["type"] == "message_start":
            conforms(event["message"], STARTED, "message_start.message")


@MESSAGES.check(
    "stream.order",
    "SDKs raise, lose a call whose block does not stop, or report no stop_reason.",
    STREAMING,
)
async def order(server: Server) -> None:
    """message_start, then blocks that each start and stop, message_delta and message_stop."""
    types = [event["type"] for event in await events(server)]
    expect(types[0] == "message_start", f"the first event is {types[0]}")
    expect(types[-1] == "message_stop", f"the last event is {types[-1]}")
    expect(types[-2] == "message_delta", f"the event before message_stop is {types[-2]}")
    for once in ("message_start", "message_stop"):
        expect(types.count(once) == 1, f"{once} comes {types.count(once)} times")
    check_blocks(await events(server))


def check_blocks(found: list[Any]) -> None:
    """Fail unless each block starts before its deltas, and stops, with indexes from 0 on."""
    started, opened = 0, set[int]()
    for event in found:
        if event["type"] == "content_block_start":
            expect(event["index"] == started, f"block {started} starts with the index {event['index']}")
            opened.add(started)
            started += 1
        elif "index" in EVENTS[event["type"]]:
            expect(event["index"] in opened, f"{event['type']} for the block {event['index']}, not open")
            if event["type"] == "content_block_stop":
                opened.discard(event["index"])
        elif event["type"] in ("message_delta", "message_stop"):
            expect(not opened, f"{event['type']} before the blocks {sorted(opened)} stop")
    expect(started, "no block starts")


@MESSAGES.check(
    "stream.text",
    "Clients that stream show an empty answer.",
    STREAMING,
)
async def stream_text(server: Server) -> None:
    """A streamed answer has text in text_delta."""
    found = await events(server)
    deltas = [event["delta"] for event in found if event["type"] == "content_block_delta"]
    parts = [delta for delta in deltas if delta["type"] == "text_delta"]
    conforms(parts, array(required({"text": STRING})), "text_delta")
    reasons = [event["delta"]["stop_reason"] for event in found if event["type"] == "message_delta"]
    if not parts and "max_tokens" in reasons:
        raise Inconclusive(f"the model has not come to an answer in {TOKENS} tokens")
    expect("".join(part["text"] for part in parts), "there is no text_delta with text")


@MESSAGES.check(
    "stream.usage",
    "Anthropic's SDKs raise where one is missing; Claude Code does not see how full its context is.",
    STREAMING,
)
async def stream_usage(server: Server) -> None:
    """message_start has usage with input_tokens, message_delta the output_tokens so far."""
    found = await events(server)
    for event in found:
        if event["type"] == "message_start":
            conforms(event["message"], required({"usage": USAGE}), "message_start.message")
        elif event["type"] == "message_delta":
            conforms(
                event["usage"], required({"output_tokens": {**COUNT, "minimum": 1}}), "message_delta.usage"
            )
    types = [event["type"] for event in found]
    expect({"message_start", "message_delta"} <= {*types}, f"the events are {sorted({*types})}")


def calls_of(content: list[Any]) -> list[Any]:
    """The calls among blocks, at least one."""
    calls = [block for block in content if block["type"] == "tool_use"]
    if not calls:
        raise Inconclusive("the model has used no tool")
    return calls


@MESSAGES.check(
    "tools.call",
    "Agents do not see the call, cannot answer it, or stop.",
    f"{CREATE}; {TOOLS}",
)
async def tools_call(server: Server) -> None:
    """A call is a block tool_use with id, name, and an object as input; its stop_reason is tool_use."""
    body = await message(server, WEATHER, optional=True, tools=[TOOL])
    calls = calls_of(body["content"])
    if body["stop_reason"] == "max_tokens":
        raise Inconclusive(f"the call was cut after {TOKENS} tokens")
    conforms(calls, array(CALL), "content")
    expect(all(call["name"] == FUNCTION for call in calls), f"called: {[call['name'] for call in calls]}")
    expect(body["stop_reason"] == "tool_use", f"stop_reason is {body['stop_reason']!r}")


@MESSAGES.check(
    "tools.stream",
    "Streaming agents call with no arguments, or with wrong ones.",
    STREAMING,
)
async def tools_stream(server: Server) -> None:
    """A streamed call starts with an empty input; its input_json_delta together are the JSON of it."""
    found = await events(server, WEATHER, optional=True, tools=[TOOL])
    starts = [event for event in found if event["type"] == "content_block_start"]
    calls = calls_of([event["content_block"] for event in starts])
    conforms(calls, array(required({"id": NAME, "name": NAME, "input": {"const": {}}})), "content_block")
    reasons = [event["delta"]["stop_reason"] for event in found if event["type"] == "message_delta"]
    for start in starts:
        if start["content_block"]["type"] == "tool_use":
            arguments = streamed_input(found, start["index"])
            check_call(start["content_block"]["name"], arguments, cut="max_tokens" in reasons)
    expect(reasons[-1:] == ["tool_use"], f"stop_reason is {reasons[-1:]}")


def streamed_input(found: list[Any], index: int) -> str:
    """The deltas of the input of a call together."""
    deltas = [event for event in found if event["type"] == "content_block_delta" and event["index"] == index]
    shape_of_delta = {"type": constant("input_json_delta"), "partial_json": STRING}
    conforms([event["delta"] for event in deltas], array(required(shape_of_delta)), "the deltas of a call")
    return "".join(event["delta"]["partial_json"] for event in deltas)


@MESSAGES.check(
    "tools.any",
    "Agents that need a call get text, and stop.",
    f"{TOOLS}#forcing-tool-use",
)
async def tools_any(server: Server) -> None:
    """tool_choice {"type": "any"} makes the model use a tool."""
    body = await message(server, FORCED, optional=True, tools=[TOOL], tool_choice={"type": "any"})
    if body["stop_reason"] == "max_tokens":
        raise Inconclusive(f"the answer was cut after {TOKENS} tokens")
    types = [block["type"] for block in body["content"]]
    expect("tool_use" in types, f"no call, but {types}")


@MESSAGES.check(
    "tools.none",
    "Clients get calls in a step where they cannot answer them.",
    f"{TOOLS}#forcing-tool-use",
)
async def tools_none(server: Server) -> None:
    """tool_choice {"type": "none"} lets the model use no tool."""
    body = await message(server, WEATHER, optional=True, tools=[TOOL], tool_choice={"type": "none"})
    expect(all(block["type"] != "tool_use" for block in body["content"]), "a tool is used")


@MESSAGES.check(
    "tools.result",
    "Agents stop after the first call.",
    f"{DOCS}/agents-and-tools/tool-use/implement-tool-use#handling-tool-use-and-tool-result-content-blocks",
)
async def tools_result(server: Server) -> None:
    """A conversation with a call and its result goes on."""
    called = {"type": "tool_use", "id": "toolu_1", "name": FUNCTION, "input": {"city": "Paris"}}
    content = [{"type": "text", "text": "Sunny, 24 °C"}]
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": content}
    history = [
        {"role": "user", "content": WEATHER},
        {"role": "assistant", "content": [called]},
        {"role": "user", "content": [result]},
    ]
    await message(server, optional=True, messages=history, tools=[TOOL])


@MESSAGES.check(
    "structured.schema",
    "Programs that decode the answer crash.",
    f"{DOCS}/build-with-claude/structured-outputs",
)
async def structured(server: Server) -> None:
    """With output_config.format, the answer is JSON that the schema allows."""
    wanted = {"format": {"type": "json_schema", "schema": PERSON_SCHEMA}}
    body = await message(server, PERSON, optional=True, output_config=wanted)
    if body["stop_reason"] in ("max_tokens", "refusal"):
        raise Inconclusive(f"the answer ended early: {body['stop_reason']}")
    conforms(object_of(text_of(body), "the answer"), PERSON_SCHEMA, "the answer")


@MESSAGES.check(
    "endings.max_tokens",
    "Clients take a cut answer for a whole one.",
    f"{DOCS}/build-with-claude/handling-stop-reasons#max-tokens",
)
async def max_tokens(server: Server) -> None:
    """An answer that max_tokens cuts has the stop_reason max_tokens."""
    body = await message(server, COUNTING, max_tokens=FEW)
    written = body["usage"].get("output_tokens")
    expect(written is None or written <= FEW, f"{written} tokens were written, of at most {FEW}")
    if body["stop_reason"] == "end_turn" and written is not None and written < FEW:
        raise Inconclusive("the model has stopped by itself")
    expect(body["stop_reason"] == "max_tokens", f"stop_reason is {body['stop_reason']!r}")


@MESSAGES.check(
    "endings.stop_sequence",
    "Programs that cut answers by markers do not know where they are.",
    f"{CREATE}; {DOCS}/build-with-claude/handling-stop-reasons#stop-sequence",
)
async def stop_sequence(server: Server) -> None:
    """An answer that a stop sequence ends does not have it, but says which it was."""
    body = await message(server, LETTERS, stop_sequences=STOPS)
    expect(not any(text in text_of(body) for text in STOPS), f"one is in the answer: {text_of(body)}")
    if body["stop_reason"] == "max_tokens":
        raise Inconclusive(f"no stop sequence was written in {TOKENS} tokens")
    expect(body["stop_reason"] == "stop_sequence", f"stop_reason is {body['stop_reason']!r}")
    expect(body["stop_sequence"] in STOPS, f"stop_sequence is {body['stop_sequence']!r}")


@MESSAGES.check(
    "errors.shape",
    "SDKs show no reason, and agents do not know whether to try again.",
    f"{DOCS}/api/errors",
)
async def errors(server: Server) -> None:
    """A request without messages is refused with an invalid_request_error in Anthropic's form."""
    answer = await server.post(PATH, {"model": server.model, "max_tokens": FEW})
    body = error_shape(answer, ERROR, [400])
    expect(body["error"]["type"] == "invalid_request_error", f"the type is {body['error']['type']!r}")


@MESSAGES.check(
    "count_tokens",
    "Agents that look before they send, to compact a conversation in time, cannot.",
    f"{DOCS}/api/messages/count_tokens",
)
async def count_tokens(server: Server) -> None:
    """POST /v1/messages/count_tokens counts the tokens of a request."""
    sent = {"model": server.model, "messages": [{"role": "user", "content": GREETING}]}
    body = answered(await server.post(f"{PATH}/count_tokens", sent))
    conforms(body, required({"input_tokens": {**COUNT, "minimum": 1}}))
