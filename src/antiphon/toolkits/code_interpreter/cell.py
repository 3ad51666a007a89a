"""Code as a notebook runs it: the value of its last expression is shown, and kept as `_`.

The program itself prints the value, so that values never leave the sandbox: they may be huge, or nested
without end.
"""

import ast
import re
import warnings

MAX_PARSED = 2**14
"""The longest code in characters whose last expression is searched; parsing it takes some 25 ms."""

_SHOW = "\nif _ is not None: print(repr(_))"
_NO_VALUE = "\nNone"
_LINE_END = re.compile("\r\n?")


def as_cell(code: str) -> str:
    """The code to run: it prints its last value, and returns none. Line numbers stay."""
    code = _LINE_END.sub("\n", code.encode(errors="replace").decode())
    last = _last_statement(code)
    if not isinstance(last, ast.Expr):
        return code + _NO_VALUE
    lines = code.split("\n")
    line = lines[last.lineno - 1].encode()
    before, expression = line[: last.col_offset].decode(), line[last.col_offset :].decode()
    lines[last.lineno - 1] = f"{before}_ = {expression}"
    return "\n".join(lines) + _SHOW


def _last_statement(code: str) -> ast.stmt | None:
    """The last statement; None if the code cannot be parsed: the sandbox reports the error."""
    if len(code) > MAX_PARSED:
        return None
    try:
        with warnings.catch_warnings(action="ignore"):  # warnings about the model's code are not ours
            statements = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return statements[-1] if statements else None
