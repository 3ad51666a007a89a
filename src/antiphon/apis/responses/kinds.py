"""The types of items there are, in either specification, and what their ids begin with.

Ids are derived, not random: a response that is replayed after a crash gives its items
the ids that its readers have seen.
"""

from hashlib import sha256

from msgspec import Struct

ID_DIGITS = 48
"""Hexadecimal digits in the id of an item, as many as OpenAI's ids have."""


class Kind(Struct, frozen=True):
    """A type of item: what its ids begin with, and whether its specification gives it a status."""

    prefix: str
    has_status: bool = True


KINDS = {
    "message": Kind("msg"),
    "reasoning": Kind("rs"),
    "function_call": Kind("fc"),
    "function_call_output": Kind("fco"),
    "custom_tool_call": Kind("ctc"),
    "custom_tool_call_output": Kind("ctco"),
    "file_search_call": Kind("fs"),
    "web_search_call": Kind("ws"),
    "code_interpreter_call": Kind("ci"),
    "image_generation_call": Kind("ig"),
    "computer_call": Kind("cu"),
    "computer_call_output": Kind("cuo"),
    "local_shell_call": Kind("lsh"),
    "local_shell_call_output": Kind("lsho"),
    "shell_call": Kind("sh"),
    "shell_call_output": Kind("sho"),
    "apply_patch_call": Kind("apc"),
    "apply_patch_call_output": Kind("apco"),
    "tool_search_call": Kind("tsc"),
    "tool_search_output": Kind("tso"),
    "mcp_call": Kind("mcp"),
    "mcp_list_tools": Kind("mcpl", has_status=False),
    "mcp_approval_request": Kind("mcpr", has_status=False),
    "mcp_approval_response": Kind("mcpa", has_status=False),
    "additional_tools": Kind("at", has_status=False),
    "program": Kind("prg", has_status=False),
    "program_output": Kind("prgo"),
    "compaction": Kind("cmp", has_status=False),
    "compaction_trigger": Kind("cmpt", has_status=False),
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
"""Types that mean the same with every server: what is left are calls and results of some tool."""

REFERENCE = "item_reference"
"""Stands for an item that is stored: never stored itself."""


def kind_of(type_: str) -> Kind:
    """The kind of items of this type. Ids of one that is in no specification begin with the type."""
    return KINDS.get(type_) or Kind(type_)


def item_id(type_: str, owner: str, place: str) -> str:
    """The id of the item at this place of what `owner` is the id of."""
    return f"{kind_of(type_).prefix}_{_digest(owner, place)}"


def _digest(owner: str, place: str) -> str:
    return sha256(f"{owner}\0{place}".encode()).hexdigest()[:ID_DIGITS]
