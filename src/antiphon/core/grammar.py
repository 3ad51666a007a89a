"""The types of a dialect's grammar: how a model family writes its reasoning and calls.

A grammar is a set of named states. The decoder is in one state at a time; the state defines what kind of text
it reads, and which markers lead to which state. Families differ in their states, in the markers between
these, and in a few options (how a name is written, what is trimmed).

Everything between the marker that ends plain text and the first argument of a call is provisional: if it
turns out to be malformed, it becomes text again, and the decoder continues in the state before. So a marker
in prose stays prose.

Space that touches a marker belongs to the marker: templates insert it when they render, and decoding is the
inverse of rendering.

To add a syntax that no table can express: a state here, its reader in `decode/`, both in `decode/table.py`;
`tests/decode/`, with the laws of `tests/laws.py`.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import wraps
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

Markers = Mapping[str, str]
"""Marker → the state that it leads to."""


class SpanKind(Enum):
    """The kind of text that a span holds."""

    TEXT = auto()
    """Visible to the user."""
    REASONING = auto()
    """The model's reasoning."""
    MARKUP = auto()
    """Only space, between markers. Other text starts plain text."""
    OPENING = auto()
    """Only space, before the name of a call. Other text means that there is no call."""
    CALL = auto()
    """Only space, between the arguments of a call. Other text there is malformed, and skipped."""


class Space(Enum):
    """What the space around the text of a span belongs to."""

    MARKUP = auto()
    """To the markers that it touches."""
    TEXT = auto()
    """To the text, if there is any."""


class Habits(Struct, frozen=True):
    """What models write although their format does not have it. It is read, and never part of a constraint.

    `on`, `first`, `peek` and `again` are like those of a `Span`. `names` are markers before which models
    write the name of the function, or another word, at the beginning of a span; it is markup, unless the
    marker is also in `peek`. `hidden` are markers that change nothing, and are not part of the text either.
    """

    on: Markers = {}
    first: Markers = {}
    peek: Markers = {}
    again: Markers = {}
    names: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


class Span(Struct, frozen=True):
    """Text of one kind, up to a marker.

    `first` holds markers that count only while nothing but space was read in
    this state, and are text later. `peek` holds the first characters of states that
    have no marker, like the `{` of JSON; they, too, count only there, and are read by
    the state that they lead to. `again` holds markers that count as those in `on` do, but
    only in an answer that has had reasoning. `closes` are the markers that close reasoning: in such an
    answer they are hidden in text, unless one of `quotes` opens them, an opening marker that is text there.
    `otherwise` is the state that reads any other text of an opening or of markup, or instead of a marker in a
    call; a span whose own name it is skips such text.
    `phase` is the phase of a message, in families that distinguish phases. `space` says what space around
    the text belongs to. `entry_text` is emitted as text on entry: the prompt or a marker contains it.
    """

    kind: SpanKind
    on: Markers = {}
    first: Markers = {}
    peek: Markers = {}
    again: Markers = {}
    closes: tuple[str, ...] = ()
    quotes: tuple[str, ...] = ()
    otherwise: str | None = None
    phase: str | None = None
    space: Space = Space.MARKUP
    entry_text: str = ""
    habits: Habits = Habits()


_Parsed = TypeVar("_Parsed")
_Spellings = TypeVar("_Spellings")
_Arguments = ParamSpec("_Arguments")
_Parser = TypeVar("_Parser", bound=Callable[[str], object])


class ParserSource(Struct, frozen=True):
    """The function of `decode/headers.py` that made a parser, and its arguments: how a file names it."""

    name: str
    arguments: Mapping[str, Any] = {}


class Check(Struct, frozen=True, eq=False):
    """A function of a text, with its source. Two with the same source are equal."""

    parse: Callable[[str], Any]
    source: ParserSource

    def __call__(self, text: str) -> Any:
        """What the function finds."""
        return self.parse(text)

    def __eq__(self, other: object) -> bool:
        """Whether it is the same function."""
        return isinstance(other, Check) and self.source == other.source

    def __hash__(self) -> int:
        """By the name of what made it."""
        return hash(self.source.name)


class SpelledParser(Struct, Generic[_Parsed, _Spellings], frozen=True, eq=False):
    """Parses headers or keys, and lists how models write them, for constrained generation.

    `spellings` is a tuple of texts for a `NameParser`, of `KeySpelling`s for a `KeyParser`, and
    `HeaderSpellings` for a `Router`. In texts, NAME is a placeholder for the function, KEY for the argument,
    NUMBER for digits and ID for nine letters or digits. A parser that is a plain function can be used for
    decoding, but its grammar cannot be a constraint. Two parsers with the same source are equal.
    """

    parse: Callable[[str], _Parsed]
    spellings: _Spellings
    source: ParserSource | None = None

    def __call__(self, text: str) -> _Parsed:
        """The parsed text."""
        return self.parse(text)

    def __eq__(self, other: object) -> bool:
        """Whether it is the same parser."""
        if not isinstance(other, SpelledParser) or self.spellings != other.spellings:
            return False
        return self.source == other.source if self.source else self.parse == other.parse

    def __hash__(self) -> int:
        """By what it parses."""
        return hash(repr(self.spellings))


def spelled(
    spellings: _Spellings,
) -> Callable[[Callable[[str], _Parsed]], SpelledParser[_Parsed, _Spellings]]:
    """A decorator that adds spellings to a parser."""
    return lambda parse: SpelledParser(parse, spellings, ParserSource(parse.__name__))


def with_source(make: Callable[_Arguments, _Parser]) -> Callable[_Arguments, _Parser]:
    """A decorator that adds the name of the function, and its arguments, to the parsers that it makes."""
    signature = inspect.signature(make)

    @wraps(make)
    def maker(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Parser:
        parser: Any = make(*args, **kwargs)
        bound, parameters = signature.bind(*args, **kwargs).arguments, signature.parameters
        arguments = {name: value for name, value in bound.items() if value != parameters[name].default}
        source = ParserSource(make.__name__, arguments)
        named_parser: Any = (
            replace(parser, source=source) if isinstance(parser, SpelledParser) else Check(parser, source)
        )
        return cast("_Parser", named_parser)

    return maker


class KeySpelling(NamedTuple):
    """How an argument's name is written before a value of `type`.

    `type` is a JSON type, where "string" means verbatim text; "json" for all other types at once, None for
    any type if the format does not state it.
    """

    text: str
    type: str | None = None


class HeaderSpelling(NamedTuple):
    """A header, and the state of the message after it. One that contains NAME starts a call.

    A `native` one starts calls of the tools that a family was trained with; their names are in other headers.
    """

    text: str
    to: str
    native: bool = False


class HeaderSpellings(NamedTuple):
    """Headers after `marker`. The prompt ends with the first marker of an answer and `speaker`."""

    marker: str
    speaker: str
    spellings: tuple[HeaderSpelling, ...]


class CallHeader(NamedTuple):
    """The function of a call, and its id if the model writes one."""

    name: str
    call_id: str | None = None


NameParser = Callable[[str], CallHeader | None]
"""Parses the header of a call. None: it is not one."""


class AcceptedNames(Enum):
    """Which function names are accepted as a call."""

    ANY = auto()
    DECLARED = auto()
    """Only functions of the request.

    For markers that also occur in prose: a quoted one must not start a call.
    """


class Name(Struct, frozen=True):
    """The header of a call, up to a marker: its text holds the function's name. See `decode/headers.py`.

    `peek` also ends the header, but is read by the state that it leads to. Text of more than `words` is
    no header: it need not be held back until a marker comes. `habits` are markers like those in `on` which
    models write against their format. Two kinds of them end only names of functions that the request offers:
    `unclosed` are other markers of a call, before which its name should have been closed; `glued` end the
    name of the first argument, where no marker is between the two names.
    """

    on: Markers
    parse: NameParser
    peek: Markers = {}
    names: AcceptedNames = AcceptedNames.ANY
    words: int = 1
    habits: Markers = {}
    unclosed: Markers = {}
    glued: Markers = {}


class Lookahead(Struct, frozen=True):
    """Before a marker that means what the marker after it says.

    A word and then a marker of `on` may follow: that leads to the state that reads the word, and any other
    text to `otherwise`.
    """

    marker: str
    on: Markers
    otherwise: str


class Route(NamedTuple):
    """The state that reads a message's body, and the function that the message is sent to.

    `otherwise` is the state instead if the request offers no function of that
    name, for headers that may mean something else. None: it is a call in any case.
    `names` are others that the header may mean: the first that the request offers.
    """

    to: str
    call: CallHeader | None = None
    otherwise: str | None = None
    names: tuple[str, ...] = ()


Router = Callable[[str], Route | None]
"""Parses the header of a message, and guesses where it is unknown. None: it is not a header."""


class Header(Struct, frozen=True):
    """The header of a message, up to one of `ends`. It decides which state follows.

    An answer may begin inside a header. A header that never ends, that has more than `words`, whose route
    is None, or for whose first text `begins` is false, is text without the marker before it. The end of an
    answer for which `is_cut` holds (the start of a header, with the marker before it) is dropped.
    """

    ends: tuple[str, ...]
    route: Router
    is_cut: Callable[[str], bool] = lambda _: False
    words: int = 6
    begins: Callable[[str], bool] = lambda _: True


class ArgumentKey(NamedTuple):
    """The name of an argument, and the type of its value where the format states it.

    A `type` of "string" means that the value is text; "literal", a number, boolean or
    null if it looks like one, unless the schema states a type; "guess", JSON if it
    parses, unless the schema states a type; "written", that the reader writes the JSON
    itself; any other, JSON. A value that should be JSON and does not parse is text.
    """

    key: str
    type: str | None = None


KeyParser = Callable[[str], ArgumentKey | None]
"""Parses the text before a value. None: it is malformed."""


class Key(Struct, frozen=True):
    """The name of an argument, up to a marker."""

    on: Markers
    parse: KeyParser


class Trim(Enum):
    """Which part of a value's text is not part of the value."""

    NOTHING = auto()
    NEWLINE = auto()
    """One newline at the beginning, and one at the end."""


class Value(Struct, frozen=True):
    """The value of an argument, up to a marker. The tool's schema states its type.

    A marker that leads to a state between arguments may also be part of the value. It is if the next marker
    is one of these again, and not one of that state. `habits` that lead elsewhere are markers before which
    the value should have been closed: they are part of it, too, unless what they begin or end follows them.
    """

    on: Markers
    trim: Trim = Trim.NOTHING
    habits: Markers = {}


def unclosed(markers: Markers) -> Markers:
    """Habits of a `Value`: markers before which it should have been closed, with the newline before them."""
    return {text: to for marker, to in markers.items() for text in (marker, f"\n{marker}")}


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

    `then` is the state after them. `quote` delimits strings on both sides; models also write others.
    `quoted` is the type of a value between quotes, as in `ArgumentKey`: None leaves it
    to the tool's schema.
    """

    then: str
    quote: str
    quoted: str | None = None
    close: str = "}"


class ElementArgument(Struct, frozen=True):
    """One argument as an XML-like element, with nested elements, from after `PREFIX<` to its end.

    `prefix` stands before every tag. `then` is the state after the argument.
    """

    then: str
    prefix: str


class Quotes(Enum):
    """What models write for the quotes around strings of JSON."""

    MARKS = auto()
    ENTITIES = auto()
    """Now and then `&quot;`. This is a habit, and never part of a constraint."""


class JsonCalls(Struct, frozen=True):
    """One JSON value that is a call, `{"name": …, "arguments": {…}}`, or an array of calls.

    `name` and `arguments` list the keys accepted for each, in any order; `ids`
    lists the keys of the model's own id, which is used if it comes before the
    name. `then` is the state after the value.
    """

    then: str
    name: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    ids: tuple[str, ...] = ()
    names: AcceptedNames = AcceptedNames.ANY
    quotes: Quotes = Quotes.MARKS


class KeyedCalls(Struct, frozen=True):
    """One JSON value that is a call, `{"NAME": {…arguments…}}`, or an array of calls.

    `then` is the state after it.
    """

    then: str
    names: AcceptedNames = AcceptedNames.ANY


class PythonCalls(Struct, frozen=True):
    """Calls as Python writes them: `[f(a=1), g()]`, or without brackets one after another.

    `then` is the state after the last one. `opening` is the part of them that is in the marker before.
    """

    then: str
    names: AcceptedNames = AcceptedNames.ANY
    opening: str = ""


CallStart = Header | Name | JsonCalls | KeyedCalls | PythonCalls
"""States in which a call may begin."""
CallBody = Lookahead | Key | Value | ElementArgument | TextArguments | JsonArguments | BraceArguments
"""States inside a call."""
State = Span | CallStart | CallBody


class ReasoningMarkers(Struct, frozen=True):
    """Markers around reasoning.

    `opens` open it before any text. `reopens` are those that also open it again after text: in an answer
    without reasoning they are text. `calls` says whether a call may be inside; if not, text that looks like
    one is reasoning. `habits` are markers like those in `opens` and `reopens` which models write against
    their format.
    """

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    reopens: tuple[str, ...] = ()
    calls: bool = True
    habits: tuple[str, ...] = ()

    def map_markers(self, rename: Callable[[str], str]) -> "ReasoningMarkers":
        """The same in other markers."""
        fields = ("opens", "closes", "reopens", "habits")
        return replace(self, **{field: tuple(map(rename, getattr(self, field))) for field in fields})


class Grammar(Struct, frozen=True):
    """States by name.

    Decoding begins in `start`, or where the prompt's own markers lead from
    there. `text` is the state of plain text. Where calls lead to it, and where text
    follows them, decoding returns to the text or reasoning that they began in.
    `tokens` are special tokens inside headers and longer markers, and markers that are special tokens
    although they do not look like one.
    """

    states: Mapping[str, State]
    start: str = "text"
    text: str = "text"
    tokens: tuple[str, ...] = ()

    def with_reasoning(self, markers: "ReasoningMarkers") -> "Grammar":
        """The same grammar for a model that reasons, in a state of its own called `reasoning`."""
        text = self.states[self.text]
        assert isinstance(text, Span)
        opens, reopens = (dict.fromkeys(texts, "reasoning") for texts in (markers.opens, markers.reopens))
        closes = dict.fromkeys(markers.closes, self.text)
        # A closing marker without an opening one, or a second one, is markup until text was read.
        habits = dict.fromkeys(markers.habits, "reasoning")
        visible_text = replace(
            text,
            first={**closes, **opens, **text.first},
            again=reopens,
            habits=replace(text.habits, first=habits, again=habits),
        )
        quotes = tuple(marker for marker in markers.opens if marker not in reopens)
        visible = {
            name: replace(state, closes=markers.closes, quotes=quotes)
            for name, state in {**self.states, self.text: visible_text}.items()
            if isinstance(state, Span) and state.kind is SpanKind.TEXT
        }
        reasoning = Span(
            SpanKind.REASONING,
            {**(self._calls_in(text.on) if markers.calls else {}), **closes},
            opens,
            habits=Habits(self._calls_in(text.habits.on) if markers.calls else {}, first=habits),
        )
        return replace(self, states={**self.states, **visible, "reasoning": reasoning})

    def _calls_in(self, markers: Markers) -> Markers:
        """Those of the markers that lead to calls."""
        return {marker: to for marker, to in markers.items() if not _is_outside_calls(self.states[to])}

    def map_markers(self, rename: Callable[[str], str]) -> "Grammar":
        """The same grammar with other markers."""
        states = {name: _map_state_markers(state, rename) for name, state in self.states.items()}
        return replace(self, states=states, tokens=tuple(map(rename, self.tokens)))

    @property
    def markers(self) -> frozenset[str]:
        """All markers, and the special tokens in them, which an engine must not drop."""
        return self.special_tokens.union(*map(_markers, self.states.values()))

    @property
    def has_message_headers(self) -> bool:
        """Answers are messages with headers, so a message to a function is a call even without tools."""
        return isinstance(self.states[self.start], Header)

    @property
    def special_tokens(self) -> frozenset[str]:
        """The special tokens in markers: no text that prompts describe, like a tag in angle brackets."""
        markers = [marker for state in self.states.values() for marker in _markers(state)]
        return frozenset(self.tokens).union(*map(_SPECIAL_TOKEN.findall, markers))

    @property
    def tags(self) -> frozenset[str]:
        """The markers that are ordinary text, which templates may search for in messages."""
        return frozenset(marker.strip() for marker in self.markers) - self.special_tokens

    def without_calls(self) -> "Grammar":
        """The same grammar for a request that allows no calls: they are plain text.

        Their special tokens are hidden, because special tokens are never text.
        """
        kept = {
            name: state
            for name, state in self.states.items()
            if _is_outside_calls(state) or isinstance(state, Header)
        }
        hidden = tuple(sorted(self.special_tokens))
        states = {name: _within(state, kept, hidden) for name, state in kept.items()}
        return Grammar(states, self.start, self.text)


_SPECIAL_TOKEN = re.compile(
    r"""<[|｜][^<>|｜\s]+[|｜]>  # <|call|>
    | <\|\w+> | <\w+\|>       # <|tool_call> and <tool_call|>
    | </?\w+\|\w+>            # <ifm|tool_call>
    | ｜\w+｜                  # in <｜DSML｜invoke>
    """,
    re.VERBOSE,
)


def _markers(state: State) -> set[str]:
    """The markers in a state; beginnings in `peek` are ordinary text."""
    if isinstance(state, Span):
        habits = state.habits
        return {*state.on, *state.first, *habits.on, *habits.first, *habits.hidden}
    if isinstance(state, Header):
        return set(state.ends)
    if isinstance(state, BraceArguments):
        return {state.quote}
    fields = ("on", "habits", "unclosed", "glued")
    return {marker for field in fields for marker in getattr(state, field, ())}


def _map_state_markers(state: State, rename: Callable[[str], str]) -> State:
    if isinstance(state, Header):
        return replace(state, ends=tuple(map(rename, state.ends)))
    fields = _renamed(state, rename)
    if isinstance(state, Lookahead):
        return replace(state, **fields, marker=rename(state.marker))
    if not isinstance(state, Span):
        return replace(state, **fields)
    names, hidden = (tuple(map(rename, texts)) for texts in (state.habits.names, state.habits.hidden))
    habits = replace(state.habits, **_renamed(state.habits, rename), names=names, hidden=hidden)
    return replace(state, **fields, habits=habits)


def _renamed(holder: State | Habits, rename: Callable[[str], str]) -> dict[str, Any]:
    """The fields with markers, in other markers. Those of `peek` are no tags."""
    return {
        field: {rename(marker): to for marker, to in markers.items()}
        for field in ("on", "first", "again", "habits", "unclosed", "glued")
        if isinstance(markers := getattr(holder, field, None), Mapping)
    }


def _is_outside_calls(state: State) -> bool:
    return isinstance(state, Span) and state.kind in (SpanKind.TEXT, SpanKind.REASONING, SpanKind.MARKUP)


def _within(state: State, kept: Mapping[str, State], hidden: tuple[str, ...]) -> State:
    """The state without the markers that lead out of `kept`, and with `hidden` ones."""
    if isinstance(state, Header):
        return state  # the reader treats a route that leads out of `kept` as one to text
    assert isinstance(state, Span)

    def inside(markers: Markers) -> dict[str, str]:
        return {marker: to for marker, to in markers.items() if to in kept}

    def kept_in(holder: Span | Habits) -> dict[str, dict[str, str]]:
        return {field: inside(getattr(holder, field)) for field in ("on", "first", "peek", "again")}

    hides = () if state.kind is SpanKind.MARKUP else hidden  # there, they begin text
    hides = (*state.habits.hidden, *hides)
    habits = replace(Habits(hidden=hides), **kept_in(state.habits))
    return replace(state, **kept_in(state), habits=habits)
