"""What `deploy/` holds fits this server: its options, its endpoints, its metrics."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import promql_parser
import pytest
from prometheus_client.parser import text_string_to_metric_families

from antiphon.config import Settings
from antiphon.engines.registry import names, options_of
from tests.http.test_toy_tool import Dice
from tests.server import NO_TLS, running
from tests.test_config import Serve, no_variables, serve

__all__ = ["no_variables", "serve"]  # fixtures

DEPLOY = Path(__file__).parent.parent / "deploy"


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
    text += uncommented(f"The engine {engine}", folder)
    file = folder / "antiphon.toml"
    file.write_text(text)
    settings = serve("--config", file)

    assert isinstance(settings.engine, options_of(engine))
    own = set(Settings.__dataclass_fields__) - {"config", "models", "mcp_servers"}
    assert tomllib.loads(text).keys() == own | set(options_of(engine).__dataclass_fields__) - {"_"}


def test_the_tables_of_the_sample_configuration_can_be_used(
    serve: Serve, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH_TOKEN", "token")
    file = folder / "antiphon.toml"
    file.write_text(uncommented("Several models", folder) + uncommented("MCP servers", folder))
    settings = serve("--config", file)

    assert [model.names[0] for model in settings.models] == ["small", "large"]
    assert [len(model.engines) for model in settings.models] == [1, 2]
    assert [server.label for server in settings.mcp_servers] == ["search", "files"]


# grafana.json


def expressions() -> Iterator[tuple[str, str]]:
    """The title of each panel, with each of its expressions."""
    for panel in json.loads((DEPLOY / "grafana.json").read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"].replace("$__rate_interval", "5m")


def selectors(node: Any) -> Iterator[Any]:
    """The metrics that an expression of Prometheus reads."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    elif isinstance(node, promql_parser.MatrixSelector):
        yield node.vector_selector
    elif isinstance(node, promql_parser.BinaryExpr):
        yield from (*selectors(node.lhs), *selectors(node.rhs))
    elif isinstance(node, promql_parser.Call):
        for each in node.args:
            yield from selectors(each)
    elif not isinstance(node, promql_parser.NumberLiteral):
        yield from selectors(node.expr)


async def test_the_dashboard_reads_metrics_and_labels_that_the_server_has() -> None:
    call = '<tool_call>{"name": "roll", "arguments": {}}</tool_call>'
    script = [
        {"when": "tool_response", "output": "Done."},
        {"when": "Throw", "output": call},
        {"output": "one two three", "fail_after": 1},
    ]
    labels: dict[str, set[str]] = {"up": set()}
    async with (
        running(script, tools=[Dice()]) as server,
        httpx.AsyncClient(base_url=server.url, verify=NO_TLS) as http,
    ):
        for text in ("Throw", "Fail"):
            body = {"model": "scripted", "input": text, "tools": [{"type": "dice"}]}
            await http.post("/v1/responses", json=body)
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
