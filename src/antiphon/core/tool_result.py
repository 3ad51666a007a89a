"""The result of a call that the server ran: text for the model, and details for the client.

The output of a program is also streamed while it runs.
"""

from typing import Any, Literal, Protocol

from msgspec import Struct

from antiphon.core.file_search import FileResult


class WrittenFile(Struct, frozen=True):
    """A file that a program has left in its container, at a path in the workspace; `size` is in bytes."""

    id: str
    path: str
    size: int


class ProgramDetails(Struct, frozen=True, tag="printed"):
    """A program was run. `logs` is all of its output, its traceback included.

    If it ran in a container, `container_id` is that one's, and `files` are those that it has written. The
    media of the result are its figures, in PNG.
    """

    logs: str
    container_id: str = ""
    files: tuple[WrittenFile, ...] = ()


class SearchDetails(Struct, frozen=True, tag="searched"):
    """The web was searched. `sources` are the URLs of the results, in the order in which they are shown.

    `titles` are those of the same pages; old records have none.
    """

    query: str
    sources: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()


class OpenDetails(Struct, frozen=True, tag="opened"):
    """A page was opened. `url` is None if that is unknown."""

    url: str | None


class FindDetails(Struct, frozen=True, tag="found"):
    """A page was searched for a text."""

    url: str | None
    pattern: str


class CommandDetails(Struct, frozen=True, tag="executed"):
    """A command was run. `exit_code` is None if it timed out."""

    stdout: str
    stderr: str
    exit_code: int | None


class FileSearchDetails(Struct, frozen=True, tag="files_searched"):
    """Vector stores were searched: the search of this `number` in the answer, counted from 0."""

    queries: tuple[str, ...]
    number: int
    results: tuple[FileResult, ...]


class RemoteFailure(Struct, frozen=True, tag="remote_failure"):
    """A remote server could not be reached (`http`, with the status), or did not follow its protocol."""

    kind: Literal["protocol", "http"]
    code: int
    message: str


class OtherDetails(Struct, frozen=True, tag="other"):
    """Details of any other tool for its presenter: values that JSON can hold."""

    fields: dict[str, Any]


ToolResultDetails = (
    ProgramDetails
    | SearchDetails
    | OpenDetails
    | FindDetails
    | CommandDetails
    | FileSearchDetails
    | RemoteFailure
    | OtherDetails
)


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

    `shown` are the pages that can be cited. `media` are images, audio and files, as the tool returned them:
    the model gets those that it can take after the text, which lists all of them.
    """

    text: str
    details: ToolResultDetails | None = None
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
