"""The docs keep up with the code."""

import importlib
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from starlette.routing import Route

from antiphon import cli
from antiphon.apis.chat.schema import ChatRequest
from antiphon.apis.completions.schema import CompletionRequest
from antiphon.apis.fields import ALIASES, HINTS, REFUSED
from antiphon.apis.messages.schema import CreateMessage
from antiphon.apis.responses.schema import CreateResponse
from antiphon.app.metrics import Metrics, ServerState
from antiphon.config import Settings
from antiphon.constrain.budget import WorkBudget
from antiphon.constrain.json_schema import compile_schema
from antiphon.constrain.string_formats import PATTERNS
from antiphon.core.grammar import AcceptedNames
from antiphon.core.limits import DEFAULTS
from antiphon.core.turn import Sampling
from antiphon.dialects.registry import BY_NAME
from antiphon.engines import llama_cpp, llama_request, samplers, scripted, upstream, vllm
from antiphon.engines.upstreams import (
    anthropic,
    chat,
    completions,
    llama_server,
    ollama,
    sglang,
    tabbyapi,
    tgi,
)
from antiphon.http.app import ROUTES
from antiphon.option_sources import option_names
from antiphon.toolkits import registry as toolkits
from tests.rows import every_row

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("[bf]*/README.md")]

SAMPLES: dict[str, Any] = {
    "type": "string",
    "enum": ["a", 1],
    "const": "a",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
    "patternProperties": {"^a": {"type": "string"}},
    "propertyNames": {"pattern": "a"},
    "minProperties": 2,
    "maxProperties": 2,
    "unevaluatedProperties": False,
    "items": {"type": "string"},
    "prefixItems": [{"type": "string"}],
    "additionalItems": {"type": "string"},
    "unevaluatedItems": False,
    "minItems": 1,
    "maxItems": 2,
    "uniqueItems": True,
    "contains": {"type": "string"},
    "minContains": 1,
    "maxContains": 2,
    "minLength": 1,
    "maxLength": 2,
    "pattern": "^a+$",
    "format": "date",
    "minimum": 1,
    "maximum": 2,
    "exclusiveMinimum": 1,
    "exclusiveMaximum": 3,
    "multipleOf": 2,
    "$ref": "#",
    "$dynamicRef": "#a",
    "allOf": [{"type": "string"}, {"minLength": 1}],
    "anyOf": [{"type": "string"}, {"type": "null"}],
    "oneOf": [{"type": "string"}, {"type": "null"}],
    "not": {"type": "string"},
    "if": {"type": "string"},
    "then": {"type": "string"},
    "else": {"type": "string"},
    "dependentRequired": {"a": ["b"]},
    "dependentSchemas": {"a": {}},
    "dependencies": {"a": ["b"]},
    "nullable": True,
}
"""A value of each keyword of JSON Schema that says anything about values."""


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def section(name: str, heading: str) -> str:
    """The text under a heading of a page, up to the next one."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", page(name), re.DOTALL | re.MULTILINE)
    assert found is not None, f"{name} has no section '{heading}'"
    return found[1]


def rows(name: str, heading: str) -> list[list[str]]:
    """The cells of the rows of the table under a heading; the first without its code marks.

    A row of two parameters is there twice.
    """
    lines = [line for line in section(name, heading).splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [[first.strip("`"), *rest] for firsts, *rest in cells for first in firsts.split(", ")]


def named(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def names(name: str, heading: str) -> list[str]:
    return [first for first, *_ in rows(name, heading)]


def test_links_between_the_pages_lead_somewhere() -> None:
    for path in PAGES:
        for target, place in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", path.read_text()):
            there = path.parent / target if target else path
            assert there.exists(), f"{path.name} links to {target}"
            if place:
                headings = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
                anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert place in anchors, f"{path.name} links to {target}#{place}"


def test_every_example_is_linked() -> None:
    """A reader of the documents finds each of them."""
    text = "".join(path.read_text() for path in PAGES)

    assert [path.name for path in ROOT.glob("examples/*.py") if f"examples/{path.name})" not in text] == []


@pytest.mark.parametrize("package", ["run", "app", "http"])
def test_every_module_is_in_the_architecture(package: str) -> None:
    """For the packages whose files have tables there; and no table has a file that does not exist."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    table = re.search(rf"^### `{package}/`\n(.*?)(?=^##)", text, re.DOTALL | re.MULTILINE)
    assert table is not None
    folder = ROOT / "src" / "antiphon" / package
    modules = {str(path.relative_to(folder)) for path in folder.rglob("*.py") if path.name != "__init__.py"}

    listed = {name for name in named(table[1]) if name.endswith(".py")}
    every_row(listed, modules, f"the table of {package}/ in ARCHITECTURE.md")


def test_the_glossary_is_in_order() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text().partition("## Glossary")[2]
    terms = [line.strip("| ").partition(" |")[0] for line in text.splitlines() if line.startswith("| ")][1:]

    assert terms == sorted(terms, key=str.lower)
    assert len(terms) == len(set(terms))


def test_every_dialect_is_in_the_docs() -> None:
    missing = [name for name in BY_NAME if name not in named(page("dialects.md"))]
    assert missing == [], "add them to the table in docs/dialects.md"


def test_the_dialects_that_the_docs_list_reason_again_after_text() -> None:
    listed = named(section("dialects.md", "Reasoning that goes on, or begins again"))
    reasoning = {name: BY_NAME[name].reasoning for name in listed if name in BY_NAME}

    assert [name for name, tags in reasoning.items() if tags and tags.calls and not tags.reopens] == []


def test_the_dialects_that_the_docs_list_demand_declared_names() -> None:
    for name in named(section("dialects.md", "Names that must be declared")):
        if name in BY_NAME:
            states = BY_NAME[name].grammar.states.values()
            assert any(getattr(state, "names", None) is AcceptedNames.DECLARED for state in states), name


FOREIGN = {
    "api-server-count",
    "build-arg",
    "enable-scale-out",
    "enable-tokenizer-info-endpoint",
    "incremental-streaming-output",
    "kv-unified",
    "max-logprobs",
    "max-num-seqs",
    "tool-call-parser",
    "tool-server",
}
"""Options of podman, and of the servers that run models, which the docs name alone."""


def options_of_commands() -> set[str]:
    """Those of `antiphon serve`, with every engine, and of the other commands."""
    engines = (engine.Options for engine in (llama_cpp, scripted, upstream, vllm))
    served = option_names(*Settings().option_tables, *engines) | {"engine", "tool", "help", "help-all"}
    commands = [cli.app[name] for name in cli.app if not name.startswith("-")]
    others = {
        name.removeprefix("--")
        for command in commands
        for argument in command.assemble_argument_collection()
        for name in argument.names
    }
    return {name.replace("_", "-") for name in served} | others


def test_every_option_in_the_docs_exists() -> None:
    """Those of our own command line, in commands and in text."""
    options = options_of_commands()
    for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/howto/*.md")):
        text = path.read_text()
        prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
        found = {option for code in named(prose) for option in re.findall(r"^--([a-z][a-z-]+)", code)}
        found = {option.removeprefix("no-") for option in found} - FOREIGN
        for line in re.findall(r"^antiphon serve .*$", text, re.MULTILINE):
            found |= set(re.findall(r" --([a-z][a-z-]+)", line))
        assert found <= options, (path.name, found - options)


@pytest.mark.parametrize("name", toolkits.names())
def test_every_tool_that_the_server_runs_has_its_row(name: str) -> None:
    type_ = toolkits.find(name).type
    page, heading = "tools.md", "Tools that the server runs"
    missing = f"docs/{page}, '{heading}': add a row for {type_}, the tool of src/antiphon/toolkits/{name}/"
    assert any(f'"type": "{type_}"' in row[0] for row in rows(page, heading)), missing


def test_the_sample_configuration_has_every_option() -> None:
    written = runpy.run_path(str(ROOT / "scripts" / "sample_config"))["text"]()

    assert (ROOT / "deploy" / "antiphon.toml").read_text() == written, "Run scripts/sample_config."


# docs/api.md


def test_every_endpoint_is_in_the_docs() -> None:
    served = set()
    for route in ROUTES:
        methods = (route.methods or set()) - {"HEAD"} if isinstance(route, Route) else {"WebSocket"}
        served |= {f"{method} {_nameless(route.path)}" for method in methods}

    documented = [_nameless(endpoint) for endpoint in names("api.md", "The API")]

    every_row(documented, served, "the table of 'The API' in docs/api.md")


def _nameless(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", path)


# docs/parameters.md


@pytest.mark.parametrize(
    ("request_type", "headings"),
    [
        (ChatRequest, ["Every API", "Chat Completions and Completions", "Chat Completions only"]),
        (CompletionRequest, ["Every API", "Chat Completions and Completions", "Completions only"]),
        (CreateResponse, ["Every API", "Responses"]),
        (CreateMessage, ["Every API", "Messages"]),
    ],
)
def test_every_parameter_is_in_the_docs(request_type: type[Any], headings: list[str]) -> None:
    documented = [name for heading in headings for name in names("parameters.md", heading)]

    every_row(documented, request_type.__struct_fields__, f"the tables of {headings} in docs/parameters.md")


@pytest.mark.parametrize(("heading", "table"), [("Hints", HINTS), ("Refused", REFUSED)])
def test_what_is_not_acted_on_is_in_the_docs(heading: str, table: dict[str, str]) -> None:
    documented = dict(rows("parameters.md", heading))
    every_row(documented, table, f"the table of '{heading}' in docs/parameters.md")
    assert documented == table


def test_other_names_are_in_the_docs() -> None:
    documented = {name: named(fields) for name, fields in rows("parameters.md", "Other names")}

    assert documented == {
        name: [field for field in fields if field != name] for name, fields in ALIASES.items()
    }


def test_what_engines_honour_is_in_the_docs() -> None:
    written = runpy.run_path(str(ROOT / "scripts" / "parameter_table"))["text"]()

    assert (ROOT / "docs" / "parameters.md").read_text() == written, "Run scripts/parameter_table."


@pytest.mark.parametrize("name", samplers.COLUMNS)
def test_every_engine_takes_each_field_or_has_a_reason(name: str) -> None:
    every_row(
        samplers.COLUMNS[name], Sampling.__struct_fields__, f"the column '{name}' of engines/samplers.py"
    )


def test_what_upstreams_honour_is_in_the_docs() -> None:
    flavours = (*completions.FLAVOURS, sglang.SGLANG, tabbyapi.EXLLAMAV3, tabbyapi.EXLLAMAV2, tgi.FLAVOUR)
    columns = {flavour.name: flavour.column for flavour in flavours}
    columns |= {llama_server.NAME: llama_request.COLUMN, ollama.NAME: ollama.COLUMN}
    head = section("parameters.md", "Which engine does what").partition("| parameter |")[2].partition("\n")[0]
    assert {*columns.values()} <= {*samplers.COLUMNS}
    every_row({*named(head)} & {*columns}, columns, "ENGINES of scripts/parameter_table")
    providers = {provider.name: {*provider.sampling, "priority"} for provider in chat.PROVIDERS}
    providers[anthropic.NAME] = {*anthropic.SAMPLING, "priority"}
    of_providers = {
        kind: set(named(cell)) for kind, *_, cell in rows("engines.md", "Conversations only")[-8:]
    }
    every_row(of_providers, providers, "the table of 'Conversations only' in docs/engines.md")
    assert of_providers == providers
    every_row({*columns, *providers}, upstream.KINDS, "the tables of docs/engines.md")


# docs/structured-output.md


def listed(opening: str) -> set[str]:
    """The names in the paragraph that begins like this."""
    [found] = [
        paragraph
        for paragraph in section("structured-output.md", "What is enforced").split("\n\n")
        if paragraph.startswith(opening)
    ]
    return set(named(found))


def test_the_keywords_that_are_enforced_are_in_the_docs() -> None:
    """A keyword is enforced if nothing of its schema is left to check."""
    enforced = {
        keyword
        for keyword, sample in SAMPLES.items()
        if not compile_schema({keyword: sample}, WorkBudget())[1]
    }

    assert listed("Enforced keywords:") == enforced
    assert listed("Not enforced:") == SAMPLES.keys() - enforced


def test_the_formats_of_strings_are_in_the_docs() -> None:
    every_row(listed("Formats:"), PATTERNS, "'Formats:' in docs/structured-output.md")


def test_each_attack_is_stopped_by_limits_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "fuzz")
    attacks = importlib.import_module("attacks").ATTACKS
    text = (ROOT / "fuzz" / "README.md").read_text(encoding="utf-8")
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")][1:]
    limits, shown = ([re.findall(r"`([a-z_-]+)`", line[column]) for line in lines] for column in (1, 2))
    assert all(shown)
    assert {name for names in limits for name in names} <= structs.asdict(DEFAULTS).keys()
    assert sorted(name for names in shown for name in names) == sorted(attacks)


def test_every_metric_is_in_the_docs() -> None:
    """Those of the libraries are not: `python_…` and `process_…`."""
    text, _ = Metrics().text("text/plain", ServerState())
    families = [line.split()[2] for line in text.decode().splitlines() if line.startswith("# TYPE ")]
    lines = section("observability.md", "Metrics").splitlines()
    cells = " ".join(line.split(" | ")[0] for line in lines if line.startswith("| `"))
    documented = [name.partition("{")[0] for name in named(cells) if "…" not in name]
    every_row(
        documented,
        [name for name in families if not name.startswith(("python_", "process_"))],
        "the table of 'Metrics' in docs/observability.md",
    )


def test_every_limit_is_in_the_docs_with_its_value() -> None:
    headings = (
        "Requests",
        "Embeddings and rankings",
        "Moderation",
        "Batches",
        "Decisions",
        "Schemas",
        "Histories and answers",
        "What is stored",
        "Bounded work",
        "Programs",
        "Tools",
        "Containers",
        "Servers of models",
        "Tools of MCP servers",
        "Waiting",
        "Connections",
    )
    found = {name: int(value) for heading in headings for name, value, *_ in rows("limits.md", heading)}
    every_row(found, structs.asdict(DEFAULTS), "the tables of docs/limits.md")
    assert found == structs.asdict(DEFAULTS)


ADDITION = re.compile(r"^To add .*?(?=\n\n|\"\"\")", re.DOTALL | re.MULTILINE)
"""A paragraph of a docstring, to which CONTRIBUTING.md refers."""


def test_how_to_add_things_names_files_that_exist() -> None:
    modules = [
        path for folder in ("src", "tests", "simulation", "fuzz") for path in (ROOT / folder).rglob("*.py")
    ]
    told = {path: found[0] for path in modules if (found := ADDITION.search(path.read_text()))}
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in told.items()
        for name in re.findall(r"`([\w/.]+(?:\.\w+|/))`", text)
        if not any((at / name).exists() for at in (ROOT, ROOT / "src" / "antiphon", path.parent))
        and "/" in name
    ]

    assert len(told) > 30
    assert not wrong
