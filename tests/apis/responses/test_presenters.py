"""Calls of tools that this API knows nothing of: the default presenter, and presenters from elsewhere."""

import json
from typing import Any

import pytest

from antiphon.apis.responses.presenters.generic import GenericPresenter
from antiphon.apis.responses.presenters.presenter import Presenter
from antiphon.apis.responses.presenters.registry import Presenters
from antiphon.core.errors import EngineError
from antiphon.core.events import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Event,
    ToolCallsPending,
    ToolResultReceived,
)
from antiphon.core.items import FunctionCall, FunctionOutput, TextPart
from antiphon.core.tool_result import ToolResult
from antiphon.core.turn import Function, Hosted
from antiphon.toolkits.registry import find, names
from antiphon.toolkits.shell.presenter import ShellPresenter
from tests.apis.responses.hosted import checked
from tests.apis.responses.support import accepted, answering_to, streamed, types
from tests.apis.responses.test_stream import LENGTH, STOP, TEXT

ROLL = Function("roll", "Rolls a die.", {"type": "object"}, hosted=Hosted("dice", "roll"))
FLIP = Function("home__flip", "Flips.", {"type": "object"}, hosted=Hosted("coins", "flip", label="home"))
OFFERS = {"dice": (ROLL,), "coins": (FLIP,)}
TOOLS = [{"type": "dice"}, {"type": "coins"}]
ROLLED = ToolResult("4")
BROKEN = ToolResult("The die is lost.", failed=True)


def called(call_id: str, name: str = "roll", *, complete: bool = True) -> list[Event]:
    pieces = ['{"si', 'des": 6}' if complete else 'des"']
    return [
        CallStarted(call_id, name, hosted=True),
        *(ArgumentsDelta(piece, piece) for piece in pieces),
        CallEnded(complete),
    ]


def sound(payloads: list[bytes]) -> dict[str, Any]:
    """The response that a checked stream ends with; the specification knows no tools of these types."""
    events = [json.loads(payload) for payload in payloads]
    for event in events:
        if "response" in event:
            event["response"]["tools"] = []
    return checked([json.dumps(event).encode() for event in events])


def output(*events: Event) -> list[dict[str, Any]]:
    """The output of a checked stream, without ids."""
    response = sound(streamed(answering_to(offers=OFFERS, tools=TOOLS), events))
    return [{name: value for name, value in item.items() if name != "id"} for item in response["output"]]


def test_a_call_of_any_tool() -> None:
    answering = answering_to(offers=OFFERS, tools=TOOLS)
    answering.begin()

    asked = answering.push([*called("a"), ToolCallsPending()])
    answered = answering.push([ToolResultReceived("a", ROLLED)])

    assert types(asked) == [
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
    ]
    assert types(answered) == ["mcp_call.completed", "output_item.done"]


def test_what_is_in_its_item() -> None:
    events = [
        *called("a"),
        *called("b", "home__flip"),
        ToolCallsPending(),
        ToolResultReceived("a", ROLLED),
        ToolResultReceived("b", BROKEN),
    ]

    first, second, _ = output(*events, *TEXT, STOP)

    assert first == {
        "type": "mcp_call",
        "status": "completed",
        "server_label": "dice",
        "name": "roll",
        "arguments": '{"sides": 6}',
        "output": "4",
        "error": None,
        "approval_request_id": None,
    }
    assert (second["server_label"], second["name"], second["status"]) == ("home", "flip", "failed")
    assert second["output"] is None
    assert second["error"] == {
        "type": "mcp_tool_execution_error",
        "content": [{"type": "text", "text": "The die is lost."}],
    }


def test_results_find_their_calls_in_any_order() -> None:
    results = [ToolResultReceived("b", ToolResult("2")), ToolResultReceived("a", ToolResult("1"))]

    assert [
        item["output"] for item in output(*called("a"), *called("b"), ToolCallsPending(), *results, STOP)
    ] == [
        "1",
        "2",
    ]


def test_a_call_that_is_cut_is_incomplete() -> None:
    [item] = output(*called("a", complete=False), LENGTH)

    assert (item["status"], item["arguments"], item["output"], item["error"]) == (
        "incomplete",
        '{"sides"',
        None,
        None,
    )


def test_an_answer_that_fails_while_it_runs() -> None:
    answering = answering_to(offers=OFFERS, tools=TOOLS)
    payloads = answering.begin() + answering.push([*called("a"), ToolCallsPending()])

    [item] = sound(payloads + answering.fail(EngineError()))["output"]

    assert item["status"] == "incomplete"


@pytest.mark.parametrize(("result", "text"), [(ROLLED, "4"), (BROKEN, "The die is lost.")])
@pytest.mark.parametrize(("offers", "name"), [(OFFERS, "home__flip"), ({}, "flip")])
def test_it_is_read_back_under_the_name_that_the_model_knows(
    result: ToolResult, text: str, offers: Any, name: str
) -> None:
    answering = answering_to(offers=OFFERS, tools=TOOLS)
    streamed(
        answering, [*called("a", "home__flip"), ToolCallsPending(), ToolResultReceived("a", result), STOP]
    )
    history = [item.payload for item in answering.items]

    asked, answer = accepted(
        {"history": history}, offers=offers, input=[], tools=TOOLS if offers else []
    ).turn.items

    assert isinstance(asked, FunctionCall)
    assert (asked.name, asked.arguments) == (name, '{"sides": 6}')
    assert answer == FunctionOutput(asked.call_id, (TextPart(text),))


@pytest.mark.parametrize(
    "error", ["No.", {"type": "http_error", "code": 1}, {"content": "No."}, {"content": [3]}]
)
def test_errors_of_other_servers_are_read_as_they_are(error: Any) -> None:
    item = {
        "type": "mcp_call",
        "id": "mcp_1",
        "server_label": "x",
        "name": "f",
        "arguments": "{}",
        "error": error,
    }

    _, answer = accepted(input=[item]).turn.items

    assert isinstance(answer, FunctionOutput)
    assert answer.text == (error if isinstance(error, str) else json.dumps(error, separators=(",", ":")))


# Presenters from elsewhere


class Claims(Presenter):
    def item(self, status: str) -> Any:
        raise NotImplementedError


def claiming(type_: str, result_type: str | None = None) -> type[Presenter]:
    return type("Claiming", (Claims,), {"type": type_, "result_type": result_type})


def with_ours(tool: str, presenter: type[Presenter]) -> Presenters:
    ours = {toolkit.type: toolkit.presenter for toolkit in map(find, names())}
    return Presenters(ours | {tool: presenter})


@pytest.mark.parametrize(
    "presenter",
    [
        claiming("message"),
        claiming("function_call_output"),
        claiming("toy_call", "shell_call_output"),
        claiming("mcp_call"),
        claiming("web_search_call"),
    ],
)
def test_a_presenter_of_items_that_others_show_is_refused_at_start(presenter: type[Presenter]) -> None:
    with pytest.raises(ValueError, match="which others show"):
        with_ours("toy", presenter)


def test_a_presenter_may_stand_in_for_one_of_ours() -> None:
    mine = claiming("web_search_call")

    assert with_ours("web_search", mine).of("web_search") is mine
    assert with_ours("web_search", mine).readers["web_search_call"] is mine


def test_tools_may_share_a_presenter() -> None:
    presenters = with_ours("bash", ShellPresenter)

    assert presenters.of("bash") is presenters.of("shell")
    assert presenters.of("dice") is GenericPresenter
