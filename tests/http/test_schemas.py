"""Schemas of functions and formats, in every API and with every kind of engine: what is refused, and what is not."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from antiphon.core.constraint import Gbnf, StructuralTag
from antiphon.engines.scripted import CAPABILITIES, ScriptedEngine
from tests.http.chat_api import ChatApi, chatting

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[(), (Gbnf,), (StructuralTag,)], ids=str)
async def api(request: pytest.FixtureRequest) -> AsyncIterator[ChatApi]:
    """A server whose engine takes constraints of this kind, or none."""
    able = replace(CAPABILITIES, constraints=request.param)
    async with chatting(ScriptedEngine([{"output": "{}"}], capabilities=able)) as api:
        yield api


def asked(path: str, **fields: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": "Hi"}]
    body = {"model": "scripted", **fields}
    if path == RESPONSES:
        return {**body, "input": "Hi"}
    return {**body, "messages": said, **({"max_tokens": 99} if path == MESSAGES else {})}


def with_tool(path: str, schema: Any, **more: Any) -> dict[str, Any]:
    """A request with a function of this schema."""
    if path == CHAT:
        tool = {"type": "function", "function": {"name": "f", "parameters": schema, **more}}
    elif path == RESPONSES:
        tool = {"type": "function", "name": "f", "parameters": schema, "strict": False, **more}
    else:
        tool = {"name": "f", "input_schema": schema, **more}
    return asked(path, tools=[tool])


def with_format(path: str, schema: Any, **more: Any) -> dict[str, Any]:
    """A request for an answer of this schema."""
    named = {"name": "n", "schema": schema, **more}
    if path == CHAT:
        return asked(path, response_format={"type": "json_schema", "json_schema": named})
    if path == RESPONSES:
        return asked(path, text={"format": {"type": "json_schema", **named}})
    return asked(path, output_config={"format": {"type": "json_schema", "schema": schema}})


SOURCES = {
    CHAT: ("tools[0].function.parameters", "response_format"),
    RESPONSES: ("tools[0].parameters", "text.format"),
    MESSAGES: ("tools.0.input_schema", "output_config.format"),
}
NO_TYPES = ("str", "any", 5, None, ["string", "float"], [], {"type": "string"})


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("type_", NO_TYPES, ids=str)
@pytest.mark.parametrize("path", SOURCES)
async def test_what_is_no_type_is_refused_at_its_place(
    api: ChatApi, path: str, type_: Any, strict: bool
) -> None:
    schema = {"type": "object", "properties": {"type": {"type": "string"}, "a": {"items": {"type": type_}}}}
    for body in (with_tool(path, schema, strict=strict), with_format(path, schema, strict=strict)):
        response = await api.http.post(path, json=body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert "/properties/a/items/type: " in error["message"]
        assert "is no type. Use one of array," in error["message"]
        if path != MESSAGES:
            tool, form = SOURCES[path]
            place = f"{tool}.properties.a.items.type" if "tools" in body else form
            assert error["param"] == place


ODD_IDS = ("my tool #1", "#f", "urn:example:f", "f.json", "http://[", "日本", "", 7, None)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("id_", ODD_IDS, ids=str)
@pytest.mark.parametrize("path", SOURCES)
async def test_an_odd_id_is_no_reason_to_refuse(api: ChatApi, path: str, id_: Any, strict: bool) -> None:
    inner = {"$id": id_, "type": "string"}
    schema = {
        "$id": id_,
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/b"}, "c": inner},
        "required": [],
        "additionalProperties": False,
        "$defs": {"b": inner},
    }
    for body in (with_tool(path, schema, strict=strict), with_format(path, schema, strict=strict)):
        await api.post(path, body)


@pytest.mark.parametrize("path", SOURCES)
async def test_a_high_count_is_no_reason_to_refuse(api: ChatApi, path: str) -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "minLength": 0, "maxLength": 5_000_000},
            "b": {"type": "array", "items": {"type": "string", "maxLength": 1000}, "maxItems": 2000},
        },
        "required": [],
        "additionalProperties": False,
    }
    for body in (with_tool(path, schema, strict=True), with_format(path, schema, strict=True)):
        await api.post(path, body)
