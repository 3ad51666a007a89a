"""Tools of MCP servers in every API, with servers made by the SDK: listed, called, approved, and broken."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client.session import ClientSession
from mcp.server import MCPServer
from mcp_types import ToolAnnotations
from msgspec.structs import replace
from structlog.testing import capture_logs

from antiphon.config import identity_of
from antiphon.core.items import MediaKind
from antiphon.core.limits import Limits
from antiphon.engines.engine import Capabilities
from antiphon.engines.scripted import CAPABILITIES
from antiphon.tools.mcp.connection import Connection, Network, Target
from antiphon.tools.mcp.open import open_mcp
from antiphon.tools.mcp.servers import OperatorServer
from antiphon.tools.mcp.settings import Policy, ToolFilter
from antiphon.tools.mcp.tables import McpServer
from antiphon.tools.mcp.tool import Mcp
from antiphon.tools.web.guard import GuardedTransport, look_up, public
from tests.acting import ActingTool, TakingTurns
from tests.http.api import Api, check_stream, client, prompt_of, text_of, user
from tests.http.harmony import Said
from tests.media import WAV
from tests.response_invariants import check
from tests.run.support import until
from tests.server import NO_TLS, Running, running
from tests.tools.mcp_servers import SECRET, Serving, serving
from tests.tools.mcp_tools import PAGE, PIXEL, STDIO

HASTY = Limits(mcp_seconds=1, mcp_connect_seconds=2)


def network() -> Network:
    return Network(
        GuardedTransport(public, look_up), httpx2.AsyncHTTPTransport(verify=NO_TLS, trust_env=False)
    )


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def remote(at: Serving | str, **fields: Any) -> dict[str, Any]:
    url = at if isinstance(at, str) else at.url
    return {"type": "mcp", "server_label": "sums", "server_url": url, "require_approval": "never", **fields}


@asynccontextmanager
async def asking(
    *said: str,
    servers: tuple[OperatorServer, ...] = (),
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    keys: tuple[str, ...] = (),
    capabilities: Capabilities = CAPABILITIES,
    **options: Any,
) -> AsyncIterator[tuple[Api, Running]]:
    """A client of a server whose requests may name MCP servers on this machine."""
    tool = Mcp(network(), servers, ("127.0.0.1",), limits)
    await tool.start()
    try:
        async with (
            running(
                TakingTurns(*said, capabilities=capabilities),
                tools=[tool],
                api_key=keys,
                limit=limits,
                **options,
            ) as server,
            client(server, *keys[:1]) as api,
        ):
            yield api, server
    finally:
        await tool.close()


def kinds(response: Mapping[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


def item(response: Mapping[str, Any], type_: str) -> dict[str, Any]:
    [found] = [item for item in response["output"] if item["type"] == type_]
    return found  # type: ignore[no-any-return]


CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Go!"}], "max_tokens": 999}
SUM = (call("add", a=2, b=3), "It is 5.")


# Listed and called


@pytest.mark.parametrize("path", ["/mcp", "/sse"])
async def test_tools_are_listed_and_called(path: str) -> None:
    async with serving(path=path) as there, asking(*SUM) as (api, server):
        whole = await api.create("2 + 3?", tools=[remote(there, allowed_tools=["add"])])
        streamed = await api.streamed("2 + 3?", tools=[remote(there, allowed_tools=["add"])])

    for response in (whole, streamed):
        assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
        listed, called = response["output"][:2]
        assert [tool["name"] for tool in listed["tools"]] == ["add"]
        assert listed["tools"][0]["input_schema"]["required"] == ["a", "b"]
        assert listed["tools"][0]["annotations"] == {"readOnlyHint": True}
        assert "error" not in listed
        assert {name: called[name] for name in ("server_label", "name", "output", "error", "status")} == {
            "server_label": "sums",
            "name": "add",
            "output": "5",
            "error": None,
            "status": "completed",
        }
        assert json.loads(called["arguments"]) == {"a": 2, "b": 3}
        assert text_of(response) == "It is 5."
    assert "5" in prompt_of(server)
    assert there.told.calls == ["add", "add"]


def meeting(listing: asyncio.Barrier, calling: asyncio.Barrier) -> Any:
    """A server that answers nothing before as many are asked, nor a call before as many are made."""
    made = MCPServer("meeting")

    @made.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def meet() -> str:
        """Meets the other."""
        await calling.wait()
        return "met"

    app, asked = made.streamable_http_app(), []

    async def waiting(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not asked:
            asked.append(True)
            await listing.wait()
        await app(scope, receive, send)

    return waiting


async def test_servers_are_asked_and_called_side_by_side() -> None:
    listing, calling = asyncio.Barrier(2), asyncio.Barrier(2)
    said = call("one__meet") + call("other__meet")
    async with (
        serving(meeting(listing, calling)) as one,
        serving(meeting(listing, calling)) as other,
        asking(said, "Met.") as (api, _),
    ):
        tools = [remote(one, server_label="one"), remote(other, server_label="other")]
        response = await api.create("Meet!", tools=tools)

    assert kinds(response) == ["mcp_list_tools"] * 2 + ["mcp_call"] * 2 + ["message"]
    assert [item["output"] for item in response["output"] if item["type"] == "mcp_call"] == ["met", "met"]


@pytest.mark.parametrize("options", [{"stateless_http": True}, {"json_response": True}])
async def test_servers_without_sessions_or_streams(options: dict[str, bool]) -> None:
    async with serving(**options) as there, asking(*SUM) as (api, _):
        assert item(await api.create("2 + 3?", tools=[remote(there)]), "mcp_call")["output"] == "5"


@pytest.mark.parametrize("path", ["/mcp", "/sse"])
async def test_an_answer_has_one_session_and_one_listing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    opened, listed = Connection.open, ClientSession.list_tools

    async def opening(connection: Connection) -> None:
        done.append("session")
        await opened(connection)

    async def listing(session: ClientSession, **options: Any) -> Any:
        done.append("listing")
        return await listed(session, **options)

    monkeypatch.setattr(Connection, "open", opening)
    monkeypatch.setattr(ClientSession, "list_tools", listing)
    async with serving(path=path) as there, asking(*SUM, *SUM) as (api, _):
        assert item(await api.create("2 + 3?", tools=[remote(there)]), "mcp_call")["output"] == "5"
        assert done == ["session", "listing"]
        await api.create("2 + 3?", tools=[remote(there)])  # its listing is known
        assert done.count("session") == 2


@pytest.mark.parametrize("name", ["filter", "tool_filter", "blocked_tools"])
async def test_what_would_leave_tools_out_is_not_ignored(name: str) -> None:
    async with serving() as there, asking("Hi") as (api, _):
        error = await api.refused("Hi", tools=[remote(there, **{name: ["add"]})])
    assert error["param"] == f"tools[0].{name}"


async def test_a_listing_in_the_conversation_is_not_made_again() -> None:
    async with serving() as there, asking(*SUM, "Yes.", "Still.") as (api, server):
        first = await api.create("2 + 3?", tools=[remote(there)])
        requests = len(there.told.headers)
        second = await api.create("Sure?", previous_response_id=first["id"], tools=[remote(there)])
        items = [user("2 + 3?"), *first["output"], user("Sure?")]
        third = await api.create(items, tools=[remote(there)], store=False)

    assert kinds(second) == kinds(third) == ["message"]
    assert len(there.told.headers) == requests
    assert '"name": "add"' in prompt_of(server)


async def test_chat_and_messages_call_them_too() -> None:
    hello = {"model": "scripted", "messages": [{"role": "user", "content": "2 + 3?"}]}
    async with serving() as there, asking(*SUM) as (api, _):
        chat = await api.post("/chat/completions", {**hello, "tools": [remote(there)]})
        refused = await api.post(
            "/chat/completions", {**hello, "tools": [remote(there, require_approval="always")]}, 400
        )
        url = str(api.http.base_url).rstrip("/") + "/messages"
        servers = [{"type": "url", "url": there.url, "name": "sums", "authorization_token": SECRET}]
        toolset = {"type": "mcp_toolset", "mcp_server_name": "sums", "default_config": {"enabled": False}}
        toolset["configs"] = {"add": {"enabled": True}}
        body = {**hello, "max_tokens": 99, "mcp_servers": servers}
        message = (await api.http.post(url, json={**body, "tools": [toolset]})).json()
        older = (await api.http.post(url, json=body)).json()
        stream = (await api.http.post(url, json={**body, "tools": [toolset], "stream": True})).text

    assert chat["choices"][0]["message"]["content"] == "It is 5."
    assert "tool_calls" not in chat["choices"][0]["message"]
    assert refused["error"]["param"] == "tools[0].require_approval"
    for answer in (message, older):
        use, result, said = answer["content"]
        assert (use["type"], use["name"], use["server_name"], use["input"]) == (
            *("mcp_tool_use", "add", "sums"),
            {"a": 2, "b": 3},
        )
        assert (result["type"], result["tool_use_id"], result["is_error"]) == (
            "mcp_tool_result",
            use["id"],
            False,
        )
        assert result["content"][0]["text"] == "5"
        assert said["text"] == "It is 5."
    assert "mcp_tool_result" in stream
    assert f"Bearer {SECRET}" in [headers.get("authorization") for headers in there.told.headers]


async def test_names_that_collide_are_told_apart() -> None:
    own = {"type": "function", "name": "add", "parameters": {"type": "object"}}
    async with serving() as there, asking(call("sums__add", a=1, b=1), "Two.") as (api, server):
        response = await api.create("1 + 1?", tools=[own, remote(there, allowed_tools=["add"])])

    called = item(response, "mcp_call")
    assert (called["name"], called["output"]) == ("add", "2")
    assert '"sums__add"' in prompt_of(server)


@pytest.mark.parametrize(
    ("choice", "status"),
    [
        ({"type": "mcp", "server_label": "sums", "name": "add"}, 200),
        ({"type": "mcp", "server_label": "sums"}, 200),
        ({"type": "mcp", "server_label": "sums", "name": "nothing"}, 400),
        ({"type": "mcp", "server_label": "others"}, 400),
    ],
)
async def test_a_tool_choice_names_a_server_or_one_of_its_tools(choice: dict[str, str], status: int) -> None:
    async with serving() as there, asking(*SUM) as (api, _):
        body = {"model": "scripted", "input": "2 + 3?", "tools": [remote(there)], "tool_choice": choice}
        answer = await api.post("/responses", body, status)

    if status == 200:
        assert item(answer, "mcp_call")["output"] == "5"
    else:
        assert answer["error"]["param"] == "tool_choice.type"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"server_label": "a b"}, "tools[0].server_label"),
        ({"server_label": None}, "tools[0].server_label"),
        ({"server_url": "https://example.com/mcp"}, "tools[0].server_url"),
        ({"server_url": "http://user:pass@127.0.0.1/mcp"}, "tools[0].server_url"),
        ({"server_url": "file:///etc/passwd"}, "tools[0].server_url"),
        ({"server_url": None, "connector_id": "connector_gmail"}, "tools[0].server_label"),
        ({"connector_id": "connector_gmail"}, "tools[0].connector_id"),
        ({"tunnel_id": "tunnel_1"}, "tools[0].tunnel_id"),
        ({"headers": {"Host": "a"}}, "tools[0].headers.Host"),
        ({"headers": {"X-A": "a\r\nb"}}, "tools[0].headers.X-A"),
        ({"headers": {"authorization": "a"}, "authorization": "b"}, "tools[0].authorization"),
        ({"require_approval": "sometimes"}, "tools[0].require_approval"),
        ({"allowed_tools": 3}, "tools[0].allowed_tools"),
        ({"allowed_callers": ["programmatic"]}, "tools[0].allowed_callers"),
    ],
)
async def test_settings_that_make_no_sense_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    async with asking("Hi.") as (api, _):
        error = await api.refused("Hi", tools=[remote("http://127.0.0.1:9/mcp", **fields)])

    assert (error["param"] or "").startswith(param)


async def test_servers_are_counted() -> None:
    async with asking("Hi.", limits=Limits(mcp_servers=1)) as (api, _):
        tools = [remote("http://127.0.0.1:9/", server_label=label) for label in "ab"]
        error = await api.refused("Hi", tools=tools)

    assert (error["param"], error["code"]) == ("tools", "limit_exceeded")


# Broken servers


async def answering(status: int, body: bytes = b"", kind: str = "text/html") -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = [(b"content-type", kind.encode())]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    return app


async def silent(scope: Any, receive: Any, send: Any) -> None:
    """Never answers."""
    if scope["type"] == "http":
        while (await receive())["type"] != "http.disconnect":
            pass


@pytest.mark.parametrize("what", ["closed", "silent", "401", "404", "500", "html", "huge"])
async def test_a_server_that_cannot_be_listed_is_an_item_with_an_error(what: str) -> None:
    apps = {"silent": silent, "html": await answering(200, b"<html>")}
    if what.isdigit():
        apps[what] = await answering(int(what))
    if what == "huge":
        apps[what] = await answering(200, b"[" + b"1," * 3_000_000, "application/json")
    async with serving(apps.get(what, silent)) as there, asking("I cannot.", limits=HASTY) as (api, _):
        tool = remote("http://127.0.0.1:9/mcp" if what == "closed" else there)
        whole = await api.create("2 + 3?", tools=[tool])
        streamed = await api.streamed("2 + 3?", tools=[tool])

    for response in (whole, streamed):
        assert response["status"] == "completed"
        assert kinds(response) == ["mcp_list_tools", "message"]
        listed = response["output"][0]
        assert listed["tools"] == []
        assert listed["error"]
        if what.isdigit():
            assert what in listed["error"]


ADD = {"name": "add", "inputSchema": {"type": "object"}}


def lying(lists: Any = None, does: Any = None, other_id: bool = False) -> Any:
    """A server that answers a listing, and calls, with these values; with `other_id`, with an unknown id."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        asked = json.loads((await receive()).get("body") or b"{}")
        told = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "liar", "version": "1"},
            },
            "tools/list": {"tools": [ADD]} if lists is None else lists,
            "tools/call": does,
        }
        status, body = (200, b"") if "id" in asked else (202, b"")
        if asked.get("method") in told:
            lied = asked["method"] != "initialize" and other_id
            answer = {"jsonrpc": "2.0", "id": 999 if lied else asked["id"], "result": told[asked["method"]]}
            body = json.dumps(answer).encode()
        elif "id" in asked:
            error = {"code": -32601, "message": "What?"}
            body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": error}).encode()
        elif not asked:
            status = 405
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"content-type", b"application/json")],
            }
        )
        await send({"type": "http.response.body", "body": body})

    return app


@pytest.mark.parametrize(
    "server",
    [
        lying({"tools": [], "nextCursor": "more"}),
        lying({"tools": "yes"}),
        lying({}),
        lying([]),
        lying({"tools": [{"name": 7}]}),
        lying({"tools": [{"name": "add", "inputSchema": {"type": "string"}}]}),
        lying({"tools": [ADD] * 20}),
        lying(other_id=True),
    ],
    ids=[
        "pages without end",
        "no list",
        "nothing",
        "another type",
        "no names",
        "no object",
        "too many",
        "another's answer",
    ],
)
async def test_a_server_that_lies_about_its_tools_is_an_item_with_an_error(server: Any) -> None:
    limits = replace(HASTY, mcp_tools=10, mcp_connect_seconds=1)
    async with serving(server) as there, asking("I cannot.", limits=limits) as (api, _):
        response = await api.create("2 + 3?", tools=[remote(there)])

    assert kinds(response) == ["mcp_list_tools", "message"]
    assert response["output"][0]["error"]
    assert text_of(response) == "I cannot."


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}},
        {"type": "object", "$defs": {"a": {"$ref": "#/$defs/a"}}, "properties": {"a": {"$ref": "#/$defs/a"}}},
        {"type": "object", "properties": {"a": {"pattern": "("}}},
        {"type": "object", "properties": {"a": {"type": 7}}},
    ],
    ids=str,
)
async def test_a_schema_that_is_none_does_no_harm(schema: Any) -> None:
    lists = {"tools": [{"name": "add", "inputSchema": schema}]}
    done = {"content": [{"type": "text", "text": "5"}]}
    async with serving(lying(lists, done)) as there, asking(*SUM, limits=HASTY) as (api, _):
        response = await api.create("2 + 3?", tools=[remote(there)])

    assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
    assert item(response, "mcp_call")["output"] == "5"


@pytest.mark.parametrize(
    "done",
    [None, [], "5", {"content": "5"}, {"content": [{"type": "wibble"}]}, {"content": [{"type": "text"}]}],
    ids=str,
)
async def test_a_server_that_answers_a_call_with_nonsense_is_an_item_with_an_error(done: Any) -> None:
    async with serving(lying(does=done)) as there, asking(*SUM, limits=HASTY) as (api, _):
        response = await api.create("2 + 3?", tools=[remote(there)])

    called = item(response, "mcp_call")
    assert (called["status"], called["error"]["type"]) == ("failed", "mcp_protocol_error")
    assert text_of(response) == "It is 5."


@pytest.mark.parametrize(
    ("said", "type_", "text"),
    [
        (call("fail"), "mcp_tool_execution_error", ""),
        (call("hang"), "mcp_protocol_error", "did not answer in time"),
        (call("add", a="x"), "mcp_tool_execution_error", "valid"),
    ],
)
async def test_a_call_that_fails_is_an_item_with_an_error(said: str, type_: str, text: str) -> None:
    async with serving() as there, asking(said, "It failed.", limits=HASTY) as (api, _):
        payloads = await api.stream("Do it!", tools=[remote(there)])
        whole = await api.create("Do it!", tools=[remote(there)])

    for response in (check_stream(payloads), whole):
        called = item(response, "mcp_call")
        assert (called["status"], called["output"], called["error"]["type"]) == ("failed", None, type_)
        assert text in json.dumps(called["error"])
        assert text_of(response) == "It failed."
    assert b"response.mcp_call.failed" in b"".join(payloads)


async def test_what_a_server_says_too_much_is_cut() -> None:
    async with (
        serving() as there,
        asking(call("flood"), "So.", limits=Limits(mcp_characters=2000)) as (api, _),
    ):
        response = await api.create("Look!", tools=[remote(there)])

    assert len(item(response, "mcp_call")["output"]) < 2100
    assert "characters are left out" in item(response, "mcp_call")["output"]


DESCRIBED = [
    "A cat:",
    f"[An image, image/png, {len(PIXEL)} bytes.]",
    "[An image, image/png, 3 bytes.]",
    "[An image, image/png, 0 bytes.]",
    f"[A recording, audio/wav, {len(WAV)} bytes.]",
    f"[A file, text/html, {len(PAGE)} bytes.] cat://page",
]


@pytest.mark.parametrize("approval", ["never", "always"])
@pytest.mark.parametrize("takes", [{MediaKind.IMAGE}, {MediaKind.AUDIO}, set()], ids=str)
async def test_a_model_is_shown_the_media_and_files_that_it_takes(
    takes: set[MediaKind], approval: str
) -> None:
    capabilities = replace(CAPABILITIES, media=frozenset(takes))
    async with (
        serving() as there,
        asking(call("look_at"), "A cat.", capabilities=capabilities) as (api, server),
    ):
        tools = [remote(there, require_approval=approval)]
        response = await api.create("Look!", tools=tools)
        if approval == "always":
            answered = [approve(response["output"][-1])]
            response = await api.create(answered, tools=tools, previous_response_id=response["id"])
        prompt = server.engine.seen[-1].prompt

    shown = item(response, "mcp_call")
    assert (shown["name"], shown["output"].split("\n")) == ("look.at", DESCRIBED)
    assert [part.kind for part in prompt.media] == [*takes]
    assert "All about cats." in prompt.text
    assert ("(An image, which this model cannot see.)" in prompt.text) == (MediaKind.IMAGE not in takes)
    assert ("(Audio, which this model cannot hear.)" in prompt.text) == (MediaKind.AUDIO not in takes)
    assert "tool result" not in prompt.text


async def test_a_server_that_vanishes_between_listing_and_call() -> None:
    async with serving() as there, asking(*SUM, "Gone.", limits=HASTY) as (api, _):
        listed = await api.create("Hi", tools=[remote(there)], tool_choice="none")
        url = there.url
        first = [user("Hi"), *listed["output"][:1]]
    async with asking(call("add", a=1, b=1), "Gone.", limits=HASTY) as (api, _):
        response = await api.create([*first, user("1 + 1?")], tools=[remote(url)])

    called = item(response, "mcp_call")
    assert (called["status"], called["error"]["type"]) == ("failed", "mcp_protocol_error")
    assert text_of(response) == "Gone."


async def test_private_addresses_are_not_connected_to_unless_the_operator_trusts_them() -> None:
    tool = Mcp(network(), (), ("*",), HASTY)
    async with (
        running(TakingTurns("Hi."), tools=[tool]) as server,
        client(server) as api,
    ):
        metadata = await api.create("Hi", tools=[remote("https://169.254.169.254/mcp")])
        plain = await api.refused("Hi", tools=[remote("http://example.com/mcp")])
    await tool.close()

    assert "may not be opened" in item(metadata, "mcp_list_tools")["error"]
    assert plain["message"].endswith("Use https.")


async def test_secrets_reach_the_server_and_nobody_else(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    secrets = {"authorization": SECRET, "headers": {"X-Own": SECRET + "2"}}
    with capture_logs() as logs:
        async with serving() as there, asking(*SUM, store=store) as (api, server):
            whole = await api.create("2 + 3?", tools=[remote(there, **secrets)])
            queued = await api.create("2 + 3?", tools=[remote(there, **secrets)], background=True)
            finished = await api.finished(queued["id"])
            prompt = prompt_of(server)

    assert item(finished, "mcp_call")["output"] == "5"
    assert {f"Bearer {SECRET}"} == {headers["authorization"] for headers in there.told.headers}
    assert {SECRET + "2"} == {headers["x-own"] for headers in there.told.headers}
    written = b"".join([path.read_bytes() for path in sorted(tmp_path.iterdir())])  # noqa: ASYNC240
    for text in (json.dumps(whole), json.dumps(finished), json.dumps(logs, default=str), prompt):
        assert SECRET not in text
    assert SECRET.encode() not in written
    assert whole["tools"] == [remote(there)]


# Approval

ASK = {"require_approval": "always"}


def approve(request: Mapping[str, Any], approved: bool = True, **fields: Any) -> dict[str, Any]:
    return {
        "type": "mcp_approval_response",
        "approval_request_id": request["id"],
        "approve": approved,
        **fields,
    }


@pytest.mark.parametrize("way", ["previous", "items", "conversation"])
@pytest.mark.parametrize("mode", ["whole", "streamed", "background"])
async def test_a_call_is_run_after_the_client_has_approved_it(way: str, mode: str) -> None:
    async with serving() as there, asking(*SUM) as (api, server):
        tools = [remote(there, **ASK)]
        beginning: dict[str, Any] = {"store": False} if way == "items" else {}
        if way == "conversation":
            beginning["conversation"] = (await api.conversation()).rpartition("/")[2]
        asked = check_stream(await api.stream("2 + 3?", tools=tools, **beginning))
        assert kinds(asked) == ["mcp_list_tools", "mcp_approval_request"]
        assert there.told.calls == []
        request = asked["output"][1]
        given: list[Any] = [approve(request)]
        if way == "items":
            given = [user("2 + 3?"), *asked["output"], *given]
            beginning = {}
        elif way == "previous":
            beginning = {"previous_response_id": asked["id"]}
        if mode == "streamed":
            answered = check_stream(await api.stream(given, tools=tools, **beginning))
        elif mode == "whole":
            answered = await api.create(given, tools=tools, **beginning)
        else:
            queued = await api.create(given, tools=tools, background=True, **beginning)
            answered = await api.finished(queued["id"])
            assert check(await api.events(queued["id"])) == answered
        again = await api.refused([approve(request)], tools=tools, previous_response_id=answered["id"])

    called, said = answered["output"]
    assert (request["server_label"], request["name"]) == ("sums", "add")
    assert json.loads(request["arguments"]) == {"a": 2, "b": 3}
    assert (called["type"], called["output"], called["approval_request_id"]) == (
        "mcp_call",
        "5",
        request["id"],
    )
    assert called["arguments"] == request["arguments"]
    assert said["content"][0]["text"] == "It is 5."
    assert there.told.calls == ["add"]
    assert prompt_of(server).count('"name": "add", "arguments"') == 1
    assert "answered before" in again["message"]


async def test_an_approval_is_good_for_another_server_of_the_store(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    async with serving() as there:
        tools = [remote(there, **ASK)]
        async with asking(*SUM, store=store) as (api, _):
            asked = await api.create("2 + 3?", tools=tools)
        async with asking(*SUM, store=store) as (api, _):
            answer: dict[str, Any] = {"previous_response_id": asked["id"], "tools": tools}
            answered = await api.create([approve(asked["output"][1])], **answer)
        async with asking(*SUM, store=store) as (api, _):
            again = await api.refused([approve(asked["output"][1])], **answer)

    assert item(answered, "mcp_call")["output"] == "5"
    assert there.told.calls == ["add"]
    assert "answered before" in again["message"]


async def test_a_request_that_is_refused_does_not_use_its_approval_up() -> None:
    async with serving() as there, asking(*SUM) as (api, _):
        tools = [remote(there, **ASK)]
        asked = await api.create("2 + 3?", tools=tools)
        answer: dict[str, Any] = {"previous_response_id": asked["id"], "tools": tools}
        image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
        wrong = {"role": "user", "content": [image]}
        error = await api.refused([approve(asked["output"][1]), wrong], **answer)
        answered = await api.create([approve(asked["output"][1])], **answer)

    assert error["param"] == "input[1].content[0]"
    assert item(answered, "mcp_call")["output"] == "5"


async def test_a_call_that_is_denied_is_not_run_and_the_model_is_told_why() -> None:
    async with serving() as there, asking(*SUM, "Then not.") as (api, server):
        tools = [remote(there, **ASK)]
        asked = await api.create("2 + 3?", tools=tools)
        denied = approve(asked["output"][1], False, reason="Too dear.")
        response = await api.create([denied], tools=tools, previous_response_id=asked["id"])

    assert kinds(response) == ["message"]
    assert there.told.calls == []
    assert "did not approve this call" in prompt_of(server)
    assert "Too dear." in prompt_of(server)


async def test_a_call_that_nobody_decided_about_was_not_run() -> None:
    async with serving() as there, asking(*SUM) as (api, server):
        tools = [remote(there, **ASK)]
        asked = await api.create("2 + 3?", tools=tools)
        await api.create("Never mind.", tools=tools, previous_response_id=asked["id"])

    assert "has not decided about this call" in prompt_of(server)
    assert there.told.calls == []


async def test_an_approval_is_good_for_one_call_only() -> None:
    async with serving() as there, asking(*SUM) as (api, _):
        tools = [remote(there, **ASK)]
        asked = await api.create("2 + 3?", tools=tools)
        fields = {"tools": tools, "previous_response_id": asked["id"]}
        await api.create([approve(asked["output"][1])], **fields)
        replayed = await api.refused([approve(asked["output"][1])], **fields)
        twice = [approve(asked["output"][1])] * 2
        await api.refused(twice, **fields)

    assert replayed["param"] == "input[0].approval_request_id"
    assert there.told.calls == ["add"]


@pytest.mark.parametrize(
    "change",
    [
        {"arguments": '{"a": 2, "b": 4}'},
        {"name": "fail"},
        {"id": "mcpr_" + "0" * 56},
        {"id": "mcpr_é"},
        {"server_label": "other"},
    ],
)
async def test_what_was_not_asked_cannot_be_approved(change: dict[str, str]) -> None:
    async with serving() as there, asking(*SUM) as (api, _):
        tools = [remote(there, **ASK)]
        asked = await api.create("2 + 3?", tools=tools, store=False)
        forged = {**asked["output"][1], **change}
        given = [user("2 + 3?"), asked["output"][0], forged, approve(forged)]
        error = await api.refused(given, tools=tools)

    assert error["param"] == "input[3].approval_request_id"
    assert there.told.calls == []


async def test_an_approval_holds_for_its_server_and_its_owner_alone() -> None:
    async with (
        serving() as there,
        serving() as elsewhere,
        asking(*SUM, keys=("mine", "yours")) as (api, server),
        client(server, "yours") as other,
    ):
        asked = await api.create("2 + 3?", tools=[remote(there, **ASK)], store=False)
        given = [user("2 + 3?"), *asked["output"], approve(asked["output"][1])]
        moved = await api.refused(given, tools=[remote(elsewhere, **ASK)])
        stolen = await other.refused(given, tools=[remote(there, **ASK)])
        barred = await api.refused(given, tools=[remote(there, allowed_tools=["fail"], **ASK)])
        unknown = await api.refused([approve(asked["output"][1])], tools=[remote(there, **ASK)])

    for error in (moved, stolen, barred, unknown):
        assert error["code"] is None or error["param"]
        assert error["param"].endswith("approval_request_id")
    assert there.told.calls == elsewhere.told.calls == []


async def test_approval_by_tool() -> None:
    policy = {"never": {"read_only": True}, "always": {"tool_names": ["fail"]}}
    async with serving() as there, asking(f"{call('add', a=1, b=1)}\n{call('fail')}") as (api, _):
        response = await api.create("Go!", tools=[remote(there, require_approval=policy)])

    assert kinds(response) == ["mcp_list_tools", "mcp_call", "mcp_approval_request"]
    assert response["status"] == "completed"
    assert there.told.calls == ["add"]


# Cancelled, left, stopped


@pytest.mark.parametrize("approved", [False, True])
async def test_a_background_response_that_is_cancelled_in_the_middle_of_a_call(approved: bool) -> None:
    async with serving() as there, asking(call("hang"), "Never.") as (api, _):
        fields: dict[str, Any] = {"background": True, "tools": [remote(there, **(ASK if approved else {}))]}
        given: Any = "Hang!"
        if approved:
            asked = await api.create("Hang!", tools=fields["tools"])
            given, fields["previous_response_id"] = [approve(asked["output"][1])], asked["id"]
        queued = await api.create(given, **fields)
        async with asyncio.timeout(10):
            await there.told.hanging.wait()
        await api.post(f"/responses/{queued['id']}/cancel", {})
        ended = await api.finished(queued["id"])

    assert ended["status"] == "cancelled"
    assert [item["status"] for item in ended["output"] if item["type"] == "mcp_call"] == ["incomplete"]


@pytest.mark.parametrize("path", ["/mcp", "/sse"])
@pytest.mark.parametrize("api_path", ["/responses", "/chat/completions", "/messages"])
async def test_a_client_that_leaves_in_the_middle_of_a_call_ends_it_there_too(
    path: str, api_path: str
) -> None:
    async with serving(path=path) as there, asking(call("hang"), "Never.") as (api, server):
        body = {"model": "scripted", "tools": [remote(there)], "stream": True}
        body |= {"input": "Hang!"} if api_path == "/responses" else CHAT
        async with api.http.stream("POST", api_path, json=body) as response:
            assert response.status_code == 200
            async with asyncio.timeout(10):
                await there.told.hanging.wait()
        await until(lambda: there.told.calls == ["hang", "hang was cancelled"])
        await until(lambda: not server.app.models.loads["scripted"].running)
        assert (await api.create("Hi", tools=[]))["status"] == "completed"


@pytest.mark.parametrize("api_path", ["/responses", "/chat/completions", "/messages"])
async def test_an_operators_server_that_dies_in_the_middle_of_a_call_is_begun_again(api_path: str) -> None:
    begins = McpServer("local", command=STDIO, environment={"PYTHONPATH": "."}, require_approval="never")
    # A busy machine takes long to begin a process, and this begins two.
    tool = open_mcp([begins], (), Limits(mcp_connect_seconds=60), identity_of)
    await tool.start()
    async with (
        running(TakingTurns(call("crash"), call("count"), "Again 1."), tools=[tool]) as server,
        client(server) as api,
    ):
        body = {"model": "scripted", "tools": [{"type": "mcp", "server_label": "local"}]}
        body |= {"input": "Crash!"} if api_path == "/responses" else CHAT
        answer = (await api.http.post(api_path, json=body, timeout=150)).json()
        prompt = prompt_of(server)
    await tool.close()

    assert "Again 1." in json.dumps(answer)
    assert "It could not be reached, or it closed the connection." in prompt
    assert prompt.endswith("1\n</tool_response><|im_end|>\n<|im_start|>assistant\n")


# The operator's


def operators(there: Serving, label: str = "sums", **fields: Any) -> OperatorServer:
    fields = {"policy": Policy(approval="never")} | fields
    return OperatorServer(
        Target(label, there.url, {"Authorization": f"Bearer {SECRET}"}, trusted=True), **fields
    )


@pytest.mark.parametrize(
    "tool", [{"server_label": "sums"}, {"server_label": "mine", "connector_id": "connector_gmail"}]
)
async def test_a_server_of_the_operators_is_named_by_its_label(tool: dict[str, str]) -> None:
    label = tool.get("connector_id", "sums")
    async with serving() as there, asking(*SUM, servers=(operators(there, label),)) as (api, _):
        response = await api.create("2 + 3?", tools=[{"type": "mcp", **tool}])
        hello = {"model": "scripted", "messages": [{"role": "user", "content": "2 + 3?"}]}
        chat = await api.post("/chat/completions", {**hello, "tools": [{"type": "mcp", **tool}]})
        own = await api.refused("Hi", tools=[{"type": "mcp", **tool, "authorization": "mine"}])

    called = item(response, "mcp_call")
    assert (called["output"], called["server_label"]) == ("5", tool["server_label"])
    assert chat["choices"][0]["message"]["content"] == "It is 5."
    assert own["param"] == "tools[0].authorization"
    assert {f"Bearer {SECRET}"} == {headers["authorization"] for headers in there.told.headers}


async def test_what_the_operator_says_bounds_what_requests_may_say() -> None:
    policy = Policy(ToolFilter(["add", "fail"]), "always")
    async with (
        serving() as there,
        asking(*SUM, servers=(operators(there, policy=policy),)) as (api, _),
    ):
        tool = {
            "type": "mcp",
            "server_label": "sums",
            "require_approval": "never",
            "allowed_tools": ["add", "hang"],
        }
        response = await api.create("2 + 3?", tools=[tool])

    assert kinds(response) == ["mcp_list_tools", "mcp_approval_request"]
    assert [listed["name"] for listed in response["output"][0]["tools"]] == ["add"]


async def test_the_calls_of_an_operators_server_are_approved_unless_the_operator_says_otherwise() -> None:
    """Also those of one that every request is offered: where nobody can approve them, it is not offered."""
    named = [{"type": "mcp", "server_label": "sums"}]
    async with serving() as there:
        own = (operators(there, policy=Policy()),)
        async with asking(*SUM, servers=own) as (api, _):
            response = await api.create("2 + 3?", tools=named)
            refused = await api.http.post(
                "/chat/completions", json={**CHAT, "model": "scripted", "tools": named}
            )
        assert kinds(response) == ["mcp_list_tools", "mcp_approval_request"]
        assert refused.json()["error"]["param"] == "tools[0].require_approval"

        async with asking("Hi.", "Hi.", servers=own, default_tools=tuple(named)) as (api, _):
            for path in ("/chat/completions", "/messages"):
                answer = (await api.http.post(path, json={**CHAT, "model": "scripted"})).json()
                assert "'sums' is not offered." in answer["notes"][0]["message"]
    assert there.told.calls == []


async def test_a_server_is_offered_to_every_request_of_those_who_may_use_it() -> None:
    async with serving() as there:
        offered = ({"type": "mcp", "server_label": "sums"},)
        async with asking(*SUM, servers=(operators(there),), default_tools=offered) as (api, _):
            response = await api.create("2 + 3?")
            named = await api.create("2 + 3?", tools=[{"type": "mcp", "server_label": "sums"}])
            hello = {"model": "scripted", "messages": [{"role": "user", "content": "2 + 3?"}]}
            chat = await api.post("/chat/completions", hello)
            url = str(api.http.base_url).rstrip("/") + "/messages"
            message = (await api.http.post(url, json={**hello, "max_tokens": 99})).json()

    assert kinds(response) == kinds(named) == ["mcp_list_tools", "mcp_call", "message"]
    assert chat["choices"][0]["message"]["content"] == message["content"][-1]["text"] == "It is 5."
    assert there.told.calls == ["add"] * 4


async def test_a_server_is_for_its_keys_alone() -> None:
    async with serving() as there:
        mine = operators(there, owners=frozenset({identity_of("mine")}))
        async with (
            asking(*SUM, servers=(mine,), keys=("mine", "yours")) as (api, server),
            client(server, "yours") as other,
        ):
            tools = [{"type": "mcp", "server_label": "sums"}]
            assert item(await api.create("2 + 3?", tools=tools), "mcp_call")["output"] == "5"
            error = await other.refused("2 + 3?", tools=tools)

    assert error["param"] == "tools[0].server_label"
    assert SECRET not in json.dumps(error)


async def test_a_batch_of_messages_keeps_no_token_as_it_is(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    async with serving() as there, asking(*SUM, store=store) as (api, _):
        servers = [{"type": "url", "url": there.url, "name": "sums", "authorization_token": SECRET}]
        params = {
            "model": "scripted",
            "max_tokens": 99,
            "messages": [{"role": "user", "content": "2 + 3?"}],
            "mcp_servers": servers,
        }
        url = str(api.http.base_url).rstrip("/") + "/messages/batches"
        batch = (await api.http.post(url, json={"requests": [{"custom_id": "a", "params": params}]})).json()
        async with asyncio.timeout(10):
            while (await api.http.get(f"{url}/{batch['id']}")).json()["processing_status"] != "ended":
                await asyncio.sleep(0.01)
        result = (await api.http.get(f"{url}/{batch['id']}/results")).json()

    assert result["result"]["message"]["content"][-1]["text"] == "It is 5."
    assert f"Bearer {SECRET}" in [headers.get("authorization") for headers in there.told.headers]
    written = b"".join([path.read_bytes() for path in sorted(tmp_path.iterdir())])  # noqa: ASYNC240
    assert SECRET.encode() not in written


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"mcp_servers": [{"type": "url", "url": "u:1", "name": "x"}]}, "mcp_servers[0].url"),
        ({"mcp_servers": [{"type": "stdio", "url": "u:1", "name": "x"}]}, "mcp_servers[0].type"),
        ({"tools": [{"type": "mcp_toolset", "mcp_server_name": "nobody"}]}, "tools[0].mcp_server_name"),
    ],
)
async def test_messages_refuses_servers_by_the_names_of_its_own_fields(fields: Any, param: str) -> None:
    async with asking("Hi.") as (api, _):
        url = str(api.http.base_url).rstrip("/") + "/messages"
        hello = {"model": "scripted", "messages": [{"role": "user", "content": "2 + 3?"}], "max_tokens": 9}
        refused = await api.http.post(url, json={**hello, **fields})

    assert refused.status_code == 400
    assert param in refused.json()["error"]["message"]


async def test_chat_notes_a_server_that_cannot_be_listed() -> None:
    hello = {"model": "scripted", "messages": [{"role": "user", "content": "2 + 3?"}]}
    async with asking("Hi.", limits=HASTY) as (api, _):
        chat = await api.post("/chat/completions", {**hello, "tools": [remote("http://127.0.0.1:9/mcp")]})

    [note] = chat["notes"]
    assert note["param"] == "tools[0]"
    assert "'sums' has no tools now" in note["message"]


# The labels of tools that models were trained with

PROGRAM = "<|channel|>analysis to=python code<|message|>print(42)<|call|>"
SWITCH = {"type": "mcp", "server_label": "code_interpreter", "require_approval": "never"}


async def test_a_label_switches_the_tool_that_the_model_was_trained_with() -> None:
    engine = Said()
    async with (
        running(engine, dialect="openai", date="2025-06-28", tools=[ActingTool()]) as server,
        client(server) as api,
    ):
        engine.says(PROGRAM, "<|channel|>final<|message|>It is 42.<|return|>")
        response = await api.streamed("Run!", tools=[SWITCH])
        assert "Use this tool to execute Python code" in prompt_of(server)
        engine.says(PROGRAM, "<|channel|>final<|message|>It is 42.<|return|>")
        chat = await api.post("/chat/completions", {"model": "scripted", **CHAT, "tools": [SWITCH]})
        approved = await api.refused("Run!", tools=[{**SWITCH, "require_approval": "always"}])
        unknown = await api.refused("Run!", tools=[{**SWITCH, "server_label": "container"}])

    called = item(response, "mcp_call")
    assert (called["server_label"], called["name"], called["output"]) == (
        "code_interpreter",
        "python",
        "42\n",
    )
    assert json.loads(called["arguments"]) == {"code": "print(42)"}
    assert chat["choices"][0]["message"]["content"] == "It is 42."
    assert approved["param"] == "tools[0].require_approval"
    assert unknown["param"] == "tools[0].type"


async def test_an_operators_server_stands_for_a_tool_that_the_model_was_trained_with() -> None:
    made = MCPServer("python")

    @made.tool()
    def python(code: str) -> str:
        """Runs code."""
        return f"ran {code}"

    @made.tool()
    def other() -> str:
        """Is no part of what the model was trained with."""
        return ""

    engine = Said()
    async with serving(made.streamable_http_app()) as there:
        tool = Mcp(network(), (operators(there, "code_interpreter"),), (), Limits())
        await tool.start()
        async with (
            running(engine, dialect="openai", date="2025-06-28", tools=[tool]) as server,
            client(server) as api,
        ):
            outputs = []
            for _ in range(2):
                engine.says(PROGRAM, PROGRAM, "<|channel|>final<|message|>Done.<|return|>")
                response = await api.create("Run!", tools=[SWITCH])
                outputs += [each["output"] for each in response["output"] if each["type"] == "mcp_call"]
            prompt = prompt_of(server)
        await tool.close()

    assert outputs == ["ran print(42)"] * 4
    assert "Use this tool to execute Python code" in prompt
    assert "Is no part" not in prompt
    sessions = [headers["x-session-id"] for headers in there.told.headers if "x-session-id" in headers]
    assert len({*sessions}) == 2  # one for each answer
    assert {headers["authorization"] for headers in there.told.headers} == {f"Bearer {SECRET}"}
