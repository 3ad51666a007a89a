"""Code as a notebook runs it: the value of its last expression is shown, and kept as `_`.

The value is shown by the program itself, so that none ever leaves the sandbox:
taking over values, which may be huge or nested without end, is for nobody to risk.
"""

import ast
import re
import warnings

MAX_PARSED = 2**14
"""The longest code of which the last expression is looked for, in characters; it takes some 25 ms."""

_SHOW = "\nif _ is not None: print(repr(_))"
_NO_VALUE = "\nNone"
_LINE_END = re.compile("\r\n?")


def as_cell(code: str) -> str:
    """The code to run: it prints its last value, and has none of its own. Line numbers stay."""
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
    """None if it is not known: the sandbox reports what is wrong with the code."""
    if len(code) > MAX_PARSED:
        return None
    try:
        with warnings.catch_warnings(action="ignore"):  # warnings about the model's code are not ours
            statements = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return statements[-1] if statements else None
