"""Every regular expression of the source takes linear time, whatever the text.

The patterns are found by walking the source: a new one is tested without being listed, unless it is made of
parts that are known only when it is used; then a way to make it has to be in `MADE`. Each is given long texts
that are made from it: repetitions of what it repeats, after what comes before, that end otherwise than it
expects. A text of this length takes a thousandth of the time limit, and quadratic time is many times as long.
"""

import ast
import gc
import importlib
import re
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from itertools import islice
from pathlib import Path
from re import _compiler  # type: ignore[attr-defined]
from re import _constants as sre
from re import _parser as sre_parse
from typing import Any

import pytest

from antiphon.core.items import MediaKind, MediaPart
from antiphon.decode import headers
from antiphon.decode.arguments import brace_values
from antiphon.decode.lexer import Lexer
from antiphon.decode.stops import StopMatcher
from antiphon.dialects import gemma
from antiphon.dialects.registry import BY_NAME
from antiphon.dialects.response_template.patterns import _compiled
from antiphon.engines.token_cache import TokenCache
from antiphon.model_tables import _KeyPositions
from antiphon.render.media import Marks, _places
from antiphon.render.special_tokens import SpecialTokenEscaper, _pattern
from antiphon.run.tool_search import matching_places

SOURCE = Path(__file__).parents[1] / "src" / "antiphon"
LENGTH = 30_000
SECONDS = 0.15
"""Of processor time."""
MOST_TEXTS = 20
FUNCTIONS = {"compile", "search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer"}
CALLED = {f"re.{each}" for each in FUNCTIONS}
ANCHORED = {"match", "fullmatch"}

Place = tuple[str, int]
"""A call in a file, relative to the source, and its line."""


class Slow(Exception):
    """It takes longer than the limit."""


@contextmanager
def limited(seconds: float = SECONDS) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Slow

    before = signal.signal(signal.SIGVTALRM, stop)
    gc.disable()  # it takes time, and its callbacks let no exception through
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        gc.enable()
        signal.signal(signal.SIGVTALRM, before)


# Texts


def sample(parsed: Any) -> Any:
    """A short text that the pattern matches."""
    return "".join(_sample(op, value) for op, value in parsed)


def _sample(op: Any, value: Any) -> str:  # noqa: PLR0911 - a table
    if op is sre.LITERAL:
        return chr(value)
    if op is sre.NOT_LITERAL:
        return "a" if value != ord("a") else "b"
    if op is sre.ANY:
        return "a"
    if op is sre.IN:
        return next(iter(chars_of(value)))
    if op is sre.BRANCH:
        return min((sample(branch) for branch in value[1]), key=len)
    if op is sre.SUBPATTERN:
        return sample(value[3])
    if op is sre.ATOMIC_GROUP:
        return sample(value)
    if op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
        return sample(value[2]) * value[0]
    return ""


def chars_of(members: Any) -> list[str]:
    """Characters of a set, one of each kind."""
    negated = members and members[0][0] is sre.NEGATE
    some = [*"a0 _-.<\"'\\{[(\n\t", "é", "】", "†", "a"]
    found: list[str] = []
    for op, value in members:
        if op is sre.LITERAL:
            found.append(chr(value))
        elif op is sre.RANGE:
            found.append(chr(value[0]))
        elif op is sre.CATEGORY:
            found += [each for each in some if _in_category(value, each)][:2]
    if not negated:
        return found or ["a"]
    pattern = [(sre.IN, members)]
    return [each for each in some if _matches(pattern, each)][:4] or ["\u4e00"]


def _in_category(category: Any, char: str) -> bool:
    return _matches([(sre.IN, [(sre.CATEGORY, category)])], char)


def _matches(parsed: Any, char: str) -> bool:
    state = sre_parse.State()
    return _compiler.compile(sre_parse.SubPattern(state, parsed)).fullmatch(char) is not None  # type: ignore[attr-defined]


def pumps(parsed: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """What the pattern repeats, with what comes before that; outer repetitions first."""
    for op, value in parsed:
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            inner = value[2]
            yield from ((before, text) for text in variants(inner))
            yield from pumps(inner, before)
        elif op is sre.SUBPATTERN:
            yield from pumps(value[3], before)
        elif op is sre.ATOMIC_GROUP:
            yield from pumps(value, before)
        elif op is sre.BRANCH:
            for branch in value[1]:
                yield from pumps(branch, before)
        elif op in (sre.ASSERT, sre.ASSERT_NOT):
            yield from pumps(value[1], before)
        before += _sample(op, value)


def variants(parsed: Any) -> Iterator[str]:
    """Short texts that a repeated part matches."""
    yield sample(parsed)
    for op, value in parsed:
        if op is sre.IN:
            yield from chars_of(value)
        elif op is sre.ANY:
            yield from "a \n"
        elif op is sre.BRANCH:
            for branch in value[1]:
                yield from variants(branch)
        elif op is sre.SUBPATTERN:
            yield from variants(value[3])
        elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            once = sample(value[2])
            yield sample(parsed) + once
            yield from variants(value[2])


def texts(pattern: "re.Pattern[Any]") -> Iterator[Any]:
    """Long texts for a pattern."""
    raw = pattern.pattern
    parsed = sre_parse.parse(raw, pattern.flags & ~re.DEBUG)
    whole = sample(parsed)
    beginnings = {whole[:end] for end in range(1, min(len(whole), 12) + 1)}
    seen = dict.fromkeys((before, pump) for before, pump in pumps(parsed) if pump)
    seen |= dict.fromkeys(("", pump) for _, pump in [*seen])
    seen |= dict.fromkeys(("", beginning) for beginning in sorted(beginnings, key=len))
    seen |= dict.fromkeys(("", before + pump) for before, pump in [*seen])
    for before, pump in islice(seen, MOST_TEXTS):
        text = before + pump * (LENGTH // len(pump)) + "\x01"
        yield text if isinstance(raw, str) else text.encode("latin-1", "replace")


def slow_text(pattern: "re.Pattern[Any]", methods: set[str]) -> Any:
    """The beginning of a text for which the pattern needs more than linear time; None if there is none."""
    uses = [getattr(pattern, method) for method in sorted(methods & ANCHORED)]
    if methods - ANCHORED or not methods:
        uses.append(lambda text: [*pattern.finditer(text)])
    for text in texts(pattern):
        try:
            with limited():
                for use in uses:
                    use(text)
        except Slow:
            return text[:60]
    return None


# Patterns


@cache
def calls() -> dict[Place, tuple[ast.Call, str]]:
    """The calls of functions of `re` in the source, with the name of the function that each is in, or ""."""
    found = {}
    for file in sorted(SOURCE.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if "import re\n" not in text:
            assert "from re import" not in text, "the patterns of this file are not found"
            continue
        for node, inside in walked(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in CALLED:
                found[file.relative_to(SOURCE).as_posix(), node.lineno] = node, inside
    return found


def walked(node: ast.AST, inside: str = "") -> Iterator[tuple[ast.AST, str]]:
    for child in ast.iter_child_nodes(node):
        yield child, inside
        function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from walked(child, child.name if function else inside)  # type: ignore[attr-defined]


def literals() -> Iterator[tuple[str, "re.Pattern[Any]", set[str]]]:
    """The patterns that are written where they are used."""
    for (file, line), (call, _) in calls().items():
        name = ast.unparse(call.func).removeprefix("re.")
        if name != "compile" and isinstance(call.args[0], ast.Constant):
            yield f"{file}:{line}", re.compile(call.args[0].value), {name}


@cache
def uses() -> dict[tuple[str, str], set[str]]:
    """Module and name → the methods that are called on this pattern, there and where it is imported."""
    found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for file in SOURCE.rglob("*.py"):
        here, tree = module_of(file), ast.parse(file.read_text(encoding="utf-8"))
        origins = {
            alias.asname or alias.name: (node.module, alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in FUNCTIONS:
                base = node.value
                for each in (base.body, base.orelse) if isinstance(base, ast.IfExp) else (base,):
                    name = ast.unparse(each)
                    found[origins.get(name, (here, name))].add(node.attr)
    return found


def module_of(file: Path) -> str:
    return ".".join(("antiphon", *file.relative_to(SOURCE).with_suffix("").parts))


def constants() -> Iterator[tuple[str, "re.Pattern[Any]", set[str]]]:
    """The patterns that modules keep, with the methods that are used: all, where that is not plain."""
    for file in sorted(SOURCE.rglob("*.py")):
        name = module_of(file)
        if "re.compile(" not in file.read_text(encoding="utf-8"):
            continue
        for key, value in vars(importlib.import_module(name)).items():
            for each in value.values() if isinstance(value, dict) else (value,):
                if isinstance(each, re.Pattern):
                    yield f"{name}.{key}", each, uses()[name, key]


def made() -> Iterator[tuple[str, "re.Pattern[Any]", set[str]]]:
    """The patterns that functions make of what they get, for some of it."""
    for (file, function), make in MADE.items():
        found: list[re.Pattern[Any]] = []
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(re, "compile", partial(_recorded, re.compile, function, found))
            given = make()
        if isinstance(given, list):
            found += [re.compile(each) for each in given if isinstance(each, str)]
        assert found, f"{function} made no pattern"
        methods = set() if function in SEARCHED else ANCHORED
        yield from ((f"{file}: {function}", each, methods) for each in dict.fromkeys(found))


def _recorded(compile_: Any, function: str, found: list["re.Pattern[Any]"], *given: Any) -> Any:
    """Compile, and note what is compiled for this function."""
    pattern = compile_(*given)
    if sys._getframe(1).f_code.co_name == function:
        found.append(pattern)
    return pattern


MARKERS = ("<tool_call>", "</tool_call>", "<<<<<<<<", "```", "[TOOL_CALLS]", "<|im_end|>", "aaaa", "aaab")


SEARCHED = {
    "__init__",
    "_attribute",
    "_stops",
    "_line",
    "_places",
    "_pattern",
    "_replace_all",
    "with_tag_suffix",
}
"""Functions whose patterns are searched for; those of others have to match where a text begins."""
MADE: dict[tuple[str, str], Callable[[], object]] = {
    ("decode/arguments/brace_values.py", "_stops"): lambda: brace_values._stops.__wrapped__("<[^-]"),
    ("decode/arguments/brace_values.py", "_key_patterns"): lambda: [
        brace_values._key_patterns.__wrapped__(quote) for quote in ('"', '<|"|>')
    ],
    ("decode/headers.py", "prefixed_name"): lambda: [
        headers.prefixed_name(gemma._CALL, ""),
        headers.prefixed_name(r"\s*+\w*+\s*+<｜tool▁sep｜>", ""),
    ],
    ("decode/headers.py", "_attribute"): lambda: headers._attribute("name"),
    ("decode/lexer.py", "__init__"): lambda: Lexer(MARKERS),
    ("decode/stops.py", "__init__"): lambda: StopMatcher(("a" * 9, "^", "]", "-"), False),
    ("dialects/dialect.py", "with_tag_suffix"): lambda: [
        each.suffix for each in BY_NAME.values() if each.suffix
    ],
    ("dialects/own/file.py", "_replace_all"): lambda: ["|".join(map(re.escape, MARKERS))],
    ("dialects/response_template/patterns.py", "_compiled"): lambda: _compiled(r"<a>\s*(?P<name>\w+)\s*</a>"),
    ("engines/token_cache.py", "__init__"): lambda: TokenCache(lambda _: (), dict.fromkeys(MARKERS, 1)),
    ("model_tables.py", "_line"): lambda: _KeyPositions("", "[[models]]\n")._line(0, "max_tokens"),
    ("render/media.py", "__init__"): lambda: Marks((MediaPart(MediaKind.IMAGE, "", "image/png", b""),)),
    ("render/media.py", "_places"): lambda: [*_places("", {MediaKind.IMAGE: "<image 12>"})],
    ("render/special_tokens.py", "__init__"): lambda: SpecialTokenEscaper(*MARKERS),
    ("render/special_tokens.py", "_pattern"): lambda: _pattern(MARKERS),
    ("run/tool_search.py", "matching_places"): lambda: matching_places(
        "order", ()
    ),  # runs under a time limit
}
"""File and function → a call that has it make patterns, or else returns some as it makes them."""


# Tests


def test_every_pattern_is_found() -> None:
    """Those in functions are literals, or in `MADE`."""
    written = {name for name, *_ in literals()}
    hidden = {
        (file, inside)
        for (file, line), (_, inside) in calls().items()
        if inside and f"{file}:{line}" not in written
    }
    assert hidden == MADE.keys()


def test_patterns_take_linear_time() -> None:
    slow = {
        name: (pattern.pattern, text)
        for name, pattern, methods in (*constants(), *literals(), *made())
        if (text := slow_text(pattern, methods)) is not None
    }
    assert not slow


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"\s*(<!--.*?-->\s*)*<(!doctype html|html)\b", "match"),  # was once in `run/documents.py`
        (r"\s+$", "search"),
        (r"(a+)+b", "fullmatch"),
        (r"<a.*?>b", "finditer"),
        (r"\d+\.?\d*x", "match"),
        (r"(?:a|aa)*$", "match"),
    ],
)
def test_a_pattern_that_is_not_linear_is_found(pattern: str, method: str) -> None:
    assert slow_text(re.compile(pattern, re.DOTALL), {method}) is not None
