"""langchain-ollama: invoke and stream, a tool call in each, its result, an answer read into a class, vectors."""

import json
import os
import sys
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings
from pydantic import BaseModel

URL, MODEL, WAY = sys.argv[1:]
QUESTION = "How is the weather in Rome?"
Fact = dict[str, Any]

SERVER = {
    "base_url": URL.removesuffix("/v1"),
    "client_kwargs": {"headers": {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}, "timeout": 20},
}


class City(BaseModel):
    """What the model is to answer."""

    name: str
    hills: int


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return "sunny, 21 degrees" if city == "Rome" else "unknown"


llm = ChatOllama(model=MODEL, validate_model_on_init=True, num_predict=1000, **SERVER)
armed = llm.bind_tools([get_weather])


def invoke() -> Fact:
    return round_trip(lambda messages: (armed.invoke(messages), []))


def stream() -> Fact:
    return round_trip(streamed)


def streamed(messages: list[Any]) -> tuple[Any, list[str]]:
    first, *others = armed.stream(messages)
    return sum(others, first), [chunk.text for chunk in (first, *others) if chunk.text]


def round_trip(ask: Any) -> Fact:
    messages: list[Any] = [HumanMessage(QUESTION)]
    calls: list[Any] = []
    while True:
        message, deltas = ask(messages)
        messages.append(message)
        if not message.tool_calls:
            return {
                "text": message.text,
                "calls": calls,
                "streamed": len(deltas) > 1 and "".join(deltas) == message.text,
                "counted": message.usage_metadata["output_tokens"] > 0,
            }
        for call in message.tool_calls:
            calls.append([call["name"], call["args"]])
            messages.append(ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]))


def structured() -> Fact:
    asked = ChatOllama(model=MODEL, **SERVER).with_structured_output(City)
    return {"parsed": asked.invoke("Describe Rome.").model_dump()}


def vectors() -> Fact:
    made = OllamaEmbeddings(model=MODEL, **SERVER).embed_documents(["a", "b"])
    return {"vectors": len(made), "same": len(made[0]) == len(made[1])}


ways = {"invoke": invoke, "stream": stream, "structured": structured, "vectors": vectors}
print(json.dumps(ways[WAY]()))
