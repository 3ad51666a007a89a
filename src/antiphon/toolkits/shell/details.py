"""What `shell` tells of its results, besides their texts for the model."""

from msgspec import Struct

TYPE = "shell"
"""The type of the tool."""


class CommandDetails(Struct, frozen=True, tag="executed"):
    """A command was run. `exit_code` is None if it timed out."""

    stdout: str
    stderr: str
    exit_code: int | None
