"""The tools of a request, and which of them an answer may or must call."""

from collections.abc import Iterator

from msgspec import Struct

from antiphon.apis.chat.schema import (
    AllowedTools,
    ChatOptions,
    GrammarInput,
    NamedTool,
    RequestCustom,
    RequestFunction,
    RequestTool,
    ToolChoiceObject,
    ToolReference,
)
from antiphon.apis.custom_tools import TextForm, as_function
from antiphon.core.constraint import GrammarFormat, Regex
from antiphon.core.errors import RequestError
from antiphon.core.turn import Calling, Function, ToolChoice

_MODES = {calling.value: calling for calling in Calling}
_UNKNOWN_CHOICE = (
    "Unknown tool choice. Use 'none', 'auto', 'required', "
    "or an object of type 'function', 'custom' or 'allowed_tools'."
)


class Tools(Struct, frozen=True):
    """What may be called. `custom` names custom tools; with `legacy` the request knows functions only."""

    functions: tuple[Function, ...]
    choice: ToolChoice
    custom: frozenset[str] = frozenset()
    legacy: bool = False


def tools_of(request: ChatOptions) -> Tools:
    """The request's tools and its tool choice. Raises RequestError."""
    if request.functions is not None or request.function_call is not None:
        return _legacy(request)
    functions = tuple(_function(tool, f"tools[{index}]") for index, tool in enumerate(request.tools or ()))
    _refuse_duplicates(functions, "tools[{}].function.name")
    names = frozenset(function.name for function in functions)
    choice = _choice(request.tool_choice, names)
    if request.parallel_tool_calls is False:
        choice = ToolChoice(choice.calling, choice.names, parallel=False)
    custom = frozenset(
        tool.custom.name for tool in request.tools or () if tool.custom and tool.type == "custom"
    )
    return Tools(functions, choice, custom)


def _legacy(request: ChatOptions) -> Tools:
    """`functions` and `function_call`: tools as they were when an answer had one call at most."""
    for name in ("tools", "tool_choice"):
        if getattr(request, name) is not None:
            message = (
                f"'{name}' and the older 'functions' and 'function_call' exclude each other. Use '{name}'."
            )
            raise RequestError(message, param=name)
    functions = tuple(
        _described(function, f"functions[{index}]") for index, function in enumerate(request.functions or ())
    )
    _refuse_duplicates(functions, "functions[{}].name")
    names = frozenset(function.name for function in functions)
    match request.function_call:
        case NamedTool(name=name):
            wanted = ToolChoice(Calling.REQUIRED, frozenset({_known(name, names, "function_call.name")}))
        case None | "auto":
            wanted = ToolChoice()
        case "none":
            wanted = ToolChoice(Calling.NONE)
        case _:
            message = "Unknown function call. Use 'none', 'auto' or an object with a 'name'."
            raise RequestError(message, param="function_call")
    return Tools(functions, ToolChoice(wanted.calling, wanted.names, parallel=False), legacy=True)


def _function(tool: RequestTool, where: str) -> Function:
    match tool:
        case RequestTool(type="function", function=RequestFunction() as function):
            return _described(function, f"{where}.function")
        case RequestTool(type="custom", custom=RequestCustom() as custom):
            return as_function(custom.name, custom.description, _form(custom), f"{where}.custom.format")
        case RequestTool(type="function" | "custom"):
            param = f"{where}.{tool.type}"
            raise RequestError(f"Missing required parameter: '{param}'.", param=param)
    message = f"Tools of type '{tool.type}' are not supported. Use 'function' or 'custom'."
    raise RequestError(message, param=f"{where}.type")


def _described(function: RequestFunction, where: str) -> Function:
    source = f"{where}.parameters"
    return Function(function.name, function.description, function.parameters or {}, function.strict, source)


def _form(custom: RequestCustom) -> TextForm | None:
    match custom.format:
        case GrammarInput(grammar=grammar) if grammar.syntax == "regex":
            return Regex(grammar.definition)
        case GrammarInput(grammar=grammar):
            return GrammarFormat(grammar.definition, grammar.syntax)
    return None


def _refuse_duplicates(functions: tuple[Function, ...], where: str) -> None:
    seen: set[str] = set()
    for index, function in enumerate(functions):
        if function.name in seen:
            message = f"There are two tools with the name '{function.name}'. Give each its own."
            raise RequestError(message, param=where.format(index))
        seen.add(function.name)


def _choice(asked: str | ToolChoiceObject | None, names: frozenset[str]) -> ToolChoice:
    """Which calls are wanted of the tools with these names."""
    match asked:
        case None:
            return ToolChoice()
        case "none" | "auto":
            return ToolChoice(_MODES[asked])
        case str() if asked != "required":
            raise RequestError(_UNKNOWN_CHOICE, param="tool_choice")
    if not names:
        message = "'tool_choice' is only allowed when 'tools' are specified."
        raise RequestError(message, param="tool_choice")
    match asked:
        case ToolChoiceObject(type="function", function=NamedTool(name=name)):
            return ToolChoice(Calling.REQUIRED, frozenset({_known(name, names, "tool_choice.function.name")}))
        case ToolChoiceObject(type="custom", custom=NamedTool(name=name)):
            return ToolChoice(Calling.REQUIRED, frozenset({_known(name, names, "tool_choice.custom.name")}))
        case ToolChoiceObject(type="allowed_tools", allowed_tools=AllowedTools() as allowed):
            return ToolChoice(_MODES[allowed.mode], frozenset(_allowed(allowed, names)))
        case ToolChoiceObject(type="function" | "custom" | "allowed_tools"):
            param = f"tool_choice.{asked.type}"
            raise RequestError(f"Missing required parameter: '{param}'.", param=param)
        case ToolChoiceObject():
            raise RequestError(_UNKNOWN_CHOICE, param="tool_choice.type")
    return ToolChoice(Calling.REQUIRED)


def _allowed(allowed: AllowedTools, names: frozenset[str]) -> Iterator[str]:
    for index, tool in enumerate(allowed.tools):
        where = f"tool_choice.allowed_tools.tools[{index}]"
        match tool:
            case ToolReference(function=NamedTool(name=name)) | ToolReference(custom=NamedTool(name=name)):
                yield _known(name, names, where)
            case _:
                message = (
                    f"'{where}' names no tool. Use an object of type 'function' or 'custom' with a 'name'."
                )
                raise RequestError(message, param=where)


def _known(name: str, names: frozenset[str], param: str) -> str:
    if name not in names:
        raise RequestError(f"There is no tool with the name '{name}' in the request.", param=param)
    return name
