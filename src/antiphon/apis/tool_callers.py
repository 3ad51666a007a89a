"""Who may call a tool of a request: the model itself, its programs, or both (`allowed_callers`).

Responses and Messages have other words for programs, and the same rules: see `programs.py` of each.
"""

from collections.abc import Callable

from msgspec import Struct

from antiphon.apis.request_object import RequestObject

CALLERS = "allowed_callers"
DIRECT = "direct"
LATER = "Programs can call the tools of 'tools' only, not those that a conversation adds."
"""Why programs cannot call a tool that comes in the middle of a conversation."""


class Callers(Struct, frozen=True):
    """Who may call a tool: the model itself, its programs, or both."""

    direct: bool = True
    programs: bool = False


ONLY_DIRECT = Callers()


def read_callers(tool: RequestObject, is_program: Callable[[str], bool], name: str) -> Callers:
    """Who may call a tool. `name` is what the API calls programs, for the message. Raises RequestError."""
    given = tool.value.get(CALLERS)
    if given is None:
        return ONLY_DIRECT
    if not isinstance(given, list) or not given or not all(_is_known(each, is_program) for each in given):
        raise tool.wrong(CALLERS, f"Use a list of '{DIRECT}', '{name}', or both.")
    return Callers(DIRECT in given, any(each != DIRECT for each in given))


def _is_known(caller: object, is_program: Callable[[str], bool]) -> bool:
    return isinstance(caller, str) and (caller == DIRECT or is_program(caller))
