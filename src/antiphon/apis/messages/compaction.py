"""Blocks with the summary of a conversation: made here, and read when the client sends them back.

A block has its text, and the same sealed, as the `compaction` items of Responses have it: either API reads
both. It is signed, so that a text that somebody has changed is refused, and so are its changes of tools. The
text of other servers is read as it is.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from antiphon.apis.messages.resource import CompactionBlock
from antiphon.apis.request_object import RequestObject
from antiphon.apis.sealing import Signer, is_sealed
from antiphon.core.errors import RequestError

COMPACTION = "compaction"
TOOL_CHANGES = "tool_changes"
ADDITION = "tool_addition"
REMOVAL = "tool_removal"
CHANGES = (ADDITION, REMOVAL)
"""The blocks that change tools."""
_OWN = "a1."
"""The beginning of signatures of servers of this kind: a version."""


class Compaction(NamedTuple):
    """A summary, and what the conversation before it has changed in the tools of the request."""

    text: str
    changes: Sequence[RequestObject]


def compaction_block(
    text: str, changes: Sequence[Mapping[str, Any]], seal: Callable[[str], str], signer: Signer
) -> CompactionBlock:
    """The block of a summary; one without content if the model has written none."""
    if not text.strip():
        return CompactionBlock(None)
    signature = f"{_OWN}{signer.sign(text)}.{signer.sign(_signed(text, changes))}"
    return CompactionBlock(text, seal(text), signature, tuple(changes))


def read_compaction(
    block: RequestObject, unseal: Callable[[str], str | None], signer: Signer
) -> Compaction | None:
    """The summary of a block, None if it has none. Raises RequestError, with Anthropic's codes."""
    content, changes = block.text_or_none("content"), block.objects(TOOL_CHANGES)
    for change in changes:
        if change.text("type") not in CHANGES:
            raise change.wrong("type", f"Use one of: {', '.join(CHANGES)}.")
    if content == "":
        raise block.wrong("content", "It may not be empty. Send the block back as it came.")
    sealed = block.text_or_none("encrypted_content")
    text = None if sealed is None else unseal(sealed)
    if sealed is not None and text is None and is_sealed(sealed):
        raise _invalid(block, "encrypted_content", "compaction_signature_invalid")
    if text is not None and content not in (None, text):
        raise _invalid(block, "content", "compaction_content_mismatch")
    text = content if text is None else text
    if text is None:
        return None
    signature = block.text_or_none("signature") or ""
    if signature.startswith(_OWN):
        of_text, _, of_changes = signature.removeprefix(_OWN).partition(".")
        if not signer.signed(text, of_text):
            raise _invalid(block, "signature", "compaction_signature_invalid")
        values = [change.value for change in changes]
        if TOOL_CHANGES in block.value and not signer.signed(_signed(text, values), of_changes):
            raise _invalid(block, TOOL_CHANGES, "compaction_tool_changes_mismatch")
    return Compaction(text, changes)


def _signed(text: str, changes: Sequence[Mapping[str, Any]]) -> str:
    """What the second half of a signature is of. SDKs add fields that are null."""
    return msgspec.json.encode([text, _plain(changes)], order="sorted").decode()


def _plain(value: Any) -> Any:
    """The value without members that are null."""
    if isinstance(value, Mapping):
        return {name: _plain(member) for name, member in value.items() if member is not None}
    return [*map(_plain, value)] if isinstance(value, list | tuple) else value


def _invalid(block: RequestObject, field: str, code: str) -> RequestError:
    error = block.wrong(field, "Send the block back as it came, or the conversation that it replaces.")
    error.code = code
    return error
