"""Forms → GBNF, the grammars of llama.cpp.

Strategy: a rule of the language is a rule of the grammar, and everything in
it is written in place. Rules of their own become free text up to a marker and
machines, one for each state, and what is counted: llama.cpp writes out what is
repeated, and refuses a grammar in which that multiplies.
"""

from antiphon.constrain.automaton import automaton
from antiphon.constrain.form import (
    ANY,
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
    chars,
    united,
    without,
)
from antiphon.constrain.waiting import awake, first_letters
from antiphon.core.constraint import Gbnf

MANY = 2
"""Counts from here on are written out by those who read them."""

_PLAIN = chars(" !#-,.-Z_-~/:;<=>@")
_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t", '"': r"\"", "\\": r"\\"}


def write(language: Language, triggers: tuple[str, ...] = ()) -> Gbnf:
    """The grammar of the language; with triggers, one that holds from these on.

    llama.cpp looks for triggers in what was drawn already: a token with the end of one in it, and more
    that does not fit, would be an error. So it wakes where a trigger may begin, and reads on from there.
    Triggers are longer than the tokens that text is made of: none holds a whole one and more.
    """
    if not triggers:
        return Gbnf(_Writer(language).text)
    return Gbnf(_Writer(awake(language, triggers)).text, first_letters(triggers))


class _Writer:
    """Writes one grammar."""

    def __init__(self, language: Language) -> None:
        self._names: dict[str, str] = {}
        self._untils: dict[Until, str] = {}
        self._machines: dict[Machine, str] = {}
        self._counted: dict[Form, str] = {}
        self._lines: list[str] = []
        self._rule("root", language.start)
        for name, form in language.rules.items():
            self._rule(self._named(name), form)
        self.text = "\n".join(self._lines) + "\n"

    def _rule(self, name: str, form: Form) -> None:
        self._lines.append(f"{name} ::= {self._options(form)}")

    def _named(self, name: str) -> str:
        """Names have letters, digits and dashes only; all of ours end in a number, so that none is `root`."""
        if name not in self._names:
            letters = "".join(char if char.isascii() and char.isalnum() else "-" for char in name)
            self._names[name] = f"{letters}-{len(self._names)}"
        return self._names[name]

    def _options(self, form: Form) -> str:
        if isinstance(form, Choice):
            return " | ".join(map(self._parts, form.options)) or "[^\\u0000-\\U0010FFFF]"
        return self._parts(form)

    def _parts(self, form: Form) -> str:
        if isinstance(form, Sequence):
            return " ".join(map(self._part, form.parts))
        return self._part(form)

    def _part(self, form: Form) -> str:  # noqa: PLR0911  # one for each form
        match form:
            case Literal(text):
                return _quoted(text)
            case Chars(ranges):
                return _class(ranges)
            case Repeat(inner, least, most):
                single = self._single if most is None and least < MANY else self._single_rule
                return f"{single(inner)}{_count(least, most)}"
            case Ref(name):
                return self._named(name)
            case Until():
                return self._until(form)
            case Machine():
                return self._machine(form)
            case _:
                return f"({self._options(form)})"

    def _single(self, form: Form) -> str:
        """What a count may stand behind."""
        return self._part(form) if isinstance(form, Literal | Chars | Ref) else f"({self._options(form)})"

    def _single_rule(self, form: Form) -> str:
        """The same, so short that it may be written out many times."""
        if isinstance(form, Literal | Chars | Ref):
            return self._part(form)
        if form not in self._counted:
            self._counted[form] = f"each-{len(self._counted)}"
            self._rule(self._counted[form], form)
        return self._counted[form]

    def _machine(self, form: Machine) -> str:
        """The name of the rule for its first state; that of each state has its number added."""
        states = Machine(form.ways, form.ends)
        if states not in self._machines:
            self._machines[states] = f"machine-{len(self._machines)}"
            for state, ways in enumerate(form.ways):
                options = [f"{self._part(read)} {self._machines[states]}-{to}" for read, to in ways]
                options += ['""'] if state in form.ends else []
                nothing = _class(())
                self._lines.append(f"{self._machines[states]}-{state} ::= {' | '.join(options) or nothing}")
        return f"{self._machines[states]}-{form.begun}"

    def _until(self, form: Until) -> str:
        """The name of the rule for the text's beginning; that of each state has its number added."""
        if form not in self._untils:
            self._untils[form] = f"text-{len(self._untils)}"
            self._states(self._untils[form], form)
        begun = automaton(tuple(marker for marker, _ in form.on)).state(form.begun)
        return f"{self._untils[form]}-{begun}"

    def _states(self, name: str, form: Until) -> None:
        """A rule for each state: the characters that lead on, and where."""
        then = dict(form.on)
        found = automaton(tuple(then))
        for state in range(len(found.begun)):
            ways = found.ways(state)
            options = [f"{_class(without(ANY, ''.join(ways)).ranges)} {name}-0"]
            for to in {to for to in ways.values() if isinstance(to, int)}:
                letters = united((ord(char), ord(char)) for char, way in ways.items() if way == to)
                options.append(f"{_class(letters)} {name}-{to}")
            for char, marker in ways.items():
                after = then[marker] if isinstance(marker, str) else None
                if after is not None:
                    options.append(f"{_quoted(char)} {self._part(after)}")
            if form.open:
                options.append('""')
            self._lines.append(f"{name}-{state} ::= {' | '.join(options)}")


def _count(least: int, most: int | None) -> str:
    if most is None and least < 2:
        return "*+"[least]
    if (least, most) == (0, 1):
        return "?"
    return f"{{{least}}}" if least == most else f"{{{least},{'' if most is None else most}}}"


def _quoted(text: str) -> str:
    """A literal. What is special in a class stands for itself there."""
    return f'"{"".join(char if char in "[]^-" else _char(char) for char in text)}"'


def _class(ranges: tuple[tuple[int, int], ...]) -> str:
    """`[a-z]`; nothing else is special there once all but letters and digits are written as codes."""
    if not ranges:
        return "[^\\u0000-\\U0010FFFF]"
    pieces = (_char(chr(a)) if a == b else f"{_char(chr(a))}-{_char(chr(b))}" for a, b in ranges)
    return f"[{''.join(pieces)}]"


def _char(char: str) -> str:
    """Codes have four digits or eight: where two are meant, xgrammar reads on as long as there are digits."""
    code = ord(char)
    if char in _ESCAPES:
        return _ESCAPES[char]
    if any(low <= code <= high for low, high in _PLAIN.ranges) or (code > 0xBF and char.isalpha()):
        return char
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"
