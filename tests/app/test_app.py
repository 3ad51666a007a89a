"""What the use cases share."""

import threading
from typing import Any

import pytest

from antiphon.apis.chat.schema import ChatRequest
from antiphon.apis.wire import decode
from antiphon.app.app import MANY_BYTES, MANY_ITEMS, LargeWork
from antiphon.core.limits import Limits


@pytest.mark.parametrize(
    ("given", "history", "beside"),
    [
        ("x" * 10_000, [], False),
        (None, [], False),
        ([{"role": "user", "content": "x"}] * MANY_ITEMS, [], False),
        ([{"role": "user", "content": "x"}] * (MANY_ITEMS + 1), [], True),
        ([{"role": "user", "content": [{"type": "text", "text": "x"}] * MANY_ITEMS}], [], True),
        ("x", [b"{}"] * MANY_ITEMS, False),
        ("x", [b"{}"] * (MANY_ITEMS + 1), True),
        ([{"role": "user", "content": "x"}], [b"{}"] * MANY_ITEMS, True),
        ("x", [b" " * MANY_BYTES], False),
        ("x", [b" " * MANY_BYTES, b" "], True),
    ],
)
async def test_many_items_are_understood_beside_the_event_loop(
    given: Any, history: list[bytes], beside: bool
):
    thread = await LargeWork().run_on_items(given, threading.current_thread, history)
    assert (thread is not threading.main_thread()) is beside


async def test_parts_of_messages_that_were_decoded_count():
    part = b'{"type":"text","text":"x"}'
    body = b'{"model":"m","messages":[{"role":"user","content":[' + b",".join([part] * MANY_ITEMS) + b"]}]}"
    request = decode(body, ChatRequest, Limits())
    assert (
        await LargeWork().run_on_items(request.messages, threading.current_thread)
        is not threading.main_thread()
    )
