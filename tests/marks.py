"""Marks between the statements of a file, which tell what of it was reached: for `coverage.py`.

A mark stores one byte, in the map of all marks. It stands before the last statement of each sequence that control
does not leave or enter in between: where it is reached, all of the sequence is.
"""

import ast
from dataclasses import dataclass

NAME = "__marks__"
"""The map, among the builtins."""

_PARTING = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.Try,
    ast.TryStar,
    ast.With,
    ast.AsyncWith,
    ast.Match,
)
"""Statements that have others inside, and may end in several ways."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What is reached where a mark is."""

    lines: tuple[int, ...]
    """The first lines of statements."""

    branch: str
    """The branch that leads there, or nothing."""

    @property
    def size(self) -> int:
        """How many statements and branches are reached here."""
        return len(self.lines) + bool(self.branch)

    def __str__(self) -> str:
        first, last = self.lines[:1], self.lines[-1:]
        return "-".join(map(str, first + last if first != last else first)) or self.branch


class Marker:
    """Puts marks into the statements of a file. The first has the number `first` in the map."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.marks: list[Mark] = []

    def block(self, body: list[ast.stmt], branch: str = "") -> list[ast.stmt]:
        """The statements with their marks; `branch` leads to the first of them."""
        marked: list[ast.stmt] = []
        lines: list[int] = []
        for number, statement in enumerate(body, 1):
            unreachable = _is_unreachable(statement)
            if not unreachable and not _is_declaration(statement):
                lines.append(statement.lineno)
            if unreachable and not lines:
                branch = ""
            ends = unreachable or number == len(body) or isinstance(statement, _PARTING)
            if ends and (lines or branch):
                marked.append(self._mark(statement, lines, branch))
                lines, branch = [], ""
            if not unreachable:
                self._inside(statement)
            marked.append(statement)
        return marked

    def _mark(self, beside: ast.stmt, lines: list[int], branch: str) -> ast.stmt:
        place = ast.Subscript(
            ast.Name(NAME, ast.Load()), ast.Constant(self.first + len(self.marks)), ast.Store()
        )
        self.marks.append(Mark(tuple(lines), branch))
        return ast.fix_missing_locations(ast.copy_location(ast.Assign([place], ast.Constant(1)), beside))

    def _inside(self, statement: ast.stmt) -> None:
        match statement:
            case ast.While(test=ast.Constant()):  # it has no condition
                statement.body = self.block(statement.body)
            case ast.If() | ast.For() | ast.AsyncFor() | ast.While():
                statement.body = self._branch(statement, statement.body)
                statement.orelse = self._branch(statement, statement.orelse)
            case ast.Match():
                if not _takes_everything(statement.cases[-1]):
                    rest = ast.copy_location(ast.MatchAs(), statement)
                    statement.cases.append(ast.match_case(rest, body=[]))
                for case in statement.cases:
                    case.body = self._branch(statement, case.body)
            case ast.Try() | ast.TryStar():
                for part in (statement, *statement.handlers):
                    part.body = self.block(part.body)
                statement.orelse, statement.finalbody = map(
                    self.block, (statement.orelse, statement.finalbody)
                )
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.With() | ast.AsyncWith():
                statement.body = self.block(statement.body)

    def _branch(self, start: ast.stmt, body: list[ast.stmt]) -> list[ast.stmt]:
        """Where control goes from `start`: to these statements, or past it if there are none."""
        if body:
            return self.block(body, f"{start.lineno}->{body[0].lineno}")
        return [self._mark(start, [], f"{start.lineno}->")]


def _is_unreachable(statement: ast.stmt) -> bool:
    """It is for type checkers, or the body of a method that classes have to define."""
    match statement:
        case ast.If(test=ast.Name("TYPE_CHECKING")) | ast.Expr(ast.Call(ast.Name("assert_never"))):
            return True
        case ast.Raise(ast.Name("NotImplementedError") | ast.Call(ast.Name("NotImplementedError"))):
            return True
        case ast.Expr(ast.Constant(value)):
            return value is ...
        case _:
            return False


def _is_declaration(statement: ast.stmt) -> bool:
    """It does nothing itself."""
    match statement:
        case ast.Expr(ast.Constant()) | ast.Global() | ast.Nonlocal() | ast.ImportFrom(module="__future__"):
            return True
        case _:
            return False


def _takes_everything(case: ast.match_case) -> bool:
    return case.guard is None and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None
