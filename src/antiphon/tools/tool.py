"""What every tool of the server is: functions that models are offered, and somebody who runs them.

A tool is known by its type, which is that of the Responses API. It works in
sessions, one for each answer: a session keeps what one call leaves for the
next (variables, pages, files), and is gone with the answer.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from antiphon.core.outcome import Outcome
from antiphon.core.turn import Function


class Session(Protocol):
    """A tool at work for one answer. Its calls come one after the other."""

    async def run(self, action: str, arguments: Mapping[str, Any]) -> Outcome:
        """Do what the model asks for; `arguments` are any JSON object that a model may write.

        What cannot be done is an outcome that failed, and says to the model what to do instead: nothing
        but cancellation is raised. It ends in bounded time, and its text is of bounded length.
        """
        ...

    async def recall(self, action: str, arguments: Mapping[str, Any], outcome: Outcome) -> None:
        """Take up what an earlier session did, on a server that is gone: the next calls build on it.

        `arguments` and `outcome` are any that `run` may have had. What cannot be taken up is left out:
        nothing but cancellation is raised. It ends in bounded time.
        """
        ...

    async def close(self) -> None:
        """Free what it holds, if it is not freed already.

        It may be called in the middle of a call that was cancelled. What cannot be freed is logged: nothing
        but cancellation is raised.
        """
        ...


class ServerTool(Protocol):
    """A tool that the server runs."""

    @property
    def type(self) -> str:
        """What clients ask for it by: `code_interpreter`, `web_search`, `shell`."""
        ...

    @property
    def functions(self) -> tuple[Function, ...]:
        """What a model is offered that was not trained with tools of its own; each is `hosted`."""
        ...

    def check(self, settings: Mapping[str, Any], where: str) -> None:
        """Raise RequestError for settings that it cannot honour; `where` is their place in the request."""
        ...

    def open(self, settings: Mapping[str, Any]) -> Session:
        """Begin to work for an answer. `settings` is the tool as the request gave it, and was checked."""
        ...

    async def close(self) -> None:
        """Free what all sessions share, if it is not freed already. There are none any more.

        What cannot be freed is logged: nothing but cancellation is raised.
        """
        ...
