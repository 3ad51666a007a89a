r"""Halves of characters in JSON, as clients make them that cut texts: `"\ud83d"` without the other half.

Text cannot hold one, and parsers refuse it. It becomes U+FFFD, like any character that cannot be read.
"""

import re

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""An escape, or two for one character; the group is half of one."""
_ENCODED = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
"""Half of a character in UTF-8, which has none."""


def with_whole_characters_in(text: str) -> str:
    """The same for JSON that is a text, like the arguments of a call."""
    return with_whole_characters(text.encode()).decode() if "\\u" in text else text


def with_whole_characters(body: bytes) -> bytes:
    """The JSON with U+FFFD in place of each half, escaped or not."""
    if b"\xed" in body:  # also in Korean
        body = _ENCODED.sub("\ufffd".encode(), body)
    if b"\\ud" not in body and b"\\uD" not in body:
        return body
    return _ESCAPE.sub(lambda match: b"\\ufffd" if match[1] else match[0], body)
