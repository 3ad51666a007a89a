"""The checks of Chat Completions, and of the list of models, by OpenAI's reference and OpenAPI document."""

from collections.abc import Mapping
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
from antiphon.check.checks import (
    COUNT,
    NAME,
    NULLABLE_STRING,
    NUMBER,
    OBJECT,
    STRING,
    Inconclusive,
    NotOffered,
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

MODELS = Table("models")
CHAT = Table("chat")

PATH = "/v1/chat/completions"
REFERENCE = "https://platform.openai.com/docs/api-reference"
OPENAPI = "https://github.com/openai/openai-openapi (2.3.0), components.schemas"
EVENT_STREAM = "https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream"

FINISHES = ["stop", "length", "tool_calls", "content_filter", "function_call"]
ERROR = required({"error": required({"message": STRING, "type": STRING})})
ERROR_FIELDS = required(
    {
        "error": required(
            {"message": STRING, "type": STRING, "param": NULLABLE_STRING, "code": NULLABLE_STRING},
        )
    }
)
MESSAGE = required({"role": constant("assistant"), "content": NULLABLE_STRING})
COMPLETION = required(
    {
        "id": NAME,
        "object": constant("chat.completion"),
        "created": COUNT,
        "model": NAME,
        "choices": array(
            required({"index": COUNT, "finish_reason": {"enum": FINISHES}, "message": MESSAGE}), least=1
        ),
    }
)
ANSWER = required(
    {"choices": array(required({"finish_reason": {"enum": FINISHES}, "message": OBJECT}), least=1)}
)
"""What each check needs of a completion; `chat.shape` looks at the whole."""
NULLABLE = required(
    {"choices": array(required({"logprobs": {}, "message": required({"refusal": NULLABLE_STRING})}))}
)
USAGE = required({"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT})
CALL = required(
    {"id": NAME, "type": constant("function"), "function": required({"name": NAME, "arguments": STRING})}
)
CHUNK = required(
    {
        "id": NAME,
        "object": constant("chat.completion.chunk"),
        "created": COUNT,
        "model": NAME,
        "choices": array(
            required({"index": COUNT, "delta": OBJECT, "finish_reason": {"enum": [*FINISHES, None]}})
        ),
    }
)
CANDIDATE = {"token": STRING, "logprob": NUMBER, "bytes": {"type": ["array", "null"], "items": COUNT}}
LOGPROB = required({**CANDIDATE, "top_logprobs": array(required(CANDIDATE))})
TOOL = {
    "type": "function",
    "function": {"name": FUNCTION, "description": DESCRIPTION, "parameters": PARAMETERS},
}
SCHEMA_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "person", "strict": True, "schema": PERSON_SCHEMA},
}


def request(server: Server, text: str, /, **fields: Any) -> dict[str, Any]:
    """A request with one message."""
    body = {"model": server.model, "messages": [{"role": "user", "content": text}]}
    return body | {"max_completion_tokens": TOKENS, "store": False} | fields


async def completion(
    server: Server, text: str = GREETING, /, *, optional: bool = False, **fields: Any
) -> Any:
    """The answer, without a look at its shape."""
    return answered(await server.post(PATH, request(server, text, **fields)), optional=optional)


async def checked(server: Server, text: str = GREETING, /, *, optional: bool = False, **fields: Any) -> Any:
    """The first choice of an answer that can be read."""
    body = await completion(server, text, optional=optional, **fields)
    conforms(body, ANSWER)
    return body["choices"][0]


async def stream(server: Server, text: str = GREETING, /, *, optional: bool = False, **fields: Any) -> Answer:
    """A streamed answer."""
    answer = await server.post(PATH, request(server, text, stream=True, **fields))
    if answer.status != 200:
        answered(answer, optional=optional)
    return answer


async def chunks(
    server: Server, text: str = GREETING, /, *, optional: bool = False, **fields: Any
) -> list[Any]:
    """The chunks of a streamed answer, without a look at their shape."""
    return chunks_of((await stream(server, text, optional=optional, **fields)).events())


def chunks_of(events: list[Event]) -> list[Any]:
    """The chunks among the events of a stream."""
    found = [object_of(event.data, "a chunk") for event in events if event.data != "[DONE]"]
    expect(found, "the stream has no chunk")
    for chunk in found:
        expect("error" not in chunk, f"the stream has an error: {chunk.get('error')}")
    return found


def deltas(chunks: list[Any]) -> list[Any]:
    """The choices of chunks whose shape is right, in order."""
    for chunk in chunks:
        conforms(chunk, CHUNK, "a chunk")
    return [choice for chunk in chunks for choice in chunk["choices"]]


@MODELS.check(
    "list",
    "Clients cannot offer a choice of models; SDKs read missing fields as None, or raise.",
    f"{REFERENCE}/models/list; {OPENAPI}.Model",
)
async def models(server: Server) -> None:
    """GET /v1/models lists models with id, object, created and owned_by."""
    body = answered(await server.get("/v1/models"))
    model = required({"id": NAME, "object": constant("model"), "created": COUNT, "owned_by": STRING})
    conforms(body, required({"object": constant("list"), "data": array(model)}))


@CHAT.check(
    "shape",
    "SDKs raise, or show an empty answer.",
    f"{REFERENCE}/chat/object; {OPENAPI}.CreateChatCompletionResponse",
)
async def shape(server: Server) -> None:
    """An answer has the fields that every client reads."""
    conforms(await completion(server), COMPLETION)


@CHAT.check(
    "nullable",
    "Clients with types generated from the OpenAPI document refuse the answer; most SDKs do not notice.",
    f"{OPENAPI}.CreateChatCompletionResponse.choices, .ChatCompletionResponseMessage",
)
async def nullable(server: Server) -> None:
    """The required fields that may be null are there: logprobs and message.refusal."""
    conforms(await completion(server), NULLABLE)


@CHAT.check(
    "usage",
    "Costs and the size of the context are counted wrongly.",
    f"{OPENAPI}.CompletionUsage",
)
async def usage(server: Server) -> None:
    """The usage counts the tokens, and its total is their sum."""
    body = await completion(server)
    if body.get("usage") is None:
        raise NotOffered("the answer has no usage, which is optional")
    check_usage(body["usage"])


def check_usage(found: Mapping[str, Any]) -> None:
    """Fail unless this is right."""
    conforms(found, USAGE, "usage")
    parts = found["prompt_tokens"], found["completion_tokens"]
    expect(sum(parts) == found["total_tokens"], f"{parts} are not {found['total_tokens']} together")
    expect(all(parts), f"no tokens are counted: {parts}")


@CHAT.check(
    "content_parts",
    "Agents and UIs that always send parts, which most with images do, cannot use the server.",
    f"{REFERENCE}/chat/create#chat-create-messages; {OPENAPI}.ChatCompletionRequestUserMessage",
)
async def content_parts(server: Server) -> None:
    """The content of a message may be a list of text parts."""
    parts = [{"type": "text", "text": GREETING}]
    await checked(server, messages=[{"role": "user", "content": parts}])


@CHAT.check(
    "stream.framing",
    "Clients wait for more, or take a cut answer for a whole one.",
    f"{REFERENCE}/chat/create#chat-create-stream; {EVENT_STREAM}",
)
async def framing(server: Server) -> None:
    """A stream is text/event-stream, and ends with data: [DONE]."""
    answer = await stream(server)
    expect(answer.media_type == "text/event-stream", f"the media type is {answer.media_type!r}")
    events = answer.events()
    expect(events and events[-1].data == "[DONE]", f"the stream ends with {events[-1:]}")


@CHAT.check(
    "stream.shape",
    "SDKs raise in the middle of an answer; accumulators of chunks make several answers of one.",
    f"{REFERENCE}/chat-streaming; {OPENAPI}.CreateChatCompletionStreamResponse",
)
async def stream_shape(server: Server) -> None:
    """Every chunk has its fields; id and created are the same in all."""
    found = await chunks(server)
    deltas(found)
    for name in ("id", "created"):
        values = {chunk[name] for chunk in found}
        expect(len(values) == 1, f"{name} changes: {sorted(map(str, values))[:3]}")


@CHAT.check(
    "stream.order",
    "Clients show a cut answer as whole, or lose its end.",
    f"{REFERENCE}/chat-streaming; {OPENAPI}.CreateChatCompletionStreamResponse.choices.finish_reason",
)
async def order(server: Server) -> None:
    """A choice ends with exactly one finish_reason, and nothing of it follows."""
    found = deltas(await chunks(server))
    ends = [at for at, choice in enumerate(found) if choice["finish_reason"] is not None]
    expect(len(ends) == 1, f"{len(ends)} chunks have a finish_reason")
    after = [choice["delta"] for choice in found[ends[0] + 1 :]]
    expect(not any(delta.get("content") for delta in after), f"text follows the end: {after[:1]}")


@CHAT.check(
    "stream.text",
    "Clients that stream show an empty answer.",
    f"{OPENAPI}.ChatCompletionStreamResponseDelta",
)
async def stream_text(server: Server) -> None:
    """A streamed answer has text, in content of its deltas."""
    found = deltas(await chunks(server))
    text = "".join(text_of(choice["delta"].get("content")) for choice in found)
    if not text and any(choice["finish_reason"] == "length" for choice in found):
        raise Inconclusive(f"the model has not come to an answer in {TOKENS} tokens")
    expect(text, "no delta has content")


def text_of(content: object) -> str:
    """The text of a delta."""
    expect(content is None or isinstance(content, str), f"content is {content!r}")
    return content if isinstance(content, str) else ""


@CHAT.check(
    "stream.usage",
    "Clients count no tokens for streamed answers.",
    f"{OPENAPI}.ChatCompletionStreamOptions.include_usage",
)
async def stream_usage(server: Server) -> None:
    """With include_usage, the last chunk has no choices, and the usage of the whole request."""
    found = await chunks(server, optional=True, stream_options={"include_usage": True})
    expect(found[-1].get("choices") == [], f"the last chunk has the choices {found[-1].get('choices')}")
    check_usage(found[-1].get("usage") or {})


@CHAT.check(
    "stream.usage_null",
    "Clients that read usage of each chunk by its name raise; most SDKs do not notice.",
    f"{OPENAPI}.ChatCompletionStreamOptions.include_usage",
)
async def stream_usage_null(server: Server) -> None:
    """With include_usage, all other chunks have usage: null."""
    found = await chunks(server, optional=True, stream_options={"include_usage": True})
    for chunk in found[:-1]:
        expect("usage" in chunk and chunk["usage"] is None, f"usage is {chunk.get('usage', 'absent')}")


def calls_of(choice: Any) -> list[Any]:
    """The calls of a choice, at least one."""
    calls = choice["message"].get("tool_calls")
    if not calls:
        raise Inconclusive(f"the model has called no function: {choice['message'].get('content')}")
    conforms(calls, array(CALL), "tool_calls")
    return list(calls)


def check_call(name: str, arguments: str, *, cut: bool) -> None:
    """Fail unless a call is one of the function that there is, with arguments as its parameters say."""
    expect(name == FUNCTION, f"the function {name!r} was called, which was not offered")
    if cut:
        raise Inconclusive(f"the call was cut after {TOKENS} tokens")
    object_of(arguments, "arguments")


@CHAT.check(
    "tools.call",
    "Agents do not see the call, cannot answer it, or crash on its arguments.",
    f"{OPENAPI}.ChatCompletionMessageToolCall, .CreateChatCompletionResponse.choices.finish_reason",
)
async def tools_call(server: Server) -> None:
    """A call has id, type, name, and arguments that are JSON; its finish_reason is tool_calls."""
    choice = await checked(server, WEATHER, optional=True, tools=[TOOL], tool_choice="auto")
    finish = choice["finish_reason"]
    for call in calls_of(choice):
        check_call(call["function"]["name"], call["function"]["arguments"], cut=finish == "length")
    expect(finish == "tool_calls", f"finish_reason is {finish!r} although a function is called")


@CHAT.check(
    "tools.stream",
    "Streaming agents lose the call, or join the parts of two.",
    f"{OPENAPI}.ChatCompletionMessageToolCallChunk",
)
async def tools_stream(server: Server) -> None:
    """The first part of a streamed call has index, id and name; all parts together are its arguments."""
    found = deltas(await chunks(server, WEATHER, optional=True, tools=[TOOL], tool_choice="auto"))
    parts = [part for choice in found for part in choice["delta"].get("tool_calls") or []]
    if not parts:
        raise Inconclusive("the model has called no function")
    finish = next((choice["finish_reason"] for choice in found if choice["finish_reason"]), None)
    for call in joined(parts).values():
        check_call(call["name"], call["arguments"], cut=finish == "length")
    expect(finish == "tool_calls", f"finish_reason is {finish!r} although a function is called")


def joined(parts: list[Any]) -> dict[int, dict[str, str]]:
    """The calls that the parts of a stream are, by their index."""
    calls: dict[int, dict[str, str]] = {}
    for part in parts:
        conforms(part, required({"index": COUNT}), "a part of a call")
        function = part.get("function") or {}
        if part["index"] not in calls:
            conforms(part, required({"id": NAME, "function": required({"name": NAME})}), "the first part")
            calls[part["index"]] = {"id": part["id"], "name": function["name"], "arguments": ""}
        call = calls[part["index"]]
        expect(part.get("id") in (None, "", call["id"]), f"the id of a call changes: {part.get('id')}")
        call["arguments"] += text_of(function.get("arguments"))
    return calls


@CHAT.check(
    "tools.required",
    "Agents that need a call get text, and stop.",
    f"{OPENAPI}.ChatCompletionToolChoiceOption",
)
async def tools_required(server: Server) -> None:
    """tool_choice: "required" makes the model call a function."""
    choice = await checked(server, FORCED, optional=True, tools=[TOOL], tool_choice="required")
    if choice["finish_reason"] == "length":
        raise Inconclusive(f"the answer was cut after {TOKENS} tokens")
    expect(choice["message"].get("tool_calls"), f"no call, but {choice['message'].get('content')!r}")


@CHAT.check(
    "tools.none",
    "Clients get calls in a step where they cannot answer them.",
    f"{OPENAPI}.ChatCompletionToolChoiceOption",
)
async def tools_none(server: Server) -> None:
    """tool_choice: "none" lets the model call no function."""
    choice = await checked(server, WEATHER, optional=True, tools=[TOOL], tool_choice="none")
    expect(not choice["message"].get("tool_calls"), "a function is called")


@CHAT.check(
    "tools.result",
    "Agents stop after the first call.",
    f"{OPENAPI}.ChatCompletionRequestToolMessage, .ChatCompletionRequestAssistantMessage",
)
async def tools_result(server: Server) -> None:
    """A conversation with a call and its result goes on."""
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": FUNCTION, "arguments": '{"city":"Paris"}'},
    }
    messages = [
        {"role": "user", "content": WEATHER},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny, 24 °C"},
    ]
    await checked(server, optional=True, messages=messages, tools=[TOOL])


@CHAT.check(
    "structured.schema",
    "Programs that decode the answer crash.",
    "https://platform.openai.com/docs/guides/structured-outputs; "
    f"{OPENAPI}.ResponseFormatJsonSchema.json_schema.strict",
)
async def structured(server: Server) -> None:
    """With a strict JSON schema, the answer is JSON that the schema allows."""
    choice = await checked(server, PERSON, optional=True, response_format=SCHEMA_FORMAT)
    conforms(decoded(choice), PERSON_SCHEMA, "the answer")


@CHAT.check(
    "structured.object",
    "Programs that decode the answer crash.",
    f"{OPENAPI}.ResponseFormatJsonObject; https://platform.openai.com/docs/guides/structured-outputs",
)
async def json_object(server: Server) -> None:
    """With response_format json_object, the answer is a JSON object."""
    decoded(await checked(server, PERSON, optional=True, response_format={"type": "json_object"}))


def decoded(choice: Any) -> Any:
    """The JSON object that an answer is."""
    if choice["finish_reason"] in ("length", "content_filter") or choice["message"].get("refusal"):
        raise Inconclusive(f"the answer ended early: {choice['finish_reason']}")
    return object_of(choice["message"]["content"] or "", "the answer")


@CHAT.check(
    "endings.length",
    "Clients take a cut answer for a whole one.",
    f"{OPENAPI}.CreateChatCompletionRequest.max_completion_tokens, "
    ".CreateChatCompletionResponse.choices.finish_reason",
)
async def length(server: Server) -> None:
    """An answer that max_completion_tokens cuts has the finish_reason "length"."""
    body = await completion(server, COUNTING, max_completion_tokens=FEW)
    conforms(body, ANSWER)
    choice, written = body["choices"][0], (body.get("usage") or {}).get("completion_tokens")
    expect(written is None or written <= FEW, f"{written} tokens were written, of at most {FEW}")
    if choice["finish_reason"] == "stop" and written is not None and written < FEW:
        raise Inconclusive("the model has stopped by itself")
    expect(choice["finish_reason"] == "length", f"finish_reason is {choice['finish_reason']!r}")


@CHAT.check(
    "endings.stop",
    "Programs that cut answers by markers read text that should not be there.",
    f"{OPENAPI}.StopConfiguration",
)
async def stop(server: Server) -> None:
    """An answer ends before a stop sequence, which is not in it."""
    choice = await checked(server, LETTERS, optional=True, stop=STOPS)
    content = choice["message"]["content"] or ""
    expect(not any(text in content for text in STOPS), f"a stop sequence is in the answer: {content}")
    if choice["finish_reason"] == "length":
        raise Inconclusive(f"no stop sequence was written in {TOKENS} tokens")
    expect(choice["finish_reason"] == "stop", f"finish_reason is {choice['finish_reason']!r}")


@CHAT.check(
    "choices",
    "Clients that compare answers get one.",
    f"{OPENAPI}.CreateChatCompletionRequest.n",
)
async def choices(server: Server) -> None:
    """n: 2 gives two choices, with the indexes 0 and 1."""
    body = await completion(server, optional=True, n=2)
    conforms(body, required({"choices": array(required({"index": COUNT}))}))
    indexes = sorted(choice["index"] for choice in body["choices"])
    expect(indexes == [0, 1], f"the choices have the indexes {indexes}")


@CHAT.check(
    "logprobs",
    "Programs that measure certainty have nothing to read.",
    f"{OPENAPI}.CreateChatCompletionRequest.logprobs, .ChatCompletionTokenLogprob",
)
async def logprobs(server: Server) -> None:
    """The fields logprobs and top_logprobs give the log probabilities of the tokens."""
    choice = await checked(server, optional=True, logprobs=True, top_logprobs=2)
    conforms(choice, required({"logprobs": required({"content": array(LOGPROB, least=1)})}), "the choice")


@CHAT.check(
    "errors.shape",
    "Clients show no reason, or take the refusal for an answer.",
    f"https://platform.openai.com/docs/guides/error-codes; {OPENAPI}.ErrorResponse",
)
async def errors(server: Server) -> None:
    """A request without messages is refused with an error that has a message and a type."""
    error_shape(await server.post(PATH, {"model": server.model}), ERROR, [400, 422])


@CHAT.check(
    "errors.fields",
    "SDKs with types give None for param and code, or a number where a text is expected.",
    f"{OPENAPI}.Error",
)
async def error_fields(server: Server) -> None:
    """An error has message, type, param and code, all texts or null."""
    error_shape(await server.post(PATH, {"model": server.model}), ERROR_FIELDS, [400, 422])


@CHAT.check(
    "errors.json",
    "A fault of a client is reported as one of the server, and is sent again and again.",
    "https://platform.openai.com/docs/guides/error-codes",
)
async def errors_json(server: Server) -> None:
    """A body that is not JSON is refused with status 400."""
    error_shape(await server.post(PATH, b'{"model": '), ERROR, [400, 422])


@CHAT.check(
    "state.stored",
    "Dashboards and evaluations find no completions.",
    f"{REFERENCE}/chat/get, {REFERENCE}/chat/delete; {OPENAPI}.ChatCompletionDeleted",
)
async def stored(server: Server) -> None:
    """A completion with store: true is found by its id, and can be deleted."""
    answer = await server.post(PATH, request(server, GREETING, store=True), fresh=True)
    body = answered(answer, optional=True)
    conforms(body, required({"id": NAME, "choices": array(OBJECT, least=1)}))
    path = f"{PATH}/{body['id']}"
    server.will_store(path)
    found = answered(await server.get(path))
    expect(found.get("id") == body["id"], f"GET gives the completion {found.get('id')!r}")
    expect(found.get("choices") == body["choices"], "GET gives other choices than the answer has had")
    gone = answered(await server.delete(path))
    conforms(gone, required({"id": constant(body["id"]), "deleted": constant(value=True)}))
    again = await server.get(path)
    expect(again.status == 404, f"status {again.status} for a completion that was deleted")
