"""What the tests of harmony over HTTP share: an engine that writes what it is told to, and four ways to ask it.

A `Wish` is a request in no API's words; each way writes it in those of its own,
and reads the answer as an `Answer`, so that all four can be compared.
"""

import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import httpx2 as httpx
import pytest
from msgspec import Struct

from antiphon.core.constraint import Gbnf
from antiphon.engines.engine import GenerationRequest, Receiver, Work
from antiphon.engines.script import Line, answer_of
from antiphon.engines.scripted import ScriptedEngine
from tests.constrain.language import language_of
from tests.openai_schema import validate, validate_event
from tests.pushing import Pushing
from tests.response_invariants import check, read_sse

START = "<|start|>assistant"
ANALYSIS, PREAMBLE, FINAL = (f"<|channel|>{name}<|message|>" for name in ("analysis", "commentary", "final"))
CALL = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
ROME = '{"city": "Rome"}'
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = ({"name": "get_weather", "parameters": WEATHER}, {"name": "now", "parameters": NOTHING})


def written(*messages: str, end: str = "<|return|>") -> str:
    """Messages as the model writes them, after the prompt's `<|start|>assistant`."""
    return f"<|end|>{START}".join(messages) + end


class Said(ScriptedEngine):
    """Generates the given text."""

    def __init__(self, **more: Any) -> None:
        super().__init__([], **more)
        self.lines: list[Line] = []

    def says(self, *outputs: str, **more: Any) -> None:
        """What the next generations write; the last of them is repeated."""
        self.lines = [Line(output, **more) for output in outputs]

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        """Play the next line."""
        self.seen.append(request)
        line = self.lines.pop(0) if len(self.lines) > 1 else self.lines[0]
        return Pushing(([chunk] for chunk in answer_of(line).play(request)), receiver)

    @property
    def prompt(self) -> str:
        """The last prompt."""
        return self.seen[-1].prompt.text

    def lets(self, answer: str) -> bool:
        """Whether an answer fits what the last generation was held to."""
        constraint = self.seen[-1].constraint
        assert isinstance(constraint, Gbnf)
        assert not constraint.triggers
        return answer in language_of(constraint.text)


class Allowed(Struct, frozen=True):
    """A tool choice that lets the model use some of its tools."""

    mode: str
    name: str


class Named(Struct, frozen=True):
    """A tool choice that makes the model call this function."""

    name: str


class Wish(Struct, frozen=True):
    """A request. `more` is sent unchanged."""

    content: str = "q"
    tools: tuple[Any, ...] = TOOLS
    choice: str | Named | Allowed | None = None
    schema: Any = None
    limit: int | None = None
    effort: str | None = None
    more: dict[str, Any] = {}


PLAIN = Wish()


class Answer(Struct):
    """What a client saw of one answer."""

    thoughts: str = ""
    text: str = ""
    calls: list[tuple[str, str]] = []
    reason: str = "stop"
    unmet: tuple[str, ...] = ()


def chat_body(wish: Wish) -> dict[str, Any]:
    """The wish as Chat Completions has it."""
    choice: Any = wish.choice
    match wish.choice:
        case Named(name):
            choice = {"type": "function", "function": {"name": name}}
        case Allowed(mode, name):
            tools = [{"type": "function", "function": {"name": name}}]
            choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
    named = {"name": "answer", "schema": wish.schema, "strict": True}
    return {
        "model": "scripted",
        "messages": [{"role": "user", "content": wish.content}],
        "tools": [{"type": "function", "function": tool} for tool in wish.tools] or None,
        "tool_choice": choice,
        "response_format": wish.schema and {"type": "json_schema", "json_schema": named},
        "max_tokens": wish.limit,
        "reasoning_effort": wish.effort,
        **wish.more,
    }


def response_body(wish: Wish) -> dict[str, Any]:
    """The wish as the Responses API has it."""
    choice: Any = wish.choice
    match wish.choice:
        case Named(name):
            choice = {"type": "function", "name": name}
        case Allowed(mode, name):
            choice = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": name}]}
    form = {"type": "json_schema", "name": "answer", "schema": wish.schema, "strict": True}
    return {
        "model": "scripted",
        "input": wish.content,
        "tools": [{"type": "function", **tool} for tool in wish.tools],
        "tool_choice": choice,
        "text": wish.schema and {"format": form},
        "max_output_tokens": wish.limit,
        "reasoning": wish.effort and {"effort": wish.effort},
        **wish.more,
    }


async def post(client: httpx.AsyncClient, path: str, body: Any, status: int = 200) -> Any:
    response = await client.post(path, json=body)
    assert response.status_code == status, response.text
    return response.json()


async def chat(client: httpx.AsyncClient, wish: Wish) -> Any:
    """The whole body."""
    body = await post(client, "/chat/completions", chat_body(wish))
    validate("CreateChatCompletionResponse", body)
    return body


async def chat_chunks(client: httpx.AsyncClient, wish: Wish) -> list[Any]:
    """The chunks of a stream."""
    response = await client.post("/chat/completions", json={**chat_body(wish), "stream": True})
    assert response.status_code == 200, response.text
    *payloads, last = response.text.strip().split("\n\n")
    assert last == "data: [DONE]"
    chunks = [json.loads(payload.removeprefix("data: ")) for payload in payloads]
    for chunk in chunks:
        validate("CreateChatCompletionStreamResponse", chunk)
    return chunks


async def respond(client: httpx.AsyncClient, wish: Wish) -> Any:
    """The whole response."""
    body = await post(client, "/responses", response_body(wish))
    validate("ResponseResource", body, "openresponses")
    return body


async def response_events(client: httpx.AsyncClient, wish: Wish) -> list[Any]:
    """The events of a stream, checked."""
    response = await client.post("/responses", json={**response_body(wish), "stream": True})
    assert response.status_code == 200, response.text
    payloads = read_sse(response.content)
    check(payloads)
    for payload in payloads:
        if b"reasoning_text" not in payload:  # OpenAI's name, which Open Responses does not know
            validate_event(payload)
    return [json.loads(payload) for payload in payloads]


def of_choice(choice: Any) -> Answer:
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return Answer(
        message.get("reasoning_content", ""),
        message["content"] or "",
        [(call["name"], call["arguments"]) for call in calls],
        choice["finish_reason"],
        tuple(choice.get("unmet", ())),
    )


def of_chunks(chunks: Iterable[Any]) -> Answer:
    answer, names, arguments = Answer(reason=""), [], []
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        delta = choice["delta"]
        answer.thoughts += delta.get("reasoning_content", "")
        answer.text += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                names.append(call["function"]["name"])
                arguments.append("")
            arguments[call["index"]] += call["function"].get("arguments", "")
        answer.reason += choice["finish_reason"] or ""
        answer.unmet += tuple(choice.get("unmet", ()))
    answer.calls = list(zip(names, arguments, strict=True))
    return answer


def of_response(response: Any) -> Answer:
    items: dict[str, list[Any]] = {"reasoning": [], "message": [], "function_call": []}
    for item in response["output"]:
        items[item["type"]].append(item)
    reasons = {"completed": "tool_calls" if items["function_call"] else "stop", "incomplete": "length"}
    return Answer(
        _paragraphs(items["reasoning"]),
        _paragraphs(items["message"]),
        [(item["name"], item["arguments"]) for item in items["function_call"]],
        reasons[response["status"]],
        tuple(response.get("unmet", ())),
    )


def _paragraphs(items: Iterable[Any]) -> str:
    """The texts of items, as Chat Completions has them in one."""
    return "\n\n".join("".join(part["text"] for part in item["content"]) for item in items)


async def by_chat(client: httpx.AsyncClient, wish: Wish = PLAIN) -> Answer:
    return of_choice((await chat(client, wish))["choices"][0])


async def by_chat_streamed(client: httpx.AsyncClient, wish: Wish = PLAIN) -> Answer:
    return of_chunks(await chat_chunks(client, wish))


async def by_responses(client: httpx.AsyncClient, wish: Wish = PLAIN) -> Answer:
    return of_response(await respond(client, wish))


async def by_responses_streamed(client: httpx.AsyncClient, wish: Wish = PLAIN) -> Answer:
    return of_response((await response_events(client, wish))[-1]["response"])


Way = Callable[..., Awaitable[Answer]]
WAYS: list[Way] = [by_chat, by_chat_streamed, by_responses, by_responses_streamed]
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
