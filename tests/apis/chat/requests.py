"""Chat requests, from JSON to what is made of them."""

import json
from typing import Any

from antiphon.apis.chat.accept import Accepted, House, accept
from antiphon.apis.chat.schema import ChatRequest
from antiphon.apis.envelope import DEFAULT_VIEW, View
from antiphon.apis.hosted import Hosts
from antiphon.apis.wire import decode
from antiphon.core.items import Message, Role, TextPart
from antiphon.core.turn import Turn


def text(*words: str) -> tuple[TextPart, ...]:
    """The parts of a message."""
    return tuple(TextPart(word) for word in words)


NO_HOSTS = Hosts()
HI = (Message(Role.USER, text("Hi")),)


def accepted(house: View = DEFAULT_VIEW, hosts: Hosts = NO_HOSTS, **more: Any) -> Accepted:
    """A request that says Hi, and more."""
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **more}
    return accept(decode(json.dumps(body).encode(), ChatRequest), "me", House(house, hosts))


def turn(**more: Any) -> Turn:
    """What is run for it."""
    return accepted(**more).turn
