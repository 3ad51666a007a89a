"""The choice of tools of a request: which calls the model may write, and whether it has to write one."""

from msgspec.structs import replace

from antiphon.apis.request_object import RequestObject, object_at
from antiphon.apis.responses.tools import CUSTOM, FUNCTION, Toolbox
from antiphon.core.errors import RequestError
from antiphon.core.programs import PROGRAMS
from antiphon.core.turn import CallMode, Placement, ToolChoice

_MODES = {calling.value: calling for calling in CallMode}


def tool_choice(choice: object, tools: Toolbox, parallel: bool | None) -> ToolChoice:
    """Which calls the answer may have, and whether it must have one. Raises RequestError."""
    requested = _choice(choice, tools)
    if requested.calling is CallMode.REQUIRED and not tools:
        message = "'tool_choice' requires a call, but 'tools' has none that the model can call."
        raise RequestError(message, param="tool_choice")
    return replace(requested, parallel=parallel is not False)


def _choice(choice: object, tools: Toolbox) -> ToolChoice:
    if choice is None:
        return ToolChoice()
    if isinstance(choice, str):
        if choice not in _MODES:
            known = "'auto', 'none', 'required', or an object"
            raise RequestError(f"Unknown tool choice '{choice}'. Use {known}.", param="tool_choice")
        return ToolChoice(_MODES[choice])
    reference = object_at(choice, "tool_choice")
    if reference.text("type") != "allowed_tools":
        names = _allowed(reference, tools)
        if not any(map(tools.offers, names)):
            raise reference.wrong("name", f"Only programs may call it. Use {{'type': '{PROGRAMS}'}}.")
        if not any(tools.find(name).function.placement is not Placement.SEARCH for name in names):
            message = (
                "The model has not found it yet. Let it search, or leave out 'defer_loading' of the tool."
            )
            raise reference.wrong("name", message)
        return ToolChoice(CallMode.REQUIRED, names, named=True)
    mode = reference.text_or_none("mode") or CallMode.AUTO.value
    if mode not in _MODES:
        raise reference.wrong("mode", "Use 'auto' or 'required'.")
    allowed = reference.objects("tools")
    if not allowed:
        raise reference.wrong("tools", "Name at least one tool.")
    names = frozenset[str]().union(*(_allowed(tool, tools) for tool in allowed))
    if not any(map(tools.offers, names)):
        raise reference.wrong("tools", f"Only programs may call these. Add {{'type': '{PROGRAMS}'}}.")
    return ToolChoice(_MODES[mode], names)


def _allowed(reference: RequestObject, tools: Toolbox) -> frozenset[str]:
    """The flat names of a tool that a choice allows: a server tool may have several."""
    type_ = reference.text("type")
    if type_ in (FUNCTION, CUSTOM):
        return frozenset({tools.named(reference)})
    names = frozenset(tools.named_of(reference, type_))
    if not names:
        message = f"Tools of type '{type_}' are not offered to the model. Use one of those that are."
        raise reference.wrong("type", message)
    return names
