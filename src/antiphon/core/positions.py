"""Functions and settings that count from a place of a conversation on.

They are derived from the conversation alone, never stored aside: one that is replayed, forked or sent whole
has the same. What changes is described where it changes, so the prompt before that place stays as it was,
and so does an engine's cache of it. APIs differ only in the items that say so.

`FunctionsByPlace` is fed with the changes in the order of the conversation; each of its methods returns what
has to be described at that place, by one of the functions here that write such texts.

To add an item or block that changes tools or settings: it is read where the others of its API are
(`apis/responses/added_tools.py` and `updates.py`, `apis/messages/tool_changes.py`, `apis/chat/tools.py`), and
is a step of the conversations in `tests/apis/test_positions.py`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.core.constraint import Format, JsonSchema
from antiphon.core.items import Message, Role, TextPart
from antiphon.core.turn import Function, Placement, Turn

MORE = "You have more functions from now on. Call them like your others:"
FOUND = "Found these functions. Call them like your others:"
FOUND_NOTHING = "Found no functions."
LISTED = "The functions that were found are listed with your others."

FEW = 20
"""From so many functions on there is a search; fewer are given to the model at once, if they are short."""
SHARE = 10
"""Functions are short if they take less than this part of the context."""
CHARACTERS_PER_TOKEN = 4
"""About as many characters of a description are one token."""

MAX_LINES = 100
"""The most lines of a catalogue that say what something is for: of what follows there are only the names."""
MAX_ABOUT = 120
"""The most characters of such a description."""
MAX_NAMES = 1000
"""The most names in a catalogue: of what follows only the number is told."""


class PlaceMessage(Message, frozen=True):
    """Says what counts from its place on. A summary of the conversation replaces it."""


class CatalogueEntry(Struct, frozen=True):
    """What can be found: a function, or several that belong together, and what for."""

    name: str
    about: str = ""


class FunctionsByPlace:
    """The functions of a conversation, as it changes them.

    It begins with those of the request. Those that come at its beginning are listed in the prompt like these,
    later ones are described at their place. Where a prompt lists none, it does not say how a call is written:
    then it has to list the later ones, too.
    """

    def __init__(self, functions: Iterable[Function] = ()) -> None:
        self._ordered: list[Function] = [*functions]
        self._places = {function.name: place for place, function in enumerate(self._ordered)}
        self._lists_any = any(function.placement is Placement.PROMPT for function in self._ordered)
        self._removed = set[str]()

    @property
    def functions(self) -> tuple[Function, ...]:
        """All of them, as they came. What was removed stays where it is described."""
        return tuple(self._ordered)

    @property
    def removed(self) -> frozenset[str]:
        """The names of those that may not be called any more."""
        return frozenset(self._removed)

    def get(self, name: str) -> Function | None:
        """The function of this name, if there has been one."""
        place = self._places.get(name)
        return None if place is None else self._ordered[place]

    def add(self, functions: Iterable[Function], *, leading: bool = False) -> tuple[Function, ...]:
        """Functions that come at a place, the `leading` ones at the beginning.

        Those that can only be found stay so. Returns those to describe there.
        """
        announces = not leading and self._lists_any
        return tuple([added for function in functions if (added := self._add(function, announces))])

    def find(self, names: Iterable[str], *, leading: bool = False) -> tuple[Function, ...]:
        """Functions that are found, or that count again, as they are now. Unknown names are left out."""
        known = [function for name in dict.fromkeys(names) if (function := self.get(name))]
        announces = not leading and self._lists_any
        for function in known:
            if function.placement is Placement.SEARCH:
                self._put(_placed(function, announces))
            self._removed.discard(function.name)
        return tuple([self._ordered[self._places[function.name]] for function in known])

    def restore(self, names: Iterable[str], *, leading: bool = False) -> tuple[Function, ...]:
        """Functions that count from here on. Returns those to describe: not known so far, or removed."""
        known = [function for name in dict.fromkeys(names) if (function := self.get(name))]
        new = {function.name for function in known if function.placement is Placement.SEARCH} | self._removed
        counting = self.find([function.name for function in known], leading=leading)
        return tuple([function for function in counting if function.name in new and not leading])

    def conflicts(self, function: Function) -> bool:
        """Whether another function of this name can be called."""
        known = self.get(function.name)
        return known is not None and function.name not in self._removed and not _is_same(known, function)

    def remove(self, names: Iterable[str]) -> tuple[str, ...]:
        """Functions that may not be called any more. Returns the names of those that could be so far."""
        gone = tuple(
            [name for name in dict.fromkeys(names) if name in self._places and name not in self._removed]
        )
        self._removed.update(gone)
        return gone

    def begin_anew(self) -> None:
        """The prompt begins anew: it lists what was described so far, as it is now."""
        for function in self.functions:
            if function.placement is Placement.CONVERSATION:
                self._put(_placed(function, announces=False))
        self._ordered = [
            function for function in self._ordered if function.placement is not Placement.REPLACED
        ]
        self._places = {function.name: place for place, function in enumerate(self._ordered)}

    def _add(self, function: Function, announces: bool) -> Function | None:
        """Add a function; returns it if it has to be described now."""
        known, again = self.get(function.name), function.name in self._removed
        self._removed.discard(function.name)
        if known is not None and function.placement is Placement.SEARCH:
            return None  # it has a place, or can be found already
        if known is not None and known.placement is Placement.PROMPT:
            if _is_same(known, function):
                return known if again else None
            if announces:  # the prompt stays as it was
                self._ordered[self._places.pop(function.name)] = replace(known, placement=Placement.REPLACED)
        if function.placement is not Placement.SEARCH:
            function = _placed(function, announces)
        self._put(function)
        return function if function.placement is Placement.CONVERSATION else None

    def _put(self, function: Function) -> None:
        place = self._places.setdefault(function.name, len(self._ordered))
        self._ordered[place : place + 1] = [function]
        self._lists_any = self._lists_any or function.placement is Placement.PROMPT


def _is_same(known: Function, function: Function) -> bool:
    """Whether a function is described as it was."""
    return replace(function, source=known.source, placement=known.placement) == known


def _placed(function: Function, announces: bool) -> Function:
    placement = Placement.CONVERSATION if announces else Placement.PROMPT
    return function if function.placement is placement else replace(function, placement=placement)


def found_in(tools: Iterable[Function], names: Iterable[str]) -> tuple[Function, ...]:
    """The tools of a turn after a search has found those of these names."""
    places = FunctionsByPlace(tools)
    places.find(names)
    return places.functions


def begun_anew(turn: Turn) -> Turn:
    """The turn with a prompt that begins anew: with the tools and settings that count in the end."""
    tools = [
        _placed(tool, announces=False) if tool.placement is Placement.CONVERSATION else tool
        for tool in turn.tools
        if tool.placement is not Placement.REPLACED
    ]
    return replace(
        turn,
        tools=tuple(tools),
        variables=turn.latest_variables,
        later_variables={},
        first_format=UNSET,
    )


def are_few(functions: Sequence[Function], context: int) -> bool:
    """Whether functions need no search in a context of so many tokens, 0 if that is unknown."""
    size = sum(map(len, map(_line, functions))) // CHARACTERS_PER_TOKEN
    return len(functions) < FEW and (not context or size * SHARE < context)


# What the model is shown


def describe(functions: Iterable[Function], introduction: str = MORE) -> str:
    """A line for each function, as JSON: templates write tools so, too."""
    return "\n".join((introduction, *map(_line, functions)))


def found_text(functions: Sequence[Function]) -> str:
    """The result of a search that has found these functions."""
    new = [function for function in functions if function.placement is not Placement.PROMPT]
    if new:
        return describe(new, FOUND)
    return LISTED if functions else FOUND_NOTHING


def removed_text(names: Iterable[str]) -> str:
    """Which functions may not be called any more."""
    return f"You cannot call these functions any more: {', '.join(names)}."


def catalogue_text(entries: Sequence[CatalogueEntry], search: str | None) -> str:
    """What can be found, with the function `search`; without one, by calls."""
    how = f"find them with '{search}'" if search else "a call without arguments shows how to call one"
    described = [f"- {entry.name}{_about(entry)}" for entry in entries[:MAX_LINES]]
    names = [entry.name for entry in entries[MAX_LINES : MAX_LINES + MAX_NAMES]]
    rest = [f"- {', '.join(names)}"] if names else []
    left = len(entries) - MAX_LINES - MAX_NAMES
    return "\n".join((f"There are more functions: {how}.", *described, *rest, *_left(left)))


def _about(entry: CatalogueEntry) -> str:
    line = next(iter(entry.about.strip().splitlines()), "")
    return f": {line[:MAX_ABOUT]}" if line else ""


def _left(number: int) -> Iterable[str]:
    return (f"- and {number} more",) if number > 0 else ()


def effort_text(effort: str) -> str:
    """How much to reason."""
    return f"Reasoning effort from now on: {effort}."


def format_text(form: Format | None) -> str:
    """In which form to answer: plain text if it is None."""
    if isinstance(form, JsonSchema):
        schema = msgspec.json.encode(form.schema).decode()
        return f"Answer with JSON of this schema from now on: {schema}"
    return "Answer with plain text from now on." if form is None else "Answer with JSON from now on."


def place_message(text: str, role: Role = Role.DEVELOPER) -> PlaceMessage:
    """The message with one of these texts."""
    return PlaceMessage(role, (TextPart(text),))


def _line(function: Function) -> str:
    described: dict[str, Any] = {
        "name": function.name,
        "description": function.description or "",
        "parameters": function.parameters or {"type": "object", "properties": {}},
    }
    return msgspec.json.encode(described).decode()
