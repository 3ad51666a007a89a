"""Lines of answers without I/O, and what they add up to."""

import json
from collections.abc import Callable, Iterable
from typing import Any

from antiphon.apis.envelope import DEFAULT_PRESENTATION, PresentationOptions
from antiphon.apis.ollama.lines import Lines
from antiphon.apis.ollama.resource import Durations, Line
from tests.apis.chat.support import ENVELOPE

Json = Any

TIMES = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def lines(line: Callable[..., Line], presentation: PresentationOptions = DEFAULT_PRESENTATION) -> Lines:
    """The lines of an answer that takes no time."""
    return Lines(ENVELOPE, presentation, line, lambda: Durations(4, 1, 1, 2))


def read(content: bytes) -> list[Json]:
    """The lines of a stream, checked: each is JSON, only the last is done, and all have one name and time."""
    assert content.endswith(b"\n")
    found = [json.loads(line) for line in content.splitlines()]
    assert [line["done"] for line in found] == [False] * (len(found) - 1) + [True]
    assert len({(line["model"], line["created_at"]) for line in found}) == 1
    for line in found[:-1]:
        assert line.keys() <= {"model", "created_at", "done", "message", "response", "thinking", "logprobs"}
    return found


def folded(found: Iterable[Json]) -> Json:
    """The full answer that the lines of a stream add up to."""
    *parts, last = found
    whole = json.loads(json.dumps(last))
    holder = whole.get("message", whole)
    for name in ("thinking", "content", "response", "tool_calls", "logprobs"):
        values = [place[name] for line in (*parts, last) for place in _places(line) if name in place]
        if values and name == "logprobs":
            whole[name] = [token for value in values for token in value]
        elif values:
            holder[name] = (
                [call for value in values for call in value] if name == "tool_calls" else "".join(values)
            )
    return whole


def _places(line: Json) -> tuple[Json, ...]:
    return (line, line["message"]) if "message" in line else (line,)


def timeless(body: Json) -> Json:
    """A body without what differs each time: durations, and ids of calls."""
    assert all(isinstance(body[name], int) and body[name] >= 0 for name in TIMES if name in body)
    kept = {name: value for name, value in body.items() if name not in (*TIMES, "created_at")}
    if "message" in kept and "tool_calls" in kept["message"]:
        calls = [{**call, "id": "?"} for call in kept["message"]["tool_calls"]]
        kept["message"] = kept["message"] | {"tool_calls": calls}
    return kept
