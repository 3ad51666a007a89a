"""A tool of a remote server whose calls have effects, and the laws about these.

Every effect has a name. A model is asked to act by name; the call, the client's approval and the laws use
the same name. An effect must happen at most once, in spite of retries and takeovers; only after its client
has approved it, if required; and only for its owner.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from random import Random
from typing import Any

from antiphon.core.hosts import ListedTool, Listing
from antiphon.core.tool_result import OutputCallback, ToolResult, ignore_output
from antiphon.core.turn import Function, Hosted
from antiphon.tools.tool import RequestedTool, ToolOffer
from simulation.laws import LawError, law
from simulation.loop import SimulatedLoop

LABEL = "effects"
HOST = "effects.example"
TOOL = {"type": "mcp", "server_label": LABEL, "server_url": f"https://{HOST}/mcp"}
CALL_SECONDS = 2.0
"""The most seconds of a call."""

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
_ASKED = re.compile(r"act (\S+)!")


def request_to_act(name: str) -> str:
    """The text of a request."""
    return f"act {name}!"


def call_of(name: str) -> str:
    """The call of the model."""
    call = json.dumps({"name": "act", "arguments": {"name": name}})
    return f"<tool_call>\n{call}\n</tool_call>"


def asked_to_act(prompt: str) -> str | None:
    """The name of the effect that this prompt requests, if it does."""
    asked = _ASKED.findall(prompt)
    return asked[-1] if asked else None


def is_told(prompt: str, name: str) -> bool:
    """Whether the model was shown the result of its call."""
    return "<tool_response>" in prompt.rpartition(request_to_act(name))[2]


def said_after(name: str) -> str:
    """The text of the model after its call, for any result."""
    return f"{name} was tried"


class Effects:
    """The effects of the calls of all servers. Clients add to `approved` before they approve."""

    def __init__(self, rng: Random, loop: SimulatedLoop) -> None:
        self._rng = rng
        self._loop = loop
        self._owners: dict[str, str] = {}
        self.guarded: set[str] = set()
        """Effects that need an approval."""
        self.approved: set[str] = set()
        self.begun: set[str] = set()
        self.done: set[str] = set()

    def check_owner(self, owner: str, name: str) -> None:
        """An effect is to be for this owner."""
        known = self._owners.setdefault(name.partition("-")[0], owner)
        self.require(known == owner, f"{name} is run for another")

    async def cause(self, name: str) -> None:
        """Have an effect."""
        self.require(name not in self.begun, f"{name} is run twice")
        self.require(
            name not in self.guarded or name in self.approved, f"{name} is run, but was not approved"
        )
        self.begun.add(name)
        await asyncio.sleep(self._rng.random() * CALL_SECONDS)
        self.done.add(name)

    def require(self, holds: bool, what: str) -> None:
        """Have the simulation fail unless it holds."""
        try:
            law(holds, what)
        except LawError as error:  # the server would treat it as a failure of the tool
            self._loop.call_exception_handler({"message": str(error), "exception": error})


class EffectTool:
    """The tool of one server. See `ServerTool`."""

    type = "mcp"
    aliases = ()

    def __init__(self, effects: Effects) -> None:
        self._effects = effects

    async def offer(self, requested: RequestedTool) -> ToolOffer:
        approval = requested.settings["require_approval"] == "always"
        hosted = Hosted(self.type, "act", label=LABEL, approval=approval)
        listing = requested.listing or Listing(LABEL, (ListedTool("act", input_schema=SCHEMA),))
        return ToolOffer((Function("act", "Acts.", SCHEMA, hosted=hosted),), (), listing)

    def open(self, requested: RequestedTool) -> "_Session":
        return _Session(self._effects, requested.owner)

    async def close(self) -> None:
        """It has no resources."""


class _Session:
    def __init__(self, effects: Effects, owner: str) -> None:
        self._effects = effects
        self._owner = owner

    async def run(
        self, action: str, arguments: Mapping[str, Any], on_output: OutputCallback = ignore_output
    ) -> ToolResult:
        self._effects.check_owner(self._owner, arguments["name"])
        await self._effects.cause(arguments["name"])
        return ToolResult(f"{action}: {arguments['name']} is done")

    async def recall(self, action: str, arguments: Mapping[str, Any], result: ToolResult) -> None:
        """It has no state."""

    async def close(self) -> None:
        """It has no resources."""
