"""The reasoning efforts that a chat template takes, and the nearest of them for each effort of the APIs.

Templates know two or three words, and differ in which; some refuse all others, and some read them as their
default. So each word is rendered once, when the template is compiled. A word that raises is not taken. Nor is
one that is rendered like a word that no template knows, if the template knows others: but `medium`, OpenAI's
default, is left to a template that does not refuse it, since that is then its default, too.
"""

from collections.abc import Callable, Mapping

from antiphon.core.errors import RequestError

SCALE = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""The efforts of the APIs, the least first."""

OFF = ("none", "no_think")
"""Words for no reasoning, in the templates that have one."""

_STRANGER = "strangest"


def nearest_efforts(render: Callable[[Mapping[str, str]], str]) -> dict[str, str]:
    """Effort → the nearest that the template takes, without those that it takes itself.

    `render` gives a prompt for these variables, or raises `RequestError`.
    """

    def rendered(word: str) -> str | None:
        try:
            return render({"reasoning_effort": word})
        except RequestError:
            return None

    texts = {word: rendered(word) for word in dict.fromkeys((*OFF, *SCALE))}
    allowed = [word for word, text in texts.items() if text is not None]
    strange = rendered(_STRANGER)
    if strange is not None:
        # Also where the template writes the word itself: then it takes any.
        distinct = [word for word in allowed if texts[word] != strange or _STRANGER in strange]
        allowed = [word for word in allowed if word in distinct or word == "medium"] if distinct else []
    levels = [word for word in SCALE[1:] if word in allowed]
    off = [word for word in OFF if word in allowed]
    if not levels + off:
        return {}
    nearest = {word: _nearest(word, levels) if levels else off[0] for word in SCALE[1:]}
    nearest["none"] = off[0] if off else levels[0]
    return {word: to for word, to in nearest.items() if word != to}


def _nearest(word: str, levels: list[str]) -> str:
    """The nearest level; of two, the higher one: nobody gets less than half of what was asked for."""
    place = SCALE.index(word)
    return min(reversed(levels), key=lambda level: abs(SCALE.index(level) - place))
