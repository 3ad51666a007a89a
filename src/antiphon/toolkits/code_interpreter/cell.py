"""The code of a call, for both interpreters, and how the built-in one runs it.

It runs as in a notebook: the value of the last expression is shown, and kept as `_`. The program itself
prints the value, so that values never leave the sandbox: they may be huge, or nested without end.
"""

import ast
import re
from collections.abc import Mapping
from typing import Any

from antiphon.core.python_code import parsed
from antiphon.core.tool_result import ToolResult

ACTION = "python"

MAX_PARSED = 2**14
"""The longest code in characters whose last expression is searched; parsing it takes some 25 ms."""

SILENT = "[Nothing was printed.]"
BUSY = "Too many programs are running. Try again later, or continue without running code."
BROKEN = "Code cannot be run at the moment. Continue without it."
"""What the model is told of a program that printed nothing, did not begin, or could not."""

_SHOW = "\nif _ is not None: print(repr(_))"
_NO_VALUE = "\nNone"
_LINE_END = re.compile("\r\n?")


def code_of(action: str, arguments: Mapping[str, Any]) -> str | ToolResult:
    """The code of a call, or what the model is told if there is none."""
    if action != ACTION:
        return ToolResult(f"There is no action '{action[:100]}' here. Use '{ACTION}'.", failed=True)
    code = arguments.get("code")
    if not isinstance(code, str):
        return ToolResult("`code` is missing. Give Python code as a string.", failed=True)
    return code


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
    match parsed(code):
        case ast.Module(body=[*_, last]):
            return last
    return None
