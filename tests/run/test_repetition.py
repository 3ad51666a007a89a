"""Answers that say the same again and again are found, however they are cut; others never."""

from collections.abc import Iterator

import httpx2 as httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.limits import Limits
from antiphon.run.repetition import MIN_REPEATED, STRIDE, WINDOW, RepetitionDetector
from tests.server import NO_TLS, running


def recognised_server(pieces: Iterator[str], times: int) -> int | None:
    """How many characters were said when it was found."""
    detector, said = RepetitionDetector(times), 0
    for piece in pieces:
        said += len(piece)
        if detector.push(piece):
            return said
    return None


def cut(text: str, size: int) -> Iterator[str]:
    return (text[start : start + size] for start in range(0, len(text), size))


@given(st.text(min_size=1, max_size=200), st.integers(2, 8), st.integers(1, 300))
def test_what_is_repeated_is_found(unit: str, times: int, size: int) -> None:
    enough = max(len(unit) * (times + 2), MIN_REPEATED) + 4 * STRIDE + size
    text = "Once upon a time: " + unit * (enough // len(unit) + 1)
    assert recognised_server(cut(text, size), times) is not None


@given(st.integers(2, 8), st.integers(1, 300))
def test_what_counts_up_is_not(times: int, size: int) -> None:
    text = " ".join(f"{number}. another line" for number in range(1000))
    assert recognised_server(cut(text, size), times) is None


@pytest.mark.parametrize("text", ["-" * 400, "| --- " * 60, "0" * 300 + "1", "ha " * 100])
def test_what_is_short_is_not(text: str) -> None:
    assert recognised_server(cut(text + " and so on." * 20, 3), 8) is None


def test_it_is_found_soon_and_only_after_so_many_times() -> None:
    unit = "The same sentence of some sixty characters, again and again. "
    found = recognised_server(cut(unit * 100, 4), 10)
    assert found is not None
    assert 10 * len(unit) <= found <= 10 * len(unit) + 2 * STRIDE
    assert recognised_server(cut(unit * 9, 4), 10) is None


def test_longer_texts_than_fit_are_not_found() -> None:
    unit = "".join(f"{number} " for number in range(1000))[: WINDOW // 2]
    assert recognised_server(cut(unit * 10, 100), 4) is None


@pytest.mark.parametrize("stream", [False, True])
async def test_the_answer_ends_as_if_its_limit_were_reached(stream: bool) -> None:
    script = [{"output": "on and on ", "tokens": 30_000}]
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hello!"}], "stream": stream}
    async with (
        running(script, limit=Limits(repetitions=10)) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):
        answer = await client.post("/v1/chat/completions", json=body)
        message = await client.post("/v1/messages", json=body | {"max_tokens": 20_000, "stream": False})

    if stream:
        assert '"finish_reason":"length"' in answer.text
        assert '"stop_reason":"repetition"' in answer.text
    else:
        [choice] = answer.json()["choices"]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "repetition")
        assert MIN_REPEATED <= len(choice["message"]["content"]) <= MIN_REPEATED + 2 * STRIDE
    assert (message.json()["stop_reason"], message.json()["stop_sequence"]) == ("max_tokens", None)
    assert "on and on" in message.json()["content"][0]["text"]
