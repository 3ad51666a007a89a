"""Files for those who find the repository: forms of issues, workflows, hooks, the image. No service reads them here."""

import json
import os
import re
import tomllib
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from check_jsonschema import main as check_schema
from click.testing import CliRunner
from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).parent.parent
GITHUB = ROOT / ".github"
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def fits(schema: str, *paths: Path) -> None:
    arguments = ["--builtin-schema", f"vendor.{schema}", *map(str, paths)]
    result = CliRunner().invoke(check_schema, arguments)
    assert result.exit_code == 0, result.output


def test_the_forms_of_issues_fit_their_schema() -> None:
    assert FORMS
    fits("github-issue-forms", *FORMS)
    fits("github-issue-config", GITHUB / "ISSUE_TEMPLATE" / "config.yml")


def test_the_workflow_fits_its_schema_and_calls_what_exists() -> None:
    path = GITHUB / "workflows" / "ci.yml"
    fits("github-workflows", path)
    [job] = yaml.safe_load(path.read_text())["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands == [".ci/run"]
    assert os.access(ROOT / commands[0], os.X_OK)
    declared = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)}
    assert set(job["strategy"]["matrix"]["python"]) <= declared


def test_the_hooks_run_what_make_lint_and_make_types_run() -> None:
    [repository] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
        assert hook["entry"].replace(".venv/bin/", "\t$(BIN)/") in MAKEFILE


def test_the_container_for_development_makes_what_there_is() -> None:
    container: dict[str, Any] = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    target = container["postCreateCommand"].removeprefix("make .venv/")
    assert f"$(VENV)/{target}:" in MAKEFILE


def steps() -> list[tuple[str, str]]:
    parser = DockerfileParser(fileobj=BytesIO((ROOT / "deploy" / "Containerfile").read_bytes()))
    return [(each["instruction"], each["value"]) for each in parser.structure]


def test_the_image_copies_what_exists_and_has_extras_that_exist() -> None:
    copied = [
        value.split()[:-1]
        for instruction, value in steps()
        if instruction == "COPY" and "--from" not in value
    ]
    assert copied
    assert [name for names in copied for name in names if not (ROOT / name).exists()] == []
    [extras] = [value.partition("=")[2] for _, value in steps() if value.startswith("EXTRAS=")]
    others = {"vllm", "ray", "mistral", "local", "examples", "test", "check"}
    assert set(extras.split(",")) | others == set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("name", ["SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE"])
def test_links_of_the_pages_for_contributors_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / name).read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []
