"""How the ids of calls are made, for models that give none. A dialect chooses a rule.

A rule draws from given dice: thrown anew, or the same again where an answer
that was interrupted must give its calls the ids that they had.
"""

import secrets
import string
from collections.abc import Callable
from random import Random, SystemRandom

CallIds = Callable[[str, int], str]
"""(function name, index of the call) → the call's id."""

IdRule = Callable[[Random, str, int], str]
"""The same, drawn from these dice."""


def ids_by(rule: IdRule, calls: int = 0, dice: Random | None = None) -> CallIds:
    """Ids by a rule, for a conversation that has this many calls already."""
    thrown = dice or SystemRandom()
    return lambda name, index: rule(thrown, name, calls + index)


def random_id(prefix: str, length: int) -> str:
    """`prefix` and `length` random hexadecimal digits, four bits each."""
    return prefix + secrets.token_hex((length + 1) // 2)[:length]


def openai_call_id(dice: Random, name: str, index: int) -> str:
    """`call_` and 24 random characters, as OpenAI makes them."""
    return f"call_{dice.getrandbits(96):024x}"


def mistral_call_id(dice: Random, name: str, index: int) -> str:
    """Nine letters or digits: Mistral's templates take no other id."""
    return "".join(dice.choice(_ALPHANUMERIC) for _ in range(9))


def kimi_call_id(dice: Random, name: str, index: int) -> str:
    """`functions.NAME:INDEX`, counted over the whole conversation, as the Kimi models write it themselves."""
    return f"functions.{name}:{index}"


_ALPHANUMERIC = string.ascii_letters + string.digits
