"""What becomes of every parameter that some API, server or client knows: in each API it has one place."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.apis.chat.schema import BatchChatRequest, ChatRequest
from antiphon.apis.completions.schema import CompletionRequest
from antiphon.apis.fields import ALIASES, GROUPS, HINTS, MAX_LOGGED, REFUSED, ParameterNames
from antiphon.apis.responses.schema import CompactRequest, CountTokens, CreateResponse
from antiphon.apis.wire import decode_request
from antiphon.core.errors import RequestError
from tests.openai_schema import OPENAI, components

APIS: dict[Any, dict[str, Any]] = {
    ChatRequest: {"messages": [{"role": "user", "content": "Hi"}]},
    CompletionRequest: {"prompt": "Hi"},
    CreateResponse: {"input": "Hi"},
}
"""The request of each API, and the least that it has."""

VLLM = """
add_generation_prompt add_special_tokens allowed_token_ids bad_words best_of cache_salt chat_template
chat_template_kwargs continue_final_message documents echo ec_transfer_params enable_response_messages
guided_choice guided_decoding_backend guided_grammar guided_json guided_regex guided_whitespace_pattern ignore_eos
include_reasoning include_stop_str_in_output kv_transfer_params length_penalty logits_processors logprob_token_ids
max_tool_calls media_io_kwargs min_p min_tokens mm_payload mm_processor_kwargs previous_input_messages priority
prompt_logprobs reasoning_effort repetition_detection repetition_penalty request_id response_format return_mm_kwargs
return_prompt_text return_token_ids return_token_offsets return_tokens_as_token_ids routed_experts_prompt_start
session_id skip_special_tokens spaces_between_special_tokens stop_token_ids stream_interval structured_outputs suffix
thinking_token_budget top_k truncate_prompt_tokens truncation_side use_beam_search vllm_xargs watermarking
"""
TABBY_API = """
add_bos_token allowed_tokens ban_eos_token banned_strings banned_tokens cfg_scale custom_token_bans dry_allowed_length
dry_base dry_multiplier dry_penalty_last_n dry_range dry_sequence_breakers dynatemp_exponent dynatemp_high dynatemp_low
generate_window grammar_string guidance_scale json_schema max_length max_new_tokens max_temp min_length min_temp
mirostat mirostat_eta mirostat_mode mirostat_tau negative_prompt penalty_range prompt_template regex_pattern rep_pen
rep_pen_range repetition_decay repetition_penalty_range repetition_range response_prefix skew smoothing_factor
speculative_ngram stop_sequence stopping_strings temp_exponent temperature_last template_vars tfs token_healing top_a
typical typical_p xtc_probability xtc_threshold
"""
LLAMA_SERVER = """
adaptive_decay adaptive_target cache_prompt dynatemp_range grammar id_slot json_schema lora min_keep n_discard n_keep
n_predict n_probs post_sampling_probs reasoning_budget reasoning_format repeat_last_n repeat_penalty response_fields
return_tokens samplers t_max_predict_ms thinking_budget_tokens top_n_sigma
"""
OLLAMA = "format keep_alive main_gpu num_batch num_ctx num_gpu num_keep num_predict num_thread think tfs_z use_mmap"
OTHERS = """
enable_thinking models plugins provider route smoothing_curve thinking trace transforms usage
max_completion_tokens max_output_tokens max_tokens moderation prompt_cache_key prompt_cache_options
prompt_cache_retention safety_identifier verbosity penalize_nl sampler_priority draft_model
"""
"""Those of OpenRouter, of model makers, and what is new at OpenAI."""


def of_openai() -> Iterator[str]:
    def fields(schema: dict[str, Any]) -> Iterator[str]:
        yield from schema.get("properties", ())
        for part in schema.get("allOf", ()):
            yield from fields(components(OPENAI)[part["$ref"].rpartition("/")[2]] if "$ref" in part else part)

    for name in ("CreateChatCompletionRequest", "CreateCompletionRequest", "CreateResponse"):
        yield from fields(components(OPENAI)[name])


KNOWN = sorted({*of_openai(), *" ".join((VLLM, TABBY_API, LLAMA_SERVER, OLLAMA, OTHERS)).split()} - {*GROUPS})


def read(api: Any, **more: Any) -> tuple[Any, ParameterNames]:
    names = ParameterNames()
    body = {"model": "m", **APIS[api], **more}
    return decode_request(json.dumps(body).encode(), api, names), names


def refused(api: Any, **more: Any) -> RequestError:
    names = ParameterNames()
    with pytest.raises(RequestError) as raised:
        decode_request(json.dumps({"model": "m", **APIS[api], **more}).encode(), api, names)
    names.restore(raised.value)
    return raised.value


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("name", KNOWN)
def test_every_known_parameter_has_a_place_in_every_api(api: Any, name: str) -> None:
    """With any value, it is used, or invalid, or a hint, or refused: never silently ignored."""
    names = ParameterNames()
    body = {"model": "m", **APIS[api], name: {"a": 1}}
    try:
        decode_request(json.dumps(body).encode(), api, names)
        told = name in HINTS or name in names.aliases.values() or name in api.__struct_fields__
    except RequestError as error:
        names.restore(error)
        told = (error.param or "").startswith(name)
    assert told
    assert not names.ignored


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_may_be_there_as_long_as_it_asks_for_nothing(api: Any, name: str) -> None:
    group, _, member = name.rpartition(".")

    def given(value: Any) -> dict[str, Any]:
        return {group: {member: value}} if group else {name: value}

    if name in api.__struct_fields__ or group in api.__struct_fields__ or name in HINTS or name in ALIASES:
        return
    for nothing in (None, False, []):
        _, names = read(api, **given(nothing))
        assert not names.ignored
    error = refused(api, **given({"a": 1}))
    assert error.param == name
    assert REFUSED[name] in error.message
    assert error.status == 400


@pytest.mark.parametrize(
    ("field", "value"),
    [("n", 1), ("tfs", 1.0), ("cfg_scale", 1), ("top_a", 0), ("modalities", ["text"]), ("temperature_last", False)],
)  # fmt: skip
def test_values_that_change_nothing_are_no_reason_to_refuse(field: str, value: Any) -> None:
    read(CreateResponse, **{field: value})


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("name", HINTS)
def test_hints_change_nothing(api: Any, name: str) -> None:
    if name not in api.__struct_fields__ and name not in ALIASES:
        assert read(api, **{name: "auto"})[0] == read(api)[0]
        assert HINTS[name]


@pytest.mark.parametrize(
    ("name", "value", "field", "read_as"),
    [
        ("rep_pen", 1.2, "repetition_penalty", 1.2),
        ("repeat_penalty", 1.2, "repetition_penalty", 1.2),
        ("typical", 0.5, "typical_p", 0.5),
        ("penalty_range", 9, "repeat_last_n", 9),
        ("dry_range", 9, "dry_penalty_last_n", 9),
        ("mirostat_mode", 2, "mirostat", 2),
        ("stopping_strings", ["a"], "stop", ["a"]),
        ("banned_strings", ["a"], "bad_words", ["a"]),
        ("ban_eos_token", True, "ignore_eos", True),
        ("temp_exponent", 2, "dynatemp_exponent", 2),
        ("options", {"repeat_last_n": 7}, "repeat_last_n", 7),
    ],
)
@pytest.mark.parametrize("api", APIS)
def test_another_name_is_read_as_the_field(api: Any, name: str, value: Any, field: str, read_as: Any) -> None:
    assert getattr(read(api, **{name: value})[0], field) == read_as


@pytest.mark.parametrize(
    "name",
    ["max_tokens", "max_new_tokens", "max_length", "n_predict", "num_predict", "max_completion_tokens"],
)
def test_the_limit_has_many_names(name: str) -> None:
    assert read(CompletionRequest, **{name: 7})[0].max_tokens == 7
    assert read(CreateResponse, **{name: 7})[0].max_output_tokens == 7
    assert read(ChatRequest, options={"num_predict": 7})[0].max_tokens == 7


@pytest.mark.parametrize(
    ("name", "member", "value"),
    [
        ("json_schema", "json", {"type": "object"}),
        ("format", "json", {"type": "object"}),
        ("guided_json", "json", {"type": "object"}),
        ("regex_pattern", "regex", "a+"),
        ("grammar_string", "grammar", 'root ::= "a"'),
        ("grammar", "grammar", 'root ::= "a"'),
        ("guided_choice", "choice", ["a"]),
    ],
)
@pytest.mark.parametrize("api", APIS)
def test_a_format_has_many_names(api: Any, name: str, member: str, value: Any) -> None:
    assert getattr(read(api, **{name: value})[0].structured_outputs, member) == value
    assert read(api, **{name: ""})[0].structured_outputs is None


def test_reasoning_has_two_shapes() -> None:
    chat = read(ChatRequest, reasoning={"effort": "low", "max_tokens": 9, "enabled": True})[0]
    assert (chat.reasoning_effort, chat.thinking_token_budget) == ("low", 9)
    assert chat.chat_template_kwargs == {"enable_thinking": True}

    response = read(CreateResponse, reasoning_effort="low", verbosity="high", enable_thinking=False)[0]
    assert (response.reasoning.effort, response.text.verbosity) == ("low", "high")
    assert response.chat_template_kwargs == {"enable_thinking": False}


def test_members_join_what_is_there() -> None:
    given = {"chat_template_kwargs": {"a": 1}, "enable_thinking": True, "text": {"verbosity": None}}
    request = read(CreateResponse, **given, verbosity="low")[0]
    assert request.chat_template_kwargs == {"a": 1, "enable_thinking": True}
    assert request.text.verbosity == "low"


def test_errors_blame_what_was_sent() -> None:
    assert refused(ChatRequest, rep_pen=0).param == "rep_pen"
    assert "'rep_pen'" in refused(ChatRequest, rep_pen=0).message
    assert refused(CreateResponse, options={"num_predict": "x"}).param == "options.num_predict"
    assert refused(ChatRequest, reasoning={"effort": "huge"}).param == "reasoning.effort"
    assert refused(ChatRequest, options={"tfs_z": "x"}).param == "options.tfs_z"
    assert refused(ChatRequest, options={"smoothing_curve": 2.5}).param == "options.smoothing_curve"
    assert refused(CompletionRequest, enable_thinking=True).param == "enable_thinking"
    assert refused(CreateResponse, text="x", verbosity="low").param == "text"


def test_two_names_of_one_field_may_not_contradict_each_other() -> None:
    assert read(ChatRequest, rep_pen=1.5, repetition_penalty=1.5)[0].repetition_penalty == 1.5
    assert read(ChatRequest, rep_pen=1.5, repetition_penalty=None)[0].repetition_penalty == 1.5
    error = refused(ChatRequest, repetition_penalty=1.2, rep_pen=1.5)
    assert error.param == "rep_pen"
    assert "'repetition_penalty'" in error.message
    assert refused(ChatRequest, rep_pen=1.2, repeat_penalty=1.5).param == "repeat_penalty"


def test_what_nobody_knows_is_ignored_and_told() -> None:
    request, names = read(CreateResponse, wibble=1, options={"wobble": 2})
    assert request == read(CreateResponse)[0]
    assert names.ignored == ["wibble", "options.wobble"]
    _, names = read(ChatRequest, **{f"{index}" * 1000: 1 for index in range(100)})
    assert len(names.ignored) == MAX_LOGGED
    assert max(map(len, names.ignored)) < 100


@pytest.mark.parametrize("api", APIS)
def test_a_request_without_a_model_may_be_for_that_of_the_server(api: Any) -> None:
    def model(more: dict[str, Any], missing: str | None = None) -> Any:
        body = json.dumps({**APIS[api], **more}).encode()
        return decode_request(body, api, ParameterNames(), lambda: "first", missing).model

    assert model({"model": None}) == model({"model": ""}) == "first"
    assert model({}, "served") == "served"
    assert model({"model": "m"}, "served") == "m"
    with pytest.raises(RequestError) as raised:
        model({})
    assert raised.value.param == "model"


def test_whatever_a_response_takes_can_be_counted_and_compacted() -> None:
    assert set(CountTokens.__struct_fields__) == set(CreateResponse.__struct_fields__)
    assert set(CompactRequest.__struct_fields__) == set(CreateResponse.__struct_fields__)
    assert set(BatchChatRequest.__struct_fields__) == set(ChatRequest.__struct_fields__)
