"""A dialect of one's own, as docs/dialects.md shows it: from a template to forced calls, over HTTP."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import jsonschema_rs
import pytest

from antiphon.dialects.own.file import parse
from antiphon.dialects.registry import find
from antiphon.run.inspect import inspect
from tests.dialects.templates import chatml
from tests.dialects.test_derived_tags import VALUE
from tests.server_process import Process, serving

DOCS = (Path(__file__).parents[2] / "docs" / "dialects.md").read_text()
EXAMPLE = DOCS.partition("### A worked example")[2].partition("\n### ")[0]


def snippet(text: str, language: str) -> str:
    """The first example of that language."""
    found = re.search(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found
    return found[1]


FILE, ANSWER = snippet(EXAMPLE, "toml"), snippet(EXAMPLE, "")

TEMPLATE = chatml(
    "{{- '<|use|>' + call.function.name + '\\n' }}"
    "{%- for key, value in call.function.arguments.items() %}"
    f"{{{{- '<|key|>' + key + '<|value|>' + {VALUE} + '<|done|>\\n' }}}}"
    "{%- endfor %}{{- '<|/use|>' }}",
    "{{- '<|muse|>' + message.reasoning_content + '<|/muse|>' }}",
)
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
FLAT = [{"type": "function", "name": "get_weather", "parameters": SCHEMA}]
QUESTION = [{"role": "user", "content": "What is the weather in Rome?"}]
ARGUMENTS = {"city": "Rome", "days": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gale")
    (folder / "gale.toml").write_text(FILE)
    (folder / "gale.jinja").write_text(TEMPLATE)
    (folder / "script.jsonl").write_text(json.dumps({"output": ANSWER.strip()}) + "\n")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Process]:
    """A server whose model writes the answer of the example."""
    options = (
        "--port",
        "0",
        "--engine",
        "scripted",
        "--script",
        str(folder / "script.jsonl"),
        "--model-name",
        "gale",
    )
    with serving(folder, *options, "--store", "memory", "--dialect", str(folder / "gale.toml")) as process:
        yield process


def post(server: Process, path: str, body: Any) -> Any:
    response = httpx.post(server.url + path, json={"model": "gale", **body}, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


def test_inspect_prints_the_file_of_the_example(folder: Path) -> None:
    assert inspect(str(folder / "gale.jinja")).dialect_file == FILE


def test_its_answer_is_decoded_in_chat_completions(server: Process) -> None:
    message = post(server, "/v1/chat/completions", {"messages": QUESTION, "tools": TOOLS})["choices"][0][
        "message"
    ]

    assert (message["reasoning_content"], message["content"]) == ("I need the weather.", "Let me look.")
    (call,) = message["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("get_weather", ARGUMENTS)


def test_its_answer_is_decoded_in_responses(server: Process) -> None:
    output = post(server, "/v1/responses", {"input": "Weather?", "tools": FLAT})["output"]

    assert [item["type"] for item in output] == ["reasoning", "message", "function_call"]
    assert json.loads(output[2]["arguments"]) == ARGUMENTS


def test_its_answer_is_decoded_in_messages(server: Process) -> None:
    tools = [{"name": "get_weather", "input_schema": SCHEMA}]
    body = {"max_tokens": 500, "messages": QUESTION, "tools": tools}
    blocks = post(server, "/v1/messages", body)["content"]

    assert blocks[-1]["input"] == ARGUMENTS
    assert [block["text"] for block in blocks if block["type"] == "text"] == ["Let me look."]


def test_a_call_can_be_demanded_of_a_real_model(folder: Path) -> None:
    """SmolLM2, which knows nothing of this format: what it writes is held to the grammar of the file."""
    options = (
        "--port",
        "0",
        "--context",
        "2048",
        "--parallel",
        "1",
        "--threads",
        "1",
        "--store",
        "memory",
        "--model-name",
        "gale",
    )
    own = ("--dialect", str(folder / "gale.toml"), "--chat-template", str(folder / "gale.jinja"))
    with serving(folder, *options, *own) as process:
        for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            body = {
                "messages": QUESTION,
                "tools": TOOLS,
                "tool_choice": choice,
                "max_tokens": 200,
                "thinking_token_budget": 8,
                "parallel_tool_calls": False,
            }
            answer = post(process, "/v1/chat/completions", body)["choices"][0]
            assert "tool_calls" in answer["message"], json.dumps(answer)
            (call, *_) = answer["message"]["tool_calls"]
            assert answer["finish_reason"] == "tool_calls"
            assert call["function"]["name"] == "get_weather"
            jsonschema_rs.validate(SCHEMA, json.loads(call["function"]["arguments"]))
            assert "<|" not in json.dumps(answer)


def test_a_table_of_a_model_names_its_file_and_its_tags(folder: Path) -> None:
    (folder / "muse.jsonl").write_text(json.dumps({"output": "<a>Hm.</a>Yes."}) + "\n")
    (folder / "antiphon.toml").write_text(
        'port = 0\nstore = "memory"\n'
        '[[models]]\nname = "gale"\nengine = "scripted"\nscript = "script.jsonl"\ndialect = "gale.toml"\n'
        '[[models]]\nname = "tags"\nengine = "scripted"\nscript = "muse.jsonl"\nreasoning_tags = ["<a>", "</a>"]\n'
    )
    with serving(folder, "--config", str(folder / "antiphon.toml")) as process:
        body = {"messages": QUESTION, "tools": TOOLS}
        message = post(process, "/v1/chat/completions", body)["choices"][0]["message"]
        assert message["tool_calls"][0]["function"]["name"] == "get_weather"
        body = {"model": "tags", "messages": QUESTION}
        message = post(process, "/v1/chat/completions", body)["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("Hm.", "Yes.")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--dialect", "{folder}/wrong.toml"), "wrong.toml, line 2: calls.format: it is one of: json,"),
        (("--dialect", "{folder}/none.toml"), "Cannot read the dialect {folder}/none.toml: No such file"),
        (
            ("--dialect", "no.such_module"),
            "The dialect no.such_module cannot be imported: No module named 'no'",
        ),
        (("--reasoning-tags", "<a>", ""), "A tag of reasoning is empty"),
        (("--dialect", "openai", "--reasoning-tags", "<a>", "</a>"), "Leave --reasoning-tags out."),
    ],
)
def test_what_is_wrong_is_told_at_the_start(folder: Path, more: tuple[str, ...], told: str) -> None:
    (folder / "wrong.toml").write_text('[calls]\nformat = "xml"\n')
    options = (
        "--port",
        "0",
        "--engine",
        "scripted",
        "--script",
        str(folder / "script.jsonl"),
        "--store",
        "memory",
    )
    given = (each.format(folder=folder) for each in more)
    with serving(folder, *options, *given) as process:
        assert process.ended() != 0
        assert told.format(folder=folder) in " ".join((process.stdout + process.stderr).split())


def test_the_grammar_that_the_document_writes_as_states_is_that_of_glm() -> None:
    """As far as models write what they should."""
    text = DOCS.partition("### `[states.NAME]`")[2]
    found, glm = parse("glm.toml", snippet(text, "toml"), find).calls, find("glm45").calls

    assert found.states.keys() <= glm.states.keys()
    for name, state in found.states.items():
        assert getattr(state, "on", {}).items() <= getattr(glm.states[name], "on", {}).items()
