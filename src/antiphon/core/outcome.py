"""What comes of a call that the server ran: the words for the model, and the facts for the client."""

from msgspec import Struct


class Printed(Struct, frozen=True, tag="printed"):
    """A program was run. `logs` is all that it printed, its traceback included."""

    logs: str


class Searched(Struct, frozen=True, tag="searched"):
    """The web was searched. `sources` are the URLs of what was found, in the order in which it is shown."""

    query: str
    sources: tuple[str, ...] = ()


class Opened(Struct, frozen=True, tag="opened"):
    """A page was opened. `url` is None if nobody knows which."""

    url: str | None


class Found(Struct, frozen=True, tag="found"):
    """A page was searched for a text."""

    url: str | None
    pattern: str


class Executed(Struct, frozen=True, tag="executed"):
    """A command was run. `exit_code` is None if its time was up."""

    stdout: str
    stderr: str
    exit_code: int | None


Facts = Printed | Searched | Opened | Found | Executed


class Outcome(Struct, frozen=True):
    """What the model reads, and what the client is shown of it. `failed`: the tool could not do it."""

    text: str
    facts: Facts | None = None
    failed: bool = False
