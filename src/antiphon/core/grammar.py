"""The types of a dialect's table: how a model family writes its thoughts and calls.

A grammar is a set of named states. The decoder is in one state at a time; the
state says what the text there *is*, and which markers lead where. What differs
between families is which states they have, which markers lead from one to the
next, and a few parts to choose (how a name is written, what is trimmed).

Everything between the marker that leaves plain text and the point where a
call's name is known is provisional: if it turns out to be broken, it becomes
text again and the decoder goes on where it was. That is how a marker in
ordinary prose stays prose.

Space that touches a marker belongs to the marker: templates put it there when
they render, and decoding is the inverse of rendering.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

Markers = Mapping[str, str]
"""Marker → the state that it leads to."""


class Kind(Enum):
    """What the text of a span is."""

    TEXT = auto()
    """Said to the user."""
    REASONING = auto()
    """Thought."""
    MARKUP = auto()
    """Nothing: only space stands between these markers. Other text leads to plain text."""
    OPENING = auto()
    """The opening of a call, before its name: only space. Other text means that it is no call."""
    CALL = auto()
    """Space between the arguments of a call. Other text there is broken, and skipped."""


class Span(Struct, frozen=True):
    """Text of one kind, up to a marker.

    `first` holds markers that count only while nothing but space was read in
    this state: a model thinks at the beginning of its answer, later `<think>`
    is a word like any. `peek` holds beginnings that count only there, too, and
    are not markup: the state that they lead to reads them. `otherwise` is the
    state that reads any other text of an opening. `phase` names what is said,
    where a family tells kinds of messages apart. `shown` is what is said when
    this state is entered, though only the prompt or a marker holds it.
    """

    kind: Kind
    on: Markers = {}
    first: Markers = {}
    peek: Markers = {}
    otherwise: str | None = None
    phase: str | None = None
    shown: str = ""


_Read = TypeVar("_Read")
_Written = TypeVar("_Written")


class Spelled(Struct, Generic[_Read, _Written], frozen=True):
    """A reader of headers or keys that also says how models write what it reads.

    `written` is a tuple of texts for a `NameForm`, of `KeySpelling`s for a
    `KeyForm`, and `Headings` for a `Router`. In texts NAME stands for the function,
    KEY for the argument, NUMBER for digits and ID for nine letters or digits.
    A reader without it still reads, but no model can be made to write for it.
    """

    read: Callable[[str], _Read]
    written: _Written

    def __call__(self, text: str) -> _Read:
        """What the text says."""
        return self.read(text)


def spelled(
    written: _Written,
) -> Callable[[Callable[[str], _Read]], Spelled[_Read, _Written]]:
    """Says how what a function reads is written."""
    return lambda read: Spelled(read, written)


class KeySpelling(NamedTuple):
    """How an argument's name is written before a value of `type`.

    That is a type of JSON's, of which "string" means text as it stands; "json" for
    all other types at once, None for any type if the format does not tell.
    """

    text: str
    type: str | None = None


class Heading(NamedTuple):
    """A header, and the state of the message behind it. With NAME in it, it belongs to a call.

    A `native` one is for calls of the tools that a family was trained with, which have their own place.
    """

    text: str
    to: str
    native: bool = False


class Headings(NamedTuple):
    """Headers that stand behind `marker`. The first one of an answer has lost `speaker` to the prompt."""

    marker: str
    speaker: str
    headings: tuple[Heading, ...]


class Named(NamedTuple):
    """What the header of a call says: the function, and the call's id if the model gives one."""

    name: str
    call_id: str | None = None


NameForm = Callable[[str], Named | None]
"""Reads the header of a call. None: it is none."""


class Name(Struct, frozen=True):
    """The header of a call, up to a marker: its text holds the function's name. See `decode/headers.py`.

    `peek` holds what ends the header, too, but is read by the state that it leads to.
    """

    on: Markers
    form: NameForm
    peek: Markers = {}


class Route(NamedTuple):
    """What a message's header says: the state that reads its body, and the function that it is sent to.

    `otherwise` is the state instead if the request offers no function of that
    name, for headers that may mean something else. None: it is called anyway.
    """

    to: str
    call: Named | None = None
    otherwise: str | None = None


Router = Callable[[str], Route | None]
"""Reads the header of a message; what it does not know, it guesses. None: it is no header at all."""


class Header(Struct, frozen=True):
    """The header of a message, up to one of `ends`: it decides what follows.

    An answer may begin inside one. A header that never ends, or whose route
    leads nowhere, is text; but an answer that ends in what `cut` knows for the
    beginning of a header, with the marker before it, says nothing there.
    """

    ends: tuple[str, ...]
    route: Router
    cut: Callable[[str], bool] = lambda _: False


class Keyed(NamedTuple):
    """What stands before a value: the argument's name, and its type where the format tells it.

    A `type` of "string" means that the value is text, "literal" that it is what
    it looks like unless the schema says more, "guess" that it is JSON unless the
    schema says more, "written" that the reader writes the JSON itself, and any
    other that it is JSON. What should be JSON and is not, is text.
    """

    key: str
    type: str | None = None


KeyForm = Callable[[str], Keyed | None]
"""Reads what stands before a value. None: nothing that makes sense."""


class Key(Struct, frozen=True):
    """The name of an argument, up to a marker."""

    on: Markers
    form: KeyForm


class Trim(Enum):
    """What of a value's text is not part of the value."""

    NOTHING = auto()
    NEWLINE = auto()
    """One newline at the beginning, and one at the end."""


class Value(Struct, frozen=True):
    """The value of an argument, up to a marker. The tool's schema says what it is."""

    on: Markers
    trim: Trim = Trim.NOTHING


class TextArguments(Struct, frozen=True):
    """All arguments of a call whose name is known, as one text: the value of `key`.

    It goes up to a marker. The end of the answer ends it, too: the marker may
    be the token by which the model stops.
    """

    on: Markers
    key: str


class JsonArguments(Struct, frozen=True):
    """All arguments of a call whose name is known, as one JSON object. `then` is the state after it."""

    then: str


class BraceArguments(Struct, frozen=True):
    """All arguments of a call, `{key:<|"|>text<|"|>,n:42}`, after the opening brace.

    `then` is the state after them. `quote` stands on both sides of a string.
    `quoted` says what a value between quotes is, as in `Keyed`: None leaves it to
    the tool's schema.
    """

    then: str
    quote: str
    quoted: str | None = None
    close: str = "}"


class Tree(Struct, frozen=True):
    """One argument as an element, with elements in it, from after the `PREFIX<` of its tag to its end.

    `prefix` stands before every tag. `then` is the state after the argument.
    """

    then: str
    prefix: str


class Names(Enum):
    """Which names make a call."""

    ANY = auto()
    DECLARED = auto()
    """Only those of the request's tools. For formats that look like ordinary text."""


class JsonCalls(Struct, frozen=True):
    """One JSON value that is a call, `{"name": …, "arguments": {…}}`, or an array of calls.

    `name` and `arguments` list the keys accepted for each, in any order; `ids`
    lists the keys of the model's own id, which counts if it comes before the
    name. `then` is the state after the value.
    """

    then: str
    name: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    ids: tuple[str, ...] = ()
    names: Names = Names.ANY


class KeyedCalls(Struct, frozen=True):
    """One JSON value that is a call, `{"NAME": {…arguments…}}`, or an array of calls.

    `then` is the state after it.
    """

    then: str
    names: Names = Names.ANY


class PythonCalls(Struct, frozen=True):
    """Calls as Python writes them: `[f(a=1), g()]`, or without brackets one after another.

    `then` is the state after the last one.
    """

    then: str
    names: Names = Names.ANY


Opener = Header | Name | JsonCalls | KeyedCalls | PythonCalls
"""States in which a call may begin."""
Inner = Key | Value | Tree | TextArguments | JsonArguments | BraceArguments
"""States inside a call."""
State = Span | Opener | Inner


class Thoughts(Struct, frozen=True):
    """Markers around thoughts. A call ends a thought, too."""

    opens: tuple[str, ...]
    closes: tuple[str, ...]


class Grammar(Struct, frozen=True):
    """States by name.

    Decoding begins in `start`, or where the prompt's own markers lead from
    there. `text` is the state of plain text: what is broken ends up there.
    `tokens` are special tokens that stand inside of headers and longer markers.
    """

    states: Mapping[str, State]
    start: str = "text"
    text: str = "text"
    tokens: tuple[str, ...] = ()

    def with_thoughts(self, thoughts: "Thoughts") -> "Grammar":
        """The same grammar for a model that thinks, in a state of its own called `thinking`."""
        text = self.states[self.text]
        assert isinstance(text, Span)
        opens = dict.fromkeys(thoughts.opens, "thinking")
        # A close that nothing opened, or a second one, is markup as long as nothing was said.
        first = {**dict.fromkeys(thoughts.closes, self.text), **opens, **text.first}
        calls = {marker: to for marker, to in text.on.items() if not _shows(self.states[to])}
        thinking = Span(Kind.REASONING, {**calls, **dict.fromkeys(thoughts.closes, self.text)}, opens)
        states = {**self.states, self.text: replace(text, first=first), "thinking": thinking}
        return replace(self, states=states)

    def respelled(self, spell: Callable[[str], str]) -> "Grammar":
        """The same grammar for a model that spells its markers in another way."""
        states = {name: _respelled(state, spell) for name, state in self.states.items()}
        return replace(self, states=states, tokens=tuple(map(spell, self.tokens)))

    @property
    def markers(self) -> frozenset[str]:
        """Every marker in the table: what an engine must not hide from the decoder."""
        return frozenset(self.tokens).union(*map(_markers, self.states.values()))

    @property
    def addressed(self) -> bool:
        """Answers are messages with headers: one that is sent to a function is never prose."""
        return isinstance(self.states[self.start], Header)

    def without_calls(self) -> "Grammar":
        """The same grammar for a request that offers no tools: calls are plain text."""
        kept = {n: state for n, state in self.states.items() if _shows(state) or isinstance(state, Header)}
        return Grammar({name: _within(state, kept) for name, state in kept.items()}, self.start, self.text)


def _markers(state: State) -> set[str]:
    """The markers in a state; beginnings in `peek` are ordinary text."""
    if isinstance(state, Span):
        return {*state.on, *state.first}
    if isinstance(state, Header):
        return set(state.ends)
    return set(state.on) if isinstance(state, Name | Key | Value | TextArguments) else set()


def _respelled(state: State, spell: Callable[[str], str]) -> State:
    fields = [field for field in ("on", "first") if hasattr(state, field)]
    return replace(
        state,
        **{field: {spell(marker): to for marker, to in getattr(state, field).items()} for field in fields},
    )


def _shows(state: State) -> bool:
    return isinstance(state, Span) and state.kind in (Kind.TEXT, Kind.REASONING, Kind.MARKUP)


def _within(state: State, kept: Mapping[str, State]) -> State:
    """The span without the markers that lead out of `kept`."""
    if isinstance(state, Header):
        return state  # a route that leads out of `kept` leads nowhere
    assert isinstance(state, Span)

    def inside(markers: Markers) -> dict[str, str]:
        return {marker: to for marker, to in markers.items() if to in kept}

    return replace(state, on=inside(state.on), first=inside(state.first), peek=inside(state.peek))
