"""Why the cache missed, in Anthropic's words: `diagnostics.previous_message_id`.

Beside Anthropic's fields a reason has the `part` of the request that made the difference.
"""

from collections.abc import Mapping
from typing import Any

from antiphon.apis.messages.resource import CacheDiagnostics, CacheMissReason
from antiphon.apis.messages.schema import CreateMessage, RequestMessage
from antiphon.core.cache_trace import CacheMiss, CacheResult, NotCompared, RequestParts, hash_of, settings_of

_REASONS = {
    "model": "model_changed",
    "cache_salt": "model_changed",
    "tools": "tools_changed",
    "system": "system_changed",
}
"""Part → the type of the reason; items are `messages_changed`, others `unavailable`."""


def diagnostics_of(result: CacheResult | None) -> CacheDiagnostics | None:
    """The report of a result; None if nothing was missed."""
    match result:
        case CacheMiss(part=part):
            type_ = "messages_changed" if part.startswith("messages[") else _REASONS.get(part, "unavailable")
            return CacheDiagnostics(CacheMissReason(type_, result.lost, part))
        case NotCompared(unknown=unknown):
            return CacheDiagnostics(
                CacheMissReason("previous_message_not_found" if unknown else "unavailable")
            )
    return None


def request_parts(request: CreateMessage) -> RequestParts:
    """What the prompt of a request is made of."""
    managed = request.context_management
    return RequestParts(
        settings_of(
            model=[request.model, request.lora],
            cache_salt=request.cache_salt,
            tools=[[*map(_plain, request.tools or ())], request.mcp_servers],
            system=_content(request.system),
            output_config=[request.output_config, request.output_format],
            tool_choice=request.tool_choice,
            thinking=request.thinking,
            chat_template_kwargs=request.chat_template_kwargs,
            context_management=managed,
        ),
        tuple(map(_item, request.messages)),
        leaves_out="context_management" if managed and managed.get("edits") else "",
    )


def _item(message: RequestMessage) -> bytes:
    return hash_of([message.role, _content(message.content), message.output_config, message.clear_at])


def _content(content: Any) -> Any:
    """Content without the marks of caches, which move from turn to turn."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [*map(_plain, content)] if isinstance(content, list) else content


def _plain(block: Any) -> Any:
    if not isinstance(block, Mapping):
        return block
    plain = {name: value for name, value in block.items() if name != "cache_control"}
    if isinstance(plain.get("content"), list):
        plain["content"] = _content(plain["content"])
    return plain


def compares_with(request: CreateMessage) -> str | None:
    """The id of the message to compare with."""
    return None if request.diagnostics is None else request.diagnostics.previous_message_id
