"""The types of items in both specifications, and the prefixes of their ids.

Ids are derived, not random: a response that is replayed after a crash gives its items the ids that its
readers have got.
"""

from hashlib import sha256

from msgspec import Struct

ID_DIGITS = 48
"""Hexadecimal digits in the id of an item, as many as OpenAI's ids have."""


class ItemKind(Struct, frozen=True):
    """A type of item: the prefix of its ids, and whether its specification gives it a status."""

    prefix: str
    has_status: bool = True


KINDS = {
    "message": ItemKind("msg"),
    "reasoning": ItemKind("rs"),
    "function_call": ItemKind("fc"),
    "function_call_output": ItemKind("fco"),
    "custom_tool_call": ItemKind("ctc"),
    "custom_tool_call_output": ItemKind("ctco"),
    "file_search_call": ItemKind("fs"),
    "web_search_call": ItemKind("ws"),
    "code_interpreter_call": ItemKind("ci"),
    "image_generation_call": ItemKind("ig"),
    "computer_call": ItemKind("cu"),
    "computer_call_output": ItemKind("cuo"),
    "local_shell_call": ItemKind("lsh"),
    "local_shell_call_output": ItemKind("lsho"),
    "shell_call": ItemKind("sh"),
    "shell_call_output": ItemKind("sho"),
    "apply_patch_call": ItemKind("apc"),
    "apply_patch_call_output": ItemKind("apco"),
    "tool_search_call": ItemKind("tsc"),
    "tool_search_output": ItemKind("tso"),
    "mcp_call": ItemKind("mcp"),
    "mcp_list_tools": ItemKind("mcpl", has_status=False),
    "mcp_approval_request": ItemKind("mcpr", has_status=False),
    "mcp_approval_response": ItemKind("mcpa", has_status=False),
    "additional_tools": ItemKind("at", has_status=False),
    "configuration_update": ItemKind("cfg", has_status=False),
    "program": ItemKind("prg", has_status=False),
    "program_output": ItemKind("prgo"),
    "compaction": ItemKind("cmp", has_status=False),
    "compaction_trigger": ItemKind("cmpt", has_status=False),
}

CORE_TYPES = frozenset(
    {
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "compaction",
        "compaction_trigger",
        "item_reference",
    }
)
"""Types with the same meaning on every server: the others are calls and results of tools."""

REFERENCE = "item_reference"
"""Refers to a stored item; it is not stored itself."""


def kind_of(type_: str) -> ItemKind:
    """The kind of items of this type. For an unknown type, the prefix of ids is the type."""
    return KINDS.get(type_) or ItemKind(type_)


def item_id(type_: str, owner: str, place: str) -> str:
    """The id of the item at this place in the object with the id `owner`."""
    return f"{kind_of(type_).prefix}_{_digest(owner, place)}"


def _digest(owner: str, place: str) -> str:
    return sha256(f"{owner}\0{place}".encode()).hexdigest()[:ID_DIGITS]
