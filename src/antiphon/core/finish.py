"""Why an answer ended, as clients get it: one table for every API and mode.

`length` always wins: a client must never take a cut call for a whole one.
"""

from antiphon.core.chunks import FinishReason

_TABLE = {
    # (why the engine stopped, are there complete calls): finish_reason
    (FinishReason.STOP, False): "stop",
    (FinishReason.STOP, True): "tool_calls",
    (FinishReason.LENGTH, False): "length",
    (FinishReason.LENGTH, True): "length",
    # Not OpenAI's: other choices of the answer may be whole, so this one cannot be an error status.
    (FinishReason.ERROR, False): "error",
    (FinishReason.ERROR, True): "error",
}


def finish_reason(reason: FinishReason, complete_calls: int) -> str:
    """OpenAI's `finish_reason` for a choice with this many complete calls."""
    return _TABLE[reason, complete_calls > 0]
