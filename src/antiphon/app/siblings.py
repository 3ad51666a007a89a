"""The processes of one server: how one of them asks all, and combines their answers.

A `Call` is a question that every process answers for itself. Whichever process a client reaches asks all, so
that the answer is that of the server. A server of one process asks itself.

To add a call: a `Call`, whose answers are combined where it is asked; it is one of the `CALLS` of
`http/process.py`.
"""

from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from uuid import uuid4

from msgspec import Struct

if TYPE_CHECKING:
    from antiphon.app.app import App

Given = TypeVar("Given")
Result = TypeVar("Result")

READ_SECONDS = 1.0
"""How long processes may take to answer what changes nothing. One that takes longer is left out."""
CHANGE_SECONDS = 60.0
"""How long they may take for a change."""


class Call(Struct, Generic[Given, Result], frozen=True):
    """What a process can be asked, with something of the type `takes`; it answers with the type `gives`."""

    name: str
    run: Callable[["App", Given], Awaitable[Result]]
    takes: Any
    gives: Any
    seconds: float = READ_SECONDS


class Siblings(Protocol):
    """The processes of a server. This one has the number `place` among `count`, from 0.

    `server` is an id of the server, which all of its processes have.
    """

    place: int
    count: int

    @property
    def server(self) -> str: ...

    async def ask(self, app: "App", call: Call[Given, Result], given: Given) -> list[Result]:
        """What all processes answer, this one included. Raises AntiphonError if one of them does."""
        ...


class Alone:
    """The only process of a server."""

    place = 0
    count = 1

    @cached_property
    def server(self) -> str:
        """The id of this server."""
        return uuid4().hex

    async def ask(self, app: "App", call: Call[Given, Result], given: Given) -> list[Result]:
        return [await call.run(app, given)]
