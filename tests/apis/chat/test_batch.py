"""Several conversations in one request."""

import json
from typing import Any

import pytest

from antiphon.apis.chat.accept import AcceptedBatch, accept_batch
from antiphon.apis.chat.schema import BatchChatRequest
from antiphon.apis.envelope import PresentationOptions
from antiphon.apis.wire import decode
from antiphon.core.errors import RequestError
from antiphon.core.items import Message, Role
from antiphon.core.turn import Sampling
from tests.apis.chat.requests import asked, text


def accepted(**more: Any) -> AcceptedBatch:
    conversations = [[{"role": "user", "content": content}] for content in ("Hi", "Bye")]
    body = {"model": "m", "messages": conversations, **more}
    return accept_batch(decode(json.dumps(body).encode(), BatchChatRequest), "me")


def test_each_conversation_becomes_a_turn() -> None:
    made = accepted(temperature=0, logprobs=True, request_id="r")

    assert made.turns == tuple(
        asked(
            items=(Message(Role.USER, text(content)),),
            where=f"messages[{index}]",
            sampling=Sampling(temperature=0, logprobs=0),
        )
        for index, content in enumerate(("Hi", "Bye"))
    )
    assert (made.presentation, made.request_id) == (PresentationOptions(logprobs=0), "r")


def test_what_was_wrong_is_told_with_its_conversation() -> None:
    made = accepted(messages=[[{"role": "user", "content": "a"}], [{"role": "assistant"}]])

    assert made.repairs == ("messages[1][0] says nothing",)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [[]]}, "messages[0]"),
        ({"messages": [[{"role": "user", "content": "a"}], [{"role": "wizard"}]]}, "messages[1][0].content"),
        ({"n": 2}, "n"),
        ({"stream": True}, "stream"),
        ({"echo": True}, "echo"),
        ({"store": True}, "store"),
        ({"use_beam_search": True}, "use_beam_search"),
    ],
)
def test_what_a_batch_cannot_do_is_refused_by_name(more: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as raised:
        accepted(**more)

    assert raised.value.param == param
