"""The elements of conversations: items, shared by every API and by the store.

Chat messages and items of the Responses API are both projections of these. Items are immutable; a
conversation is a tuple of them.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct


class Role(StrEnum):
    """The role of a message. Tool results are items of their own."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"


class Status(StrEnum):
    """How far an item got."""

    COMPLETED = "completed"
    INCOMPLETE = "incomplete"


class MediaKind(StrEnum):
    """The kind of a part that is not text. A file is read: it becomes text, or one of the other kinds."""

    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"
    FILE = "file"


class TextPart(Struct, frozen=True, tag="text"):
    """Text inside a message or a tool result."""

    text: str


class Attachment(Struct, frozen=True, tag="attachment"):
    """Media as a client sent them, not read yet: base64 as `data`, or their location.

    `url` is an http(s) URL or a data URL, `file_id` names a stored file. `name` is that of the file. With
    `low` detail a small version is enough for the client. `param` is the place of the part in the request,
    for errors.
    """

    kind: MediaKind
    param: str
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    name: str | None = None
    low: bool = False


class MediaPart(Struct, frozen=True, tag="media"):
    """An image, audio or a video that was read and checked: `digest` is the SHA-256 of `data`.

    `width` and `height` are pixels, 0 for audio. `param` is its place in the request, for errors.
    """

    kind: MediaKind
    digest: str
    media_type: str
    data: bytes
    width: int = 0
    height: int = 0
    param: str = ""


Part = TextPart | MediaPart | Attachment


def text_in(parts: Iterable[Part], separator: str = "") -> str:
    """The text of the parts that are text, joined."""
    return separator.join([part.text for part in parts if isinstance(part, TextPart)])


class Message(Struct, frozen=True, tag="message"):
    """A message of any role. `name` distinguishes speakers of one role.

    `template_role` is a role that only the chat templates of some models know, like `document`.
    """

    role: Role
    parts: tuple[Part, ...]
    name: str | None = None
    phase: str | None = None
    status: Status = Status.COMPLETED
    template_role: str | None = None

    @property
    def text(self) -> str:
        """All text parts, joined."""
        parts = self.parts
        if len(parts) == 1 and type(parts[0]) is TextPart:
            return parts[0].text
        return text_in(parts)


class Reasoning(Struct, frozen=True, tag="reasoning"):
    """What the model reasoned before it answered."""

    text: str
    status: Status = Status.COMPLETED


class FunctionCall(Struct, frozen=True, tag="function_call"):
    """A function that the model wants called. `arguments` is JSON text as the model wrote it.

    An incomplete call was cut or is broken: its arguments may not be JSON. A `hosted` one is the server's.
    The conversation goes on while the client runs an `unawaited` one.
    `caller` is the id of the call of a program that calls it: then the model does not see it.
    """

    call_id: str
    name: str
    arguments: str
    status: Status = Status.COMPLETED
    hosted: bool = False
    unawaited: bool = False
    caller: str = ""


class FunctionOutput(Struct, frozen=True, tag="function_call_output"):
    """The output of a called function."""

    call_id: str
    parts: tuple[Part, ...]
    name: str | None = None

    @property
    def text(self) -> str:
        """All text parts, joined."""
        return text_in(self.parts)


Item = Message | Reasoning | FunctionCall | FunctionOutput
OutputItem = Message | Reasoning | FunctionCall
WITH_PARTS = (Message, FunctionOutput)
"""The items with `parts`. A union would take `isinstance` far longer in Python 3.11."""


def object_in(arguments: str) -> dict[str, Any] | None:
    """The arguments of a call as an object; None if they are not a JSON object."""
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):  # also half a character, or nested without end
        return None
    return value if isinstance(value, dict) else None
