"""The items of a request: what is stored of them, and what the model is shown."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from antiphon.apis.responses.input import known_listings, last_container, references
from antiphon.apis.responses.kinds import KINDS
from antiphon.apis.summaries import SUMMARY_INTRODUCTION, SummaryMessage
from antiphon.core.errors import NotFoundError, RequestError
from antiphon.core.items import (
    Attachment,
    FunctionCall,
    FunctionOutput,
    Item,
    MediaKind,
    Message,
    Reasoning,
    Role,
    Status,
    TextPart,
)
from antiphon.core.turn import PromptEnding
from tests.apis.responses.support import OWNER, SEALER, accepted, answering_to, streamed
from tests.apis.responses.test_stream import CALL, CUSTOM, SEALED, SPACED, STOP, SUMMARISED, TEXT, THOUGHT

SDK_ITEM: TypeAdapter[ResponseItem] = TypeAdapter(ResponseItem)

CALLED = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
CUSTOM_CALLED = {"type": "custom_tool_call", "call_id": "call_2", "name": "g", "input": 'say "x"'}
ACTION = {"type": "exec", "command": ["ls"], "env": {}}

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGM4ocEFAAK2APsJOywMAAAAAElFTkSuQmCC"
"""A PNG of one pixel."""
FROM_CLIENTS: dict[str, dict[str, Any]] = {
    "message": {"role": "user", "content": "Hi"},
    "reasoning": {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
    "function_call": CALLED,
    "custom_tool_call": CUSTOM_CALLED,
    "file_search_call": {"type": "file_search_call", "status": "completed", "queries": ["q"]},
    "web_search_call": {"type": "web_search_call", "action": {"type": "search", "query": "q"}},
    "code_interpreter_call": {
        "type": "code_interpreter_call",
        "container_id": "c",
        "code": "1",
        "outputs": [{"type": "logs", "logs": "1"}],
    },
    "image_generation_call": {"type": "image_generation_call", "result": None},
    "computer_call": {"type": "computer_call", "call_id": "c", "action": {"type": "wait"}, "pending_safety_checks": []},
    "computer_call_output": {
        "type": "computer_call_output",
        "call_id": "c",
        "output": {"type": "computer_screenshot", "image_url": f"data:image/png;base64,{PIXEL}"},
    },
    "local_shell_call": {"type": "local_shell_call", "call_id": "c", "action": ACTION},
    "local_shell_call_output": {"type": "local_shell_call_output", "id": "c", "output": "{}"},
    "shell_call": {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}, "environment": None},
    "shell_call_output": {"type": "shell_call_output", "call_id": "c", "output": [], "max_output_length": None},
    "apply_patch_call": {
        "type": "apply_patch_call",
        "call_id": "c",
        "operation": {"type": "delete_file", "path": "p"},
    },
    "apply_patch_call_output": {"type": "apply_patch_call_output", "call_id": "c"},
    "tool_search_call": {"type": "tool_search_call", "call_id": None, "execution": "server", "arguments": {}},
    "tool_search_output": {"type": "tool_search_output", "call_id": None, "execution": "server", "tools": []},
    "mcp_call": {"type": "mcp_call", "server_label": "s", "name": "n", "arguments": "{}", "output": "out"},
    "mcp_list_tools": {"type": "mcp_list_tools", "server_label": "s", "tools": []},
    "mcp_approval_request": {"type": "mcp_approval_request", "server_label": "s", "name": "n", "arguments": "{}"},
    "mcp_approval_response": {"type": "mcp_approval_response", "approval_request_id": "r", "approve": True},
    "configuration_update": {"type": "configuration_update", "reasoning": {"effort": "low"}},
    "additional_tools": {"type": "additional_tools", "role": "developer", "tools": []},
    "program": {"type": "program", "call_id": "c", "code": "1", "fingerprint": "f"},
    "program_output": {"type": "program_output", "call_id": "c", "result": "1", "status": "completed"},
    "compaction": {"type": "compaction", "encrypted_content": SEALER.seal(OWNER, "We met.")},
}  # fmt: skip
APPROVED = (
    {"type": "mcp_approval_request", "id": "r", "server_label": "s", "name": "n", "arguments": "{}"},
    {"type": "mcp_call", "server_label": "s", "name": "n", "arguments": "{}", "approval_request_id": "r"},
)
OUTPUTS = {
    "function_call_output": {"type": "function_call_output", "call_id": "call_1", "output": "21"},
    "custom_tool_call_output": {"type": "custom_tool_call_output", "call_id": "call_2", "output": "22"},
}


def stored(*items: Any) -> list[dict[str, Any]]:
    return [json.loads(item.payload) for item in accepted(input=list(items)).items]


def shown(*items: Any, **context: Any) -> tuple[Item, ...]:
    return accepted(context, input=list(items)).turn.items


def said(text: str, role: Role = Role.USER) -> Message:
    return Message(role, (TextPart(text),) if text else ())


def summary(text: str) -> SummaryMessage:
    return SummaryMessage(Role.USER, (TextPart(SUMMARY_INTRODUCTION + text),))


def refused(*items: Any, **context: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        shown(*items, **context)
    return caught.value


# What is stored


def test_there_is_a_case_for_every_type_of_item() -> None:
    assert {*FROM_CLIENTS, *OUTPUTS} == set(KINDS) - {"compaction_trigger"}


@pytest.mark.parametrize("type_", [*FROM_CLIENTS, *OUTPUTS])
def test_every_type_is_accepted_completed_and_known_to_the_sdk(type_: str) -> None:
    item = FROM_CLIENTS.get(type_) or OUTPUTS[type_]

    kept = stored(CALLED, CUSTOM_CALLED, *APPROVED, item)[-1]

    assert kept["type"] == type_
    assert kept["id"].startswith(KINDS[type_].prefix + "_") or kept["id"] == item["id"]
    assert (kept.get("status") == "completed") == KINDS[type_].has_status
    assert SDK_ITEM.validate_python(kept).type == type_  # type: ignore[union-attr]
    for name, value in item.items():
        if name != "content" and value is not None:
            assert kept[name] == value


def test_a_string_is_a_message_of_the_users() -> None:
    answer = accepted(input="Hello")

    [item] = [json.loads(item.payload) for item in answer.items]

    assert answer.turn.items == (said("Hello"),)
    assert item["content"] == [{"type": "input_text", "text": "Hello"}]
    assert (item["role"], item["status"]) == ("user", "completed")


def test_what_clients_made_is_kept() -> None:
    item = {"id": "mine", "type": "message", "role": "user", "status": "in_progress", "content": [], "x": [1]}

    assert stored(item) == [item]


def test_output_text_gets_what_its_readers_need() -> None:
    [item] = stored(
        {"role": "assistant", "content": [{"type": "output_text", "text": "Hi", "logprobs": None}]}
    )

    assert item["content"] == [{"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []}]


@given(st.integers(1, 5))
def test_new_ids_are_derived(count: int) -> None:
    items = [{"role": "user", "content": "same"}] * count

    ids = [item["id"] for item in stored(*items)]

    assert len(set(ids)) == count
    assert ids == [item["id"] for item in stored(*items)]


def test_unknown_types_are_refused() -> None:
    error = refused({"role": "user", "content": "a"}, {"type": "telepathy"})

    assert error.param == "input[1].type"


# References


def test_a_reference_stands_for_the_item() -> None:
    payload = json.dumps({"type": "message", "id": "msg_9", "role": "user", "content": "Hi"}).encode()

    for reference in ({"type": "item_reference", "id": "msg_9"}, {"id": "msg_9"}):
        answer = accepted({"referenced_items": {"msg_9": payload}}, input=[reference])
        assert answer.turn.items == (said("Hi"),)
        assert [item.id for item in answer.items] == ["msg_9"]
        assert references([reference, {"role": "user", "content": ""}, 3]) == ["msg_9"]


def test_a_reference_to_nothing_is_not_found() -> None:
    error = refused({"type": "item_reference", "id": "msg_9"})

    assert isinstance(error, NotFoundError)
    assert error.param == "input[0].id"


# What the model is shown


def test_roles_phases_and_statuses() -> None:
    items = [{"role": role, "content": "a"} for role in ("system", "developer", "user")]
    phase = {"role": "assistant", "content": "b", "phase": "commentary"}

    assert shown(*items, phase) == (
        said("a", Role.SYSTEM),
        said("a", Role.DEVELOPER),
        said("a"),
        Message(Role.ASSISTANT, (TextPart("b"),), phase="commentary"),
    )
    assert refused({"role": "nobody", "content": ""}).param == "input[0].role"


def test_instructions_come_first_and_are_not_carried_over() -> None:
    old = [item.payload for item in accepted(instructions="Be rude.", input="a").items]
    items = accepted({"history": old}, instructions="Be kind.", input="b").turn.items

    assert items == (said("Be kind.", Role.SYSTEM), said("a"), said("b"))


def test_an_unfinished_answer_is_gone_on_with() -> None:
    begun = {"role": "assistant", "status": "incomplete", "content": "The capital"}
    answer = accepted(input=[{"role": "user", "content": "a"}, begun])

    assert answer.turn.ending is PromptEnding.CONTINUED
    assert answer.turn.items[-1] == Message(
        Role.ASSISTANT, (TextPart("The capital"),), status=Status.INCOMPLETE
    )
    assert accepted(input=[begun, {"role": "user", "content": "a"}]).turn.ending is PromptEnding.ANSWER


def test_calls_and_their_outputs() -> None:
    calls = [CALLED | {"namespace": "ns"}, CUSTOM_CALLED]
    outputs = [OUTPUTS["function_call_output"], OUTPUTS["custom_tool_call_output"]]

    assert shown(*calls, *outputs) == (
        FunctionCall("call_1", "ns__f", "{}"),
        FunctionCall("call_2", "g", '{"input":"say \\"x\\""}'),
        FunctionOutput("call_1", (TextPart("21"),)),
        FunctionOutput("call_2", (TextPart("22"),)),
    )


def test_outputs_of_parts() -> None:
    parts = [{"type": "input_text", "text": "2"}, {"type": "input_text", "text": "1"}]

    *_, output = shown(CALLED, OUTPUTS["function_call_output"] | {"output": parts})

    assert output == FunctionOutput("call_1", (TextPart("2"), TextPart("1")))


@pytest.mark.parametrize("output", OUTPUTS.values())
def test_an_output_without_its_call_is_refused(output: dict[str, Any]) -> None:
    assert refused({"role": "user", "content": "a"}, output).param == "input[1].call_id"


def test_the_call_of_an_output_may_be_in_the_history() -> None:
    history = [json.dumps(item).encode() for item in stored(CALLED)]

    assert shown(OUTPUTS["function_call_output"], history=history)[1] == FunctionOutput(
        "call_1", (TextPart("21"),)
    )


def test_thoughts_are_what_was_shown_or_sealed_or_summed_up() -> None:
    content = {"content": [{"type": "reasoning_text", "text": "a"}]}
    summary = {"summary": [{"type": "summary_text", "text": "c"}]}
    sealed = {"encrypted_content": SEALER.seal(OWNER, "b")}
    items = [content | summary | sealed, summary | sealed, summary, {}]

    assert shown(*({"type": "reasoning"} | item for item in items)) == (
        Reasoning("a"),
        Reasoning("b"),
        Reasoning("c"),
    )


@pytest.mark.parametrize("sealed", ["a1.", "a1.gAAAA===", SEALER.seal("someone else", "b")])
def test_what_was_sealed_for_others_here_is_refused(sealed: str) -> None:
    """By the code with which clients begin again without it."""
    error = refused({"type": "reasoning", "summary": [], "encrypted_content": sealed})

    assert (error.param, error.code) == ("input[0].encrypted_content", "invalid_encrypted_content")


@pytest.mark.parametrize("sealed", ["", "gAAAA", "é", "rsn_1"])
def test_what_another_server_has_sealed_is_left_out_with_a_note(sealed: str) -> None:
    items = [
        {"type": "reasoning", "summary": [], "encrypted_content": sealed},
        {"role": "user", "content": "a"},
    ]
    request = accepted(input=items)

    assert request.turn.items == (Message(Role.USER, (TextPart("a"),)),)
    assert [note.param for note in request.notes] == ["input[0].encrypted_content"]


def test_a_compaction_stands_for_what_was_said_but_not_for_what_was_asked() -> None:
    new = {"type": "compaction", "encrypted_content": SEALER.seal(OWNER, "We met twice.")}
    items = [
        {"role": "developer", "content": "rule"},
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": "answer"},
        FROM_CLIENTS["compaction"],
        CALLED,
        new,
        {"role": "user", "content": "more"},
    ]

    assert shown(*items) == (
        said("rule", Role.DEVELOPER),
        said("question"),
        summary("We met twice."),
        said("more"),
    )


def test_a_summary_stands_where_the_last_of_what_it_sums_up_stood() -> None:
    new = {"type": "compaction", "encrypted_content": SEALER.seal(OWNER, "We met.")}
    one, two, answer = ({"role": role, "content": role} for role in ("user", "developer", "assistant"))

    assert shown(answer, one, new) == (summary("We met."), said("user"))
    assert shown(one, answer, two, one, new, answer) == (
        said("user"),
        summary("We met."),
        said("developer", Role.DEVELOPER),
        said("user"),
        said("assistant", Role.ASSISTANT),
    )
    assert shown(one, new, two) == (said("user"), summary("We met."), said("developer", Role.DEVELOPER))
    assert shown(new, one, new) == (summary("We met."), said("user"))


def test_what_other_servers_ran_is_shown_if_it_has_words() -> None:
    items = [FROM_CLIENTS["mcp_call"] | {"id": "m"}, FROM_CLIENTS["code_interpreter_call"] | {"id": "c"}]
    items += [FROM_CLIENTS["shell_call"], FROM_CLIENTS["shell_call_output"] | {"output": "ok"}]

    assert shown(*items, FROM_CLIENTS["web_search_call"], FROM_CLIENTS["computer_call"]) == (
        FunctionCall("m", "n", "{}"),
        FunctionOutput("m", (TextPart("out"),)),
        FunctionCall("c", "code_interpreter", '{"code":"1"}'),
        FunctionOutput("c", (TextPart("1"),)),
        FunctionCall("c", "shell", '{"commands":["ls"]}'),
        FunctionOutput("c", (TextPart("ok"),)),
        FunctionCall("c", "computer", '{"action":{"type":"wait"}}'),
    )


@pytest.mark.parametrize("fields", [{}, SUMMARISED, SEALED])
def test_an_answer_is_shown_again_as_the_model_wrote_it(fields: dict[str, Any]) -> None:
    answering = answering_to(**fields)
    streamed(answering, [*THOUGHT, *TEXT, *CALL, STOP])
    payloads = [item.payload for item in answering.items]

    wanted = (Reasoning("Hm"), said("Hello", Role.ASSISTANT), FunctionCall("call_1", "f", '{"a": 1}'))

    assert accepted({"history": payloads}, input=[]).turn.items == wanted
    assert shown(*map(json.loads, payloads)) == wanted


@pytest.mark.parametrize("fields", [CUSTOM, SPACED])
def test_calls_of_all_kinds_of_tools_come_back_under_their_flat_names(fields: dict[str, Any]) -> None:
    name = "f" if fields is CUSTOM else "ns__f"
    call = [type(CALL[0])("call_1", name), *(e for e in CALL[1:])]
    answering = answering_to(**fields)
    streamed(answering, [*call, STOP])

    [item] = shown(*(json.loads(item.payload) for item in answering.items))

    assert isinstance(item, FunctionCall)
    assert item.name == name


# Parts


def file(data: bytes, **fields: Any) -> dict[str, Any]:
    return {"type": "input_file", "file_data": base64.b64encode(data).decode()} | fields


IMAGE, FILE = MediaKind.IMAGE, MediaKind.FILE


@pytest.mark.parametrize(
    ("part", "attached"),
    [
        ({"type": "input_image", "image_url": "data:,x"}, {"kind": IMAGE, "url": "data:,x"}),
        (
            {"type": "input_image", "image_url": "https://a.example/b", "detail": "low"},
            {"kind": IMAGE, "url": "https://a.example/b", "low": True},
        ),
        (
            {"type": "input_image", "file_id": "file-1", "image_url": None},
            {"kind": IMAGE, "file_id": "file-1"},
        ),
        (file(b"a", filename="t.csv"), {"kind": FILE, "data": "YQ==", "name": "t.csv"}),
        ({"type": "input_file", "file_data": "data:,a"}, {"kind": FILE, "url": "data:,a"}),
        ({"type": "input_file", "file_id": "file-1"}, {"kind": FILE, "file_id": "file-1"}),
        (
            {"type": "input_file", "file_url": "http://a.example/b"},
            {"kind": FILE, "url": "http://a.example/b"},
        ),
    ],
)
def test_what_is_no_text_is_attached_in_its_place(part: dict[str, Any], attached: dict[str, Any]) -> None:
    parts = [{"type": "input_text", "text": "Look:"}, part]
    output = OUTPUTS["function_call_output"] | {"output": [part]}

    [message] = shown({"role": "user", "content": parts})
    [_, result] = shown(CALLED, output)

    assert message == Message(
        Role.USER, (TextPart("Look:"), Attachment(param="input[0].content[1]", **attached))
    )
    assert result.parts == (Attachment(param="input[1].output[0]", **attached),)


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "input_image"}, "image_url"),
        ({"type": "input_image", "image_url": "file:///etc/passwd"}, "image_url"),
        ({"type": "input_image", "image_url": "data:,", "detail": "huge"}, "detail"),
        ({"type": "input_image", "file_id": ""}, "file_id"),
        ({"type": "input_audio"}, "type"),
        ({"type": "input_file", "file_url": "ftp://a"}, "file_url"),
        ({"type": "input_text"}, "text"),
        ({"type": "input_text", "text": 3}, "text"),
        ({"text": "a"}, "type"),
    ],
)
def test_parts_that_cannot_be_read_are_refused_by_name(part: dict[str, Any], param: str) -> None:
    good = {"type": "input_text", "text": "Look:"}

    assert refused({"role": "user", "content": [good, part]}).param == f"input[0].content[1].{param}"
    output = OUTPUTS["function_call_output"] | {"output": [part]}
    assert refused(CALLED, output).param == f"input[1].output[0].{param}"


def test_refusals_are_text() -> None:
    [message] = shown({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]})

    assert message == said("No.", Role.ASSISTANT)


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (3, "input[0]"),
        ({"role": "user", "content": 3}, "input[0].content"),
        ({"role": "user", "content": ["a"]}, "input[0].content[0]"),
        ({"type": "function_call", "name": "f"}, "input[0].call_id"),
        ({"type": "function_call", "call_id": "c", "name": ""}, "input[0].name"),
        ({"type": "custom_tool_call", "call_id": "c", "name": "f"}, "input[0].input"),
        ({"type": "item_reference"}, "input[0].id"),
        ({"type": 3}, "input[0].type"),
        ({"type": "compaction"}, "input[0].encrypted_content"),
        ({"type": "reasoning", "summary": "no"}, "input[0].summary"),
        ({"type": "message", "id": 3, "role": "user", "content": ""}, "input[0].id"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(item: Any, param: str) -> None:
    assert refused(item).param == param


@pytest.mark.parametrize(("given_", "text"), [(None, "{}"), ({"a": [1]}, '{"a":[1]}'), ('{"a"', '{"a"')])
def test_arguments_come_in_all_shapes(given_: Any, text: str) -> None:
    assert shown(CALLED | {"arguments": given_}) == (FunctionCall("call_1", "f", text),)


class Whole(str):
    """A text that must not be iterated or sliced."""

    __slots__ = ()

    def __iter__(self) -> Iterator[str]:
        raise AssertionError


def test_a_text_is_not_looked_through_for_items() -> None:
    assert references(Whole("Hi")) == []
    assert known_listings([], Whole("Hi")) == {}
    assert last_container([], Whole("Hi")) is None
