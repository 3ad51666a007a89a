"""What a model is offered of the tools of a request, found out for each request."""

from typing import Any

import pytest

from antiphon.core.errors import RequestError
from antiphon.core.hosts import unread
from antiphon.core.turn import Function, Hosted
from antiphon.toolkits.registry import built_in
from antiphon.tools.discovery import REMEDIES, by_type, discover
from antiphon.tools.tool import RequestedTool, ToolOffer
from tests.acting import PYTHON, ActingTool, hosts_for

SEARCH = Function("search", "Searches.", {"type": "object"}, hosted=Hosted("web_search", "search"))


class Remote(ActingTool):
    """A tool of which a request may have several: each has the functions that its settings name."""

    async def offer(self, requested: RequestedTool) -> ToolOffer:
        await super().offer(requested)
        label = requested.settings["label"]
        functions = (
            Function(
                name, f"It is at {label}.", {"type": "object"}, hosted=Hosted("remote", name, label=label)
            )
            for name in requested.settings["has"]
        )
        return ToolOffer(tuple(functions))


def test_each_tool_offers_its_functions_at_its_place() -> None:
    offers = {"code_interpreter": (PYTHON,), "web_search": (SEARCH,)}
    requested = {
        "tools[2]": {"type": "web_search_preview", "search_context_size": "low"},
    }

    hosts = hosts_for(offers, requested)

    assert list(hosts.functions) == ["tools[2]"]
    [function] = hosts.functions["tools[2]"]
    assert (function.name, function.source) == ("search", "tools[2]")
    assert function.hosted == Hosted("web_search", "search", requested["tools[2]"])
    assert hosts.type_of("web_search_preview") == "web_search"
    assert hosts.type_of("other") == "other"


def test_a_model_is_offered_what_it_was_trained_with() -> None:
    known = Function("browser.search", hosted=Hosted("web_search", "search", native=True))
    other = Function("browser.fly", "Flies.", hosted=Hosted("web_search", "fly", native=True))
    requested = {"tools[0]": {"type": "web_search"}}

    hosts = hosts_for({"web_search": (SEARCH,)}, requested, {"web_search": (known, other)})

    offered = {function.name: function.description for function in hosts.functions["tools[0]"]}
    assert offered == {"browser.search": "Searches.", "browser.fly": "Flies."}


def test_what_is_kept_from_the_server_is_not_offered_to_models_that_were_trained_with_it() -> None:
    requested = {"tools[0]": {"type": "web_search", "external_web_access": False}}

    trained = {"web_search": (SEARCH,)}
    hosts = hosts_for(trained, requested, trained, optional=frozenset({"web_search"}))

    assert hosts.functions == {"tools[0]": ()}
    [note] = hosts.notes
    assert note.param == "tools[0]"
    assert "does not run the tool with these settings" in note.message
    with pytest.raises(RequestError, match="with these settings"):
        hosts_for(trained, requested, trained)


@pytest.mark.parametrize("type_", [*REMEDIES, *built_in().remedies, "frobnicate", "x" * 9999])
def test_what_is_not_run_is_refused_by_its_type_with_a_remedy_or_noted_with_it(type_: str) -> None:
    requested = {"tools[1]": {"type": type_}}

    with pytest.raises(RequestError) as caught:
        hosts_for({"code_interpreter_2": (PYTHON,)}, requested)
    noted = hosts_for({}, requested, optional=frozenset({type_}))

    message = caught.value.message
    assert caught.value.param == "tools[1].type"
    assert f"does not run tools of type '{type_[:64]}'" in message
    remedies = {**REMEDIES, **built_in().remedies}
    assert remedies.get(type_, "It runs: code_interpreter_2.") in message
    assert len(message) < 300
    assert [note.param for note in noted.notes] == ["tools[1].type"]


def test_members_that_are_not_acted_on_are_noted_unless_they_ask_for_nothing() -> None:
    given = {"type": "t", "a": 1, "b": None, "c": False, "d": [], "e": {"f": 2}}

    assert [note.param for note in unread(given, "tools[0]", ("type", "a"))] == ["tools[0].e"]


async def test_two_tools_of_one_type_do_not_collide() -> None:
    requested = {
        "tools[0]": {"type": "remote", "label": "a", "has": ["find", "read"]},
        "tools[1]": {"type": "remote", "label": "b", "has": ["find", "write"]},
    }

    hosts = await discover(by_type([Remote("remote")]), requested)

    functions = [function for offered in hosts.functions.values() for function in offered]
    assert [function.name for function in functions] == ["a__find", "read", "b__find", "write"]
    hosted = [function.hosted for function in functions if function.hosted]
    assert [each.action for each in hosted] == ["find", "read", "find", "write"]
    assert len({each.key for each in hosted}) == 2
    assert [each.settings for each in hosted][::2] == [*requested.values()]


async def test_a_tool_refuses_settings_by_their_place() -> None:
    requested = {"tools[3]": {"type": "remote", "label": "a", "has": [], "refused": True}}

    with pytest.raises(RequestError) as caught:
        await discover(by_type([Remote("remote")]), requested)

    assert caught.value.param == "tools[3].refused"


@pytest.mark.parametrize(
    "tools",
    [
        [ActingTool("toy"), ActingTool("toy")],
        [ActingTool("toy", aliases=("other",)), ActingTool("other")],
        [ActingTool("function")],
        [ActingTool("toy", aliases=("custom",))],
    ],
)
def test_tools_that_clients_could_not_tell_apart_are_refused_at_start(tools: list[ActingTool]) -> None:
    with pytest.raises(ValueError, match="Two tools are called"):
        by_type(tools)


# The operator's MCP servers that stand for a tool of another type


class Operated:
    """The tool `mcp`, with two servers of the operator's."""

    type = "mcp"
    aliases = ()
    defaults = ()
    labels = frozenset({"web_search_preview", "notes"})

    def __init__(self) -> None:
        self.seen: list[RequestedTool] = []

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def open(self, requested: RequestedTool) -> Any: ...

    async def offer(self, requested: RequestedTool) -> ToolOffer:
        self.seen.append(requested)
        return ToolOffer((Function("search", "Searches.", hosted=Hosted("mcp", "search", label="s")),))


@pytest.mark.parametrize("type_", ["web_search", "web_search_preview", "web_search_2025_08_26"])
async def test_a_tool_that_is_not_run_is_that_of_the_operators_server(type_: str) -> None:
    remote = Operated()
    hosts = await discover(by_type([remote]), {"tools[0]": {"type": type_, "search_context_size": "low"}})
    assert remote.seen[-1].settings == {"type": "mcp", "server_label": "web_search_preview"}
    assert hosts.functions["tools[0]"]
    assert [note.param for note in hosts.notes] == ["tools[0].search_context_size"]
    with pytest.raises(RequestError) as raised:
        await discover(
            by_type([remote]), {"tools[0]": {"type": type_, "filters": {"allowed_domains": ["a"]}}}
        )
    assert raised.value.param == "tools[0].filters"


async def test_an_address_with_the_label_of_a_trained_tool_is_not_used() -> None:
    remote = Operated()
    url = {"type": "mcp", "server_url": "http://localhost:8888", "allowed_tools": ["f"]}
    hosts = await discover(by_type([remote]), {"tools[0]": {**url, "server_label": "web_search_preview"}})
    assert "server_url" not in remote.seen[-1].settings
    assert remote.seen[-1].settings["allowed_tools"] == ["f"]
    assert [note.param for note in hosts.notes] == ["tools[0].server_url"]
    await discover(by_type([remote]), {"tools[0]": {**url, "server_label": "notes"}})
    assert remote.seen[-1].settings["server_url"] == url["server_url"]
