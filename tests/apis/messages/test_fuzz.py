"""Any request gives a turn, or an error that names a field. Nothing else is ever raised."""

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.apis.messages.accept import MessageContext, accept
from antiphon.apis.messages.citations import FileText
from antiphon.apis.messages.diagnostics import request_parts
from antiphon.apis.messages.errors import encode_error
from antiphon.apis.messages.history import cited_files
from antiphon.apis.messages.schema import CreateMessage
from antiphon.apis.messages.tools import requested_tools
from antiphon.apis.wire import decode
from antiphon.core.errors import RequestError
from antiphon.core.hosts import Hosts
from antiphon.core.turn import Function, Hosted
from antiphon.toolkits.registry import built_in
from tests.apis.messages.support import request, unseal
from tests.search import examples

HOSTS = Hosts(
    {
        "tools[1]": (Function("web_search", hosted=Hosted("web_search", "search")),),
        "tools[2]": (Function("shell", hosted=Hosted("shell", "run")),),
    }
)
WHOLE = request(
    [
        {"role": "user", "content": [
            {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}},
            {"type": "document", "title": "T", "source": {"type": "text", "data": "A."}, "citations": {"enabled": False}},
            {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "A."}]}, "citations": {"enabled": True}},
            {"type": "document", "source": {"type": "base64", "media_type": "text/plain", "data": "QS4="}, "citations": {"enabled": True}},
            {"type": "search_result", "source": "u:1", "title": "T", "content": [{"type": "text", "text": "A."}], "citations": {"enabled": True}},
        ]},
        {"role": "assistant", "content": [
            {"type": "compaction", "content": "A.", "encrypted_content": "sealed:A.", "signature": "s", "tool_changes": [
                {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}},
                {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "bash"}}]},
            {"type": "thinking", "thinking": "Hm.", "signature": "sealed:Hm."},
            {"type": "redacted_thinking", "data": "sealed:Hm."},
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": [1]}},
            {"type": "server_tool_use", "id": "srvtoolu_2", "name": "bash_code_execution", "input": {"command": "ls"}},
            {"type": "bash_code_execution_tool_result", "tool_use_id": "srvtoolu_2", "content": {"stdout": "a", "stderr": ""}},
            {"type": "server_tool_use", "id": "srvtoolu_3", "name": "web_fetch", "input": {"url": "u:1"}},
            {"type": "web_fetch_tool_result", "tool_use_id": "srvtoolu_3", "content": {
                "type": "web_fetch_result", "content": {"source": {"data": "A."}}}},
            {"type": "server_tool_use", "id": "srvtoolu_4", "name": "web_search", "input": {"query": "a"}},
            {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_4", "content": [
                {"url": "u:1", "title": "T", "encrypted_content": "sealed:A."}]},
            {"type": "mcp_tool_use", "id": "mcptoolu_5", "name": "roll", "server_name": "casino", "input": {}},
            {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_5", "content": [{"type": "text", "text": "4"}]},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True, "content": [
                {"type": "text", "text": "A."}, {"type": "image", "source": {"type": "base64", "data": ""}}, {"type": "tool_reference", "tool_name": "g"}]},
        ]},
        {"role": "system", "content": "Be brief."},
    ],
    system=[{"type": "text", "text": "Be kind."}],
    tools=[
        {"name": "f", "description": "F.", "input_schema": {"type": "object"}, "strict": True,
         "input_examples": [{}], "allowed_callers": ["direct"]},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 1, "user_location": {"city": "Rome"},
         "allowed_domains": ["a.example"]},
        {"type": "code_execution_20250825", "name": "code_execution", "max_uses": 2},
        {"type": "bash_20250124", "name": "bash"},
    ],
    tool_choice={"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    thinking={"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
    output_config={"effort": "low", "format": {"type": "json_schema", "schema": {}}},
    context_management={"edits": [
        {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 2}},
        {"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 9}, "keep": {"type": "tool_uses", "value": 1},
         "clear_at_least": {"type": "input_tokens", "value": 9}, "exclude_tools": ["f"], "clear_tool_inputs": ["f"]},
        {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 9}, "instructions": "I.", "pause_after_compaction": True},
    ]},
    diagnostics={"previous_message_id": "msg_1"},
    stop_sequences=["END"],
    temperature=1,
    stream=True,
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a request."""
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield from places(part, (*path, name))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The request with something else in a place, or nothing."""
    if not path:
        return new
    name, *rest = path
    if isinstance(value, list):
        return [
            changed(part, tuple(rest), new) if index == name else part for index, part in enumerate(value)
        ]
    return {key: changed(part, tuple(rest), new) if key == name else part for key, part in value.items()}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5) | st.sampled_from(["text", "tool_use", "document", "system", "sealed:x", "toolu_1"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "text", "content"]), inner),
    max_leaves=4,
)  # fmt: skip


def test_the_request_itself_is_accepted() -> None:
    assert understood(WHOLE) is None


@given(place=st.sampled_from([*places(WHOLE)]), value=VALUES)
@settings(max_examples=examples(400))
def test_a_request_is_understood_or_refused(place: tuple[Any, ...], value: Any) -> None:
    error = understood(changed(WHOLE, place, value))

    if error is not None:
        body = json.loads(encode_error(error))
        assert body["error"]["type"] == "invalid_request_error"
        assert error.param is None or error.param in body["error"]["message"]


def understood(given: Any) -> RequestError | None:
    """Why a request is refused, if it is."""
    try:
        wire = decode(json.dumps(given).encode(), CreateMessage)
        requested_tools(wire.tools, wire.mcp_servers, ("web_search", "shell"), built_in().message_views)
        files = {file.param: FileText(("A.",), paged=True) for file in cited_files(wire.messages)}
        request_parts(wire)
        accept(wire, MessageContext("", HOSTS, unseal, files=files, views=built_in().message_views))
    except RequestError as error:
        return error
    return None
