"""The openai SDK reads our streams as its own: `responses.stream`, the strictest reader there is."""

from collections.abc import Sequence
from typing import Any

import httpx2
import openai
import pytest

from antiphon.apis.framing import DONE, frame, obfuscate
from antiphon.core.errors import EngineError
from antiphon.core.events import Event
from tests.apis.responses.support import answering_to, streamed
from tests.apis.responses.test_stream import CALL, CUSTOM, LENGTH, STOP, SUMMARISED, TEXT, THOUGHT
from tests.response_invariants import check


def client(body: bytes) -> openai.OpenAI:
    """A client whose server says this."""

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body)

    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    return openai.OpenAI(api_key="k", base_url="http://test/v1", http_client=http)


@pytest.mark.parametrize("fields", [{}, SUMMARISED, CUSTOM])
@pytest.mark.parametrize("events", [TEXT, THOUGHT, CALL, [*THOUGHT, *TEXT, *CALL, *TEXT]])
def test_it_accumulates_what_the_response_says(events: Sequence[Event], fields: dict[str, Any]) -> None:
    payloads = streamed(answering_to(**fields), [*events, STOP])

    with client(frame(obfuscate(payloads)) + DONE).responses.stream(model="m", input="Hello") as stream:
        seen = [event.type for event in stream]
        response = stream.get_final_response()

    assert len(seen) == len(payloads)
    final = check(payloads)
    assert [item.id for item in response.output] == [item["id"] for item in final["output"]]
    said = [item for item in final["output"] if item["type"] == "message"]
    assert response.output_text == "".join(item["content"][0]["text"] for item in said)


def test_it_sees_that_a_response_is_incomplete() -> None:
    body = frame(streamed(answering_to(), [*TEXT, LENGTH])) + DONE

    with client(body).responses.stream(model="m", input="Hello") as stream:
        last = list(stream)[-1]

    assert last.type == "response.incomplete"
    assert last.response.status == "incomplete"


def test_it_raises_what_a_failed_stream_says() -> None:
    answering = answering_to()
    payloads = answering.begin() + answering.fail(EngineError("It broke."))

    with pytest.raises(openai.APIError, match="It broke"), client(frame(payloads) + DONE) as api:
        list(api.responses.create(model="m", input="Hello", stream=True))
