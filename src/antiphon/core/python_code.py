"""Python code that a model has written, as a tree: it is read, never run, in this process."""

import ast
import threading
import warnings
from typing import Literal

_ONE_AT_A_TIME = threading.Lock()
"""CPython 3.11 counts the depth of trees in all threads together, and warnings are ignored in all of them."""


def parsed(code: str, mode: Literal["exec", "eval"] = "exec") -> ast.AST | None:
    """The tree of the code, an `ast.Module` or for `eval` an `ast.Expression`; None if it is not valid."""
    try:
        with _ONE_AT_A_TIME, warnings.catch_warnings(action="ignore"):  # about the model's code, not ours
            return ast.parse(code, mode=mode)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
