"""What `deploy/` holds fits this server: its options, its endpoints, its metrics.

To add a way to deploy: a file in `deploy/`, and its purpose in `docs/deploy.md`. It is checked here against
the schema of its kind, and the options of the server.
"""

import asyncio
import io
import json
import os
import re
import shlex
import shutil
import socket
import sqlite3
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import httpx2 as httpx
import kubernetes_validate
import promql_parser
import pytest
import yaml
from check_jsonschema import main as check_schema
from click.testing import CliRunner
from dockerfile_parse import DockerfileParser
from prometheus_client.parser import text_string_to_metric_families

from antiphon.config import Settings
from antiphon.engines.figures import AdapterFigures, CacheFigures, PoolFigures
from antiphon.engines.models import resolve
from antiphon.engines.registry import names, options_of
from antiphon.engines.scripted import ScriptedEngine
from antiphon.option_sources import option_names
from antiphon.run.models import Health
from tests.apis.decision_requests import OPENAI
from tests.deciding import deciding
from tests.kubernetes.manifests import selectors
from tests.server import NO_TLS, Running, running
from tests.test_config import Serve, no_variables, serve
from tests.toolkits.dice import Dice

__all__ = ["no_variables", "serve"]  # fixtures

DEPLOY = Path(__file__).parent.parent / "deploy"
MARGIN = 15
"""Seconds for last events, and for the engine and the store to end."""
PYTHON = os.environ.get("ANTIPHON_TEST_IMAGE")
"""The folder of a Python that represents that of the image, /usr/local."""


# antiphon.toml


def uncommented(section: str, folder: Path) -> str:
    """The settings in a section of the file, with its files in a folder where they are."""
    text = (DEPLOY / "antiphon.toml").read_text()
    [found] = re.findall(
        rf"^# ---- {re.escape(section)}\b.*?\n(.*?)(?=^# ----|\Z)", text, re.DOTALL | re.MULTILINE
    )
    return re.sub(r"^#(?=\S)", "", found, flags=re.MULTILINE).replace("/etc/antiphon", str(folder))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the files are that the sample configuration names."""
    for name in ("keys", "admin-keys", "secret"):
        (tmp_path / name).write_text(f"of-{name}\n")
    return tmp_path


@pytest.mark.parametrize("engine", names())
def test_every_line_of_the_sample_configuration_can_be_used(serve: Serve, folder: Path, engine: str) -> None:
    text = uncommented("The server", folder).replace('engine = "llama_cpp"', f'engine = "{engine}"')
    text = text.replace("my_package.my_tool", "tests.toolkits.dice")
    text += uncommented(f"The engine {engine}", folder)
    file = folder / "antiphon.toml"
    file.write_text(text)
    settings = serve("--config", file)

    assert isinstance(settings.engine, options_of(engine))
    own = option_names(*Settings().option_tables) - {"config"} | {"engine", "tool"}
    assert tomllib.loads(text).keys() == own | set(options_of(engine).__dataclass_fields__) - {"_"}


def test_the_tables_of_the_sample_configuration_can_be_used(
    serve: Serve, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH_TOKEN", "token")
    file = folder / "antiphon.toml"
    file.write_text(uncommented("Several models", folder) + uncommented("MCP servers", folder))
    settings = serve("--config", file)

    assert [model.model_name[0] for model in settings.models] == ["small", "large"]
    assert [len(model.engines) for model in settings.models] == [1, 2]
    assert [server.label for server in settings.mcp_servers] == ["search", "files"]


# grafana.json


def expressions() -> Iterator[tuple[str, str]]:
    """The title of each panel, with each of its expressions."""
    for panel in json.loads((DEPLOY / "grafana.json").read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"].replace("$__rate_interval", "5m")


async def test_the_dashboard_reads_metrics_and_labels_that_the_server_has() -> None:
    call = '<tool_call>{"name": "roll", "arguments": {}}</tool_call>'
    script = [
        {"when": "tool_response", "output": "Done."},
        {"when": "Throw", "output": call},
        {"output": "one two three", "fail_after": 1},
    ]
    labels: dict[str, set[str]] = {"up": set()}
    figures = CacheFigures(0.5, 16, 100, 10, 5, adapters=AdapterFigures(), pool=PoolFigures())
    async with (
        running(ScriptedEngine(script, figures=figures), tools=[Dice()], moderation="scripted") as server,
        httpx.AsyncClient(base_url=server.url, verify=NO_TLS) as http,
    ):
        for text in ("Throw", "Fail"):
            body = {"model": "scripted", "input": text, "tools": [{"type": "dice"}]}
            await http.post("/v1/responses", json=body)
        with deciding():
            await http.post("/v1/decisions", json=OPENAI | {"model": "scripted"})
            await http.post("/v1/moderations", json={"input": "Hi"})
        for family in text_string_to_metric_families((await http.get("/metrics")).text):
            for sample in family.samples:
                labels.setdefault(sample.name, set()).update(sample.labels)

    read = set()
    for title, expression in expressions():
        wanted = {label for found in re.findall(r"by \(([^)]*)\)", expression) for label in found.split(", ")}
        for selector in selectors(promql_parser.parse(expression)):
            read.add(selector.name)
            assert selector.name in labels, title
            matched = {matcher.name for matcher in selector.matchers.matchers}
            assert wanted | matched <= labels[selector.name] | {"job", "instance"}, title

    ours = {
        name
        for name in labels
        if name.startswith(("antiphon:", "vllm:")) and not re.search(r"_(sum|count|created)$", name)
    }
    assert ours <= read


# Containerfile, compose.yaml, kubernetes.yaml


def resources() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def pod() -> dict[str, Any]:
    [deployment] = [each for each in resources() if each["kind"] == "Deployment"]
    found: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return found


def image() -> list[tuple[str, str]]:
    """The instructions of the image, each with what follows it."""
    parser = DockerfileParser(fileobj=io.BytesIO((DEPLOY / "Containerfile").read_bytes()))
    steps = [each for each in parser.structure if each["instruction"] != "COMMENT"]
    return [(each["instruction"], each["value"]) for each in steps]


def health_check() -> list[str]:
    """The command that checks whether the server of the image is up."""
    [value] = [value for instruction, value in image() if instruction == "HEALTHCHECK"]
    command: list[str] = json.loads(value.partition(" CMD ")[2])
    return command


def test_the_compose_file_fits_the_schema_of_compose_files() -> None:
    arguments = ["--builtin-schema", "vendor.compose-spec", str(DEPLOY / "compose.yaml")]
    result = CliRunner().invoke(check_schema, arguments)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("resource", resources(), ids=lambda each: each["kind"])
def test_the_manifests_fit_the_schema_of_kubernetes(resource: dict[str, Any]) -> None:
    kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("file", ["Containerfile", "compose.yaml", "kubernetes.yaml", "antiphon.service"])
def test_variables_are_options(file: str) -> None:
    variables = set(re.findall(r"ANTIPHON_([A-Z_]+)", (DEPLOY / file).read_text()))
    options = option_names(*Settings().option_tables, options_of("llama_cpp")) | {"engine", "tool"}
    # That of Kubernetes' own, which the manifest keeps away from the server.
    assert {name.lower() for name in variables} <= options
    assert pod()["enableServiceLinks"] is False


def test_the_configuration_in_the_manifests_can_be_used(serve: Serve, tmp_path: Path) -> None:
    [config] = [each for each in resources() if each["kind"] == "ConfigMap"]
    [(name, text)] = config["data"].items()
    (tmp_path / name).write_text(text)
    container = pod()["containers"][0]
    assert container["args"] == ["serve", "--config", f"/etc/antiphon/{name}"]
    assert serve("--config", tmp_path / name).model.model_name == ("my-model",)


def test_servers_have_ended_before_they_are_killed() -> None:
    """They get more time than their answers may take to end."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    server = compose["services"]["antiphon-1"]
    assert server["stop_grace_period"] == "5m"
    assert float(server["environment"]["ANTIPHON_DRAIN_SECONDS"]) + MARGIN <= 300

    unit = (DEPLOY / "antiphon.service").read_text()
    assert "\nTimeoutStopSec=5min\n" in unit
    [drain] = re.findall(r"^Environment=ANTIPHON_DRAIN_SECONDS=(\d+)$", unit, re.MULTILINE)
    assert float(drain) + MARGIN <= 300

    [config] = [each for each in resources() if each["kind"] == "ConfigMap"]
    settings = tomllib.loads(config["data"]["antiphon.toml"])
    sleep, seconds = pod()["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert sleep == "sleep"
    assert float(seconds) + settings["drain_seconds"] + MARGIN <= pod()["terminationGracePeriodSeconds"]


async def test_probes_need_no_key_and_heed_the_end() -> None:
    container = pod()["containers"][0]
    paths = {
        name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")
    }
    async with (
        running([{"output": "Hi"}], api_key=("key",)) as server,
        httpx.AsyncClient(base_url=server.url, verify=NO_TLS) as http,
    ):
        assert [(await http.get(path)).status_code for path in paths.values()] == [200, 200, 200]
        server.models.health = Health.DRAINING
        found = {name: (await http.get(path)).status_code for name, path in paths.items()}
        assert found == {"startup": 503, "readiness": 503, "liveness": 200}
        assert f"health_uri {paths['readiness']}\n" in (DEPLOY / "Caddyfile").read_text()
        [url] = re.findall(r"http://127.0.0.1:8000(/\w+)", health_check()[-1])
        assert url == paths["readiness"]


async def test_without_keys_the_image_is_called_by_addresses_and_by_names_that_are_allowed() -> None:
    """The probes of Docker and Kubernetes have an address; other containers have the name of a service."""
    [host] = [
        word.removeprefix("ANTIPHON_HOST=")
        for instruction, value in image()
        if instruction == "ENV"
        for word in value.split()
        if word.startswith("ANTIPHON_HOST=")
    ]
    services = list(yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"])
    async with (
        running([{"output": "Hi"}], host=host) as strict,
        running([{"output": "Hi"}], host=host, allow_host=tuple(services)) as named,
        httpx.AsyncClient(verify=NO_TLS) as http,
    ):
        for called in ("127.0.0.1:8000", "10.1.2.3:8000", "[fd00::7]:8000", *services):
            for server, allowed in ((strict, called not in services), (named, True)):
                answer = await http.get(f"{server.url}/health", headers={"host": called})
                assert answer.status_code == (200 if allowed else 403), called


# The image, without a container: its steps in Bubblewrap, which root has to begin, for they change owners

ASK = """
import json, os, urllib.request
body = json.dumps({"model": "model", "input": "Hello!", "max_output_tokens": 16})
headers = {"Content-Type": "application/json"}
request = urllib.request.Request("http://127.0.0.1:8000/v1/responses", body.encode(), headers)
print(json.load(urllib.request.urlopen(request))["status"], "as", os.getuid())
"""
SESSION = """
antiphon serve --model-name model /models/{model} > /tmp/log 2>&1 &
for attempt in $(seq 240); do {health} 2> /dev/null && break; sleep 0.5; done
python -c {ask} || cat /tmp/log
for place in / /opt/antiphon /usr/local; do touch $place/new 2> /dev/null && echo $place can be written; done
ls /data/antiphon
kill $! && wait $! && echo ended
"""


class Stage:
    """A stage of an image: the content of its folders, its variables, and its working folder."""

    def __init__(self, folder: Path) -> None:
        self.opt, self.data, self.src = (folder / name for name in ("opt", "data", "src"))
        for each in (self.opt, self.data, self.src):
            each.mkdir(parents=True)
        self.variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LD_LIBRARY_PATH": "/usr/local/lib"}
        self.working = "/"
        self.user: str | None = None

    def copy(self, names: list[str], target: str) -> None:
        """COPY from the repository, into the folder of the steps."""
        assert self.working == "/src"
        for name in names:
            source = DEPLOY.parent / name
            if source.is_dir():
                shutil.copytree(source, self.src / target)
            else:
                shutil.copy(source, self.src / target)

    def run(self, *command: str, options: Sequence[str] = ()) -> str:
        """What a command prints. The Python of the image is in /usr/local; there is pip's configuration."""
        system = [
            f"--ro-bind-try {name} {name}".split() for name in ("/usr", "/bin", "/lib", "/lib64", "/etc")
        ]
        pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        variables = [("--setenv", *each) for each in (pip | self.variables).items()]
        folders = [("--bind", str(getattr(self, name)), f"/{name}") for name in ("opt", "data", "src")]
        done = subprocess.run(  # noqa: S603
            [
                *("bwrap", "--clearenv", "--die-with-parent", "--proc", "/proc", "--dev", "/dev"),
                *chain(*system, *variables, *folders),
                *("--ro-bind", str(PYTHON), "/usr/local"),
                *("--perms", "1777", "--tmpfs", "/tmp"),  # noqa: S108
                *("--chdir", self.working, *options, *command),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


def built(folder: Path) -> Stage:
    """The last stage of the image, built."""
    stages: list[Stage] = []
    for instruction, value in image():
        words = shlex.split(value)
        match instruction, words:
            case "FROM", _:
                stages.append(Stage(folder / str(len(stages))))
            case (("ARG" | "ENV"), _) if stages:
                stages[-1].variables |= dict(word.split("=", 1) for word in words)
            case "WORKDIR", [working]:
                stages[-1].working = working
            case "COPY", ["--from=build", "/opt/antiphon", "/opt/antiphon"]:
                shutil.copytree(stages[0].opt, stages[-1].opt, symlinks=True, dirs_exist_ok=True)
            case "COPY", [*names, target]:
                stages[-1].copy(names, target)
            case "RUN", _:
                stages[-1].run("sh", "-euc", value)
            case "USER", [user]:
                stages[-1].user = user
    return stages[-1]


@pytest.mark.timeout(900)
@pytest.mark.skipif(PYTHON is None, reason="installs everything: make test-deploy")
def test_the_steps_of_the_image_lead_to_a_server_that_answers(tmp_path: Path) -> None:
    stage = built(tmp_path)
    assert stage.user == "10001:10001"

    model = resolve(None)
    session = SESSION.format(model=model.name, health=shlex.join(health_check()), ask=shlex.quote(ASK))
    options = [
        *(
            "--unshare-net",
            "--unshare-pid",
            "--unshare-ipc",
            "--unshare-uts",
            "--ro-bind",
            str(stage.opt),
            "/opt",
        ),
        *("--ro-bind", str(model.parent), "/models", "--remount-ro", "/"),
        *("setpriv", "--reuid", "10001", "--regid", "10001", "--clear-groups"),
        *("--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"),
    ]
    output = stage.run("sh", "-c", session, options=options)

    assert re.fullmatch(
        r"(completed|incomplete) as 10001\nsecret\nstore\.db.*\nended\n", output, re.DOTALL
    ), output


# antiphon.service


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("parts", [["antiphon.service"], ["antiphon.service", "antiphon-shell.conf"]])
def test_systemd_takes_the_unit(tmp_path: Path, parts: list[str]) -> None:
    text = "\n".join((DEPLOY / part).read_text() for part in parts)
    unit = tmp_path / "antiphon.service"
    unit.write_text(text.replace("/opt/antiphon/bin/antiphon", "/bin/true"))  # it has to be there
    exposed = 20 if len(parts) == 1 else 40
    for words in (["verify"], ["security", "--offline=true", f"--threshold={exposed}"]):
        done = subprocess.run(  # noqa: S603
            ["systemd-analyze", *words, str(unit)],  # noqa: S607
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout


# Caddyfile


def under_way(server: Running) -> float:
    """How many generations the server has."""
    return sum(load.running for load in server.models.loads.values())


async def reachable(http: httpx.AsyncClient) -> bool:
    """Whether the proxy answers, through servers that are ready, several times in a row."""
    try:
        return all([(await http.get("/health")).status_code == 200 for _ in range(4)])
    except httpx.ConnectError:
        return False


@pytest.mark.skipif(shutil.which("caddy") is None, reason="needs caddy")
async def test_streams_and_their_ends_pass_the_proxy(tmp_path: Path) -> None:
    words = [{"when": "Count", "output": "word ", "tokens": 100_000, "delay_ms": 20}, {"output": "Hi"}]
    async with running(words) as first, running(words) as second:
        with socket.create_server(("127.0.0.1", 0)) as free:
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
        servers = " ".join(each.url.removeprefix("http://") for each in (first, second))
        caddy = await asyncio.create_subprocess_exec(
            *("caddy", "run", "--adapter", "caddyfile", "--config", str(DEPLOY / "Caddyfile")),
            env=os.environ | {"PROXY_SITE": url, "PROXY_SERVERS": servers, "HOME": str(tmp_path)},
            stderr=subprocess.DEVNULL,
        )
        try:
            async with httpx.AsyncClient(base_url=url, verify=NO_TLS) as http:
                while not await reachable(http):
                    await asyncio.sleep(0.05)
                assert (await http.get("/metrics")).status_code == 404
                body = {"model": "scripted", "input": "Count", "stream": True}
                async with http.stream("POST", "/v1/responses", json=body) as response:
                    async for line in response.aiter_lines():
                        if '"response.output_text.delta"' in line:  # long before the end
                            break
                    assert sum(under_way(each) for each in (first, second)) == 1
                while any(under_way(each) for each in (first, second)):  # the client has left
                    await asyncio.sleep(0.02)

                first.models.health = Health.DRAINING
                while not await reachable(http):
                    await asyncio.sleep(0.05)
        finally:
            caddy.terminate()
            await caddy.wait()


# docs/deploy.md: backups


async def stored(http: httpx.AsyncClient, text: str) -> str:
    """The id of a response that is stored."""
    return str((await http.post("/v1/responses", json={"model": "scripted", "input": text})).json()["id"])


async def serves(store: str, response: str) -> str:
    """The output of a stored response, as a server with this store has it."""
    async with (
        running([{"output": "unused"}], store=store) as server,
        httpx.AsyncClient(base_url=server.url, verify=NO_TLS) as http,
    ):
        found = (await http.get(f"/v1/responses/{response}")).json()
        return str(found["output"][0]["content"][0]["text"])


async def test_a_backup_of_a_sqlite_store_in_use_can_be_served(tmp_path: Path) -> None:
    """`.backup` of the shell of SQLite is this function."""
    async with (
        running([{"output": "Kept."}], store=f"sqlite:///{tmp_path}/store.db") as server,
        httpx.AsyncClient(base_url=server.url, verify=NO_TLS) as http,
    ):
        response = await stored(http, "Keep this")
        with (
            closing(sqlite3.connect(tmp_path / "store.db")) as source,
            closing(sqlite3.connect(tmp_path / "copy.db")) as copy,
        ):
            source.backup(copy)
    assert await serves(f"sqlite:///{tmp_path}/copy.db", response) == "Kept."


async def test_a_dump_of_a_postgresql_store_in_use_can_be_served(
    postgresql_server: Any, postgresql_url: str, tmp_path: Path
) -> None:
    dump = tmp_path / "antiphon.dump"
    restored = f"restored_{os.getpid()}"
    url = postgresql_server.get_uri(database=restored)

    async def run(program: str, *arguments: str) -> None:
        process = await asyncio.create_subprocess_exec(postgresql_server.bin_path / program, *arguments)
        assert await process.wait() == 0

    async with (
        running([{"output": "Kept."}], store=postgresql_url) as server,
        httpx.AsyncClient(base_url=server.url, verify=NO_TLS) as http,
    ):
        response = await stored(http, "Keep this")
        await run("pg_dump", "--format", "custom", "--file", str(dump), postgresql_url)
    postgresql_server.psql(f"CREATE DATABASE {restored};")
    await run("pg_restore", "--dbname", url, str(dump))
    assert await serves(url, response) == "Kept."
