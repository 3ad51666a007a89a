"""How the ids of calls are made, for models that give none. A dialect chooses one of these."""

import secrets
from collections.abc import Callable

CallIds = Callable[[str, int], str]
"""(function name, how many calls the conversation has already) → the call's id."""

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def random_id(prefix: str, length: int) -> str:
    """`prefix` and `length` random letters and digits."""
    # Six bits a character from one draw; the two values past the alphabet wrap, which
    # costs a little entropy and no uniqueness.
    bits = secrets.randbits(6 * length)
    return prefix + "".join(_ALPHABET[(bits >> 6 * i & 63) % 62] for i in range(length))


def openai_call_id(name: str, index: int) -> str:
    """`call_` and 24 random characters, as OpenAI makes them."""
    return random_id("call_", 24)
