"""Where a server publishes the events of its cache: what it says of itself, or what the operator says.

A server is believed its ports, not its hosts: its events come from the host of its URL.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

MAX_RANKS = 256
"""Data-parallel ranks of a server, at most."""


class Source(Struct, frozen=True):
    """Where one rank publishes its events, and where it repeats those that were missed, if it does.

    Its server may `take_ranks`: a request names the one that generates, by its place among them. It may
    `tell_again` of the blocks that it finds in its cache for a request.
    """

    endpoint: str
    replay: str | None = None
    topic: str = ""
    take_ranks: bool = False
    tell_again: bool = False


class _Publisher(Struct):
    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    publisher: str | None = "zmq"


class _Server(Struct):
    kv_events_config: str | None = None
    dp_size: int = 1


def sources_of_vllm(answer: Any, host: str) -> Sequence[Source]:
    """Those of the answer at `/kv_event_sources`: rank → configuration."""
    try:
        publishers = msgspec.convert(answer, dict[int, _Publisher], strict=False)
    except msgspec.ValidationError:
        return ()
    ranks = sorted(publishers)[:MAX_RANKS]
    sources = _valid(_source(publishers[rank], host, 0) for rank in ranks)
    return [replace(source, take_ranks=True, tell_again=True) for source in sources]


def sources_of_sglang(answer: Any, host: str) -> Sequence[Source]:
    """Those of the answer at `/server_info`: rank r publishes at the port + r."""
    try:
        server = msgspec.convert(answer, _Server)
        publisher = msgspec.json.decode(server.kv_events_config or "", type=_Publisher)
    except msgspec.DecodeError:
        return ()
    return _valid(_source(publisher, host, rank) for rank in range(max(1, min(server.dp_size, MAX_RANKS))))


def sources_of_option(option: str, host: str) -> Sequence[Source]:
    """Those of `ENDPOINT` or `ENDPOINT,REPLAY`, in which `*` is the host of the server."""
    endpoint, _, replay = option.replace("*", host).partition(",")
    return (Source(endpoint, replay or None),)


def is_endpoint(option: str) -> bool:
    """Whether these are addresses of ZeroMQ."""
    return all(
        part.startswith("ipc://") or _port(part) is not None
        for part in option.replace("*", "host").split(",", 1)
    )


def _source(publisher: _Publisher, host: str, rank: int) -> Source | None:
    port = _port(publisher.endpoint)
    if port is None or publisher.publisher != "zmq":
        return None
    replay = _port(publisher.replay_endpoint or "")
    return Source(
        f"tcp://{host}:{port + rank}",
        None if replay is None else f"tcp://{host}:{replay + rank}",
        publisher.topic,
    )


def _valid(sources: Iterable[Source | None]) -> Sequence[Source]:
    """All of them, or none: the index would else miss what some ranks have."""
    all_sources = [*sources]
    known = [source for source in all_sources if source is not None]
    return known if len(known) == len(all_sources) else ()


def _port(endpoint: str) -> int | None:
    try:
        parts = urlsplit(endpoint.replace("*", "host"))
        port = parts.port if parts.scheme == "tcp" else None
    except ValueError:
        return None
    return port


PATHS: Mapping[str, tuple[str, Callable[[Any, str], Sequence[Source]]]] = {
    "vllm": ("/kv_event_sources", sources_of_vllm),
    "sglang": ("/server_info", sources_of_sglang),
}
"""Kind of server → where it tells its sources, and how they are read."""
