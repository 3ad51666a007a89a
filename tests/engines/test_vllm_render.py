"""What /render and /inference/v1/generate say, read by the classes of a vLLM that is installed."""

from typing import Any

import pytest

from tests.http.chat_api import chatting, events
from tests.http.test_render import BESIDE, BODIES, GENERATE, SAMPLED, SCRIPT, TEXT, renderings

protocol = pytest.importorskip(
    "vllm.entrypoints.scale_out.token_in_token_out.protocol", reason="vLLM 0.33 is not installed"
)


@pytest.mark.parametrize("path", BODIES)
async def test_vllm_reads_what_is_rendered(path: str) -> None:
    async with chatting(SCRIPT) as api:
        answers = await renderings(api, path, **SAMPLED, **BESIDE, structured_outputs={"json_object": True})
        plain = await renderings(api, path)
    for answer in answers if path == TEXT else [answers]:
        request = protocol.GenerateRequest.model_validate(answer)
        assert request.token_ids == answer["token_ids"]
        assert request.sampling_params.temperature == SAMPLED["temperature"]
        assert request.sampling_params.structured_outputs.json_object
        assert (request.priority, request.cache_salt) == (BESIDE["priority"], BESIDE["cache_salt"])
    for answer in plain if path == TEXT else [plain]:
        assert protocol.GenerateRequest.model_validate(answer).sampling_params.max_tokens == 50


@pytest.mark.parametrize("mode", ["tokens", "text"])
async def test_vllm_reads_what_is_generated(mode: str) -> None:
    names = {"tokens": "GenerateTokens", "text": "GenerateText"}
    async with chatting(SCRIPT) as api:
        [prompt] = await renderings(api, TEXT)
        params: dict[str, Any] = {"logprobs": 2, "n": 2}
        request = {"token_ids": prompt["token_ids"], "sampling_params": params, "output_mode": mode}
        body = await api.post(GENERATE, request)
        answer = getattr(protocol, f"{names[mode]}Response").model_validate(body)
        assert [len(choice.token_ids) for choice in answer.choices] == [
            len(choice.logprobs.content) for choice in answer.choices
        ]
        streamed = await api.http.post(GENERATE, json={**request, "stream": True})
    *chunks, _ = events(streamed.text)
    for chunk in chunks:
        getattr(protocol, f"{names[mode]}StreamResponse").model_validate(chunk)
