"""The places of media in a prompt: the placeholders that a chat template writes for them.

While messages are arranged, their contents are texts. A medium in them is a `mark`, a text that no client
can guess. A template with its own placeholders gets lists of parts, `[{"type": "text", …}, {"type":
"image"}]`, made from the text at its marks; any other gets a plain placeholder as text. In the prompt, each
placeholder is between `FENCE`s, with the number of the medium before it: `split_at_media` removes these.
"""

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from antiphon.core.errors import RequestError
from antiphon.core.items import (
    WITH_PARTS,
    Attachment,
    Item,
    MediaKind,
    MediaPart,
    Part,
    TextPart,
)
from antiphon.render.special_tokens import SEPARATOR

FENCE = "\ufdd1"
"""A noncharacter, like the separator of special tokens."""

PLAIN = {kind: f"<{kind.value}>" for kind in MediaKind}
"""The placeholders for templates without their own."""

_TAGS = re.compile(r"(?:<[^<>\s]+>|\[[A-Z_]+\])+")
_NUMBER = re.compile(r"\d+")


def media_in(items: Iterable[Item]) -> list[MediaPart]:
    """The media of a conversation, in order."""
    media: list[MediaPart] = []
    for item in items:
        if isinstance(item, WITH_PARTS):
            for part in item.parts:
                if isinstance(part, TextPart):  # nearly all: only an exact type is recognised quickly
                    continue
                if isinstance(part, MediaPart):
                    media.append(part)
    return media


class Marks:
    """The marks of the media of one conversation, numbered in their order."""

    def __init__(self, media: Sequence[MediaPart] = ()) -> None:
        self.media = media
        self._next = 0
        self._name = f"media:{secrets.token_hex(8)}:" if media else ""
        self._pattern = re.compile(f"{self._name}(\\d+);")

    def text_of(self, parts: Sequence[Part]) -> str:
        """The parts of one message, each on a new line; marks in the places of media.

        OpenAI does not specify this; vLLM joins them this way, and clients expect its prompts.
        """
        if len(parts) == 1 and isinstance(parts[0], TextPart):
            return parts[0].text  # as of nearly all messages
        return "\n".join([part.text if isinstance(part, TextPart) else self._mark(part) for part in parts])

    def _mark(self, part: MediaPart | Attachment) -> str:
        assert isinstance(part, MediaPart), "attachments are read before a prompt is made"
        self._next += 1
        return f"{self._name}{self._next - 1};"

    def numbers(self, text: str) -> list[int]:
        """The numbers of the media in a text, in order."""
        return [int(match[1]) for match in self._pattern.finditer(text)] if self.media else []

    def find_all(self, text: str) -> list[str]:
        """The marks in a text."""
        return [match[0] for match in self._pattern.finditer(text)] if self.media else []

    def without(self, text: str) -> str:
        """The text without its marks."""
        return self._pattern.sub("", text).strip("\n")

    def parts(self, text: str, placeholders: Mapping[MediaKind, str]) -> list[dict[str, Any]]:
        """A content as a list of parts: media of these kinds as such, all else as text."""
        parts: list[dict[str, Any]] = []
        at = 0
        for match in self._pattern.finditer(text) if self.media else ():
            kind = self.media[int(match[1])].kind
            if kind not in placeholders:
                continue
            # The separator that `text_of` has written between two parts.
            parts += _text_part(text[at : match.start()].removesuffix("\n"))
            parts.append({"type": kind.value})
            at = match.end() + (text[match.end() : match.end() + 1] == "\n")
        return parts + _text_part(text[at:])

    def fenced(self, prompt: str, order: Sequence[int], placeholders: Mapping[MediaKind, str]) -> str:
        """The prompt with fences around the placeholders of all media. Raises RequestError if one is missing.

        `order` are the numbers of the media in the order of the messages that the template was given.
        """
        prompt = prompt.replace(FENCE, SEPARATOR)  # without it, what is around it could be a special token
        plain = self.numbers(prompt)
        prompt = self._pattern.sub(self._plain, prompt)
        numbers = [number for number in order if self.media[number].kind in placeholders]
        places = [*_places(prompt, placeholders)]
        kinds = [self.media[number].kind for number in numbers]
        complete = sorted([*plain, *numbers]) == [*range(len(self.media))]
        if not complete or [kind for _, _, kind in places] != kinds:
            message = (
                "The chat template of this model has no place for media here. Send them in a user's message."
            )
            raise RequestError(message, param="messages")
        pieces, at = [], 0
        for (start, end, _), number in zip(places, numbers, strict=True):
            pieces += [prompt[at:start], _fence(number, prompt[start:end])]
            at = end
        return "".join(pieces) + prompt[at:]

    def _plain(self, mark: re.Match[str]) -> str:
        number = int(mark[1])
        return _fence(number, PLAIN[self.media[number].kind])


def _text_part(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text else []


def _fence(number: int, placeholder: str) -> str:
    return f"{FENCE}{number}:{placeholder}{FENCE}"


def _places(prompt: str, placeholders: Mapping[MediaKind, str]) -> Iterator[tuple[int, int, MediaKind]]:
    """The positions and kinds of the placeholders. Some templates number them."""
    if not placeholders:
        return
    kinds = [*placeholders]
    options = (_NUMBER.sub(r"\\d+", re.escape(placeholders[kind])) for kind in kinds)
    pattern = re.compile("|".join(f"({option})" for option in options))
    for match in pattern.finditer(prompt):
        assert match.lastindex is not None
        yield match.start(), match.end(), kinds[match.lastindex - 1]


def split_at_media(prompt: str) -> Iterator[str | tuple[int, str]]:
    """The texts of a prompt, and between them the number and the placeholder of each medium."""
    for index, piece in enumerate(prompt.split(FENCE)):
        if index % 2:
            number, _, placeholder = piece.partition(":")
            yield int(number), placeholder
        else:
            yield piece


def placeholder_in(none: str, one: str, two: str) -> str | None:
    """The placeholder of a template, found by comparing its output for no medium, one and two.

    Other words, such as `Picture 1:`, are text. None if it writes nothing that could be a placeholder.
    """
    start = _common(none, one)
    end = _common(none[start:][::-1], one[start:][::-1])
    match = _TAGS.search(one[start : len(one) - end])
    if match is None or len([*_places(two, {MediaKind.IMAGE: match[0]})]) != 2:
        return None
    return match[0]


def _common(first: str, second: str) -> int:
    """How many characters two texts begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
