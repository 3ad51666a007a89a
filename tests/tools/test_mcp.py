"""`mcp` as models use it, with real servers: over HTTP for requests, over standard streams for the operator."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from antiphon.core.hosts import ListedTool, Listing
from antiphon.core.limits import Limits
from antiphon.core.tool_result import RemoteFailure
from antiphon.tools.mcp import servers as operators
from antiphon.tools.mcp.connection import Target
from antiphon.tools.mcp.open import open_mcp
from antiphon.tools.mcp.servers import OperatorServer
from antiphon.tools.mcp.tables import McpServer, read_servers
from antiphon.tools.mcp.tool import Mcp
from antiphon.tools.tool import RequestedTool, ServerTool, Session, ToolOffer
from tests.contracts.tool import ToolContract, failure, functions_of, successful
from tests.http.test_mcp import network
from tests.tools.mcp_servers import serving
from tests.tools.mcp_tools import STDIO, server
from tests.tools.processes import PATIENCE

LIMITS = Limits(mcp_seconds=2, mcp_connect_seconds=60)  # a busy machine takes long to begin a process
ENVIRONMENT = {"PYTHONPATH": ".", "TOKEN": "the-operators"}
LOCAL = McpServer("local", command=STDIO, environment=ENVIRONMENT, stateful=True)


class OfOneServer(Mcp):
    """The tool, whose settings are those of one server unless they say otherwise."""

    own: dict[str, Any] = {}  # noqa: RUF012 - set for each

    async def offer(self, requested: RequestedTool) -> ToolOffer:
        return await super().offer(self._whole(requested))

    def open(self, requested: RequestedTool) -> Any:
        return super().open(self._whole(requested))

    def _whole(self, requested: RequestedTool) -> RequestedTool:
        return replace(requested, settings={**self.own, **requested.settings})


class TestContract(ToolContract):
    call = ("add", {"a": 6, "b": 7})
    endless = ("hang", {})
    lengthy = ("flood", {})
    sets = ("add", {"a": 1, "b": 1})
    gets = ("add", {"a": 40, "b": 2})
    left = "42"
    keeps = details = False
    asked = {"server_label": "t", "allowed_tools": ["add", "hang"], "require_approval": "never"}  # noqa: RUF012
    settings = ("type", "server_label", "server_url", "headers", "allowed_tools", "require_approval")

    @pytest.fixture
    async def tool(self) -> AsyncIterator[ServerTool]:
        async with serving() as there:
            tool = OfOneServer(network(), (), ("127.0.0.1",), LIMITS)
            url, allowed = there.url, ["add"]
            tool.own = {"type": "mcp", "server_label": "t", "server_url": url, "allowed_tools": allowed}
            await tool.start()
            yield tool
            await tool.close()


@asynccontextmanager
async def operated(*tables: McpServer) -> AsyncIterator[Mcp]:
    tool = open_mcp(tables, (), LIMITS, str)
    await tool.start()
    try:
        yield tool
    finally:
        await tool.close()


def wanted(owner: str = "me", label: str = "local", **fields: Any) -> RequestedTool:
    return RequestedTool({"type": "mcp", "server_label": label, **fields}, "tools[0]", owner)


@asynccontextmanager
async def session(tool: Mcp, owner: str = "me") -> AsyncIterator[Session]:
    opened = tool.open(wanted(owner))
    try:
        yield opened
    finally:
        await opened.close()


async def test_a_process_of_the_operators_for_each_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIDDEN", "of the server")
    with capture_logs() as logs:
        async with operated(LOCAL) as tool, session(tool) as mine, session(tool, "you") as yours:
            counts = [(await each.run("count", {})).text for each in (mine, mine, yours)]
            token = (await mine.run("environment", {"name": "TOKEN"})).text
            hidden = (await mine.run("environment", {"name": "HIDDEN"})).text
            crashed = await mine.run("crash", {})
            again = await mine.run("count", {})

    assert counts == ["1", "2", "1"]
    assert (token, hidden) == ("the-operators", "(none)")
    assert isinstance(crashed.details, RemoteFailure)
    assert failure(crashed)
    assert successful(again).text == "1"
    assert {"event": "an MCP server logged", "server": "local", "line": "begun", "log_level": "info"} in logs


async def test_one_that_does_not_start_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "FIRST_DELAY", 30.0)
    with capture_logs() as logs:
        async with operated(McpServer("local", command=["/nowhere/at-all"])) as tool:
            first, second = [(await tool.offer(wanted())).listing for _ in range(2)]

    assert first is not None
    assert second is not None
    assert first.error
    assert second.error == "It is not running. It will be started again soon."
    assert [log["again_in"] for log in logs if log["event"] == "an MCP server does not start"] == [30.0]


async def test_one_that_hangs_is_looked_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "HEALTH", 0.0)
    monkeypatch.setattr(operators, "FIRST_DELAY", 0.01)
    async with serving() as there, operated(McpServer("local", url=there.url)) as tool:
        await tool.offer(wanted())
        before = len(there.told.headers)
        async with asyncio.timeout(10):
            while len(there.told.headers) < before + 3:
                await asyncio.sleep(0.01)
        async with session(tool) as mine:
            assert successful(await mine.run("add", {"a": 1, "b": 1})).text == "2"


@pytest.mark.parametrize("path", ["/mcp", "/sse"], ids=["without sessions", "with sessions"])
async def test_a_server_that_has_learned_something_is_listed_again(path: str) -> None:
    async def names(tool: Mcp) -> set[str]:
        return {function.name for function in (await tool.offer(wanted())).functions}

    async with serving(path=path) as there, operated(McpServer("local", url=there.url)) as tool:
        assert "fresh" not in await names(tool)
        listed = len(there.told.headers)
        assert "fresh" not in await names(tool)
        assert len(there.told.headers) == listed  # what was listed a moment ago is believed
        async with session(tool) as mine:
            successful(await mine.run("learn", {}))
        async with asyncio.timeout(PATIENCE):
            while "fresh" not in await names(tool):
                await asyncio.sleep(0.01)


class Hanging:
    """An application that ignores some requests: the health check, and possibly one before it."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.stuck = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.stuck and scope["type"] == "http":
            self.stuck -= 1
            await asyncio.Event().wait()
        await self._app(scope, receive, send)


async def test_one_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "HEALTH", 0.0)
    monkeypatch.setattr(operators, "FIRST_DELAY", 0.01)
    app = Hanging(server().streamable_http_app())
    connected = {"event": "an MCP server is connected", "server": "local", "log_level": "info"}
    with capture_logs() as logs:
        async with serving(app) as there:
            tool = open_mcp([McpServer("local", url=there.url)], (), Limits(mcp_connect_seconds=1), str)
            await tool.start()
            async with asyncio.timeout(PATIENCE):
                while connected not in logs:
                    await asyncio.sleep(0.01)
                app.stuck = 2
                while logs.count(connected) < 2:
                    await asyncio.sleep(0.01)
                monkeypatch.setattr(operators, "HEALTH", 30.0)  # checks of a second fail on a busy machine
            async with session(tool) as mine:
                assert successful(await mine.run("add", {"a": 1, "b": 1})).text == "2"
            await tool.close()

    [hung] = [log for log in logs if log["event"] == "an MCP server does not answer"]
    assert (hung["server"], hung["why"]) == ("local", "It did not answer in time.")


class OneAtATime:
    """An application that answers one message after the other, as a program without threads does."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._working = asyncio.Lock()
        self.waiting = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        self.waiting += self._working.locked()
        async with self._working:
            await self._app(scope, receive, send)


async def test_one_that_is_busy_with_a_call_is_left_in_peace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "HEALTH", 0.0)
    monkeypatch.setattr(operators, "FIRST_DELAY", 0.01)
    application = server()
    app = OneAtATime(application.streamable_http_app())

    async def slow() -> str:
        """Is done when checks, and their cancellations, have waited in vain."""
        before = app.waiting
        async with asyncio.timeout(PATIENCE):
            while app.waiting < before + 4:
                await asyncio.sleep(0.01)
        return "done"

    application.add_tool(slow, name="slow")
    with capture_logs() as logs:
        async with serving(app) as there:
            limits = Limits(mcp_connect_seconds=1)
            tool = open_mcp([McpServer("local", url=there.url)], (), limits, str)
            await tool.start()
            async with session(tool) as opened:
                assert successful(await opened.run("slow", {})).text == "done"
            await tool.close()

    assert [log["event"] for log in logs if log["log_level"] == "warning"] == []


async def test_listings_are_bounded() -> None:
    async with serving() as there:
        for limits, why in ((Limits(mcp_tools=2), "mcp_tools"), (Limits(mcp_bytes=500), "")):
            tool = Mcp(network(), (), ("127.0.0.1",), limits)
            offer = await tool.offer(
                RequestedTool({"type": "mcp", "server_label": "x", "server_url": there.url})
            )
            assert offer.listing is not None
            assert why in (offer.listing.error or "")
            assert not offer.functions
            await tool.close()


async def test_a_known_listing_is_believed_and_what_is_not_sound_in_it_is_left_out() -> None:
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"type": "object", "properties": {"a": deep}}
    listing = Listing("x", (ListedTool("good"), ListedTool("deep", None, deep)), known=True)
    tool = Mcp(network(), (), ("127.0.0.1",), LIMITS)
    settings = {"type": "mcp", "server_label": "x", "server_url": "http://127.0.0.1:9/"}
    offer = await tool.offer(RequestedTool(settings, listing=listing))
    await tool.close()

    assert [function.name for function in offer.functions] == ["good"]
    assert "'deep'" in offer.notes[0].message


def test_secrets_are_not_repeated() -> None:
    target = Target("x", "https://a.example/mcp?key=K1", {"Authorization": "Bearer T0KEN"})

    hidden = target.hide("https://a.example/mcp?key=K1 said T0KEN, Bearer T0KEN")

    assert hidden == "https://a.example/mcp said …, …"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"label": "a b", "url": "http://x"}, "not a label"),
        ({"label": "a"}, "either a url or a command"),
        ({"label": "a", "url": "http://x", "command": "y"}, "either a url or a command"),
        ({"label": "a", "url": "http://x", "wibble": 1}, "wibble"),
        ({"label": "a", "url": "http://x", "headers": {"A": "$NOT_SET_AT_ALL"}}, "NOT_SET_AT_ALL"),
    ],
)
def test_tables_that_make_no_sense_are_refused(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_servers([table])


def test_a_table_is_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_TOKEN", "t")
    table = {
        "label": "a",
        "url": "http://x",
        "headers": {"Authorization": "$MCP_TOKEN"},
        "allowed_tools": ["f"],
        "require_approval": {"always": ["f"]},
        "keys": ["k"],
        "default": True,
    }
    tool = open_mcp(read_servers([table]), (), LIMITS, lambda key: f"owner of {key}")

    assert tool.defaults == ({"type": "mcp", "server_label": "a"},)
    with pytest.raises(ValueError, match="two servers have the label"):
        read_servers([table, table])


async def test_functions_have_names_that_models_can_write() -> None:
    async with serving() as there:
        tool = OfOneServer(network(), (), ("127.0.0.1",), LIMITS)
        tool.own = {"type": "mcp", "server_label": "test", "server_url": there.url}
        functions = {function.name: function for function in await functions_of(tool)}
        await tool.close()

    hosted = functions["look_at"].hosted
    assert hosted is not None
    assert hosted.action == "look.at"
    assert OperatorServer(Target("x", "u")).admits("anyone")
