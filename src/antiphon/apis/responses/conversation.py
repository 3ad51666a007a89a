"""Stored items → the conversation that the model is shown.

What a model said, thought and called is shown as it was; so are calls that
a server ran, if they were calls of functions, of code or of a shell: under the
name that the model knows such a tool by, if it is offered one. Items that have no
words (screenshots, images) are not shown, and neither are web searches: the item
does not hold what was found. What stands before a compaction is not shown either,
but for what was said to the model.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from antiphon.apis.custom_tools import to_arguments
from antiphon.apis.hosted import CODE_INTERPRETER, SHELL
from antiphon.apis.responses.given import Given, json_text
from antiphon.apis.responses.output.actions import shell_arguments
from antiphon.apis.responses.parts import read_parts
from antiphon.apis.responses.tools import NO_TOOLS, Toolbox, flat_name
from antiphon.core.errors import RequestError
from antiphon.core.items import FunctionCall, FunctionOutput, Item, Message, Reasoning, Role, Status, TextPart
from antiphon.core.turn import Function

SUMMARY_INTRODUCTION = "This is a summary of our conversation so far:\n\n"
"""Stands before the summary that a compaction left."""

Unseal = Callable[[str], str | None]
"""The text that was sealed, None if it was not sealed here, or for someone else."""

_CALLS = frozenset({"function_call", "custom_tool_call"})
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
_ROLES = {role.value: role for role in Role}


class Reading(NamedTuple):
    """What an item is read with: how sealed text is opened, and the tools that the model is offered."""

    unseal: Unseal
    tools: Toolbox

    def offered(self, type_: str) -> Function:
        """The function that the model knows a tool of the server by; without one, what others call it."""
        return next(iter(self.tools.hosted(type_)), Function(type_))


Reader = Callable[[Given, Reading], Iterator[Item]]


class Summary(Message, frozen=True):
    """What a compaction left of what was said before it."""


def to_core(items: Iterable[Given], unseal: Unseal, tools: Toolbox = NO_TOOLS) -> tuple[Item, ...]:
    """What a model with these tools is shown of the items. Raises RequestError, naming the item."""
    reading = Reading(unseal, tools)
    shown: list[Item] = []
    for item in items:
        type_ = item.value["type"]
        if type_ == "compaction":
            shown = summed_up(shown, _opened(item, item.text("encrypted_content"), unseal))
        elif type_ in _READERS:
            shown += _READERS[type_](item, reading)
    return tuple(shown)


def summed_up(items: Sequence[Item], summary: str) -> list[Item]:
    """A conversation with the summary of it in the place of all but what was said to the model.

    It stands where the last of that stood: what is said behind it may still want an answer.
    """
    stays = [_said_to_model(item) for item in items]
    place = len(items) if all(stays) else len(items) - stays[::-1].index(False)
    told = Summary(Role.USER, (TextPart(SUMMARY_INTRODUCTION + summary),))
    return [*(item for item in items[:place] if _said_to_model(item)), told, *items[place:]]


def _said_to_model(item: Item) -> bool:
    """A compaction keeps it word for word. An earlier summary is part of the new one."""
    return isinstance(item, Message) and item.role is not Role.ASSISTANT and not isinstance(item, Summary)


def check_outputs(history: Iterable[Given], items: Iterable[Given]) -> None:
    """Every output among the items answers a call. Raises RequestError, naming the output that does not."""
    calls = {item.value["call_id"] for item in history if item.value["type"] in _CALLS}
    for item in items:
        if item.value["type"] in _CALLS:
            calls.add(item.text("call_id"))
        elif item.value["type"] in _OUTPUTS and item.text("call_id") not in calls:
            message = f"No tool call found for the output with call_id '{item.text('call_id')}'."
            raise RequestError(message, param=item.place("call_id"))


def _message(item: Given, _: Reading) -> Iterator[Item]:
    role = item.text("role")
    if role not in _ROLES:
        raise item.wrong("role", f"Use one of: {', '.join(_ROLES)}.")
    whole = item.value.get("status", "completed") == "completed"
    status = Status.COMPLETED if whole else Status.INCOMPLETE
    phase = item.text_or_none("phase")
    yield Message(_ROLES[role], read_parts(item, "content"), phase=phase, status=status)


def _reasoning(item: Given, reading: Reading) -> Iterator[Item]:
    """What was thought: as it was shown, or else as it was sealed."""
    text = "".join(part.text("text") for part in item.objects("content"))
    sealed = item.text_or_none("encrypted_content")
    if not text and sealed is not None:
        text = _opened(item, sealed, reading.unseal)
    if not text:
        text = "\n\n".join(part.text("text") for part in item.objects("summary"))
    if text:
        yield Reasoning(text)


def _opened(item: Given, sealed: str, unseal: Unseal) -> str:
    text = unseal(sealed)
    if text is None:
        message = "This server did not make it, or not for this API key. Leave the item out."
        raise item.wrong("encrypted_content", message)
    return text


def _function_call(item: Given, _: Reading) -> Iterator[Item]:
    name = flat_name(item.text_or_none("namespace"), item.named("name"))
    yield FunctionCall(item.text("call_id"), name, item.text("arguments"))


def _custom_call(item: Given, _: Reading) -> Iterator[Item]:
    name = flat_name(item.text_or_none("namespace"), item.named("name"))
    yield FunctionCall(item.text("call_id"), name, to_arguments(item.text("input")))


def _output(item: Given, _: Reading) -> Iterator[Item]:
    yield FunctionOutput(item.text("call_id"), read_parts(item, "output"))


# What servers ran


def _mcp_call(item: Given, _: Reading) -> Iterator[Item]:
    call_id = item.text("id")
    yield FunctionCall(call_id, item.named("name"), json_text(item.value.get("arguments")))
    answer = item.value.get("output") or item.value.get("error")
    if answer:
        yield _answer(call_id, json_text(answer))


def _code_call(item: Given, reading: Reading) -> Iterator[Item]:
    call_id, name = item.text("id"), reading.offered(CODE_INTERPRETER).name
    yield FunctionCall(call_id, name, json_text({"code": item.text_or_none("code") or ""}))
    logs = [output.text_or_none("logs") or "" for output in item.objects("outputs")]
    yield _answer(call_id, "\n".join(logs))


def _shell_call(item: Given, reading: Reading) -> Iterator[Item]:
    function, action = reading.offered(SHELL), item.value.get("action")
    if function.hosted and isinstance(action, dict):
        action = shell_arguments(action, function.parameters.get("properties", {}))
    yield FunctionCall(item.text("call_id"), function.name, json_text(action))


def _client_call(name: str, field: str) -> Reader:
    def read(item: Given, _: Reading) -> Iterator[Item]:
        yield FunctionCall(item.text("call_id"), name, json_text(item.value.get(field)))

    return read


def _shell_output(item: Given, _: Reading) -> Iterator[Item]:
    call_id = item.text_or_none("call_id") or item.text("id")
    yield _answer(call_id, json_text(item.value.get("output") or ""))


def _answer(call_id: str, text: str) -> FunctionOutput:
    return FunctionOutput(call_id, (TextPart(text),))


_READERS: dict[str, Reader] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "function_call_output": _output,
    "custom_tool_call": _custom_call,
    "custom_tool_call_output": _output,
    "mcp_call": _mcp_call,
    "code_interpreter_call": _code_call,
    "local_shell_call": _client_call("local_shell", "action"),
    "local_shell_call_output": _shell_output,
    "shell_call": _shell_call,
    "shell_call_output": _shell_output,
    "apply_patch_call": _client_call("apply_patch", "operation"),
    "apply_patch_call_output": _shell_output,
}
