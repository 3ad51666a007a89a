"""Every sampler, through every API, to every kind of server: it gets there as that server spells it, or is refused.

What each kind gets is written down here once more, beside `engines/samplers.py`, from the sources named there.
"""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any

import httpx2 as httpx
import pytest
from msgspec import Struct
from msgspec.structs import replace

from antiphon.apis.request import SampledFields
from antiphon.engines.upstream import Options, UpstreamEngine
from antiphon.run.models import Models
from tests.engines.canned import Canned, answer, canned, part, stream
from tests.render.templates import CHATML
from tests.rows import every_row
from tests.server import NO_TLS, running, served_model

DONE = b"data: [DONE]\n\n"
SAID = [{"role": "user", "content": "Hi"}]
APIS: Mapping[str, dict[str, Any]] = {
    "chat/completions": {"messages": SAID},
    "completions": {"prompt": "Hi"},
    "responses": {"input": "Hi"},
    "messages": {"messages": SAID, "max_tokens": 9},
}

VALUES: Mapping[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 7,
    "min_p": 0.25,
    "typical_p": 0.75,
    "top_n_sigma": 2,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.25,
    "dynatemp_range": 0.25,
    "dynatemp_exponent": 2,
    "mirostat": 2,
    "mirostat_tau": 4,
    "mirostat_eta": 0.5,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.25,
    "repetition_penalty": 1.25,
    "repetition_decay": 8,
    "repeat_last_n": 1,
    "dry_multiplier": 0.75,
    "dry_base": 1.5,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 1,
    "dry_sequence_breakers": ["\n"],
    "adaptive_target": 0.5,
    "adaptive_decay": 0.5,
    "tfs": 0.5,
    "top_a": 0.25,
    "skew": 0.125,
    "smoothing_factor": 0.5,
    "cfg_scale": 1.5,
    "negative_prompt": "bad",
    "token_healing": True,
    "temperature_last": True,
    "samplers": ["top_k", "temperature"],
    "min_keep": 2,
    "loop_detect_window": 64,
    "watermark": True,
    "logit_bias": {"5": 2.5},
    "banned_tokens": "6, 7",
    "seed": -1,
    "min_tokens": 2,
    "stop_token_ids": [9],
    "ignore_eos": True,
    "bad_words": ["no", "never"],
    "length_penalty": 0.5,
    "priority": 3,
    "cache_salt": "salt",
    "allowed_token_ids": [4, 5],
    "vllm_xargs": {"a": 1},
    "kv_transfer_params": {"b": 2},
    "data_parallel_rank": 1,
    "skip_special_tokens": False,
}
"""A value of each sampler, as clients write it."""

WITH: Mapping[str, str] = {
    "xtc_threshold": "xtc_probability",
    "dynatemp_exponent": "dynatemp_range",
    **dict.fromkeys(("mirostat_tau", "mirostat_eta"), "mirostat"),
    **{name: "dry_multiplier" for name in VALUES if name.startswith("dry_") and name != "dry_multiplier"},
    "adaptive_decay": "adaptive_target",
    "negative_prompt": "cfg_scale",
}
"""Parameters of a sampler, which do nothing unless it is switched on."""


LLAMA_ORDER = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
HERE = ("priority", "stop_token_ids")
"""What Antiphon does itself, where the server does not."""


def same(*names: str) -> dict[str, Any]:
    return {name: {name: json.loads(json.dumps(VALUES[name]))} for name in names}


OPENAI = same("temperature", "top_p", "presence_penalty", "frequency_penalty")
LLAMA = (
    OPENAI
    | same("top_k", "min_p", "typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold", "dynatemp_range")
    | same("dynatemp_exponent", "mirostat", "mirostat_tau", "mirostat_eta", "repeat_last_n", "dry_multiplier")
    | same("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "adaptive_decay")
    | same("samplers", "min_keep", "ignore_eos")
    | {
        # It has this sampler only if it is listed.
        "adaptive_target": {"adaptive_target": 0.5, "samplers": [*LLAMA_ORDER, "adaptive_p"]},
        "repetition_penalty": {"repeat_penalty": 1.25},
        "logit_bias": {"logit_bias": [[5, 2.5]]},
        "banned_tokens": {"logit_bias": [[6, False], [7, False]]},
        "seed": {"seed": 2**32 - 2, "cache_prompt": False},
        "temperature_last": {},
        "skip_special_tokens": {},
        **{name: {} for name in HERE},
    }
)
VLLM = (
    OPENAI
    | same("top_k", "min_p", "repetition_penalty", "logit_bias", "min_tokens", "stop_token_ids", "ignore_eos")
    | same("bad_words", "allowed_token_ids", "vllm_xargs", "kv_transfer_params", "skip_special_tokens")
    | {"seed": {"seed": 2**63 - 1}, "cache_salt": {}, "length_penalty": {}, "priority": {}}
)
SGLANG = (
    OPENAI
    | same("top_k", "min_p", "repetition_penalty", "logit_bias", "stop_token_ids", "ignore_eos")
    | same("skip_special_tokens")
    | {"min_tokens": {"min_new_tokens": 2}, "cache_salt": {}, "priority": {}}
)
BOTH_TABBIES = (
    OPENAI
    | same("top_k", "min_p", "xtc_probability", "xtc_threshold", "repetition_penalty", "repetition_decay")
    | same("dry_multiplier", "dry_base", "dry_allowed_length", "dry_sequence_breakers", "token_healing")
    | same("temperature_last", "logit_bias", "min_tokens")
    | {
        "repeat_last_n": {"penalty_range": 1},
        "banned_tokens": {"banned_tokens": [6, 7]},
        "bad_words": {"banned_strings": ["no", "never"]},
        "stop_token_ids": {"stop": [9]},
        "priority": {},
    }
)
TABBY = BOTH_TABBIES | same("dry_penalty_last_n", "adaptive_target", "adaptive_decay", "loop_detect_window")
TABBY_V2 = (
    BOTH_TABBIES
    | same("mirostat_tau", "mirostat_eta", "tfs", "top_a", "skew", "smoothing_factor", "cfg_scale")
    | same("negative_prompt", "skip_special_tokens")
    | {
        "typical_p": {"typical": 0.75},
        "mirostat": {"mirostat_mode": 2},
        "dynatemp_range": {"min_temp": 0.75, "max_temp": 1.25},
        "dynatemp_exponent": {"temp_exponent": 2},
        "dry_penalty_last_n": {"dry_range": 1},
        "ignore_eos": {"ban_eos_token": True},
        "allowed_token_ids": {"allowed_tokens": [4, 5]},
    }
)
TGI = same("top_p", "frequency_penalty", "top_k", "typical_p", "repetition_penalty", "watermark") | {
    "temperature": {"do_sample": True, "temperature": 0.5},
    "seed": {"seed": 2**64 - 1},
    "skip_special_tokens": {},
    **{name: {} for name in HERE},
}
OLLAMA = (
    OPENAI
    | same("top_k", "min_p", "typical_p", "repeat_last_n")
    | {"repetition_penalty": {"repeat_penalty": 1.25}, "seed": {"seed": 2**32 - 2}, "priority": {}}
)
ANY = OPENAI | {"seed": {"seed": -1}, "priority": {}}

TOO_HOT = {"temperature": (2.5,)}
OF_TABBY = {"temperature": (10.5,), "presence_penalty": (-1,), "frequency_penalty": (-1,)}


class Kind(Struct):
    """A kind of server: its answers, what it gets for each value, numbers that it does not take.

    `at` are the keys under which its request has the samplers.
    """

    answers: dict[str, list[bytes]]
    path: str
    gets: Mapping[str, Mapping[str, Any]]
    out: Mapping[str, tuple[float, ...]] = {}
    at: tuple[str, ...] = ()
    kind: str | None = None

    def sampling(self, server: Canned) -> dict[str, Any]:
        """The samplers of the last request for an answer."""
        body = next(each.body for each in reversed(server.asked) if each.path == self.path)
        for key in self.at:
            body = body[key]
        return body


def listed(owner: str, **more: Any) -> dict[str, list[bytes]]:
    model = {"id": "m", "owned_by": owner, "root": "m", "max_model_len": 2048, **more}
    return {
        "/v1/models": [answer(200, {"data": [model]})],
        "/tokenize": [answer(200, {"tokens": [81], "count": 1, "max_model_len": 2048})],
        "/detokenize": [answer(200, {"text": "a", "prompt": "a", "content": "a"})],
    }


def document(*names: str) -> dict[str, list[bytes]]:
    """The fields that a TabbyAPI says that it takes."""
    properties = {name: {} for name in names} | {"grammar_string": {"description": "Lark or GBNF"}}
    schemas = {"CompletionRequest": {"properties": properties}}
    return {"/openapi.json": [answer(200, {"components": {"schemas": schemas}})]}


def tabby(gets: Mapping[str, Mapping[str, Any]], *more: str) -> dict[str, list[bytes]]:
    names = {name for sent in gets.values() for name in sent} | {*more}
    return {
        **listed("tabbyAPI"),
        "/v1/model": [answer(200, {"id": "m", "parameters": {"max_seq_len": 2048}})],
        "/v1/completions": stream(*TABBY_EVENTS, DONE),
        **document(*names),
    }


SCORES = {
    "text_offset": [0, 1],
    "tokens": ["H", "i"],
    "token_logprobs": [-0.5, -1.0],
    "top_logprobs": [{"H": -0.5, "h": -2.0}, {"i": -1.0, "o": -3.0}],
}
TABBY_EVENTS = (
    {"choices": [{"index": 0, "text": "Hi", "finish_reason": None, "logprobs": SCORES}]},
    {
        "choices": [{"index": 0, "text": "", "finish_reason": "stop", "logprobs": None}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 3},
    },
)
COMPLETION = stream({"choices": [{"text": "Hi", "finish_reason": "stop"}]}, DONE)


def tgi_event(text: str, logprob: float, other: str, count: int) -> dict[str, Any]:
    def token(text: str, logprob: float) -> dict[str, Any]:
        return {"id": 1, "text": text, "logprob": logprob, "special": False}

    end = {"finish_reason": "length", "generated_tokens": 2} if count == 2 else None
    tops = [token(text, logprob), token(other, logprob * 2 - 1)]
    return {"index": count, "token": token(text, logprob), "top_tokens": tops, "details": end}


def of_ollama(text: str, logprob: float, other: str) -> dict[str, Any]:
    tops = [{"token": text, "logprob": logprob}, {"token": other, "logprob": logprob * 2 - 1}]
    return {"response": text, "logprobs": [{"token": text, "logprob": logprob, "top_logprobs": tops}]}


OLLAMA_LINES = [of_ollama("H", -0.5, "h"), of_ollama("i", -1.0, "o"), {"done": True, "eval_count": 2}]
KINDS = {
    "llama-server": Kind(
        {
            **listed("llamacpp", meta={"n_vocab": 100}),
            "/props": [answer(200, {"default_generation_settings": {"n_ctx": 2048}, "total_slots": 1})],
            "/completion": stream(
                {"content": "Hi", "tokens": [3], "tokens_predicted": 1},
                {"content": "", "stop": True, "stop_type": "eos", "tokens_predicted": 1},
            ),
        },
        "/completion",
        LLAMA,
        {"dry_base": (0.5,), "adaptive_decay": (0.995,)},
    ),
    "vllm": Kind(
        {
            **listed("vllm"),
            "/v1/completions": stream(
                {"choices": [{"text": "Hi", "token_ids": [3], "finish_reason": "stop"}]}, DONE
            ),
        },
        "/v1/completions",
        VLLM,
        TOO_HOT,
    ),
    "sglang": Kind(
        {
            **listed("sglang"),
            "/generate": stream(
                {
                    "text": "Hi",
                    "output_ids": [3],
                    "meta_info": {"completion_tokens": 1, "finish_reason": {"type": "stop"}},
                },
                DONE,
            ),
        },
        "/generate",
        SGLANG,
        at=("sampling_params",),
    ),
    "tabbyapi": Kind(
        tabby(TABBY, "logprobs", "top_logprobs"), "/v1/completions", TABBY, OF_TABBY | {"dry_base": (0.5,)}
    ),
    "tabbyapi-exllamav2": Kind(tabby(TABBY_V2), "/v1/completions", TABBY_V2, OF_TABBY | {"mirostat": (1,)}),
    "tgi": Kind(
        {
            "/info": [answer(200, {"model_id": "m", "max_total_tokens": 2048})],
            "/generate_stream": stream(tgi_event("H", -0.5, "h", 1), tgi_event("i", -1.0, "o", 2)),
        },
        "/generate_stream",
        TGI,
        at=("parameters",),
    ),
    "ollama": Kind(
        {
            "/api/tags": [answer(200, {"models": [{"name": "m"}]})],
            "/api/show": [answer(200, {"model_info": {}})],
            "/api/version": [answer(200, {"version": "0.34.0"})],
            "/api/generate": [
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                *(part(json.dumps(line).encode() + b"\n") for line in OLLAMA_LINES),
                b"0\r\n\r\n",
            ],
        },
        "/api/generate",
        OLLAMA,
        at=("options",),
    ),
    "completions": Kind({**listed("koboldcpp"), "/v1/completions": COMPLETION}, "/v1/completions", ANY),
}


@asynccontextmanager
async def served(kind: Kind, dialect: str = "hermes") -> AsyncIterator[tuple[Canned, httpx.AsyncClient]]:
    """A server of the kind, and a client of an Antiphon in front of it."""
    # In one piece: on waiting for the next one, which it acknowledges late, the client spends most of its time.
    answers = {path: [b"".join(pieces)] for path, pieces in kind.answers.items()}
    async with canned(answers) as upstream:
        engine = UpstreamEngine(Options(upstream.url, upstream_kind=kind.kind, context=2048))
        model = served_model(engine, dialect=dialect, template=CHATML)
        async with (
            running(engine, models=Models([model])) as server,
            httpx.AsyncClient(verify=NO_TLS, base_url=f"{server.url}/v1/", timeout=30) as client,
        ):
            yield upstream, client


@pytest.fixture(autouse=True)
def vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of SGLang, which it would tell in another answer to the same path."""

    async def known(_client: Any) -> int:
        return 100

    monkeypatch.setattr("antiphon.engines.upstreams.sglang._vocabulary", known)


def requests() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, value in VALUES.items():
        yield name, {name: value} | ({WITH[name]: VALUES[WITH[name]]} if name in WITH else {})


def blamed(answer: httpx.Response) -> str | None:
    """The parameter that an error names: Messages has it in the text only."""
    error = answer.json()["error"]
    return error.get("param") or error["message"].split("'")[1]


def test_every_sampler_is_here() -> None:
    every_row(VALUES, SampledFields.__struct_fields__, "VALUES of tests/http/test_samplers.py")


@pytest.mark.parametrize("name", KINDS)
async def test_every_sampler_gets_to_every_server_through_every_api(name: str) -> None:
    kind = KINDS[name]
    wrong = []
    async with served(kind) as (upstream, client):
        for api, body in APIS.items():
            for field, values in requests():
                got = await client.post(api, json={"model": "m", **body, **values})
                if field not in kind.gets:
                    told = (got.status_code, blamed(got) if got.status_code == 400 else None)
                    if told != (400, field) and told != (400, WITH.get(field)):
                        wrong.append((api, field, *told))
                    continue
                sent = {key: kind.sampling(upstream).get(key) for key in kind.gets[field]}
                if got.status_code != 200 or sent != kind.gets[field]:
                    wrong.append((api, field, got.status_code, sent))
    assert wrong == []


@pytest.mark.parametrize("name", KINDS)
async def test_a_number_that_a_server_does_not_take_is_refused(name: str) -> None:
    kind = KINDS[name]
    async with served(kind) as (upstream, client):
        for api, body in APIS.items():
            for field, values in kind.out.items():
                for value in values:
                    switch = {WITH[field]: VALUES[WITH[field]]} if field in WITH else {}
                    asked = len(upstream.asked)
                    got = await client.post(api, json={"model": "m", **body, field: value, **switch})
                    assert (got.status_code, blamed(got)) == (400, field), (api, got.text)
                    assert len(upstream.asked) == asked


# Log probabilities of servers that tell the texts of tokens only


def scores_of(api: str, answer: dict[str, Any]) -> list[tuple[str, float, list[tuple[str, float]]]]:
    """Each token of a full answer, with its log probability and the alternatives."""
    if api == "completions":
        told = answer["choices"][0]["logprobs"]
        rows = zip(told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True)
        return [(token, logprob, [*top.items()]) for token, logprob, top in rows]
    if api == "responses":
        content = answer["output"][-1]["content"][0]["logprobs"]
    else:
        content = answer["choices"][0]["logprobs"]["content"]
    return [
        (each["token"], each["logprob"], [(top["token"], top["logprob"]) for top in each["top_logprobs"]])
        for each in content
    ]


def streamed_scores(api: str, text: str) -> list[tuple[str, float, list[tuple[str, float]]]]:
    """The same of a stream."""
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    events = [json.loads(line) for line in lines]
    if api == "responses":
        deltas = [each["logprobs"] for each in events if each["type"] == "response.output_text.delta"]
        return scores_of(api, {"output": [{"content": [{"logprobs": [*chain(*deltas)]}]}]})
    found = [event["choices"][0] for event in events if event["choices"]]
    return [
        each for choice in found if choice.get("logprobs") for each in scores_of(api, {"choices": [choice]})
    ]


WANTED: Mapping[str, dict[str, Any]] = {
    "chat/completions": {"logprobs": True, "top_logprobs": 2},
    "completions": {"logprobs": 2},
    "responses": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
}
"""How the APIs that have log probabilities ask for them."""


@pytest.mark.parametrize("name", ["tabbyapi", "tgi", "ollama"])
async def test_log_probabilities_come_through(name: str) -> None:
    scores = [
        ("H", -0.5, [("H", -0.5), ("h", -2.0)]),
        ("i", -1.0, [("i", -1.0), ("o", -3.0)]),
    ]
    async with served(KINDS[name]) as (_, client):
        for api, wanted in WANTED.items():
            body = {"model": "m", **APIS[api], **wanted}
            got = await client.post(api, json=body)
            assert got.status_code == 200, got.text
            assert scores_of(api, got.json()) == scores
            got = await client.post(api, json={**body, "stream": True})
            assert streamed_scores(api, got.text) == scores, api


@pytest.mark.parametrize("name", ["tabbyapi-exllamav2", "completions"])
async def test_log_probabilities_that_a_server_does_not_tell_are_refused(name: str) -> None:
    async with served(KINDS[name]) as (_, client):
        for api, wanted in WANTED.items():
            got = await client.post(api, json={"model": "m", **APIS[api], **wanted})
            assert (got.status_code, "logprobs" in got.json()["error"]["message"]) == (400, True)


# The same in other words


async def test_the_bounds_of_the_temperature_are_its_middle_and_a_range() -> None:
    kind = KINDS["tabbyapi-exllamav2"]
    async with served(kind) as (upstream, client):
        for api, body in APIS.items():
            for names in (("min_temp", "max_temp"), ("dynatemp_low", "dynatemp_high")):
                bounds = dict(zip(names, (0.5, 1.5), strict=True))
                got = await client.post(api, json={"model": "m", **body, **bounds})
                assert got.status_code == 200
                sent = kind.sampling(upstream)
                assert (sent["min_temp"], sent["max_temp"], sent["temperature"]) == (0.5, 1.5, 1.0)
            got = await client.post(api, json={"model": "m", **body, "min_temp": 1.5})
            assert (got.status_code, blamed(got)) == (400, "min_temp")
            got = await client.post(api, json={"model": "m", **body, "min_temp": 0.5, "dynatemp_range": 1})
            assert (got.status_code, blamed(got)) == (400, "dynatemp_range")


async def test_values_without_effect_are_taken_in_front_of_every_server() -> None:
    """Clients such as SillyTavern always send all of them."""
    off = {
        "top_k": 0,
        "min_p": 0,
        "typical_p": 1,
        "tfs": 1,
        "top_a": 0,
        "skew": 0,
        "smoothing_factor": 0,
        "xtc_probability": 0,
        "xtc_threshold": 0.1,
        "dynatemp_range": 0,
        "dynatemp_exponent": 1,
        "mirostat_mode": 0,
        "mirostat_tau": 5,
        "mirostat_eta": 0.1,
        "min_temp": 1,
        "max_temp": 1,
        "dry_multiplier": 0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_sequence_breakers": ["\n"],
        "rep_pen": 1,
        "repetition_decay": 0,
        "cfg_scale": 1,
        "negative_prompt": "",
        "banned_strings": [],
        "token_healing": False,
        "temperature_last": False,
        "ban_eos_token": False,
        "min_tokens": 0,
        "watermark": False,
        "min_keep": 0,
        "loop_detect_window": 0,
        "adaptive_target": -1,
        "smoothing_curve": 1,
        "grammar_string": "",
        "custom_token_bans": "",
        "skip_special_tokens": True,
    }
    for kind in KINDS.values():
        async with served(kind) as (_, client):
            for api, body in APIS.items():
                got = await client.post(api, json={"model": "m", **body, **off})
                assert got.status_code == 200, got.text


# Forms of servers that read the client's own words

SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
FORMS: Mapping[str, Mapping[str, Any]] = {
    "schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    },
    "object": {"response_format": {"type": "json_object"}},
    "regex": {"structured_outputs": {"regex": "[0-9]{2}"}},
    "choice": {"structured_outputs": {"choice": ["a.b", "c"]}},
    "grammar": {"structured_outputs": {"grammar": 'root ::= "a"'}},
    "tools": {"response_format": {"type": "json_object"}, "tools": [TOOL]},
    "required": {"tools": [TOOL], "tool_choice": "required"},
    "begun": {
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": '{"a'}],
        "response_format": {"type": "json_object"},
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
}
ANY_OBJECT = {"type": "object"}


def tgi_form(kind: str, value: Any) -> dict[str, Any]:
    return {"grammar": {"type": kind, "value": value}}


SENT: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "ollama": {"schema": {"format": SCHEMA}, "object": {"format": ANY_OBJECT}},
    "tgi": {
        "schema": tgi_form("json", SCHEMA),
        "object": tgi_form("json", ANY_OBJECT),
        "regex": tgi_form("regex", "[0-9]{2}"),
        "choice": tgi_form("regex", r"a\.b|c"),
    },
    "tabbyapi-exllamav2": {
        "schema": {"json_schema": SCHEMA},
        "object": {"json_schema": ANY_OBJECT},
        "regex": {"regex_pattern": "[0-9]{2}"},
        "choice": {"regex_pattern": r"a\.b|c"},
    },
    "completions": {},
}
"""What servers are sent for each form; nothing for one that they cannot be told, which is checked."""
FORM_FIELDS = ("format", "grammar", "json_schema", "regex_pattern")


@pytest.mark.parametrize("name", SENT)
async def test_a_form_is_sent_where_the_answer_has_nothing_else(name: str) -> None:
    """All are checked afterwards, because such servers read schemas in their own ways."""
    kind = KINDS[name]
    if name == "tabbyapi-exllamav2":
        kind = replace(kind, answers=tabby(TABBY_V2, "json_schema", "regex_pattern"))
    async with served(kind, "pythonic") as (upstream, client):
        for form, fields in FORMS.items():
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
            got = await client.post("chat/completions", json=body)
            assert got.status_code == 200, got.text
            request = next(each.body for each in reversed(upstream.asked) if each.path == kind.path)
            sent = request | (request["parameters"] if name == "tgi" else {})
            told = {field: sent[field] for field in FORM_FIELDS if field in sent}
            assert told == SENT[name].get(form, {}), form
            [choice] = got.json()["choices"]
            assert choice.get("unmet") or choice["finish_reason"] == "length", form


@pytest.mark.parametrize(
    ("name", "dialect", "answers"),
    [
        ("ollama", "pythonic", {"/api/version": [answer(200, {"version": "0.4.9"})]}),
        ("tabbyapi-exllamav2", "pythonic", {}),
        ("ollama", "hermes", {}),  # its models may reason before they answer
    ],
)
async def test_a_form_is_not_sent(name: str, dialect: str, answers: Mapping[str, list[bytes]]) -> None:
    kind = replace(KINDS[name], answers={**KINDS[name].answers, **answers})
    async with served(kind, dialect) as (upstream, client):
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **FORMS["schema"]}
        got = await client.post("chat/completions", json=body)
        assert got.json()["choices"][0]["unmet"]
        assert not {*FORM_FIELDS} & {*upstream.asked[-1].body}
