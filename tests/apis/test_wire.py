"""Errors for JSON with wrong types: they always name the parameter, in JSON's terms."""

import json
from typing import Any

import pytest

from antiphon.apis.chat.schema import ChatRequest
from antiphon.apis.chat.tools import requested_tools
from antiphon.apis.fields import ParameterNames
from antiphon.apis.wire import decode, decode_request, unknown_members
from antiphon.core.errors import RequestError

HI = {"role": "user", "content": "Hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def request(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [HI], **more}


def refusal(body: Any) -> RequestError:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(RequestError) as raised:
        requested_tools(decode_request(content, ChatRequest, ParameterNames()))
    return raised.value


def test_what_fits_is_decoded_and_unknown_fields_are_ignored() -> None:
    names = ParameterNames()
    decoded = decode_request(json.dumps(request(temperature=1, wibble=[1])).encode(), ChatRequest, names)

    assert (decoded.model, decoded.messages[0].content, decoded.temperature) == ("m", "Hi", 1)
    assert names.ignored == ["wibble"]


def test_unknown_names_that_are_no_text_are_refused() -> None:
    body = json.dumps(request()).encode()[:-1] + b', "\xff": 1}'
    decode(body, ChatRequest)  # it looks at no name that it does not know
    with pytest.raises(RequestError, match="not UTF-8"):
        unknown_members(body, ChatRequest)
    assert unknown_members(b'{"model": "m", "b": 1, "a": 2}', ChatRequest) == ["a", "b"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [HI]}, "model"),
        ({"model": "m"}, "messages"),
        (request(messages=[HI, {"content": "x"}]), "messages[1].role"),
        (request(messages=[{"role": "assistant", "tool_calls": [{"function": {}}]}]),
         "messages[0].tool_calls[0].function.name"),
        (request(messages=[HI, HI, {"role": "user", "content": [{"type": "text", "text": "a"}, {}]}]),
         "messages[2].content[1].type"),
        (request(tools=[{"function": {"name": "f"}}]), "tools[0].type"),
        (request(tools=[{"type": "function", "function": {}}]), "tools[0].function.name"),
        (request(response_format={}), "response_format.type"),
    ],
)  # fmt: skip
def test_a_missing_field_is_named_with_its_path(body: Any, param: str) -> None:
    error = refusal(body)

    assert error.message == f"Missing required parameter: '{param}'."
    assert (error.param, error.code, error.status) == (param, "missing_required_parameter", 400)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (request(temperature="hot"), "temperature", "Expected `number | null`, got `string`"),
        (request(temperature=-1), "temperature", "Expected `number` >= 0.0"),
        (request(n=1.5), "n", "Expected `integer"),
        (request(n=0), "n", "Expected `integer` >= 1"),
        (request(stream="yes"), "stream", "Expected `boolean | null`, got `string`"),
        (request(seed=[]), "seed", "Expected `integer | null`, got `array`"),
        (request(messages={}), "messages", "Expected `array`, got `object`"),
        (request(messages=[]), "messages", "Expected `array` of length >= 1"),
        (request(messages=[HI, "Hi"]), "messages[1]", "Expected `object`, got `string`"),
        (request(messages=[HI, {"role": 3}]), "messages[1].role", "Expected `string`, got `integer`"),
        (request(stop={}), "stop", "got `object`"),
        (request(stop=["a", 2]), "stop[1]", "Expected `string`, got `integer`"),
        (request(messages=[{"role": "user", "content": 3}]), "messages[0].content", "got `integer`"),
        (request(messages=[{"role": "user", "content": [{"type": "text"}, 4]}]),
         "messages[0].content[1]", "Expected `object`, got `integer`"),
        (request(messages=[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]}]),
         "messages[0].tool_calls[0].function.arguments", "got `integer`"),
        (request(tools=[{"type": "function", "function": {"name": ""}}]),
         "tools[0].function.name", "Expected `string` of length >= 1"),
        (request(stream_options={"include_usage": 1}), "stream_options.include_usage",
         "Expected `boolean | null`, got `integer`"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_its_path_and_what_was_expected(
    body: Any, param: str, words: str
) -> None:
    error = refusal(body)

    assert error.param == param
    assert error.message.startswith(f"Invalid value for '{param}': ")
    assert words in error.message
    assert error.message.endswith(".")
    assert " - at `" not in error.message


@pytest.mark.parametrize("type_", ["str", "int", "float", "bool"])
def test_python_names_of_types_do_not_reach_clients(type_: str) -> None:
    bodies = [request(**{name: {}}) for name in ("stop", "n", "temperature", "stream", "model", "logprobs")]
    messages = [refusal(body).message for body in bodies]

    assert not [message for message in messages if type_ in message.replace("`", " ").split()]


@pytest.mark.parametrize("body", [b"[]", b"3", b'"hi"', b"null", b"[" * 100_000])
def test_a_body_that_is_no_object_has_no_parameter(body: bytes) -> None:
    error = refusal(body)

    assert error.param is None
    assert error.message.startswith("The body is not what this path takes: Expected `object`, got ")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"model": }', b"{'model': 'm'}", b'{"model": "m", "messages": [{"role": "user"}]} x', b'{"model": "\xff"}',
     b'{"model": "m", "wibble": ' + b"[" * 100_000],
)  # fmt: skip
def test_a_body_that_is_no_json_says_so(body: bytes) -> None:
    error = refusal(body)

    assert error.message.startswith("The body is not valid JSON: ")
    assert (error.param, error.status) == (None, 400)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"a": 2**64}, "chat_template_kwargs.a"),
        ({"a": [1, 2, -(2**63) - 1]}, "chat_template_kwargs.a[2]"),
        ({"a": [0.5, {"b": 10**30}]}, "chat_template_kwargs.a[1].b"),
    ],
)
def test_a_number_that_has_more_than_64_bits_is_named(options: dict[str, Any], param: str) -> None:
    error = refusal(request(chat_template_kwargs=options))
    assert error.param == param
    assert "64 bits" in error.message


def test_long_digits_in_texts_and_the_greatest_numbers_are_taken() -> None:
    options = {"a": [2**63 - 1, -(2**63)], "b": "1" * 40, "c": 2**63 - 1}
    body = json.dumps(request(chat_template_kwargs=options)).encode()
    assert decode_request(body, ChatRequest, ParameterNames()).chat_template_kwargs == options
