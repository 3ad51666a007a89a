"""Containers, in which programs of models run: the types that tools, answers and clients share."""

import re
from collections.abc import Iterator
from hashlib import sha256

WORKSPACE = "/mnt/data"
"""The folder where programs find files, and leave them."""

_ID_DIGITS = 48
_PATH = re.compile(rf"(?:sandbox:)?{WORKSPACE}/([^\s()\[\]<>\"'`*]+)")
_PUNCTUATION = ".,;:!?"


def container_id(type_: str, answer: str) -> str:
    """The id of the container in which the tool of this type works for the answer of this id."""
    return "cntr_" + sha256(f"{answer}\0container.{type_}".encode()).hexdigest()[:_ID_DIGITS]


def paths_in(text: str) -> Iterator[tuple[int, int, str]]:
    """The files of a container that a text names: where each begins and ends, and its path."""
    for match in _PATH.finditer(text):
        path = match[1].rstrip(_PUNCTUATION)
        yield match.start(), match.start(1) + len(path), path
