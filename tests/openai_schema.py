"""Checks JSON against the published schemas of OpenAI and Open Responses.

The documents are those that the package `llm-comply` carries; what OpenAI says of
Responses, Conversations and moderation is newer, and lies in `specs/`. `validate` takes the name of a component, `validate_event` finds the component of a Responses event by
its type. Where a document is known to be wrong, or Antiphon says more on
purpose, it is corrected here, by name, with the reason.
"""

import json
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema_rs
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

OPENAI = "openai_chat"
OPENAI_RESPONSES = "openai_responses"
OPENAI_MODERATION = "openai_moderation"
OPEN_RESPONSES = "openresponses"

Schema = dict[str, Any]


def validate(name: str, value: Any, spec: str = OPENAI) -> None:
    """Check `value` (JSON text or what it holds) against a component. Raises AssertionError with every fault."""
    if isinstance(value, bytes | str):
        value = json.loads(value)
    if _quick_validator(spec, name).is_valid(value):
        return
    faults = [
        f"{'/'.join(map(str, fault.absolute_path)) or '(whole)'}: {fault.message[:300]}"
        for fault in _validator(spec, name).iter_errors(value)
    ]
    raise AssertionError(f"{name}: " + ("; ".join(faults) or "not what the document says"))


def validate_event(value: Any, spec: str = OPEN_RESPONSES) -> str:
    """Check a streamed Responses event against the component of its `type`, and return the type."""
    if isinstance(value, bytes | str):
        value = json.loads(value)
    type_ = value["type"]
    names = event_components(spec)
    assert type_ in names, f"no such event: {type_}"
    validate(names[type_], value, spec)
    return str(type_)


OWN_EVENTS = frozenset(f"response.code_interpreter_call_logs.{each}" for each in ("delta", "done"))
"""Events that are ours: no document knows them, and clients get them that ask for them."""


@cache
def event_components(spec: str = OPEN_RESPONSES) -> dict[str, str]:
    """Event type → component, for every event that a document knows."""
    return {type_: name for name, type_ in _typed(components(spec)) if name in _event_names(spec)}


@cache
def components(spec: str) -> dict[str, Schema]:
    """The components of a document, in today's JSON Schema, with what is known to be wrong corrected."""
    ours = spec in (OPENAI_RESPONSES, OPENAI_MODERATION)
    folder = Path(__file__).with_name("specs") if ours else resources.files("llm_comply.specs")
    text = folder.joinpath(f"{spec}.json").read_text(encoding="utf-8")
    found: dict[str, Schema] = _modern(json.loads(text))["components"]["schemas"]
    if spec in _CORRECTIONS:
        _CORRECTIONS[spec](found)
    return found


@cache
def _quick_validator(spec: str, name: str) -> jsonschema_rs.Draft202012Validator:
    """Takes a hundredth of the time, but its messages do not name the fault in a union: that is for `_validator`."""
    assert name in components(spec), f"{spec} has no component {name}"
    document = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": components(spec)}}
    return jsonschema_rs.Draft202012Validator(document)


@cache
def _validator(spec: str, name: str) -> Draft202012Validator:
    document = Resource.from_contents({"components": {"schemas": components(spec)}}, DRAFT202012)
    registry: Registry[Any] = Registry().with_resource("urn:spec", document)
    return Draft202012Validator({"$ref": f"urn:spec#/components/schemas/{name}"}, registry=registry)


def _modern(node: Any) -> Any:
    """OpenAPI's own keywords, `nullable` and `discriminator`, in JSON Schema, or left out."""
    if isinstance(node, list):
        return [_modern(item) for item in node]
    if not isinstance(node, dict):
        return node
    modern = {key: _modern(item) for key, item in node.items() if key not in ("discriminator", "nullable")}
    return {"anyOf": [modern, {"type": "null"}]} if node.get("nullable") is True else modern


def _correct_openai(found: dict[str, Schema]) -> None:
    chunk = found["CreateChatCompletionStreamResponse"]["properties"]["choices"]["items"]["properties"]
    choice = found["CreateChatCompletionResponse"]["properties"]["choices"]["items"]["properties"]
    # Not in any document: a choice whose engine failed, next to complete ones.
    for reason in (choice["finish_reason"], chunk["finish_reason"]["anyOf"][0]):
        reason["enum"].append("error")
    # Newer than this document: calls of custom tools.
    custom = {
        "type": "object",
        "required": ["id", "type", "custom"],
        "properties": {
            "type": {"enum": ["custom"]},
            "custom": {
                "type": "object",
                "required": ["name", "input"],
                "properties": {"name": {"type": "string"}, "input": {"type": "string"}},
            },
        },
    }
    calls = found["ChatCompletionMessageToolCalls"]
    calls["items"] = {"anyOf": [calls["items"], custom]}
    # The streamed form of the same has no schema even in newer ones; its type is the full answer's.
    found["ChatCompletionMessageToolCallChunk"]["properties"]["type"]["enum"].append("custom")
    # The same of old completions; their chunks have no schema of their own, but they end only once.
    old = found["CreateCompletionResponse"]["properties"]["choices"]["items"]["properties"]
    reasons = {"enum": [*old["finish_reason"]["enum"], "error"]}
    old["finish_reason"] = {"anyOf": [reasons, {"type": "null"}]}
    # A token that has no log probability, the first of an echoed prompt, has null; so has its list.
    lists = old["logprobs"]["anyOf"][0]["properties"]
    for part in ("token_logprobs", "top_logprobs"):
        lists[part]["items"] = {"anyOf": [lists[part]["items"], {"type": "null"}]}
    # The messages of a stored completion are those of its request, of any role.
    said, stored = found["ChatCompletionResponseMessage"], found["ChatCompletionMessageList"]["properties"]
    anyone = {**said, "properties": {**said["properties"], "role": {"type": "string"}}}
    stored["data"]["items"]["allOf"][0] = anyone
    # OpenAI's own servers send null between the chunks that have usage, as its prose says.
    usage = found["CreateCompletionResponse"]["properties"]
    usage["usage"] = {"anyOf": [usage["usage"], {"type": "null"}]}


def _correct_responses(found: dict[str, Schema]) -> None:
    # Open Responses demands the key, and it is null while nothing was counted yet.
    properties = found["Response"]["allOf"][-1]["properties"]
    properties["usage"] = {"anyOf": [properties["usage"], {"type": "null"}]}
    # Not in this document: why a response is not whole that was cancelled, or whose tools had taken all they may;
    # newer than it: one that was steered. That the next one waits is ours.
    properties["incomplete_details"]["anyOf"][0]["properties"]["reason"]["enum"] += [
        "cancelled",
        "max_tool_calls",
        "steered",
        "waiting_for_required_input",
    ]
    # A choice of the tool `web_search` is of the type of the tool; the document knows its older names.
    found["ToolChoiceTypes"]["properties"]["type"]["enum"] += found["WebSearchTool"]["properties"]["type"][
        "enum"
    ]


def _correct_open_responses(found: dict[str, Schema]) -> None:
    # A returned schema is an object; the document allows only null.
    found["JsonSchemaResponseFormat"]["properties"]["schema"] = {"type": ["object", "null"]}


_CORRECTIONS = {
    OPENAI: _correct_openai,
    OPENAI_RESPONSES: _correct_responses,
    OPEN_RESPONSES: _correct_open_responses,
}


@cache
def _event_names(spec: str) -> frozenset[str]:
    """The components that are events: of OpenAI those that its union names, of Open Responses by their names."""
    if spec == OPEN_RESPONSES:
        return frozenset(name for name in components(spec) if name.endswith("StreamingEvent"))
    union = components(spec)["ResponseStreamEvent"]
    return frozenset(part["$ref"].rpartition("/")[2] for part in union["anyOf"])


def _typed(found: dict[str, Schema]) -> Iterator[tuple[str, str]]:
    """The components whose `type` can only be one word, with the word."""
    for name, schema in found.items():
        words = schema.get("properties", {}).get("type", {}).get("enum", ())
        if len(words) == 1:
            yield name, words[0]
