"""langchain-openai: invoke and stream, a tool call in each, its result, and an answer read into a class."""

import json
import sys
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

URL, MODEL, API, WAY = sys.argv[1:]
QUESTION = "How is the weather in Rome?"
CITY = "Describe Rome."
Fact = dict[str, Any]


class City(BaseModel):
    """What the model is to answer."""

    name: str
    hills: int


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return "sunny, 21 degrees" if city == "Rome" else "unknown"


llm = ChatOpenAI(
    base_url=URL,
    model=MODEL,
    max_retries=0,
    timeout=20,
    stream_usage=True,
    use_responses_api=API == "responses",
)
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
    return {"parsed": llm.with_structured_output(City).invoke(CITY).model_dump()}


print(json.dumps({"invoke": invoke, "stream": stream, "structured": structured}[WAY]()))
