"""Texts of other servers, for the log and for clients: short, on one line, without what looks like a key.

Servers quote requests in their errors, and with them keys, tokens and whole prompts. Keys that this server
itself uses are known, and hidden in every form in which they may be quoted; others are recognised by their
names (an `Authorization`, a `password`, the user in a URL) or by their looks.
"""

import re
from base64 import b64encode
from itertools import pairwise
from urllib.parse import quote, quote_plus

import msgspec

SHOWN = 300
"""Characters of such a text."""
READ = 4 * SHOWN
"""Characters of it that are looked at: what is beyond is not shown in any case."""
HIDDEN = "…"
SHORTEST = 4
"""Characters of a known key: what is shorter may be in any text."""

_NAME = r"""
    (?:api|access|secret|private|subscription|auth)[-_.\ ]?key | (?:proxy-)?authorization | token | secret
    | pass(?:word|wd|phrase)? | pwd | credentials? | signature | sig | session(?:[-_]?id)? | sid
"""
_SECRET = re.compile(
    rf"""
      (?P<name>(?i:{_NAME})                                # a name, in quotes or not, and what is between
        (?: (?:\\*+["']|&quot;)?+\s*+
            (?: :=? | =>? | -> | ,(?=\s*+\\*+["'b]) | %3[AaDd] | > | provided: ) \s*+
          | \s++(?=\\*+["'`]) )
        b?+ (?:(?i:bearer|basic|token|apikey|digest)(?:\s|%20|\+)++)?+ )
        (?: (?P<quote>\\*+["'`]|&quot;) [^"'`\\\n]{{4,}}+      # a value in quotes, to their end
          | [^\s"'`&<>\\]{{4,}}+ )                          # or one without
    | (?P<cookie>\b(?i:set-)?+(?i:cookie)\\*+["']?+\s*+[:=]\s*+)[^"'\\\n]{{4,}}+
    | (?P<scheme>\b(?i:bearer|basic|digest)(?:\s|%20)++)[^\s"',;&)}}\]]{{7,}}+
    | (?P<user>://)[^/\s@"']{{1,200}}@
    | (?P<query>[?&](?i:key|code|[a-z-]{{0,24}}signature|[a-z-]{{0,24}}credential)=)[^&\s"'<>]{{4,}}+
    | \b(?:sk|pk|rk|hf|r8|gsk|npm|tgp|pplx|nvapi|gh[opsu]|github_pat|glpat|xox[abprs]|dop|AKIA|ASIA|AIza|ya29)
        [-_.]?[A-Za-z0-9_-]{{8,}}+
    | \beyJ[A-Za-z0-9_-]{{8,}}+(?:\.[A-Za-z0-9_-]++)*+
    | \b[0-9A-Fa-f]{{8}}-(?:[0-9A-Fa-f]{{4}}-){{3}}[0-9A-Fa-f]{{12}}\b
    | (?P<long>[A-Za-z0-9+/_-]{{24,}}+={{0,2}})
    """,
    re.VERBOSE,
)
_PARTS = re.compile(r"[/_-]")
_WORD = 24
"""The longest word of a path or of the name of a model."""
_MIXED = 8
"""Characters of a word in which letters and digits alternate as in no name."""

_CASES = 4
"""Changes of case in such a word."""

_known: dict[str, None] = {}
"""The keys that this server uses, in the forms in which a server may quote them."""


def know(key: str) -> None:
    """Hide this key from now on."""
    if len(key) < SHORTEST:
        return
    raw = key.encode()
    forms = [key, msgspec.json.encode(key).decode()[1:-1], quote(key, safe=""), quote_plus(key)]
    forms += [b64encode(raw).decode().rstrip("="), repr(key)[1:-1]]
    _known.update(dict.fromkeys(forms))


def redacted(text: str) -> str:
    """The beginning of a text of another server, as it may be shown."""
    read = without_known(text[: 2 * READ])[:READ]  # before it is cut: a part of a key is one, too
    hidden = _SECRET.sub(_hide, read)
    line = " ".join("".join(char if char.isprintable() else " " for char in hidden).split())
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}{HIDDEN}"


def without_known(text: str) -> str:
    """The text without the keys that this server uses."""
    for key in sorted(_known, key=len, reverse=True):
        text = text.replace(key, HIDDEN)
    return text


def _hide(match: re.Match[str]) -> str:
    if (long := match["long"]) is not None:
        return HIDDEN if any(map(_is_random, _PARTS.split(long.rstrip("=")))) else long
    prefix = next((match[name] for name in ("name", "cookie", "scheme", "user", "query") if match[name]), "")
    return f"{prefix}{match['quote'] or ''}{HIDDEN}{'@' if match['user'] else ''}"


def _is_random(word: str) -> bool:
    """Whether it is no word of a path or a name: too long, or letters and digits in turns."""
    digits = sum(first.isdigit() != second.isdigit() for first, second in pairwise(word))
    cases = sum(first.islower() != second.islower() for first, second in pairwise(word))
    return len(word) >= _WORD or (len(word) >= _MIXED and (digits > 1 or cases > _CASES))
