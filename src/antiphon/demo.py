"""`antiphon demo`: a server with scripted answers, and suggestions to try.

It is the complete server, with the scripted engine instead of a model: `demo.jsonl` has the text of
reasoning, calls, structured output and errors, which is processed like that of a model. Nothing is stored.

To add something to try: a line of `demo.jsonl`, a `Suggestion` here; what it shows, in `tests/test_demo.py`.
"""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.config import Settings
from antiphon.engines.scripted import Options
from antiphon.model_tables import ModelSettings

NAME = "demo"
MODEL = ModelSettings(model_name=(NAME,), dialect="hermes", decision_prefill="(", decision_orders=1)
"""With the prefill, labels of decisions are words of the script. It names labels, not
options: in several orders all options would be equally probable."""
SCRIPT = Path(__file__).with_name("demo.jsonl")

_WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city"],
}
_CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "country": {"type": "string"},
        "inhabitants": {"type": "integer"},
    },
    "required": ["name", "country", "inhabitants"],
}
_TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": _WEATHER}}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": _CITY}}


class Suggestion(Struct, frozen=True):
    """A request to try, with its path. `shows` says what to look at in the answer."""

    title: str
    shows: str
    path: str
    body: Mapping[str, Any]


def _chat(title: str, shows: str, question: str, **more: Any) -> Suggestion:
    body = {"model": NAME, "messages": [{"role": "user", "content": question}], **more}
    return Suggestion(title, shows, "/v1/chat/completions", body)


SUGGESTIONS = (
    _chat("Reasoning", "separate from the answer, as it is generated", "Why is the sky blue?", stream=True),
    _chat("A tool call", "arguments as they are written", "the weather in Rome?", stream=True, tools=[_TOOL]),
    _chat("Structured output", "JSON that fits the schema", "Describe Rome.", response_format=_FORMAT),
    _chat("Output that does not fit", "`unmet` says where", "Describe Rome badly.", response_format=_FORMAT),
    _chat("An engine that fails", "an error after the text", "Break in the middle.", stream=True),
    _chat("A wrong request", "an error with the parameter's name", "Hello!", temperature="hot"),
    Suggestion(
        "Anthropic's API",
        "thinking, then text",
        "/v1/messages",
        {
            "model": NAME,
            "max_tokens": 2000,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "messages": [{"role": "user", "content": "Why is the sky blue?"}],
            "stream": True,
        },
    ),
    Suggestion(
        "A decision",
        "probabilities, and no text",
        "/v1/systemone",
        {
            "model": NAME,
            "state": "I was charged twice.",
            "questions": {
                "team": {
                    "type": "choice",
                    "instructions": "Which team?",
                    "criteria": {"billing": "payments", "shipping": "parcels"},
                },
                "angry": {"type": "noul", "instructions": "Is the customer angry?"},
            },
        },
    ),
    Suggestion(
        "In the background",
        "an id; GET /v1/responses/ID?stream=true reads on",
        "/v1/responses",
        {"model": NAME, "input": "Tell me a long story.", "background": True, "stream": False},
    ),
)


def settings(given: Settings) -> Settings:
    """The settings of the demo, with the given host, port and the like."""
    return replace(
        given,
        engine=Options(script=SCRIPT),
        model=MODEL,
        store="memory",
        debug_answers=20,
    )


def greeting(url: str) -> Iterator[str]:
    """The suggestions, for a server at `url`."""
    yield f"listening on {url}, with written answers in the place of a model: nothing was downloaded"
    yield ""
    width = max(len(suggestion.title) for suggestion in SUGGESTIONS)
    yield f"{'Talk to it'.ljust(width)}  Why is the sky blue?"
    yield f"  antiphon chat --url {url}"
    yield ""
    yield f"{'In a browser'.ljust(width)}  a chat in every API, with the inside of each answer"
    yield f"  {url}/"
    for suggestion in SUGGESTIONS:
        yield ""
        yield f"{suggestion.title.ljust(width)}  {suggestion.shows}"
        body = shlex.quote(msgspec.json.encode(suggestion.body).decode())
        yield f"  curl -N {url}{suggestion.path} -H 'Content-Type: application/json' -d {body}"
    yield ""
    yield "Each request is a line below; Ctrl-C ends. With a model: antiphon serve"
