"""The protocol of server tools: functions that models are offered, and sessions that run them.

A tool is identified by its type, which is that of the Responses API. It works in sessions, one for each
answer: a session keeps the state between calls (variables, pages, files), and ends with the answer.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from antiphon.core.hosts import Listing, Note
from antiphon.core.programs import CallOutcome
from antiphon.core.tool_result import OutputCallback, ToolResult, ignore_output
from antiphon.core.turn import Function


class RequestedTool(Struct, frozen=True):
    """A tool of a request: its `settings`, their place `where` in the request, and the request's `owner`.

    `listing` is that of a remote server earlier in the conversation, `container` the last one in which
    programs ran in it. `answer` is the id of the answer of a session, if its client gets to know it.
    """

    settings: Mapping[str, Any]
    where: str = "tools"
    owner: str = ""
    answer: str = ""
    listing: Listing | None = None
    container: str | None = None


class ToolOffer(Struct, frozen=True):
    """The functions of a tool that a model is offered. `notes` are about settings without effect.

    `listing` is set for the tools of a remote server, even if they could not be listed. `settings` replace
    those of the request, if the tool knows more than these.
    """

    functions: tuple[Function, ...] = ()
    notes: tuple[Note, ...] = ()
    listing: Listing | None = None
    settings: Mapping[str, Any] | None = None


class Session(Protocol):
    """The use of a tool for one answer. Its calls run one after the other.

    Calls of functions that are `parallel` (see `Hosted`) begin in the order in which the model wrote them,
    before the earlier ones have ended.
    """

    async def run(
        self, action: str, arguments: Mapping[str, Any], on_output: OutputCallback = ignore_output
    ) -> ToolResult:
        """Run a call of the model; `arguments` are any JSON object.

        `on_output` may be called on the event loop with the output of a program while it runs. A failure is
        a result with `failed`, whose text tells the model the remedy: nothing but cancellation is raised.
        The call ends in bounded time, and its text is of bounded length.
        """
        ...

    async def recall(self, action: str, arguments: Mapping[str, Any], result: ToolResult) -> None:
        """Restore the state after a call of an earlier session, whose server has crashed, for the next calls.

        `arguments` and `result` are any that `run` may have had. State that cannot be restored is left out:
        nothing but cancellation is raised. It ends in bounded time.
        """
        ...

    async def close(self) -> None:
        """Free its resources, unless they are freed already.

        It may be called in the middle of a call that was cancelled. Failures are logged: nothing but
        cancellation is raised.
        """
        ...


@runtime_checkable
class Checkable(Protocol):
    """A tool that can check before its first use whether it works."""

    async def check(self) -> None:
        """Check it when the server starts. Raises ToolError, with the remedy, if it can never be used.

        A problem that may be temporary is a warning in the log. It ends in bounded time.
        """
        ...


@runtime_checkable
class LabelledTool(Protocol):
    """A tool of which the operator has several, identified by labels."""

    @property
    def labels(self) -> Container[str]:
        """Those that the operator has."""
        ...


class ProgramCall(Struct, frozen=True):
    """A call that a program makes, of a function by the model's name of it; `arguments` are JSON."""

    name: str
    arguments: str


class Program(Protocol):
    """A program that calls functions. It runs until it needs results, and goes on with them.

    Two of one code, seed and time make the same calls if they get the same outcomes.
    """

    async def advance(self, outcomes: Sequence[CallOutcome]) -> Sequence[ProgramCall] | ToolResult:
        """Go on with the outcomes of the calls that were returned last, at first with none.

        Returns the calls that it needs now, at least one, or its result: one that `failed` was stopped. It
        ends in bounded time. Nothing but cancellation is raised.
        """
        ...

    async def close(self) -> None:
        """Free its resources. Nothing but cancellation is raised."""
        ...


@runtime_checkable
class ProgramTool(Protocol):
    """A tool that runs programs, which call functions."""

    def begin(self, code: str, functions: Sequence[Function], seed: str, clock: int) -> Program:
        """A program that may call these functions. Its time stands still at `clock`, in seconds."""
        ...


class ServerTool(Protocol):
    """A tool that the server runs."""

    @property
    def type(self) -> str:
        """The type that clients request: `code_interpreter`, `web_search`, `shell`."""
        ...

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other types that clients may request."""
        ...

    async def offer(self, requested: RequestedTool) -> ToolOffer:
        """The functions that a model is offered, for the settings of a request.

        Each function is `hosted`, which says whether calls may run in parallel, and be run again. If a
        request may have several tools of this type, `Hosted.label` distinguishes them. Nothing is offered if
        the tool is not for the server, by its settings. Raises RequestError, naming the setting, for
        unsupported ones, and ToolError. It ends in bounded time.
        """
        ...

    def open(self, requested: RequestedTool) -> Session:
        """Open a session for one answer. `requested` is what `offer` has accepted, with functions."""
        ...

    async def close(self) -> None:
        """Free the shared resources of all sessions, which have ended.

        Failures are logged: nothing but cancellation is raised.
        """
        ...
