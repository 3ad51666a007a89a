"""The checks of the Responses API and of conversations, by OpenAI's OpenAPI document and by Open Responses.

Where the two differ, a check cites the one that it is about.
"""

from collections.abc import Mapping
from typing import Any

from antiphon.check.asks import (
    COUNTING,
    DESCRIPTION,
    FEW,
    FORCED,
    FUNCTION,
    GREETING,
    NOTED,
    PARAMETERS,
    PERSON,
    PERSON_SCHEMA,
    TOKENS,
    WEATHER,
)
from antiphon.check.chat import ERROR, ERROR_FIELDS, EVENT_STREAM, OPENAPI, REFERENCE, check_call
from antiphon.check.checks import (
    COUNT,
    NAME,
    NUMBER,
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

RESPONSES = Table("responses")
CONVERSATIONS = Table("conversations")

PATH = "/v1/responses"
OPEN = "https://www.openresponses.org/specification"

STATUSES = ["completed", "failed", "in_progress", "cancelled", "queued", "incomplete"]
RESPONSE = required(
    {
        "id": NAME,
        "object": constant("response"),
        "created_at": NUMBER,
        "status": {"enum": STATUSES},
        "model": NAME,
        "output": array(required({"type": NAME})),
    }
)
ANSWER = required({"status": NAME, "output": array(required({"type": NAME}))})
"""What each check needs of a response; `responses.shape` looks at the whole."""
FIELDS = [
    "id",
    "object",
    "created_at",
    "completed_at",
    "status",
    "incomplete_details",
    "model",
    "previous_response_id",
    "instructions",
    "output",
    "error",
    "tools",
    "tool_choice",
    "truncation",
    "parallel_tool_calls",
    "text",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "temperature",
    "reasoning",
    "usage",
    "max_output_tokens",
    "max_tool_calls",
    "store",
    "background",
    "service_tier",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
]
"""All of which Open Responses' ResponseResource requires; those without a value are null."""
ITEM = required({"id": NAME, "type": NAME, "status": {"enum": ["in_progress", "completed", "incomplete"]}})
TEXT_PART = required({"type": constant("output_text"), "text": STRING, "annotations": array(OBJECT)})
MESSAGE = required(
    {
        "id": NAME,
        "type": constant("message"),
        "role": constant("assistant"),
        "status": {"enum": ["in_progress", "completed", "incomplete"]},
        "content": array(required({"type": NAME})),
    }
)
CALL = required({"type": constant("function_call"), "call_id": NAME, "name": NAME, "arguments": STRING})
USAGE = required(
    {
        "input_tokens": COUNT,
        "input_tokens_details": required({"cached_tokens": COUNT}),
        "output_tokens": COUNT,
        "output_tokens_details": required({"reasoning_tokens": COUNT}),
        "total_tokens": COUNT,
    }
)
NUMBERED = {"item_id": NAME, "output_index": COUNT}
IN_PART = {**NUMBERED, "content_index": COUNT}
EVENTS: Mapping[str, Mapping[str, Any]] = {
    "response.created": {"response": OBJECT},
    "response.in_progress": {"response": OBJECT},
    "response.completed": {"response": OBJECT},
    "response.incomplete": {"response": OBJECT},
    "response.output_item.added": {"output_index": COUNT, "item": required({"type": NAME})},
    "response.output_item.done": {"output_index": COUNT, "item": required({"type": NAME})},
    "response.content_part.added": {**IN_PART, "part": OBJECT},
    "response.content_part.done": {**IN_PART, "part": OBJECT},
    "response.output_text.delta": {**IN_PART, "delta": STRING},
    "response.output_text.done": {**IN_PART, "text": STRING},
    "response.function_call_arguments.delta": {**NUMBERED, "delta": STRING},
    "response.function_call_arguments.done": {**NUMBERED, "arguments": STRING},
}
"""The fields that events have to have, by their types."""
ENDS = ("response.completed", "response.incomplete", "response.failed")
TOOL = {
    "type": "function",
    "name": FUNCTION,
    "description": DESCRIPTION,
    "parameters": PARAMETERS,
    "strict": True,
}
SCHEMA_FORMAT = {"format": {"type": "json_schema", "name": "person", "strict": True, "schema": PERSON_SCHEMA}}
UNKNOWN_ID = "resp_00000000000000000000000000000000000000000000000000"


def request(server: Server, text: str, /, **fields: Any) -> dict[str, Any]:
    """A request with one message, which is not stored."""
    body: dict[str, Any] = {"model": server.model, "input": text}
    return body | {"max_output_tokens": TOKENS, "store": False} | fields


async def response(server: Server, text: str = GREETING, /, *, optional: bool = False, **fields: Any) -> Any:
    """The response, without a look at its shape."""
    return answered(await server.post(PATH, request(server, text, **fields)), optional=optional)


async def checked(server: Server, text: str = GREETING, /, *, optional: bool = False, **fields: Any) -> Any:
    """A response that can be read, and that has not failed."""
    body = await response(server, text, optional=optional, **fields)
    conforms(body, ANSWER)
    expect(body["status"] in ("completed", "incomplete"), f"the status is {body['status']!r}")
    return body


async def stream(server: Server, text: str = GREETING, /, *, optional: bool = False, **fields: Any) -> Answer:
    """A streamed response."""
    answer = await server.post(PATH, request(server, text, stream=True, **fields))
    if answer.status != 200:
        answered(answer, optional=optional)
    return answer


async def events(
    server: Server, text: str = GREETING, /, *, optional: bool = False, **fields: Any
) -> list[Any]:
    """The events of a streamed response, each with a type."""
    return events_of((await stream(server, text, optional=optional, **fields)).events())


def events_of(raw: list[Event]) -> list[Any]:
    """The events of a stream, each with a type."""
    found = [object_of(event.data, "an event") for event in raw if event.data != "[DONE]"]
    expect(found, "the stream has no event")
    for event in found:
        conforms(event, required({"type": NAME}), "an event")
        expect(event["type"] not in ("error", "response.failed"), f"the stream has failed: {event}")
    return found


def shaped(found: list[Any]) -> list[Any]:
    """Events whose fields are all there."""
    for event in found:
        fields = EVENTS.get(event["type"])
        if fields is not None:
            conforms(event, required(fields), event["type"])
    return found


def messages_of(body: Any) -> list[Any]:
    """The messages of a response."""
    return [item for item in body["output"] if item["type"] == "message"]


def text_of(body: Any) -> str:
    """The text of a response."""
    for message in messages_of(body):
        conforms(message, MESSAGE, "a message")
    parts = [part for message in messages_of(body) for part in message["content"]]
    for part in parts:
        if part["type"] == "output_text":
            conforms(part, required({"text": STRING}), "a part")
    return "".join(part["text"] for part in parts if part["type"] == "output_text")


@RESPONSES.check(
    "shape",
    "SDKs raise, or show an empty answer.",
    f"{REFERENCE}/responses/object; {OPENAPI}.Response, .OutputMessage, .OutputTextContent",
)
async def shape(server: Server) -> None:
    """A response has the fields that every client reads, and its messages theirs."""
    body = await checked(server)
    conforms(body, RESPONSE)
    for message in messages_of(body):
        conforms(message, MESSAGE, "a message")
        for part in message["content"]:
            if part["type"] == "output_text":
                conforms(part, TEXT_PART, "a part")
    if body["status"] == "incomplete" and not text_of(body):
        raise Inconclusive(f"the model has not come to an answer in {TOKENS} tokens")
    expect(messages_of(body), "the output has no message")


@RESPONSES.check(
    "fields",
    "Clients with types generated from the specification refuse the answer; most SDKs do not notice.",
    f"{OPEN} (schema 2026-04-24, ResponseResource)",
)
async def fields(server: Server) -> None:
    """A response has all fields of Open Responses, null where they have no value."""
    body = await checked(server)
    missing = [name for name in FIELDS if name not in body]
    expect(not missing, f"missing: {', '.join(missing)}")


@RESPONSES.check(
    "items",
    "Clients cannot send the item back, or follow its events.",
    f"{OPEN}, Items",
)
async def items(server: Server) -> None:
    """Every output item has an id, a type and a status; only the last one may be incomplete."""
    output = (await checked(server))["output"]
    conforms(output, array(ITEM), "output")
    cut = [item["id"] for item in output[:-1] if item["status"] == "incomplete"]
    expect(not cut, f"incomplete items that are not the last: {cut}")


@RESPONSES.check(
    "usage",
    "Costs and the size of the context are counted wrongly.",
    f"{OPENAPI}.ResponseUsage",
)
async def usage(server: Server) -> None:
    """The usage counts the tokens with details, and its total is their sum."""
    body = await checked(server)
    conforms(body, required({"usage": USAGE}))
    found = body["usage"]
    parts = found["input_tokens"], found["output_tokens"]
    expect(sum(parts) == found["total_tokens"], f"{parts} are not {found['total_tokens']} together")
    expect(all(parts), f"no tokens are counted: {parts}")


@RESPONSES.check(
    "input_items",
    "Agents, which send their whole history, cannot use the server.",
    f"{OPENAPI}.CreateResponse.input, .EasyInputMessage",
)
async def input_items(server: Server) -> None:
    """The input may be a list of messages, with instructions beside it."""
    history = [
        {"role": "user", "content": "Say hello."},
        {"role": "assistant", "content": "Hello!"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": GREETING}]},
    ]
    await checked(server, input=history, instructions="Answer briefly.")


@RESPONSES.check(
    "stream.framing",
    "Clients that dispatch by the names of events do not see them.",
    f"{OPEN}, Streaming; {EVENT_STREAM}",
)
async def framing(server: Server) -> None:
    """A stream is text/event-stream, and the name of each event is its type."""
    answer = await stream(server)
    expect(answer.media_type == "text/event-stream", f"the media type is {answer.media_type!r}")
    raw = answer.events()
    for event, name in zip(events_of(raw), (each.name for each in raw if each.data != "[DONE]"), strict=True):
        expect(event["type"] == name, f"the event {name!r} has the type {event['type']!r}")


@RESPONSES.check(
    "stream.done",
    "Clients of Open Responses wait for more. OpenAI's own stream, and its SDKs, do without.",
    f"{OPEN}, Streaming",
)
async def done(server: Server) -> None:
    """A stream ends with data: [DONE]."""
    found = (await stream(server)).events()
    expect(found and found[-1].data == "[DONE]", f"the stream ends with {found[-1:]}")


@RESPONSES.check(
    "stream.shape",
    "openai-python, openai-js and the AI SDK raise where output_index or content_index is missing.",
    f"{OPENAPI}.ResponseStreamEvent",
)
async def stream_shape(server: Server) -> None:
    """Events have the fields that their types require."""
    shaped(await events(server))


@RESPONSES.check(
    "stream.sequence",
    "Clients cannot continue a stream that was cut.",
    f"{OPENAPI}.ResponseStreamEvent (sequence_number)",
)
async def sequence(server: Server) -> None:
    """Events have sequence numbers that rise."""
    found = await events(server)
    for event in found:
        conforms(event, required({"sequence_number": COUNT}), event["type"])
    numbers = [event["sequence_number"] for event in found]
    expect(numbers == sorted(set(numbers)), f"the sequence numbers are {numbers[:20]}")


@RESPONSES.check(
    "stream.order",
    "SDKs raise or lose text; Codex shows nothing where response.output_item.done is missing.",
    f"{OPEN}, Streaming; {OPENAPI}.ResponseStreamEvent",
)
async def order(server: Server) -> None:
    """response.created is first, one terminal event last; items and parts begin before deltas, and end."""
    found = shaped(await events(server))
    types = [event["type"] for event in found]
    expect(types[0] == "response.created", f"the first event is {types[0]}")
    expect(types[-1] in ENDS, f"the last event is {types[-1]}")
    expect(sum(type_ in ENDS for type_ in types) == 1, "there are several terminal events")
    open_items, open_parts = set[int](), set[tuple[int, int]]()
    for event in found:
        follow(event, open_items, open_parts)
    expect(not open_items, f"items without response.output_item.done: {sorted(open_items)}")
    expect(not open_parts, f"parts without response.content_part.done: {sorted(open_parts)}")
    expect("response.output_item.added" in types, "no item was added")


def follow(event: Any, open_items: set[int], open_parts: set[tuple[int, int]]) -> None:
    """Fail if an event is about an item or a part that is not open."""
    type_, item = event["type"], event.get("output_index")
    if type_ not in EVENTS or item is None:
        return
    part = (item, event.get("content_index", 0))
    if type_ == "response.output_item.added":
        expect(item not in open_items, f"the item {item} is added twice")
        open_items.add(item)
        return
    expect(item in open_items, f"{type_} for the item {item}, which is not open")
    if type_ == "response.output_item.done":
        open_items.discard(item)
    elif type_ == "response.content_part.added":
        open_parts.add(part)
    elif "content_index" in EVENTS[type_]:
        expect(part in open_parts, f"{type_} for the part {part}, which is not open")
        if type_ == "response.content_part.done":
            open_parts.discard(part)


@RESPONSES.check(
    "stream.text",
    "What was shown while streaming differs from what is kept.",
    f"{OPEN}, Streaming; {OPENAPI}.ResponseTextDoneEvent",
)
async def stream_text(server: Server) -> None:
    """The deltas together are the text of the done event, and of the final response."""
    found = shaped(await events(server))
    final = found[-1].get("response")
    conforms(final, ANSWER, "the final response")
    deltas = "".join(event["delta"] for event in found if event["type"] == "response.output_text.delta")
    dones = "".join(event["text"] for event in found if event["type"] == "response.output_text.done")
    if not deltas and final["status"] == "incomplete":
        raise Inconclusive(f"the model has not come to an answer in {TOKENS} tokens")
    expect(deltas, "there is no response.output_text.delta")
    expect(deltas == dones, f"the deltas are {deltas!r}, and the done events {dones!r}")
    expect(deltas == text_of(final), f"the deltas are {deltas!r}, and the final text {text_of(final)!r}")


@RESPONSES.check(
    "stream.ids",
    'openai-python and openai-js raise "output item identity changed".',
    f"{OPEN}, Items; {OPENAPI}.ResponseOutputItemDoneEvent",
)
async def ids(server: Server) -> None:
    """The response, and each item, has one id in all events and in the final response."""
    found = shaped(await events(server))
    responses = {event["response"].get("id") for event in found if "response" in event}
    expect(len(responses) == 1, f"the response has the ids {sorted(map(str, responses))}")
    known: dict[int, set[str]] = {}
    for event in found:
        if "output_index" in event:
            of_item = event.get("item_id", event.get("item", {}).get("id"))
            known.setdefault(event["output_index"], set()).add(str(of_item))
    for at, item in enumerate(found[-1].get("response", {}).get("output", [])):
        known.setdefault(at, set()).add(str(item.get("id")))
    changed = {at: sorted(values) for at, values in known.items() if len(values) > 1}
    expect(not changed, f"the ids of items change: {changed}")


def calls_of(output: list[Any]) -> list[Any]:
    """The function calls among items, at least one."""
    calls = [item for item in output if item["type"] == "function_call"]
    if not calls:
        raise Inconclusive("the model has called no function")
    conforms(calls, array(CALL), "output")
    return calls


@RESPONSES.check(
    "tools.call",
    "Agents do not see the call, cannot answer it, or crash on its arguments.",
    f"{OPENAPI}.FunctionToolCall",
)
async def tools_call(server: Server) -> None:
    """A call is an item function_call with call_id, name, and arguments that are JSON."""
    body = await checked(server, WEATHER, optional=True, tools=[TOOL], tool_choice="auto")
    for call in calls_of(body["output"]):
        check_call(call["name"], call["arguments"], cut=body["status"] == "incomplete")


@RESPONSES.check(
    "tools.stream",
    "Streaming agents lose the call, or call with other arguments than were shown.",
    f"{OPENAPI}.ResponseFunctionCallArgumentsDeltaEvent, .ResponseFunctionCallArgumentsDoneEvent",
)
async def tools_stream(server: Server) -> None:
    """The deltas of a streamed call together are its arguments, also in its done events."""
    found = shaped(await events(server, WEATHER, optional=True, tools=[TOOL], tool_choice="auto"))
    added = [event["item"] for event in found if event["type"] == "response.output_item.added"]
    final = found[-1].get("response")
    conforms(final, ANSWER, "the final response")
    calls = calls_of(final["output"])
    if final["status"] == "incomplete":
        raise Inconclusive(f"the call was cut after {TOKENS} tokens")
    expect(any(item["type"] == "function_call" for item in added), "no function_call was added")
    arguments = "".join(call["arguments"] for call in calls)
    for type_, field in (("delta", "delta"), ("done", "arguments")):
        name = f"response.function_call_arguments.{type_}"
        streamed = "".join(event[field] for event in found if event["type"] == name)
        expect(streamed == arguments, f"{name} has {streamed!r}, and the call {arguments!r}")


@RESPONSES.check(
    "tools.required",
    "Agents that need a call get text, and stop.",
    f"{OPEN}, tool_choice; {OPENAPI}.ToolChoiceOptions",
)
async def tools_required(server: Server) -> None:
    """tool_choice: "required" makes the model call a function."""
    body = await checked(server, FORCED, optional=True, tools=[TOOL], tool_choice="required")
    if body["status"] == "incomplete":
        raise Inconclusive(f"the answer was cut after {TOKENS} tokens")
    types = [item["type"] for item in body["output"]]
    expect("function_call" in types, f"no call, but {types}")


@RESPONSES.check(
    "tools.none",
    "Clients get calls in a step where they cannot answer them.",
    f"{OPEN}, tool_choice; {OPENAPI}.ToolChoiceOptions",
)
async def tools_none(server: Server) -> None:
    """tool_choice: "none" lets the model call no function."""
    body = await checked(server, WEATHER, optional=True, tools=[TOOL], tool_choice="none")
    expect(all(item["type"] != "function_call" for item in body["output"]), "a function is called")


@RESPONSES.check(
    "tools.result",
    "Agents that keep the conversation themselves, as Codex does, stop after the first call.",
    f"{OPEN}, Items; {OPENAPI}.FunctionCallOutputItemParam",
)
async def tools_result(server: Server) -> None:
    """Output items are taken as input: a conversation with a call and its output goes on."""
    called = {
        "type": "function_call",
        "call_id": "call_1",
        "name": FUNCTION,
        "arguments": '{"city":"Paris"}',
    }
    result = {"type": "function_call_output", "call_id": "call_1", "output": "Sunny, 24 °C"}
    history = [{"role": "user", "content": WEATHER}, called, result]
    await checked(server, optional=True, input=history, tools=[TOOL])


@RESPONSES.check(
    "structured.schema",
    "Programs that decode the answer crash.",
    f"https://platform.openai.com/docs/guides/structured-outputs; {OPENAPI}.TextResponseFormatJsonSchema",
)
async def structured(server: Server) -> None:
    """With a strict JSON schema in text.format, the answer is JSON that the schema allows."""
    body = await checked(server, PERSON, optional=True, text=SCHEMA_FORMAT)
    parts = [part["type"] for message in messages_of(body) for part in message.get("content", [])]
    if body["status"] == "incomplete" or "refusal" in parts:
        raise Inconclusive("the answer ended early")
    conforms(object_of(text_of(body), "the answer"), PERSON_SCHEMA, "the answer")


def check_cut(body: Any) -> None:
    """Fail unless a response says that its tokens were too few."""
    conforms(body, ANSWER)
    written = (body.get("usage") or {}).get("output_tokens")
    expect(written is None or written <= FEW, f"{written} tokens were written, of at most {FEW}")
    if body["status"] == "completed" and written is not None and written < FEW:
        raise Inconclusive("the model has stopped by itself")
    expect(body["status"] == "incomplete", f"the status is {body['status']!r}")
    reason = (body.get("incomplete_details") or {}).get("reason")
    expect(reason == "max_output_tokens", f"the reason is {reason!r}")


@RESPONSES.check(
    "endings.incomplete",
    "Clients take a cut answer for a whole one.",
    f"{OPENAPI}.Response.incomplete_details; {OPEN}, Items",
)
async def incomplete(server: Server) -> None:
    """A response that max_output_tokens cuts is "incomplete", and says why."""
    check_cut(await response(server, COUNTING, max_output_tokens=FEW))


@RESPONSES.check(
    "endings.stream",
    "Clients that stream take a cut answer for a whole one.",
    f"{OPENAPI}.ResponseIncompleteEvent",
)
async def incomplete_stream(server: Server) -> None:
    """The stream of a response that is cut ends with response.incomplete."""
    last = (await events(server, COUNTING, max_output_tokens=FEW))[-1]
    conforms(last, required({"response": OBJECT}), last["type"])
    check_cut(last["response"])
    expect(last["type"] == "response.incomplete", f"the last event is {last['type']}")


@RESPONSES.check(
    "errors.shape",
    "Clients show no reason, or take the refusal for an answer.",
    f"{OPEN}, Errors; {OPENAPI}.ErrorResponse",
)
async def errors(server: Server) -> None:
    """An input that is a number is refused with an error that has a message and a type."""
    error_shape(
        await server.post(PATH, {"model": server.model, "input": 7, "store": False}), ERROR, [400, 422]
    )


@RESPONSES.check(
    "errors.fields",
    "SDKs with types give None for param and code, or a number where a text is expected.",
    f"{OPEN}, Errors; {OPENAPI}.Error",
)
async def error_fields(server: Server) -> None:
    """An error has message, type, param and code, all texts or null."""
    body = {"model": server.model, "input": 7, "store": False}
    error_shape(await server.post(PATH, body), ERROR_FIELDS, [400, 422])


@RESPONSES.check(
    "input_tokens",
    "Clients that look before they send, to compact a conversation in time, cannot.",
    f"{REFERENCE}/responses/input-tokens; {OPENAPI}.TokenCountsResource",
)
async def input_tokens(server: Server) -> None:
    """POST /v1/responses/input_tokens counts the tokens of a request."""
    body = answered(await server.post(f"{PATH}/input_tokens", {"model": server.model, "input": GREETING}))
    shape_of_count = {"object": constant("response.input_tokens"), "input_tokens": {**COUNT, "minimum": 1}}
    conforms(body, required(shape_of_count))


async def store(server: Server, text: str = GREETING, /, **fields: Any) -> Any:
    """A response that is stored until the check has ended."""
    answer = await server.post(PATH, request(server, text, store=True, **fields), fresh=True)
    body = answered(answer, optional=True)
    conforms(body, ANSWER)
    conforms(body, required({"id": NAME}))
    server.will_store(f"{PATH}/{body['id']}")
    return body


@RESPONSES.check(
    "state.retrieve",
    "Clients cannot come back to an answer, or it is kept although they have deleted it.",
    f"{REFERENCE}/responses/get, {REFERENCE}/responses/delete",
)
async def retrieve(server: Server) -> None:
    """A stored response is found by its id, with the same output, and can be deleted."""
    body = await store(server)
    path = f"{PATH}/{body['id']}"
    found = answered(await server.get(path))
    expect(found.get("id") == body["id"], f"GET gives the response {found.get('id')!r}")
    expect(found.get("output") == body["output"], "GET gives another output than the answer has had")
    gone = await server.delete(path)
    expect(gone.status in (200, 204), f"status {gone.status} for a deletion: {gone.text()}")
    again = await server.get(path)
    expect(again.status == 404, f"status {again.status} for a response that was deleted")


@RESPONSES.check(
    "state.store_false",
    "What a client has asked not to be kept is kept.",
    f"{OPENAPI}.CreateResponse.store",
)
async def store_false(server: Server) -> None:
    """A response with store: false is not found later."""
    answered(await server.get(f"{PATH}/{(await store(server))['id']}"))
    kept = await checked(server)
    found = await server.get(f"{PATH}/{kept['id']}")
    if found.status == 200:
        server.will_store(f"{PATH}/{kept['id']}")
    expect(found.status == 404, f"status {found.status} for a response with store: false")


@RESPONSES.check(
    "state.previous",
    "The model forgets what was said, and the client does not notice.",
    f"{OPEN}, previous_response_id; {OPENAPI}.CreateResponse.previous_response_id",
)
async def previous(server: Server) -> None:
    """previous_response_id continues a conversation: its input and output are counted again."""
    first = await store(server)
    body = request(server, NOTED, previous_response_id=first["id"])
    second = answered(await server.post(PATH, body, fresh=True), optional=True)
    expect(second.get("previous_response_id") == first["id"], "previous_response_id is not in the response")
    alone, continued = await response(server, NOTED), second
    for each in (alone, continued):
        conforms(each, required({"usage": required({"input_tokens": COUNT})}))
    less, more = alone["usage"]["input_tokens"], continued["usage"]["input_tokens"]
    expect(more > less, f"the input has {more} tokens, and without what was before {less}")


@RESPONSES.check(
    "state.unknown",
    "A conversation that is lost goes on without its past, and nobody notices.",
    f"{OPEN}, previous_response_id; {REFERENCE}/responses/create",
)
async def unknown(server: Server) -> None:
    """An unknown previous_response_id is an error."""
    body = request(server, NOTED, previous_response_id=UNKNOWN_ID)
    answer = await server.post(PATH, body)
    if answer.status in (404, 405, 501):
        await response(server)  # not offered, unless the API is there
    error_shape(answer, ERROR, [400, 404, 422])


@CONVERSATIONS.check(
    "lifecycle",
    "Clients that keep conversations on the server lose them.",
    f"{REFERENCE}/conversations; {OPENAPI}.ConversationResource, .ConversationItemList",
)
async def lifecycle(server: Server) -> None:
    """A conversation is made, keeps its items in order, is found, and can be deleted."""
    made = await conversation(server)
    path = f"/v1/conversations/{made['id']}"
    found = answered(await server.get(path))
    expect(found.get("id") == made["id"], f"GET gives the conversation {found.get('id')!r}")
    expect(found.get("metadata") == {"kind": "check"}, f"its metadata are {found.get('metadata')}")
    listed = answered(await server.get(f"{path}/items?order=asc"))
    conforms(
        listed, required({"object": constant("list"), "data": array(OBJECT), "has_more": {"type": "boolean"}})
    )
    roles = [item.get("role") for item in listed["data"]]
    expect(roles == ["user", "assistant"], f"the items have the roles {roles}")
    gone = answered(await server.delete(path))
    conforms(gone, required({"id": constant(made["id"]), "deleted": constant(value=True)}))
    again = await server.get(path)
    expect(again.status == 404, f"status {again.status} for a conversation that was deleted")


@CONVERSATIONS.check(
    "response",
    "The model forgets what was said, and the client does not notice.",
    f"{OPENAPI}.CreateResponse.conversation; {OPEN}, conversation",
)
async def in_conversation(server: Server) -> None:
    """A response in a conversation names it, and adds its input and output to the items."""
    made = await conversation(server)
    body = await store(server, NOTED, conversation=made["id"])
    named = (body.get("conversation") or {}).get("id")
    expect(named == made["id"], f"the response names the conversation {named!r}")
    listed = answered(await server.get(f"/v1/conversations/{made['id']}/items?order=asc"))
    conforms(listed, required({"data": array(OBJECT)}))
    roles = [item.get("role") for item in listed["data"] if item.get("type") == "message"]
    expect(roles[:3] == ["user", "assistant", "user"], f"the messages have the roles {roles}")
    expect(len(listed["data"]) > 3, "the output of the response is not in the conversation")


async def conversation(server: Server) -> Any:
    """A conversation of two messages, which is deleted when the check has ended."""
    history = [
        {"type": "message", "role": "user", "content": "Say hello."},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello!"}]},
    ]
    sent = {"items": history, "metadata": {"kind": "check"}}
    made = answered(await server.post("/v1/conversations", sent, fresh=True), optional=True)
    shape_of_one = {"id": NAME, "object": constant("conversation"), "created_at": COUNT, "metadata": OBJECT}
    conforms(made, required(shape_of_one))
    server.will_store(f"/v1/conversations/{made['id']}")
    return made
