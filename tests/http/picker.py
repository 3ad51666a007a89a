"""The endpoint picker of the Gateway API Inference Extension and of llm-d, as far as a server can tell it by its rules.

It polls the metrics of servers, has one of them turn a request into token ids, and picks the server with the highest
weighted score. Plain Python from the sources of both, so that tests need neither.
"""

import hashlib
import ipaddress
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2 as httpx
import yaml
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

Scores = Mapping[str, float]
"""From 0 to 1, by the names of servers."""

LORA = "vllm:lora_requests_info"
GAUGES = (
    *("vllm:num_requests_waiting", "vllm:num_requests_running"),
    *("vllm:kv_cache_usage_perc", "vllm:cache_config_info"),
)
"""What it reads of a server, besides its adapters."""


class Picked(Struct):
    """What an endpoint picker knows of a server."""

    waiting: int
    running: int
    usage: float | None
    block_size: int | None = None
    blocks: int | None = None
    active: set[str] | None = None
    queued: set[str] | None = None
    most: int | None = None
    updated: float | None = None


def picked(text: str) -> Picked:
    """What the Gateway API Inference Extension takes of metrics, with its default names for vLLM.

    Of each family it takes the first series, as none has a time of its own; of adapters the one with the highest
    value, which is a time; of labels, those that it knows. It reads numbers of labels as Go's `strconv.Atoi` does.
    """
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}

    def first(name: str) -> Any:
        return next(iter(families.get(name, ())), None)

    def number(label: str) -> int | None:
        return int(label) if label else None

    usage, cache = map(first, ("vllm:kv_cache_usage_perc", "vllm:cache_config_info"))
    adapters = max(families.get(LORA, ()), key=lambda series: series.value, default=None)
    taken = Picked(
        int(first("vllm:num_requests_waiting").value),
        int(first("vllm:num_requests_running").value),
        None if usage is None else usage.value,
    )
    if cache is not None:
        taken.block_size = number(cache.labels.get("block_size", ""))
        taken.blocks = number(cache.labels.get("num_gpu_blocks", ""))
    if adapters is not None:
        assert adapters.labels.keys() == {"max_lora", "waiting_lora_adapters", "running_lora_adapters"}
        taken.updated = adapters.value
        taken.active, taken.queued = (
            {name for name in adapters.labels[f"{which}_lora_adapters"].split(",") if name}
            for which in ("running", "waiting")
        )
        taken.most = number(adapters.labels["max_lora"])
    return taken


class Endpoint(Struct, frozen=True):
    """A server of the picker's file."""

    name: str
    address: str
    port: str

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{self.address}:{self.port}"


def read_endpoints(file: Path) -> list[Endpoint]:
    """The servers of an `endpoints.yaml`, checked as llm-d's `file-discovery` does. Raises ValueError."""
    endpoints = [
        Endpoint(entry["name"], entry["address"], entry["port"])
        for entry in yaml.safe_load(file.read_text())["endpoints"]
    ]
    for endpoint in endpoints:
        ipaddress.IPv4Address(endpoint.address)
        if not isinstance(endpoint.port, str) or not 0 < int(endpoint.port) < 65536:
            raise ValueError(f"{endpoint.port!r} is no port: a text with a number")
    return endpoints


# Scorers


def queue_scores(states: Mapping[str, Picked]) -> Scores:
    """1 for the shortest queue, 0 for the longest."""
    lengths = {name: state.waiting for name, state in states.items()}
    low, high = min(lengths.values()), max(lengths.values())
    return {name: 1.0 if high == low else (high - length) / (high - low) for name, length in lengths.items()}


def usage_scores(states: Mapping[str, Picked]) -> Scores:
    """The free share of the cache; all of it, if nothing is known."""
    return {name: 1 - (state.usage or 0.0) for name, state in states.items()}


def adapter_scores(states: Mapping[str, Picked], model: str) -> Scores:
    """1 where the adapter is active, less where it has to be loaded, 0 where there is no room for it."""

    def score(state: Picked) -> float:
        active, queued = state.active or set(), state.queued or set()
        if model in active:
            return 1.0
        if len(active) + len(queued) < (state.most or 0):
            return 0.8
        return 0.6 if model in queued else 0.0

    return {name: score(state) for name, state in states.items()}


class PrefixIndex:
    """Which blocks of tokens each server has had: `approx-prefix-cache-producer`."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._known: dict[str, set[bytes]] = {}

    def blocks(self, model: str, ids: Sequence[int], salt: str = "") -> list[bytes]:
        """A hash for each whole block, over it and all before."""
        before = hashlib.sha256(f"{model}\0{salt}".encode()).digest()
        blocks = []
        for end in range(self._block_size, len(ids) + 1, self._block_size):
            before = hashlib.sha256(before + repr(ids[end - self._block_size : end]).encode()).digest()
            blocks.append(before)
        return blocks

    def scores(self, names: Sequence[str], blocks: Sequence[bytes]) -> Scores:
        """The share of the blocks that each server has had, from the first on."""

        def matched(known: set[bytes]) -> int:
            return next((place for place, block in enumerate(blocks) if block not in known), len(blocks))

        return {name: matched(self._known.get(name, set())) / max(1, len(blocks)) for name in names}

    def remember(self, name: str, blocks: Sequence[bytes]) -> None:
        """A server got a request with these blocks."""
        self._known.setdefault(name, set()).update(blocks)


# The picker

WEIGHTS = {"prefix": 3, "queue": 2, "usage": 2, "adapter": 2}
"""As in `deploy/llm-d/picker.yaml`."""


async def token_ids(
    http: httpx.AsyncClient, url: str, path: str, body: Mapping[str, Any], headers: Mapping[str, str] = {}
) -> Sequence[int]:
    """The tokens of a request, as llm-d's `token-producer` gets them: of Completions there is a list of requests.

    Empty if the server does not tell them: the picker then goes on without.
    """
    response = await http.post(f"{url}{path}/render", json=body, headers=headers)
    if response.status_code != 200:
        return ()
    rendered = response.json()
    if path == "/v1/completions":
        [rendered] = rendered
    ids: Sequence[int] = rendered["token_ids"]
    return ids


class Picker:
    """Picks servers of a file for requests."""

    def __init__(self, http: httpx.AsyncClient, file: Path, block_size: int = 8) -> None:
        """`file` is read again for each request, as with `watchFile`; prompts are compared by blocks of tokens."""
        self._http = http
        self._file = file
        self._prefixes = PrefixIndex(block_size)

    async def states(self) -> dict[str, Picked]:
        """The metrics of the servers that answer."""
        states = {}
        for endpoint in read_endpoints(self._file):
            response = await self._http.get(f"{endpoint.url}/metrics")
            if response.status_code == 200:
                states[endpoint.name] = picked(response.text)
        return states

    async def pick(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] = {}) -> Endpoint:
        """The server for a request, which is remembered as sent there. The headers are those of its client."""
        endpoints = {endpoint.name: endpoint for endpoint in read_endpoints(self._file)}
        states = await self.states()
        model = body["model"]
        ids = await token_ids(self._http, next(iter(endpoints.values())).url, path, body, headers)
        blocks = self._prefixes.blocks(model, ids, body.get("cache_salt", ""))
        scores = {
            "prefix": self._prefixes.scores([*states], blocks),
            "queue": queue_scores(states),
            "usage": usage_scores(states),
            "adapter": adapter_scores(states, model),
        }

        def total(name: str) -> float:
            return sum(weight * scores[kind][name] for kind, weight in WEIGHTS.items())

        best = max(states, key=total)
        self._prefixes.remember(best, blocks)
        return endpoints[best]
