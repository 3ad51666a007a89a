"""Requests for the tokens of a prompt."""

import json
from typing import Any

import msgspec
import pytest

from antiphon.apis.chat.accept import House
from antiphon.apis.tokens import DetokenizeRequest, Rendered, Tokenized, accept_tokenize
from antiphon.apis.wire import decode
from antiphon.core.errors import RequestError
from antiphon.core.turn import Ending, Turn
from tests.apis.chat.requests import HI


def accepted(**body: Any) -> tuple[Turn, bool]:
    return accept_tokenize(json.dumps({"model": "m", **body}).encode(), "me", lambda model: House())


def test_a_text_is_a_prompt() -> None:
    assert accepted(prompt="Hi") == (Turn("m", prompt="Hi", owner="me", source="prompt"), False)
    assert accepted(prompt="", return_token_strs=True)[1]


def test_a_conversation_is_rendered() -> None:
    hi = [{"role": "user", "content": "Hi"}]

    assert accepted(messages=hi) == (Turn("m", HI, owner="me"), False)
    turn, texts = accepted(messages=hi, add_generation_prompt=False, return_token_strs=True)
    assert (turn.ending, texts) == (Ending.TRANSCRIPT, True)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": [{}]}, "messages[0].role"),
    ],
)
def test_what_is_no_prompt_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as raised:
        accepted(**body)
    assert raised.value.param == param


def test_tokens_that_cannot_be() -> None:
    assert decode(b'{"model": "m", "tokens": [1, 2]}', DetokenizeRequest).tokens == [1, 2]
    with pytest.raises(RequestError) as raised:
        decode(b'{"model": "m", "tokens": [-1]}', DetokenizeRequest)
    assert raised.value.param == "tokens[0]"


def test_answers_look_like_vllms() -> None:
    assert msgspec.to_builtins(Tokenized(2, 100, (5, 6))) == {
        "count": 2, "max_model_len": 100, "tokens": (5, 6), "token_strs": None,
    }  # fmt: skip
    assert msgspec.to_builtins(Rendered("m", "Hi", (5,), 1, 100))["token_ids"] == (5,)
