"""What the installed SDKs know: the names in their unions, and the parameters of their methods."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints

import anthropic.types as messages
import anthropic.types.beta as beta_messages
from anthropic.types.anthropic_beta_param import AnthropicBetaParam
from anthropic.types.beta.beta_context_management_config_param import Edit
from anthropic.types.beta.message_create_params import MessageCreateParamsBase as BetaMessageParams
from anthropic.types.message_create_params import MessageCreateParamsBase as MessageParams
from openai.types import beta, responses
from openai.types.batch_create_params import BatchCreateParams as BatchParams
from openai.types.beta.beta_response_input_item_param import BetaResponseInputItemParam
from openai.types.beta.response_create_params import ResponseCreateParamsBase as BetaResponseParams
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase as ResponseParams
from openai.types.responses.response_input_item_param import ResponseInputItemParam
from openai.types.responses.responses_client_event_param import ResponsesClientEventParam


def members(union: Any) -> Iterator[Any]:
    """The members of a union, without what wraps them."""
    if get_origin(union) in (Annotated, Required, NotRequired):
        yield from members(get_args(union)[0])
    elif get_origin(union) is Union:
        for member in get_args(union):
            yield from members(member)
    else:
        yield union


def types_of(*unions: Any) -> set[str]:
    """The values of the field `type` of all members."""
    return {value for union in unions for member in members(union) for value in _types(member)}


def _types(member: Any) -> Iterator[str]:
    if hasattr(member, "model_fields"):
        hint = member.model_fields["type"].annotation
    else:
        hint = get_type_hints(member, include_extras=True).get("type")
    for part in members(hint):
        if get_origin(part) is Literal:
            yield from get_args(part)


def literals(*unions: Any) -> set[str]:
    """All words of literals."""
    parts = (part for union in unions for part in members(union))
    return {value for part in parts if get_origin(part) is Literal for value in get_args(part)}


def parameters(*methods: Any) -> set[str]:
    """The parameters, and the members of those that are objects of one type: `reasoning.effort`."""
    return {name for method in methods for name in _fields(method, "")}


def _fields(type_: Any, before: str) -> Iterator[str]:
    for name, hint in get_type_hints(type_, include_extras=True).items():
        objects = [member for member in members(hint) if hasattr(member, "__total__")]
        yield before + name
        if not before and name in _OPENED:
            for inner in objects:
                yield from _fields(inner, f"{name}.")


_OPENED = {
    "access_programs", "context_management", "image", "output_config", "output_expires_after",
    "prompt_cache_options", "reasoning", "stream_options", "text", "thinking",
}  # fmt: skip


UNIONS: dict[str, set[str]] = {
    "Responses: parameters": parameters(ResponseParams, BetaResponseParams),
    "Responses: input items": types_of(ResponseInputItemParam, BetaResponseInputItemParam),
    "Responses: tools": types_of(responses.ToolParam, beta.BetaToolParam),
    "Responses: include": literals(responses.ResponseIncludable),
    "Responses: messages of a WebSocket": types_of(
        ResponsesClientEventParam, beta.BetaResponsesClientEventParam
    ),
    "Responses: output items": types_of(responses.ResponseOutputItem, beta.BetaResponseOutputItem),
    "Responses: events": types_of(responses.ResponsesServerEvent, beta.BetaResponsesServerEvent),
    "Chat Completions: parameters": parameters(ChatParams),
    "Batches: parameters": parameters(BatchParams),
    "Messages: parameters": parameters(MessageParams, BetaMessageParams),
    "Messages: blocks of a request": types_of(
        messages.ContentBlockParam, beta_messages.BetaContentBlockParam
    ),
    "Messages: tools": types_of(messages.ToolUnionParam, beta_messages.BetaToolUnionParam),
    "Messages: edits": types_of(Edit),
    "Messages: blocks of an answer": types_of(messages.ContentBlock, beta_messages.BetaContentBlock),
    "Messages: events": types_of(messages.RawMessageStreamEvent, beta_messages.BetaRawMessageStreamEvent),
    "Messages: deltas": types_of(messages.RawContentBlockDelta, beta_messages.BetaRawContentBlockDelta),
    "Messages: stop reasons": literals(messages.StopReason, beta_messages.BetaStopReason),
    "Messages: betas": literals(AnthropicBetaParam),
}
