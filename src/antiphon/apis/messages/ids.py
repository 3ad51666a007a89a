"""The ids of calls: clients get them with Anthropic's prefix, models with that of their family.

Anthropic's have letters, digits, `_` and `-` only, those of server tools no `-`. Models may write others,
such as Kimi K2's `functions.get_weather:0`: there, a character is written as its code between `-x` and `-`,
or between `_x` and `_`. The id of a program ends with its fingerprint: clients of this API send back no other
member of its block.
"""

import re
from functools import partial

TOOL_USE = "toolu_"
SERVER_TOOL_USE = "srvtoolu_"
MCP_TOOL_USE = "mcptoolu_"

_FINGERPRINT = re.compile(r"_(py1_[0-9a-f]{1,12}_[0-9a-f]{32})$")
_PREFIXES = (TOOL_USE, SERVER_TOOL_USE, MCP_TOOL_USE)
_NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9_-]")
_WRITTEN = re.compile(r"-x([0-9a-f]{2,6})-")
_NOT_IN_SERVER_IDS = re.compile(r"[^a-zA-Z0-9_]")
_WRITTEN_IN_SERVER_IDS = re.compile(r"_x([0-9a-f]{2,6})_")


def wire_id(prefix: str, call_id: str) -> str:
    """The id of a call as clients get it."""
    own = call_id.removeprefix("call_")
    if prefix == SERVER_TOOL_USE:
        return prefix + _NOT_IN_SERVER_IDS.sub(lambda match: f"_x{ord(match[0]):02x}_", own)
    return prefix + _NOT_IN_IDS.sub(lambda match: f"-x{ord(match[0]):02x}-", own)


def program_id(call_id: str, fingerprint: str) -> str:
    """The id of a program as clients get it."""
    return f"{wire_id(SERVER_TOOL_USE, call_id)}_{fingerprint}"


def fingerprint_in(given: str) -> str:
    """The fingerprint in the id of a program; empty if it has none."""
    found = _FINGERPRINT.search(given) if given.startswith(SERVER_TOOL_USE) else None
    return found[1] if found else ""


def core_id(given: str) -> str:
    """The id of the call in prompts, for any form of the id in requests."""
    for prefix in _PREFIXES:
        if given.startswith(prefix) and given != prefix:
            own = given.removeprefix(prefix)
            if prefix == SERVER_TOOL_USE:
                own = _FINGERPRINT.sub("", own)
            own = _WRITTEN.sub(partial(_character, _NOT_IN_IDS), own)
            if prefix != SERVER_TOOL_USE:
                return own
            return _WRITTEN_IN_SERVER_IDS.sub(partial(_character, _NOT_IN_SERVER_IDS), own)
    return given


def _character(escaped: re.Pattern[str], match: re.Match[str]) -> str:
    """The character of a code; others stay as they are."""
    code = int(match[1], 16)
    is_written = code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF and escaped.match(chr(code))
    return chr(code) if is_written else match[0]
