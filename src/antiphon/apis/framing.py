"""Payloads of wire events → server-sent events with a type.

Every payload begins with its `type`, so the `event:` line that has to equal it
can be read off.
"""

from collections.abc import Iterable

_TYPE = len(b'{"type":"')


def event_type(payload: bytes) -> bytes:
    """The type of an event."""
    return payload[_TYPE : payload.index(b'"', _TYPE)]


def event(payload: bytes) -> bytes:
    """A payload as a server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (event_type(payload), payload)


def frame(payloads: Iterable[bytes]) -> bytes:
    """Payloads as server-sent events."""
    return b"".join([event(payload) for payload in payloads])
