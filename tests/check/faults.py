"""Faults that stand between a server and what checks it: each changes an answer, and says which check finds it.

To plant a fault: a line in `FAULTS`, with the id of the check and a function that changes a `Said`.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from antiphon.check import chat, decisions, messages, responses

Json = Any


class Said(Struct):
    """An answer of a server, on its way to the client, and the request that it answers."""

    method: str
    path: str
    asked: Json
    status: int
    media_type: str
    raw: bytes

    @property
    def streamed(self) -> bool:
        return self.media_type.startswith("text/event-stream")

    @property
    def events(self) -> list[Json]:
        """The events, as objects; without [DONE]."""
        blocks = [
            block.split("data: ", 1)[1] for block in self.raw.decode().split("\n\n") if "data: " in block
        ]
        return [json.loads(data) for data in blocks if data != "[DONE]"]

    def stream(self, events: list[Json], *, named: bool | None = None, done: bool | None = None) -> None:
        """Send these events instead, with names, and [DONE], as before."""
        named = b"event: " in self.raw if named is None else named
        done = b"data: [DONE]" in self.raw if done is None else done
        head = [f"event: {event.get('type')}\n" if named else "" for event in events]
        text = [f"{name}data: {json.dumps(event)}\n\n" for name, event in zip(head, events, strict=True)]
        self.raw = "".join([*text, "data: [DONE]\n\n" if done else ""]).encode()


Fault = Callable[[Said], None]


class Faulty:
    """An ASGI application that gives the answers of another one with a `fault`."""

    fault: Fault | None = None
    changed = False
    """The fault has changed an answer: one that changes nothing proves nothing."""

    def __init__(self) -> None:
        self.broken: list[Exception] = []

    def plant(self, fault: Fault) -> None:
        self.fault, self.changed = fault, False

    def __call__(self, app: Any) -> Any:
        async def answer(scope: Any, receive: Any, send: Any) -> None:
            await self._answer(app, scope, receive, send)

        return answer

    async def _answer(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or self.fault is None:
            await app(scope, receive, send)
            return
        asked, sent = await _body(receive), list[Any]()
        first = [{"type": "http.request", "body": asked, "more_body": False}]

        async def again() -> Any:
            if first:
                return first.pop()
            while (message := await receive())["type"] != "http.disconnect":
                pass  # uvicorn may say twice that the body is whole
            return message

        async def keep(message: Any) -> None:
            sent.append(message)

        await app(scope, again, keep)
        await self._send(scope, asked, sent, send)

    async def _send(self, scope: Any, asked: bytes, sent: list[Any], send: Any) -> None:
        headers = {name.lower(): value for name, value in sent[0]["headers"]}
        said = Said(
            scope["method"],
            scope["path"],
            _json(asked),
            sent[0]["status"],
            headers.get(b"content-type", b"").decode(),
            b"".join(each.get("body", b"") for each in sent[1:]),
        )
        self._change(said)
        headers[b"content-type"] = said.media_type.encode()
        headers[b"content-length"] = b"%d" % len(said.raw)
        await send({"type": "http.response.start", "status": said.status, "headers": [*headers.items()]})
        await send({"type": "http.response.body", "body": said.raw})

    def _change(self, said: Said) -> None:
        assert self.fault is not None
        before = said.status, said.media_type, said.raw
        try:
            self.fault(said)
        except Exception as error:  # it must not look like a fault of the server
            self.broken.append(error)
        self.changed = self.changed or before != (said.status, said.media_type, said.raw)


async def _body(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


def _json(body: bytes) -> Json:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _change(value: Json, place: list[str], change: Callable[[Json, Any], None]) -> None:
    """Change what is at this place, if it is there."""
    *way, last = [int(part) if part.isdecimal() else part for part in place]
    for part in way:
        if isinstance(value, dict) and str(part) in value:
            value = value[str(part)]
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return
    if isinstance(value, dict) and isinstance(last, int):
        last = str(last)
    if isinstance(value, dict) or (isinstance(value, list) and isinstance(last, int) and last < len(value)):
        change(value, last)


def _pop(value: Json, key: Any) -> None:
    if isinstance(value, list) or key in value:
        value.pop(key)


def answers(change: Callable[[Json], Json | None], where: str = "") -> Fault:
    """Change the JSON of answers, at paths that begin like this."""

    def fault(said: Said) -> None:
        if not said.streamed and said.path.startswith(where) and (value := _json(said.raw)) is not None:
            changed = change(value)
            said.raw = json.dumps(value if changed is None else changed).encode()

    return fault


def drop(place: str, where: str = "") -> Fault:
    """Leave out a field of answers."""
    return answers(lambda value: _change(value, place.split("."), _pop), where)


def put(place: str, new: Json, where: str = "") -> Fault:
    """Have another value in a field of answers."""
    return answers(
        lambda value: _change(value, place.split("."), lambda at, key: at.__setitem__(key, new)), where
    )


def events(change: Callable[[list[Json]], list[Json] | None]) -> Fault:
    """Change the events of streams."""

    def fault(said: Said) -> None:
        if said.streamed:
            found = said.events
            changed = change(found)
            said.stream(found if changed is None else changed)

    return fault


def without(type_: str) -> Fault:
    """Leave out the events of a type."""
    return events(lambda found: [event for event in found if event["type"] != type_])


def twice(type_: str) -> Fault:
    """Send the events of a type twice."""
    return events(
        lambda found: [each for event in found for each in [event] * (1 + (event["type"] == type_))]
    )


def drop_in(type_: str | None, place: str) -> Fault:
    """Leave out a field of the events of a type, or of all."""
    return put_in(type_, place, None, _pop)


def put_in(
    type_: str | None, place: str, new: Json, change: Callable[[Json, Any], None] | None = None
) -> Fault:
    """Have another value in a field of the events of a type, or of all."""
    do = change or (lambda at, key: at.__setitem__(key, new))

    def changed(found: list[Json]) -> None:
        for event in found:
            if type_ is None or event.get("type") == type_:
                _change(event, place.split("."), do)

    return events(changed)


def status(new: int, method: str = "POST", where: str = "", asked: Callable[[Json], bool] = bool) -> Fault:
    """Have another status."""

    def fault(said: Said) -> None:
        if said.method == method and said.path.startswith(where) and (method != "POST" or asked(said.asked)):
            said.status = new

    return fault


def has(name: str) -> Callable[[Json], bool]:
    """The request has this field."""
    return lambda asked: isinstance(asked, dict) and name in asked


def unnamed(said: Said) -> None:
    if said.streamed:
        said.stream(said.events, named=False)


def undone(said: Said) -> None:
    if said.streamed:
        said.stream(said.events, done=False)


def as_json(said: Said) -> None:
    said.media_type = "application/json"


def misnamed(said: Said) -> None:
    said.raw = said.raw.replace(b"event: ", b"event: x", 1)


def cut(said: Said) -> None:
    """The last event never ends."""
    said.raw = said.raw.rstrip(b"\n")


def accepted(said: Said) -> None:
    """What is wrong is not refused."""
    if said.status >= 400:
        said.status, said.raw = 200, b'{"id": "x"}'


def plain(said: Said) -> None:
    """Errors are texts."""
    if said.status >= 400:
        said.raw = b"Bad Request"


def places(schema: Mapping[str, Any], way: tuple[str, ...] = ()) -> Iterator[str]:
    """Each field that a schema requires, the first of each list."""
    for name in schema.get("required", ()):
        yield ".".join((*way, name))
        yield from places(schema["properties"][name], (*way, name))
    if "items" in schema:
        yield from places(schema["items"], (*way, "0"))


def all_of(
    check: str, schema: Mapping[str, Any], way: str = "", where: str = ""
) -> Iterator[tuple[str, Fault]]:
    """A fault for each field that a schema requires."""
    for place in places(schema):
        yield check, drop(f"{way}{place}", where)


def all_in(
    check: str, table: Mapping[str, Mapping[str, Any]], types: set[str]
) -> Iterator[tuple[str, Fault]]:
    """A fault for each field of each type of event."""
    for type_ in types:
        for name in table[type_]:
            yield check, drop_in(type_, name)


def chunk_twice(found: list[Json]) -> list[Json]:
    """The last chunk with a choice comes twice."""
    return [*found, [each for each in found if each["choices"]][-1]]


def no_finish(found: list[Json]) -> None:
    for chunk in found:
        for choice in chunk["choices"]:
            choice["finish_reason"] = None


def late_text(found: list[Json]) -> list[Json]:
    after = json.loads(json.dumps(found[0]))
    after["choices"][0] |= {"delta": {"content": "more"}, "finish_reason": None}
    return [*found, after]


def calls_text(value: Json) -> None:
    """A call where none was allowed."""
    call = {"id": "call_x", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    _change(value, ["choices", "0", "message", "tool_calls"], lambda at, key: at.__setitem__(key, [call]))


def renamed(found: list[Json]) -> None:
    """Each chunk has another id."""
    for at, chunk in enumerate(found):
        chunk["id"] = f"chatcmpl-{at}"


def first_only(value: Json) -> None:
    value["choices"] = value["choices"][:1]


def sum_off(first: str) -> Callable[[Json], None]:
    def change(value: Json) -> None:
        if "usage" in value:
            value["usage"][first] += 1

    return change


def empty_part(found: list[Json]) -> None:
    """Parts of calls without arguments."""
    for chunk in found:
        for choice in chunk["choices"]:
            for part in choice["delta"].get("tool_calls") or []:
                part["function"].pop("arguments", None)


TEXT = "choices.0.message.content"
CALL = "choices.0.message.tool_calls.0"

CHAT: list[tuple[str, Fault]] = [
    ("models.list", drop("data.0.owned_by")),
    ("models.list", drop("data.0.created")),
    ("models.list", put("object", "models")),
    *all_of("chat.shape", chat.COMPLETION),
    ("chat.shape", put("object", "text_completion")),
    ("chat.shape", put("created", 1.5)),
    ("chat.shape", status(500)),
    ("chat.shape", answers(lambda value: [value])),
    *all_of("chat.nullable", chat.NULLABLE),
    *all_of("chat.usage", chat.USAGE, "usage."),
    ("chat.usage", answers(sum_off("prompt_tokens"))),
    ("chat.content_parts", status(400)),
    ("chat.stream.framing", as_json),
    ("chat.stream.framing", undone),
    ("chat.stream.framing", cut),
    ("chat.stream.shape", drop_in(None, "id")),
    ("chat.stream.shape", drop_in(None, "choices.0.index")),
    ("chat.stream.shape", drop_in(None, "choices.0.finish_reason")),
    ("chat.stream.shape", put_in(None, "object", "chat.completion")),
    ("chat.stream.shape", events(renamed)),
    ("chat.stream.shape", events(lambda _: [{"error": {"message": "no"}}])),
    ("chat.stream.order", events(no_finish)),
    ("chat.stream.order", events(chunk_twice)),
    ("chat.stream.order", events(late_text)),
    ("chat.stream.text", drop_in(None, "choices.0.delta.content")),
    ("chat.stream.usage", events(lambda found: found[:-1])),
    ("chat.stream.usage", drop_in(None, "usage")),
    ("chat.stream.usage_null", events(lambda found: [{**chunk, "usage": {}} for chunk in found])),
    ("chat.stream.usage_null", drop_in(None, "usage")),
    *all_of("chat.tools.call", chat.CALL, f"{CALL}."),
    ("chat.tools.call", put(f"{CALL}.function.arguments", {"city": "Paris"})),
    ("chat.tools.call", put(f"{CALL}.function.arguments", '{"city": "Par')),
    ("chat.tools.call", put(f"{CALL}.function.name", "get_time")),
    ("chat.tools.call", put("choices.0.finish_reason", "stop")),
    ("chat.tools.stream", drop_in(None, "choices.0.delta.tool_calls.0.index")),
    ("chat.tools.stream", drop_in(None, "choices.0.delta.tool_calls.0.id")),
    ("chat.tools.stream", drop_in(None, "choices.0.delta.tool_calls.0.function.name")),
    ("chat.tools.stream", events(empty_part)),
    ("chat.tools.stream", events(no_finish)),
    ("chat.tools.required", put("choices.0.message.tool_calls", [])),
    ("chat.tools.none", answers(calls_text)),
    ("chat.tools.result", status(500)),
    ("chat.structured.schema", put(TEXT, '{"name": "Ada"}')),
    ("chat.structured.schema", put(TEXT, '```json\n{"name": "Ada", "age": 36}\n```')),
    ("chat.structured.object", put(TEXT, "Ada, 36")),
    ("chat.endings.length", put("choices.0.finish_reason", "stop")),
    ("chat.endings.length", put("usage.completion_tokens", 17)),
    ("chat.endings.stop", put(TEXT, "Apples, pears")),
    ("chat.endings.stop", put("choices.0.finish_reason", "tool_calls")),
    ("chat.choices", answers(first_only)),
    ("chat.choices", put("choices.1.index", 0)),
    ("chat.logprobs", put("choices.0.logprobs", None)),
    *all_of("chat.logprobs", chat.LOGPROB, "choices.0.logprobs.content.0."),
    ("chat.errors.shape", accepted),
    ("chat.errors.shape", plain),
    ("chat.errors.shape", drop("error.message")),
    ("chat.errors.shape", status(500)),
    ("chat.errors.fields", drop("error.param")),
    ("chat.errors.fields", put("error.code", 400)),
    ("chat.errors.json", accepted),
    ("chat.errors.json", status(500, asked=lambda _: True)),
    ("chat.state.stored", put("choices", [], "/v1/chat/completions/")),
    ("chat.state.stored", put("deleted", new=False)),
    ("chat.state.stored", status(200, "GET")),
]


def number_off(found: list[Json]) -> None:
    found[2]["sequence_number"] = 0


def id_off(type_: str) -> Callable[[list[Json]], None]:
    def change(found: list[Json]) -> None:
        for event in found:
            if event["type"] == type_ and "item" in event:
                event["item"]["id"] = "msg_other"
            elif event["type"] == type_:
                event["response"]["id"] = "resp_other"

    return change


def swapped(found: list[Json]) -> None:
    found[0], found[1] = found[1], found[0]


RESPONSES: list[tuple[str, Fault]] = [
    *all_of("responses.shape", responses.RESPONSE),
    *all_of("responses.shape", responses.MESSAGE, "output.0."),
    *all_of("responses.shape", responses.TEXT_PART, "output.0.content.0."),
    ("responses.shape", put("status", "failed")),
    ("responses.shape", put("output", [])),
    *[("responses.fields", drop(name)) for name in responses.FIELDS],
    *all_of("responses.items", responses.ITEM, "output.0."),
    (
        "responses.items",
        answers(lambda value: value["output"].insert(0, {**value["output"][0], "status": "incomplete"})),
    ),
    *all_of("responses.usage", responses.USAGE, "usage."),
    ("responses.usage", answers(sum_off("output_tokens"))),
    ("responses.input_items", status(400)),
    ("responses.stream.framing", as_json),
    ("responses.stream.framing", unnamed),
    ("responses.stream.framing", misnamed),
    ("responses.stream.done", undone),
    *all_in(
        "responses.stream.shape",
        responses.EVENTS,
        {*responses.EVENTS}
        - {
            "response.incomplete",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
        },
    ),
    ("responses.stream.sequence", drop_in(None, "sequence_number")),
    ("responses.stream.sequence", events(number_off)),
    *[
        ("responses.stream.order", without(f"response.{name}"))
        for name in (
            "created",
            "completed",
            "output_item.added",
            "output_item.done",
            "content_part.added",
            "content_part.done",
        )
    ],
    ("responses.stream.order", twice("response.completed")),
    ("responses.stream.order", twice("response.output_item.added")),
    ("responses.stream.order", events(swapped)),
    ("responses.stream.text", without("response.output_text.delta")),
    ("responses.stream.text", twice("response.output_text.delta")),
    ("responses.stream.text", put_in("response.output_text.done", "text", "other")),
    ("responses.stream.text", put_in("response.completed", "response.output", [])),
    *[
        ("responses.stream.ids", events(id_off(f"response.{name}")))
        for name in ("output_item.added", "output_item.done", "in_progress", "completed")
    ],
    ("responses.stream.ids", put_in("response.output_text.delta", "item_id", "msg_other")),
    ("responses.stream.ids", put_in("response.completed", "response.output.0.id", "msg_other")),
    *all_of("responses.tools.call", responses.CALL, "output.0."),
    ("responses.tools.call", put("output.0.arguments", "{")),
    ("responses.tools.call", put("output.0.name", "other")),
    ("responses.tools.stream", without("response.function_call_arguments.delta")),
    ("responses.tools.stream", without("response.function_call_arguments.done")),
    ("responses.tools.stream", without("response.output_item.added")),
    ("responses.tools.stream", twice("response.function_call_arguments.delta")),
    ("responses.tools.stream", put_in("response.completed", "response.output.0.arguments", "{}")),
    ("responses.tools.required", put("output", [])),
    ("responses.tools.none", put("output.0.type", "function_call")),
    ("responses.tools.result", status(500)),
    ("responses.structured.schema", put("output.0.content.0.text", "Ada")),
    ("responses.structured.schema", put("output.0.content.0.text", '{"name": 1, "age": 1}')),
    ("responses.endings.incomplete", put("status", "completed")),
    ("responses.endings.incomplete", put("incomplete_details", None)),
    ("responses.endings.incomplete", put("usage.output_tokens", 17)),
    ("responses.endings.stream", put_in("response.incomplete", "type", "response.completed")),
    ("responses.endings.stream", put_in("response.incomplete", "response.status", "completed")),
    ("responses.errors.shape", accepted),
    ("responses.errors.shape", plain),
    ("responses.errors.shape", put("error.type", None)),
    ("responses.errors.fields", drop("error.code")),
    ("responses.input_tokens", put("object", "x")),
    ("responses.input_tokens", put("input_tokens", 0)),
    ("responses.state.retrieve", put("output", [], "/v1/responses/")),
    ("responses.state.retrieve", status(500, "DELETE")),
    ("responses.state.retrieve", status(200, "GET")),
    ("responses.state.store_false", status(200, "GET")),
    ("responses.state.previous", put("previous_response_id", None)),
    ("responses.state.previous", put("usage.input_tokens", 9)),
    ("responses.state.unknown", accepted),
    ("responses.state.unknown", plain),
    ("conversations.lifecycle", put("data", [], "/v1/conversations/")),
    ("conversations.lifecycle", answers(lambda value: value["data"].reverse() if "data" in value else None)),
    ("conversations.lifecycle", put("metadata", {}, "/v1/conversations/")),
    ("conversations.lifecycle", put("deleted", new=False)),
    ("conversations.lifecycle", status(200, "GET", "/v1/conversations/")),
    ("conversations.response", put("conversation", None)),
    (
        "conversations.response",
        answers(lambda value: value.update(data=value["data"][:2]) if "data" in value else None),
    ),
    (
        "conversations.response",
        answers(lambda value: value.update(data=value["data"][:3]) if "data" in value else None),
    ),
]


def jumping(found: list[Json]) -> None:
    for event in found:
        if "index" in event:
            event["index"] += 1


MESSAGES: list[tuple[str, Fault]] = [
    *all_of("messages.shape", messages.MESSAGE),
    ("messages.shape", put("content", [])),
    ("messages.shape", put("stop_reason", "stop")),
    ("messages.shape", status(500)),
    *all_of("messages.usage", messages.USAGE, "usage."),
    ("messages.usage", put("usage.output_tokens", 0)),
    ("messages.system", status(400)),
    ("messages.stream.framing", as_json),
    ("messages.stream.framing", unnamed),
    ("messages.stream.framing", drop_in("content_block_delta", "type")),
    *all_in("messages.stream.shape", messages.EVENTS, {*messages.EVENTS}),
    *[
        ("messages.stream.shape", drop_in("message_start", f"message.{place}"))
        for place in places(messages.STARTED)
    ],
    ("messages.stream.shape", put_in("message_start", "message.stop_reason", "end_turn")),
    *[("messages.stream.order", without(name)) for name in messages.EVENTS if name != "content_block_delta"],
    ("messages.stream.order", twice("message_stop")),
    ("messages.stream.order", twice("content_block_start")),
    ("messages.stream.order", events(jumping)),
    ("messages.stream.text", without("content_block_delta")),
    ("messages.stream.text", drop_in("content_block_delta", "delta.text")),
    ("messages.stream.usage", drop_in("message_start", "message.usage.input_tokens")),
    ("messages.stream.usage", drop_in("message_delta", "usage.output_tokens")),
    ("messages.stream.usage", without("message_delta")),
    *all_of("messages.tools.call", messages.CALL, "content.0."),
    ("messages.tools.call", put("content.0.input", "{}")),
    ("messages.tools.call", put("content.0.name", "other")),
    ("messages.tools.call", put("stop_reason", "end_turn")),
    ("messages.tools.stream", drop_in("content_block_start", "content_block.id")),
    ("messages.tools.stream", put_in("content_block_start", "content_block.input", {"city": "Rome"})),
    ("messages.tools.stream", without("content_block_delta")),
    ("messages.tools.stream", put_in("content_block_delta", "delta.type", "text_delta")),
    ("messages.tools.stream", put_in("message_delta", "delta.stop_reason", "end_turn")),
    ("messages.tools.any", put("content", [])),
    ("messages.tools.none", put("content.0.type", "tool_use")),
    ("messages.tools.result", status(500)),
    ("messages.structured.schema", put("content.0.text", "Ada")),
    ("messages.structured.schema", put("content.0.text", '{"name": "Ada", "age": "old"}')),
    ("messages.endings.max_tokens", put("stop_reason", "end_turn")),
    ("messages.endings.max_tokens", put("usage.output_tokens", 17)),
    ("messages.endings.stop_sequence", put("stop_sequence", None)),
    ("messages.endings.stop_sequence", put("stop_reason", "end_turn")),
    ("messages.endings.stop_sequence", put("content", [{"type": "text", "text": "Apples"}])),
    ("messages.errors.shape", accepted),
    ("messages.errors.shape", drop("type")),
    ("messages.errors.shape", put("error.type", "bad")),
    ("messages.errors.shape", status(422)),
    ("messages.count_tokens", put("input_tokens", 0)),
    ("messages.count_tokens", drop("input_tokens")),
]


def shifted(value: Json) -> None:
    value["answers"].reverse()


def flattened(value: Json) -> None:
    for answer in value["answers"].values() if isinstance(value["answers"], dict) else value["answers"]:
        for at, each in enumerate(answer.get("probabilities", ())):
            if isinstance(each, dict):
                each["probability"] = 0.1
            else:
                answer["probabilities"][each] = 0.1 + at


DECISIONS: list[tuple[str, Fault]] = [
    *all_of("decisions.shape", decisions.PREDICATE, "answers.0."),
    *all_of("decisions.shape", decisions.CHOICE, "answers.1."),
    *all_of("decisions.shape", decisions.SCORE, "answers.2."),
    ("decisions.shape", answers(shifted)),
    ("decisions.shape", put("answers.0.probability", 2)),
    ("decisions.shape", answers(lambda value: value["answers"].pop() and None)),
    ("decisions.probabilities", answers(flattened)),
    ("decisions.probabilities", put("answers.2.score", 2)),
    *[("decisions.probabilities", put("answers.1.probabilities.0.probability", new)) for new in (0, 1)],
    *all_of("decisions.usage", decisions.USAGE, "usage."),
    ("decisions.usage", answers(sum_off("total_tokens"))),
    ("decisions.errors", accepted),
    ("decisions.errors", plain),
    *[
        ("systemone.shape", drop(f"answers.{name}.{place}"))
        for name, schema in decisions.ANSWERS.items()
        for place in places(schema)
    ],
    (
        "systemone.shape",
        answers(lambda value: value.update(answers=dict(reversed(value["answers"].items())))),
    ),
    ("systemone.probabilities", put("answers.team.probabilities.billing", 1)),
    ("systemone.probabilities", put("answers.mood.score", 2)),
    ("systemone.usage", drop("usage.output_tokens")),
    ("systemone.usage", put("usage.input_tokens", 0)),
]

FAULTS = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES, "decisions": DECISIONS}
