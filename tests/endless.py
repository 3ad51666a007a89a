"""Work for processes of their own, of which most does not end by itself."""

import os
from typing import Any

from antiphon.core.errors import RequestError


def echo(value: Any) -> Any:
    return value


def process() -> int:
    return os.getpid()


def refused() -> None:
    raise RequestError("No.", param="theirs")


def endless() -> None:
    while True:
        pass


def greedy() -> int:
    return len([bytearray(2**20) for _ in range(2**14)])


def wordy() -> str:
    return "a" * 10_000


def nested() -> Any:
    return nested()
