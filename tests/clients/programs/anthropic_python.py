"""anthropic (Python): a tool round trip in every way that the SDK has, an answer read into a class, citations, batches."""

import json
import os
import sys
import time
from typing import Any

from anthropic import Anthropic, beta_tool
from pydantic import BaseModel

URL, MODEL, WAY = sys.argv[1:]
QUESTION: Any = {"role": "user", "content": "How is the weather in Rome?"}
HELLO: Any = {"role": "user", "content": "Hi"}
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
REQUEST: dict[str, Any] = {"model": MODEL, "max_tokens": 1000, "tools": [WEATHER]}
Fact = dict[str, Any]
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

client = Anthropic(
    base_url=URL.removesuffix("/v1"), api_key=os.environ["OPENAI_API_KEY"], max_retries=0, timeout=20
)


class City(BaseModel):
    """What the model is to answer."""

    name: str
    hills: int


def weather_in(city: str) -> str:
    return "sunny, 21 degrees" if city == "Rome" else "unknown"


def create(messages: list[Any]) -> tuple[Any, list[str]]:
    return client.messages.create(messages=messages, **REQUEST), []


def streamed(messages: list[Any]) -> tuple[Any, list[str]]:
    with client.messages.stream(messages=messages, **REQUEST) as stream:
        deltas = list(stream.text_stream)
        return stream.get_final_message(), deltas


def round_trip(ask: Any) -> Fact:
    messages, calls = [QUESTION], []
    while True:
        message, deltas = ask(messages)
        used = [block for block in message.content if block.type == "tool_use"]
        if not used:
            text = message.content[0].text
            pieces = len(deltas) > 1 and "".join(deltas) == text
            counted = message.usage.output_tokens > 0
            return {"text": text, "calls": calls, "streamed": pieces, "counted": counted}
        calls += [[block.name, block.input] for block in used]
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": weather_in(**block.input)}
            for block in used
        ]
        messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]


def tool_runner() -> Fact:
    calls: list[Any] = []

    @beta_tool
    def get_weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: Which.
        """
        calls.append(["get_weather", {"city": city}])
        return weather_in(city)

    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=1000, tools=[get_weather], messages=[QUESTION]
    )
    last = runner.until_done()
    block: Any = last.content[0]
    return {"text": block.text, "calls": calls, "streamed": False, "counted": last.usage.output_tokens > 0}


def parse() -> Fact:
    asked: Any = [{"role": "user", "content": "Describe Rome."}]
    message = client.messages.parse(model=MODEL, max_tokens=1000, messages=asked, output_format=City)
    assert message.parsed_output is not None
    return {"parsed": message.parsed_output.model_dump()}


def others() -> Fact:
    count = client.messages.count_tokens(model=MODEL, messages=[HELLO])
    models = [model.id for model in client.models.list(limit=1)]
    batch = client.messages.batches.create(
        requests=[{"custom_id": "a", "params": {"model": MODEL, "max_tokens": 99, "messages": [HELLO]}}]
    )
    while client.messages.batches.retrieve(batch.id).processing_status != "ended":
        time.sleep(0.05)
    results: list[Any] = list(client.messages.batches.results(batch.id))
    listed = [each.id for each in client.messages.batches.list()]
    client.messages.batches.delete(batch.id)
    return {
        "counted": count.input_tokens > 0,
        "models": models,
        "results": [[each.custom_id, each.result.message.content[0].text] for each in results],
        "listed": listed == [batch.id],
        "left": [each.id for each in client.messages.batches.list()],
    }


def image() -> Fact:
    source = {"type": "base64", "media_type": "image/png", "data": PICTURE}
    blocks: Any = [{"type": "text", "text": "What is this?"}, {"type": "image", "source": source}]
    message = client.messages.create(
        model=MODEL, max_tokens=99, messages=[{"role": "user", "content": blocks}]
    )
    counted = client.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": blocks}])
    block: Any = message.content[0]
    return {"text": block.text, "image_tokens": message.usage.input_tokens - counted.input_tokens}


def cite() -> Fact:
    source = {"type": "text", "media_type": "text/plain", "data": "Rome is old. It has seven hills."}
    document: Any = {"type": "document", "source": source, "citations": {"enabled": True}}
    blocks: Any = [document, {"type": "text", "text": "Quote it."}]
    with client.messages.stream(
        model=MODEL, max_tokens=99, messages=[{"role": "user", "content": blocks}]
    ) as stream:
        told = [event.citation.cited_text for event in stream if event.type == "citation"]
        block: Any = stream.get_final_message().content[0]
    return {"told": told, "kept": [[each.type, each.cited_text] for each in block.citations]}


WAYS: dict[str, Any] = {
    "cite": cite,
    "image": image,
    "create": lambda: round_trip(create),
    "stream": lambda: round_trip(streamed),
    "tool_runner": tool_runner,
    "parse": parse,
    "others": others,
}
print(json.dumps(WAYS[WAY]()))
