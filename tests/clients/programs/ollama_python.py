"""ollama-python: a tool round trip, full and streamed, an answer of a schema, an image, and all the rest."""

import asyncio
import json
import os
import sys
from typing import Any

from ollama import AsyncClient, Client, ResponseError, _types
from pydantic import BaseModel

URL, MODEL, WAY = sys.argv[1:]
QUESTION = "How is the weather in Rome?"
RED = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEElEQVR4nGP4z8AARAwQCgAf7gP9i18U1AAAAABJRU5ErkJggg=="
Fact = dict[str, Any]

HEADERS = {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
HOST = URL.removesuffix("/v1")
client = Client(host=HOST, headers=HEADERS, timeout=20)


class City(BaseModel):
    """What the model is to answer."""

    name: str
    hills: int


def get_weather(city: str) -> str:
    """The weather in a city."""
    return "sunny, 21 degrees" if city == "Rome" else "unknown"


def chat() -> Fact:
    return round_trip(lambda messages: (client.chat(MODEL, messages, tools=[get_weather]), []))


def stream() -> Fact:
    return round_trip(streamed)


def streamed(messages: list[Any]) -> tuple[Any, list[str]]:
    parts = [*client.chat(MODEL, messages, tools=[get_weather], stream=True)]
    last = parts[-1]
    last.message.content = "".join(part.message.content or "" for part in parts)
    last.message.thinking = "".join(part.message.thinking or "" for part in parts) or None
    last.message.tool_calls = [call for part in parts for call in part.message.tool_calls or ()] or None
    return last, [part.message.content for part in parts[:-1] if part.message.content]


def round_trip(ask: Any) -> Fact:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    calls: list[Any] = []
    while True:
        answer, deltas = ask(messages)
        message = answer.message
        messages.append(message)
        if not message.tool_calls:
            return {
                "text": message.content,
                "calls": calls,
                "streamed": len(deltas) > 1 and "".join(deltas) == message.content,
                "counted": answer.eval_count > 0 and answer.total_duration > 0,
            }
        assert message.thinking == "I need it.", message
        for call in message.tool_calls:
            name, arguments = call.function.name, dict(call.function.arguments)
            calls.append([name, arguments])
            messages.append({"role": "tool", "tool_name": name, "content": get_weather(**arguments)})


def schema() -> Fact:
    said = [{"role": "user", "content": "Describe Rome."}]
    answer = client.chat(MODEL, said, format=City.model_json_schema(), options={"temperature": 0})
    return {"parsed": City.model_validate_json(answer.message.content or "").model_dump()}


def image() -> Fact:
    return {"text": client.generate(MODEL, "What is this?", images=[RED]).response}


def fields() -> Fact:
    """The parameters that the package knows of each request."""
    kinds = (_types.ChatRequest, _types.GenerateRequest, _types.EmbedRequest, _types.EmbeddingsRequest)
    known = {kind.__name__: sorted(kind.model_fields) for kind in (*kinds, _types.Options, _types.Message)}
    return known | {"ToolCall": sorted(_types.Message.ToolCall.model_fields)}


def others() -> Fact:
    shown, [running] = client.show(MODEL), client.ps().models
    refused = []
    for manage in (
        lambda: client.pull("nobody"),
        lambda: client.delete(MODEL),
        lambda: client.copy("a", "b"),
    ):
        try:
            manage()
        except ResponseError as error:
            refused.append(error.status_code)
    return {
        "models": [model.model for model in client.list().models],
        "loaded": client.generate(MODEL, "", keep_alive=-1).done_reason,
        "context": running.context_length == next(iter(shown.modelinfo.values()))
        or running.context_length > 0,
        "tools": "tools" in (shown.capabilities or ()),
        "vectors": [
            len(client.embed(MODEL, ["a", "b"]).embeddings),
            len(client.embeddings(MODEL, "a").embedding) > 1,
        ],
        "pulled": client.pull(MODEL).status,
        "refused": refused,
        "async": asyncio.run(AsyncClient(host=HOST, headers=HEADERS).generate(MODEL, "Hi")).response,
    }


print(
    json.dumps(
        {
            "chat": chat,
            "stream": stream,
            "schema": schema,
            "image": image,
            "fields": fields,
            "others": others,
        }[WAY]()
    )
)
