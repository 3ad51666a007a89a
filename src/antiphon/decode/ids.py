"""How the ids of calls are made, for models that give none. A dialect chooses one of these."""

import secrets
import string
from collections.abc import Callable

CallIds = Callable[[str, int], str]
"""(function name, index of the call) → the call's id."""


def counted_from(calls: int, ids: CallIds) -> CallIds:
    """The same ids for a conversation that has this many calls already."""
    return lambda name, index: ids(name, calls + index)


def random_id(prefix: str, length: int) -> str:
    """`prefix` and `length` random hexadecimal digits, four bits each."""
    return prefix + secrets.token_hex((length + 1) // 2)[:length]


def openai_call_id(name: str, index: int) -> str:
    """`call_` and 24 random characters, as OpenAI makes them."""
    return random_id("call_", 24)


def mistral_call_id(name: str, index: int) -> str:
    """Nine letters or digits: Mistral's templates take no other id."""
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))


def kimi_call_id(name: str, index: int) -> str:
    """`functions.NAME:INDEX`, counted over the whole conversation, as the Kimi models write it themselves."""
    return f"functions.{name}:{index}"


_ALPHANUMERIC = string.ascii_letters + string.digits
