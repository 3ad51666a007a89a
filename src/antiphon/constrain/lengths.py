"""How many characters the texts of a form have."""

from antiphon.constrain.form import Chars, Choice, Form, Literal, Repeat, Sequence


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
    return 0, None
