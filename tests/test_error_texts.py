"""What errors say is what was meant: no text has a name in braces that nothing fills in.

All calls of errors, and all texts that are called `message` or `remedy`, are found by walking the source.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import antiphon

ROOT = Path(antiphon.__file__).parent
NAME = re.compile(r"\{[a-z_][a-z0-9_.]*\}")
TEXTS = {"message", "remedy"}


def unfilled(tree: ast.AST) -> Iterator[str]:
    """The texts of errors with names in braces that stay there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func).endswith("Error"):
            yield from _unfilled([*node.args, *(keyword.value for keyword in node.keywords)])
        elif isinstance(node, ast.Assign) and TEXTS & {*map(_name, node.targets)}:
            yield from _unfilled([node.value])


def _unfilled(values: list[ast.expr]) -> Iterator[str]:
    for value in values:
        parts = value.values if isinstance(value, ast.JoinedStr) else [value]
        for part in parts:
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and NAME.search(part.value):
                yield part.value


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def test_names_in_texts_of_errors_are_filled_in() -> None:
    trees = {path: ast.parse(path.read_text()) for path in ROOT.rglob("*.py")}
    assert not [
        (str(path.relative_to(ROOT)), text) for path, tree in trees.items() for text in unfilled(tree)
    ]


@pytest.mark.parametrize(
    ("line", "faults"),
    [
        ("raise RequestError('No {param} here.', param=param)", 1),
        ("raise errors.EngineError('It is ' 'no {name}.')", 1),
        ("message = 'Leave {name} out.'", 1),
        ("raise RequestError(f'No {param} here.')", 0),
        ("raise RequestError('Send {} or {\"a\": 1}.')", 0),
    ],
)
def test_a_planted_one_is_found(line: str, faults: int) -> None:
    assert len([*unfilled(ast.parse(line))]) == faults
