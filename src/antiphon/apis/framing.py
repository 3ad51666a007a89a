"""Payloads of wire events → server-sent events, with a type or, in OpenAI's older APIs, without.

Every payload with a type begins with it, so the `event:` line, which equals it, can be copied from it.
Obfuscation is added here and not when payloads are made: a stored event has none, and each reader may
request it.
"""

from collections.abc import Iterable
from itertools import cycle, islice

_BLOCK = 64
_PADDING = bytes(islice(cycle(b"k7Qv2ZpXw9TfLm4RcJd8"), _BLOCK))

DONE = b"data: [DONE]\n\n"
"""The end of every stream, after the terminal event.

Open Responses requires it; OpenAI's clients accept it.
"""

_TYPE = len(b'{"type":"')


def event_type(payload: bytes) -> bytes:
    """The type of an event."""
    return payload[_TYPE : payload.index(b'"', _TYPE)]


def untyped_event(payload: bytes) -> bytes:
    """A payload as a server-sent event without a type."""
    return b"data: %b\n\n" % payload


def event_head(payload: bytes) -> bytes:
    """What a payload has before it as a server-sent event with its type; after it is an empty line."""
    return b"event: %b\ndata: " % event_type(payload)


def event(payload: bytes) -> bytes:
    """A payload as a server-sent event with its type."""
    return b"".join((event_head(payload), payload, b"\n\n"))


def frame(payloads: Iterable[bytes]) -> bytes:
    """Payloads as server-sent events with their types."""
    parts: list[bytes] = []
    for payload in payloads:  # as `event` has them, but copied once: some have megabytes
        parts += b"event: ", event_type(payload), b"\ndata: ", payload, b"\n\n"
    return b"".join(parts)


def obfuscate(payloads: Iterable[bytes]) -> list[bytes]:
    """The same events, deltas padded to multiples of `_BLOCK`: so their lengths do not reveal tokens."""
    return [_padded(payload) if event_type(payload).endswith(b".delta") else payload for payload in payloads]


def _padded(payload: bytes) -> bytes:
    """Pad to a multiple of the block.

    The padding is encrypted with the rest, so its content does not matter.
    """
    return b'%b,"obfuscation":"%b"}' % (payload[:-1], _PADDING[: -len(payload) % _BLOCK])
