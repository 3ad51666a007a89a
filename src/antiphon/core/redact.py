"""Texts of other servers, for the log and for clients: short, on one line, without what looks like a key.

Servers quote requests in their errors, and with them keys, tokens and whole prompts.
"""

import re

SHOWN = 300
"""Characters of such a text."""
READ = 4 * SHOWN
"""Characters of it that are looked at: what is beyond is not shown in any case."""
HIDDEN = "…"

_SECRET = re.compile(
    r"""(?P<name>\b(?i:bearer|basic)\ +
          |(?i:api[-_ ]?key|authorization|token|secret|passw(?:or)?d)["']?\ *[:=]\ *["']?(?:(?i:bearer)\ +)?
        )[^\s"',;&)}\]]{7,}+
      |\b(?:sk|pk|rk|hf|gh[opsu]|github_pat|glpat|xox[abprs]|AKIA|AIza)[-_]?[A-Za-z0-9_-]{8,}+
      |\beyJ[A-Za-z0-9_-]{8,}+(?:\.[A-Za-z0-9_-]++)*+
      |(?P<long>[A-Za-z0-9+/_-]{32,}+={0,2})""",
    re.VERBOSE,
)
_PARTS = re.compile(r"[/_-]")
_WORD = 24
"""The longest word of a path or of the name of a model."""


def redacted(text: str) -> str:
    """The beginning of a text of another server, as it may be shown."""
    hidden = _SECRET.sub(_hide, text[:READ])
    line = " ".join("".join(char if char.isprintable() else " " for char in hidden).split())
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}{HIDDEN}"


def _hide(found: re.Match[str]) -> str:
    if (long := found["long"]) is not None:
        return HIDDEN if max(map(len, _PARTS.split(long))) >= _WORD else long
    return f"{found['name'] or ''}{HIDDEN}"
