"""Tools of the server, and events of answers that call them, for the tests of the Responses API."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from antiphon.core.chunks import Token
from antiphon.core.events import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Event,
    ToolPrinted,
    ToolResultReceived,
)
from antiphon.core.tool_result import ToolResult
from antiphon.core.turn import Function, Hosted
from antiphon.toolkits.code_interpreter.details import ProgramDetails
from antiphon.toolkits.shell.details import CommandDetails
from antiphon.toolkits.web_search.details import FindDetails, OpenDetails, SearchDetails
from tests.apis.responses.support import Answering, answering_to
from tests.openai_schema import OPENAI_RESPONSES, OWN_EVENTS, validate, validate_event
from tests.response_invariants import check

SDK_EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
SOURCED = {"include": ["web_search_call.action.sources"]}
LOGPROB_COPIES = {"include": ["code_interpreter_call.logs"]}

PYTHON = Function("python", "Runs Python.", {"type": "object"}, hosted=Hosted("code_interpreter", "python"))
SEARCH, OPEN, FIND = (
    Function(f"browser.{action}", hosted=Hosted("web_search", action))
    for action in ("search", "open", "find")
)
EXEC = Function(
    "container.exec", parameters={"properties": {"cmd": {"type": "array"}}}, hosted=Hosted("shell", "exec")
)
SHELL = Function("shell", parameters={"properties": {"commands": {}}}, hosted=Hosted("shell", "run"))
HOSTED: Mapping[str, tuple[Function, ...]] = {
    "code_interpreter": (PYTHON,),
    "web_search": (SEARCH, OPEN, FIND),
    "shell": (EXEC,),
}
TOOLS = [
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "web_search"},
    {"type": "shell"},
]
OWN = {"type": "function", "name": "f"}

PRINTED = ToolResult("42\n", ProgramDetails("42\n"))
SEARCHED = ToolResult("1. A", SearchDetails("cats", ("https://a.example/", "https://b.example/")))
OPENED = ToolResult("A page.", OpenDetails("https://a.example/"))
FOUND = ToolResult("Here.", FindDetails("https://a.example/", "cat"))
RAN = ToolResult("a", CommandDetails("a\n", "b", 3))
TIMED_OUT = ToolResult("Too long.", CommandDetails("a", "", None), failed=True)
BROKEN = ToolResult("It is no JSON.", failed=True)

SOUND = {
    "python": ({"code": "print(6 * 7)"}, PRINTED),
    "browser.search": ({"query": "cats"}, SEARCHED),
    "browser.open": ({"id": 1}, OPENED),
    "browser.find": ({"pattern": "cat"}, FOUND),
    "container.exec": ({"cmd": ["bash", "-lc", "ls | wc"], "timeout": 1000}, RAN),
}
"""Name of a function → arguments of a call, and what may come of it."""


def call(call_id: str, name: str, arguments: Any = None, *, broken: bool = False) -> list[Event]:
    """A call that the server answers; its arguments come in two pieces, and without their end if `broken`."""
    text = json.dumps(SOUND[name][0] if arguments is None else arguments)
    text = text[:-1] if broken else text
    pieces = [ArgumentsDelta(piece, piece) for piece in (text[:12], text[12:]) if piece]
    return [CallStarted(call_id, name, hosted=True), *pieces, CallEnded(complete=not broken)]


def numbered(events: Sequence[Event]) -> list[Event]:
    """The events, each that the model wrote with a token, numbered from 0."""
    return [
        event
        if isinstance(event, ToolPrinted | ToolResultReceived)
        else replace(event, tokens=(Token(number, ""),))
        for number, event in enumerate(events)
    ]


def answering_with_tools(**fields: Any) -> Answering:
    return answering_to(offers=HOSTED, **({"tools": [*TOOLS, OWN]} | fields))


def checked(payloads: Sequence[bytes]) -> dict[str, Any]:
    """The response that a sound stream ends with."""
    for payload in payloads:
        if json.loads(payload)["type"] in OWN_EVENTS:
            continue
        validate_event(payload, OPENAI_RESPONSES)
        # The SDK, which does not check what it reads, has no reason for a cancelled response.
        known = payload.replace(b'{"reason":"cancelled"}', b"{}")
        assert SDK_EVENT.validate_json(known).type == json.loads(payload)["type"]
    response = check(payloads)
    validate("Response", response, OPENAI_RESPONSES)
    return response
