"""What `code_interpreter` tells of its results, besides their texts for the model."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from antiphon.apis.citations import CitableDetails, TextCitation
from antiphon.tools.containers import paths_in

TYPE = "code_interpreter"
"""The type of the tool."""


class WrittenFile(Struct, frozen=True):
    """A file that a program has left in its container, at a path in the workspace; `size` is in bytes."""

    id: str
    path: str
    size: int


class ProgramDetails(CitableDetails, frozen=True, tag="printed"):
    """A program was run. `logs` is all of its output, its traceback included.

    If it ran in a container, `container_id` is that one's, and `files` are those that it has written. The
    media of the result are its figures, in PNG.
    """

    logs: str
    container_id: str = ""
    files: tuple[WrittenFile, ...] = ()

    @classmethod
    def citations(cls, text: str, details: Sequence["ProgramDetails"]) -> Iterator[TextCitation]:
        """The files that a text names by their paths."""
        written = {file.path: (program.container_id, file) for program in details for file in program.files}
        for start, end, path in paths_in(text) if written else ():
            if path in written:
                container, file = written[path]
                name = path.rpartition("/")[2]
                yield TextCitation(start, end, file_id=file.id, filename=name, container_id=container)
