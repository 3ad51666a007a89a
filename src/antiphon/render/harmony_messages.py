"""A text in harmony → its messages, in the form of OpenAI's library for it, which vLLM shows.

Of the messages that every prompt begins with, those of the roles system and developer, only the instructions
are content of a client: the rest is written for each prompt again.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_ENDS = re.compile(r"<\|(?:end|call|return)\|>")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_ROLES = ("assistant", "system", "developer", "user")
_INSTRUCTIONS, _TOOLS = "# Instructions\n\n", "# Tools\n\n"


def read_messages(text: str) -> list[Mapping[str, Any]]:
    """The messages of a prompt, or of an answer, whose first message is the assistant's. It never raises."""
    return [*_messages(text)]


def _messages(text: str) -> Iterator[Mapping[str, Any]]:
    for piece in _ENDS.split(text):
        header, separator, content = piece.partition("<|message|>")
        if separator:  # otherwise it is the beginning of the next answer
            yield _message(header.rpartition("<|start|>")[2], content)


def _message(header: str, content: str) -> Mapping[str, Any]:
    author = re.split(r"[\s<]", header, maxsplit=1)[0] or "assistant"
    message: dict[str, Any] = {"role": author} if author in _ROLES else {"role": "tool", "name": author}
    if author == "system":
        message["content"] = [{"type": "system_content", "text": content}]
    elif author == "developer":
        instructions = content.partition(_TOOLS)[0].removeprefix(_INSTRUCTIONS).strip()
        message["content"] = [{"type": "developer_content", "instructions": instructions}]
    else:
        message["content"] = [{"type": "text", "text": content}]
    for name, pattern in (("channel", _CHANNEL), ("recipient", _RECIPIENT)):
        if value := pattern.search(header):
            message[name] = value[1]
    return message
