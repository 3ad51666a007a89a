"""Fill in the middle: completions with a suffix, by the tokens that a model has for it."""

from collections.abc import Sequence
from typing import Any

import pytest
from openai import AsyncOpenAI

from antiphon.engines.script import token_id
from antiphon.engines.scripted import ScriptedEngine
from antiphon.render.fill_in import FAMILIES, FillIn
from tests.http.chat_api import COMPLETIONS, chatting, completion

pytestmark = pytest.mark.asyncio

BEFORE, BEHIND = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))"


MARKS = frozenset(mark for family in FAMILIES for mark in family.tokens)


class Coder(ScriptedEngine):
    """A model whose vocabulary has the tokens of a family, if any; of others the marks are text."""

    def __init__(self, family: FillIn | None) -> None:
        super().__init__([{"output": "a + b"}])
        self._marks = frozenset(family.tokens if family else ())

    async def tokenize(self, pieces: Sequence[str]) -> list[int]:
        ids: list[int] = []
        for piece in pieces:
            if piece in MARKS:
                ids += map(token_id, [piece] if piece in self._marks else [piece[:2], piece[2:]])
            else:
                ids += await super().tokenize([piece])
        return ids


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.prefix)
async def test_the_gap_stands_between_the_tokens_of_the_family(family: FillIn) -> None:
    async with chatting(Coder(family)) as api:
        body = await api.complete(BEFORE, suffix=BEHIND)
        prompt = api.seen.prompt
    parts = [family.prefix + BEFORE, family.suffix + BEHIND]
    assert prompt.text == "".join(parts[::-1] if family.suffix_first else parts) + family.middle
    for token in family.tokens:
        assert token_id(token) in prompt.ids
    assert body["choices"][0]["text"] == "a + b"
    assert body["usage"]["prompt_tokens"] == len(prompt.ids)


async def test_prompts_of_ids_streams_and_the_official_client() -> None:
    async with chatting(Coder(FAMILIES[0])) as api:
        text = await api.complete(BEFORE, suffix=BEHIND)
        as_text = api.seen.prompt
        ids = (await api.post("/tokenize", {"model": "scripted", "prompt": BEFORE}))["tokens"]
        assert (await api.complete(ids, suffix=BEHIND))["choices"] == text["choices"]
        assert api.seen.prompt.ids == as_text.ids
        chunks = await api.stream_of(BEFORE, suffix=BEHIND)
        assert "".join(part["text"] for chunk in chunks for part in chunk["choices"]) == "a + b"
        async with AsyncOpenAI(base_url=f"{api.server.url}/v1", api_key="none") as client:
            found = await client.completions.create(model="scripted", prompt=BEFORE, suffix=BEHIND)
        assert found.choices[0].text == "a + b"


async def test_a_model_without_such_tokens_refuses() -> None:
    async with chatting(Coder(None)) as api:
        error = await api.not_completed(BEFORE, suffix=BEHIND)
        assert (error["param"], error["code"]) == ("suffix", "unsupported_model")
        assert "'scripted' has no tokens to fill in" in error["message"]
        await api.complete(BEFORE, suffix="")


@pytest.mark.parametrize("fields", [{"echo": True}, {"truncate_prompt_tokens": 3}])
async def test_what_does_not_go_with_a_suffix(fields: dict[str, Any]) -> None:
    async with chatting(Coder(FAMILIES[0])) as api:
        error = (await api.post(COMPLETIONS, completion(BEFORE, suffix=BEHIND, **fields), 400))["error"]
    assert error["param"] == next(iter(fields))
