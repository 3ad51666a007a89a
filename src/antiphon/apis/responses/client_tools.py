"""Tools that the client runs without describing them: a computer, a shell, an editor of files.

OpenAI's models were trained with them; others are offered a function, with the published fields as its
parameters. The call is shown as an item of the tool's own type, when it is complete, and the client answers
it with another item. If the arguments do not fit the tool, the item has harmless ones (a screenshot, no
command, an empty patch), and is incomplete.

To add a tool that the client runs, with items of its own: an entry of `CLIENT_TOOLS`, its readers in
`history.py`; `TOOLS` in `tests/http/test_client_tools.py`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from antiphon.apis.media import at_url, stored
from antiphon.apis.request_object import RequestObject, json_text
from antiphon.apis.responses.added_tools import SEARCH_FUNCTION
from antiphon.apis.responses.events import CommandAdded, CommandDelta, CommandDone
from antiphon.apis.responses.output.item import IN_PROGRESS, INCOMPLETE, ItemPosition, OpenItem
from antiphon.apis.tool_schemas import check_schema
from antiphon.core.hosts import Note, unread
from antiphon.core.items import FunctionCall, FunctionOutput, Item, MediaKind, TextPart, object_in
from antiphon.core.plain_tokens import SequenceNumbers
from antiphon.core.turn import Function

# Arguments of models

Keys = list[str] | None


class Point(Struct):
    """A place on the screen, in pixels."""

    x: int
    y: int


class Click(Struct, tag="click"):
    """A click."""

    x: int
    y: int
    button: Literal["left", "right", "wheel", "back", "forward"] = "left"
    keys: Keys = None


class DoubleClick(Struct, tag="double_click"):
    """A double click."""

    x: int
    y: int
    keys: Keys = None


class Drag(Struct, tag="drag"):
    """A way with the button held down."""

    path: list[Point]
    keys: Keys = None


class Keypress(Struct, tag="keypress"):
    """Keys that are pressed together."""

    keys: list[str]


class Move(Struct, tag="move"):
    """A move of the pointer."""

    x: int
    y: int
    keys: Keys = None


class Screenshot(Struct, tag="screenshot"):
    """Take a picture of the screen."""


class Scroll(Struct, tag="scroll"):
    """A scroll at a place, in pixels."""

    x: int
    y: int
    scroll_x: int
    scroll_y: int
    keys: Keys = None


class Type(Struct, tag="type"):
    """Type a text."""

    text: str


class Wait(Struct, tag="wait"):
    """Wait for a short time."""


Action = Click | DoubleClick | Drag | Keypress | Move | Screenshot | Scroll | Type | Wait


class Actions(Struct):
    """Actions, one after the other."""

    actions: list[Action]


class OneAction(Struct):
    """One action."""

    action: Action


class Command(Struct):
    """A program with its arguments."""

    command: list[str]
    env: dict[str, str] = {}
    timeout_ms: int | None = None
    working_directory: str | None = None


class CommandLines(Struct):
    """Lines for a shell."""

    commands: list[str]
    timeout_ms: int | None = None
    max_output_length: int | None = None


class CreateFileOperation(Struct, tag="create_file"):
    """A new file."""

    path: str
    diff: str


class UpdateFileOperation(Struct, tag="update_file"):
    """A change of a file."""

    path: str
    diff: str


class DeleteFileOperation(Struct, tag="delete_file"):
    """The end of a file."""

    path: str


class Patch(Struct):
    """A change of one file."""

    operation: CreateFileOperation | UpdateFileOperation | DeleteFileOperation


class Query(Struct):
    """What to search for, where a tool does not describe its arguments."""

    query: str


# Items


class ToolSearchItem(Struct, tag_field="type", tag="tool_search_call"):
    """A search among the tools that the client has."""

    id: str
    status: str
    call_id: str
    arguments: dict[str, Any]
    execution: str = "client"


class ComputerCallItem(Struct, tag_field="type", tag="computer_call"):
    """Actions on a screen: one, or several, depending on the tool."""

    id: str
    status: str
    call_id: str
    action: Action | UnsetType = UNSET
    actions: list[Action] | UnsetType = UNSET
    pending_safety_checks: tuple[()] = ()


class Exec(Command, tag_field="type", tag="exec"):
    """A program, as the item has it."""


class LocalShellCallItem(Struct, tag_field="type", tag="local_shell_call"):
    """A program to run."""

    id: str
    status: str
    call_id: str
    action: Exec


class LocalEnvironment(Struct, frozen=True, tag_field="type", tag="local"):
    """The machine of the client."""


class LocalShellItem(Struct, tag_field="type", tag="shell_call"):
    """Commands that the client is to run."""

    id: str
    status: str
    call_id: str
    action: CommandLines
    environment: LocalEnvironment = LocalEnvironment()


class ApplyPatchItem(Struct, tag_field="type", tag="apply_patch_call"):
    """A change of a file."""

    id: str
    status: str
    call_id: str
    operation: CreateFileOperation | UpdateFileOperation | DeleteFileOperation


# The tools


class ClientTool(Struct, frozen=True):
    """A tool of the client: its function for models, the type of `arguments`, and the item of a call.

    `item` makes an item from an id, a status, the call's id and the arguments; `none` replaces unfitting
    ones. `read` are the supported settings of the tool, `incomplete` is the status of an incomplete call.
    """

    name: str
    description: str
    arguments: Any
    type: str
    item: Callable[[str, str, str, Any], Struct]
    none: Any
    read: tuple[str, ...] = ("type", "allowed_callers")
    incomplete: str = INCOMPLETE

    def function(self, tool: RequestObject) -> Function:
        """The function that the model is offered."""
        return Function(self.name, self._about(tool), _schema(self.arguments), source=tool.where)

    def notes(self, tool: RequestObject) -> Iterator[Note]:
        """Notes on settings without effect."""
        yield from unread(tool.value, tool.where, self.read)
        environment = tool.value.get("environment")
        if isinstance(environment, dict):
            yield from unread(environment, tool.place("environment"), ("type",))

    def parsed(self, arguments: str) -> Any:
        """The decoded arguments; None if they do not fit the tool."""
        try:
            return msgspec.convert(object_in(arguments), self.arguments, strict=False)
        except msgspec.ValidationError:
            return None

    def _about(self, tool: RequestObject) -> str:
        width, height = tool.value.get("display_width"), tool.value.get("display_height")
        if width is None or height is None:
            return self.description
        where = tool.value.get("environment")
        return f"{self.description} The screen has {width} by {height} pixels, and shows: {where}."


class SearchTool(ClientTool, frozen=True):
    """A search among tools of the client, which may describe it and its arguments."""

    def function(self, tool: RequestObject) -> Function:
        parameters = tool.object_or_none("parameters")
        if parameters is not None:
            check_schema(parameters.value, tool.place("parameters"))
        schema = parameters.value if parameters is not None else _schema(Query)
        about = tool.text_or_none("description") or self.description
        return Function(self.name, about, schema, source=tool.where)


_COMPUTER = (
    "Acts on a computer, of which you see screenshots. x and y are pixels of the last one, from its upper "
    "left corner. After each call you are shown the screen. Begin with a screenshot."
)
_PREVIEW = ClientTool(
    "computer",
    _COMPUTER,
    OneAction,
    "computer_call",
    lambda id_, status, call_id, given: ComputerCallItem(id_, status, call_id, action=given.action),
    OneAction(Screenshot()),
    ("type", "display_width", "display_height", "environment"),
)
_LOCAL_SHELL = ClientTool(
    "local_shell",
    "Runs a program on the user's machine, and returns what it prints.",
    Command,
    "local_shell_call",
    lambda id_, status, call_id, given: LocalShellCallItem(
        id_, status, call_id, Exec(**msgspec.structs.asdict(given))
    ),
    Command([]),
)
_SHELL = ClientTool(
    "shell",
    "Runs commands in a shell on the user's machine, and returns what each prints.",
    CommandLines,
    "shell_call",
    LocalShellItem,
    CommandLines([]),
    ("type", "environment", "allowed_callers"),
)
_APPLY_PATCH = ClientTool(
    "apply_patch",
    "Creates, changes or deletes a file. A diff has the lines of the file, each behind a space if it stays, "
    "a '-' if it goes, a '+' if it is new; '@@' and a line before them say where. That of a new file has "
    "its lines behind '+'.",
    Patch,
    "apply_patch_call",
    lambda id_, status, call_id, given: ApplyPatchItem(id_, status, call_id, given.operation),
    Patch(UpdateFileOperation("", "")),
    incomplete=IN_PROGRESS,  # its specification has no other status
)
_SEARCH = SearchTool(
    SEARCH_FUNCTION,
    "Searches for more tools. You can call those that it finds.",
    dict[str, Any],
    "tool_search_call",
    ToolSearchItem,
    {},
    ("type", "execution", "description", "parameters"),
)
CLIENT_TOOLS: Mapping[str, ClientTool] = {
    "tool_search": _SEARCH,
    "computer": msgspec.structs.replace(
        _PREVIEW,
        arguments=Actions,
        item=lambda id_, status, call_id, given: ComputerCallItem(
            id_, status, call_id, actions=given.actions
        ),
        none=Actions([Screenshot()]),
    ),
    "computer_use_preview": _PREVIEW,
    "local_shell": _LOCAL_SHELL,
    "apply_patch": _APPLY_PATCH,
    "shell": _SHELL,
}
"""Type → the tool. A shell is the client's if its environment is `local`, a search if it says so."""
_COMPUTER_FIELDS = ("action", "actions")


def client_tool(tool: Mapping[str, Any]) -> ClientTool | None:
    """The client's tool of this type, if the tool of a request is one."""
    type_, environment = tool.get("type"), tool.get("environment")
    entry = CLIENT_TOOLS.get(type_) if isinstance(type_, str) else None
    if entry is _SHELL and not (isinstance(environment, dict) and environment.get("type") == "local"):
        return None
    return None if entry is _SEARCH and tool.get("execution") != "client" else entry


def _schema(type_: Any) -> dict[str, Any]:
    """The JSON Schema of a type, without references: models read that more easily."""
    (schema,), components = msgspec.json.schema_components([type_], ref_template="{name}")

    def whole(value: Any) -> Any:
        if isinstance(value, list):
            return [whole(part) for part in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            return whole(components[value["$ref"]])
        return {key: whole(part) for key, part in value.items() if key not in ("title", "discriminator")}

    whole_schema: dict[str, Any] = whole(schema)
    return whole_schema


class OpenClientCall(OpenItem):
    """A call of such a tool. It is shown when it is complete."""

    def __init__(
        self, numbers: SequenceNumbers, position: ItemPosition, call_id: str, tool: ClientTool
    ) -> None:
        super().__init__(numbers, position)
        self._call_id = call_id
        self._tool = tool

    def item(self, status: str) -> Struct:
        """The call."""
        given = self._tool.parsed(self.text)
        if given is None:
            given, status = self._tool.none, INCOMPLETE
        if status == IN_PROGRESS and isinstance(given, CommandLines):  # they are streamed later
            given = msgspec.structs.replace(given, commands=[])
        shown = self._tool.incomplete if status == INCOMPLETE else status
        return self._tool.item(self.position.id, shown, self._call_id, given)

    def start(self) -> list[bytes]:
        """The model begins to write it."""
        return []

    def end(self, item: Item) -> list[bytes]:
        """The call, as far as it was written."""
        assert isinstance(item, FunctionCall)
        self.text = item.arguments
        given = self._tool.parsed(self.text)
        lines = given.commands if isinstance(given, CommandLines) else ()
        return [self.added(), *command_events(self.numbers, self.position, lines)]


def command_events(
    numbers: SequenceNumbers, position: ItemPosition, commands: Iterable[str]
) -> Iterator[bytes]:
    """The commands of a `shell_call`, each whole."""
    for number, command in enumerate(commands):
        yield numbers.encode(CommandAdded, position.output_index, number, "")
        yield numbers.encode(CommandDelta, position.output_index, number, command)
        yield numbers.encode(CommandDone, position.output_index, number, command)


# Read back


def read_computer_call(item: RequestObject) -> Iterator[Item]:
    """A call of a computer."""
    given = {name: item.value[name] for name in _COMPUTER_FIELDS if item.value.get(name) is not None}
    yield FunctionCall(item.text("call_id"), _PREVIEW.name, json_text(given))


def read_screenshot(item: RequestObject) -> Iterator[Item]:
    """A picture of the screen; clients may leave it out."""
    shown = item.object_or_none("output") or RequestObject({}, item.place("output"))
    if shown.value.get("file_id") is not None:
        part: Any = stored(MediaKind.IMAGE, shown, shown.where)
    elif shown.value.get("image_url") is not None:
        part = at_url(MediaKind.IMAGE, shown, shown.where, "image_url")
    else:
        part = TextPart("(The screenshot is not there any more.)")
    yield FunctionOutput(item.text("call_id"), (part,))


def client_call(type_: str, field: str) -> Callable[[RequestObject], Iterator[Item]]:
    """Reads calls whose arguments are in a field, as this tool has them."""
    tool = CLIENT_TOOLS[type_]
    wrapped = field in {member.name for member in msgspec.structs.fields(tool.arguments)}

    def read(item: RequestObject) -> Iterator[Item]:
        given = item.value.get(field)
        if wrapped and isinstance(given, dict):
            given = {field: given}
        elif isinstance(given, dict):
            given = {name: value for name, value in given.items() if name != "type" and value is not None}
        yield FunctionCall(item.text("call_id"), tool.name, json_text(given))

    return read
