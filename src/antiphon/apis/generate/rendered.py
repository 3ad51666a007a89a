"""A turn and its prompt → the request to /inference/v1/generate that continues it, here or at a vLLM.

Where vLLM has no field for a part of a request, the answer has a note on it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct

from antiphon.apis.generate.resource import Features, ParseContext, RenderedRequest
from antiphon.core.constraint import Format, GrammarFormat, JsonObject, JsonSchema, OneOf, Regex, TagFormat
from antiphon.core.errors import RequestError
from antiphon.core.hosts import Note
from antiphon.core.items import FunctionCall
from antiphon.core.turn import CallMode, Function, Sampling, ToolChoice, Turn

SAME = (
    *(
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
    ),
    *("seed", "stop_token_ids", "ignore_eos", "min_tokens", "logprobs", "prompt_logprobs", "logit_bias"),
    *("allowed_token_ids", "bad_words", "skip_special_tokens"),
)
"""The fields of a sampling that vLLM's `sampling_params` have under the same name."""

_ELSEWHERE = frozenset(
    {"max_tokens", "cache_salt", "priority", "kv_transfer_params", "vllm_xargs", "beam_width"}
)
"""Those that have another place in the request."""


class RenderSource(Struct, frozen=True):
    """What is rendered: the `turn`, its prompt as `text` and `ids`, and the `features` of its media.

    `context` is the number of tokens of the model's context, 0 if unknown. `defaults` are the fields of a
    sampling that the model's engine, or its maker, sets; those of `forced` hold in any case. With `parses`
    the answer has parts to be read, among them reasoning if it is shown. `ids_shown` is `return_token_ids`
    of the request.
    """

    turn: Turn
    text: str
    ids: tuple[int, ...]
    context: int
    defaults: Mapping[str, Any] = {}
    forced: frozenset[str] = frozenset()
    features: Features | None = None
    notes: tuple[Note, ...] = ()
    parses: bool = False
    reasoning_shown: bool = True
    ids_shown: bool | None = None
    stream: bool = False
    stream_options: Mapping[str, Any] | None = None


def rendered(source: RenderSource, request_id: str, kind: str) -> RenderedRequest:
    """The request; `kind` is the `object` of the answer. Raises RequestError for a beam search."""
    turn, sampling = source.turn, source.turn.sampling
    if sampling.beam_width is not None:
        message = "A beam search is not one request for token ids. Leave it out."
        raise RequestError(message, param="use_beam_search")
    return RenderedRequest(
        request_id=request_id,
        token_ids=source.ids,
        features=source.features,
        sampling_params=sampling_params(source),
        model=turn.model,
        return_token_ids=source.ids_shown,
        parse_context=_parse_context(source) if source.parses else None,
        stream=source.stream,
        stream_options=source.stream_options if source.stream else None,
        cache_salt=sampling.cache_salt,
        priority=sampling.priority or 0,
        kv_transfer_params=sampling.kv_transfer_params or None,
        object=kind,
        prompt=source.text,
        count=len(source.ids),
        max_model_len=source.context,
        notes=(*source.notes, *_untold(turn)) or UNSET,
    )


def sampling_params(source: RenderSource) -> dict[str, Any]:
    """The members of `sampling_params` that are not vLLM's defaults."""
    turn, sampling = source.turn, source.turn.sampling
    unset = Sampling()
    params = {name: value for name, value in source.defaults.items() if name in SAME}
    params |= {name: value for name in SAME if (value := getattr(sampling, name)) != getattr(unset, name)}
    params |= {name: source.defaults[name] for name in SAME if name in source.forced}
    params = {name: [*value] if isinstance(value, tuple) else value for name, value in params.items()}
    if params.get("top_k") == -1:
        params["top_k"] = 0
    room = source.context - len(source.ids)
    limits = [limit for limit in (sampling.max_tokens, room if source.context else None) if limit is not None]
    if limits and min(limits) > 0:
        params["max_tokens"] = min(limits)
    own = {
        "n": (turn.choices, 1),
        "stop": ([*turn.stop], []),
        "include_stop_str_in_output": (turn.stop_shown, False),
        "thinking_token_budget": (turn.reasoning_limit, None),
        "extra_args": ({**sampling.vllm_xargs}, {}),
        "structured_outputs": (structured_outputs(turn.format), None),
    }
    return params | {name: value for name, (value, default) in own.items() if value != default}


def structured_outputs(form: Format | None) -> dict[str, Any] | None:  # noqa: PLR0911 - one for each form
    """A required form in vLLM's fields."""
    match form:
        case None:
            return None
        case JsonSchema(schema=schema):
            return {"json": schema}
        case JsonObject():
            return {"json_object": True}
        case Regex(pattern=pattern):
            return {"regex": pattern}
        case OneOf(texts=texts):
            return {"choice": [*texts]}
        case GrammarFormat(text=text):
            return {"grammar": text}
        case TagFormat(spec=spec):
            return {"structural_tag": spec}


def _untold(turn: Turn) -> Iterator[Note]:
    """Notes on parts of a request that its ids and `sampling_params` do not say."""
    sampling, unset = turn.sampling, Sampling()
    for name in Sampling.__struct_fields__:
        if name in SAME or name in _ELSEWHERE or getattr(sampling, name) == getattr(unset, name):
            continue
        yield Note(
            turn.parameter(name), f"vLLM's sampling_params have no '{name}': it is not in the request."
        )
    if turn.tools and turn.tool_choice.calling is CallMode.REQUIRED:
        message = "That a call is demanded is in parse_context only: token ids are generated freely."
        yield Note(turn.parameter("tool_choice"), message)
    if turn.approved:
        message = "The approved calls have not been run: the ids end before their results."
        yield Note(turn.parameter("conversation"), message)


def _parse_context(source: RenderSource) -> ParseContext:
    turn = source.turn
    return ParseContext(
        tools=[_tool(tool) for tool in turn.tools] or None,
        tool_choice=_choice(turn.tool_choice) if turn.tools else "none",
        parallel_tool_calls=turn.tool_choice.parallel,
        include_reasoning=source.reasoning_shown,
        chat_template_kwargs=turn.latest_variables,
        history_tool_call_cnt=sum(isinstance(item, FunctionCall) for item in turn.items),
    )


def _tool(tool: Function) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice) -> str | dict[str, Any]:
    names: Sequence[str] = (*(choice.names or ()),)
    if choice.named and len(names) == 1:
        return {"type": "function", "function": {"name": names[0]}}
    return choice.calling.value
