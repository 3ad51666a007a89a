"""Items → the messages that chat templates read, in three steps.

`gather` groups items into OpenAI's messages. `arrange` gives them the order and
roles that the template supports. `format_message` gives each the form that the
template reads. The last two follow `TemplateCapabilities`, and drop no text. Special
tokens are escaped after the first step, before any text of the server is added. Until
the last step contents are texts, with `Marks` in the places of media.
"""

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from itertools import takewhile
from typing import Any

from antiphon.core.items import FunctionCall, FunctionOutput, Item, Message, Reasoning, Role
from antiphon.core.surrogates import with_whole_characters_in
from antiphon.render.capabilities import ArgumentFormat, TemplateCapabilities
from antiphon.render.media import Marks
from antiphon.render.special_tokens import GENERIC_ESCAPER, SpecialTokenEscaper

TemplateMessage = dict[str, Any]

PARAGRAPH = "\n\n"
"""The separator between the texts of messages that are merged into one."""

FILLER = " "
"""The content of an empty message, where a template fails on empty content."""

REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""The keys of reasoning in messages. Each template reads one of them, so all are set."""

SHORT_ID_LENGTH = 9
"""Characters of the call ids that Mistral's templates accept."""


NO_MARKS = Marks()
"""Those of a conversation without media."""


def gather(items: Iterable[Item], marks: Marks = NO_MARKS) -> list[TemplateMessage]:
    """Messages as in OpenAI's API, with the arguments of calls as text, and marks for media.

    Consecutive reasoning, text and calls of the assistant are one message. Reasoning
    that nothing follows is a message with empty content.
    """
    messages: list[TemplateMessage] = []
    names: dict[str, str] = {}
    for item in items:
        match item:
            case Message():
                _add_message(messages, item, marks.text_of(item.parts))
            case Reasoning():
                _add_reasoning(messages, item)
            case FunctionCall():
                names[item.call_id] = item.name
                _add_call(messages, item)
            case FunctionOutput():
                messages.append(_result(item, names, marks.text_of(item.parts)))
    return messages


def _add_message(messages: list[TemplateMessage], item: Message, text: str) -> None:
    only_reasoning = messages and messages[-1].get("reasoning") and not messages[-1]["content"]
    if only_reasoning and item.role is Role.ASSISTANT and "tool_calls" not in messages[-1]:
        messages[-1]["content"] = text
    else:
        messages.append({"role": _role(item), "content": text})
    if item.name is not None:
        messages[-1]["name"] = item.name


def _role(item: Message) -> str:
    return str(item.role) if item.template_role is None else item.template_role


def _add_reasoning(messages: list[TemplateMessage], item: Reasoning) -> None:
    last = messages[-1] if messages else {}
    text = item.text
    if last.get("reasoning") and not last["content"] and "tool_calls" not in last:
        text = last["reasoning"] + "\n" + text
        messages.pop()
    messages.append({"role": "assistant", "content": ""} | dict.fromkeys(REASONING_KEYS, text))


def _add_call(messages: list[TemplateMessage], item: FunctionCall) -> None:
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    function = {"name": item.name, "arguments": item.arguments}
    call = {"id": item.call_id, "type": "function", "function": function}
    messages[-1].setdefault("tool_calls", []).append(call)


def _result(item: FunctionOutput, names: Mapping[str, str], text: str) -> TemplateMessage:
    message = {"role": "tool", "tool_call_id": item.call_id, "content": text}
    name = item.name or names.get(item.call_id)
    return message | {"name": name} if name else message


def arrange(
    messages: list[TemplateMessage], template: TemplateCapabilities, marks: Marks = NO_MARKS
) -> list[TemplateMessage]:
    """Roles and order as the template supports them."""
    if marks.media and template.media and not template.media_in_results:
        messages = move_media_of_results(messages, marks)
    messages = _place_system(messages, template)
    if template.alternating_roles:
        messages = _merge_neighbours(messages)
    if not template.parallel_calls:
        messages = _split_parallel_calls(messages)
    if template.user_first:
        messages = _insert_user_first(messages)
    if not template.text_with_calls:
        messages = [part for message in messages for part in _text_before_calls(message)]
    if template.answer_after_results:
        messages = _insert_answers(messages)
    return messages


def move_media_of_results(messages: list[TemplateMessage], marks: Marks) -> list[TemplateMessage]:
    """Move the media of results to a message of the user after them."""
    moved: list[TemplateMessage] = []
    media: list[str] = []
    for message in messages:
        if media and message["role"] != "tool":
            moved.append({"role": "user", "content": "\n".join(media)})
            media = []
        if message["role"] == "tool" and (media_marks := marks.find_all(message["content"])):
            media += media_marks
            message = {**message, "content": marks.without(message["content"])}  # noqa: PLW2901
        moved.append(message)
    return [*moved, {"role": "user", "content": "\n".join(media)}] if media else moved


def _place_system(messages: list[TemplateMessage], template: TemplateCapabilities) -> list[TemplateMessage]:
    """Move system and developer messages to where the template renders them."""
    if not template.developer:
        messages = [
            {**message, "role": "system"} if message["role"] == "developer" else message
            for message in messages
        ]
    if not (template.system and template.later_system):
        messages = _merge_system(messages)
    if not template.system and messages and messages[0]["role"] == "system":
        return _merge_into_user(messages[0]["content"], messages[1:])
    return messages


def _merge_system(messages: list[TemplateMessage]) -> list[TemplateMessage]:
    """The system's messages at the beginning are joined; later ones become the user's, and keep their place.

    Moved to the front, each new one would change the beginning of the prompt, which engines cache.
    """
    first = [*takewhile(_is_system, messages)]
    rest = [
        {**message, "role": "user"} if _is_system(message) else message for message in messages[len(first) :]
    ]
    merged = {"role": "system", "content": _paragraphs(*(message["content"] for message in first))}
    return [merged, *rest] if first else rest


def _is_system(message: TemplateMessage) -> bool:
    return bool(message["role"] == "system")


def _merge_into_user(text: str, messages: list[TemplateMessage]) -> list[TemplateMessage]:
    """Put the system's text before the text of the first user message."""
    at = next((n for n, message in enumerate(messages) if message["role"] == "user"), None)
    if at is None:
        return [{"role": "user", "content": text}, *messages]
    first = messages[at]
    return [*messages[:at], {**first, "content": _paragraphs(text, first["content"])}, *messages[at + 1 :]]


def add_to_system(messages: list[TemplateMessage], text: str) -> list[TemplateMessage]:
    """Append `text` to the first system message."""
    if messages and messages[0]["role"] in ("system", "developer"):
        first = messages[0]
        return [{**first, "content": _paragraphs(first["content"], text)}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _paragraphs(*texts: str) -> str:
    return PARAGRAPH.join(text for text in texts if text)


def _split_parallel_calls(messages: list[TemplateMessage]) -> list[TemplateMessage]:
    """Several calls in one message become call, result, call, result."""
    spread: list[TemplateMessage] = []
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        if len(message.get("tool_calls", ())) < 2:
            spread.append(message)
            continue
        results = []
        while at < len(messages) and messages[at]["role"] == "tool":
            results.append(messages[at])
            at += 1
        spread += _spread_calls(message, results)
    return spread


def _spread_calls(message: TemplateMessage, results: list[TemplateMessage]) -> list[TemplateMessage]:
    spread: list[TemplateMessage] = []
    for call in message["tool_calls"]:
        first = message if not spread else {"role": "assistant", "content": ""}
        spread.append({**first, "tool_calls": [call]})
        spread += [result for result in results if result["tool_call_id"] == call["id"]]
    called = {call["id"] for call in message["tool_calls"]}
    return spread + [result for result in results if result["tool_call_id"] not in called]


def _merge_neighbours(messages: list[TemplateMessage]) -> list[TemplateMessage]:
    merged: list[TemplateMessage] = []
    for message in messages:
        if merged and message["role"] == merged[-1]["role"] and message["role"] in ("user", "assistant"):
            merged[-1] = _merge(merged[-1], message)
        else:
            merged.append(message)
    return merged


def _merge(first: TemplateMessage, second: TemplateMessage) -> TemplateMessage:
    merged = {**first, **second, "content": _paragraphs(first["content"], second["content"])}
    for key in REASONING_KEYS:
        if key in merged:
            merged[key] = _paragraphs(first.get(key, ""), second.get(key, ""))
    calls = [*first.get("tool_calls", ()), *second.get("tool_calls", ())]
    return merged | {"tool_calls": calls} if calls else merged


def _insert_user_first(messages: list[TemplateMessage]) -> list[TemplateMessage]:
    leading = ("system", "developer")
    at = next((n for n, message in enumerate(messages) if message["role"] not in leading), len(messages))
    if at < len(messages) and messages[at]["role"] == "user":
        return messages
    return [*messages[:at], {"role": "user", "content": ""}, *messages[at:]]


def _insert_answers(messages: list[TemplateMessage]) -> list[TemplateMessage]:
    """Insert an empty message of the other role between two of one role, ignoring calls and results.

    Such templates require user messages and answers to alternate, and do not count calls and results.
    """
    closed: list[TemplateMessage] = []
    previous = None
    for message in messages:
        role = message["role"]
        if role in ("user", "assistant") and "tool_calls" not in message:
            if role == previous:
                closed.append({"role": "assistant" if role == "user" else "user", "content": ""})
            previous = role
        closed.append(message)
    return closed


def _text_before_calls(message: TemplateMessage) -> list[TemplateMessage]:
    if not message["content"] or "tool_calls" not in message:
        return [message]
    text = {key: value for key, value in message.items() if key != "tool_calls"}
    return [text, {"role": "assistant", "content": "", "tool_calls": message["tool_calls"]}]


def format_message(
    message: TemplateMessage,
    template: TemplateCapabilities,
    escaper: SpecialTokenEscaper = GENERIC_ESCAPER,
    marks: Marks = NO_MARKS,
) -> TemplateMessage:
    """One message in the form that the template reads. `escaper` escapes what is parsed from JSON."""
    formatted = dict(message)
    if "tool_calls" in formatted:
        calls = formatted["tool_calls"]
        formatted["tool_calls"] = [_format_call(call, template, escaper) for call in calls]
    if template.short_ids and "tool_call_id" in formatted:
        formatted["tool_call_id"] = short_id(formatted["tool_call_id"])
    if template.reasoning_required and formatted["role"] == "assistant":
        formatted = dict.fromkeys(REASONING_KEYS, "") | formatted
    formatted["content"] = _format_content(formatted, template, marks)
    return formatted


def _format_content(message: TemplateMessage, template: TemplateCapabilities, marks: Marks) -> Any:
    text, calls = message["content"], "tool_calls" in message
    if not text and calls and template.null_content:
        return None
    if not text and not calls and message["role"] == "assistant" and template.content_required:
        text = FILLER
    if marks.media and template.media and marks.numbers(text):
        return marks.parts(text, template.media)
    return [{"type": "text", "text": text}] if template.content_parts else text


def _format_call(
    call: Mapping[str, Any], template: TemplateCapabilities, escaper: SpecialTokenEscaper
) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if template.arguments is not ArgumentFormat.TEXT:
        arguments = parse_arguments(arguments, template.arguments, escaper)
    call_id = short_id(call["id"]) if template.short_ids else call["id"]
    return {**call, "id": call_id, "function": {**function, "arguments": arguments}}


def parse_arguments(
    arguments: str, argument_format: ArgumentFormat, escaper: SpecialTokenEscaper = GENERIC_ESCAPER
) -> Any:
    """The arguments as an object, as nearly all templates need them, escaped.

    The arguments of a truncated or malformed call do not parse. Then they stay the text
    that the model wrote, so that it sees its mistake; where the template would fail on
    text they become an empty object, because an old mistake must not fail the request.
    """
    try:
        whole = with_whole_characters_in(arguments)  # half a character cannot be tokenized
        parsed = escaper.escape_json(json.loads(whole) if whole.strip() else {})
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, dict):
        return parsed
    return {} if argument_format is ArgumentFormat.OBJECT else arguments


def short_id(call_id: str) -> str:
    """`call_id` if it has the short form, else one derived from its hash."""
    if len(call_id) == SHORT_ID_LENGTH and call_id.isascii() and call_id.isalnum():
        return call_id
    return sha256(call_id.encode()).hexdigest()[:SHORT_ID_LENGTH]
