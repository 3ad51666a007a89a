"""What can be said of a language as a whole: whether anything fits it, and whether a parser can follow it."""

from collections.abc import Callable

from antiphon.constrain.form import (
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
    children,
)
from antiphon.core.errors import RequestError


def pruned(language: Language) -> Language:
    """The language without the rules that nothing refers to."""
    kept: dict[str, Form] = {}
    todo = [language.start]
    while todo:
        form = todo.pop()
        if isinstance(form, Ref):
            if form.name not in kept:
                kept[form.name] = language.rules[form.name]
                todo.append(kept[form.name])
        else:
            todo += children(form)
    return Language(language.start, kept)


def check(language: Language, param: str) -> None:
    """Raises RequestError about that part of the request if nothing fits, or if a rule begins with itself."""
    if not _settled(language, possible)(language.start):
        raise RequestError("Nothing fits what is asked for: the schema contradicts itself.", param=param)
    if _left_recursive(language):
        raise RequestError("A part of the grammar or schema begins with itself.", param=param)


def possible(form: Form, known: Callable[[str], bool]) -> bool:  # noqa: PLR0911  # one for each form
    """Whether some text fits, given which rules are known to have some."""
    match form:
        case Chars(ranges):
            return bool(ranges)
        case Sequence(parts):
            return all(possible(part, known) for part in parts)
        case Choice(options):
            return any(possible(option, known) for option in options)
        case Repeat(inner, least):
            return least == 0 or possible(inner, known)
        case Ref(name):
            return known(name)
        case Until(on, is_open):
            return is_open or any(then is not None and possible(then, known) for _, then in on)
        case Machine():
            return _can_end(form, known)
        case _:
            return True


def nullable(form: Form, known: Callable[[str], bool]) -> bool:  # noqa: PLR0911  # one for each form
    """Whether the empty text fits, given which rules are known to allow it."""
    match form:
        case Literal(text):
            return not text
        case Chars():
            return False
        case Sequence(parts):
            return all(nullable(part, known) for part in parts)
        case Choice(options):
            return any(nullable(option, known) for option in options)
        case Repeat(inner, least):
            return least == 0 or nullable(inner, known)
        case Ref(name):
            return known(name)
        case Until(_, is_open):
            return is_open
        case Machine(_, ends, begun):
            return begun in ends


def _can_end(machine: Machine, known: Callable[[str], bool]) -> bool:
    """Whether one of the states that it may end in is reached."""
    reached, todo = {machine.begun}, [machine.begun]
    while todo:
        ways = machine.ways[todo.pop()]
        found = {to for read, to in ways if possible(read, known)} - reached
        reached |= found
        todo += found
    return not reached.isdisjoint(machine.ends)


def _settled(
    language: Language, holds: Callable[[Form, Callable[[str], bool]], bool]
) -> Callable[[Form], bool]:
    """What holds of forms, once it is settled of all rules: repeated until no more are found."""
    found: set[str] = set()
    size = -1
    while size < len(found):
        size = len(found)
        found |= {name for name, form in language.rules.items() if holds(form, found.__contains__)}
    return lambda form: holds(form, found.__contains__)


def _left_recursive(language: Language) -> bool:
    empty = _settled(language, nullable)
    first = {name: _first(form, empty) for name, form in language.rules.items()}
    for name, begins in first.items():
        reached, todo = set[str](), list(begins)
        while todo:
            each = todo.pop()
            if each not in reached:
                reached.add(each)
                todo += first[each]
        if name in reached:
            return True
    return False


def _first(form: Form, empty: Callable[[Form], bool]) -> set[str]:
    """The rules that the form may begin with."""
    if isinstance(form, Ref):
        return {form.name}
    if isinstance(form, Sequence):
        found: set[str] = set()
        for part in form.parts:
            found |= _first(part, empty)
            if not empty(part):
                break
        return found
    return (
        set() if isinstance(form, Until) else set().union(*(_first(each, empty) for each in children(form)))
    )
