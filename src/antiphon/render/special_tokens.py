"""Special-token escaping: text of clients never becomes a special token.

A client's text may spell a special token: `<|end|>` in a question about prompts, or in a web page that
attempts an injection. A renderer inserts a separator into each of them, in all text of the client and in no
text of its own. The prompt is split at the separators and tokenized piece by piece, so that the model reads
the client's text as ordinary tokens.

Treated as special are `<|NAME|>`, with fullwidth bars too, and the texts of the model's own tokens that the
renderer knows: those that the engine names, those in the markers of the dialect, and those between which the
template writes messages (`turn_markers`). Tags that templates search for in message contents (`</think>`) are
not escaped, or templates would not find them.
"""

import re
from collections.abc import Iterable
from io import StringIO
from itertools import groupby
from os.path import commonprefix
from typing import Any

import msgspec

SEPARATOR = "\ufdd0"
"""A noncharacter, which Unicode reserves for internal use."""

DEEPEST = 32
"""The most branches of a pattern inside each other; templates may have any tokens."""

_LOOKS_SPECIAL = r"<[|｜](?=[^\s<>|｜]+[|｜]>)"
_PUNCTUATION = re.compile(r"[\W_]*")
_LOOKS_ESCAPED = r"\\(?=ufdd0)"
_ESCAPED = re.compile(r"(?<!\\)((?:\\\\)*)\\ufdd0")


class SpecialTokenEscaper:
    """Inserts a separator into text that looks like a special token, or is one of `tokens`.

    It is inserted where tokenizers split anyway, between punctuation and a word, so that the ordinary tokens
    are those of the whole text. Separators in the text itself are removed.
    """

    def __init__(self, *tokens: str) -> None:
        irregular = {token for token in tokens if len(token) > 1 and not _BY_FORM.fullmatch(token)}
        self._pattern = _pattern(irregular)
        escaped = {msgspec.json.encode(token).decode()[1:-1] for token in irregular}
        self._irregular_in_json = re.compile(_any_of(escaped)) if escaped else None

    def escape(self, text: str) -> str:
        """The text with separators."""
        text = text.replace(SEPARATOR, "")
        if self._pattern.search(text) is None:
            return text
        # `sub` would keep all pieces until it joins them: a long text may have hundreds of thousands.
        escaped, start = StringIO(newline=""), 0
        for match in self._pattern.finditer(text):
            escaped.write(text[start : match.end()])
            escaped.write(SEPARATOR)
            start = match.end()
        escaped.write(text[start:])
        return escaped.getvalue()

    def escape_json(self, value: Any) -> Any:
        """A JSON value with separators in all of its strings, keys included."""
        if not value:
            return value
        # Nearly always there is nothing to escape, and searches of the encoded value are much
        # cheaper than a walk.
        text = msgspec.json.encode(value).decode()
        irregular = self._irregular_in_json
        if any(start in text for start in _IN_JSON) or (irregular is not None and irregular.search(text)):
            return self._escape_strings(value)
        return value

    def _escape_strings(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.escape(value)
        if isinstance(value, dict):
            return {self._escape_strings(key): self._escape_strings(inner) for key, inner in value.items()}
        return [self._escape_strings(inner) for inner in value] if isinstance(value, list | tuple) else value


_BY_FORM = re.compile(r"<[|｜][^\s<>|｜]+[|｜]>")
_IN_JSON = ("<|", "<｜", r"\ufdd0", SEPARATOR)


def _pattern(tokens: Iterable[str]) -> re.Pattern[str]:
    """Matches the text before each place for a separator."""
    rests: dict[str, set[str]] = {}
    for token in tokens:
        match = _PUNCTUATION.match(token)
        at = match.end() if match and 0 < match.end() < len(token) else 1
        rests.setdefault(token[:at], set()).add(token[at:])
    # The longest first: of `<` and `</`, both may match.
    starts = sorted(rests, key=len, reverse=True)
    own = [f"{re.escape(start)}(?={_any_of(rests[start])})" for start in starts]
    return re.compile("|".join([_LOOKS_SPECIAL, _LOOKS_ESCAPED, *own]))


def _any_of(texts: Iterable[str], depth: int = DEEPEST) -> str:
    """A pattern of texts, matched as a tree: a vocabulary may have thousands, and none is tried by itself."""
    ordered = sorted(texts)
    if not ordered or not ordered[0]:
        return ""  # one of them has been found, or there is none
    if not depth:
        return f"(?:{'|'.join(map(re.escape, ordered))})"
    options = []
    for _, group in groupby(ordered, key=lambda text: text[0]):
        alike = [*group]
        start = commonprefix(alike)  # noqa: RUF071 - of texts, not of paths
        options.append(re.escape(start) + _any_of((text[len(start) :] for text in alike), depth - 1))
    return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"


GENERIC_ESCAPER = SpecialTokenEscaper()
"""For no particular model: recognises special tokens by their form only."""


def restore_separators(text: str) -> str:
    r"""The text with the separators that a template's `tojson` or `repr` wrote as `\ufdd0`.

    A client's own `\ufdd0` was escaped with a separator, so it is not restored.
    """
    return _ESCAPED.sub(rf"\1{SEPARATOR}", text) if r"\ufdd0" in text else text


def split_at_separators(prompt: str) -> list[str]:
    """The pieces to tokenize one by one. Joined, they are the prompt that the model reads."""
    return prompt.split(SEPARATOR)
