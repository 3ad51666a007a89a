"""Seams: places in a rendered prompt where no special token begins, whatever it looks like.

What a client says may look like a special token: `<|end|>` in a question about
prompts, or in a web page that wants to be obeyed. A renderer puts a seam into
each of them, in all that is the client's and in nothing of its own, and the
prompt is tokenized piece by piece: the model reads just what the client said, in
ordinary tokens.

What looks special is `<|NAME|>`, with wide bars too, and the texts of a model's
own tokens that the renderer knows. Tags that templates look for in what was
said (`</think>`) have no seams.
"""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

SEAM = "\ufdd0"
"""A noncharacter, which Unicode keeps for use inside of a program."""

_LOOKS_SPECIAL = r"<[|｜](?=[^\s<>|｜]+[|｜]>)"
_SIGNS = re.compile(r"[\W_]*")
_LOOKS_ESCAPED = r"\\(?=ufdd0)"
_ESCAPED = re.compile(r"(?<!\\)((?:\\\\)*)\\ufdd0")


class Seams:
    """Puts a seam inside of whatever looks like a special token, or is one of `tokens`.

    It stands where tokenizers cut anyway, between signs and a word, so that the
    ordinary tokens are those of the whole text. Seams that were there are taken away.
    """

    def __init__(self, *tokens: str) -> None:
        longer = [token for token in sorted(tokens, key=len, reverse=True) if len(token) > 1]
        self._pattern = _pattern(longer)
        escaped = [msgspec.json.encode(token).decode()[1:-1] for token in longer]
        self._in_json = re.compile(f"{_pattern(escaped).pattern}|{SEAM}")

    def text(self, text: str) -> str:
        """The text with seams."""
        return self._pattern.sub(lambda found: found[0] + SEAM, text.replace(SEAM, ""))

    def value(self, value: Any) -> Any:
        """A JSON value with seams in all of its texts, keys included."""
        # One look at the whole, which nearly always has nothing, is much cheaper than a walk.
        found = self._in_json.search(msgspec.json.encode(value).decode())
        return value if found is None else self._walked(value)

    def _walked(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self._walked(key): self._walked(inner) for key, inner in value.items()}
        return [self._walked(inner) for inner in value] if isinstance(value, list | tuple) else value


def _pattern(tokens: Iterable[str]) -> re.Pattern[str]:
    """Finds where seams belong: what stands before them."""
    return re.compile("|".join([_LOOKS_SPECIAL, _LOOKS_ESCAPED, *map(_before_seam, tokens)]))


def _before_seam(token: str) -> str:
    """A pattern for the beginning of a token, up to the place for a seam, where the token is."""
    found = _SIGNS.match(token)
    at = found.end() if found and 0 < found.end() < len(token) else 1
    return f"{re.escape(token[:at])}(?={re.escape(token[at:])})"


ANY_MODEL = Seams()
"""Knows no model's tokens, only what they look like."""


def unescape(text: str) -> str:
    """The text with the seams that a template wrote as JSON and Python escape them, in ASCII.

    What a client wrote in that way has a seam of its own, so it is not taken for one.
    """
    return _ESCAPED.sub(rf"\1{SEAM}", text) if r"\ufdd0" in text else text


def pieces(prompt: str) -> list[str]:
    """The pieces to tokenize one by one. Joined, they are the prompt that the model reads."""
    return prompt.split(SEAM)
