"""The groups of options in the help of `antiphon serve`, named where an option is declared.

An option has a group in its type: `Annotated[int, NETWORK]`. Those of an engine are in `ENGINE`, those of a
tool in `TOOLS`, unless they name another. An option whose mark begins with `COMMON` is also in the short help
(`--help`); `--help-all` has all of them, by group.

To add a group of options: a line here, and the options that are in it.
"""

from cyclopts import Group, Parameter

COMMON_TITLE = "The options that most servers need"
"""The title of the only group of the short help."""

_COMMON = Group(COMMON_TITLE, sort_key=0)


def _group(title: str, place: int) -> tuple[Parameter, Parameter]:
    """The marks of options in a group, and of those that are also in the short help."""
    group = Group(title, sort_key=place)
    return Parameter(group=group), Parameter(group=(group, _COMMON))


MODEL, COMMON_MODEL = _group("Model", 1)
ENGINE, COMMON_ENGINE = _group("Engine", 2)
NETWORK, COMMON_NETWORK = _group("Network", 3)
KEYS, COMMON_KEYS = _group("Keys", 4)
TOOLS, _ = _group("Tools", 5)
MEDIA, _ = _group("Images and files", 6)
MODERATION, _ = _group("Moderation", 7)
DECISIONS, _ = _group("Decisions", 8)
STORE, COMMON_STORE = _group("Store", 9)
LIMITS, _ = _group("Limits", 10)
ANSWERS, _ = _group("Answers and streams", 11)
LOGS, COMMON_LOGS = _group("Logs", 12)
CONFIGURATION, COMMON_CONFIGURATION = _group("Configuration", 13)
