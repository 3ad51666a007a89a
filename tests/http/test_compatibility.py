"""Nothing in silence: docs/compatibility.md has all that the installed SDKs know, and says what is true."""

import re
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.http.api import Api, ask, client, prompt_of, user
from tests.http.chat_api import ChatApi, chatting
from tests.http.messages_api import MessagesApi, asking
from tests.http.test_socket import connected, refused, send
from tests.rows import every_row
from tests.sdk_unions import UNIONS
from tests.server import Running, running
from tests.test_docs import rows

PAGE = "compatibility.md"
TESTS = Path(__file__).parent.parent
SCRIPT: list[dict[str, Any]] = [{"output": "Hello there!"}]
RESPONSES, CHAT, MESSAGES = (f"{name}: parameters" for name in ("Responses", "Chat Completions", "Messages"))
ITEMS, BLOCKS = "Responses: input items", "Messages: blocks of a request"
_ASKED, _ANSWERED = frozenset({"acts", "hint", "noted", "refused"}), frozenset({"sent", "never"})
VERDICTS = {
    **dict.fromkeys(UNIONS, _ASKED),
    **dict.fromkeys(
        [head for head in UNIONS if re.search("output|events|answer|deltas|reasons", head)], _ANSWERED
    ),
    "Messages: betas": _ASKED | {"elsewhere"},
}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGM4ocEFAAK2APsJOywMAAAAAElFTkSuQmCC"
"""A PNG of one pixel."""


def verdicts(heading: str, *wanted: str) -> list[str]:
    """The members that have one of these verdicts."""
    return [name for name, verdict, *_ in rows(PAGE, heading) if verdict in wanted]


@pytest.mark.parametrize("heading", UNIONS)
def test_all_that_the_sdks_know_has_its_row(heading: str) -> None:
    table = [name for name, *_ in rows(PAGE, heading)]
    # The page may know a newer SDK than the one that is installed.
    every_row(table, {*table} | UNIONS[heading], f"'{heading}' in docs/{PAGE}")
    assert {verdict for _, verdict, *_ in rows(PAGE, heading)} <= VERDICTS[heading]


# Responses


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Running]:
    async with running(SCRIPT) as server:
        yield server


@pytest_asyncio.fixture
async def api(server: Running) -> AsyncIterator[Api]:
    async with client(server) as api:
        yield api


IN_RESPONSES: dict[str, Any] = {
    "access_programs": {"cyber": "standard"},
    "background_options": {"completion_window": "soonest"},
    "betas": ["responses_multi_agent=v1"],
    "image": {"context_compression": "enabled"},
    "multi_agent": {"enabled": True},
    "prompt": {"id": "pmpt_1"},
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "explicit", "ttl": "12h"},
    "prompt_cache_retention": "24h",
    "reasoning": {"mode": "pro"},
    "safety_identifier": "x" * 128,
    "service_tier": "ultrafast",
    "user": "u",
}
"""A value of each parameter of the Responses API that does not act, or has a member that does not."""


def value_of(values: dict[str, Any], name: str) -> dict[str, Any]:
    """The parameter, with this member alone if it is one."""
    outer, _, inner = name.partition(".")
    return {outer: {inner: values[outer][inner]} if inner else values[outer]}


def noted(body: Any) -> list[str]:
    """The parameters that the notes of an answer name."""
    return [note["param"] for note in body.get("notes", ())]


def is_noted(name: str, body: Any) -> bool:
    return any(name.startswith(param) or param.startswith(name) for param in noted(body))


@pytest.mark.parametrize("name", verdicts(RESPONSES, "refused"))
async def test_a_refused_parameter_is_named(api: Api, name: str) -> None:
    error = await api.refused("Hi", **value_of(IN_RESPONSES, name))

    assert error["param"] == name
    assert f"'{name}'" in error["message"]


@pytest.mark.parametrize("name", verdicts(RESPONSES, "noted"))
async def test_a_parameter_without_effect_is_noted(api: Api, name: str) -> None:
    whole = await api.create("Hi", **value_of(IN_RESPONSES, name))
    streamed = await api.streamed("Hi", **value_of(IN_RESPONSES, name))

    assert is_noted(name, whole)
    assert noted(streamed) == noted(whole)


@pytest.mark.parametrize("name", verdicts(RESPONSES, "hint"))
async def test_a_hint_changes_nothing(server: Running, api: Api, name: str) -> None:
    await api.create("Hi")
    plain = server.engine.seen[-1]
    # The document of the tests is older than the SDK, and has fewer values.
    answer = await api.http.post("/responses", json=ask("Hi", **value_of(IN_RESPONSES, name)))

    assert answer.status_code == 200, answer.text
    assert noted(answer.json()) == []
    assert server.engine.seen[-1] == plain


CALL = {"type": "function_call", "call_id": "c", "name": "zebra", "arguments": "{}"}
ZEBRAS: dict[str, Any] = {
    "message": user("zebra"),
    "function_call": CALL,
    "function_call_output": [CALL, {"type": "function_call_output", "call_id": "c", "output": "zebra"}],
    "custom_tool_call": {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "zebra"},
    "custom_tool_call_output": [
        {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "zebra"},
    ],
    "file_search_call": {
        "type": "file_search_call",
        "id": "fs_1",
        "queries": ["q"],
        "results": [{"filename": "a", "text": "zebra"}],
    },
    "web_search_call": {
        "type": "web_search_call",
        "id": "ws_1",
        "action": {"type": "search", "query": "zebra"},
        "results": [{"url": "https://a.example", "title": "zebra", "text": "zebra"}],
    },
    "code_interpreter_call": {
        "type": "code_interpreter_call",
        "code": "zebra()",
        "outputs": [{"type": "logs", "logs": "1"}],
    },
    "image_generation_call": {
        "type": "image_generation_call",
        "result": PIXEL,
        "revised_prompt": "a zebra",
    },
    "computer_call": {
        "type": "computer_call",
        "call_id": "c",
        "action": {"type": "type", "text": "zebra"},
    },
    "computer_call_output": [
        {"type": "computer_call", "call_id": "c", "action": {"type": "type", "text": "zebra"}},
        {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot"}},
    ],
    "local_shell_call": {
        "type": "local_shell_call",
        "call_id": "c",
        "action": {"type": "exec", "command": ["zebra"]},
    },
    "local_shell_call_output": [
        {"type": "local_shell_call", "call_id": "c", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "c", "output": "zebra"},
    ],
    "shell_call": {"type": "shell_call", "call_id": "c", "action": {"commands": ["zebra"]}},
    "shell_call_output": [
        {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
        {
            "type": "shell_call_output",
            "call_id": "c",
            "output": [{"stdout": "zebra", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        },
    ],
    "apply_patch_call": {
        "type": "apply_patch_call",
        "call_id": "c",
        "operation": {"type": "delete_file", "path": "zebra"},
    },
    "apply_patch_call_output": [
        {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "p"}},
        {"type": "apply_patch_call_output", "call_id": "c", "output": "zebra"},
    ],
    "tool_search_call": {
        "type": "tool_search_call",
        "call_id": "c",
        "execution": "client",
        "arguments": {"query": "zebra"},
    },
    "tool_search_output": {
        "type": "tool_search_output",
        "call_id": None,
        "execution": "client",
        "tools": [{"type": "function", "name": "zebra", "parameters": {"type": "object"}}],
    },
    "additional_tools": {
        "type": "additional_tools",
        "role": "developer",
        "tools": [{"type": "function", "name": "zebra", "parameters": {"type": "object"}}],
    },
    "configuration_update": {
        "type": "configuration_update",
        "text": {
            "format": {
                "type": "json_schema",
                "name": "zebra",
                "schema": {"type": "object", "properties": {"zebra": {"type": "string"}}},
            }
        },
    },
    "mcp_call": {"type": "mcp_call", "server_label": "s", "name": "n", "arguments": "{}", "output": "zebra"},
    "program": {"type": "program", "call_id": "c", "code": "zebra()"},
    "program_output": [
        {"type": "program", "call_id": "c", "code": "f()"},
        {"type": "program_output", "call_id": "c", "result": "zebra"},
    ],
}
"""Items whose content the model sees."""
OTHERWISE = frozenset(
    {
        "compaction",
        "compaction_trigger",
        "item_reference",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_list_tools",
        "reasoning",
    }
)
"""Items that act otherwise: they have tests of their own. The template shows reasoning, or not."""


@pytest.mark.parametrize("type_", [name for name in verdicts(ITEMS, "acts") if name not in OTHERWISE])
async def test_an_item_reaches_the_model(server: Running, api: Api, type_: str) -> None:
    items = ZEBRAS[type_]
    given = [user("Hi"), *(items if isinstance(items, list) else [items])]
    body = await api.create([*given, user("Go on.")])

    assert "zebra" in prompt_of(server)
    assert noted(body) == []


@pytest.mark.parametrize("type_", verdicts(ITEMS, "refused"))
async def test_a_refused_item_is_named(api: Api, type_: str) -> None:
    error = await api.refused([user("Hi"), {"type": type_}])

    assert (error["param"], type_ in error["message"]) == ("input[1].type", True)


@pytest.mark.parametrize("type_", ["file_search_call", "web_search_call"])
async def test_a_search_without_results_is_noted(api: Api, type_: str) -> None:
    item = {"type": type_, "id": "s_1", "queries": ["q"], "action": {"type": "search", "query": "q"}}
    body = await api.create([user("Hi"), item])

    assert noted(body) == ["input[1]"]


@pytest.mark.parametrize("caller", [{"type": "direct"}, {"type": "program", "caller_id": "p"}, None])
async def test_a_call_of_a_program_is_noted(api: Api, caller: Any) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "caller": caller}
    output = {"type": "function_call_output", "call_id": "c", "output": "x", "caller": caller}
    expected = ["input[1].caller", "input[2].caller"] if caller and caller["type"] == "program" else []
    assert noted(await api.create([user("Hi"), call, output])) == expected


@pytest.mark.parametrize("tool", [{"type": "function", "name": "f"}, {"type": "custom", "name": "f"}])
async def test_whether_a_call_is_waited_for_is_a_flag(api: Api, tool: Any) -> None:
    assert noted(await api.create("Hi", tools=[{**tool, "async": True}])) == []
    assert (await api.refused("Hi", tools=[{**tool, "async": "yes"}]))["param"] == "tools[0].async"


@pytest.mark.parametrize("type_", verdicts("Responses: tools", "noted"))
async def test_a_tool_without_effect_is_noted(api: Api, type_: str) -> None:
    assert noted(await api.create("Hi", tools=[{"type": type_}])) == ["tools[0].type"]


@pytest.mark.parametrize("type_", verdicts("Responses: tools", "refused"))
async def test_a_refused_tool_is_named(api: Api, type_: str) -> None:
    error = await api.refused("Hi", tools=[{"type": type_}])

    assert (error["param"], type_ in error["message"]) == ("tools[0].type", True)


@pytest.mark.parametrize("value", verdicts("Responses: include", "acts", "hint"))
async def test_what_is_to_be_included_is_known(api: Api, value: str) -> None:
    await api.create("Hi", include=[value])


@pytest.mark.parametrize("type_", verdicts("Responses: messages of a WebSocket", "refused"))
async def test_a_refused_message_of_a_websocket_is_named(server: Running, type_: str) -> None:
    async with connected(server) as socket:
        await send(socket, "Hi", type=type_)
        error = await refused(socket)

    assert error["param"] == "type"


# Chat Completions

IN_CHAT: dict[str, Any] = {
    "audio": {"voice": "alloy", "format": "wav"},
    "modalities": ["text", "audio"],
    "prediction": {"type": "content", "content": "Hello there!"},
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "explicit", "ttl": "30m"},
    "prompt_cache_retention": "24h",
    "safety_identifier": "x" * 128,
    "service_tier": "ultrafast",
    "user": "u",
}


@pytest_asyncio.fixture
async def chat_api() -> AsyncIterator[ChatApi]:
    async with chatting(SCRIPT) as chat_api:
        yield chat_api


@pytest.mark.parametrize("name", verdicts(CHAT, "refused"))
async def test_a_refused_parameter_of_a_chat_is_named(chat_api: ChatApi, name: str) -> None:
    error = await chat_api.refused("Hi", **value_of(IN_CHAT, name))

    assert (error["param"], name in error["message"]) == (name, True)


@pytest.mark.parametrize("name", verdicts(CHAT, "hint"))
async def test_a_hint_changes_no_chat(chat_api: ChatApi, name: str) -> None:
    await chat_api.ask("Hi")
    plain = chat_api.seen
    body = await chat_api.ask("Hi", **value_of(IN_CHAT, name))

    assert "notes" not in body
    assert chat_api.seen == plain


# Messages

IN_MESSAGES: dict[str, Any] = {
    "betas": ["unknown-2099-01-01"],
    "billing_policy": {"type": "billing_policy", "bill_to": "user_profile"},
    "cache_control": {"type": "ephemeral"},
    "container": "container_1",
    "fallback_credit_token": "t",
    "fallbacks": [{"model": "other"}],
    "inference_geo": "eu",
    "metadata": {"user_id": "u"},
    "output_config": {"task_budget": {"type": "tokens", "total": 20_000}},
    "service_tier": "auto",
    "speed": "fast",
    "thinking": {"block_binding": {"prefix_mismatch_behavior": "error"}},
    "thread": {"type": "create"},
    "user_profile_id": "u",
    "workspace_id": "w",
}


@pytest_asyncio.fixture
async def messages_api() -> AsyncIterator[MessagesApi]:
    async with asking(SCRIPT) as messages_api:
        yield messages_api


def in_messages(name: str) -> dict[str, Any]:
    fields = value_of(IN_MESSAGES, name)
    return fields if "thinking" not in fields else {"thinking": {"type": "adaptive"} | fields["thinking"]}


@pytest.mark.parametrize("name", verdicts(MESSAGES, "refused"))
async def test_a_refused_parameter_of_messages_is_named(messages_api: MessagesApi, name: str) -> None:
    assert f"'{name}'" in (await messages_api.refused("Hi", **in_messages(name)))["message"]


@pytest.mark.parametrize("name", verdicts(MESSAGES, "noted"))
async def test_a_parameter_of_messages_without_effect_is_noted(messages_api: MessagesApi, name: str) -> None:
    assert is_noted(name, await messages_api.full("Hi", **in_messages(name)))
    start, *_ = await messages_api.stream("Hi", **in_messages(name))
    assert is_noted(name, start["message"])


@pytest.mark.parametrize("name", verdicts(MESSAGES, "hint"))
async def test_a_hint_changes_no_message(messages_api: MessagesApi, name: str) -> None:
    await messages_api.full("Hi")
    plain = messages_api.server.engine.seen[-1]
    body = await messages_api.full("Hi", **in_messages(name))

    assert "notes" not in body
    assert messages_api.server.engine.seen[-1] == plain


@pytest.mark.parametrize("type_", verdicts("Messages: edits", "acts"))
async def test_an_edit_acts_in_silence(messages_api: MessagesApi, type_: str) -> None:
    body = await messages_api.full("Hi", context_management={"edits": [{"type": type_}]})

    assert noted(body) == []
    assert body["context_management"] == {"applied_edits": []}


async def test_an_unknown_edit_is_refused(messages_api: MessagesApi) -> None:
    edits = {"edits": [{"type": "clear_all_20990101"}]}

    assert (
        "context_management.edits[0].type"
        in (await messages_api.refused("Hi", context_management=edits))["message"]
    )


async def test_reasoning_that_is_to_be_kept_is_no_edit(messages_api: MessagesApi) -> None:
    edits = [{"type": "clear_thinking_20251015", "keep": "all"}]

    assert "notes" not in await messages_api.full("Hi", context_management={"edits": edits})


async def test_a_count_says_that_nothing_was_edited(messages_api: MessagesApi) -> None:
    asked = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    count = await messages_api.post("/v1/messages/count_tokens", {**asked, "context_management": edits})

    assert count["context_management"] == {"original_input_tokens": count["input_tokens"]}


TOOL_USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
SERVER_USE = {
    "type": "server_tool_use",
    "id": "srvtoolu_1",
    "name": "web_search",
    "input": {"query": "zebra"},
}
ZEBRA_BLOCKS: dict[str, list[Any]] = {
    "text": [{"type": "text", "text": "zebra"}],
    "document": [
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "zebra"}}
    ],
    "search_result": [
        {
            "type": "search_result",
            "title": "t",
            "source": "s",
            "content": [{"type": "text", "text": "zebra"}],
        }
    ],
    "tool_use": [{**TOOL_USE, "name": "zebra"}],
    "tool_result": [TOOL_USE, {"type": "tool_result", "tool_use_id": "toolu_1", "content": "zebra"}],
    "server_tool_use": [SERVER_USE],
    "mcp_tool_use": [
        {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "zebra", "server_name": "s", "input": {}}
    ],
    **{
        type_: [
            {**SERVER_USE, "input": {}},
            {
                "type": type_,
                "tool_use_id": "srvtoolu_1",
                "content": {"type": type_.replace("tool_", ""), "stdout": "zebra", "content": "zebra"},
            },
        ]
        for type_ in (
            "bash_code_execution_tool_result",
            "code_execution_tool_result",
            "text_editor_code_execution_tool_result",
        )
    },
    "web_search_tool_result": [
        {**SERVER_USE, "input": {}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": [{"type": "web_search_result", "title": "zebra", "url": "u", "encrypted_content": ""}],
        },
    ],
}
"""Blocks whose content the model sees, the call of a result before it."""
CLIENT_TOOLS = [
    name
    for name in verdicts("Messages: tools", "acts")
    if name.startswith(("bash", "computer", "memory", "text_editor"))
]


@pytest.mark.parametrize("type_", ZEBRA_BLOCKS)
async def test_a_block_reaches_the_model(messages_api: MessagesApi, type_: str) -> None:
    blocks = ZEBRA_BLOCKS[type_]
    said = [block for block in blocks if block["type"] != "tool_result"]
    results = [block for block in blocks if block["type"] == "tool_result"]
    follows = [*results, {"type": "text", "text": "Go on."}]
    await messages_api.full(
        [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": said},
            {"role": "user", "content": follows},
        ]
    )

    assert "zebra" in messages_api.prompt


@pytest.mark.parametrize("type_", CLIENT_TOOLS)
async def test_a_tool_of_anthropic_s_clients_is_offered(messages_api: MessagesApi, type_: str) -> None:
    screen = {"display_width_px": 9, "display_height_px": 9} if type_.startswith("computer") else {}
    body = await messages_api.full("Hi", tools=[{"type": type_, "name": "zebra", **screen}])

    assert "zebra" in messages_api.prompt
    assert "notes" not in body


@pytest.mark.parametrize("type_", verdicts(BLOCKS, "refused"))
async def test_a_refused_block_is_named(messages_api: MessagesApi, type_: str) -> None:
    for role in ("user", "assistant"):
        error = await messages_api.refused([{"role": role, "content": [{"type": type_}]}])
        assert "messages[0].content[0].type" in error["message"]


@pytest.mark.parametrize("type_", verdicts("Messages: tools", "refused"))
async def test_a_refused_tool_of_messages_is_named(messages_api: MessagesApi, type_: str) -> None:
    error = await messages_api.refused("Hi", tools=[{"type": type_, "name": "t"}])

    assert "tools[0].type" in error["message"]


async def test_no_beta_has_to_be_known(messages_api: MessagesApi) -> None:
    betas = ",".join([*UNIONS["Messages: betas"], "unknown-2099-01-01"])
    response = await messages_api.http.post(
        "/v1/messages",
        json={"model": "scripted", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
        headers={"anthropic-beta": betas},
    )

    assert response.status_code == 200, response.text


@cache
def words_of_tests() -> set[str]:
    """All words of the other tests."""
    own = {Path(__file__), TESTS / "sdk_unions.py"}
    text = "".join(path.read_text() for path in TESTS.rglob("*.py") if path not in own)
    return {*ZEBRAS, *ZEBRA_BLOCKS, *CLIENT_TOOLS, *re.findall(r"[\w.]+", text)}


@pytest.mark.parametrize("heading", [head for head in UNIONS if head != "Messages: betas"])
def test_what_acts_or_is_sent_is_named_in_a_test(heading: str) -> None:
    untested = [
        name
        for name in verdicts(heading, "acts", "sent")
        if not {name, name.rpartition(".")[2], re.sub(r"_\d{8}$", "", name)} & words_of_tests()
    ]

    assert untested == []
