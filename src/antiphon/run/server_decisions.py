"""Decisions that the server of a model answers itself: what it can be told, and what is refused by name.

The server puts the questions in its own way: there is no template, no adapter and no order of options to
choose. Nothing of a request is left out without a word.
"""

from antiphon.core.decision import Decision
from antiphon.core.errors import RequestError
from antiphon.core.limits import Limits
from antiphon.core.turn import Turn
from antiphon.engines.engine import DecisionRequest
from antiphon.run.direct_answers import EFFORT, OFF
from antiphon.run.messages import messages_of
from antiphon.run.model import check_turn, repaired

_VARIABLES = {**OFF, **EFFORT}
"""The variables that may be set: no such server reasons before it decides."""


def request_to_server(decision: Decision, limits: Limits, context: int) -> DecisionRequest:
    """The request for a server whose model has this context, 0 if unknown. Raises RequestError."""
    refused = {
        "lora": bool(decision.sampling.lora),
        "cache_salt": decision.sampling.cache_salt is not None,
        "x_orders": (decision.orders or 1) > 1,
        "chat_template_kwargs": {**_VARIABLES, **decision.variables} != _VARIABLES,
    }
    for param, is_given in refused.items():
        if is_given:
            message = (
                "The server of this model answers questions itself, and does not support "
                f"'{param}'. Leave it out."
            )
            raise RequestError(message, param=param)
    turn = repaired(Turn(decision.model, decision.items))
    check_turn(turn, limits, context)
    prompt, messages = messages_of(turn.items)
    return DecisionRequest(decision, messages, prompt.media)
