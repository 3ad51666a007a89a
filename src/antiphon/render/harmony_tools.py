"""How harmony describes functions: namespaces of TypeScript-like types.

A client's functions are the namespace `functions`. The models were also trained with
native tools, whose descriptions are reproduced word for word. `NATIVE` maps the
server's tools to them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.turn import Function, Hosted
from antiphon.render.typescript import declaration

FUNCTIONS = "functions"
"""The namespace of a client's functions."""


class Namespace(Struct, frozen=True):
    """A namespace of functions. One without functions is called itself, with code rather than JSON."""

    name: str
    functions: tuple[Function, ...] = ()
    description: str = ""


def tools_section(namespaces: Iterable[Namespace]) -> str:
    """The section `# Tools`."""
    return "\n\n".join(["# Tools", *("\n".join(_lines(namespace)) for namespace in namespaces)])


def comment(text: str) -> Iterator[str]:
    """Each line of a description as a comment."""
    return (f"// {line}" for line in _lines_of(text))


def _lines(namespace: Namespace) -> Iterator[str]:
    yield f"## {namespace.name}\n"
    if not namespace.functions:
        yield from _lines_of(namespace.description)
        return
    yield from comment(namespace.description)
    yield f"namespace {namespace.name} {{\n"
    for function in namespace.functions:
        yield from comment(function.description or "")
        yield declaration(function) + "\n"
    yield f"}} // namespace {namespace.name}"


def _lines_of(text: str) -> list[str]:
    lines = re.split(r"\r?\n", text)
    return lines if lines[-1] else lines[:-1]


_TEXT = {"type": "string"}
_PLACE = {"type": "number", "default": -1}

BROWSER = Namespace(
    "browser",
    (
        Function(
            "search",
            "Searches for information related to `query` and displays `topn` results.",
            {
                "type": "object",
                "properties": {"query": _TEXT, "topn": {"type": "number", "default": 10}, "source": _TEXT},
                "required": ["query"],
            },
        ),
        Function(
            "open",
            """\
Opens the link `id` from the page indicated by `cursor` starting at line number `loc`, \
showing `num_lines` lines.
Valid link ids are displayed with the formatting: `【{id}†.*】`.
If `cursor` is not provided, the most recent page is implied.
If `id` is a string, it is treated as a fully qualified URL associated with `source`.
If `loc` is not provided, the viewport will be positioned at the beginning of the document or centered on \
the most relevant passage, if available.
Use this function without `id` to scroll to a new location of an opened page.""",
            {
                "type": "object",
                "properties": {
                    "id": {"type": ["number", "string"], "default": -1},
                    "cursor": _PLACE,
                    "loc": _PLACE,
                    "num_lines": _PLACE,
                    "view_source": {"type": "boolean", "default": False},
                    "source": _TEXT,
                },
            },
        ),
        Function(
            "find",
            "Finds exact matches of `pattern` in the current page, or the page given by `cursor`.",
            {
                "type": "object",
                "properties": {"pattern": _TEXT, "cursor": _PLACE},
                "required": ["pattern"],
            },
        ),
    ),
    """\
Tool for browsing.
The `cursor` appears in brackets before each browsing display: `[{cursor}]`.
Cite information from the tool using the following format:
`【{cursor}†L{line_start}(-L{line_end})?】`, for example: `【6†L9-L11】` or `【8†L3】`.
Do not quote more than 10 words directly from the tool output.
sources=web (default: web)""",
)

PYTHON = Namespace(
    "python",
    description="""\
Use this tool to execute Python code in your chain of thought. The code will not be shown to the user. \
This tool should be used for internal reasoning, but not for code that is intended to be visible to the user \
(e.g. when creating plots, tables, or files).

When you send a message containing Python code to python, it will be executed in a stateful Jupyter \
notebook environment. python will respond with the output of the execution or time out after 120.0 seconds. \
The drive at '/mnt/data' can be used to save and persist user files. Internet access for this session is \
UNKNOWN. Depends on the cluster.""",
)

CONTAINER = Namespace(
    "container",
    (
        Function(
            "exec",
            "Runs a command in the container, and returns what it prints.",
            {
                "type": "object",
                "properties": {
                    "cmd": {"type": "array", "items": _TEXT},
                    "workdir": _TEXT,
                    "env": {"type": "object", "additionalProperties": _TEXT},
                    "timeout": {"type": "number", "description": "in milliseconds"},
                },
                "required": ["cmd"],
            },
        ),
    ),
    "A container in which commands can be run. Its files stay until the answer is given.",
)
"""OpenAI has not published the description that the models were trained with."""


def _native(namespace: Namespace, type_: str) -> tuple[Function, ...]:
    """The functions of a namespace under their full names, for the server's tool of this type."""
    return tuple(
        replace(
            function,
            name=f"{namespace.name}.{function.name}",
            hosted=Hosted(type_, function.name, native=True),
        )
        for function in namespace.functions
    )


NATIVE: Mapping[str, tuple[Function, ...]] = {
    "web_search": _native(BROWSER, "web_search"),
    "code_interpreter": (
        Function(
            PYTHON.name,
            None,
            {"type": "object", "properties": {"code": _TEXT}, "required": ["code"]},
            hosted=Hosted("code_interpreter", "python", native=True),
        ),
    ),
    "shell": _native(CONTAINER, "shell"),
}
"""Type of a server's tool → the functions by which these models call it."""
