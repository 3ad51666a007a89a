"""Schedulers of Kubernetes pick among servers by what these tell: metrics, and the tokens of a request."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio
import yaml
from msgspec import Struct
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from antiphon.dialects.registry import DIALECTS
from antiphon.engines.figures import AdapterFigures, CacheFigures
from antiphon.engines.scripted import CAPABILITIES, ScriptedEngine
from antiphon.run.models import Models
from tests.http.picker import GAUGES, LORA, Picker, read_endpoints, token_ids
from tests.run.support import until
from tests.server import NO_TLS, Running, running, served_model

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
CHAT, TEXT, RESPONSES, MESSAGES = (
    f"/v1/{name}" for name in ("chat/completions", "completions", "responses", "messages")
)
MODEL = "my-model"
ADAPTER = "poems"
LONG = "The first of many words that several conversations begin with, so that they share blocks of tokens. "
TOOL = {
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


SCRIPT = [{"when": "slowly", "output": "word ", "tokens": 100_000, "delay_ms": 20}, {"output": "Hi there."}]


class AdapterEngine(ScriptedEngine):
    """One answer at a time. Its adapters can all be in use, up to two, as llama.cpp's; tests say how full its cache is."""

    def __init__(self) -> None:
        able = replace(CAPABILITIES, sampling=CAPABILITIES.sampling | {"lora"}, scales_adapters=True)
        super().__init__(SCRIPT, parallel=1, capabilities=able)
        self.adapters: set[str] = set()
        self.usage = 0.0

    async def load_adapter(self, name: str, path: str) -> None:
        self.adapters.add(name)

    async def unload_adapter(self, name: str) -> None:
        self.adapters.discard(name)

    async def cache_figures(self) -> CacheFigures:
        adapters = AdapterFigures(frozenset(self.adapters), frozenset(), 2)
        return CacheFigures(self.usage, 16, 1000, 10, 5, {"cache_dtype": "auto"}, adapters)


class Cluster(Struct):
    """Two servers of a model, as the sample of deploy/ names them, and their picker."""

    http: httpx.AsyncClient
    picker: Picker
    servers: Mapping[str, Running]
    file: Path

    async def picked(self, text: str = "Hi", **fields: Any) -> str:
        """The name of the server for a conversation."""
        return (await self.picker.pick(CHAT, chat(text, **fields))).name

    async def post(self, name: str, path: str, body: Mapping[str, Any], **headers: str) -> httpx.Response:
        """What a server answers."""
        return await self.http.post(f"{self.servers[name].url}{path}", json=body, headers=headers)

    async def adapt(self, name: str, verb: str, adapter: str = ADAPTER) -> None:
        """Load an adapter into a server, or unload it."""
        body = {"lora_name": adapter, "lora_path": "/adapter"}
        response = await self.post(name, f"/v1/{verb}_lora_adapter", body, authorization="Bearer admin")
        assert response.status_code == 200, response.text


FIRST, SECOND = "antiphon-1", "antiphon-2"


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    options: dict[str, Any] = {"model_name": (MODEL,), "admin_key": ("admin",)}
    async with (
        running(AdapterEngine(), **options) as first,
        running(AdapterEngine(), **options) as second,
        httpx.AsyncClient(verify=NO_TLS) as http,
    ):
        servers = {FIRST: first, SECOND: second}
        file = tmp_path / "endpoints.yaml"
        file.write_text(yaml.safe_dump(sample_with(servers)))
        yield Cluster(http, Picker(http, file), servers, file)


def sample_with(servers: Mapping[str, Running]) -> Any:
    """The sample of deploy/, with the addresses of these servers."""
    sample = yaml.safe_load((DEPLOY / "llm-d" / "endpoints.yaml").read_text())
    assert [entry["name"] for entry in sample["endpoints"]] == [*servers]
    for entry, server in zip(sample["endpoints"], servers.values(), strict=True):
        entry["address"], _, entry["port"] = server.url.removeprefix("http://").partition(":")
    return sample


# Metrics


async def test_each_gauge_has_one_series_with_the_labels_of_vllm(cluster: Cluster) -> None:
    await cluster.adapt(FIRST, "load")
    await cluster.post(FIRST, CHAT, chat("Hi"))
    text = (await cluster.http.get(f"{cluster.servers[FIRST].url}/metrics")).text
    families = [family for family in text_string_to_metric_families(text) if family.name in (*GAUGES, LORA)]
    assert sorted(family.name for family in families) == sorted((*GAUGES, LORA))
    for family in families:
        assert family.type == "gauge"
        [series] = family.samples
        assert series.timestamp is None
        if family.name == LORA:
            assert series.labels == {
                "max_lora": "2",
                "running_lora_adapters": ADAPTER,
                "waiting_lora_adapters": "",
            }
        else:
            assert series.labels.pop("model_name") == MODEL
            assert series.labels.pop("engine") == "0"
            assert not series.labels or family.name == "vllm:cache_config_info"


async def test_a_server_with_the_adapter_is_picked(cluster: Cluster) -> None:
    for name, other in ((FIRST, SECOND), (SECOND, FIRST)):
        await cluster.adapt(name, "load")
        assert await cluster.picked(name, model=ADAPTER) == name
        assert (await cluster.post(name, CHAT, chat("Hi", model=ADAPTER))).status_code == 200
        assert (await cluster.post(other, CHAT, chat("Hi", model=ADAPTER))).status_code == 404
        await cluster.adapt(name, "unload")


async def test_a_server_whose_places_for_adapters_are_taken_is_not_picked(cluster: Cluster) -> None:
    for adapter in ("one", "two"):
        await cluster.adapt(FIRST, "load", adapter)
    assert await cluster.picked(model=ADAPTER) == SECOND


@pytest.mark.parametrize("busy", [FIRST, SECOND])
async def test_the_shorter_queue_is_picked(cluster: Cluster, busy: str) -> None:
    engine = cluster.servers[busy].engine
    async with asyncio.TaskGroup() as group:
        answers = [group.create_task(cluster.post(busy, CHAT, chat("slowly"))) for _ in range(3)]
        await until(lambda: engine.load.waiting == 2)
        states = await cluster.picker.states()
        assert (states[busy].running, states[busy].waiting) == (1, 2)
        assert await cluster.picked() != busy
        for answer in answers:
            answer.cancel()


@pytest.mark.parametrize("full", [FIRST, SECOND])
async def test_the_emptier_cache_is_picked(cluster: Cluster, full: str) -> None:
    cluster.servers[full].engine.usage = 0.75
    assert (await cluster.picker.states())[full].usage == 0.75
    assert await cluster.picked() != full


async def test_without_keys_of_its_own_the_picker_reads_public_metrics_only() -> None:
    options: dict[str, Any] = {"model_name": (MODEL,), "api_key": ("key",)}
    async with (
        running(AdapterEngine(), **options) as closed,
        running(AdapterEngine(), **options, public_metrics=True) as open_,
        httpx.AsyncClient(verify=NO_TLS) as http,
    ):
        for server, status in ((closed, 401), (open_, 200)):
            for method in ("GET", "HEAD"):
                assert (await http.request(method, f"{server.url}/metrics")).status_code == status
            for path in ("/v1/models", "/v1/responses", "/slots"):
                assert (await http.get(server.url + path)).status_code == 401, path
            assert (await http.post(f"{server.url}{CHAT}/render", json=chat("Hi"))).status_code == 401
        # The token producer has the headers of the client.
        assert await token_ids(http, open_.url, CHAT, chat("Hi"), {"authorization": "Bearer key"})
        assert not await token_ids(http, open_.url, CHAT, chat("Hi"))


# Tokens


async def test_a_conversation_goes_on_where_its_prefix_is(cluster: Cluster) -> None:
    """Even where the other server has a little more room; another conversation, or another salt, does not."""
    begun = chat(f"{LONG * 4} One.")
    home = (await cluster.picker.pick(CHAT, begun)).name
    [other] = {FIRST, SECOND} - {home}
    cluster.servers[home].engine.usage = 0.25
    answer = (await cluster.post(home, CHAT, begun)).json()["choices"][0]["message"]
    messages = [*begun["messages"], answer, {"role": "user", "content": "Go on."}]
    assert await cluster.picked(messages=messages) == home
    assert await cluster.picked(messages=messages, cache_salt="mine") == other
    assert await cluster.picked("Something else that is long enough for several blocks of tokens.") == other


async def test_servers_come_and_go_with_the_file(cluster: Cluster) -> None:
    sample = sample_with(cluster.servers)
    gone = sample["endpoints"].pop(0)
    cluster.file.write_text(yaml.safe_dump(sample))
    assert [*await cluster.picker.states()] == [SECOND]
    for broken, reason in (
        ({"port": 8000}, "no port"),
        ({"port": "http"}, "invalid literal"),
        ({"address": "localhost"}, "Expected 4 octets"),
        ({"address": "::1"}, "Expected 4 octets"),
    ):
        cluster.file.write_text(yaml.safe_dump({"endpoints": [{**gone, **broken}]}))
        with pytest.raises(ValueError, match=reason):
            read_endpoints(cluster.file)


def requests() -> Mapping[str, list[dict[str, Any]]]:
    """Requests of each API, also with tools and their results."""
    said = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "The weather in Rome?"}]
    arguments = '{"city": "Rome"}'
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    called = [
        *said,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    tools = [{"type": "function", "function": TOOL}]
    schema = {"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["parameters"]}
    return {
        CHAT: [
            {"messages": said},
            {"messages": said, "tools": tools},
            {"messages": called, "tools": tools, "stream": True},
        ],
        TEXT: [{"prompt": "Once upon"}],
        RESPONSES: [{"input": said}, {"input": said[1:], "tools": [{"type": "function", **TOOL}]}],
        MESSAGES: [
            {"messages": said[1:], "system": "Be kind.", "max_tokens": 9},
            {"messages": said[1:], "tools": [schema], "max_tokens": 9},
        ],
    }


async def test_the_tokens_are_those_that_the_engine_gets_in_every_format() -> None:
    names = [dialect.names[0] for dialect in DIALECTS]
    engines = {name: ScriptedEngine(SCRIPT, name=name) for name in names}
    models = Models([served_model(engine, dialect=name) for name, engine in engines.items()])
    async with (
        running([], models=models) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http,
    ):
        for name, engine in engines.items():
            for path, bodies in requests().items():
                for fields in bodies:
                    body = {"model": name, **fields}
                    ids = await token_ids(http, server.url, path, body)
                    response = await http.post(path, json=body)
                    assert response.status_code == 200, (name, path, response.text)
                    assert tuple(ids) == engine.seen[-1].prompt.ids != (), (name, path, fields)
            given = [*engine.seen[-1].prompt.ids]
            assert await token_ids(http, server.url, TEXT, {"model": name, "prompt": given}) == given
