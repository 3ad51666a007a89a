"""MCP servers whose tools wait until they are found: those of requests and of the operator, in both APIs."""

from typing import Any

import pytest

from antiphon.tools.mcp.settings import Policy
from tests.http.api import text_of, user
from tests.http.positions.model import begins
from tests.http.positions.test_tool_changes import BM25
from tests.http.positions.test_tool_changes import OTHERS as OTHER_TOOLS
from tests.http.positions.test_tool_search import OTHERS, SEARCH
from tests.http.test_mcp import asking, call, kinds, operators, remote
from tests.tools.mcp_servers import serving

FOUND = call("tool_search", query="add two numbers")
SUM = call("add", a=2, b=3)


def prompts(server: Any) -> list[str]:
    return [request.prompt.text for request in server.engine.seen]


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("mode", ["whole", "streamed", "stored"])
async def test_the_tools_of_a_server_are_found(mode: str, early: bool) -> None:
    said = (SUM if early else FOUND, SUM, "It is 5.", SUM, "It is 5.")
    async with serving() as there, asking(*said) as (api, server):
        tools = [SEARCH, *OTHERS, remote(there, allowed_tools=["add"], defer_loading=True)]
        ask = api.streamed if mode == "streamed" else api.create
        first = await ask([user("2 + 3?")], tools=tools)
        assert kinds(first) == [
            *("mcp_list_tools", "tool_search_call", "tool_search_output", "mcp_call", "message")
        ]
        found = first["output"][2]["tools"]
        assert found == [{"type": "mcp", "server_label": "sums", "allowed_tools": ["add"]}]
        assert '"add"' not in prompts(server)[0]
        if mode == "stored":
            second = await ask([user("Again.")], tools=tools, previous_response_id=first["id"])
        else:
            second = await ask([user("2 + 3?"), *first["output"], user("Again.")], tools=tools)
        assert kinds(second) == ["mcp_call", "message"]
        assert begins([prompts(server)[0], *prompts(server)[3:]])
        assert there.told.calls == ["add", "add"]


async def test_a_call_that_has_to_be_approved_is_found_first() -> None:
    async with serving() as there, asking(FOUND, SUM, "It is 5.") as (api, _server):
        approved = remote(there, allowed_tools=["add"], defer_loading=True, require_approval="always")
        tools = [SEARCH, *OTHERS, approved]
        first = await api.create([user("2 + 3?")], tools=tools)
        assert kinds(first)[1:] == ["tool_search_call", "tool_search_output", "mcp_approval_request"]
        approval = {
            "type": "mcp_approval_response",
            "approval_request_id": first["output"][-1]["id"],
            "approve": True,
        }
        second = await api.create([approval], tools=tools, previous_response_id=first["id"])
        assert text_of(second) == "It is 5."
        assert there.told.calls == ["add"]


def messages(text: str, *more: Any) -> list[Any]:
    return [{"role": "user", "content": text}, *more]


async def test_messages_find_and_add_tools_of_servers() -> None:
    query = call("tool_search_tool_bm25", query="add two numbers")
    async with serving() as there, asking(query, SUM, "It is 5.", SUM, "It is 5.") as (api, server):
        url = str(api.http.base_url).rstrip("/") + "/messages"
        own = {"type": "url", "name": "sums", "url": there.url}
        toolset = {
            "type": "mcp_toolset",
            "mcp_server_name": "sums",
            "default_config": {"defer_loading": True},
        }
        body = {
            "model": "scripted",
            "max_tokens": 999,
            "mcp_servers": [own],
            "tools": [BM25, *OTHER_TOOLS, toolset],
        }
        first = (await api.http.post(url, json=body | {"messages": messages("2 + 3?")})).json()
        assert [block["type"] for block in first["content"]] == [
            *("server_tool_use", "tool_search_tool_result", "mcp_tool_use", "mcp_tool_result", "text")
        ]
        later = messages("2 + 3?", {"role": "assistant", "content": first["content"]}, *messages("Again."))
        second = (await api.http.post(url, json=body | {"messages": later})).json()
        assert [block["type"] for block in second["content"]] == ["mcp_tool_use", "mcp_tool_result", "text"]
        assert begins([prompts(server)[0], *prompts(server)[3:]])


@pytest.mark.parametrize("name", ["mcp_tool_reference", "mcp_toolset_reference"])
async def test_messages_add_and_remove_tools_of_the_operators_servers(name: str) -> None:
    never = Policy(approval="never")
    async with (
        serving() as there,
        asking(SUM, "It is 5.", SUM, servers=(operators(there, policy=never),)) as (api, server),
    ):
        url = str(api.http.base_url).rstrip("/") + "/messages"
        tool = {"type": name, "server_name": "sums"} | (
            {"name": "add"} if name == "mcp_tool_reference" else {}
        )
        toolset = {
            "type": "mcp_toolset",
            "mcp_server_name": "sums",
            "default_config": {"defer_loading": True},
        }
        body: dict[str, Any] = {
            "model": "scripted",
            "max_tokens": 999,
            "tools": [{"name": "now", "input_schema": {"type": "object"}}, toolset],
            "messages": messages(
                "2 + 3?",
                {"role": "system", "content": [{"type": "tool_addition", "tool": tool}]},
                *messages("Go on."),
            ),
        }
        first = (await api.http.post(url, json=body)).json()
        assert [block["type"] for block in first["content"]] == ["mcp_tool_use", "mcp_tool_result", "text"]
        removal = {"role": "system", "content": [{"type": "tool_removal", "tool": tool}]}
        body["messages"] += [{"role": "assistant", "content": first["content"]}, removal, *messages("Again.")]
        second = (await api.http.post(url, json=body)).json()
        assert second["content"] == []
        assert begins([prompts(server)[0], prompts(server)[-1]])
        assert there.told.calls == ["add"]


async def test_items_add_servers_of_the_operators() -> None:
    never = Policy(approval="never")
    async with (
        serving() as there,
        asking("Hi.", SUM, "It is 5.", servers=(operators(there, policy=never),)) as (api, server),
    ):
        own = {"type": "function", "name": "now", "parameters": {"type": "object"}}
        first = await api.create([user("Hello")], tools=[own])
        added = {
            "type": "additional_tools",
            "role": "developer",
            "tools": [{"type": "mcp", "server_label": "sums", "allowed_tools": ["add"]}],
        }
        second = await api.create([added, user("2 + 3?")], tools=[own], previous_response_id=first["id"])
        assert kinds(second) == ["mcp_list_tools", "mcp_call", "message"]
        assert begins(prompts(server)[:2])
