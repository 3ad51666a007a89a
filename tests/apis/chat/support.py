"""Answers made of events, streamed and whole, and what a client makes of a stream."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from antiphon.apis.chat.answer import ChatCompletionBuilder
from antiphon.apis.chat.stream import ChatCompletionStream
from antiphon.apis.envelope import DEFAULT_PRESENTATION, Envelope, PresentationOptions, RenderedPrompt
from antiphon.core.accumulator import Accumulator
from antiphon.core.chunks import Candidate, Chunk, Finish, FinishReason, PromptToken, Token
from antiphon.core.events import Event, Finished
from antiphon.decode.decoder import Decoder
from antiphon.decode.table import Table
from antiphon.dialects.hermes import HERMES

PROMPT = RenderedPrompt(
    "Hi", (5, 6), (PromptToken(5, "H"), PromptToken(6, "i", -0.5, (Candidate(7, "o", -0.25),), rank=3))
)
ENVELOPE = Envelope("chatcmpl-1", "org/m\"odel'é", 1_700_000_000, (PROMPT,))
HERMES_TABLE = Table(HERMES.grammar)


def token(index: int, text: str) -> Token:
    """A token with log probabilities; one without text began a character."""
    top = (Candidate(index, text, -0.5), Candidate(index + 1, "é", -1.5, b"\xc3"))
    return Token(index, text, -0.5, top, None if text else b"\xf0\x9f")


def said(
    pieces: Iterable[str],
    reason: FinishReason = FinishReason.STOP,
    table: Table = HERMES_TABLE,
    **options: Any,
) -> list[Event]:
    """The events of an answer whose tokens have these texts."""
    options.setdefault("ids", lambda name, index: f"call_{index}")
    decoder = Decoder(table, **options)
    events: list[Event] = []
    for index, piece in enumerate(pieces):
        events += decoder.feed(Chunk(piece, (token(index, piece),)))
    return with_error(events + decoder.finish(Finish(reason)))


def with_error(events: list[Event]) -> list[Event]:
    """The events, whose end says what failed if something did, as it does where other choices stand."""
    *before, end = events
    if isinstance(end, Finished) and end.reason is FinishReason.ERROR:
        return [*before, replace(end, error="The model failed to answer. Try again.")]
    return events


def streamed(
    events: Sequence[Event],
    presentation: PresentationOptions = DEFAULT_PRESENTATION,
    *,
    batch: int = 1,
    envelope: Envelope = ENVELOPE,
) -> list[bytes]:
    """The payloads of the stream of one choice, without the end mark."""
    stream, numbered = ChatCompletionStream(envelope, 1, presentation), Accumulator().extend(events)
    sent = stream.begin()
    for start in range(0, len(events), batch):
        sent += stream.push(0, numbered[start : start + batch])
    *sent, end = payloads_of(sent + stream.finish())
    assert end == b"[DONE]"
    return sent


def payloads_of(events: Iterable[bytes]) -> list[bytes]:
    """The payloads of server-sent events without types."""
    payloads = []
    for event in events:
        assert event.startswith(b"data: ")
        assert event.find(b"\n") == len(event) - 2
        payloads.append(event[len(b"data: ") : -2])
    return payloads


def answered(
    choices: Sequence[Sequence[Event]],
    presentation: PresentationOptions = DEFAULT_PRESENTATION,
    envelope: Envelope = ENVELOPE,
) -> dict[str, Any]:
    """The body of the full answer."""
    builder = ChatCompletionBuilder(envelope, len(choices), presentation)
    builder.set_prompts(envelope.prompts)
    assert builder.begin() == []
    for index, events in enumerate(choices):
        assert builder.push(index, Accumulator().extend(events)) == []
    assert builder.finish() == []
    body: dict[str, Any] = json.loads(builder.body())
    return body


def accumulated(
    payloads: Iterable[bytes], presentation: PresentationOptions = DEFAULT_PRESENTATION
) -> dict[int, dict[str, Any]]:
    """The choices of a full answer, made of the chunks of a stream. Checks what a stream may not do."""
    chunks = [json.loads(payload) for payload in payloads]
    for chunk in chunks:
        assert (chunk["id"], chunk["object"]) == (ENVELOPE.id, "chat.completion.chunk")
        assert (chunk["model"], chunk["created"]) == (ENVELOPE.model, ENVELOPE.created)
    return collected(chunks, presentation)


def collected(
    chunks: Iterable[dict[str, Any]], presentation: PresentationOptions = DEFAULT_PRESENTATION
) -> dict[int, dict[str, Any]]:
    """The choices that the chunks of any stream add up to."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            _add_part(choices, part, presentation)
    for choice in choices.values():  # that only calls were made is known at the end: a stream begins with ""
        message = choice["message"]
        if message["content"] == "" and ("tool_calls" in message or "function_call" in message):
            message["content"] = None
    return choices


def _add_part(
    choices: dict[int, dict[str, Any]], part: dict[str, Any], presentation: PresentationOptions
) -> None:
    delta, index = part["delta"], part["index"]
    if index not in choices:
        assert (delta["role"], delta["content"]) == ("assistant", "")
        choices[index] = {
            "index": index,
            "message": {"annotations": []},
            "finish_reason": None,
            "logprobs": None,
        }
        if presentation.logprobs is not None:
            choices[index]["logprobs"] = {"content": [], "refusal": None}
        if presentation.token_ids:
            choices[index]["token_ids"] = []
    else:
        assert "role" not in delta
    choice = choices[index]
    assert choice["finish_reason"] is None, "a chunk after the last"
    if part["finish_reason"] is not None:
        assert delta == {}
        choice |= {key: part[key] for key in ("finish_reason", "stop_reason")}
        choice |= {key: part[key] for key in ("error", "unmet", "generations", "notes") if key in part}
    if part["logprobs"] is not None:
        assert presentation.token_ids or delta.keys() == {"content"}
        choice["logprobs"]["content"] += part["logprobs"]["content"]
    if presentation.token_ids:
        choice["token_ids"] += part["token_ids"]
    _add_delta(choice["message"], delta)


def _add_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    """Add a delta to a message, as clients do."""
    for key, value in delta.items():
        if key == "tool_calls":
            for fragment in value:
                _add_call(message.setdefault("tool_calls", []), fragment)
        elif key == "function_call":
            called = message.setdefault(key, {"arguments": ""})
            assert ("name" in value) == ("name" not in called), "the name comes once, and first"
            called |= value | {"arguments": called["arguments"] + value["arguments"]}
        else:
            old = message.get(key)
            message[key] = value if old is None else old if value is None else old + value


def _add_call(calls: list[dict[str, Any]], fragment: dict[str, Any]) -> None:
    if fragment["index"] == len(calls):
        kind = fragment["type"]
        assert fragment.keys() == {"index", "id", "type", kind}
        assert fragment[kind].keys() == {"name", "arguments" if kind == "function" else "input"}
        calls.append({"id": fragment["id"], "type": kind, kind: dict(fragment[kind])})
    else:
        kind = calls[-1]["type"]
        assert fragment.keys() == {"index", kind}
        assert fragment["index"] == len(calls) - 1
        [(key, text)] = fragment[kind].items()
        calls[-1][kind][key] += text
