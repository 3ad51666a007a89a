"""Which engine takes which field of `Sampling`, under which name, and in which range: one table.

A column is an engine or a kind of server. For each field it has a `Taken`: the engine's own name, the numbers
that it takes, and how a request is written; or the reason why it does not take the field. From it come the
capabilities of engines, the fields of requests to them, and the tables of docs/parameters.md.

The columns of servers were read from their sources: TabbyAPI's common/sampling.py and
backends/exllamav3/sampler.py as of September 2026, with exllamav3 1.3; its last version with ExLlamaV2,
backends/exllamav2/model.py; Text Generation Inference 3, router/src/lib.rs and validation.rs; Ollama 0.34,
api/types.go and llm/llama_server.go; llama.cpp b11549, tools/server/server-schema.cpp.

To add a field: an entry in each column; then `scripts/parameter_table`. To add an engine: a column.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from msgspec import Struct

from antiphon.core.errors import RequestError
from antiphon.core.turn import Sampling
from antiphon.engines.engine import GenerationRequest, Range

Write = Callable[[str, Any, GenerationRequest], Mapping[str, Any]]
"""The engine's name of a field, its value in a request, the request → what is sent."""

UNSET = {name: getattr(Sampling(), name) for name in Sampling.__struct_fields__}
"""The values of fields that a request does not set."""

LEAST = 1e-9
"""In place of 0 where an engine requires more: of all that follows the likeliest token, nothing is left."""


def plain(name: str, value: Any, request: GenerationRequest) -> Mapping[str, Any]:
    """The value, unchanged."""
    return {name: value}


class Taken(Struct, frozen=True):
    """A field that an engine takes, as `name`, with numbers `within` a range.

    Without `write` it is not sent as it is: Antiphon acts on it, or the engine has another form of it.
    """

    name: str
    within: Range = Range()
    write: Write | None = plain


Column = Mapping[str, Taken | str]


def _same(*names: str) -> Column:
    return {name: Taken(name) for name in names}


def _named(**names: str) -> Column:
    return {field: Taken(name) for field, name in names.items()}


def _special(*fields: str, **names: str) -> Column:
    return {
        field: Taken(name, write=None)
        for field, name in (dict(zip(fields, fields, strict=True)) | names).items()
    }


def _no(reason: str, *names: str) -> Column:
    return dict.fromkeys(names, reason)


# How values are written


def _changed(change: Callable[[Any], Any]) -> Write:
    """Writes a changed value."""
    return lambda name, value, _: {name: change(value)}


_list = _changed(list)
_no_top_k = _changed(lambda count: max(count, 0))
_above_zero = _changed(lambda share: max(share, LEAST))


def _unless(neutral: float) -> Write:
    """Writes nothing for this value, which is the default."""
    return lambda name, value, _: {} if value == neutral else {name: value}


def _modulo(size: int) -> Write:
    """Writes a seed as a number that the engine has, and that does not mean "any"."""
    return _changed(lambda seed: seed % size)


def _nothing(name: str, value: Any, request: GenerationRequest) -> Mapping[str, Any]:
    """What is asked for is what the engine does."""
    return {}


# llama.cpp, embedded, and as llama-server

_SEED_BITS = 0xFFFF_FFFF  # all bits set means "random seed" to llama.cpp

LLAMA_ORDER = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
"""Its samplers, in the order that it has unless a request has another one."""

LLAMA_SAMPLERS = (*LLAMA_ORDER, "infill", "adaptive_p")
"""Its names of samplers: others it would ignore."""


def _llama_seed(name: str, value: int, request: GenerationRequest) -> Mapping[str, Any]:
    """A seed costs the prompt cache.

    A prompt that is partly cached is computed in other batches, which round differently: enough to draw
    another token.
    """
    return {name: value % _SEED_BITS, "cache_prompt": False}


def _llama_bias(name: str, value: Any, request: GenerationRequest) -> Mapping[str, Any]:
    """Biases and banned tokens have one field."""
    sampling = request.sampling
    banned = ((token, False) for token in sampling.banned_tokens)
    return {"logit_bias": [*sampling.logit_bias.items(), *banned]}


def _llama_last(name: str, value: int, request: GenerationRequest) -> Mapping[str, Any]:
    """The number of the last tokens to consider: llama.cpp has no number for all, and reserves memory."""
    count = len(request.prompt.ids) + request.max_tokens
    return {name: count if value == -1 else min(value, count)}


def _llama_adaptive(name: str, value: float, request: GenerationRequest) -> Mapping[str, Any]:
    """The sampler is not one of those that llama.cpp has by default: without it, a target has no effect."""
    order = [] if value < 0 or request.sampling.samplers else [*LLAMA_ORDER, "adaptive_p"]
    return {name: value} | ({"samplers": order} if order else {})


def _llama_samplers(name: str, value: tuple[str, ...], request: GenerationRequest) -> Mapping[str, Any]:
    """Raises RequestError for names that it would ignore."""
    if unknown := [each for each in value if each not in LLAMA_SAMPLERS]:
        message = f"llama.cpp has no sampler {unknown[0]!r}. It has {', '.join(LLAMA_SAMPLERS)}."
        raise RequestError(message, param="samplers")
    return {name: list(value)}


_NOT_VLLM = _no("only vLLM has it", "vllm_xargs", "kv_transfer_params", "data_parallel_rank")
_NO_ADAPTERS = _no("its API has no adapters for a request", "lora")
_NO_SEARCH = _no("it has no beam search", "beam_width", "length_penalty")
_EXLLAMAV2 = ("tfs", "top_a", "skew", "smoothing_factor", "cfg_scale", "negative_prompt")
"""The samplers that ExLlamaV2 has, and no other engine."""
_TABBY_ONLY = ("repetition_decay", "token_healing", "loop_detect_window")
_LLAMA_ONLY = ("top_n_sigma", "samplers", "min_keep")

_LLAMA: Column = {
    **_same(
        *("temperature", "top_p", "min_p", "typical_p", "top_n_sigma"),
        *("xtc_probability", "xtc_threshold", "dynatemp_range", "dynatemp_exponent"),
        *("mirostat", "mirostat_tau", "mirostat_eta", "presence_penalty", "frequency_penalty"),
        *("dry_multiplier", "dry_allowed_length", "min_keep"),
    ),
    "top_k": Taken("top_k", write=_no_top_k),
    "repetition_penalty": Taken("repeat_penalty"),
    "repeat_last_n": Taken("repeat_last_n", write=_llama_last),
    "dry_base": Taken("dry_base", Range(least=1)),  # a smaller one it would replace by its default
    "dry_penalty_last_n": Taken("dry_penalty_last_n", write=_llama_last),
    "dry_sequence_breakers": Taken("dry_sequence_breakers", write=_list),
    "adaptive_target": Taken("adaptive_target", write=_llama_adaptive),
    "adaptive_decay": Taken("adaptive_decay", Range(0, 0.99)),
    "samplers": Taken("samplers", write=_llama_samplers),
    "temperature_last": Taken("its own order", write=_nothing),
    "logit_bias": Taken("logit_bias", write=_llama_bias),
    "banned_tokens": Taken("logit_bias", write=_llama_bias),
    "seed": Taken("seed", write=_llama_seed),
    "ignore_eos": Taken("ignore_eos", write=_unless(False)),
    # It returns a token's probability only together with the most likely ones.
    "logprobs": Taken("n_probs", write=_changed(lambda count: max(count, 1))),
    **_special("priority", "stop_token_ids", "skip_special_tokens", "lora", max_tokens="n_predict"),
    **_no("it has no such sampler", *_EXLLAMAV2, "watermark"),
    "repetition_decay": "its penalties do not fade",
    "token_healing": "it reads prompts as they are",
    "loop_detect_window": "Antiphon itself ends answers that repeat the same text",
    "min_tokens": "a bias against the end token cannot be removed later",
    "bad_words": "it bans single tokens only",
    "cache_salt": "a prompt gets the slot whose cache is most like it",
    "prompt_logprobs": "it does not return them",
    "allowed_token_ids": "every other token of the vocabulary would need a bias",
    **_NO_SEARCH,
    **_NOT_VLLM,
}

# vLLM

_NOT_OF_VLLM: Column = {
    **_no(
        "it has no such sampler",
        *("typical_p", *_LLAMA_ONLY, "xtc_probability", "xtc_threshold"),
        *("dynatemp_range", "dynatemp_exponent", "mirostat", "mirostat_tau", "mirostat_eta"),
        *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
        *("adaptive_target", "adaptive_decay", *_EXLLAMAV2, *_TABBY_ONLY, "watermark"),
    ),
    "repeat_last_n": "its penalties look at all tokens",
    "samplers": "it has one order of its samplers",
    "temperature_last": "it has one order of its samplers",
}
_VLLM: Column = {
    **_same(
        *("top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        *("min_tokens", "ignore_eos", "logprobs", "stop_token_ids", "bad_words", "allowed_token_ids"),
        *("logit_bias", "seed", "prompt_logprobs", "length_penalty", "cache_salt", "priority"),
        *("max_tokens", "kv_transfer_params", "data_parallel_rank", "skip_special_tokens", "lora"),
    ),
    "temperature": Taken("temperature", Range(0, 2)),
    "banned_tokens": Taken("logit_bias"),
    "vllm_xargs": Taken("extra_args"),
    "beam_width": Taken("n"),
    **_NOT_OF_VLLM,
}
_VLLM_SERVER: Column = {
    **_same(
        *("top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
        *("min_tokens", "ignore_eos", "stop_token_ids", "bad_words", "allowed_token_ids", "vllm_xargs"),
        *("cache_salt", "kv_transfer_params", "logprobs"),
    ),
    "temperature": Taken("temperature", Range(0, 2)),
    "top_p": Taken("top_p", write=_above_zero),
    "seed": Taken("seed", write=_modulo(2**63)),  # -1 would select a random seed
    **_special(
        *("priority", "max_tokens", "prompt_logprobs", "beam_width", "length_penalty", "skip_special_tokens"),
        "lora",
    ),
    "banned_tokens": "its API has biases of -100 at least, which do not ban a token for certain",
    "data_parallel_rank": "each rank of a server behind a URL is a replica",
    **_NOT_OF_VLLM,
}

# SGLang

_SGLANG: Column = {
    **_same(
        *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
        *("repetition_penalty", "logit_bias", "stop_token_ids", "ignore_eos"),
    ),
    **_named(min_tokens="min_new_tokens"),
    **_special(
        *("priority", "skip_special_tokens"),
        max_tokens="max_new_tokens",
        logprobs="top_logprobs_num",
        prompt_logprobs="top_logprobs_num",
        cache_salt="extra_key",
        lora="lora_path",
    ),
    **_NOT_OF_VLLM,
    **_NO_SEARCH,
    **_NOT_VLLM,
    "seed": "only some of its modes support it",
    "banned_tokens": "it has biases, which do not ban a token for certain",
    "bad_words": "it has no such list",
    "allowed_token_ids": "it has no such list",
}

# TabbyAPI: with ExLlamaV3, as all versions since 2026; with ExLlamaV2 the ones before


def _tabby_logprobs(name: str, value: int, request: GenerationRequest) -> Mapping[str, Any]:
    """`logprobs` asks for probabilities, and only from 2 on for alternatives, too."""
    return {"logprobs": max(value, 1), "top_logprobs": value}


def _exllamav2_temperatures(name: str, value: float, request: GenerationRequest) -> Mapping[str, Any]:
    """The bounds of the temperature, from the middle and the distance to it."""
    middle = 1.0 if request.sampling.temperature is None else request.sampling.temperature
    return {"min_temp": max(middle - value, 0), "max_temp": middle + value}


def _exllamav2_range(name: str, value: int, request: GenerationRequest) -> Mapping[str, Any]:
    """0 means all tokens there; and in a window of one token nothing is repeated."""
    return {name: 0 if value == -1 else max(value, 1)}


_TABBY_SHARED: Column = {
    **_same(
        *("min_p", "xtc_probability", "xtc_threshold", "repetition_penalty", "repetition_decay"),
        *("dry_multiplier", "dry_allowed_length", "min_tokens", "token_healing", "temperature_last"),
        "logit_bias",
    ),
    "temperature": Taken("temperature", Range(0, 10)),
    "top_p": Taken("top_p"),
    "top_k": Taken("top_k", write=_no_top_k),
    "presence_penalty": Taken("presence_penalty", Range(least=0)),
    "frequency_penalty": Taken("frequency_penalty", Range(least=0)),
    "repeat_last_n": Taken("penalty_range"),
    "dry_sequence_breakers": Taken("dry_sequence_breakers", write=_list),
    "banned_tokens": Taken("banned_tokens", write=_list),
    "bad_words": Taken("banned_strings", write=_list),
    "stop_token_ids": Taken("stop", write=_list),
    **_special("priority", "max_tokens"),
    **_no("it has no such sampler", *_LLAMA_ONLY, "watermark"),
    "samplers": "it has one order of its samplers; `temperature_last` changes it",
    "seed": "its API has none",
    "prompt_logprobs": "it does not return them",
    "cache_salt": "its API has none",
    **_NO_ADAPTERS,
    **_NO_SEARCH,
    **_NOT_VLLM,
}
_IGNORED = "ExLlamaV3 does not have it: the server would take it without effect"
_TABBY: Column = {
    **_TABBY_SHARED,
    **_same("adaptive_decay", "loop_detect_window", "dry_penalty_last_n"),
    "dry_base": Taken("dry_base", Range(least=1)),  # with a smaller one, it does not penalize
    "adaptive_target": Taken("adaptive_target", write=_changed(lambda target: 1.0 if target < 0 else target)),
    "logprobs": Taken("logprobs, top_logprobs", write=_tabby_logprobs),
    **_no(
        _IGNORED,
        *("typical_p", "dynatemp_range", "dynatemp_exponent", "mirostat", "mirostat_tau", "mirostat_eta"),
        *("ignore_eos", "allowed_token_ids", *_EXLLAMAV2),
    ),
    "skip_special_tokens": "its API has no such switch",
}
_TABBY_EXLLAMAV2: Column = {
    **_TABBY_SHARED,
    **_same("dry_base", "mirostat_tau", "mirostat_eta", *_EXLLAMAV2),
    "typical_p": Taken("typical", write=_above_zero),
    "mirostat": Taken("mirostat_mode", Range(only=(0, 2))),
    "dynatemp_range": Taken("min_temp, max_temp", write=_exllamav2_temperatures),
    "dynatemp_exponent": Taken("temp_exponent"),
    "dry_penalty_last_n": Taken("dry_range", write=_exllamav2_range),
    "ignore_eos": Taken("ban_eos_token"),
    "allowed_token_ids": Taken("allowed_tokens", write=_list),
    **_special("skip_special_tokens"),
    **_no("it has no such sampler", "adaptive_target", "adaptive_decay", "loop_detect_window"),
    "logprobs": "it names the likeliest token in place of the one that was drawn",
}

# Text Generation Inference


def _tgi_temperature(name: str, value: float, request: GenerationRequest) -> Mapping[str, Any]:
    """It has no temperature of 0, but a switch."""
    return {"do_sample": True, name: value} if value else {"do_sample": False}


def _tgi_sampled(*neutral: float, write: Write = plain) -> Write:
    """Writes nothing at a temperature of 0, either: with one of these fields it would sample all the same."""

    def written(name: str, value: Any, request: GenerationRequest) -> Mapping[str, Any]:
        return {} if request.sampling.temperature == 0 or value in neutral else write(name, value, request)

    return written


_TGI: Column = {
    **_same("repetition_penalty", "frequency_penalty", "watermark"),
    "temperature": Taken("temperature", write=_tgi_temperature),
    "top_k": Taken("top_k", write=_tgi_sampled(-1, 0)),
    "top_p": Taken("top_p", write=_tgi_sampled(1, write=_above_zero)),
    "typical_p": Taken("typical_p", write=_tgi_sampled(1, write=_above_zero)),
    "seed": Taken("seed", write=_modulo(2**64)),
    "logprobs": Taken("top_n_tokens", write=_unless(0)),
    **_special("priority", "skip_special_tokens", "stop_token_ids", max_tokens="max_new_tokens"),
    **_no(
        "it has no such sampler",
        *("min_p", *_LLAMA_ONLY, "xtc_probability", "xtc_threshold", "dynatemp_range", "dynatemp_exponent"),
        *("mirostat", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay"),
        *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
        *(*_EXLLAMAV2, *_TABBY_ONLY, "presence_penalty"),
    ),
    "samplers": "it has one order of its samplers",
    "temperature_last": "it has one order of its samplers",
    "repeat_last_n": "its penalties look at all tokens",
    "prompt_logprobs": "it returns no alternatives to them",
    **_no("its API has no such list", "logit_bias", "banned_tokens", "bad_words", "allowed_token_ids"),
    **_no("its API has no such switch", "min_tokens", "ignore_eos", "cache_salt"),
    "lora": "it does not list its adapters, so their names cannot be checked",
    **_NO_SEARCH,
    **_NOT_VLLM,
}

# Ollama


_OLLAMA: Column = {
    **_same("temperature", "top_p", "min_p", "typical_p", "presence_penalty", "frequency_penalty"),
    **_same("repeat_last_n"),
    "top_k": Taken("top_k", write=_no_top_k),
    "repetition_penalty": Taken("repeat_penalty"),
    "seed": Taken("seed", write=_modulo(_SEED_BITS)),  # -1 would select a random seed
    **_special("priority", max_tokens="num_predict", logprobs="top_logprobs"),
    **_no(
        "its API has no such option",
        *(*_LLAMA_ONLY, "xtc_probability", "xtc_threshold", "dynatemp_range", "dynatemp_exponent"),
        *("mirostat", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay"),
        *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
        *(*_EXLLAMAV2, *_TABBY_ONLY, "watermark", "temperature_last", "logit_bias", "banned_tokens"),
        *("bad_words", "allowed_token_ids", "stop_token_ids", "min_tokens", "ignore_eos", "cache_salt"),
        *("prompt_logprobs", "skip_special_tokens"),
    ),
    **_NO_ADAPTERS,
    **_NO_SEARCH,
    **_NOT_VLLM,
}

# Any other server with /v1/completions: OpenAI's fields, which all have, and no others

_OPENAI = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed")
_COMPLETIONS: Column = {
    **dict.fromkeys(UNSET, "not every such server has it, and most would take it without effect"),
    **_same(*_OPENAI),
    **_special("priority", "max_tokens"),
}

# The scripted engine

_SCRIPTED: Column = {
    **_special(*UNSET),
    "bad_words": "a script is played unchanged",
    "prompt_logprobs": "it does not read prompts",
    "beam_width": "a script is played unchanged",
    "length_penalty": "a script is played unchanged",
    "lora": "a script is played unchanged",
    **_NOT_VLLM,
}

COLUMNS: Mapping[str, Column] = {
    "llama_cpp": _LLAMA,
    "vllm": _VLLM,
    "vllm_server": _VLLM_SERVER,
    "sglang": _SGLANG,
    "tabbyapi": _TABBY,
    "tabbyapi-exllamav2": _TABBY_EXLLAMAV2,
    "tgi": _TGI,
    "ollama": _OLLAMA,
    "completions": _COMPLETIONS,
    "scripted": _SCRIPTED,
}
"""The table: engine or kind of server → field of `Sampling` → how it is taken, or why not."""


@cache
def _taken(column: str) -> tuple[tuple[str, Taken], ...]:
    """The fields that the engine takes."""
    return tuple((field, how) for field, how in COLUMNS[column].items() if isinstance(how, Taken))


def supported(column: str) -> frozenset[str]:
    """The fields of `Sampling` that the engine takes."""
    return frozenset(field for field, _ in _taken(column))


def ranges(column: str) -> Mapping[str, Range]:
    """The ranges of those numbers that the engine takes only in part."""
    return {field: how.within for field, how in _taken(column) if how.within != Range()}


def refused(column: str) -> Mapping[str, str]:
    """The fields that the engine does not take, and why."""
    return {field: how for field, how in COLUMNS[column].items() if isinstance(how, str)}


def sent_names(column: str, field: str) -> frozenset[str]:
    """The engine's names of a field that is written from the table; none of one that is not."""
    how = COLUMNS[column][field]
    return frozenset(how.name.split(", ") if isinstance(how, Taken) and how.write is not None else ())


def fields_of(request: GenerationRequest, column: str) -> dict[str, Any]:
    """The fields of a request to the engine that set the sampling. Raises RequestError."""
    fields: dict[str, Any] = {}
    for field, how in _taken(column):
        if how.write is not None and (value := getattr(request.sampling, field)) != UNSET[field]:
            fields |= how.write(how.name, value, request)
    return fields
