"""A model with Mistral's own tokenizer on a real vLLM, in the process and behind its server: `make test-vllm`.

It has one layer of random weights (`load_format=dummy`), and no tokenizer of Hugging Face's, so that vLLM takes
Mistral's by itself. What it says means nothing, unless it is held to a form.
"""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.validator import ValidationMode
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from openai import AsyncOpenAI

from antiphon.engines.upstream import Options as UpstreamOptions
from antiphon.engines.upstream import UpstreamEngine
from antiphon.engines.vllm import Options
from tests.mistral import VOCABULARY, write_tekken
from tests.real_engine import VLLM_ARGUMENTS, VLLM_MODEL, vllm_server
from tests.server import Running, running

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not VLLM_MODEL, reason="vLLM is not here: make test-vllm"),
    pytest.mark.timeout(900),
]

CONTEXT = 1024
DUMMY = "load_format=dummy"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
PARAMETERS = {
    "dim": 64,
    "n_layers": 1,
    "head_dim": 32,
    "hidden_dim": 128,
    "n_heads": 2,
    "n_kv_heads": 2,
    "norm_eps": 1e-5,
    "vocab_size": 1000 + VOCABULARY,
    "rope_theta": 10000.0,
    "max_position_embeddings": CONTEXT,
    "max_seq_len": CONTEXT,
}
TOOL = {"name": "weather", "description": "How is it?", "parameters": SCHEMA}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("Ministral")
    write_tekken(folder, "v13")
    (folder / "params.json").write_text(json.dumps(PARAMETERS))
    (folder / "consolidated.safetensors").write_bytes(len(b"{}").to_bytes(8, "little") + b"{}")  # no weights
    return folder


@pytest_asyncio.fixture(scope="class", loop_scope="module")
async def inside(folder: Path) -> AsyncIterator[Running]:
    options = Options(str(folder), context=CONTEXT, parallel=4, vllm=(*VLLM_ARGUMENTS, DUMMY))
    async with running(options.build(), model_name=("m",), dialect=None) as server:
        yield server


@pytest_asyncio.fixture(scope="class", loop_scope="module")
async def behind(folder: Path) -> AsyncIterator[Running]:
    with vllm_server(str(folder), DUMMY, f"max_model_len={CONTEXT}") as url:
        engine = UpstreamEngine(UpstreamOptions(url, parallel=4, tokenizer=str(folder)))
        async with running(engine, model_name=("m",), dialect=None) as server:
            yield server


class MistralContract:
    """The tests, of `server`."""

    @pytest_asyncio.fixture(loop_scope="module")
    async def client(self, server: Running) -> AsyncIterator[AsyncOpenAI]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            yield client

    async def test_it_is_known_for_what_it_is(self, server: Running) -> None:
        card = server.engine.card
        assert (card.chat_template, card.bos, card.eos) == (None, "<s>", "</s>")
        assert "[TOOL_CALLS]" in card.special_tokens

    async def test_its_prompt_is_the_librarys(self, folder: Path, client: AsyncOpenAI) -> None:
        messages: list[Any] = [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Say [INST] twice: Ä 漢"},
        ]
        tools: list[Any] = [{"type": "function", "function": TOOL}]
        library = MistralTokenizer.from_file(str(folder / "tekken.json"), mode=ValidationMode.test)
        request = ChatCompletionRequest.from_openai(messages=messages, tools=tools)
        completion = await client.chat.completions.create(
            model="m", messages=messages, tools=tools, max_tokens=1, extra_body={"return_token_ids": True}
        )
        tokens = library.encode_chat_completion(request).tokens
        assert completion.prompt_token_ids == tokens  # type: ignore[attr-defined]
        assert completion.usage is not None
        assert completion.usage.prompt_tokens == len(tokens)

    @pytest.mark.parametrize("streamed", [False, True])
    async def test_a_forced_call_in_chat(self, client: AsyncOpenAI, streamed: bool) -> None:
        tools: list[Any] = [{"type": "function", "function": TOOL | {"strict": True}}]
        request: dict[str, Any] = {
            "model": "m",
            "messages": [{"role": "user", "content": "How is Rome?"}],
            "tools": tools,
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "max_tokens": 200,
        }
        if streamed:
            stream = await client.chat.completions.create(**request, stream=True)
            deltas = [chunk.choices[0].delta async for chunk in stream if chunk.choices]
            calls = [call for delta in deltas for call in delta.tool_calls or ()]
            name, call_id = calls[0].function.name, calls[0].id
            arguments = "".join(call.function.arguments or "" for call in calls)
        else:
            [choice] = (await client.chat.completions.create(**request)).choices
            assert choice.finish_reason in {"tool_calls", "length"}  # closed, if it was cut
            [call] = choice.message.tool_calls or ()
            name, call_id, arguments = call.function.name, call.id, call.function.arguments
        assert name == "weather"
        assert re.fullmatch("[a-zA-Z0-9]{9}", call_id)
        assert json.loads(arguments).keys() == {"city", "days"}

    async def test_a_forced_call_in_responses_and_messages(
        self, server: Running, client: AsyncOpenAI
    ) -> None:
        tool: Any = {"type": "function", **TOOL, "strict": True}
        response = await client.responses.create(
            model="m", input="How is Rome?", tools=[tool], tool_choice="required", max_output_tokens=200
        )
        [*_, call] = response.output
        assert (call.type, json.loads(call.arguments).keys()) == ("function_call", {"city", "days"})  # type: ignore[union-attr]
        again: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}  # type: ignore[union-attr]
        response = await client.responses.create(
            model="m", input=[again], previous_response_id=response.id, tools=[tool], max_output_tokens=5
        )
        assert response.usage is not None
        async with AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as anthropic:
            message = await anthropic.messages.create(
                model="m",
                max_tokens=200,
                messages=[{"role": "user", "content": "How is Rome?"}],
                tools=[{"name": "weather", "input_schema": SCHEMA, "strict": True}],
                tool_choice={"type": "any"},
            )
        [*_, block] = message.content
        assert (block.type, block.input.keys()) == ("tool_use", {"city", "days"})  # type: ignore[union-attr]

    async def test_an_answer_held_to_a_schema(self, client: AsyncOpenAI) -> None:
        completion = await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "How is Rome?"}],
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA},
            },
            max_tokens=200,
        )
        assert json.loads(completion.choices[0].message.content or "").keys() == {"city", "days"}

    async def test_it_writes_any_text(self, client: AsyncOpenAI) -> None:
        completion = await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "Go on"}],
            max_tokens=60,
            logprobs=True,
            top_logprobs=2,
        )
        assert completion.usage is not None
        assert completion.usage.completion_tokens <= 60


class TestInside(MistralContract):
    @pytest.fixture
    def server(self, inside: Running) -> Running:
        return inside


class TestBehindItsServer(MistralContract):
    @pytest.fixture
    def server(self, behind: Running) -> Running:
        return behind
