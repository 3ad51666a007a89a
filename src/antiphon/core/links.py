"""What several processes of a server need to use an engine that runs once, in processes of its own.

The engine has links, and each of its clients one of them: two listening sockets at which the engine
connects, and a part of a memory that all share. A link is used once: who takes the place of a client that has
ended gets the next one. In the memory a client notes the requests that it runs, so that they can be ended if
it dies.
"""

import mmap
import socket
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

WORD = 8
FIGURES = 8
"""Numbers at the beginning of a client's part, which mean what the engine says."""
NOTES = 4096
"""Requests that a client can note. It runs more only where each is for a moment."""
PART = FIGURES + NOTES


class Link(Struct, frozen=True):
    """The link with this number, for the process `place` of so many `clients`.

    `input` and `output` are the addresses where the engine connects; the descriptors are the sockets that
    listen there, and the memory. `life` is a pipe that the engine runs for as long as somebody holds it.
    """

    number: int
    place: int
    clients: int
    input: str
    output: str
    input_socket: int
    output_socket: int
    memory: int
    life: int
    core: "CoreFacts"

    @property
    def descriptors(self) -> Sequence[int]:
        """What a process inherits."""
        return (self.input_socket, self.output_socket, self.memory, self.life)

    def take(self) -> tuple[socket.socket, socket.socket]:
        """The sockets, which belong to the caller then."""
        return socket.socket(fileno=self.input_socket), socket.socket(fileno=self.output_socket)


class CoreFacts(Struct, frozen=True):
    """What a client has to know of an engine: its processes, and the address where it tells its loads."""

    processes: Sequence[int] = ()
    loads: str | None = None


def memory_size(links: int) -> int:
    """The bytes of a memory for so many links."""
    return links * PART * WORD


class Notes:
    """The memory of an engine's clients, as the client with this number sees it."""

    def __init__(self, memory: int, number: int) -> None:
        self._cells = memoryview(mmap.mmap(memory, 0)).cast("q")
        self._number = number
        first = number * PART + FIGURES
        self._free = [*range(first, first + NOTES)]
        self._noted: dict[int, int] = {}

    def add(self, request: int) -> None:
        """Note that a request runs, before it is sent. Its number is not 0."""
        if self._free:
            cell = self._free.pop()
            self._noted[request] = cell
            self._cells[cell] = request

    def remove(self, request: int) -> None:
        """It has ended."""
        cell = self._noted.pop(request, None)
        if cell is not None:
            self._cells[cell] = 0
            self._free.append(cell)

    def of(self, number: int) -> Iterable[int]:
        """The requests that a client has noted."""
        first = number * PART + FIGURES
        return [request for request in self._cells[first : first + NOTES] if request]

    def tell(self, figures: Sequence[int]) -> None:
        """Write the figures of this client."""
        first = self._number * PART
        for cell, figure in enumerate(figures, first):
            self._cells[cell] = figure

    def figures(self) -> Iterator[Sequence[int]]:
        """The figures of all clients, also of those that have ended."""
        for first in range(0, len(self._cells), PART):
            yield self._cells[first : first + FIGURES]
