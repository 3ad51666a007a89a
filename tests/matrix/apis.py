"""The APIs of the matrix: how a case is asked for in each, and what its answers say, in common words.

An API joins with an entry of `APIS`. Its `body` is None for a case that cannot be asked for there.
"""

import json
from collections.abc import Mapping
from typing import Protocol

from jiter import from_json
from msgspec import Struct

from antiphon.apis.envelope import PresentationOptions
from tests.apis.chat.support import collected
from tests.apis.messages.support import ANTHROPIC, check_stream
from tests.apis.ollama.support import folded, read, timeless
from tests.contracts.dialect import TOOLS
from tests.http.api import check_body
from tests.http.api import check_stream as check_response
from tests.http.chat_api import events
from tests.matrix.case import (
    FORMAT_SCHEMA,
    GRAMMAR,
    INPUT,
    REGEX,
    RUN,
    TAG,
    Case,
    Json,
)
from tests.matrix.history import CALLS, Turn, history_of
from tests.openai_schema import validate
from tests.response_invariants import read_events, read_sse

MODEL = "{dialect} that {engine}"


class Call(Struct, frozen=True):
    """A call; `whole` is None where the API does not tell whether it is."""

    name: str
    arguments: str
    whole: bool | None = None


class Answer(Struct, frozen=True):
    """One choice of an answer. `finish` is in the words of Chat Completions."""

    text: str
    reasoning: str | None
    calls: tuple[Call, ...]
    finish: str
    unmet: tuple[str, ...] = ()
    closed: bool = False


class Api(Protocol):
    """One API."""

    name: str
    path: str
    refuses: frozenset[str]
    """The histories that it refuses, as the API that it is made after does."""

    def body(self, case: Case) -> Json | None:
        """The request for a case; None if this API cannot ask for it."""

    def full(self, body: Json) -> Json:
        """A full answer without what is drawn for each, such as ids."""

    def folded(self, content: bytes) -> Json:
        """The same, as a client adds it up from a stream. Raises AssertionError for a wrong order of events."""

    def answers(self, found: Json, case: Case) -> list[Answer]:
        """What it says: each choice."""

    def refused(self, body: Json) -> str | None:
        """The parameter that a refusal names."""


def _schema(name: str, case: Case) -> Json:
    """The schema of a function: what is `strict` has no other properties."""
    return {**TOOLS[name], **({"additionalProperties": False} if case.strict else {})}


def _given(**fields: Json) -> dict[str, Json]:
    return {name: value for name, value in fields.items() if value is not None}


def _sampling(case: Case) -> dict[str, Json]:
    """The fields that are the same in every API."""
    asked = {
        "regex": {"regex": REGEX},
        "grammar": {"grammar": GRAMMAR},
        "structural tag": {"structural_tag": TAG},
    }
    model = MODEL.format(dialect=case.dialect, engine=case.engine)
    return _given(model=model, structured_outputs=asked.get(case.format or ""))


def _moderation(case: Case) -> Json:
    if case.moderated is None:
        return None
    mode = {"mode": case.moderated}
    return {"model": "omni-moderation-latest", "policy": {"input": mode, "output": mode}}


def _is_closed(found: Json) -> bool:
    """A note says that the answer was closed."""
    return any(note["param"].startswith("max_") for note in found["notes"] or ())


class _Chat:
    name, path = "chat", "/v1/chat/completions"
    refuses: frozenset[str] = frozenset()

    def body(self, case: Case) -> Json:
        schema = {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": FORMAT_SCHEMA, "strict": True},
        }
        formats = {"schema": schema, "object": {"type": "json_object"}}
        return _sampling(case) | _given(
            messages=[message for turn in history_of(case) for message in self._messages(turn)],
            tools=self._tools(case) if case.offers else None,
            tool_choice=self._choice(case),
            parallel_tool_calls=case.parallel if case.offers else None,
            response_format=formats.get(case.format or ""),
            chat_template_kwargs=None if case.reasoning is None else {"enable_thinking": case.reasoning},
            reasoning_effort=case.effort,
            n=case.n,
            logprobs=None if case.logprobs is None else True,
            top_logprobs=case.logprobs,
            moderation=_moderation(case),
            stop=case.stop and [case.stop],
            max_tokens=case.limit,
        )

    def _tools(self, case: Case) -> list[Json]:
        functions = [_given(name=name, parameters=_schema(name, case), strict=case.strict) for name in TOOLS]
        regex = {"type": "grammar", "grammar": {"syntax": "regex", "definition": INPUT}}
        form = regex if case.custom == "regex" else {"type": "text"}
        custom = [{"type": "custom", "custom": {"name": RUN, "format": form}}] if case.custom else []
        return [{"type": "function", "function": each} for each in functions] + custom

    def _choice(self, case: Case) -> Json:
        def reference(name: str) -> Json:
            return {"type": "function", "function": {"name": name}}

        if case.choice.startswith("allowed"):
            tools = [*map(reference, sorted(case.names or ()))]
            mode = case.choice.removeprefix("allowed ")
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
        if case.choice == "named":
            return reference(*(case.names or ()))
        return None if case.choice in ("absent", "no tools") else case.choice

    def _messages(self, turn: Turn) -> list[Json]:
        calls = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for id_, name, arguments in turn.calls
        ]
        asked = [{"role": "assistant", "content": None, "tool_calls": calls}] if calls else []
        results = [{"role": "tool", "tool_call_id": id_, "content": text} for id_, text in turn.results]
        return asked + results + ([{"role": "user", "content": turn.text}] if turn.text else [])

    def full(self, body: Json) -> Json:
        validate("CreateChatCompletionResponse", body)
        return [self._nameless(choice) for choice in body["choices"]]

    def folded(self, content: bytes) -> Json:
        *chunks, end = events(content.decode())
        for chunk in chunks:
            validate("CreateChatCompletionStreamResponse", chunk)
        assert end == "[DONE]", end
        asked = any(part["logprobs"] is not None for chunk in chunks for part in chunk["choices"])
        choices = collected(chunks, PresentationOptions(logprobs=0 if asked else None))
        return [self._nameless(choices[index]) for index in range(len(choices))]

    @staticmethod
    def _nameless(choice: Json) -> Json:
        calls = [{**call, "id": "?"} for call in choice["message"].get("tool_calls", ())]
        message = choice["message"] | ({"tool_calls": calls} if calls else {})
        # A stream of an answer without text has no log probabilities, a full answer an empty list.
        logprobs = choice["logprobs"] if choice["logprobs"] and choice["logprobs"]["content"] else None
        return {**choice, "message": message, "logprobs": logprobs}

    def answers(self, found: Json, case: Case) -> list[Answer]:
        return [
            Answer(
                choice["message"].get("content") or "",
                choice["message"].get("reasoning_content"),
                tuple(map(self._call, choice["message"].get("tool_calls", ()))),
                choice["finish_reason"],
                tuple(choice.get("unmet", ())),
                "notes" in choice,
            )
            for choice in found
        ]

    @staticmethod
    def _call(call: Json) -> Call:
        if call["type"] == "custom":
            return Call(call["custom"]["name"], call["custom"]["input"])
        return Call(call["function"]["name"], call["function"]["arguments"])

    def refused(self, body: Json) -> str | None:
        return body["error"]["param"]


class _Responses:
    name, path = "responses", "/v1/responses"
    refuses = frozenset({"results without calls"})

    def body(self, case: Case) -> Json:
        schema = {"type": "json_schema", "name": "n", "schema": FORMAT_SCHEMA, "strict": True}
        form = {"schema": schema, "object": {"type": "json_object"}}.get(case.format or "")
        return _sampling(case) | _given(
            input=[item for turn in history_of(case) for item in self._items(turn)],
            store=False,
            tools=self._tools(case) if case.offers else None,
            tool_choice=self._choice(case),
            parallel_tool_calls=case.parallel if case.offers else None,
            text=form and {"format": form},
            chat_template_kwargs=None if case.reasoning is None else {"enable_thinking": case.reasoning},
            reasoning=case.effort and {"effort": case.effort},
            include=None if case.logprobs is None else ["message.output_text.logprobs"],
            top_logprobs=case.logprobs,
            moderation=_moderation(case),
            stop=case.stop and [case.stop],
            max_output_tokens=case.limit,
        )

    def _tools(self, case: Case) -> list[Json]:
        functions = [
            # Left out, it is strict here.
            {"type": "function", "name": name, "parameters": _schema(name, case), "strict": bool(case.strict)}
            for name in TOOLS
        ]
        regex = {"type": "grammar", "syntax": "regex", "definition": INPUT}
        form = regex if case.custom == "regex" else {"type": "text"}
        return functions + ([{"type": "custom", "name": RUN, "format": form}] if case.custom else [])

    def _choice(self, case: Case) -> Json:
        named = [{"type": "function", "name": name} for name in sorted(case.names or ())]
        if case.choice.startswith("allowed"):
            return {"type": "allowed_tools", "mode": case.choice.removeprefix("allowed "), "tools": named}
        if case.choice == "named":
            return named[0]
        return None if case.choice in ("absent", "no tools") else case.choice

    def _items(self, turn: Turn) -> list[Json]:
        calls = [
            {"type": "function_call", "call_id": id_, "name": name, "arguments": json.dumps(arguments)}
            for id_, name, arguments in turn.calls
        ]
        results = [
            {"type": "function_call_output", "call_id": id_, "output": text} for id_, text in turn.results
        ]
        said = [{"type": "message", "role": "user", "content": turn.text}] if turn.text else []
        return calls + results + said

    def full(self, body: Json) -> Json:
        return self._essence(check_body(body))

    def folded(self, content: bytes) -> Json:
        return self._essence(check_response(read_sse(content)))

    @staticmethod
    def _essence(body: Json) -> Json:
        output = [{**item, "id": "?", "call_id": "?"} for item in body["output"]]
        kept = ("status", "incomplete_details", "error", "unmet", "usage", "notes")
        return {**{name: body.get(name) for name in kept}, "output": output}

    def answers(self, found: Json, case: Case) -> list[Answer]:
        items = found["output"]
        said = [item["content"] for item in items if item["type"] == "message"]
        texts = ["".join(part["text"] for part in parts) for parts in said]
        thoughts = [
            p["text"] for item in items if item["type"] == "reasoning" for p in item.get("content") or ()
        ]
        calls = tuple(self._call(item) for item in items if item["type"].endswith("_call"))
        finish = "tool_calls" if calls else "stop"
        if found["status"] != "completed":
            why = {"max_output_tokens": "length"}
            finish = why.get((found["incomplete_details"] or {}).get("reason"), found["status"])
        reasoning = "".join(thoughts) or None
        unmet, closed = tuple(found["unmet"] or ()), _is_closed(found)
        return [Answer("\n\n".join(texts), reasoning, calls, finish, unmet, closed)]

    @staticmethod
    def _call(item: Json) -> Call:
        arguments = item["input"] if item["type"] == "custom_tool_call" else item["arguments"]
        return Call(item["name"], arguments, item["status"] == "completed")

    def refused(self, body: Json) -> str | None:
        return body["error"]["param"]


class _Messages:
    name, path = "messages", "/v1/messages"
    refuses = frozenset({"results without calls"})

    def body(self, case: Case) -> Json | None:
        if case.choice.startswith("allowed") or case.custom or case.effort == "none":
            return None
        form = {"type": "json_schema", "schema": FORMAT_SCHEMA} if case.format == "schema" else None
        body = _sampling(case) | _given(
            messages=[message for turn in history_of(case) for message in self._messages(turn)],
            max_tokens=case.limit or 10_000,
            tools=self._tools(case) if case.offers else None,
            tool_choice=self._choice(case),
            output_config=_given(format=form, effort=case.effort) or None,
            thinking={"type": "adaptive"} if case.reasoning else None,
            chat_template_kwargs={"enable_thinking": None} if case.reasoning is None else None,
            stop_sequences=case.stop and [case.stop],
        )
        if case.format == "object":
            body["structured_outputs"] = {"json_object": True}
        return body

    def _tools(self, case: Case) -> list[Json]:
        return [_given(name=name, input_schema=_schema(name, case), strict=case.strict) for name in TOOLS]

    def _choice(self, case: Case) -> Json:
        kind = {"required": "any", "named": "tool", "none": "none", "auto": "auto"}.get(case.choice)
        single = None if case.parallel is None or kind == "none" else not case.parallel
        if not case.offers or (kind is None and single is None):
            return None
        [name] = case.names if kind == "tool" and case.names else [None]
        return _given(type=kind or "auto", name=name, disable_parallel_tool_use=single)

    def _messages(self, turn: Turn) -> list[Json]:
        calls = [
            {"type": "tool_use", "id": id_, "name": name, "input": arguments}
            for id_, name, arguments in turn.calls
        ]
        said = [
            {"type": "tool_result", "tool_use_id": id_, "content": text} for id_, text in turn.results
        ] + ([{"type": "text", "text": turn.text}] if turn.text else [])
        asked = [{"role": "assistant", "content": calls}] if calls else []
        return asked + ([{"role": "user", "content": said}] if said else [])

    def full(self, body: Json) -> Json:
        validate("Message", body, ANTHROPIC)
        return self._essence(body)

    @staticmethod
    def _essence(body: Json) -> Json:
        drawn = ("id", "signature")
        blocks = [{k: v for k, v in block.items() if k not in drawn} for block in body["content"]]
        kept = ("stop_reason", "stop_sequence", "unmet", "usage", "notes")
        return {**{name: body.get(name) for name in kept}, "content": blocks}

    def folded(self, content: bytes) -> Json:
        body: dict[str, Json] = {}
        blocks: list[Json] = []
        for event in check_stream(read_events(content)):
            if event["type"] == "message_start":
                body |= event["message"]
            elif event["type"] == "content_block_start":
                blocks.append(
                    event["content_block"] | {"input": ""}
                    if "input" in event["content_block"]
                    else event["content_block"]
                )
            elif event["type"] == "content_block_delta":
                self._add(blocks[-1], event["delta"])
            elif event["type"] == "message_delta":
                notes = [*(body.get("notes") or ()), *(event["delta"].get("notes") or ())]
                body |= event["delta"] | {"usage": body["usage"] | event["usage"]}
                body |= {"notes": notes} if notes else {}
        for block in blocks:
            if "input" in block:
                # As Anthropic's SDK reads what was cut.
                block["input"] = from_json(block["input"].encode() or b"{}", partial_mode=True)
        return self._essence(body | {"content": blocks})

    @staticmethod
    def _add(block: Json, delta: Json) -> None:
        kind = delta["type"].removesuffix("_delta")
        if kind == "input_json":
            block["input"] += delta["partial_json"]
        elif kind != "signature":
            block[kind] += delta[kind]

    def answers(self, found: Json, case: Case) -> list[Answer]:
        blocks = found["content"]
        finishes = {
            "tool_use": "tool_calls",
            "max_tokens": "length",
            "end_turn": "stop",
            "stop_sequence": "stop",
        }
        calls = tuple(Call(b["name"], json.dumps(b["input"])) for b in blocks if b["type"] == "tool_use")
        thoughts = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
        return [
            Answer(
                "\n\n".join(block["text"] for block in blocks if block["type"] == "text"),
                thoughts if case.reasoning else None,
                calls,
                finishes.get(found["stop_reason"], found["stop_reason"]),
                tuple(found["unmet"] or ()),
                _is_closed(found),
            )
        ]

    def refused(self, body: Json) -> str | None:
        """The message names it: there is no field for it."""
        return body["error"]["message"] or None


class _Ollama:
    name, path = "ollama", "/api/chat"
    refuses: frozenset[str] = frozenset()

    def body(self, case: Case) -> Json | None:
        if case.offers and (case.choice not in ("absent", "auto") or case.parallel is False or case.custom):
            return None
        formats = {"schema": FORMAT_SCHEMA, "object": "json"}
        return _sampling(case) | _given(
            messages=[message for turn in history_of(case) for message in self._messages(turn)],
            tools=self._tools(case) if case.offers else None,
            format=formats.get(case.format or ""),
            think=case.effort or case.reasoning,  # it is one of both
            logprobs=None if case.logprobs is None else True,
            top_logprobs=case.logprobs,
            options=_given(stop=case.stop and [case.stop], num_predict=case.limit),
            stream=False,
        )

    def _tools(self, case: Case) -> list[Json]:
        functions = [_given(name=name, parameters=_schema(name, case), strict=case.strict) for name in TOOLS]
        return [{"type": "function", "function": each} for each in functions]

    def _messages(self, turn: Turn) -> list[Json]:
        """Without ids: results have the names of functions."""
        calls = [{"function": {"name": name, "arguments": arguments}} for _, name, arguments in turn.calls]
        names = {id_: name for id_, name, _ in (*CALLS, *turn.calls)}
        asked = [{"role": "assistant", "tool_calls": calls}] if calls else []
        results = [{"role": "tool", "tool_name": names[id_], "content": text} for id_, text in turn.results]
        return asked + results + ([{"role": "user", "content": turn.text}] if turn.text else [])

    def full(self, body: Json) -> Json:
        found = timeless(body)
        return {**found, "logprobs": found.get("logprobs") or None}

    def folded(self, content: bytes) -> Json:
        return self.full(folded(read(content)))

    def answers(self, found: Json, case: Case) -> list[Answer]:
        message = found["message"]
        calls = tuple(
            Call(call["function"]["name"], json.dumps(call["function"]["arguments"]))
            for call in message.get("tool_calls", ())
        )
        finish = "tool_calls" if calls and found["done_reason"] == "stop" else found["done_reason"]
        closed = any(note["param"] == "num_predict" for note in found.get("notes", ()))
        unmet = (*found.get("unmet", ()),)
        return [Answer(message["content"], message.get("thinking"), calls, finish, unmet, closed)]

    def refused(self, body: Json) -> str | None:
        """The message names it: there is no field for it."""
        return body["error"] or None


APIS: Mapping[str, Api] = {api.name: api for api in (_Chat(), _Responses(), _Messages(), _Ollama())}
