"""`antiphon doctor`: what would keep a server from starting here, and the remedy.

Each check looks at one thing, for the settings that a server would have, and is a row of a table. Nothing is
changed or started, and nothing is downloaded: at most, a connection to a model's server is opened and closed.

To add a check: a function that yields `Check`s, in `CHECKS`; its failure in `tests/test_doctor.py`.
"""

import os
import re
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from antiphon.config import Settings
from antiphon.core.errors import AntiphonError, installing
from antiphon.engines import gguf, models
from antiphon.option_sources import unread_variables
from antiphon.option_types import is_url, why_of
from antiphon.store.open import default_path, require_lasting

REACH_SECONDS = 5.0
"""How long a server may take to accept a connection."""
FEW_FILES = 4096
"""Fewer open files than this end the connections of a busy server."""
GIB = 1024**3


class State(StrEnum):
    """The result of a check."""

    OK = "ok"
    NOTE = "note"
    """Nothing fails, but the operator may want to know."""
    FAILS = "fails"


class Check(Struct, frozen=True):
    """A row: what was looked at, what was found, and what to do about it."""

    subject: str
    state: State
    found: str
    remedy: str = ""


EXTRAS = {
    "local": "models of a laptop: llama.cpp, and files from the Hugging Face hub",
    "llama-cpp": "GGUF models",
    "vllm": "models on GPUs, by vLLM",
    "kv-events": "what caches of vLLM and SGLang hold",
    "ray": "replicas of Ray Serve",
    "hub": "models from the Hugging Face hub",
    "tokenizer": "tokenizers of models that other servers run",
    "mistral": "Mistral's own tokenizer",
    "postgresql": "a store that several servers share",
    "encodings": "requests compressed with zstd and Brotli",
    "code-interpreter": "Python and programs that models write",
    "tracing": "traces to OpenTelemetry",
    "files": "PDF and Word files in vector stores and prompts",
    "media": "images, audio, and files at addresses",
    "mcp": "tools of MCP servers",
    "web-search": "searches of the web",
    "examples": "the programs in examples/",
}
"""What each extra brings. Those for work on Antiphon itself are left out."""


def machine(settings: Settings) -> Iterator[Check]:
    """Python, cores, memory, open files and the sandbox."""
    yield Check("Python", State.OK, f"{sys.version.split()[0]} on {sys.platform}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Check("cores", State.OK, str(cores))
    memory = main_memory()
    found = "unknown" if memory is None else f"{memory / GIB:.1f} GiB"
    yield Check("memory", State.OK if memory else State.NOTE, found)
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield sandbox(settings)


def open_files(most: int) -> Check:
    """How many files a server may open: it raises its own limit to the hard one."""
    if most == resource.RLIM_INFINITY or most >= FEW_FILES:
        return Check("open files", State.OK, "no limit" if most == resource.RLIM_INFINITY else str(most))
    remedy = "Raise the hard limit: LimitNOFILE of systemd, or --ulimit nofile of a container."
    return Check("open files", State.NOTE, f"at most {most}, which is few for many clients", remedy)


def main_memory() -> int | None:
    """The bytes that this process may use: of the machine, or of its control group. None if unknown."""
    limits = []
    with suppress(OSError, ValueError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # there is none, or it is "max"
            limits.append(int(Path(path).read_text(encoding="ascii")))
    return min(limits, default=None)


def sandbox(settings: Settings) -> Check:
    """Bubblewrap, which --python needs unless it has another sandbox, and --shell if its command says so."""
    python = _option(settings, "code_interpreter", "python")
    other = _option(settings, "code_interpreter", "python_sandbox")
    shell = (_option(settings, "shell", "shell") or "").split()
    needed = (python and not other) or shell[:1] == ["bwrap"]
    if shutil.which("bwrap") is None:
        remedy = "Install it: apt-get install bubblewrap. Or give --python-sandbox."
        state = State.FAILS if needed else State.NOTE
        return Check("bubblewrap", state, "not installed: --python needs it", remedy)
    for name, forbidding in _NAMESPACES.items():
        with suppress(OSError):
            value = Path("/proc/sys", name).read_text(encoding="ascii").strip()
            if os.geteuid() != 0 and value == forbidding:
                found = "the kernel lets no ordinary user make a sandbox"
                key = name.replace("/", ".")
                remedy = f"Allow it, as root: sysctl {key}={1 - int(forbidding)}, or give --python-sandbox."
                return Check("bubblewrap", State.FAILS if needed else State.NOTE, found, remedy)
    return Check("bubblewrap", State.OK, "installed")


_NAMESPACES = {"kernel/unprivileged_userns_clone": "0", "kernel/apparmor_restrict_unprivileged_userns": "1"}
"""Settings of the kernel with the value that forbids namespaces of users."""


def _option(settings: Settings, tool: str, name: str) -> Any:
    return getattr(settings.tools.get(tool), name, None)


def extras(settings: Settings) -> Iterator[Check]:
    """Each extra: installed, or the command that installs it. One that an option needs must be there."""
    needed = dict(needs(settings))
    required = _requirements()
    for extra, what in EXTRAS.items():
        missing = [name for name in required.get(extra, ()) if not _installed(name)]
        if extra not in required:
            yield Check(f"extra {extra}", State.NOTE, "unknown: Antiphon itself is not installed")
        elif not missing:
            yield Check(f"extra {extra}", State.OK, what)
        elif extra in needed:
            found = f"{needed[extra]} needs it, and {', '.join(missing)} is missing"
            yield Check(f"extra {extra}", State.FAILS, found, f"Install it: {installing(extra)}")
        else:
            found = f"not installed, for {what}"
            yield Check(f"extra {extra}", State.NOTE, found, f"To have it: {installing(extra)}")


def needs(settings: Settings) -> Iterator[tuple[str, str]]:
    """The extras that options need, each with what needs it."""
    for engine, model in _models(settings):
        if engine in {"llama_cpp", "vllm"}:
            yield engine.replace("_", "-"), f"the engine {engine}"
        fetched = model is not None and model.startswith("hf:")
        if fetched or (engine == "llama_cpp" and model is None and not _bundled()):
            yield "hub", "a model of the hub"
    python = _option(settings, "code_interpreter", "code_interpreter")
    programs = _option(settings, "programs", "programs")
    options = (
        ("postgresql", "--store", settings.store.startswith("postgresql")),
        ("tracing", "--otlp-endpoint", settings.otlp_endpoint),
        ("mcp", "--mcp-host or [[mcp_servers]]", settings.mcp_host or settings.mcp_servers),
        ("web-search", "--web-search", _option(settings, "web_search", "web_search")),
        ("code-interpreter", "--code-interpreter or --programs", python or programs),
    )
    yield from ((extra, what) for extra, what, given in options if given)


def _requirements() -> dict[str, list[str]]:
    """Extra → the packages that it needs with this Python, as the installed package declares them."""
    try:
        declared = distribution("antiphon").requires or []
    except PackageNotFoundError:
        return {}
    packages: dict[str, list[str]] = {}
    for requirement in declared:
        extra = _EXTRA.search(requirement)
        name = _PACKAGE.match(requirement)
        old = _OLDER.search(requirement)
        newer = old is not None and sys.version_info[:2] >= (int(old[1]), int(old[2]))
        if extra and name and not newer:
            packages.setdefault(extra[1], []).append(name[0])
    return packages


_EXTRA = re.compile(r"""extra == ['"]([a-z-]+)['"]""")
_PACKAGE = re.compile(r"[A-Za-z0-9._-]+")
_OLDER = re.compile(r"""python_version < ['"](\d+)\.(\d+)['"]""")


def _installed(package: str) -> bool:
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


def _models(settings: Settings) -> Iterator[tuple[str, str | None]]:
    """The name of the engine and the model of each engine that the server would have."""
    for served in settings.served:
        for engine in served.engines:
            module = type(engine).__module__
            yield module.removeprefix("antiphon.engines."), getattr(engine, "model", None)


def every_model(settings: Settings) -> Iterator[Check]:
    """The models: the file, the folder or the server of each."""
    for engine, model in _models(settings):
        if model is not None and is_url(model):
            yield reached(model)
        elif engine == "llama_cpp":
            yield gguf_model(model)
        elif engine == "vllm" and model is not None:
            yield vllm_model(model)
    for served in settings.served:
        if served.chat_template is not None and str(served.chat_template) != "chatml":
            yield readable("--chat-template", served.chat_template)


def reached(url: str) -> Check:
    """Whether something listens at a server's address."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        with socket.create_connection((parts.hostname or "", port), REACH_SECONDS):
            pass
    except (OSError, ValueError) as error:
        remedy = "Start that server, or correct the address."
        return Check("model", State.FAILS, f"no server at {without_password(url)}: {why_of(error)}", remedy)
    return Check("model", State.OK, f"a server listens at {without_password(url)}: see antiphon inspect")


def without_password(url: str) -> str:
    """The address without what stands before an @ in its host."""
    before, separator, after = url.partition("://")
    host, slash, path = after.partition("/")
    return before + separator + host.rpartition("@")[2] + slash + path


def gguf_model(model: str | None) -> Check:
    """Whether a GGUF file can be read, and fits into the memory."""
    if model is None and not _bundled():
        return Check("model", State.NOTE, "the first start fetches the small model, 94 MiB, from the hub")
    if model is not None and model.startswith("hf:"):
        return Check("model", State.NOTE, "the first start fetches it from the hub, which was not asked")
    try:
        path = models.resolve(model)
        gguf.check_whole(path)
        size = gguf.parts_size(path)
    except AntiphonError as error:
        return Check("model", State.FAILS, error.message)
    memory = main_memory()
    if memory is not None and size > memory and not _has_gpu():
        found = f"its {size / GIB:.1f} GiB do not fit into {memory / GIB:.1f} GiB of memory"
        return Check("model", State.FAILS, found, "Choose a smaller model, or fewer bits per weight.")
    return Check("model", State.OK, f"{path.name}, {size / GIB:.1f} GiB")


def vllm_model(model: str) -> Check:
    """Whether the folder of a model for vLLM is there; a name on the hub is not asked for."""
    folder = Path(model).expanduser()
    if not os.path.exists(folder):
        return Check("model", State.NOTE, "the first start fetches it from the hub, which was not asked")
    if any((folder / name).is_file() for name in ("config.json", "params.json")):
        return Check("model", State.OK, f"the folder {folder.name}")
    remedy = "Name the folder that has config.json and the safetensors of the model."
    return Check("model", State.FAILS, f"{folder} has no config.json", remedy)


def _bundled() -> bool:
    """Whether the package with the small model is installed."""
    return find_spec(models.BUNDLED_PACKAGE) is not None


def _has_gpu() -> bool:
    return any(any(Path("/dev").glob(name)) for name in ("nvidia0", "kfd", "dri/renderD*"))


def configuration(settings: Settings) -> Iterator[Check]:
    """The file, the variables, the address, the files that options name, and the folder of the store."""
    where = f"{settings.config} is valid" if settings.config else "no file; --config names one"
    yield Check("configuration", State.OK, where)
    for warning in unread_variables(settings):
        yield Check("variables", State.NOTE, warning)
    if settings.unix_socket is None:
        yield address(settings.host, settings.port)
    for name in ("tls_certificate", "tls_key", "keys", "codex_instructions"):
        if (path := getattr(settings, name)) is not None:
            yield readable(f"--{name.replace('_', '-')}", path)
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        found = "--tls-certificate and --tls-key need each other"
        yield Check("TLS", State.FAILS, found, "Give both, or none.")
    if settings.store == "sqlite" or settings.store.startswith("sqlite:///"):
        yield store_folder(settings.store)
    yield from unusable(settings)


def unusable(settings: Settings) -> Iterator[Check]:
    """Options that a server refuses together."""
    try:
        if settings.processes > 1:
            settings.check_processes()
        if settings.durable_streams:
            require_lasting(settings.store)
    except AntiphonError as error:
        yield Check("options", State.FAILS, error.message)


def address(host: str, port: int) -> Check:
    """Whether the server could listen there."""
    subject, shown = "address", f"{host}:{port}"
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(where)
    except OSError as error:
        remedy = "End what listens there, or choose another: --port 0 picks a free one."
        return Check(subject, State.FAILS, f"{shown} cannot be used: {why_of(error)}", remedy)
    return Check(subject, State.OK, f"{shown} is free")


def readable(option: str, path: Path) -> Check:
    """Whether the file that an option names can be read."""
    if path.is_file() and os.access(path, os.R_OK):
        return Check(option, State.OK, str(path))
    why = "cannot be read" if path.exists() else "does not exist"
    return Check(option, State.FAILS, f"{path} {why}", "Correct the path, or let the server's user read it.")


def store_folder(store: str) -> Check:
    """Whether the file of the store, or the nearest folder above it that exists, can be written."""
    given = store.removeprefix("sqlite:///")
    path = default_path() if store == "sqlite" else Path(given).expanduser()
    if given == ":memory:":
        return Check("store", State.OK, "in memory")
    at = next(each for each in (path, *path.absolute().parents) if each.exists())
    if os.access(at, os.W_OK):
        return Check("store", State.OK, str(path))
    remedy = "Let the server's user write there, or choose another file: --store sqlite:///PATH."
    return Check("store", State.FAILS, f"{at} cannot be written", remedy)


CHECKS: Sequence[Callable[[Settings], Iterable[Check]]] = (machine, extras, every_model, configuration)


def checks(settings: Settings) -> list[Check]:
    """All checks, for a server with these settings."""
    return [check for group in CHECKS for check in group(settings)]


def without_settings(problem: str) -> list[Check]:
    """The checks that are left where the options cannot be read."""
    wrong = Check("configuration", State.FAILS, problem, "The rest was not checked: correct this first.")
    return [*machine(Settings()), wrong]


def exit_code(found: Iterable[Check]) -> int:
    """1 if something would fail."""
    return int(any(check.state is State.FAILS for check in found))


def lines(found: Sequence[Check]) -> Iterator[str]:
    """The table, with a remedy below what has one, and a sum."""
    width = max(len(check.subject) for check in found)
    for check in found:
        yield f"{check.subject:<{width}}  {check.state.value:<5}  {check.found}"
        if check.remedy:
            yield f"{'':<{width}}         {check.remedy}"
    failing = sum(check.state is State.FAILS for check in found)
    yield ""
    yield (
        f"{failing} of {len(found)} checks fail."
        if failing
        else "Nothing that was checked would keep a server from starting."
    )
