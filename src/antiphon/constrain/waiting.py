"""A language that holds from some texts on, its triggers, as one of all text: what is before them is free."""

from antiphon.constrain.form import Form, Language, Until, choice, sequence
from antiphon.constrain.matcher import residual


def waiting(language: Language, triggers: tuple[str, ...]) -> Language:
    """Free text up to a trigger, and from there on the language, which describes the trigger, too."""
    return Language(_until(language, triggers), language.rules)


def awake(language: Language, triggers: tuple[str, ...]) -> Language:
    """The same from the first character on that may begin a trigger."""
    until = _until(language, triggers)
    ways: list[Form] = [
        sequence(letter, Until(until.on, until.open, begun=letter)) for letter in first_letters(triggers)
    ]
    return Language(choice(*ways), language.rules)


def first_letters(triggers: tuple[str, ...]) -> tuple[str, ...]:
    """The characters that a trigger may begin with."""
    return tuple(sorted({trigger[0] for trigger in triggers}))


def _until(language: Language, triggers: tuple[str, ...]) -> Until:
    return Until(tuple((trigger, residual(language, trigger).start) for trigger in triggers), open=True)
