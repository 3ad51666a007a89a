"""Why an answer ended, as clients get it: one table for every API and mode.

`length` always wins: a client must never take a cut call for a whole one. A call that is broken
is a call, too: client loops go on at that word, and have their handling of bad arguments there.
"""

from antiphon.core.chunks import FinishReason

_TABLE = {
    # (why the engine stopped, are calls shown): finish_reason
    (FinishReason.STOP, False): "stop",
    (FinishReason.STOP, True): "tool_calls",
    (FinishReason.LENGTH, False): "length",
    (FinishReason.LENGTH, True): "length",
    # Not OpenAI's: other choices of the answer may be whole, so this one cannot be an error status.
    (FinishReason.ERROR, False): "error",
    (FinishReason.ERROR, True): "error",
}


def finish_reason(reason: FinishReason, calls: int) -> str:
    """OpenAI's `finish_reason` for a choice that shows this many calls."""
    return _TABLE[reason, calls > 0]
