"""Finds toolkits by name, and brings together what several have.

The name of a toolkit is that of its module: a package here without a prefix, a module of another package in
full. There is no list of toolkits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import is_dataclass
from functools import cache
from pkgutil import iter_modules
from typing import get_type_hints

from msgspec import Struct
from msgspec.inspect import StructType, type_info

from antiphon import toolkits
from antiphon.apis.messages.server_tools import ToolViews
from antiphon.apis.responses.presenters.registry import Presenters
from antiphon.core.modules import find_part
from antiphon.core.nearest import did_you_mean
from antiphon.core.tool_result import FoundFunctions, RemoteFailure
from antiphon.toolkits.options import ToolOptions
from antiphon.toolkits.toolkit import Toolkit


def names() -> Sequence[str]:
    """The names of the toolkits of this package."""
    return [module.name for module in iter_modules(toolkits.__path__) if module.ispkg]


def find(name: str) -> Toolkit:
    """The toolkit of this name. Raises ValueError, with a message for people, if there is none."""
    try:
        toolkit = find_part(toolkits.__name__, name, "TOOLKIT")
    except ImportError as error:
        raise ValueError(f"The tool {name} cannot be imported: {error}.") from error
    if isinstance(toolkit, Toolkit):
        if not (isinstance(toolkit.options, type) and is_dataclass(toolkit.options)):
            raise ValueError(f"The options of the tool {name} are no dataclass.")
        try:
            get_type_hints(toolkit.options)
        except Exception as error:  # in annotations that are texts, there may be any expression
            raise ValueError(f"The options of the tool {name} cannot be read: {error}.") from error
        return toolkit
    unknown = f'There is no tool "{name}".{did_you_mean(name, names())}'
    raise ValueError(f"{unknown} Name the module of one, as in my_package.my_tool.")


class Toolkits:
    """The toolkits of a server. Of several with one type, the last counts.

    Raises ValueError if two show items or blocks of one type, or store details of one tag.
    """

    def __init__(self, toolkits: Iterable[Toolkit]) -> None:
        known = {kit.type: kit for kit in toolkits}.values()
        self.presenters = Presenters({kit.type: kit.presenter for kit in known})
        self.message_views = ToolViews(kit.message_view for kit in known if kit.message_view is not None)
        self.remedies = {name: kit.remedy for kit in known for name in (kit.type, *kit.aliases)}
        """Type or alias → how a server gets the tool."""
        self.details: dict[str, type[Struct]] = {
            _tag_of(details): details for details in (RemoteFailure, FoundFunctions)
        }
        """Tag → the type of details of results, those of MCP servers and of searches for tools included."""
        for details in (details for kit in known for details in kit.details):
            tag = _tag_of(details)
            if self.details.setdefault(tag, details) is not details:
                raise ValueError(f"Two types of details have the tag '{tag}'. Rename one.")


def default_options() -> dict[str, ToolOptions]:
    """Options that nobody has set, of the toolkits of this package, by their names."""
    return {name: find(name).options() for name in names()}


@cache
def built_in() -> Toolkits:
    """The toolkits of this package."""
    return Toolkits(map(find, names()))


def _tag_of(details: type[Struct]) -> str:
    """The tag in the field `type`. Raises ValueError if it has none."""
    info = type_info(details)
    if not isinstance(info, StructType) or info.tag_field != "type" or not isinstance(info.tag, str):
        raise ValueError(f"{details.__name__} has no tag. Declare it with tag='…'.")
    return info.tag
