"""Makes the ids of calls, for models that write none. A dialect chooses a rule.

A rule uses a given random number generator. A seeded one repeats the ids of an answer that was interrupted
and is decoded again.
"""

import string
from collections.abc import Callable
from random import Random, SystemRandom

CallIds = Callable[[str, int], str]
"""(function name, index of the call) → the call's id."""

IdRule = Callable[[Random, str, int], str]
"""The same, with random numbers from this generator."""


def ids_by(rule: IdRule, calls: int = 0, rng: Random | None = None) -> CallIds:
    """Ids by a rule, for a conversation that has this many calls already."""
    generator = rng or _SYSTEM_RANDOM
    return lambda name, index: rule(generator, name, calls + index)


def openai_call_id(rng: Random, name: str, index: int) -> str:
    """`call_` and 24 random characters, as OpenAI makes them."""
    return f"call_{rng.getrandbits(96):024x}"


def mistral_call_id(rng: Random, name: str, index: int) -> str:
    """Nine letters or digits: Mistral's templates accept no other id."""
    return "".join(rng.choice(_ALPHANUMERIC) for _ in range(9))


def kimi_call_id(rng: Random, name: str, index: int) -> str:
    """`functions.NAME:INDEX`, counted over the whole conversation, as the Kimi models write it themselves."""
    return f"functions.{name}:{index}"


_SYSTEM_RANDOM = SystemRandom()  # it has no state
_ALPHANUMERIC = string.ascii_letters + string.digits
