"""Seams: places in a rendered prompt where no special token begins, whatever it looks like.

What a client says may look like a special token: `<|end|>` in a question about
prompts, or in a web page that wants to be obeyed. A renderer that knows which
text is the client's puts a seam into each of them, and the prompt is tokenized
piece by piece: the model reads just what the client said, in ordinary tokens.
"""

import re

SEAM = "\ufdd0"
"""A noncharacter, which Unicode keeps for use inside of a program."""

_LOOKS_SPECIAL = re.compile(r"<\|(?=[a-z0-9_]+\|>)")


def with_seams(text: str) -> str:
    """`text` with a seam inside of whatever looks like a special token, `<|NAME|>`.

    It stands where tokenizers cut anyway, between a sign and a word, so that
    the ordinary tokens are those of the whole text.
    """
    return _LOOKS_SPECIAL.sub(f"<|{SEAM}", text.replace(SEAM, ""))


def pieces(prompt: str) -> list[str]:
    """The pieces to tokenize one by one. Joined, they are the prompt that the model reads."""
    return prompt.split(SEAM)
