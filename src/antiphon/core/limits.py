"""The table of named limits: of one request, one connection, one client, and of the server.

A request over a limit is refused before it causes work, by an error that names the limit and the parameter.
`docs/limits.md` has the table for operators; `--limit NAME=VALUE` changes a value.
"""

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from functools import cache, cached_property
from typing import Any, NoReturn

import msgspec
from msgspec import Struct, inspect

from antiphon.core.errors import RequestError
from antiphon.core.nearest import did_you_mean

KIB, MIB = 1024, 1024 * 1024
HOUR, DAY = 60 * 60, 24 * 60 * 60
"""In seconds."""

CLIENT: ContextVar[str] = ContextVar("client", default="")
"""The client of the current request: the identity of its key or, without keys, its address."""

LIMIT_EXCEEDED = "limit_exceeded"
"""The code of every error that names a limit."""


class Limits(Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """The value of each limit."""

    # Bodies and their content
    body_bytes: int = 4 * MIB
    small_body_bytes: int = 64 * KIB
    values: int = 100_000
    depth: int = 100
    items: int = 10_000
    parts: int = 2_000
    tools: int = 1_000
    name_characters: int = 256
    stop_characters: int = 1_000

    # Attachments
    attachments: int = 100
    attachment_bytes: int = 64 * MIB
    attachment_seconds: int = 60
    image_pixels: int = 50_000_000
    image_frames: int = 4
    document_pages: int = 20

    # Embeddings and rankings
    inputs: int = 2_048
    input_tokens: int = 300_000

    # Moderation
    moderation_inputs: int = 1_024
    moderation_characters: int = 1_000_000
    moderation_seconds: int = 60
    # Batches
    batch_lines: int = 50_000

    # Decisions
    questions: int = 400
    options: int = 255
    levels: int = 10
    reads: int = 2_000
    read_tokens: int = 300_000
    data_depth: int = 32
    data_values: int = 10_000
    data_bytes: int = 256 * KIB

    # A schema
    schema_values: int = 20_000
    enum_values: int = 5_000
    alternatives: int = 500
    patterns: int = 100

    # Stored objects, and answers
    references: int = 500
    page_bytes: int = 4 * MIB
    history_bytes: int = 16 * MIB
    answer_bytes: int = 32 * MIB
    repetitions: int = 1_000_000  # more than an answer can have: the check is off by default
    response_bytes: int = 128 * MIB
    conversation_bytes: int = 32 * MIB
    stored_bytes: int = 16 * 1024 * MIB
    all_stored_bytes: int = 64 * 1024 * MIB
    file_bytes: int = 128 * MIB
    traced_answers: int = 10_000
    trace_bytes: int = 64 * MIB
    kept_item_bytes: int = 64 * MIB
    conversations: int = 100_000
    files: int = 10_000
    vector_stores: int = 1_000
    compared_chunks: int = 20_000
    query_characters: int = 4_096

    # Bounded work: see `run/bounded.py`
    work_seconds: int = 10
    work_bytes: int = 1024 * MIB
    work_result_bytes: int = 8 * MIB
    work_processes: int = 2
    work_waiting: int = 16

    # Server tools: totals for one answer
    tool_calls: int = 128
    calls_per_tool: int = 128
    tool_seconds: int = 3600
    seconds_per_tool: int = 3600
    generation_tokens: int = 2_000_000
    tokens_per_tool: int = 500_000

    # Programs of models that call tools: what one of them may use
    programs: int = 16  # that go on with a request
    program_code_bytes: int = 64 * KIB
    program_calls: int = 200
    program_seconds: int = 30
    program_bytes: int = 16 * MIB
    program_values: int = 100_000  # in the arguments of one call
    program_memory_bytes: int = 64 * MIB
    program_characters: int = 32_000

    # Servers that run models
    upstream_bytes: int = 64 * MIB
    upstream_line_bytes: int = MIB
    cumulative_line_bytes: int = 16 * MIB  # of a server that sends all of an answer so far with each token

    # Tools of MCP servers
    mcp_servers: int = 16
    mcp_tools: int = 256
    mcp_bytes: int = 4 * MIB
    mcp_values: int = 10_000
    mcp_messages: int = 1_000
    mcp_connect_seconds: int = 15
    mcp_seconds: int = 60
    mcp_characters: int = 32_000

    # Requests before a model, and answers before a client that does not read
    waiting: int = 1024
    client_waiting: int = 256
    unread_chunks: int = 16_384

    # Python in containers: the lifetime of a container, then limits of a program in it
    containers: int = 1_000
    container_files: int = 200
    container_minutes: int = 20
    python_interpreters: int = 16
    python_seconds: int = 60
    python_cpu_seconds: int = 600
    python_memory_bytes: int = 2048 * MIB
    python_disk_bytes: int = 256 * MIB
    python_processes: int = 64
    python_characters: int = 32_000

    # Connections
    connections: int = 2_048
    unread_bytes: int = 128 * MIB
    header_bytes: int = 32 * KIB
    chunks: int = 50_000
    header_seconds: int = 10
    body_seconds: int = 60
    idle_seconds: int = 75
    pipelined: int = 64
    fragments: int = 1_000
    socket_messages: int = 8
    socket_lanes: int = 16
    pending_steers: int = 16
    socket_turns: int = 16
    socket_bytes: int = 64 * MIB

    @cached_property
    def least_values(self) -> int:
        """The lowest limit of `check_body`."""
        counted: list[int] = [getattr(self, name) for name in _COUNTED.values()]
        return min(self.values, self.schema_values, self.depth, *counted)

    def refuse(self, name: str, param: str | None, what: str) -> NoReturn:
        """Raise the RequestError for a parameter, or a whole request, that is over a limit."""
        message = f"{what}: more than {getattr(self, name)}, the limit '{name}' of this server."
        raise RequestError(message, param=param, code=LIMIT_EXCEEDED)

    def check(self, name: str, count: int, param: str) -> None:
        """Raise RequestError if a parameter has more of something than its limit allows."""
        if count > getattr(self, name):
            self.refuse(name, param, f"'{param}' has {count}")

    def check_number(self, name: str, number: int, param: str) -> None:
        """Raise RequestError if the value of a parameter is a number over its limit."""
        if number > getattr(self, name):
            self.refuse(name, param, f"'{param}' is {number}")


DEFAULTS = Limits()


def read_limits(given: Iterable[str]) -> Limits:
    """The limits, changed by NAME=VALUE. Raises ValueError."""
    values: dict[str, str] = {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in Limits.__struct_fields__:
            known = Limits.__struct_fields__
            hint = did_you_mean(name, known)
            raise ValueError(f"There is no limit '{name}'.{hint} There are: {', '.join(known)}.")
        if not value.isdecimal() or int(value) < 1:
            raise ValueError(f"A limit is written NAME=NUMBER, with a number from 1 on, not '{text}'.")
        values[name] = value
    return msgspec.convert(values, Limits, strict=False)


_COUNTED: Mapping[str, str] = {
    "messages": "items",
    "input": "items",
    "items": "items",
    "content": "parts",
    "tools": "tools",
    "functions": "tools",
    "enum": "enum_values",
    "allOf": "alternatives",
    "anyOf": "alternatives",
    "oneOf": "alternatives",
    "patternProperties": "patterns",
}
"""Name of a field → the limit for the length of its list or object."""
_SCHEMAS = frozenset({"parameters", "schema", "json"})
"""Fields that hold a schema."""
_NUMBERS = frozenset({int, float})
_HOLDERS = (dict, list, Struct)
"""Types that may contain values."""
_SCALAR_TYPES = (
    inspect.StrType,
    inspect.IntType,
    inspect.FloatType,
    inspect.BoolType,
    inspect.NoneType,
    inspect.LiteralType,
)

_ValuePath = tuple[Any, str | int] | None
"""A value in a body: the path of its container, and its name or index in that."""


def is_small(body: bytes, limits: Limits) -> bool:
    """Whether this JSON is too short to exceed any limit of `check_body`. Most bodies are, and need no visit.

    Each value follows one of these characters, or is the only one; those in texts only increase the estimate.
    """
    return len(body) - len(body.translate(None, b",{[")) < limits.least_values


def check_body(body: Any, limits: Limits) -> None:
    """Refuse a body, as it was decoded, that has more of something than is allowed. Raises RequestError."""
    _ValueCounter(limits, "values", limits.values).visit(body, None, None, 0)


class _ValueCounter:
    """Visits objects and lists, and counts the values in them, up to the limit `name`."""

    def __init__(self, limits: Limits, name: str, left: int) -> None:
        self._limits = limits
        self._name = name
        self._left = left

    def visit(self, value: Any, path: _ValuePath, counted: str | None, depth: int) -> None:
        """Visit a value. `counted` is the limit for its own length, or None."""
        limits = self._limits
        if depth > limits.depth:
            limits.refuse("depth", _path_text(path), f"'{_path_text(path)}' is nested too deeply")
        if not isinstance(value, Struct):
            if counted is not None:
                limits.check(counted, len(value), _path_text(path))
            if isinstance(value, list) and set(map(type, value)) <= _NUMBERS:
                return
            self._left -= len(value)
            if self._left < 0:
                limits.refuse(
                    self._name, _path_text(path), f"There are too many values in '{_path_text(path)}'"
                )
        for key, member in _members(value):
            if not isinstance(member, _HOLDERS):
                continue
            inner = _COUNTED.get(key) if isinstance(key, str) else counted  # a list of lists
            if key in _SCHEMAS and self._name == "values":
                schema = _ValueCounter(limits, "schema_values", limits.schema_values)
                schema.visit(member, (path, key), inner, depth + 1)
                self._left -= limits.schema_values - schema._left
            else:
                self.visit(member, (path, key), inner, depth + 1)


def _members(value: Any) -> Iterable[tuple[str | int, Any]]:
    """The members of an object, a list or a struct that may contain further values."""
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, list):
        return enumerate(value)
    return [(name, getattr(value, name)) for name in _holders(type(value))]  # type: ignore[arg-type]


@cache
def _holders(type_: type[Struct]) -> tuple[str, ...]:
    """The fields of a struct that may hold objects, lists or structs."""
    fields = inspect.type_info(type_).fields  # type: ignore[attr-defined]
    return tuple(field.name for field in fields if not _is_scalar(field.type))


def _is_scalar(type_: inspect.Type) -> bool:
    if isinstance(type_, inspect.UnionType):
        return all(map(_is_scalar, type_.types))
    return isinstance(type_, _SCALAR_TYPES)


def _path_text(path: _ValuePath) -> str:
    """A path as errors name it: `tools[0].function.name`."""
    if path is None:
        return ""
    outer, key = _path_text(path[0]), path[1]
    return f"{outer}[{key}]" if isinstance(key, int) else f"{outer}.{key}".lstrip(".")
