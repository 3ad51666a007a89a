"""What a request demands of an answer → the form that the whole answer must have.

The entry is `constrain`. What it returns is written for an engine by
`gbnf.write` or `structural_tag.write`, or matched against an answer by
`matcher`, for engines that enforce nothing.
"""

from collections.abc import Sequence

from msgspec import Struct

from antiphon.constrain.answer import Answer
from antiphon.constrain.arguments import Offered, UnwritableError
from antiphon.constrain.body import body_of
from antiphon.constrain.calls import Calls
from antiphon.constrain.form import Form, Language
from antiphon.constrain.json_schema import read
from antiphon.constrain.kinds import objects
from antiphon.constrain.language import check, pruned
from antiphon.constrain.matcher import Matcher
from antiphon.constrain.merging import TooLarge
from antiphon.constrain.shape import ANY_OBJECT, Object, Shapes
from antiphon.constrain.unenforced import Unenforced, refuse
from antiphon.constrain.waiting import first_letters, waiting
from antiphon.core.constraint import Format
from antiphon.core.errors import RequestError
from antiphon.core.grammar import Grammar
from antiphon.core.turn import Calling, Function, ToolChoice


class Demand(Struct, frozen=True):
    """What an answer has to be: the part of a `Turn` that matters here.

    `state` is where the answer begins: None for the grammar's start, else the
    name of the state that the prompt leads to (`decode.decoder.state_after`).
    """

    tools: tuple[Function, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    format: Format | None = None
    state: str | None = None


class Enforced(Struct, frozen=True):
    """What holds the model while it decodes.

    `language` is None if nothing has to. It describes the whole answer, thoughts
    and markup included, from its first character on; with `triggers`, all from the first
    of these texts on, which are part of what it describes, and text before
    them is free.

    `unenforced` are the keywords and wishes that `language` does not cover, in the
    request's words: to be checked when the answer is there. No keyword of a
    strict schema is ever among them: that is refused instead.
    """

    language: Language | None = None
    triggers: tuple[str, ...] = ()
    unenforced: tuple[Unenforced, ...] = ()

    def after(self, written: str) -> "Enforced | None":
        """What holds the rest of an answer of which this much is written; None if it broke the rules."""
        if self.language is None or not self._woken_by(written):
            return self
        matcher = Matcher(waiting(self.language, self.triggers) if self.triggers else self.language)
        if not matcher.feed(written):
            return None
        return Enforced(matcher.residual(), unenforced=self.unenforced)

    def _woken_by(self, written: str) -> bool:
        """Whether a trigger stands in what is written, or has begun."""
        return not self.triggers or any(letter in written for letter in first_letters(self.triggers))


def constrain(demand: Demand, grammar: Grammar) -> Enforced:
    """What the demand comes to for a model that writes in this grammar (`Dialect.grammar`). Pure.

    Raises RequestError for what is strict and cannot be enforced, and for schemas that
    nothing fits. Its `param` is the `source` of a function, or `format`.
    """
    compiler = _Compiler(demand, grammar)
    try:
        enforced = compiler.enforced()
    except UnwritableError as why:
        what = f"this model's format does not say {why}"
        return Enforced(unenforced=(Unenforced("tool_choice", "", what), *compiler.unenforced))
    if enforced.language is None:
        return enforced
    language = pruned(enforced.language)
    check(language, "tools" if demand.format is None else "format")
    return Enforced(language, enforced.triggers, enforced.unenforced)


class _Compiler:
    """Compiles one demand."""

    def __init__(self, demand: Demand, grammar: Grammar) -> None:
        self._demand = demand
        self._grammar = grammar
        self._choice = demand.tool_choice
        self._rules: dict[str, Form] = {}
        self.unenforced: list[Unenforced] = []

    def enforced(self) -> Enforced:
        offered = self._callable()
        must = self._choice.calling is Calling.REQUIRED
        if must and not offered:
            raise RequestError("There is no function that could be called: offer one.", param="tool_choice")
        calls = (
            self._calls(offered)
            if offered and (must or self._demand.format or self._minds(offered))
            else None
        )
        if self._demand.format is None and calls is None:
            return Enforced()
        body = None if must or self._demand.format is None else self._body(self._demand.format)
        answer = Answer(self._grammar, calls, body, self._rules)
        if must or body is not None:
            return self._whole(answer.demanded(self._demand.state), calls)
        triggers = answer.triggers()
        form = answer.triggered(triggers) if triggers else answer.free(self._demand.state)
        return self._whole(form, calls, triggers)

    def _whole(self, form: Form, calls: Calls | None, triggers: tuple[str, ...] = ()) -> Enforced:
        if calls is not None:
            for tool in self._callable():
                self._miss(tool.source, [("", what) for what in calls.missed(tool.name)], tool.strict)
        unenforced = tuple(dict.fromkeys(self.unenforced))
        return Enforced(Language(form, self._rules), triggers, unenforced)

    def _callable(self) -> list[Function]:
        """The functions that may be called."""
        if self._choice.calling is Calling.NONE:
            return []
        names = self._choice.names
        return [tool for tool in self._demand.tools if names is None or tool.name in names]

    def _minds(self, offered: Sequence[Function]) -> bool:
        """Whether it matters how a call is written that need not come."""
        return self._choice.names is not None or not self._choice.parallel or any(f.strict for f in offered)

    def _calls(self, offered: Sequence[Function]) -> Calls:
        if not any(self._grammar.states.keys() - self._grammar.without_calls().states.keys()):
            raise UnwritableError("how calls are written")
        functions = list(map(self._offered, offered))
        return Calls(self._grammar, functions, self._choice.parallel, self._rules)

    def _offered(self, tool: Function) -> Offered:
        native = tool.hosted is not None and tool.hosted.native
        return Offered(tool.name, self._shapes(tool), native)

    def _shapes(self, tool: Function) -> Shapes:
        """The shapes of a function's arguments: any object, if nothing holds it to its schema."""
        if not tool.parameters:
            return Shapes(Object())
        if not tool.strict and self._choice.calling is Calling.AUTO:
            return Shapes(ANY_OBJECT)
        try:
            shapes, missed = read(tool.parameters)
        except TooLarge:
            raise RequestError(_TOO_LARGE, param=tool.source) from None
        self._miss(tool.source, missed, tool.strict)
        if not objects(shapes.shape, shapes.named):
            message = "No object fits this schema: a function's arguments are one."
            raise RequestError(message, param=tool.source)
        return shapes

    def _body(self, format_: Format) -> Form:
        try:
            form, missed, strict = body_of(format_, self._rules)
        except TooLarge:
            raise RequestError(_TOO_LARGE, param="format") from None
        self._miss("format", missed, strict)
        return form

    def _miss(self, param: str, missed: list[tuple[str, str]], strict: bool | None) -> None:
        found = [Unenforced(param, pointer, what) for pointer, what in missed]
        if strict and found:
            refuse(found)
        self.unenforced += found


_TOO_LARGE = "This schema has too many alternatives to be enforced. Make it smaller."
