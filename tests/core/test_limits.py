"""What is counted in a body, and what is refused."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.apis.chat.schema import BatchChatRequest, ChatRequest
from antiphon.apis.responses.schema import CreateResponse
from antiphon.apis.wire import decode
from antiphon.core.errors import RequestError
from antiphon.core.limits import LIMIT_EXCEEDED, Limits, check_body, is_small, read_limits

MESSAGE = {"role": "user", "content": "Hi"}
PART = {"type": "text", "text": ""}


def refused(body: Any, type_: Any = ChatRequest, **limits: int) -> RequestError:
    with pytest.raises(RequestError) as refusal:
        decode(msgspec.json.encode({"model": "m", **body}), type_, Limits(**limits))
    assert refusal.value.code == LIMIT_EXCEEDED
    return refusal.value


def function(**parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


@pytest.mark.parametrize(
    ("body", "type_", "name", "param"),
    [
        ({"messages": [MESSAGE] * 3}, ChatRequest, "items", "messages"),
        ({"messages": [[MESSAGE], [MESSAGE] * 3]}, BatchChatRequest, "items", "messages[1]"),
        ({"input": [MESSAGE] * 3}, CreateResponse, "items", "input"),
        ({"messages": [{"role": "user", "content": [PART] * 3}]}, ChatRequest, "parts", "messages[0].content"),
        ({"input": [{"role": "user", "content": [PART] * 3}]}, CreateResponse, "parts", "input[0].content"),
        ({"messages": [MESSAGE], "tools": [function()] * 3}, ChatRequest, "tools", "tools"),
        ({"messages": [MESSAGE], "functions": [{"name": "f"}] * 3}, ChatRequest, "tools", "functions"),
        ({"input": "Hi", "tools": [{"type": "namespace", "tools": [1] * 3}]}, CreateResponse, "tools", "tools[0].tools"),
        (
            {"messages": [MESSAGE], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{}] * 3}}},
            ChatRequest,
            "tools",
            "tool_choice.allowed_tools.tools",
        ),
        (
            {"messages": [MESSAGE], "tools": [function(enum=[1, 2, 3])]},
            ChatRequest,
            "enum_values",
            "tools[0].function.parameters.enum",
        ),
        (
            {"input": "Hi", "tools": [{"type": "function", "parameters": {"not": {"oneOf": [{}] * 3}}}]},
            CreateResponse,
            "alternatives",
            "tools[0].parameters.not.oneOf",
        ),
        (
            {"messages": [MESSAGE], "structured_outputs": {"json": {"patternProperties": {"a": 1, "b": 2, "c": 3}}}},
            ChatRequest,
            "patterns",
            "structured_outputs.json.patternProperties",
        ),
    ],
)  # fmt: skip
def test_what_is_too_many_is_refused_by_its_name(body: Any, type_: Any, name: str, param: str) -> None:
    error = refused(body, type_, **{name: 2})
    assert error.param == param
    assert f"the limit '{name}' of this server" in error.message
    decode(msgspec.json.encode({"model": "m", **body}), type_, Limits(**{name: 3}))


def test_all_values_are_counted_but_the_numbers_of_a_list() -> None:
    body = {"messages": [MESSAGE], "chat_template_kwargs": {str(each): "" for each in range(30)}}
    error = refused(body, values=29)
    assert (error.param, "'values'" in error.message) == ("chat_template_kwargs", True)
    ids = {"messages": [MESSAGE], "chat_template_kwargs": {"a": [*range(30)]}}
    with pytest.raises(RequestError):
        check_body({"a": ["1"] * 30}, Limits(values=30))
    decode(msgspec.json.encode({"model": "m", **ids}), ChatRequest, Limits(values=3))


NAMES = st.sampled_from(["messages", "content", "tools", "enum", "oneOf", "patternProperties", "schema", "a"])
BODIES = st.recursive(
    st.text() | st.integers(-9, 9) | st.none(),
    lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner),
    max_leaves=20,
)


@given(BODIES, st.integers(1, 20))
@example([[0]], 2)
@example({"tools": [None, None]}, 3)
def test_what_need_not_be_visited_is_within_the_limits(body: Any, most: int) -> None:
    counted = ("values", "depth", "items", "parts", "tools", "schema_values", "enum_values", "alternatives")
    limits = Limits(**dict.fromkeys((*counted, "patterns"), most))
    if isinstance(body, dict | list) and is_small(msgspec.json.encode(body), limits):
        check_body(body, limits)


def test_a_schema_has_a_limit_of_its_own() -> None:
    tools = [function(properties={str(each): {} for each in range(9)})] * 3
    error = refused({"messages": [MESSAGE], "tools": tools}, schema_values=5)
    assert error.param == "tools[0].function.parameters.properties"
    assert "'schema_values'" in error.message
    # What is in all of them counts, too.
    assert "'values'" in refused({"messages": [MESSAGE], "tools": tools}, values=25).message


def test_depth() -> None:
    nested: Any = "deep"
    for _ in range(10):
        nested = [nested]
    error = refused({"messages": [MESSAGE], "documents": [{"a": nested}]}, depth=9)
    assert error.param == "documents[0].a" + "[0]" * 7
    decode(
        msgspec.json.encode({"model": "m", "messages": [MESSAGE], "documents": [{"a": nested}]}), ChatRequest
    )


@pytest.mark.parametrize("depth", [500, 900, 990, 5_000, 100_000])
@pytest.mark.parametrize("number", [b"1", b"1234567890123456789"])
def test_an_unknown_field_however_deep_is_no_failure(depth: int, number: bytes) -> None:
    body = b'{"model": "m", "messages": [{"role": "user"}], "x": %b%b%b}'
    with suppress(RequestError):
        decode(body % (b"[" * depth, number, b"]" * depth), ChatRequest)


def test_limits_are_read() -> None:
    assert read_limits(["tools=5", "items=7"]) == Limits(tools=5, items=7)
    assert read_limits([]) == Limits()
