"""How much work a call is, in lines of code: the same on every machine, however busy."""

import sys
from collections.abc import Callable
from typing import Any


def lines(call: Callable[[], Any]) -> int:
    """How many lines of Python it runs."""
    count = 0

    def trace(*_: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
