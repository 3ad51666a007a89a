"""Finds out, for each request, what its model is offered of the server's tools."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from antiphon.core.hosts import Hosts
from antiphon.core.turn import Function, Hosted
from antiphon.tools.tool import ServerTool

RESERVED = frozenset({"function", "custom", "namespace", "allowed_tools"})
"""What APIs call a client's own tools."""

Tools = Mapping[str, ServerTool]
"""The tools of a server, by type."""

NO_FUNCTIONS: Mapping[str, tuple[Function, ...]] = MappingProxyType({})


def by_type(tools: Iterable[ServerTool]) -> Tools:
    """The tools of a server. Raises ValueError if a client could not tell two of them apart."""
    found: dict[str, ServerTool] = {}
    names = set(RESERVED)
    for tool in tools:
        for name in (tool.type, *tool.aliases):
            if name in names:
                raise ValueError(f"Two tools are called '{name}'. Leave one out, or rename it.")
            names.add(name)
        found[tool.type] = tool
    return found


async def discover(
    tools: Tools,
    requested: Mapping[str, Mapping[str, Any]],
    trained: Mapping[str, tuple[Function, ...]] = NO_FUNCTIONS,
) -> Hosts:
    """What a model is offered of the tools that are `requested`: settings, by their place in the request.

    `trained` are functions that the model was trained with, by type of the tool that runs
    them: it is offered those. Raises RequestError for settings that cannot be honoured, and
    ToolError if a tool cannot say now what it can do.
    """
    types = {name: tool.type for tool in tools.values() for name in (tool.type, *tool.aliases)}
    found: dict[str, tuple[Function, ...]] = {}
    for where, settings in requested.items():
        type_ = types.get(settings["type"])
        if type_ is not None:
            functions = await tools[type_].offer(settings, where)
            if functions and type_ in trained:
                functions = tuple(_described(trained[type_], functions))
            found[where] = tuple(_placed(function, where, settings) for function in functions)
    return Hosts(_labelled(found), types)


def _described(trained: Iterable[Function], functions: Iterable[Function]) -> Iterator[Function]:
    """The functions of a model's family, described by the tool where the family has no words of its own."""
    descriptions = {_hosted(own).action: own.description for own in functions}
    for function in trained:
        description = function.description or descriptions.get(_hosted(function).action)
        yield replace(function, description=description)


def _placed(function: Function, where: str, settings: Mapping[str, Any]) -> Function:
    return replace(function, source=where, hosted=replace(_hosted(function), settings=settings))


def _labelled(found: Mapping[str, tuple[Function, ...]]) -> Mapping[str, tuple[Function, ...]]:
    """The functions, each tool's label before names that several tools share."""
    tools: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for function in chain.from_iterable(found.values()):
        tools[function.name].add(_hosted(function).key)
    return {
        where: tuple(
            replace(function, name=f"{_hosted(function).server}__{function.name}")
            if len(tools[function.name]) > 1
            else function
            for function in functions
        )
        for where, functions in found.items()
    }


def _hosted(function: Function) -> Hosted:
    assert function.hosted is not None, "a tool offers a function that it does not run"
    return function.hosted
