"""Finds out which tasks a server does. Its kind says which it may do: its model and its options decide.

For each task a request is sent that has only the name of the model, so that nothing is computed. A server
refuses it as incomplete, or says that it has no such endpoint. vLLM and llama-server have the endpoints of
what their model does; of others, an endpoint only shows that some model may do it. SGLang and Ollama describe
their models, so they are asked for that.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from antiphon.engines.engine import Task
from antiphon.engines.http_client import HttpClient, HttpError
from antiphon.engines.upstreams import llama_server, ollama
from antiphon.engines.upstreams.completions import VLLM
from antiphon.engines.upstreams.kind import UpstreamServer
from antiphon.engines.upstreams.sglang import SGLANG
from antiphon.engines.upstreams.vectors import vector_api

PROBE_SECONDS = 10.0
"""How long the server may take to answer such a request."""

_PATHS = {
    Task.EMBED: "/v1/embeddings",
    Task.RANK: "/v1/rerank",
    Task.TRANSCRIBE: "/v1/audio/transcriptions",
}
_PATH_OF_GENERATE = {VLLM.name: "/v1/completions", llama_server.NAME: "/completion"}
"""The kinds of servers that have the endpoints of what their model does, with that for this task."""

_MISSING = frozenset({404, 405, 501})
INCOMPLETE = frozenset({400, 415, 422})
"""The statuses of an endpoint that is there: more fields are wanted, or a form."""


async def tasks_of(client: HttpClient, server: UpstreamServer) -> Mapping[Task, bool | None]:
    """Whether the server does each task that its kind may do; None if it does not say."""
    possible = vector_api(server.kind).tasks
    described = _DESCRIBED.get(server.kind)
    if described is not None:
        known = await described(client, server.card.known_as[0])
        return {task: known.get(task) for task in possible}
    found = await asyncio.gather(*(_has(client, server, task) for task in possible))
    return dict(zip(possible, found, strict=True))


async def _has(client: HttpClient, server: UpstreamServer, task: Task) -> bool | None:
    exact = server.kind in _PATH_OF_GENERATE
    if task is Task.GENERATE and not exact:
        return True  # it was recognised by this
    path = _PATH_OF_GENERATE[server.kind] if task is Task.GENERATE else _PATHS[task]
    status = await status_of(client, path, {"model": server.card.known_as[0]})
    if status in _MISSING:
        return False
    return True if exact and status in INCOMPLETE else None


async def status_of(client: HttpClient, path: str, body: Any) -> int:
    """The status of the server's answer; 0 if there is none."""
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            return (await client.request("POST", path, body)).status
    except (HttpError, TimeoutError):
        return 0


async def _json(client: HttpClient, method: str, path: str, body: Any = None) -> Mapping[str, Any]:
    """The object that the server answers; empty if there is none."""
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            answer = (await client.request(method, path, body)).json()
    except (HttpError, TimeoutError):
        return {}
    return answer if isinstance(answer, dict) else {}


async def _of_sglang(client: HttpClient, model: str) -> Mapping[Task, bool]:
    """A model of SGLang either generates or makes vectors or scores; it does not say which of the two."""
    info = await _json(client, "GET", "/model_info") or await _json(client, "GET", "/get_model_info")
    generates = info.get("is_generation")
    if not isinstance(generates, bool):
        return {}
    others = dict.fromkeys((Task.EMBED, Task.RANK), False) if generates else {}
    return {Task.GENERATE: generates, Task.TRANSCRIBE: False, **others}


async def _of_ollama(client: HttpClient, model: str) -> Mapping[Task, bool]:
    capabilities = (await _json(client, "POST", "/api/show", {"model": model})).get("capabilities")
    if not isinstance(capabilities, list):
        return {}
    return {Task.GENERATE: "completion" in capabilities, Task.EMBED: "embedding" in capabilities}


_DESCRIBED: Mapping[str, Callable[[HttpClient, str], Awaitable[Mapping[Task, bool]]]] = {
    SGLANG.name: _of_sglang,
    ollama.NAME: _of_ollama,
}
"""Kinds of servers that describe their models."""
