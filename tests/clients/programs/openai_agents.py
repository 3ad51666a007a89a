"""openai-agents: an agent with a tool, run to its end and streamed."""

import asyncio
import json
import sys
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI

URL, MODEL, API, WAY = sys.argv[1:]
QUESTION = "How is the weather in Rome?"
MODELS: dict[str, Any] = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}
CONFIG = RunConfig(tracing_disabled=True)  # it would report to OpenAI

calls: list[Any] = []


@function_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    calls.append(["get_weather", {"city": city}])
    return "sunny, 21 degrees"


async def run(agent: Agent) -> tuple[Any, list[str]]:
    return await Runner.run(agent, QUESTION, run_config=CONFIG), []


async def run_streamed(agent: Agent) -> tuple[Any, list[str]]:
    result = Runner.run_streamed(agent, QUESTION, run_config=CONFIG)
    deltas = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    return result, deltas


async def main() -> None:
    model = MODELS[API](MODEL, AsyncOpenAI(base_url=URL, max_retries=0, timeout=20))
    settings = ModelSettings(include_usage=True)
    agent = Agent("Clerk", instructions="Be kind.", tools=[get_weather], model=model, model_settings=settings)
    result, deltas = await {"run": run, "run_streamed": run_streamed}[WAY](agent)
    text = result.final_output
    fact = {
        "text": text,
        "calls": calls,
        "streamed": len(deltas) > 1 and "".join(deltas).endswith(text),  # they are of every turn
        "counted": result.context_wrapper.usage.output_tokens > 0,
    }
    print(json.dumps(fact))


asyncio.run(main())
