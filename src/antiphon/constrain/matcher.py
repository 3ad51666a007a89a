"""Whether a text fits a form, one character after another.

Strategy: a set of stacks, as the engines keep for grammars themselves. A
stack holds what has to follow: its top is a form with a place in it, below is
what comes after. Stacks share what they have in common, and are never made
twice, so that a character costs as much as there are ways to go on.
"""

from antiphon.constrain.automaton import automaton
from antiphon.constrain.form import (
    EMPTY,
    Chars,
    Choice,
    Form,
    Language,
    Literal,
    Machine,
    Ref,
    Repeat,
    Sequence,
    Until,
    choice,
    holds,
    repeat,
    sequence,
)

MAX_REMEMBERED = 20_000
"""Stacks that are remembered to be told apart, beyond which they are made anew."""


class Stack:
    """A form, how far in it we are, and what comes after it."""

    __slots__ = ("at", "form", "rest")

    def __init__(self, form: Form, at: int, rest: "Stack | None") -> None:
        self.form = form
        self.at = at
        self.rest = rest


class Matcher:
    """Reads one text. It fits as far as it is `alive`, and as a whole if it is `accepting`."""

    def __init__(self, language: Language) -> None:
        self._rules = language.rules
        self._made: dict[tuple[int, int, int], Stack] = {}
        self._known: dict[int, tuple[list[Stack], bool]] = {}
        self._tops, self.accepting = self._expanded([self._push(language.start, 0, None)])

    @property
    def alive(self) -> bool:
        """What was read is the beginning of a text that fits, as far as one character shows."""
        return bool(self._tops) or self.accepting

    def feed(self, text: str) -> bool:
        """Read on; whether the text still fits."""
        for char in text:
            nexts = [stack for top in self._tops for stack in self._after(top, char)]
            if len(self._made) > MAX_REMEMBERED:
                self._made.clear()
                self._known.clear()
            self._tops, self.accepting = self._expanded(nexts)
            if not self.alive:
                return False
        return True

    @property
    def tops(self) -> list[Stack]:
        """Where the text may go on: stacks with a character to read on top."""
        return self._tops

    def after(self, top: Stack, char: str) -> list[Stack]:
        """Where it may go on after this character, if it is read there."""
        return self._expanded(self._after(top, char))[0]

    def choices(self) -> list[tuple[str, Form, int]]:
        """What may come next: the forms on top of the stacks, as (kind, form, place). For samplers."""
        return [(type(top.form).__name__, top.form, top.at) for top in self._tops]

    def residual(self) -> Language:
        """What may still follow."""
        options = [self._remaining(top) for top in self._tops]
        return Language(choice(*options, *([EMPTY] if self.accepting else [])), self._rules)

    def _remaining(self, stack: "Stack | None") -> Form:
        parts: list[Form] = []
        while stack is not None:
            parts.append(_rest_of(stack.form, stack.at))
            stack = stack.rest
        return sequence(*parts)

    def _push(self, form: Form, at: int, rest: Stack | None) -> Stack:
        key = (id(form), at, id(rest))
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = Stack(form, at, rest)
        return found

    def _expanded(self, stacks: list[Stack]) -> tuple[list[Stack], bool]:
        """The stacks with a character to read on top, and whether one of them may end here."""
        tops: dict[int, Stack] = {}
        accepting = False
        for stack in stacks:
            found, ends = self._expansion(stack)
            tops.update((id(top), top) for top in found)
            accepting = accepting or ends
        return list(tops.values()), accepting

    def _expansion(self, stack: Stack) -> tuple[list[Stack], bool]:
        known = self._known.get(id(stack))
        if known is None:
            known = self._known[id(stack)] = self._expand(stack)
        return known

    def _expand(self, stack: Stack) -> tuple[list[Stack], bool]:
        todo: list[Stack | None] = [stack]
        seen: set[int] = set()
        tops: list[Stack] = []
        accepting = False
        while todo:
            each = todo.pop()
            if each is None:
                accepting = True
            elif id(each) not in seen:
                seen.add(id(each))
                if _reads(each):
                    tops.append(each)
                todo += self._below(each)
        return tops, accepting

    def _below(self, stack: Stack) -> list["Stack | None"]:  # noqa: PLR0911  # one for each form
        """What may stand on top instead, without reading anything."""
        form, at, rest = stack.form, stack.at, stack.rest
        if isinstance(form, Literal):
            return [rest] if at == len(form.text) else []
        if isinstance(form, Sequence):
            if at == len(form.parts):
                return [rest]
            after = self._push(form, at + 1, rest) if at + 1 < len(form.parts) else rest
            return [self._push(form.parts[at], 0, after)]
        if isinstance(form, Choice):
            return [self._push(option, 0, rest) for option in form.options]
        if isinstance(form, Repeat):
            return self._repeated(form, at, rest)
        if isinstance(form, Ref):
            return [self._push(self._rules[form.name], 0, rest)]
        if isinstance(form, Machine):
            return self._led(form, at, rest)
        return [rest] if isinstance(form, Until) and form.open else []

    def _repeated(self, form: Repeat, at: int, rest: Stack | None) -> list["Stack | None"]:
        below: list[Stack | None] = [rest] if at >= form.least else []
        if form.most is None or at < form.most:
            count = min(at + 1, form.least) if form.most is None else at + 1
            below.append(self._push(form.form, 0, self._push(form, count, rest)))
        return below

    def _led(self, form: Machine, at: int, rest: Stack | None) -> list["Stack | None"]:
        """The ways on from a state: its number plus one, or 0 for the state that the machine begins in."""
        state = at - 1 if at else form.begun
        below: list[Stack | None] = [rest] if state in form.ends else []
        below += (self._push(read, 0, self._push(form, to + 1, rest)) for read, to in form.ways[state])
        return below

    def _after(self, stack: Stack, char: str) -> list[Stack]:
        """The stacks after the top has read the character; None at their ends becomes an empty literal."""
        form, at, rest = stack.form, stack.at, stack.rest
        if isinstance(form, Literal):
            return [self._push(form, at + 1, rest)] if form.text[at] == char else []
        if isinstance(form, Chars):
            return [self._push(EMPTY, 0, rest)] if holds(form, char) else []
        assert isinstance(form, Until)
        begun = automaton(tuple(marker for marker, _ in form.on))
        state = at or begun.state(form.begun)
        to = begun.step(state, char)
        if isinstance(to, int):
            return [self._push(form if to or not form.begun else _anew(form), to, rest)]
        then = dict(form.on)[to]
        return [] if then is None else [self._push(then, 0, rest)]


def matches(language: Language, text: str) -> bool:
    """Whether the whole text fits."""
    matcher = Matcher(language)
    return matcher.feed(text) and matcher.accepting


def residual(language: Language, written: str) -> Language:
    """What may still follow after what is written: nothing fits it if that does not fit."""
    matcher = Matcher(language)
    matcher.feed(written)
    return matcher.residual()


def _reads(stack: Stack) -> bool:
    form = stack.form
    return isinstance(form, Chars | Until) or (isinstance(form, Literal) and stack.at < len(form.text))


def _anew(form: Until) -> Until:
    return Until(form.on, form.open)


def _rest_of(form: Form, at: int) -> Form:
    if isinstance(form, Literal):
        return Literal(form.text[at:])
    if isinstance(form, Sequence):
        return sequence(*form.parts[at:])
    if isinstance(form, Repeat):
        return repeat(form.form, max(0, form.least - at), None if form.most is None else form.most - at)
    if isinstance(form, Machine) and at:
        return Machine(form.ways, form.ends, at - 1)
    if isinstance(form, Until) and at:
        begun = automaton(tuple(marker for marker, _ in form.on)).begun[at]
        return Until(form.on, form.open, begun)
    return form
