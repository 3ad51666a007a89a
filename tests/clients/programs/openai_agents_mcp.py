"""openai-agents: a hosted MCP tool, whose calls a function approves, run to its end and streamed."""

import asyncio
import json
import sys

from agents import Agent, HostedMCPTool, OpenAIResponsesModel, RunConfig, Runner
from openai import AsyncOpenAI

URL, MODEL, SERVER, WAY = sys.argv[1:]
CONFIG = RunConfig(tracing_disabled=True)

asked = []


def approve(request):
    asked.append([request.data.server_label, request.data.name, json.loads(request.data.arguments)])
    return {"approve": True}


async def main() -> None:
    tool = HostedMCPTool(
        tool_config={
            "type": "mcp",
            "server_label": "sums",
            "server_url": SERVER,
            "require_approval": "always",
        },
        on_approval_request=approve,
    )
    model = OpenAIResponsesModel(MODEL, AsyncOpenAI(base_url=URL, max_retries=0, timeout=20))
    agent = Agent("Clerk", tools=[tool], model=model)
    if WAY == "streamed":
        result = Runner.run_streamed(agent, "2 + 3?", run_config=CONFIG)
        async for _ in result.stream_events():
            pass
    else:
        result = await Runner.run(agent, "2 + 3?", run_config=CONFIG)
    items = [item for turn in result.raw_responses for item in turn.output]
    ran = [item.output for item in items if item.type == "mcp_call"]
    print(json.dumps({"text": result.final_output, "asked": asked, "ran": ran}))


asyncio.run(main())
