"""The treatment of the parameters of requests, for every API: one table for each kind.

Parameters with a field in the API's request are used. Of all others, `ALIASES` are other names of such
fields; `HINTS` are ignored, because the answer is correct for any value; `REFUSED` request something that
Antiphon, or this API, does not support, so that the answer would be wrong. Unknown ones are ignored, and
logged.
"""

from collections.abc import Container, Iterator, Mapping

import msgspec
from msgspec import Raw, Struct

from antiphon.core.errors import AntiphonError, RequestError

_LIMITS = ("max_tokens", "max_output_tokens")
_JSON = ("structured_outputs.json",)
_REGEX = ("structured_outputs.regex",)
_GRAMMAR = ("structured_outputs.grammar",)
_VARIABLES = ("chat_template_kwargs",)
_THINKING = ("chat_template_kwargs.enable_thinking",)
_BUDGET = ("thinking_token_budget",)
_REPETITION = ("repetition_penalty",)
_RANGE = ("repeat_last_n",)

ALIASES: Mapping[str, tuple[str, ...]] = {
    "allowed_tokens": ("allowed_token_ids",),
    "ban_eos_token": ("ignore_eos",),
    "banned_strings": ("bad_words",),
    "custom_token_bans": ("banned_tokens",),
    "dry_range": ("dry_penalty_last_n",),
    "dynatemp_high": ("max_temp",),
    "dynatemp_low": ("min_temp",),
    "enable_thinking": _THINKING,
    "format": _JSON,
    "grammar": _GRAMMAR,
    "grammar_string": _GRAMMAR,
    "guidance_scale": ("cfg_scale",),
    "guided_choice": ("structured_outputs.choice",),
    "guided_grammar": _GRAMMAR,
    "guided_json": _JSON,
    "guided_regex": _REGEX,
    "json_schema": _JSON,
    "max_completion_tokens": _LIMITS,
    "max_length": _LIMITS,
    "max_new_tokens": _LIMITS,
    "max_output_tokens": _LIMITS,
    "max_tokens": _LIMITS,
    "min_length": ("min_tokens",),
    "mirostat_mode": ("mirostat",),
    "n_predict": _LIMITS,
    "num_predict": _LIMITS,
    "penalty_range": _RANGE,
    "reasoning.effort": ("reasoning_effort",),
    "reasoning.enabled": _THINKING,
    "reasoning.max_tokens": _BUDGET,
    "reasoning_budget": _BUDGET,
    "reasoning_effort": ("reasoning.effort",),
    "regex_pattern": _REGEX,
    "rep_pen": _REPETITION,
    "rep_pen_range": _RANGE,
    "repeat_penalty": _REPETITION,
    "repetition_penalty_range": _RANGE,
    "repetition_range": _RANGE,
    "stop_sequence": ("stop",),
    "stopping_strings": ("stop",),
    "temp_exponent": ("dynatemp_exponent",),
    "template_vars": _VARIABLES,
    "tfs_z": ("tfs",),
    "thinking_budget": _BUDGET,
    "thinking_budget_tokens": _BUDGET,
    "typical": ("typical_p",),
    "verbosity": ("text.verbosity",),
}
"""Name → the field that it is another name of, the first that the API has; a dot leads into an object."""

GROUPS = ("options", "reasoning")
"""Objects whose members are parameters, where the API has no field for the object itself."""

_LOADED = "the model was loaded when the server started"
_ONE_SERVER = "each model name means one model of this server"
_CACHED = "engines cache prompts by themselves, as far as they have room"

HINTS: Mapping[str, str] = {
    "add_bos_token": "Antiphon adds the token that a prompt has to begin with, exactly once",
    "add_special_tokens": "Antiphon adds the token that a prompt has to begin with, exactly once",
    "cache_prompt": _CACHED,
    "client_metadata": "users and sessions are not tracked",
    "draft_model": _LOADED,
    "generate_window": "an answer may use the rest of the context after the prompt",
    "guided_decoding_backend": "the engine uses its own backend",
    "id_slot": "the engine chooses the slot",
    "include_reasoning": "the text of a completion is what the model writes",
    "keep_alive": "the model stays loaded",
    "main_gpu": _LOADED,
    "metadata": "it is kept with what is stored, and completions are not",
    "models": _ONE_SERVER,
    "n_discard": "prompts are not cut while the model writes",
    "n_keep": "prompts are not cut while the model writes",
    "num_batch": _LOADED,
    "num_ctx": _LOADED,
    "num_gpu": _LOADED,
    "num_keep": "prompts are not cut while the model writes",
    "num_thread": _LOADED,
    "parallel_tool_calls": "a completion has no calls",
    "prediction": "it would only make the same answer faster",
    "prompt_cache_key": "engines find common beginnings of prompts by themselves",
    "prompt_cache_options": _CACHED,
    "prompt_cache_retention": _CACHED,
    "provider": _ONE_SERVER,
    "route": _ONE_SERVER,
    "safety_identifier": "users are not tracked",
    "service_tier": "there is one tier; an answer to a request that named one of OpenAI's has `default`",
    "session_id": "sessions are not tracked",
    "spaces_between_special_tokens": "special tokens are shown as they are",
    "speculative_ngram": "it would only make the same answer faster",
    "stream_interval": "a stream sends text as soon as it is generated",
    "trace": "traces are not kept",
    "usage": "answers have their usage",
    "use_mmap": _LOADED,
    "user": "users are not tracked",
}
"""Parameter → why it is ignored."""

_NO_MEDIA = "Antiphon generates text only. Leave it out."
_NO_EXTENSION = "Antiphon does not pass parameters through to engines. Leave it out."
_NO_SAMPLER = "No engine of this server has this sampler. Leave it out."
_ONE_ANSWER = "A response is one answer: send a request for each."
_IN_CHAT = "Use Chat Completions."
_IN_CHAT_OR_RESPONSES = "Use Chat Completions or Responses."
_IN_RESPONSES = "Use the Responses API."
_TOKENS = "Use 'enable_response_messages', or Chat Completions."
_EFFORT = "Use 'reasoning_effort' or 'enable_thinking'."

REFUSED: Mapping[str, str] = {
    "add_generation_prompt": _IN_CHAT,
    "audio": _NO_MEDIA,
    "background": _IN_RESPONSES,
    "best_of": _ONE_ANSWER,
    "chat_template": _IN_CHAT_OR_RESPONSES,
    "chat_template_kwargs": _IN_CHAT_OR_RESPONSES,
    "context_management": _IN_RESPONSES,
    "continue_final_message": _IN_CHAT,
    "conversation": _IN_RESPONSES,
    "documents": _IN_CHAT_OR_RESPONSES,
    "ec_transfer_params": _NO_EXTENSION,
    "echo": "Use Chat Completions or Completions.",
    "enable_response_messages": "Use 'return_token_ids' and 'return_prompt_text'.",
    "function_call": "Use 'tools' and 'tool_choice', in Chat Completions or Responses.",
    "functions": "Use 'tools', in Chat Completions or Responses.",
    "guided_whitespace_pattern": "The engine chooses which space it allows. Leave it out.",
    "include": _IN_RESPONSES,
    "input": "Use 'messages' or 'prompt', or the Responses API.",
    "instructions": "Use a message of the role 'system', or the Responses API.",
    "logits_processors": _NO_EXTENSION,
    "logprob_token_ids": "Use 'top_logprobs'.",
    "logprobs": "Use 'include': ['message.output_text.logprobs'] and 'top_logprobs'.",
    "max_tool_calls": _IN_CHAT_OR_RESPONSES,
    "media_fallback": _IN_CHAT_OR_RESPONSES,
    "media_io_kwargs": _NO_EXTENSION,
    "messages": "Use 'input' or 'prompt', or Chat Completions.",
    "mm_payload": _NO_EXTENSION,
    "mm_processor_kwargs": _NO_EXTENSION,
    "modalities": _NO_MEDIA,
    "moderation": "Use Chat Completions, Responses or /v1/moderations.",
    "multi_agent": "One model answers. Leave it out.",
    "n": _ONE_ANSWER,
    "n_probs": "Use 'logprobs' and 'top_logprobs'.",
    "penalize_nl": _NO_SAMPLER,
    "plugins": "Use 'tools'.",
    "post_sampling_probs": "Use 'logprobs'.",
    "previous_input_messages": "Send them first among 'messages'.",
    "previous_response_id": _IN_RESPONSES,
    "prompt": "There are no stored prompts here. Send 'messages', or 'instructions' and 'input'.",
    "prompt_logprobs": "Use Chat Completions or Completions.",
    "prompt_template": "Use 'chat_template'.",
    "reasoning.exclude": "Use 'include_reasoning': false.",
    "reasoning_effort": _IN_CHAT_OR_RESPONSES,
    "reasoning_format": "Use 'include_reasoning'.",
    "repetition_detection": "Use 'repetition_penalty' or 'frequency_penalty'.",
    "response_fields": "Answers have all their fields. Leave it out.",
    "response_prefix": _IN_CHAT,
    "return_mm_kwargs": _NO_EXTENSION,
    "return_prompt_text": _TOKENS,
    "return_token_ids": _TOKENS,
    "return_token_offsets": "Use 'return_token_ids' or 'logprobs'.",
    "return_tokens": "Use 'return_token_ids'.",
    "return_tokens_as_token_ids": _TOKENS,
    "routed_experts_prompt_start": _NO_EXTENSION,
    "sampler_priority": "Use 'samplers', with llama.cpp's names of them.",
    "smoothing_curve": _NO_SAMPLER,
    "store": _IN_CHAT_OR_RESPONSES,
    "suffix": "Use Completions.",
    "t_max_predict_ms": "Use 'max_tokens'.",
    "text": "Use 'response_format' and 'verbosity'.",
    "think": _EFFORT,
    "thinking": _EFFORT,
    "thinking_token_budget": _IN_CHAT_OR_RESPONSES,
    "tool_choice": _IN_CHAT_OR_RESPONSES,
    "tools": _IN_CHAT_OR_RESPONSES,
    "top_logprobs": "Use 'logprobs', a number.",
    "transforms": "Transform the messages before you send them.",
    "truncation": "Use 'truncate_prompt_tokens'.",
    "use_beam_search": "Use Chat Completions or Completions.",
    "verbosity": _IN_CHAT_OR_RESPONSES,
    "watermarking": "Antiphon does not watermark. Leave it out.",
    "web_search_options": "Use 'tools', in Chat Completions or Responses.",
}
"""Parameter → the remedy."""

_EMPTY: tuple[object, ...] = (None, False, [], {}, "")
_WITHOUT_EFFECT: Mapping[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "best_of": (1,),
    "modalities": (["text"],),
    "n": (1,),
    "reasoning_format": ("auto",),
    "smoothing_curve": (1,),
    "t_max_predict_ms": (-1,),
    "tool_choice": ("none", "auto"),
    "truncation": ("disabled",),
}
"""Values that request nothing, in addition to the general ones: they are no reason to refuse."""

_NULL = Raw(b"null")
MAX_LOGGED = 20
"""The most names of unknown parameters that are logged, and the most characters of each."""
_LOGGED_CHARACTERS = 64


class ParameterNames(Struct):
    """The request's names of its parameters: field → the alias that was used; `ignored` are in no table."""

    aliases: dict[str, str] = {}
    ignored: list[str] = []

    def restore(self, error: AntiphonError) -> None:
        """Make an error name the parameter as the client has sent it."""
        for field, alias in self.aliases.items():
            param = error.param or ""
            if param == field or param.startswith((f"{field}.", f"{field}[")):
                error.param = alias + param[len(field) :]
            error.message = error.message.replace(f"'{field}", f"'{alias}")


def to_fields(given: Mapping[str, Raw], fields: Container[str], names: ParameterNames) -> dict[str, Raw]:
    """The parameters of a request by the names of its fields. Raises RequestError for refused ones."""
    values = {name: value for name, value in given.items() if name in fields}
    for name, key, value in _others(given, fields):
        targets = (key, *ALIASES.get(key, ()))
        target = next((target for target in targets if target.partition(".")[0] in fields), None)
        remedy = REFUSED.get(key) or REFUSED.get(targets[-1].partition(".")[0])
        if target is not None:
            _set(values, target, value, name, names)
        elif remedy and key not in HINTS:
            _refuse(name, key, value, remedy)
        elif key not in HINTS and len(names.ignored) < MAX_LOGGED:
            names.ignored.append(name[:_LOGGED_CHARACTERS])
    return values


def _others(given: Mapping[str, Raw], fields: Container[str]) -> Iterator[tuple[str, str, Raw]]:
    """The parameters that are not fields: name, name in the tables, value."""
    for name, value in given.items():
        members = _members(value) if name in GROUPS and name not in fields else None
        if members is not None:
            for inner, part in members.items():
                whole = f"{name}.{inner}"
                yield whole, whole if whole in ALIASES or whole in REFUSED else inner, part
        elif name not in fields:
            yield name, name, value


def _set(values: dict[str, Raw], target: str, value: Raw, name: str, names: ParameterNames) -> None:
    """Set a field, or a member of one, to a value that has another name in the request."""
    field, _, member = target.partition(".")
    holder = _members(values.get(field, _NULL)) if member else values
    new = msgspec.json.decode(value)
    if new in (None, "") or holder is None:  # the parent is not an object: the error will name it
        return
    key = member or field
    if msgspec.json.decode(holder.get(key, _NULL)) not in (None, new):
        message = f"'{names.aliases.get(target, target)}' and '{name}' are one parameter. Send one of them."
        raise RequestError(message, param=name)
    holder[key] = value
    if member:
        values[field] = Raw(msgspec.json.encode(holder))
    names.aliases[target] = name


def _refuse(name: str, key: str, value: Raw, remedy: str) -> None:
    if msgspec.json.decode(value) not in (*_EMPTY, *_WITHOUT_EFFECT.get(key, ())):
        raise RequestError(f"'{name}' is not supported. {remedy}", param=name)


def _members(value: Raw) -> dict[str, Raw] | None:
    """The members of an object, none of null; None if the value is not an object."""
    try:
        return msgspec.json.decode(value, type=dict[str, Raw] | None) or {}
    except msgspec.ValidationError:
        return None
