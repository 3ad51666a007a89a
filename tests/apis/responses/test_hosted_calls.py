"""Calls that the server answers: the items of each kind, their events, and what becomes of those that are cut."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from antiphon.apis.responses.stored import unpack
from antiphon.core.chunks import FinishReason
from antiphon.core.errors import EngineError
from antiphon.core.events import (
    CallEnded,
    CallStarted,
    Event,
    Finished,
    Markup,
    ToolCallsPending,
    ToolPrinted,
    ToolResultReceived,
    Usage,
)
from antiphon.core.tool_result import ToolResult
from antiphon.toolkits.code_interpreter.details import ProgramDetails
from antiphon.toolkits.web_search.details import FindDetails, OpenDetails
from tests.apis.responses.hosted import (
    BROKEN,
    FOUND,
    LOGPROB_COPIES,
    OPENED,
    PRINTED,
    RAN,
    SEARCHED,
    SOUND,
    SOURCED,
    TIMED_OUT,
    answering_with_tools,
    call,
    checked,
    numbered,
)
from tests.apis.responses.support import Answering, streamed, types
from tests.apis.responses.test_stream import CALL, LENGTH, STOP, TEXT, THOUGHT


def whole(*events: Event, **fields: Any) -> dict[str, Any]:
    """The response that these events make; its stream is checked."""
    answering = answering_with_tools(**fields)
    payloads = streamed(answering, events)
    response = checked(payloads)
    assert json.loads(answering.body()) == response
    return response


def item_of(name: str, result: ToolResult, arguments: Any = None, **fields: Any) -> dict[str, Any]:
    """The first item of an answer with one call, without what identifies it."""
    events = [
        *call("call_1", name, arguments),
        ToolCallsPending(),
        ToolResultReceived("call_1", result),
        *TEXT,
        STOP,
    ]
    item: dict[str, Any] = whole(*events, **fields)["output"][0]
    return {key: value for key, value in item.items() if key not in ("id", "container_id", "environment")}


# Golden sequences


def test_a_program_is_streamed_and_done_when_it_was_run() -> None:
    answering = answering_with_tools()
    answering.begin()
    ran = call("call_1", "python")

    before, end = types(answering.push(ran[:-1])), types(answering.push([ran[-1], ToolCallsPending()]))
    after = types(answering.push([ToolResultReceived("call_1", PRINTED)]))

    assert before == [
        "output_item.added",
        "code_interpreter_call.in_progress",
        "code_interpreter_call_code.delta",
        "code_interpreter_call_code.delta",
    ]
    assert end == ["code_interpreter_call_code.done", "code_interpreter_call.interpreting"]
    assert after == ["code_interpreter_call.completed", "output_item.done"]


def test_a_search_is_announced_when_it_is_known_what_is_searched_for() -> None:
    answering = answering_with_tools()
    answering.begin()
    searched = call("call_1", "browser.search")

    assert answering.push(searched[:-1]) == []
    assert json.loads(answering.body())["output"] == []
    announced = answering.push(searched[-1:])
    assert types(announced) == [
        "output_item.added",
        "web_search_call.in_progress",
        "web_search_call.searching",
    ]
    assert json.loads(announced[0])["item"]["action"] == {
        "type": "search",
        "query": "cats",
        "queries": ["cats"],
    }
    assert types(answering.push([ToolCallsPending()])) == []
    assert types(answering.push([ToolResultReceived("call_1", SEARCHED)])) == [
        "web_search_call.completed",
        "output_item.done",
    ]


def test_a_command_is_an_item_and_its_output_another() -> None:
    answering = answering_with_tools()
    answering.begin()

    asked = answering.push([*call("call_1", "container.exec"), ToolCallsPending()])
    answered = answering.push([ToolResultReceived("call_1", RAN)])

    assert types(asked) == [
        "output_item.added",
        "shell_call_command.added",
        "shell_call_command.delta",
        "shell_call_command.done",
        "output_item.done",
    ]
    assert types(answered) == [
        "output_item.added",
        "shell_call_output_content.delta",
        "shell_call_output_content.done",
        "output_item.done",
    ]


# What is in the items


def test_a_program_with_what_it_printed() -> None:
    assert item_of("python", PRINTED) == {
        "type": "code_interpreter_call",
        "status": "completed",
        "code": "print(6 * 7)",
        "outputs": [{"type": "logs", "logs": "42\n"}],
    }


@pytest.mark.parametrize(
    ("name", "result", "action"),
    [
        ("browser.search", SEARCHED, {"type": "search", "query": "cats", "queries": ["cats"]}),
        ("browser.open", OPENED, {"type": "open_page", "url": "https://a.example/"}),
        ("browser.open", ToolResult("", OpenDetails(None)), {"type": "open_page", "url": None}),
        ("browser.find", FOUND, {"type": "find_in_page", "url": "https://a.example/", "pattern": "cat"}),
        (
            "browser.find",
            ToolResult("", FindDetails(None, "cat")),
            {"type": "find_in_page", "url": "", "pattern": "cat"},
        ),
    ],
)
def test_what_was_done_in_the_web(name: str, result: ToolResult, action: dict[str, Any]) -> None:
    assert item_of(name, result) == {"type": "web_search_call", "status": "completed", "action": action}


@pytest.mark.parametrize(
    ("name", "arguments", "action"),
    [
        ("browser.search", {"query": "dogs"}, {"type": "search", "query": "dogs", "queries": ["dogs"]}),
        ("browser.open", {"id": "https://c.example/"}, {"type": "open_page", "url": "https://c.example/"}),
        ("browser.open", {"id": 3}, {"type": "open_page", "url": None}),
        ("browser.find", {"pattern": "dog"}, {"type": "find_in_page", "url": "", "pattern": "dog"}),
    ],
)
def test_what_failed_is_shown_as_it_was_asked_for(
    name: str, arguments: dict[str, Any], action: dict[str, Any]
) -> None:
    assert item_of(name, BROKEN, arguments) == {
        "type": "web_search_call",
        "status": "failed",
        "action": action,
    }


def test_sources_are_told_if_they_are_asked_for() -> None:
    sources = [{"type": "url", "url": url} for url in ("https://a.example/", "https://b.example/")]

    assert item_of("browser.search", SEARCHED, **SOURCED)["action"]["sources"] == sources
    assert "sources" not in item_of("browser.search", SEARCHED)["action"]
    assert "sources" not in item_of("browser.search", BROKEN, **SOURCED)["action"]
    assert item_of("browser.open", OPENED, **SOURCED)["action"]["type"] == "open_page"


@pytest.mark.parametrize(
    ("arguments", "commands", "timeout"),
    [
        ({"cmd": ["bash", "-lc", "ls | wc"], "timeout": 1000}, ["ls | wc"], 1000),
        ({"cmd": ["/bin/sh", "-c", "ls"]}, ["ls"], None),
        ({"cmd": ["echo", "a b"]}, ["echo 'a b'"], None),
        ({"commands": ["ls", "pwd"], "timeout_ms": 5}, ["ls", "pwd"], 5),
        ({"command": "ls"}, ["ls"], None),
        ({"command": ["ls", "-l"]}, ["ls -l"], None),
        ({"commands": ["ls"], "cmd": ["bash", "-c", "pwd"]}, ["ls", "pwd"], None),
        (
            {"cmd": ["bash", "-lc", "ls"], "workdir": "/x y", "env": {"A": "b c"}},
            ["export A='b c'", "cd -- '/x y' || exit", "ls"],
            None,
        ),
        ({"workdir": "/x"}, [], None),
        ({"commands": "ls", "timeout_ms": "5"}, ["ls"], 5),
        ({"commands": ["ls", 3], "timeout_ms": 2**70}, ["ls", "3"], None),
        ({"commands": None, "timeout_ms": True}, [], None),
        ([], [], None),
    ],
)
def test_commands(arguments: Any, commands: list[str], timeout: int | None) -> None:
    assert item_of("container.exec", RAN, arguments) == {
        "type": "shell_call",
        "status": "completed",
        "call_id": "call_1",
        "action": {"commands": commands, "timeout_ms": timeout, "max_output_length": None},
    }


@pytest.mark.parametrize(
    ("result", "output"),
    [
        (RAN, {"stdout": "a\n", "stderr": "b", "outcome": {"type": "exit", "exit_code": 3}}),
        (TIMED_OUT, {"stdout": "a", "stderr": "", "outcome": {"type": "timeout"}}),
        (BROKEN, {"stdout": "", "stderr": "It is no JSON.", "outcome": {"type": "exit", "exit_code": 126}}),
    ],
)
def test_what_came_of_a_command(result: ToolResult, output: dict[str, Any]) -> None:
    arguments = {"commands": ["ls"], "max_output_length": 9}
    asked, answered = whole(
        *call("call_1", "container.exec", arguments),
        ToolCallsPending(),
        ToolResultReceived("call_1", result),
        STOP,
    )["output"]

    assert answered.pop("id") != asked["id"]
    assert answered == {
        "type": "shell_call_output",
        "status": "completed",
        "call_id": "call_1",
        "output": [output],
        "max_output_length": 9,
    }


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("arguments", ["a", [], 3, None, {}, {"x": [[]]}, "[" * 9999])
def test_broken_arguments_show_what_can_be_shown(name: str, arguments: Any) -> None:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    broken = [CallStarted("call_1", name, hosted=True), *_said(text), CallEnded(complete=False)]

    item = whole(*broken, ToolCallsPending(), ToolResultReceived("call_1", BROKEN), *TEXT, STOP)["output"][0]

    assert item["status"] == ("completed" if name == "container.exec" else "failed")
    if name == "python":
        assert item["code"] == text
        assert item["outputs"] == [{"type": "logs", "logs": "It is no JSON."}]


def _said(text: str) -> list[Event]:
    arguments, *_ = [event for event in CALL if hasattr(event, "text")]
    return [type(arguments)(text, text)]


def test_containers_are_those_of_the_response() -> None:
    events = [
        *(event for number in range(2) for event in call(f"call_{number}", "python")),
        *call("call_2", "container.exec"),
        *(
            ToolCallsPending(),
            ToolResultReceived("call_0", PRINTED),
            ToolResultReceived("call_1", PRINTED),
            ToolResultReceived("call_2", RAN),
        ),
    ]
    one, two, shell, _ = whole(*events, STOP)["output"]

    assert one["container_id"] == two["container_id"]
    assert one["container_id"].startswith("cntr_")
    assert shell["environment"]["container_id"] != one["container_id"]


# Several calls


def test_a_call_waits_while_others_begin() -> None:
    answering = answering_with_tools()
    payloads = answering.begin()
    payloads += answering.push(
        [*TEXT, *call("a", "python"), *call("b", "browser.search"), *CALL, ToolCallsPending()]
    )

    running = json.loads(answering.body())["output"]
    assert [item["type"] for item in running] == ["message", "function_call"]
    assert [item.type for item in answering.items] == ["message", "function_call"]

    payloads += answering.push([ToolResultReceived("a", PRINTED), ToolResultReceived("b", SEARCHED), STOP])
    response = checked(payloads + answering.finish())
    assert [item["type"] for item in response["output"]] == [
        *("message", "code_interpreter_call", "web_search_call", "function_call"),
    ]
    assert [item.id for item in answering.items] == [item["id"] for item in response["output"]]


def test_outputs_of_shells_stand_behind_the_calls() -> None:
    asked = [*call("a", "container.exec"), *call("b", "container.exec"), ToolCallsPending()]

    output = whole(*asked, ToolResultReceived("a", RAN), ToolResultReceived("b", TIMED_OUT), *TEXT, STOP)[
        "output"
    ]

    assert [(item["type"], item.get("call_id")) for item in output] == [
        ("shell_call", "a"),
        ("shell_call", "b"),
        ("shell_call_output", "a"),
        ("shell_call_output", "b"),
        ("message", None),
    ]


# Counting


def test_the_usage_of_all_generations_is_counted_once() -> None:
    end = Finished(FinishReason.STOP, Usage(9, 2, 1, 50), unmet=("no call",))

    response = whole(*call("a", "python"), ToolCallsPending(), ToolResultReceived("a", PRINTED), *TEXT, end)

    assert response["unmet"] == ["no call"]
    assert response["usage"] == {
        "input_tokens": 57,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 66,
    }


# What programs print while they run


def told(*events: Event, **fields: Any) -> tuple[list[bytes], dict[str, Any]]:
    """The events of a program that is run, and its item."""
    answering = answering_with_tools(**fields)
    payloads = streamed(answering, [*call("a", "python"), ToolCallsPending(), *events])
    return payloads, checked(payloads)["output"][0]


def deltas(payloads: Iterable[bytes], type_: str) -> list[Any]:
    events = map(json.loads, payloads)
    return [event["delta"] for event in events if event["type"] == f"response.{type_}.delta"]


LOGS = "code_interpreter_call_logs"


def test_what_a_program_prints_is_told_those_who_ask_for_it() -> None:
    answering = answering_with_tools(**LOGPROB_COPIES)
    answering.begin()
    answering.push([*call("a", "python"), ToolCallsPending()])

    while_it_runs = answering.push([ToolPrinted("a", "4")])
    after = answering.push([ToolResultReceived("a", PRINTED)])

    assert types(while_it_runs) == [f"{LOGS}.delta"]
    assert types(after) == [f"{LOGS}.{each}" for each in ("delta", "done")] + [
        "code_interpreter_call.completed",
        "output_item.done",
    ]
    assert deltas(while_it_runs + after, LOGS) == ["4", "2\n"]
    unasked, item = told(ToolPrinted("a", "4"), ToolResultReceived("a", PRINTED), STOP)
    assert not [payload for payload in unasked if LOGS.encode() in payload]
    assert item["outputs"] == [{"type": "logs", "logs": "42\n"}]


@pytest.mark.parametrize(
    ("printed", "result", "logs"),
    [
        (("42\n",), PRINTED, "42\n"),
        (("4", "1"), PRINTED, "41\n42\n"),
        (("41\n",), PRINTED, "41\n42\n"),
        (("4",), BROKEN, "4\nIt is no JSON."),
        ((), ToolResult("", ProgramDetails("")), ""),
    ],
)
def test_what_was_told_of_logs_is_how_they_begin(
    printed: tuple[str, ...], result: ToolResult, logs: str
) -> None:
    """Also if the server that streamed it has crashed: then the result begins on a new line."""
    events = [*(ToolPrinted("a", text) for text in printed), ToolResultReceived("a", result), *TEXT, STOP]

    payloads, item = told(*events, **LOGPROB_COPIES)

    assert item["outputs"] == [{"type": "logs", "logs": logs}]
    assert "".join(deltas(payloads, LOGS)) == logs
    assert told(*events)[1]["outputs"] == item["outputs"]


def test_what_a_command_prints_is_told_while_it_runs() -> None:
    answering = answering_with_tools()
    answering.begin()
    answering.push([*call("a", "container.exec"), ToolCallsPending()])

    first = answering.push([ToolPrinted("a", "a", "")])
    more = answering.push([ToolPrinted("a", "\n", "b"), ToolResultReceived("a", RAN)])

    assert types(first) == ["output_item.added", "shell_call_output_content.delta"]
    assert types(more) == [
        "shell_call_output_content.delta",
        "shell_call_output_content.done",
        "output_item.done",
    ]
    assert deltas(first + more, "shell_call_output_content") == [
        {"stdout": "a", "stderr": ""},
        {"stdout": "\n", "stderr": "b"},
    ]


def test_what_is_stopped_has_what_it_printed() -> None:
    answering = answering_with_tools(**LOGPROB_COPIES)
    calls = [*call("a", "python"), *call("b", "container.exec"), ToolCallsPending()]
    payloads = answering.begin() + answering.push([*calls, ToolPrinted("a", "4"), ToolPrinted("b", "", "c")])

    program, _, output = checked(payloads + answering.cancel())["output"]

    assert (program["status"], program["outputs"]) == ("incomplete", [{"type": "logs", "logs": "4"}])
    killed = {"stdout": "", "stderr": "c", "outcome": {"type": "exit", "exit_code": 137}}
    assert (output["status"], output["output"]) == ("incomplete", [killed])


def test_the_tokens_of_a_call_are_those_of_its_item() -> None:
    said = [
        Markup("<"),
        *call("a", "python"),
        *call("b", "container.exec"),
        Markup(">"),
        ToolCallsPending(">"),
    ]
    answered = [ToolResultReceived("a", PRINTED), ToolResultReceived("b", RAN)]
    answering = answering_with_tools(include_reasoning=False)
    events = numbered([*said, *answered, *THOUGHT, Markup("|"), STOP])

    checked(streamed(answering, events))

    first, second, output = answering.items
    assert unpack(first.tokens) == (0, 1, 2, 3, 4)
    assert unpack(output.tokens) == ()
    # The reasoning is hidden, so its tokens belong to the item before it.
    assert unpack(second.tokens) == (5, 6, 7, 8, 9, 10, *range(13, 18))


# Cuts


@pytest.mark.parametrize(
    ("name", "status"),
    [("python", "incomplete"), ("browser.search", "failed"), ("container.exec", "incomplete")],
)
def test_a_call_that_a_limit_cuts(name: str, status: str) -> None:
    response = whole(*TEXT, *call("a", name, broken=True), LENGTH)

    assert response["status"] == "incomplete"
    assert [item["status"] for item in response["output"]] == ["completed", status]


def test_calls_that_nobody_answers_because_a_limit_cut_the_generation() -> None:
    calls = [*call("a", "python"), *call("b", "browser.search"), *call("c", "container.exec")]

    response = whole(*calls, *TEXT, LENGTH)

    statuses = [item["status"] for item in response["output"]]
    assert statuses == ["incomplete", "failed", "completed", "incomplete"]


@pytest.mark.parametrize("end", [Answering.cancel, lambda answering: answering.fail(EngineError())])
def test_a_response_that_ends_while_tools_run(end: Any) -> None:
    answering = answering_with_tools()
    payloads = answering.begin()
    payloads += answering.push(
        [*call("a", "python"), *call("b", "browser.open"), *call("c", "container.exec")]
    )
    payloads += answering.push([ToolCallsPending()])

    response = checked(payloads + end(answering))

    assert [item["status"] for item in response["output"]] == ["incomplete", "failed", "completed"]
    assert [item.id for item in answering.items] == [item["id"] for item in response["output"]]
