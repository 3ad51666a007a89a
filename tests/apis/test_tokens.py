"""Requests for the tokens of a prompt."""

import json
from typing import Any

import msgspec
import pytest

from antiphon.apis.chat.accept import accept
from antiphon.apis.tokens import (
    DetokenizeRequest,
    TokenizeChatRequest,
    Tokenized,
    TokenizeTextRequest,
    tokenize_type,
)
from antiphon.apis.wire import decode
from antiphon.core.errors import RequestError
from antiphon.core.turn import PromptEnding
from tests.apis.chat.requests import asked


def parsed(**body: Any) -> TokenizeTextRequest | TokenizeChatRequest:
    content = json.dumps({"model": "m", **body}).encode()
    return decode(content, tokenize_type(content))


def test_a_text_is_a_prompt() -> None:
    assert parsed(prompt="Hi") == TokenizeTextRequest("m", "Hi")
    assert parsed(prompt="", return_token_strs=True).return_token_strs


def test_a_conversation_is_rendered() -> None:
    hi = [{"role": "user", "content": "Hi"}]

    for more, turn in [
        ({}, asked()),
        ({"add_generation_prompt": False}, asked(ending=PromptEnding.TRANSCRIPT)),
    ]:
        request = parsed(messages=hi, return_token_strs=True, **more)
        assert isinstance(request, TokenizeChatRequest)
        assert accept(request, "me").turn == turn
        assert request.return_token_strs


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
        parsed(**body)
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
