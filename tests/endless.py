"""Work for processes of their own, of which most does not end by itself."""

import os
import signal
from typing import Any

from antiphon.core.errors import RequestError


def echo(value: Any) -> Any:
    return value


def process() -> int:
    return os.getpid()


def terminated() -> int:
    """It sends itself the signal."""
    os.kill(os.getpid(), signal.SIGTERM)
    return os.getppid()


def refused() -> None:
    raise RequestError("No.", param="theirs")


class UnsendableError(Exception):
    """Its constructor takes other arguments than it keeps."""

    def __init__(self, what: str, how: object) -> None:
        super().__init__(what)
        self.how = how


def unsendable() -> None:
    raise UnsendableError("wrong", lambda: 1)


def endless() -> None:
    while True:
        pass


def greedy() -> int:
    return len([bytearray(2**20) for _ in range(2**14)])


def wordy() -> str:
    return "a" * 10_000


def nested() -> Any:
    return nested()
