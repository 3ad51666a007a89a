"""A request without I/O: what it asks for, what the response says about it, and what is refused."""

import json
from typing import Any

import msgspec
import pytest
from msgspec import json as msgspec_json
from msgspec.structs import replace

from antiphon.apis import wire
from antiphon.apis.responses.accept import (
    INCLUDABLE,
    PARAMETERS,
    SEALED_REASONING,
    ResponseContext,
    accept,
    prompt_turn,
)
from antiphon.apis.responses.output.reasoning import RAW, RAW_OPEN_RESPONSES, SUMMARY
from antiphon.apis.responses.schema import CountTokens, CreateResponse
from antiphon.apis.responses.settings import response_settings
from antiphon.core.constraint import GrammarFormat, JsonObject, JsonSchema, OneOf, Regex, TagFormat
from antiphon.core.errors import RequestError
from antiphon.core.items import Message, Role, TextPart
from antiphon.core.turn import Sampling, Turn
from tests.apis.responses.support import ID, OWNER, accepted, answering_to, request
from tests.openai_schema import OPEN_RESPONSES, validate

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def turn(**fields: Any) -> Turn:
    return accepted(**fields).turn


def settings(**fields: Any) -> dict[str, Any]:
    answering = answering_to(**fields)
    answering.begin()
    found: dict[str, Any] = json.loads(answering.body())
    return found


def refused(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        accepted(**fields)
    assert caught.value.status == 400
    return caught.value


# What is asked for


def test_a_request_becomes_a_turn() -> None:
    assert turn(model="m", input="Hello") == Turn(
        "m",
        (Message(Role.USER, (TextPart("Hello"),)),),
        owner=OWNER,
        id="resp_1",
        copies=7,
        parameters=PARAMETERS | {"format": "response_format"},
    )


def test_sampling() -> None:
    fields: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": -100},
        "seed": 7,
        "min_tokens": 2,
        "stop_token_ids": [3],
        "ignore_eos": True,
        "bad_words": ["no"],
        "priority": 1,
        "cache_salt": "s",
    }
    wanted = fields | {
        "logit_bias": {5: -100.0},
        "stop_token_ids": (3,),
        "bad_words": ("no",),
        "max_tokens": 9,
    }

    assert turn(max_output_tokens=9, **fields).sampling == Sampling(**wanted)


def test_careless_clients_are_understood() -> None:
    for limit in (0, -1):
        assert turn(max_output_tokens=limit) == turn()
        assert settings(max_output_tokens=limit)["max_output_tokens"] is None
    assert turn(stop="", tools=[]) == turn()
    assert turn(temperature=5, top_p=0).sampling == Sampling(temperature=5, top_p=0)


def test_what_chat_completions_take_is_taken_here_too() -> None:
    assert turn(truncate_prompt_tokens=9, truncation_side="left").prompt_limit == 9
    assert turn(documents=[{"text": "a"}]).variables == {"documents": [{"text": "a"}]}
    assert turn(template_vars={"a": 1}).variables == {"a": 1}
    assert turn(reasoning_effort="low").variables["reasoning_effort"] == "low"
    assert turn(length_penalty=0.5).sampling == Sampling(length_penalty=0.5)
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    assert turn(response_format=schema).format == JsonSchema(SCHEMA, strict=False, name="n")
    assert turn(guided_json=SCHEMA).format == JsonSchema(SCHEMA)
    both = refused(response_format=schema, text={"format": {"type": "json_object"}})
    assert both.param == "response_format"


def test_stops() -> None:
    assert turn(stop="a").stop == ("a",)
    asked = turn(stop=["a", "b"], include_stop_str_in_output=True, thinking_token_budget=3)

    assert (asked.stop, asked.stop_shown, asked.reasoning_limit) == (("a", "b"), True, 3)


def test_log_probabilities_are_asked_for_with_include() -> None:
    include = ["message.output_text.logprobs"]

    assert turn(top_logprobs=3).sampling.logprobs is None
    assert turn(include=include).sampling.logprobs == 0
    assert turn(include=include, top_logprobs=3).sampling.logprobs == 3


def test_effort_and_verbosity_are_told_to_the_template() -> None:
    assert turn(reasoning={"effort": "low"}, text={"verbosity": "high"}).variables == {
        "reasoning_effort": "low",
        "enable_thinking": True,
        "thinking": True,
        "verbosity": "high",
    }
    own = {"enable_thinking": True, "x": 1}
    mixed = turn(reasoning={"effort": "none"}, chat_template_kwargs=own).variables
    assert mixed == {"reasoning_effort": "none", "thinking": False} | own
    assert turn().variables == {}


def test_a_long_conversation_may_be_shortened() -> None:
    assert [turn(truncation=how).shorten for how in (None, "disabled", "auto")] == [False, False, True]


def test_formats() -> None:
    schema = {"type": "json_schema", "name": "n", "schema": SCHEMA}

    assert turn(text={"format": {"type": "text"}}).format is None
    assert turn(text={"format": {"type": "json_object"}}).format == JsonObject()
    assert turn(text={"format": schema}).format == JsonSchema(SCHEMA, strict=False, name="n")
    strict = schema | {"strict": True, "description": "d"}
    assert turn(text={"format": strict}).format == JsonSchema(SCHEMA, strict=True, name="n", description="d")


@pytest.mark.parametrize(
    ("structured", "wanted"),
    [
        ({"json": SCHEMA}, JsonSchema(SCHEMA)),
        ({"json": json.dumps(SCHEMA)}, JsonSchema(SCHEMA)),
        ({"json_object": True, "regex": None}, JsonObject()),
        ({"regex": "a+"}, Regex("a+")),
        ({"choice": ["a", "b"]}, OneOf(("a", "b"))),
        ({"grammar": 'root ::= "a"'}, GrammarFormat('root ::= "a"')),
        ({"grammar": 'start: "a"'}, GrammarFormat('start: "a"', "lark")),
        ({"structural_tag": {"a": 1}}, TagFormat({"a": 1})),
        ({"json_object": False}, None),
    ],
)
def test_structured_outputs(structured: dict[str, Any], wanted: Any) -> None:
    assert turn(structured_outputs=structured).format == wanted


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({}, RAW_OPEN_RESPONSES),
        ({"reasoning": {"effort": "high"}}, RAW_OPEN_RESPONSES),
        ({"reasoning": {"summary": "auto"}}, SUMMARY),
        ({"reasoning": {"generate_summary": "concise"}}, SUMMARY),
        ({"reasoning": {"summary": "auto"}, "include_reasoning": False}, None),
    ],
)
def test_how_reasoning_is_shown(fields: dict[str, Any], form: Any) -> None:
    assert accepted({"raw_reasoning": RAW_OPEN_RESPONSES}, **fields).reasoning == form
    assert accepted().reasoning == RAW


def test_compaction() -> None:
    trigger = {"type": "compaction_trigger"}
    triggered = accepted(input=[{"role": "user", "content": "a"}, trigger])

    assert triggered.compacts
    assert len(triggered.items) == len(triggered.turn.items) == 1
    assert not accepted().compacts
    managed = [{"type": "compaction", "compact_threshold": 2000}, {"type": "compaction"}]
    assert accepted(context_management=managed).compact_from == 2000
    assert accepted(context_management=[]).compact_from is None


def test_counting_a_prompt_reads_it_as_an_answer_would() -> None:
    fields: dict[str, Any] = {"instructions": "Be kind.", "tools": [{"type": "function", "name": "f"}]}
    body = json.dumps({"model": "m", "input": "Hello"} | fields).encode()

    counted = prompt_turn(wire.decode(body, CountTokens), ResponseContext(ID, OWNER))
    assert counted == replace(turn(**fields), copies=counted.copies)  # nothing is answered


def test_a_request_can_be_stored_and_read_again() -> None:
    asked = request(
        input=[{"role": "user", "content": "a"}],
        tools=[{"type": "function", "name": "f"}],
        conversation={"id": "conv_1"},
        logit_bias={"5": 1},
        reasoning={"effort": "low"},
        metadata={"a": "b"},
    )

    again = wire.decode(msgspec_json.encode(asked), CreateResponse)

    first, second = (accept(each, ResponseContext(ID, OWNER)) for each in (asked, again))
    assert (first.turn, first.items, first.settings) == (second.turn, second.items, second.settings)


def test_what_a_coding_agent_sends_is_accepted() -> None:
    shell = {"type": "function", "name": "shell", "parameters": {"type": "object"}, "strict": False}
    patch = {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'}
    asked = accepted(
        input=[
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Rules."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List."}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": None},
            {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "shell", "arguments": "{}"},
            {"type": "function_call_output", "id": "fco_1", "call_id": "c", "output": "a.txt"},
        ],
        tools=[
            shell,
            {"type": "custom", "name": "apply_patch", "description": "d", "format": patch},
            {
                "type": "namespace",
                "name": "mcp__docs",
                "description": "d",
                "tools": [shell | {"name": "find"}],
            },
            {"type": "web_search", "external_web_access": False},
            {"type": "image_generation", "output_format": "png"},
        ],
        tool_choice="auto",
        parallel_tool_calls=False,
        reasoning={"effort": "medium", "summary": "auto", "context": "all_turns"},
        include=["reasoning.encrypted_content"],
        store=False,
        stream=True,
        prompt_cache_key="k",
        client_metadata={"a": "b"},
        text={"verbosity": "low"},
    )

    names = [tool.name for tool in asked.turn.tools]
    assert names == ["shell", "apply_patch", "mcp__docs__find"]
    assert [item.id[:3] for item in asked.items] == ["msg", "msg", "rs_", "fc_", "fco"]
    assert SEALED_REASONING in asked.include
    assert len(asked.turn.items) == 4


# What the response says


def test_every_field_is_there() -> None:
    found = settings()

    validate("ResponseResource", found, OPEN_RESPONSES)
    assert found["status"] == "in_progress"
    assert found["usage"] is found["error"] is found["conversation"] is found["completed_at"] is None


def test_settings_are_told_back() -> None:
    fields: dict[str, Any] = {
        "instructions": "Be kind.",
        "previous_response_id": "resp_0",
        "parallel_tool_calls": False,
        "max_tool_calls": 3,
        "max_output_tokens": 9,
        "temperature": 0.0,
        "top_p": 0.5,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "top_logprobs": 2,
        "truncation": "auto",
        "store": False,
        "metadata": {"a": "b"},
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "user": "u",
        "tool_choice": "none",
        "tools": [{"type": "web_search"}],
    }

    found = settings(**fields)

    assert {name: found[name] for name in fields} == fields


def test_functions_are_told_back_whole() -> None:
    custom = {"type": "custom", "name": "g"}
    functions = [{"type": "function", "name": "f"}, {"type": "function", "name": "h", "strict": True}]

    told = settings(tools=[*functions, custom])["tools"]

    whole = {"description": None, "parameters": None, "strict": None}
    assert told == [whole | functions[0], whole | functions[1], custom]


def test_what_the_model_sets_itself_is_told_back() -> None:
    request = msgspec.convert({"model": "m", "input": "x", "top_p": 0.5}, CreateResponse)
    shown = response_settings(request, {"temperature": 0.8, "top_p": 0.95})
    assert (shown.temperature, shown.top_p, shown.presence_penalty) == (0.8, 0.5, 0.0)


def test_formats_are_told_back_whole() -> None:
    schema = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": None}
    found = settings(text={"format": schema, "verbosity": "low"}, reasoning={"summary": "auto"})

    whole = schema | {"description": "", "strict": False}
    assert found["text"] == {"format": whole, "verbosity": "low"}
    assert found["reasoning"] == {"effort": None, "summary": "auto"}


@pytest.mark.parametrize("conversation", ["conv_1", {"id": "conv_1"}])
def test_the_conversation_is_named(conversation: Any) -> None:
    assert settings(conversation=conversation)["conversation"] == {"id": "conv_1"}


# What is refused


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "web_search_call"}]}, "input"),
        ({"input": None, "conversation": "c"}, "input"),
        ({"conversation": "c", "previous_response_id": "r"}, "conversation"),
        ({"background": True, "store": False}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"moderation": {"model": ""}}, "moderation.model"),
        ({"n": 2}, "n"),
        ({"echo": True}, "echo"),
        ({"messages": [{"role": "user", "content": "Hi"}]}, "messages"),
        ({"return_token_ids": True}, "return_token_ids"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"ec_transfer_params": {"a": 1}}, "ec_transfer_params"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncation_side": "right"}, "truncation_side"),
        ({"include": [min(INCLUDABLE), "everything"]}, "include[1]"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
        ({"context_management": [{"type": "forgetting"}]}, "context_management[0].type"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "[]"}}, "structured_outputs.json"),
        (
            {"structured_outputs": {"regex": "a"}, "text": {"format": {"type": "json_object"}}},
            "structured_outputs.regex",
        ),
    ],
)
def test_what_contradicts_itself_or_cannot_be_done(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_logprobs": -1}, "top_logprobs"),
        ({"max_output_tokens": -2}, "max_output_tokens"),
        ({"truncation": "some"}, "truncation"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"metadata": {str(key): "" for key in range(17)}}, "metadata"),
        ({"metadata": {"a": "b" * 513}}, "metadata[...]"),
        ({"safety_identifier": "a" * 129}, "safety_identifier"),
        ({"input": 3}, "input"),
    ],
)
def test_values_out_of_range(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


def test_a_request_without_a_model_says_so() -> None:
    with pytest.raises(RequestError) as caught:
        wire.decode(b'{"input": "a"}', CreateResponse)

    assert caught.value.param == "model"


@pytest.mark.parametrize("name", ["previous_response_id", "conversation"])
def test_there_need_be_no_input_if_there_is_a_history(name: str) -> None:
    history = [item.payload for item in accepted(input="Hello").items]

    assert accepted({"history": history}, input=None, **{name: "x"}).turn.items == turn().items


def test_instructions_alone_can_be_answered() -> None:
    assert len(turn(input=[], instructions="Say hello.").items) == 1


def test_what_is_not_known_is_ignored() -> None:
    assert turn(client_metadata={"a": 1}, prompt_cache_options={"mode": "auto"}, personality="x") == turn()
