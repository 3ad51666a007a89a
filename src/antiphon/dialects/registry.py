"""All dialects, by name. A family adds its module beside this one, and its name here."""

from antiphon.core.errors import EngineError
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.hermes import HERMES
from antiphon.dialects.plain import PLAIN
from antiphon.dialects.think import THINK

DIALECTS: tuple[Dialect, ...] = (HERMES, PLAIN, THINK)

BY_NAME = {name: dialect for dialect in DIALECTS for name in dialect.names}


def find(name: str) -> Dialect:
    """The dialect of that name. Raises EngineError, which lists the names there are."""
    if name not in BY_NAME:
        raise EngineError(f"There is no dialect '{name}'. Use one of: {', '.join(sorted(BY_NAME))}.")
    return BY_NAME[name]
