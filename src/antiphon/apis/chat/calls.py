"""How a call is shown: as a function's, as a custom tool's, or in OpenAI's older form with one call.

A stream shows the opening of a call, then its text in pieces; a full answer shows it whole. An encoder does
both.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from antiphon.apis.chat.resource import (
    AnswerMessage,
    CustomFragment,
    Delta,
    FunctionFragment,
    ToolCallFragment,
)
from antiphon.apis.custom_tools import InputReader, to_input
from antiphon.apis.envelope import PresentationOptions
from antiphon.core.events import CallStarted
from antiphon.core.items import FunctionCall


class CallEncoder(Protocol):
    """Encodes one call, number `index` of its answer."""

    @staticmethod
    def opening(index: int, call: CallStarted) -> Delta:
        """Id, type and name, which are sent once."""
        ...

    @staticmethod
    def more(index: int, text: str) -> Delta:
        """A piece of its text."""
        ...

    @staticmethod
    def reader() -> Callable[[str], str]:
        """A function from a piece of the arguments to the text to show for it."""
        ...


class FunctionEncoder:
    """A function's call: its arguments are JSON."""

    @staticmethod
    def opening(index: int, call: CallStarted) -> Delta:
        function = FunctionFragment(call.name, "")
        return _one(ToolCallFragment(index=index, id=call.call_id, type="function", function=function))

    @staticmethod
    def more(index: int, text: str) -> Delta:
        return _one(ToolCallFragment(index=index, function=FunctionFragment(arguments=text)))

    @staticmethod
    def reader() -> Callable[[str], str]:
        return str


class CustomEncoder:
    """A custom tool's call: its input is text."""

    @staticmethod
    def opening(index: int, call: CallStarted) -> Delta:
        custom = CustomFragment(call.name, "")
        return _one(ToolCallFragment(index=index, id=call.call_id, type="custom", custom=custom))

    @staticmethod
    def more(index: int, text: str) -> Delta:
        return _one(ToolCallFragment(index=index, custom=CustomFragment(input=text)))

    @staticmethod
    def reader() -> Callable[[str], str]:
        return InputReader().read


class LegacyEncoder:
    """Encodes the call of an answer to a request with `functions`, which has at most one."""

    @staticmethod
    def opening(index: int, call: CallStarted) -> Delta:
        return Delta(function_call=FunctionFragment(call.name, ""))

    @staticmethod
    def more(index: int, text: str) -> Delta:
        return Delta(function_call=FunctionFragment(arguments=text))

    @staticmethod
    def reader() -> Callable[[str], str]:
        return str


def encoder_of(name: str, presentation: PresentationOptions) -> type[CallEncoder]:
    """How the calls of this tool are streamed."""
    if presentation.legacy:
        return LegacyEncoder
    return CustomEncoder if name in presentation.custom else FunctionEncoder


def reason_shown(reason: str, presentation: PresentationOptions) -> str:
    """The finish reason, as the request names it."""
    return "function_call" if presentation.legacy and reason == "tool_calls" else reason


def add_calls(
    message: AnswerMessage, calls: Sequence[FunctionCall], presentation: PresentationOptions
) -> None:
    """Add the call to the message of a full answer."""
    if presentation.legacy:
        for call in calls[:1]:
            message.function_call = FunctionFragment(call.name, call.arguments)
    elif calls:
        message.tool_calls = [_whole(call, presentation) for call in calls]


def _whole(call: FunctionCall, presentation: PresentationOptions) -> ToolCallFragment:
    if call.name in presentation.custom:
        custom = CustomFragment(call.name, to_input(call.arguments))
        return ToolCallFragment(id=call.call_id, type="custom", custom=custom)
    function = FunctionFragment(call.name, call.arguments)
    return ToolCallFragment(id=call.call_id, type="function", function=function)


def _one(fragment: ToolCallFragment) -> Delta:
    return Delta(tool_calls=(fragment,))
