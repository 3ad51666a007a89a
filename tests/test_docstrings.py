"""Docstrings: every name in back-ticks exists, and every public method is documented, where it is declared."""

import ast
import builtins
import keyword
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "antiphon"
FOREIGN = frozenset(
    {"AGENT_SCHEMAS", "ANTIPHON_MODEL_NAME", "agent_schemas", "k1", "password", "plt", "transformers"}
)
"""Names of formulas, and of what the code does not spell."""
_TICKED = re.compile(r"`+([A-Za-z_][\w.]*)(?:\(\))?`+")
_PLAIN = re.compile(r"[\w.$-]+")


@pytest.fixture(scope="module")
def trees() -> Mapping[Path, ast.Module]:
    """All modules."""
    return {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """The docstrings in a module, those of its constants and fields included."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                yield statement.value


def words(tree: ast.AST) -> Iterator[str]:
    """The names in a module: identifiers, and strings that look like some, as fields of JSON do."""
    texts = {id(text) for text in docstrings(tree)}
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            if isinstance(name := getattr(node, field, None), str):
                yield from re.findall(r"\w+", name)
        if isinstance(node, ast.Constant) and id(node) not in texts:
            value = node.value.decode(errors="replace") if isinstance(node.value, bytes) else node.value
            if isinstance(value, str) and _PLAIN.fullmatch(value):
                yield from re.findall(r"\w+", value)


def unknown(text: str, known: frozenset[str]) -> list[str]:
    """The names in back-ticks that are not known; headers of HTTP are known in any case."""
    return [
        ticked
        for ticked in _TICKED.findall(text)
        if not all(word in known or word.lower() in known for word in filter(None, ticked.split(".")))
    ]


def test_every_name_in_a_docstring_exists(trees: Mapping[Path, ast.Module]) -> None:
    files = {part for path in trees for part in path.relative_to(SOURCE).with_suffix("").parts}
    language = {*dir(builtins), *keyword.kwlist, *sys.stdlib_module_names}
    known = frozenset(
        {*(word for tree in trees.values() for word in words(tree)), *files, *language, *FOREIGN}
    )
    wrong = [
        f"{path.relative_to(SOURCE.parents[1])}:{text.lineno}: `{name}`"
        for path, tree in trees.items()
        for text in docstrings(tree)
        if isinstance(text.value, str)
        for name in unknown(text.value, known)
    ]

    assert not wrong, "These names exist nowhere in the code; correct the docstrings:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("See `Model.prepare()` and `limits`.", []),
        ("See `Model.gone`, `gone()`.", ["Model.gone", "gone"]),
        ("By the `Origin` of a request, `--option VALUE`, `a b`.", []),
    ],
)
def test_names_in_back_ticks_are_found(text: str, names: list[str]) -> None:
    known = frozenset({"Model", "prepare", "limits", "origin"})

    assert unknown(text, known) == names


def methods(tree: ast.Module) -> Iterator[tuple[str, int, str | None]]:
    """The name, line and docstring of each public method of a public class."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for part in node.body:
                if (
                    isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
                    and not part.name.startswith("_")
                    and not part.decorator_list  # properties have the names of what they are
                ):
                    yield part.name, part.lineno, ast.get_docstring(part)


def test_public_methods_are_documented_where_they_are_declared(trees: Mapping[Path, ast.Module]) -> None:
    """One without a docstring does what a method of this name is documented to do in its protocol."""
    found = [(path, *method) for path, tree in trees.items() for method in methods(tree)]
    documented = {name for _, name, _, text in found if text}
    wrong = [
        f"{path.relative_to(SOURCE.parents[1])}:{line}: {name}"
        for path, name, line, text in found
        if not text and name not in documented
    ]

    assert not wrong, "Write docstrings for these methods:\n" + "\n".join(wrong)
