"""Which slot of a llama-server scores next tokens, by what is known of the slots."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from antiphon.core.errors import EngineError
from antiphon.core.limits import DEFAULTS
from antiphon.engines.engine import NextTokenRequest, Prompt
from antiphon.engines.shared_prompts import SharedPrompts
from antiphon.engines.upstreams.llama_next_token import SlotScorer

SLOT = 2
END = Prompt("?", (9,))


def about(token: int) -> NextTokenRequest:
    """A request whose beginning is this token."""
    return NextTokenRequest(Prompt("a", (token,)), (END,), ((1,),))


class Server:
    """Computes every beginning in the same slot; that of the token 0 never ends, and that of -1 fails."""

    def __init__(self) -> None:
        self.scorer = SlotScorer(SharedPrompts(4), 10, DEFAULTS, lambda prompt: [*prompt.ids])
        self.begun: list[int] = []

    async def lines(self, path: str, body: bytes) -> AsyncGenerator[bytes, None]:
        """The events of an answer."""
        asked: dict[str, Any] = json.loads(body)
        if "id_slot" not in asked:
            [token] = asked["prompt"]
            self.begun.append(token)
            if token == 0:
                await asyncio.Event().wait()
            if token < 0:
                raise EngineError("It is gone.")
            yield b"data: " + json.dumps({"stop": True, "id_slot": SLOT}).encode()
            return
        for index in range(len(asked["prompt"])):
            top = [{"id": 1, "token": "A", "logprob": -0.5}]
            event = {"index": index, "completion_probabilities": [{"top_logprobs": top}]}
            yield b"data: " + json.dumps(event).encode()

    async def score(self, token: int) -> None:
        """Score after the beginning of this token."""
        await self.scorer.score(about(token), {}, self.lines, lambda _total, _cached: None)


async def test_a_beginning_is_kept() -> None:
    server = Server()
    for token in (5, 5, 6, 5):
        await server.score(token)
    assert server.begun == [5, 6, 5]


@pytest.mark.parametrize("other", [0, -1])
async def test_a_slot_is_forgotten_whose_next_beginning_does_not_end(other: int) -> None:
    server = Server()
    await server.score(5)
    scoring = asyncio.create_task(server.score(other))
    await asyncio.sleep(0.01)
    scoring.cancel()
    await asyncio.wait((scoring,))
    await server.score(5)
    assert server.begun == [5, other, 5]
