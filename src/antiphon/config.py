"""The server's options: one frozen table, `Settings`.

A field here is an option of `antiphon serve` (`--model-name`), a variable (`ANTIPHON_MODEL_NAME`) and a key
of the TOML file (`model_name`); its docstring is the help text. It has this name wherever it is used. The
options of a model are declared in `model_tables.ModelSettings`, those of an engine in its module
(`engines.engine.EngineOptions`), those of a tool in its toolkit (`toolkits.options.ToolOptions`).
`option_sources.py` determines the source of each value.

An invalid value is a ValueError, one line for people. Checks that need the running server (is there such a
model?) are not done here.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.types import PositiveInt
from cyclopts.validators import Number

from antiphon.core.errors import AntiphonError
from antiphon.core.limits import DEFAULTS, Limits, read_limits
from antiphon.core.located import Located, sqlite_file
from antiphon.core.options import (
    ANSWERS,
    COMMON_CONFIGURATION,
    COMMON_KEYS,
    COMMON_NETWORK,
    COMMON_STORE,
    KEYS,
    LIMITS,
    LOGS,
    MEDIA,
    MODEL,
    MODERATION,
    NETWORK,
    STORE,
    TOOLS,
)
from antiphon.engines.engine import EngineOptions
from antiphon.engines.registry import DEFAULT as DEFAULT_ENGINE
from antiphon.engines.registry import options_of
from antiphon.model_tables import KEEP_ALL, KeepLoaded, ModelSettings, read_by, read_keep_loaded
from antiphon.option_types import Keys, Port
from antiphon.toolkits.options import ToolOptions
from antiphon.tools.mcp.tables import McpServer


def identity_of(key: str) -> str:
    """The identity of a key: a digest."""
    return sha256(key.encode()).hexdigest()[:32]


def is_root_path(_type: object, given: str) -> None:
    """Raise ValueError if it is none."""
    if given and (not given.startswith("/") or given.endswith("/")):
        raise ValueError(f"A root path is written /llm, not '{given}'.")


def are_hosts(_type: object, given: tuple[str, ...]) -> None:
    """Raise ValueError if they are none."""
    for host in given:
        if host != "*" and not (_HOST.fullmatch(host) or is_address(host)):
            raise ValueError(f"A host is written llm.example.com, without a port, not '{host}'.")


def is_address(text: str) -> bool:
    """Whether it is an IP address."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def are_origins(_type: object, given: tuple[str, ...]) -> None:
    """Raise ValueError if they are none."""
    for origin in given:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ValueError(f"An origin is written https://chat.example.com, not '{origin}'.")


def are_domains(_type: object, given: tuple[str, ...]) -> None:
    """Raise ValueError if they are none."""
    for domain in given:
        if not domain.replace(".", "").replace("-", "").isalnum() or not domain.isascii():
            raise ValueError(f"A domain is written example.com, not '{domain}'.")


MODELS = "models"
MCP_SERVERS = "mcp_servers"
"""Tables of the TOML file that are not options."""
OPEN = "anyone who reaches this server may use it: give --api-key"
"""The warning of a server that is `open_to_all`."""
_HOST = re.compile(r"[A-Za-z0-9._-]+")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")


@dataclass(frozen=True)
class Settings:
    """All options of the server. `engine` holds those of the engine; its type determines the engine."""

    _: KW_ONLY

    engine: Annotated[EngineOptions, Parameter(parse=False)] = field(
        default_factory=lambda: options_of(DEFAULT_ENGINE)()  # noqa: PLW0108 - imported when needed
    )

    host: Annotated[str, COMMON_NETWORK] = "127.0.0.1"
    """The address to listen on; 0.0.0.0 for every interface."""

    port: Annotated[Port, COMMON_NETWORK] = 8000
    """The port to listen on; 0 picks a free one."""

    unix_socket: Annotated[Path | None, NETWORK] = None
    """A Unix socket to listen on, in place of a host and a port."""

    tls_certificate: Annotated[Path | None, NETWORK] = None
    """A file with the certificate of this server, and those between it and its authority, in PEM: the server
    then uses HTTPS. Needs --tls-key."""

    tls_key: Annotated[Path | None, NETWORK] = None
    """The file with the key of the certificate, in PEM."""

    root_path: Annotated[str, Parameter(validator=is_root_path), NETWORK] = ""
    """The path of this server behind a proxy, as in /llm. The proxy may remove it from
    requests, or not."""

    trusted_proxy: Annotated[tuple[str, ...], Parameter(show_default=False), NETWORK] = ()
    """The address, or the network, of a proxy whose X-Forwarded-For and X-Forwarded-Proto are trusted;
    repeat it for several; * for any client."""

    allow_host: Annotated[tuple[str, ...], Parameter(validator=are_hosts, show_default=False), NETWORK] = ()
    """A name of this server, as in llm.example.com; repeat it for several; * for any. Without keys, requests
    to other names than these, localhost and --host are refused: docs/security.md."""

    allow_origin: Annotated[
        tuple[str, ...], Parameter(validator=are_origins, show_default=False), NETWORK
    ] = ()
    """The origin of web pages that may use this server from a browser, as in https://chat.example.com;
    repeat it for several; * for all. Without any, browsers allow none."""

    processes: Annotated[PositiveInt, Parameter(alias="--api-server-count"), NETWORK] = 1
    """How many processes serve, behind one socket: for models at a URL, pools of URLs, and vLLM. One can
    pass on 60,000 to 100,000 tokens a second: docs/processes.md."""

    resume_streams: Annotated[bool, Parameter(negative="--no-resume-streams"), NETWORK] = True
    """Whether another of several processes writes on the streams of one that dies. It takes about 2 µs of CPU
    for each token: docs/processes.md."""

    drain_seconds: Annotated[float, Parameter(validator=Number(gt=0)), LIMITS] = 300
    """How many seconds running answers have to finish after SIGTERM or Ctrl-C; then they are stopped."""

    model: Annotated[ModelSettings, Parameter(name="*")] = field(default_factory=ModelSettings)
    """The options of the single model, which [[models]] of the TOML file change for each of theirs."""

    models: Annotated[tuple[ModelSettings, ...], Parameter(parse=False)] = ()
    """The [[models]] of the TOML file."""

    default_model: Annotated[str | None, MODEL] = None
    """The name of the model for requests that leave the model out, or name one that this server does not
    have. Without it they are refused, as the APIs' specifications say; a model that is null or empty means
    the first one in any case."""

    keep_loaded: Annotated[KeepLoaded, read_by(read_keep_loaded, repeated=False), MODEL] = KEEP_ALL
    """How many models may be loaded at a time, as in 2, or how much memory they may take, as in 24GiB.
    Others are loaded on demand, in place of the one that was not used for the longest time. Without
    it, all are loaded."""

    api_key: Annotated[Keys, COMMON_KEYS] = field(default=(), repr=False)
    """A key that clients must send, or @FILE with one key per line; repeat it for
    several. In the variable, separate them with spaces. Without any, the server is open."""

    admin_key: Annotated[Keys, KEYS] = field(default=(), repr=False)
    """A key, or @FILE with one per line, for loading and unloading adapters, and draining replicas. Without
    any, these are refused."""

    keys: Annotated[Path | None, KEYS] = None
    """A TOML file of further keys, each with its models, scopes and limits: docs/operations.md. It is read
    again at SIGHUP."""

    public_metrics: Annotated[bool, KEYS] = False
    """Let /metrics be read without a key, as the endpoint pickers of Kubernetes do."""

    store: Annotated[str, Located(sqlite_file), COMMON_STORE] = "sqlite"
    """Where responses, conversations and stored completions are kept: sqlite, a file in
    the user's data folder; sqlite:///PATH; postgresql://USER@HOST/DATABASE, for several
    servers; memory; or none, which keeps nothing: docs/store.md."""

    keep_days: Annotated[float, Parameter(validator=Number(gt=0)), STORE] = 30
    """How many days stored responses and completions are kept."""

    jobs: Annotated[PositiveInt, STORE] = 16
    """How many background responses are generated at the same time; further ones wait."""

    lease_seconds: Annotated[float, Parameter(validator=Number(gt=0)), STORE] = 3
    """Seconds after which other servers take over the background responses of one that does not
    renew its leases any more."""

    durable_streams: Annotated[bool, STORE] = False
    """Store the events of the Responses API's streams before they are sent, so that a client can continue
    its stream on another server, which continues the answer, if this one dies: docs/responses.md."""

    secret: Annotated[Keys, KEYS] = field(default=(), repr=False)
    """A secret that encrypts data that clients keep for the server, such as reasoning, or @FILE with one per
    line. The first encrypts; all decrypt, so that they can be changed. Without any, one is generated and
    kept in the user's data folder."""

    reasoning_field: Annotated[Literal["both", "reasoning_content", "reasoning"], ANSWERS] = "both"
    """The field of chat answers that holds the reasoning."""

    reasoning_events: Annotated[Literal["openai", "open-responses"], ANSWERS] = "openai"
    """The names of the events of the Responses API that show the reasoning: OpenAI's,
    response.reasoning_text.…, or those of Open Responses, response.reasoning.…"""

    tools: Annotated[Mapping[str, ToolOptions], Parameter(parse=False)] = field(
        default_factory=lambda: _default_tools()  # noqa: PLW0108 - defined below
    )
    """The options of tools, by the names of their toolkits."""

    search_embeddings: Annotated[str | None, TOOLS] = None
    """The name of an embedding model of this server: with its vectors, files in vector stores are also
    found by meaning."""

    moderation: Annotated[str | None, MODERATION] = None
    """The name of a guard model of this server, such as a Llama Guard: it answers /v1/moderations, and checks
    requests and their answers where a request asks for it (`moderation`). Without it both are refused."""

    moderation_format: Annotated[
        Literal["llama-guard", "qwen3guard", "shieldgemma", "decisions"] | None, MODERATION
    ] = None
    """How the guard is asked: in the format of its family, or by decisions, which any model makes. By default
    its names say which family it is of; for others it is by decisions."""

    moderation_window: Annotated[PositiveInt, MODERATION] = 512
    """The characters of an answer that are checked together before the client gets them, where a request
    asks for answers to be blocked. Fewer come sooner, and cost more checks."""

    media_fallback: Annotated[Literal["error", "note"], MEDIA] = "error"
    """What to do with images, audio and video that the model does not take: an error, or a note in their
    place, so that long conversations can be continued. A request may set another value."""

    media_domain: Annotated[tuple[str, ...], Parameter(validator=are_domains, show_default=False), MEDIA] = ()
    """A domain of the web that images and files may be fetched from, subdomains included; repeat it for
    several. Without any, all public ones; none for no domain at all (needs the extra `media`)."""

    mcp_host: Annotated[tuple[str, ...], TOOLS] = ()
    """A host whose MCP servers requests may name, as in tools.example.com or 127.0.0.1:9000; repeat it for
    several. * in a name matches anything, and * alone all public servers with https. Other hosts are
    trusted, and may be private (needs the extra `mcp`)."""

    mcp_servers: Annotated[tuple[McpServer, ...], Parameter(parse=False)] = ()
    """The [[mcp_servers]] of the TOML file."""

    trust_chat_templates: Annotated[bool, MODEL] = False
    """Allow requests to have chat templates of their own."""

    return_tokens_as_token_ids: Annotated[bool, ANSWERS] = False
    """Name tokens in log probabilities token_id:N, unless a request wants their texts."""

    force_include_usage: Annotated[bool, ANSWERS] = False
    """End every chat stream with its usage, whether it was requested or not."""

    keep_alive: Annotated[float, Parameter(validator=Number(gt=0)), ANSWERS] = 15
    """Seconds without an event after which a stream sends a comment."""

    keep_alive_events: Annotated[bool, Parameter(negative="--no-keep-alive-events"), ANSWERS] = True
    """To keep a stream of the Responses API alive, repeat its event response.in_progress instead of sending a
    comment, because some clients do not count comments."""

    stall_seconds: Annotated[float, Parameter(validator=Number(gt=0)), LIMITS] = 60
    """Seconds after which a client that does not read its stream is disconnected."""

    deadline_seconds: Annotated[float | None, Parameter(validator=Number(gt=0)), LIMITS] = None
    """The maximum number of seconds that an answer may take. Without it, there is no limit."""

    codex_instructions: Annotated[Path | None, ANSWERS] = None
    """A file with the instructions for Codex, if it reads its model catalogue from this server:
    docs/agents.md."""

    limit: Annotated[Limits, read_by(read_limits), LIMITS] = DEFAULTS
    """A limit for requests of clients, NAME=NUMBER, as in body_bytes=8388608; repeat it for several.
    docs/limits.md lists them."""

    config: Annotated[Path | None, COMMON_CONFIGURATION] = None
    """A TOML file with these options, each by its name: port = 8000."""

    log_level: Annotated[Literal["debug", "info", "warning", "error"], LOGS] = "info"
    """How much to log: one line for each request is info, those of health checks are debug."""

    log_format: Annotated[Literal["console", "json"], LOGS] = "console"
    """The format of log lines: text, or a JSON object each."""

    log_content: Annotated[bool, LOGS] = False
    """Also log prompts and answers. Without it, no line contains them."""

    debug_answers: Annotated[int, Parameter(validator=Number(gte=0)), LOGS] = 0
    """The number of answers of each key whose details are kept in memory, for GET /v1/debug/ID, the page and
    antiphon replay: prompt, tokens with their log probabilities, events, verdicts. The newest are kept, each
    may take megabytes; 0 keeps none."""

    otlp_endpoint: Annotated[str | None, LOGS] = None
    """The address of an OpenTelemetry collector, to send traces to over HTTP (needs the extra `tracing`):
    http://127.0.0.1:4318"""

    @property
    def served(self) -> tuple[ModelSettings, ...]:
        """The settings of each model."""
        return self.models or (replace(self.model, engines=(self.engine,)),)

    def check_processes(self) -> None:
        """Raise AntiphonError for options with which several processes cannot be one server."""
        if self.store == "memory":
            raise AntiphonError(
                "Several processes cannot share a store in memory. Choose another --store, or leave out "
                "--processes."
            )
        for model in self.served:
            for engine in model.engines:
                if (why := getattr(engine, "one_process", None)) is not None:
                    raise AntiphonError(f"{why} Leave out --processes.")

    @property
    def option_tables(self) -> Sequence[type]:
        """Where the options are declared, besides those of the engine."""
        return (Settings, ModelSettings, *map(type, self.tools.values()))

    @property
    def open_to_all(self) -> bool:
        """Whether anyone may use the server who reaches it, also from other machines."""
        local = self.host == "localhost" or (is_address(self.host) and ip_address(self.host).is_loopback)
        return not (self.api_key or self.keys is not None or self.unix_socket or local)

    @property
    def stores(self) -> bool:
        """Whether clients can keep anything."""
        return self.store != "none"


def _default_tools() -> Mapping[str, ToolOptions]:
    from antiphon.toolkits.registry import default_options  # noqa: PLC0415

    return default_options()
