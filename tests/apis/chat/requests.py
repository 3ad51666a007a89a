"""Chat requests, from JSON to what is made of them."""

import json
from typing import Any

from antiphon.apis.chat.accept import AcceptedChat, ServerDefaults, accept
from antiphon.apis.chat.schema import ChatRequest
from antiphon.apis.chat.tools import requested_tools
from antiphon.apis.envelope import DEFAULT_PRESENTATION, PresentationOptions
from antiphon.apis.fields import ParameterNames
from antiphon.apis.wire import decode_request
from antiphon.core.errors import RequestError
from antiphon.core.items import Message, Role, TextPart
from antiphon.core.turn import Turn
from antiphon.tools.discovery import NO_FUNCTIONS
from tests.acting import Offers, hosts_for


def text(*words: str) -> tuple[TextPart, ...]:
    """The parts of a message."""
    return tuple(TextPart(word) for word in words)


HI = (Message(Role.USER, text("Hi")),)
PARAMETERS = {
    "conversation": "messages",
    "format": "response_format",
    "prefix": "response_prefix",
    "prompt": "messages",
    "alternatives": "top_logprobs",
    "reasoning_limit": "thinking_token_budget",
    "template": "chat_template",
    "tool_limit": "max_tool_calls",
}
"""What this API calls what errors blame."""


def accepted(
    defaults: PresentationOptions = DEFAULT_PRESENTATION, offers: Offers = NO_FUNCTIONS, **more: Any
) -> AcceptedChat:
    """A request that says Hi, and more, to a server with tools that offer these functions."""
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **more}
    names = ParameterNames()
    try:
        request = decode_request(json.dumps(body).encode(), ChatRequest, names)
        hosts = hosts_for(offers, requested_tools(request))
        return accept(request, "me", ServerDefaults(defaults, hosts))
    except RequestError as error:
        names.restore(error)
        raise


def turn(**more: Any) -> Turn:
    """What is run for it."""
    return accepted(**more).turn


def asked(model: str = "m", items: tuple[Message, ...] = HI, where: str = "messages", **more: Any) -> Turn:
    """The turn of a request whose messages, the parameter `where`, say this."""
    shared = {"owner": "me", "copies": 2, "parameters": PARAMETERS | {"conversation": where}}
    return Turn(model, items, **{**shared, **more})
