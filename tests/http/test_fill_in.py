"""Fill in the middle: completions with a suffix, by the tokens that a model has for it."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from openai import AsyncOpenAI

from antiphon.engines.script import token_id
from antiphon.engines.scripted import ScriptedEngine
from antiphon.render.fill_in import FAMILIES, FillIn
from tests.http.chat_api import COMPLETIONS, chatting, completion

pytestmark = pytest.mark.asyncio

BEFORE, BEHIND = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))"


OWN = FillIn("<pre>", "<suf>", "<mid>")
MARKS = frozenset(mark for family in (*FAMILIES, OWN) for mark in family.tokens)


class Coder(ScriptedEngine):
    """A model whose vocabulary has the tokens of a family, if any; of others the marks are text."""

    def __init__(self, family: FillIn | None, script: Any = ({"output": "a + b"},), **options: Any) -> None:
        super().__init__(script, **options)
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


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.prefix)
async def test_a_file_about_such_tokens_has_none(family: FillIn) -> None:
    spelled = "".join(family.tokens)
    async with chatting(Coder(family)) as api:
        await api.complete(f"{BEFORE}{spelled}", suffix=f"{spelled}{BEHIND}")
        prompt = api.seen.prompt
    assert prompt.text.count(spelled) >= 2
    assert [prompt.ids.count(token_id(token)) for token in family.tokens] == [1] * len(family.tokens)


async def test_the_tokens_that_the_models_file_names_come_first() -> None:
    for family in (OWN, FAMILIES[0]):  # of which one has been left out of the vocabulary
        engine = Coder(family)
        engine.card = replace(engine.card, fill_in=OWN.tokens)
        async with chatting(engine) as api:
            await api.complete(BEFORE, suffix=BEHIND)
            prompt = api.seen.prompt.text
        assert prompt == family.prefix + BEFORE + family.suffix + BEHIND + family.middle


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
        assert "'scripted' has no special tokens for a 'suffix'" in error["message"]
        await api.complete(BEFORE, suffix="")


@pytest.mark.parametrize("fields", [{"echo": True}, {"truncate_prompt_tokens": 3}])
async def test_what_does_not_go_with_a_suffix(fields: dict[str, Any]) -> None:
    async with chatting(Coder(FAMILIES[0])) as api:
        error = (await api.post(COMPLETIONS, completion(BEFORE, suffix=BEHIND, **fields), 400))["error"]
    assert error["param"] == next(iter(fields))


# /infill

INFILL = "/infill"


async def test_infill_is_the_same_in_the_shape_of_llama_server() -> None:
    body = {"model": "scripted", "input_prefix": BEFORE[:-7], "prompt": "return ", "input_suffix": BEHIND}
    async with chatting(Coder(FAMILIES[0])) as api:
        await api.complete(BEFORE, suffix=BEHIND)
        wanted = api.seen.prompt
        found = await api.post(INFILL, body | {"n_predict": 32, "samplers": ["top_k"], "t_max_predict_ms": 9})
        seen, most = api.seen.prompt, api.seen.max_tokens
        limited = await api.post(INFILL, body | {"n_predict": 1, "response_fields": ["content", "timings/x"]})
        unlimited = await api.post(INFILL, body | {"n_predict": 1, "response_fields": []})
        stopped = await api.post(INFILL, body | {"stop": ["+"]})
        response = await api.http.post(INFILL, json=body | {"stream": True})
        extra = [{"text": "x = 1", "filename": "x.py"}]
        await api.post(INFILL, body | {"input_extra": extra})
        other = api.seen.prompt.text

    assert (seen, most) == (wanted, 32)
    assert found == {
        "index": 0,
        "content": "a + b",
        "stop": True,
        "model": "scripted",
        "tokens_predicted": 4,  # the end is one
        "tokens_evaluated": len(seen.ids),
        "tokens_cached": 0,
        "has_new_line": False,
        "truncated": False,
        "stop_type": "eos",
        "stopping_word": "",
        "prompt": seen.text,
    }
    assert limited == {"content": "a"}
    assert unlimited.keys() == found.keys()
    assert (stopped["content"], stopped["stop_type"], stopped["stopping_word"]) == ("a ", "word", "+")
    *pieces, last = [json.loads(line[6:]) for line in response.text.split("\n\n") if line]
    assert "".join(piece["content"] for piece in pieces) == "a + b"
    assert not any(piece["stop"] for piece in pieces)
    assert last == found | {"content": ""}
    assert other.startswith(FAMILIES[0].prefix + "--- x.py ---\n\nx = 1\n\n" + BEFORE)


async def test_what_infill_refuses_is_named_as_the_client_has_it() -> None:
    body = {"model": "scripted", "input_prefix": "a", "input_suffix": "b"}
    async with chatting(Coder(None)) as api:
        error = (await api.post(INFILL, body, 400))["error"]
        several = (await api.post(INFILL, body | {"n": 2}, 400))["error"]
        streamed = await api.http.post(INFILL, json=body | {"stream": True})
    assert (error["param"], error["code"]) == ("input_suffix", "unsupported_model")
    assert several["param"] == "n"
    assert streamed.status_code == 400
