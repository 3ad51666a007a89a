"""The result of a call that the server ran: text for the model, and details for the client.

The output of a program is also streamed while it runs.
"""

from typing import Any, Literal, Protocol

from msgspec import Struct


class RemoteFailure(Struct, frozen=True, tag="remote_failure"):
    """A remote server could not be reached (`http`, with the status), or did not follow its protocol."""

    kind: Literal["protocol", "http"]
    code: int
    message: str


class FoundFunctions(Struct, frozen=True, tag="found_functions"):
    """Functions that a search has found: from the result on they can be called."""

    names: tuple[str, ...] = ()


class CitablePage(Struct, frozen=True):
    """A page that can be cited. `line` is the first of its lines that were shown."""

    url: str
    title: str
    line: int = 0


class ShownPages(Struct, frozen=True):
    """Pages that the model got under a `cursor`, by which it may cite their lines."""

    cursor: int
    sources: tuple[CitablePage, ...]


class ToolResult(Struct, frozen=True):
    """The text is for the model, the details are for presenters. `failed`: the tool could not do it.

    The details are a tagged struct of the tool's own, None if there are none. In a stored result of a tool
    that this server does not know, they are a dictionary.

    `shown` are the pages that can be cited. `media` are images, audio and files, as the tool returned them:
    the model gets those that it can take after the text, which lists all of them.
    """

    text: str
    details: Any = None
    failed: bool = False
    shown: ShownPages | None = None
    media: tuple[bytes, ...] = ()


class OutputCallback(Protocol):
    """A callback that gets the output of a program while it runs.

    It gets further standard output, or standard error. All that is streamed of a call is the beginning of the
    text that its details have in the end.
    """

    def __call__(self, stdout: str = "", stderr: str = "") -> None:
        """Take output. This must not block, and must not raise."""
        ...


def ignore_output(stdout: str = "", stderr: str = "") -> None:
    """An `OutputCallback` that does nothing."""
