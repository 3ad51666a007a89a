"""What is kept of a chat completion, and how it is listed."""

import json
from typing import Any

import msgspec
import pytest

from antiphon.apis.chat.schema import ChatRequest
from antiphon.apis.chat.stored import Deleted, UpdateRequest, stored_messages, with_metadata
from antiphon.apis.envelope import PresentationOptions
from antiphon.apis.lists import encode_stored
from antiphon.apis.wire import decode
from antiphon.core.errors import RequestError
from tests.apis.chat.support import answered, said
from tests.openai_schema import validate

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
CUSTOM = {"id": "c2", "type": "custom", "custom": {"name": "sh", "input": "ls"}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "Hi", "name": "ann"},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL, CUSTOM]},
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    {"role": "assistant", "refusal": "no"},
]


def stored() -> list[tuple[str, bytes]]:
    body = json.dumps({"model": "m", "messages": MESSAGES}).encode()
    items = stored_messages("chatcmpl-1", decode(body, ChatRequest).messages)
    return [(item.id, item.payload) for item in items]


def test_the_messages_of_a_request_are_kept_with_ids() -> None:
    plain, parts, calls, result, refusal = [json.loads(message) for _, message in stored()]

    assert plain == {
        "id": "chatcmpl-1-0",
        "role": "user",
        "content": "Hi",
        "refusal": None,
        "name": "ann",
        "content_parts": None,
    }
    assert (parts["content"], parts["content_parts"]) == (
        "ab", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    )  # fmt: skip
    assert calls["tool_calls"] == [CALL, CUSTOM]
    assert (result["tool_call_id"], result["content"]) == ("c1", "sunny")
    assert (refusal["id"], refusal["content"], refusal["refusal"]) == ("chatcmpl-1-4", None, "no")


def test_pages_are_what_openai_says() -> None:
    # The document allows no role but the assistant's, though its own example is a user's.
    answers = [(id_, message) for id_, message in stored() if json.loads(message)["role"] == "assistant"]
    body = json.dumps(answered([said(["a"])], PresentationOptions(metadata={"a": "b"}))).encode()

    messages = encode_stored(answers, has_more=True)
    completions = encode_stored([("chatcmpl-1", body)], has_more=False)

    validate("ChatCompletionMessageList", messages)
    validate("ChatCompletionList", completions)
    validate("ChatCompletionList", encode_stored([], has_more=False))
    listed = json.loads(messages)
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == (
        "chatcmpl-1-2",
        "chatcmpl-1-4",
        True,
    )
    assert json.loads(completions)["data"] == [json.loads(body)]


def test_metadata_can_be_changed_and_nothing_else_is() -> None:
    body = json.dumps(answered([said(["é"])])).encode()

    changed = json.loads(with_metadata(body, {"k": "v"}))

    assert changed == json.loads(body) | {"metadata": {"k": "v"}}
    assert decode(b'{"metadata": {"k": "v"}}', UpdateRequest).metadata == {"k": "v"}
    with pytest.raises(RequestError) as raised:
        decode(b"{}", UpdateRequest)
    assert raised.value.param == "metadata"


def test_what_is_deleted_is_told() -> None:
    validate("ChatCompletionDeleted", msgspec.json.encode(Deleted("chatcmpl-1")))
