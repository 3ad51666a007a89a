"""How many characters the texts of a form have."""

from antiphon.constrain.form import Chars, Choice, Form, Literal, Machine, Repeat, Sequence


def length(form: Form) -> tuple[int, int | None]:
    """The least and the most; None: there is no bound."""
    if isinstance(form, Literal):
        return len(form.text), len(form.text)
    if isinstance(form, Chars):
        return 1, 1
    if isinstance(form, Repeat):
        least, most = length(form.form)
        bounded = most is not None and form.most is not None
        return least * form.least, (most or 0) * (form.most or 0) if bounded else None
    if isinstance(form, Sequence | Choice):
        parts = [length(part) for part in (form.parts if isinstance(form, Sequence) else form.options)]
        highs = [most for _, most in parts]
        lows = [least for least, _ in parts]
        fold_low, fold_high = (sum, sum) if isinstance(form, Sequence) else (min, max)
        known = [high for high in highs if high is not None]
        return fold_low(lows or [0]), fold_high(known or [0]) if len(known) == len(highs) else None
    return _of_machine(form) if isinstance(form, Machine) else (0, None)


def _of_machine(machine: Machine) -> tuple[int, int | None]:
    """The same of a machine that reads a character in each step."""
    count, read = 0, {machine.begun}
    shortest, longest = None, 0
    while read and count <= len(machine.ways):
        if read & machine.ends:
            shortest, longest = count if shortest is None else shortest, count
        read = {to for state in read for _, to in machine.ways[state]}
        count += 1
    return shortest or 0, None if read else longest
