"""Dialects made of response templates read what the reference, the package `transformers`, reads."""

import ast
import json
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.items import FunctionCall, Message, Reasoning
from antiphon.decode.table import Table
from antiphon.dialects.response_template.builder import build
from tests.contracts.dialect import TOOLS
from tests.dialects.response_templates import ALL
from tests.laws import check, cuts, fold
from tests.search import examples

reference = pytest.importorskip("transformers.utils.chat_parsing", reason="needs the package transformers")

Call = tuple[str, Mapping[str, Any]]
Writer = Callable[[str, str, list[Call]], str]


def tagged(reasoning: str, said: str, calls: list[Call]) -> str:
    written = [json.dumps({"name": name, "arguments": given}) for name, given in calls]
    return _think(reasoning) + said + "".join(f"\n<tool_call>\n{call}\n</tool_call>" for call in written)


def coder(reasoning: str, said: str, calls: list[Call]) -> str:
    return _think(reasoning) + said + "".join(map(_function, calls))


def cohere(reasoning: str, said: str, calls: list[Call]) -> str:
    written = [{"tool_call_id": "0", "tool_name": name, "parameters": given} for name, given in calls]
    action = f"<|START_ACTION|>{json.dumps(written)}<|END_ACTION|>" if calls else ""
    response = f"<|START_RESPONSE|>{said}<|END_RESPONSE|>" if said else ""
    return f"<|START_THINKING|>{reasoning}<|END_THINKING|>{action}{response}<|END_OF_TURN_TOKEN|>"


def channels(reasoning: str, said: str, calls: list[Call]) -> str:
    analysis = f"<|channel|>analysis<|message|>{reasoning}<|end|>"
    written = [f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{json.dumps(given)}<|call|>" for name, given in calls]  # fmt: skip
    final = [f"<|channel|>final<|message|>{said}<|return|>"] if said else []
    return "<|start|>assistant".join([analysis, *written, *final])


def _think(reasoning: str) -> str:
    return f"<think>\n{reasoning}\n</think>\n\n"


def _function(call: Call) -> str:
    name, given = call
    values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in given.items()}
    tags = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"\n<tool_call>\n<function={name}>\n{tags}</function>\n</tool_call>"


WRITERS: Mapping[str, Writer] = {"hermes": tagged, "coder": coder, "cohere": cohere, "channels": channels}

words = st.text("abzé \n{}\"'.,", min_size=1).map(str.strip).filter(bool)
weather = st.fixed_dictionaries(
    {}, optional={"city": words, "days": st.integers(), "options": st.dictionaries(words, words, max_size=2)}
)
calls = st.lists(st.tuples(st.just("get_weather"), weather) | st.just(("now", {})), max_size=3)


@pytest.mark.parametrize("name", WRITERS)
@given(reasoning=words, said=words | st.just(""), given=calls, at=cuts)
@settings(max_examples=examples(40))
def test_reads_the_same(name: str, reasoning: str, said: str, given: list[Call], at: list[int]) -> None:
    text = WRITERS[name](reasoning, said, given)
    tools = [{"function": {"name": tool, "parameters": schema}} for tool, schema in TOOLS.items()]
    expected = reference.parse_response(text, ALL[name], prefix="", tools=tools)
    items = fold(check(Table(build(json.dumps(ALL[name])).grammar), text, at, tools=TOOLS)).items

    reasoning = (expected.get("reasoning_content"), expected.get("thinking"))
    assert [item.text for item in items if isinstance(item, Reasoning)] == list(filter(None, reasoning))
    assert "".join(item.text for item in items if isinstance(item, Message)) == expected.get("content", "")
    assert [(i.name, json.loads(i.arguments)) for i in items if isinstance(i, FunctionCall)] == [
        (call["function"]["name"], call["function"]["arguments"]) for call in expected.get("tool_calls", ())
    ]


SINGLE: Mapping[str, list[str]] = {
    "keyed": [
        "<think>hm</think>ok<tool_call>get_weather\n<key>city</key>\n<value>Rome</value>\n</tool_call><|end|>",
        "<tool_call>now</tool_call><tool_call>now\n</tool_call>",
        "<tool_call>get_weather<key>city</key><value>Rome</value><key>days</key><value>3</value></tool_call>",
    ],
    "unclosed": [
        "<call get_weather><arg=city>Rome</arg><arg=days>3</arg></call><call now></call><|end|>",
        "<call get_weather><arg=city>Rome<arg=days>3</arg></call>",
    ],
}
"""Answers whose parts the writers above do not write: by template."""


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in SINGLE.items() for text in texts])
def test_reads_these_the_same(name: str, text: str) -> None:
    tools = [{"function": {"name": tool, "parameters": schema}} for tool, schema in TOOLS.items()]
    expected = reference.parse_response(text, ALL[name], prefix="", tools=tools)
    items = fold(check(Table(build(json.dumps(ALL[name])).grammar), text, [], tools=TOOLS)).items
    assert [item.text for item in items if isinstance(item, Message)] == [
        *filter(None, [expected.get("content")])
    ]
    assert [(i.name, json.loads(i.arguments)) for i in items if isinstance(i, FunctionCall)] == [
        (call["function"]["name"], call["function"]["arguments"]) for call in expected.get("tool_calls", ())
    ]


def test_the_templates_of_the_reference_are_understood() -> None:
    """It has templates for families whose tokenizers ship none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a package without what it can do more
        spec = find_spec("transformers.cli.serving.utils")
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text())
    found = [
        node.value for node in ast.walk(tree) if isinstance(node, ast.Assign) and _fallbacks(node.targets[0])
    ]

    templates = ast.literal_eval(found[0])
    assert len(templates) >= 3
    for template in templates.values():
        assert build(json.dumps(template)).calls.markers


def _fallbacks(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and target.id == "_RESPONSE_TEMPLATE_FALLBACKS"
