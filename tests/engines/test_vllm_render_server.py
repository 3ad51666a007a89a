"""The token ids of our render routes and of those of vLLM's own server are the same: `make test-vllm`."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio

from antiphon.engines.upstream import Options, UpstreamEngine
from tests.http.chat_api import ChatApi, chatting
from tests.http.test_render import CHAT, MESSAGES, RESPONSES, TEXT
from tests.real_engine import VLLM_MODEL, vllm_server

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not VLLM_MODEL, reason="vLLM is not here: make test-vllm"),
    pytest.mark.timeout(900),
]

TEMPLATE = """
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""That of the small model shows no tools."""

ARGUMENTS = ("enable_scale_out=true", "enable_auto_tool_choice=true", "tool_call_parser=hermes")
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Where, é"}, "days": {"type": "integer"}},
    "required": ["city"],
}
WEATHER = {"name": "weather", "description": "Tells the weather.", "parameters": PARAMETERS}
CALL = {"name": "weather", "arguments": json.dumps({"city": "Zürich", "days": 2})}
SAID = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Is it raining? 🌧"}]
CALLED = [
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_1", "type": "function", "function": CALL}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "Yes."},
    {"role": "user", "content": "And tomorrow?"},
]
TOOLS = [{"type": "function", "function": WEATHER}]

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": SAID}),
    "chat with tools": (CHAT, {"messages": SAID, "tools": TOOLS}),
    "chat with calls": (CHAT, {"messages": [*SAID, *CALLED], "tools": TOOLS}),
    "completion": (TEXT, {"prompt": "Once upon a time, é 🌧"}),
    "completions": (TEXT, {"prompt": ["Once", "upon <|im_end|> a time"]}),
    "response": (RESPONSES, {"input": "Is it raining?", "instructions": "Be kind."}),
    # Without `strict`, which vLLM shows the model, and we do not.
    "response with tools": (
        RESPONSES, {"input": "Is it raining?", "tools": [{"type": "function", **WEATHER}]},
    ),
    "message": (MESSAGES, {"messages": SAID[1:], "system": "Be kind.", "max_tokens": 50}),
}  # fmt: skip


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "tools.jinja"
    path.write_text(TEMPLATE)
    return path


@pytest.fixture(scope="module")
def url(template: Path) -> Iterator[str]:
    with vllm_server(VLLM_MODEL, *ARGUMENTS, "max_model_len=2048", f"chat_template={template}") as address:
        yield address


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(url: str, template: Path) -> AsyncIterator[ChatApi]:
    engine = UpstreamEngine(Options(url, parallel=2))
    async with chatting(engine, model_name=("smollm2",), chat_template=template) as api:
        yield api


@pytest.mark.parametrize("name", CASES)
async def test_the_ids_are_those_of_vllm(api: ChatApi, url: str, name: str) -> None:
    path, fields = CASES[name]
    request = {"model": "smollm2", **fields}
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        told = await http.post(f"{path}/render", json=request)
    if told.status_code == 404:
        pytest.skip(f"this vLLM has no {path}/render")
    assert told.status_code == 200, told.text
    ours = await api.http.post(f"{path}/render", json=request)
    assert ours.status_code == 200, ours.text
    assert ids(ours.json()) == ids(told.json())


def ids(rendered: Any) -> list[list[int]]:
    """The token ids of each prompt."""
    return [each["token_ids"] for each in (rendered if isinstance(rendered, list) else [rendered])]
