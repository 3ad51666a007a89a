"""Items → the messages that chat templates read, in three steps.

`gather` makes messages of items, as OpenAI writes them. `arrange` puts them in
the order and under the roles that the template takes. `shape` gives each the
form that the template reads. The last two obey `Traits`; nothing that was said
is dropped. Seams (see there) are put in after the first step, before any text of
ours comes in.
"""

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

from antiphon.core.items import FunctionCall, FunctionOutput, Item, Message, Part, Reasoning, Role
from antiphon.render.seams import ANY_MODEL, Seams
from antiphon.render.traits import Arguments, Traits

TemplateMessage = dict[str, Any]

PARAGRAPH = "\n\n"
"""Stands between texts of several messages that are merged into one."""

FILLER = " "
"""Said where a template insists that something be said and nobody did."""

THOUGHT_NAMES = ("reasoning_content", "reasoning", "thinking")
"""What templates know thoughts by. Each reads one of these, so all are given."""

SHORT_ID_LENGTH = 9
"""Characters in the call ids of templates that insist on short ones."""


def text_of(parts: Iterable[Part]) -> str:
    """The parts of one message, each on a new line.

    OpenAI says nothing about it; vLLM joins them so, and that is what models
    have been served with.
    """
    return "\n".join(part.text for part in parts)


def gather(items: Iterable[Item]) -> list[TemplateMessage]:
    """Messages as OpenAI writes them, with the arguments of calls as text.

    What the assistant thought, said and called in one go is one message. A
    thought that nothing followed is a message that says nothing.
    """
    messages: list[TemplateMessage] = []
    names: dict[str, str] = {}
    for item in items:
        match item:
            case Message():
                _add_message(messages, item)
            case Reasoning():
                _add_reasoning(messages, item)
            case FunctionCall():
                names[item.call_id] = item.name
                _add_call(messages, item)
            case FunctionOutput():
                messages.append(_result(item, names))
    return messages


def _add_message(messages: list[TemplateMessage], item: Message) -> None:
    text = text_of(item.parts)
    only_thought = messages and messages[-1].get("reasoning") and not messages[-1]["content"]
    if item.role is Role.ASSISTANT and only_thought and "tool_calls" not in messages[-1]:
        messages[-1]["content"] = text
    else:
        messages.append({"role": item.role.value, "content": text})
    if item.name is not None:
        messages[-1]["name"] = item.name


def _add_reasoning(messages: list[TemplateMessage], item: Reasoning) -> None:
    last = messages[-1] if messages else {}
    thought = item.text
    if last.get("reasoning") and not last["content"] and "tool_calls" not in last:
        thought = last["reasoning"] + "\n" + thought
        messages.pop()
    messages.append({"role": "assistant", "content": ""} | dict.fromkeys(THOUGHT_NAMES, thought))


def _add_call(messages: list[TemplateMessage], item: FunctionCall) -> None:
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    function = {"name": item.name, "arguments": item.arguments}
    call = {"id": item.call_id, "type": "function", "function": function}
    messages[-1].setdefault("tool_calls", []).append(call)


def _result(item: FunctionOutput, names: Mapping[str, str]) -> TemplateMessage:
    message = {"role": "tool", "tool_call_id": item.call_id, "content": text_of(item.parts)}
    name = item.name or names.get(item.call_id)
    return message | {"name": name} if name else message


def arrange(messages: list[TemplateMessage], traits: Traits) -> list[TemplateMessage]:
    """Roles and order as the template takes them."""
    messages = _seat_system(messages, traits)
    if traits.merged:
        messages = _merge_neighbours(messages)
    if not traits.parallel:
        messages = _one_call_each(messages)
    if traits.user_first:
        messages = _open_with_user(messages)
    if not traits.text_with_calls:
        messages = [part for message in messages for part in _text_before_calls(message)]
    if traits.closed_results:
        messages = _close_results(messages)
    return messages


def _seat_system(messages: list[TemplateMessage], traits: Traits) -> list[TemplateMessage]:
    """A system or developer message never fails because of the template: it moves to where it is read."""
    if not traits.developer:
        messages = [_as_system(message) for message in messages]
    if not (traits.system and traits.later_system):
        messages = _merge_system(messages)
    if not traits.system and messages and messages[0]["role"] == "system":
        return _into_user(messages[0]["content"], messages[1:])
    return messages


def _as_system(message: TemplateMessage) -> TemplateMessage:
    return {**message, "role": "system"} if message["role"] == "developer" else message


def _merge_system(messages: list[TemplateMessage]) -> list[TemplateMessage]:
    texts = [message["content"] for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": _paragraphs(*texts)}, *others] if texts else messages


def _into_user(text: str, messages: list[TemplateMessage]) -> list[TemplateMessage]:
    """Put the system's text in front of what the user says first."""
    at = next((n for n, message in enumerate(messages) if message["role"] == "user"), None)
    if at is None:
        return [{"role": "user", "content": text}, *messages]
    first = messages[at]
    return [*messages[:at], {**first, "content": _paragraphs(text, first["content"])}, *messages[at + 1 :]]


def add_to_system(messages: list[TemplateMessage], text: str) -> list[TemplateMessage]:
    """Let the first system message say `text` too, at its end."""
    if messages and messages[0]["role"] in ("system", "developer"):
        first = messages[0]
        return [{**first, "content": _paragraphs(first["content"], text)}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _paragraphs(*texts: str) -> str:
    return PARAGRAPH.join(text for text in texts if text)


def _one_call_each(messages: list[TemplateMessage]) -> list[TemplateMessage]:
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
        said = message if not spread else {"role": "assistant", "content": ""}
        spread.append({**said, "tool_calls": [call]})
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
    both = {**first, **second, "content": _paragraphs(first["content"], second["content"])}
    for key in THOUGHT_NAMES:
        if key in both:
            both[key] = _paragraphs(first.get(key, ""), second.get(key, ""))
    calls = [*first.get("tool_calls", ()), *second.get("tool_calls", ())]
    return both | {"tool_calls": calls} if calls else both


def _open_with_user(messages: list[TemplateMessage]) -> list[TemplateMessage]:
    leading = ("system", "developer")
    at = next((n for n, message in enumerate(messages) if message["role"] not in leading), len(messages))
    if at < len(messages) and messages[at]["role"] == "user":
        return messages
    return [*messages[:at], {"role": "user", "content": ""}, *messages[at:]]


def _close_results(messages: list[TemplateMessage]) -> list[TemplateMessage]:
    """Let the other side say nothing wherever one side speaks twice with only calls between.

    Such templates count user messages and answers, and not calls and results.
    """
    closed: list[TemplateMessage] = []
    spoke = None
    for message in messages:
        role = message["role"]
        if role in ("user", "assistant") and "tool_calls" not in message:
            if role == spoke:
                closed.append({"role": "assistant" if role == "user" else "user", "content": ""})
            spoke = role
        closed.append(message)
    return closed


def _text_before_calls(message: TemplateMessage) -> list[TemplateMessage]:
    if not message["content"] or "tool_calls" not in message:
        return [message]
    said = {key: value for key, value in message.items() if key != "tool_calls"}
    return [said, {"role": "assistant", "content": "", "tool_calls": message["tool_calls"]}]


def shape(message: TemplateMessage, traits: Traits, seams: Seams = ANY_MODEL) -> TemplateMessage:
    """One message in the form that the template reads. `seams` go into what is read out of JSON."""
    shaped = dict(message)
    if "tool_calls" in shaped:
        shaped["tool_calls"] = [_shape_call(call, traits, seams) for call in shaped["tool_calls"]]
    if traits.short_ids and "tool_call_id" in shaped:
        shaped["tool_call_id"] = short_id(shaped["tool_call_id"])
    if traits.thoughtful and shaped["role"] == "assistant":
        shaped = dict.fromkeys(THOUGHT_NAMES, "") | shaped
    return shaped | {"content": _shape_content(shaped, traits)}


def _shape_content(message: TemplateMessage, traits: Traits) -> Any:
    text = message["content"]
    if not text and "tool_calls" in message and traits.null_content:
        return None
    if not text and message["role"] == "assistant" and "tool_calls" not in message and traits.filled:
        text = FILLER
    return [{"type": "text", "text": text}] if traits.parts else text


def _shape_call(call: Mapping[str, Any], traits: Traits, seams: Seams) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if traits.arguments is not Arguments.TEXT:
        arguments = object_of(arguments, traits.arguments, seams)
    call_id = short_id(call["id"]) if traits.short_ids else call["id"]
    return {**call, "id": call_id, "function": {**function, "arguments": arguments}}


def object_of(arguments: str, wanted: Arguments, seams: Seams = ANY_MODEL) -> Any:
    """The arguments as an object, as nearly all templates want them, with `seams`.

    A call that was cut or that the model got wrong has none. Then the raw text
    is what the model wrote, and shows it what it did; only where the template
    would fail on text is the object empty, because a wrong call in the past
    must not end the conversation.
    """
    try:
        # Half a character, `"\ud800"`, is no text that could be tokenized: it is found here, too.
        parsed = seams.value(json.loads(arguments) if arguments.strip() else {})
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, dict):
        return parsed
    return {} if wanted is Arguments.OBJECT else arguments


def short_id(call_id: str) -> str:
    """`call_id` if it is short enough, else one made from it that is always the same."""
    if len(call_id) == SHORT_ID_LENGTH and call_id.isascii() and call_id.isalnum():
        return call_id
    return sha256(call_id.encode()).hexdigest()[:SHORT_ID_LENGTH]
