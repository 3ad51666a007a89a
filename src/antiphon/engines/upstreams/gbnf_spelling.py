r"""GBNF as TabbyAPI reads it: grammars are written for llama.cpp and xgrammar, with codes of characters.

TabbyAPI has llguidance turn GBNF into Lark's notation, and that (also in 1.9.1) cuts off the zeros that codes
of four and eight digits begin with: of a grammar with `\u005D` it says that it is not valid. It takes codes
of two digits in classes, and characters as they are.
"""

import re

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)", re.DOTALL)


def respelled(grammar: str) -> str:
    """The grammar without codes of four and eight digits."""
    return _QUOTED.sub(
        lambda found: _in_class(found[0]) if found[0][0] == "[" else _literal(found[0]), grammar
    )


def _in_class(text: str) -> str:
    def spelled(escape: re.Match[str]) -> str:
        code = _code(escape)
        if code is None:
            return escape[0]
        return f"\\x{code:02X}" if code < 0x100 else chr(code)

    return _ESCAPE.sub(spelled, text)


def _literal(text: str) -> str:
    """A literal, in which control characters have classes of their own: it has no other codes for them."""

    def spelled(escape: re.Match[str]) -> str:
        code = _code(escape)
        if code is None:
            return escape[0]
        is_control = code < 0x20 or 0x7F <= code < 0xA0
        return f'" [\\x{code:02X}] "' if is_control else chr(code)

    written = _ESCAPE.sub(spelled, text)
    return f"({written})" if '" [' in written else written


def _code(escape: re.Match[str]) -> int | None:
    """The character that is meant; None if it has no code."""
    digits = escape[1] or escape[2]
    return int(digits, 16) if digits else None
