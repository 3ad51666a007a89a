"""Which calls of a program are awaited, of functions that can be called either way.

Models write `get(1)`, `await get(1)` and `asyncio.gather(get(1), get(2))`. A call that is awaited, or passed
on to what awaits it, is begun, and the program goes on; any other is a call that the program waits for. That
is read from the code, without running it: from each `await` back to the calls, through variables and lists.
"""

import ast
from collections.abc import Container, Iterable, Iterator

from antiphon.core.python_code import parsed

PASSES = 16
"""How often variables are followed. Few programs need more than two."""

_AWAITING = frozenset({
    "as_completed", "create_task", "ensure_future", "gather", "run", "run_until_complete", "shield", "wait",
    "wait_for",
})  # fmt: skip
"""Functions whose arguments are awaited."""
_COLLECTING = frozenset({"append", "dict", "enumerate", "items", "list", "set", "tuple", "values", "zip"})
"""Functions whose arguments, or whose object, are collections of what may be awaited."""


def awaited_calls(code: str, names: Container[str]) -> frozenset[int]:
    """Where the awaited calls of functions of these names begin, in bytes of the code in UTF-8.

    None for code that is none: the interpreter reports the error.
    """
    tree = parsed(code)
    if tree is None:
        return frozenset()
    try:
        found = _Reading(tree, names).found()
    except RecursionError:
        return frozenset()
    starts = [0]
    for line in code.split("\n"):
        starts.append(starts[-1] + len(line.encode()) + 1)
    return frozenset(starts[call.lineno - 1] + call.col_offset for call in found)


class _Reading:
    """What is awaited in a program: calls, and the variables that hold what is awaited."""

    def __init__(self, tree: ast.AST, names: Container[str]) -> None:
        self._names = names
        self._calls: set[ast.Call] = set()
        self._variables: set[str] = set()
        self._nodes = [*ast.walk(tree)]
        self._helpers: dict[str, list[ast.Return]] = {
            node.name: [inner for inner in ast.walk(node) if isinstance(inner, ast.Return)]
            for node in self._nodes
            if isinstance(node, ast.FunctionDef)
        }
        self._seen_helpers: set[str] = set()

    def found(self) -> set[ast.Call]:
        for node in self._nodes:
            if isinstance(node, ast.Await):
                self._mark(node.value)
            elif isinstance(node, ast.Call) and _name_of(node.func) in _AWAITING:
                self._mark_all(node.args)
        for _ in range(PASSES):
            before = len(self._variables)
            for node in self._nodes:
                self._follow(node)
            if len(self._variables) == before:
                break
        return self._calls

    def _follow(self, node: ast.AST) -> None:
        """Mark what a variable gets that holds what is awaited."""
        match node:
            case ast.Assign(targets=targets, value=value):
                if any(self._holds(target) for target in targets):
                    self._mark(value)
            case (
                ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.AugAssign(target=target, value=value)
            ):
                if self._holds(target):
                    self._mark(value)
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                if self._holds(target):
                    self._mark(value)
            case ast.Call(func=ast.Attribute(value=held, attr="append"), args=args):
                if self._holds(held):
                    self._mark_all(args)

    def _holds(self, target: ast.AST) -> bool:
        match target:
            case ast.Name(id=name):
                return name in self._variables
            case ast.Subscript(value=value) | ast.Starred(value=value):
                return self._holds(value)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return any(map(self._holds, parts))
        return False

    def _mark_all(self, nodes: Iterable[ast.expr]) -> None:
        for node in nodes:
            self._mark(node)

    def _mark(self, node: ast.expr | None) -> None:
        """This is awaited, or a collection of what is."""
        match node:
            case ast.Call():
                self._mark_call(node)
            case ast.Name(id=name):
                self._variables.add(name)
            case ast.Dict(values=parts):
                self._mark_all(parts)
            case ast.DictComp(value=value):
                self._mark(value)
            case ast.IfExp(body=first, orelse=second):
                self._mark_all((first, second))
            case ast.Starred(value=value) | ast.Subscript(value=value) | ast.NamedExpr(value=value):
                self._mark(value)
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                self._mark_all(parts)
            case ast.ListComp(elt=value) | ast.SetComp(elt=value) | ast.GeneratorExp(elt=value):
                self._mark(value)

    def _mark_call(self, call: ast.Call) -> None:
        name = _name_of(call.func)
        if isinstance(call.func, ast.Name) and name in self._names:
            self._calls.add(call)
        elif name in _COLLECTING:
            self._mark_all([*call.args, *_object_of(call.func)])
        elif name in self._helpers and name not in self._seen_helpers:
            self._seen_helpers.add(name)
            for returned in self._helpers[name]:
                self._mark(returned.value)


def _name_of(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _object_of(function: ast.expr) -> Iterator[ast.expr]:
    if isinstance(function, ast.Attribute):
        yield function.value
