"""What every tool of the server is: functions that models are offered, and sessions that run them.

A tool is known by its type, which is that of the Responses API. It works in sessions, one
for each answer: a session keeps what one call leaves for the next (variables, pages,
files), and is gone with the answer.
"""

from collections.abc import Container, Mapping
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from antiphon.core.hosts import Listing, Note
from antiphon.core.tool_result import OutputCallback, ToolResult, ignore_output
from antiphon.core.turn import Function


class WantedTool(Struct, frozen=True):
    """A tool of a request: its `settings`, their place `where` in the request, and the request's `owner`.

    `listing` is what a remote server said earlier in the conversation, `container` where programs ran in it
    last. `answer` is the id of the answer that
    a session works for, if its client gets to know one.
    """

    settings: Mapping[str, Any]
    where: str = "tools"
    owner: str = ""
    answer: str = ""
    listing: Listing | None = None
    container: str | None = None


class ToolOffer(Struct, frozen=True):
    """The functions of a tool that a model is offered. `notes` are about settings that have no effect.

    `listing` is there for the tools of a remote server, also if they cannot be listed. `settings` stand for
    those of the request, where they say less than the tool knows.
    """

    functions: tuple[Function, ...] = ()
    notes: tuple[Note, ...] = ()
    listing: Listing | None = None
    settings: Mapping[str, Any] | None = None


class Session(Protocol):
    """A tool at work for one answer. Its calls come one after the other.

    But those of functions that are `parallel` (see `Hosted`) begin, in the order in which the model wrote
    them, before those before them are done.
    """

    async def run(
        self, action: str, arguments: Mapping[str, Any], on_output: OutputCallback = ignore_output
    ) -> ToolResult:
        """Do what the model asks for; `arguments` are any JSON object that a model may write.

        `on_output` may be called on the event loop with what a program prints while it runs.
        What cannot be done is a result that failed, whose text tells the model what to do instead: nothing
        but cancellation is raised. It ends in bounded time, and its text is of bounded length.
        """
        ...

    async def recall(self, action: str, arguments: Mapping[str, Any], result: ToolResult) -> None:
        """Take up what an earlier session did, on a server that is gone: the next calls build on it.

        `arguments` and `result` are any that `run` may have had. What cannot be taken up is left out:
        nothing but cancellation is raised. It ends in bounded time.
        """
        ...

    async def close(self) -> None:
        """Free what it holds, if it is not freed already.

        It may be called in the middle of a call that was cancelled. What cannot be freed is logged: nothing
        but cancellation is raised.
        """
        ...


@runtime_checkable
class Checkable(Protocol):
    """A tool that can find out before it is used whether it works."""

    async def check(self) -> None:
        """Try it, when the server starts. Raises ToolError, with the remedy, if it can never be used.

        What may work later is a warning in the log. It ends in bounded time.
        """
        ...


@runtime_checkable
class LabelledTool(Protocol):
    """A tool of which the operator has some, known by their labels."""

    @property
    def labels(self) -> Container[str]:
        """Those that the operator has."""
        ...


class ServerTool(Protocol):
    """A tool that the server runs."""

    @property
    def type(self) -> str:
        """What clients ask for it by: `code_interpreter`, `web_search`, `shell`."""
        ...

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other types that clients know it by."""
        ...

    async def offer(self, wanted: WantedTool) -> ToolOffer:
        """What a model is offered of the tool as a request wants it.

        Each function is `hosted`, which says whether calls may run side by side, and be run again. Where a
        request may have several tools of this type, `Hosted.label` tells them apart. Nothing is offered if
        the settings keep the tool from the server. Raises RequestError for settings that it does not support,
        naming them, and ToolError. It ends in bounded time.
        """
        ...

    def open(self, wanted: WantedTool) -> Session:
        """Begin to work for an answer to a request that wants the tool so: it was offered so."""
        ...

    async def close(self) -> None:
        """Free what all sessions share, if it is not freed already. There are none any more.

        What cannot be freed is logged: nothing but cancellation is raised.
        """
        ...
