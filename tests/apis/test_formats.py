"""The ways in which a request may say what its answer has to look like."""

from typing import Any

import pytest

from antiphon.core.constraint import Format, GrammarFormat, JsonObject, JsonSchema, OneOf, Regex, TagFormat
from antiphon.core.errors import RequestError
from tests.apis.chat.requests import turn

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
NAMED = {"name": "n", "schema": SCHEMA, "description": "d", "strict": True}
TAG = {"type": "structural_tag", "format": {"type": "any_text"}}
LEGACY_TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<", "schema": {}, "end": ">"}],
    "triggers": ["<"],
}


@pytest.mark.parametrize(
    ("more", "format_"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, JsonObject()),
        ({"response_format": {"type": "json_schema", "json_schema": NAMED}}, JsonSchema(SCHEMA, True, "n", "d")),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
         JsonSchema(SCHEMA, False, "n")),
        ({"response_format": TAG}, TagFormat(TAG)),
        ({"response_format": LEGACY_TAG}, TagFormat(LEGACY_TAG)),
        ({"structured_outputs": {}}, None),
        ({"structured_outputs": {"json_object": False}}, None),
        ({"structured_outputs": {"json": SCHEMA}}, JsonSchema(SCHEMA)),
        ({"structured_outputs": {"json": '{"type": "null"}'}}, JsonSchema({"type": "null"})),
        ({"structured_outputs": {"regex": "a+"}}, Regex("a+")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, OneOf(("a", "b"))),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, GrammarFormat('root ::= "a"', "gbnf")),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, GrammarFormat('start: "a"', "lark")),
        ({"structured_outputs": {"json_object": True}}, JsonObject()),
        ({"structured_outputs": {"structural_tag": '{"type": "structural_tag", "format": {}}'}},
         TagFormat({"type": "structural_tag", "format": {}})),
        ({"guided_json": SCHEMA}, JsonSchema(SCHEMA)),
        ({"guided_regex": "a+", "guided_decoding_backend": "x"}, Regex("a+")),
        ({"guided_choice": ["a"]}, OneOf(("a",))),
        ({"guided_grammar": 'root ::= "a"'}, GrammarFormat('root ::= "a"')),
        ({"response_format": {"type": "text"}, "guided_regex": "a"}, Regex("a")),
    ],
)  # fmt: skip
def test_a_format_by_its_many_names(more: dict[str, Any], format_: Format | None) -> None:
    assert turn(**more).format == format_


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "response_format.json_schema.name"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "[]"}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
        ({"response_format": {"type": "json_object"}, "guided_json": {}}, "guided_json"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
    ],
)  # fmt: skip
def test_what_is_no_format_or_more_than_one_is_refused_by_name(more: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as raised:
        turn(**more)

    assert raised.value.param == param
    assert raised.value.message.endswith(".")
