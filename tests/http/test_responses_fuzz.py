"""Random requests are answered, or refused by name, and never a failure."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2 as httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.apis.responses.test_input import CALLED, FROM_CLIENTS, OUTPUTS
from tests.http.api import ask, user
from tests.openai_schema import OPENAI_RESPONSES, validate
from tests.response_invariants import check, read_sse
from tests.search import examples
from tests.server import running

SCRIPT = [
    {"output": '<think>\nHm.\n</think>\n\nHello!\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'}
]
FUNCTION = {
    "type": "function",
    "name": "f",
    "description": "A function.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    },
}
GRAMMAR = {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}
CUSTOM = {"type": "custom", "name": "g", "format": GRAMMAR}
SCHEMA = {"type": "json_schema", "name": "n", "strict": True, "schema": FUNCTION["parameters"]}

REQUESTS: list[tuple[str, Any]] = [
    ("/responses", ask("Hi", instructions="Be kind.", metadata={"a": "b"}, store=False)),
    ("/responses", ask("Hi", previous_response_id="resp_1", truncation="auto")),
    ("/responses", ask("Hi", conversation={"id": "conv_1"}, stream_options={"include_obfuscation": True})),
    ("/responses", ask([user("Hi"), CALLED, OUTPUTS["function_call_output"]], tools=[FUNCTION, CUSTOM])),
    ("/responses", ask("Hi", tools=[FUNCTION], tool_choice={"type": "function", "name": "f"})),
    (
        "/responses",
        ask(
            "Hi",
            tools=[{"type": "namespace", "name": "n", "tools": [FUNCTION, CUSTOM]}, {"type": "web_search"}],
            tool_choice={
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "f"}],
            },
        ),
    ),
    ("/responses", ask("Hi", text={"format": SCHEMA, "verbosity": "low"}, reasoning={"effort": "low"})),
    ("/responses", ask("Hi", include=["message.output_text.logprobs"], top_logprobs=2, temperature=0.5)),
    ("/responses", ask("Hi", context_management=[{"type": "compaction", "compact_threshold": 1}])),
    ("/responses", ask("Hi", max_output_tokens=3, stop=["e"], seed=1, logit_bias={"1": 1}, top_p=0.5)),
    *[
        ("/responses", ask([user("Hi"), item]))
        for type_, item in FROM_CLIENTS.items()
        if type_ != "mcp_approval_response"  # which answers what the server has signed
    ],
    ("/responses/input_tokens", ask([user("Hi")], tools=[FUNCTION])),
    ("/responses/compact", ask([user("Hi"), {"role": "assistant", "content": "Hello"}])),
    ("/conversations", {"items": [user("Hi"), CALLED], "metadata": {"a": "b"}}),
]


@contextmanager
def _serving() -> Iterator[str]:
    """The address of a server that runs in a thread of its own."""
    ready, addresses = threading.Event(), []
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()

    async def serve() -> None:
        async with running(SCRIPT) as server:
            addresses.append(server.url)
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(30)
    try:
        yield addresses[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(30)
        loop.close()


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    each_its_own = httpx.Limits(max_keepalive_connections=0)  # the search may pause for long
    with _serving() as url, httpx.Client(base_url=f"{url}/v1", timeout=30, limits=each_its_own) as http:
        yield http


def answered(http: httpx.Client, path: str, body: bytes) -> int:
    """The status of an answer, which is complete in any case."""
    response = http.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code < 500, (body, response.text)
    if response.status_code != 200:
        error = response.json()
        validate("ErrorResponse", error, OPENAI_RESPONSES)
        assert error["error"]["type"] in ("invalid_request_error", "not_found_error")
    elif response.headers["content-type"].startswith("text/event-stream"):
        payloads = read_sse(response.content)
        if b"obfuscation" not in response.content:
            assert check(payloads)["status"] in ("completed", "incomplete")
    else:
        assert isinstance(response.json(), dict)
    return response.status_code


# Mutations

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(
        ["auto", "message", "function", "user", "assistant", "completed", "item_reference", "\0"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all values inside."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield (*path, key)
        yield from places(inner, (*path, key))


def changed(value: Any, path: tuple[Any, ...], change: str, other: Any) -> Any:
    """The value, with something else at this place."""
    copy = json.loads(json.dumps(value))
    *way, last = path
    inner = copy
    for key in way:
        inner = inner[key]
    if change == "remove":
        del inner[last]
    else:
        inner[last] = CHANGES[change](inner[last], other)
    return copy


def more(value: Any, other: Any) -> Any:
    """More of the same type."""
    match value:
        case dict():
            return value | {"more": other, "type": value.get("type", "message")}
        case list():
            return [*value, *value, other]
        case str():
            return value + (other if isinstance(other, str) else "é")
        case bool() | None:
            return not value
    return -value - 1


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "replace": lambda _, other: other,
    "more": more,
    "wrap": lambda value, _: [value],
    "twice": lambda value, _: [*value, *value] if isinstance(value, list) else value,
    "name": lambda value, _: {"type": value, "id": value, "name": value},
}


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, Any]:
    path, body = draw(st.sampled_from(REQUESTS))
    for _ in range(draw(st.sampled_from([1, 1, 2, 3]))):
        possible = list(places(body))
        if possible:
            change = draw(st.sampled_from([*CHANGES, "more", "remove"]))
            body = changed(body, draw(st.sampled_from(possible)), change, draw(JSON))
    if path == "/responses" and draw(st.booleans()):
        body = {**body, "stream": True}
    return path, body


MANY = settings(max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])


@MANY
@given(request=requests())
def test_mutated_requests_are_answered_or_refused(http: httpx.Client, request: tuple[str, Any]) -> None:
    path, body = request
    answered(http, path, json.dumps(body).encode())


def test_an_output_may_have_a_type_that_is_no_string(http: httpx.Client) -> None:
    output = {"type": "shell_call_output", "call_id": "c", "output": {"type": []}}
    answered(http, "/responses", json.dumps({"model": "scripted", "input": [output]}).encode())


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_what_is_mutated_is_valid(http: httpx.Client, path: str, body: Any) -> None:
    missing = {"previous_response_id", "conversation"} & body.keys()
    refused = missing or "compaction" in json.dumps(body.get("input")) or CUSTOM in body.get("tools", ())
    assert refused or answered(http, path, json.dumps(body).encode()) == 200


@MANY
@given(body=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
@pytest.mark.parametrize("path", ["/responses", "/conversations", "/responses/compact"])
def test_bodies_that_are_no_requests_are_refused(http: httpx.Client, path: str, body: bytes) -> None:
    assert answered(http, path, body) in (200, 400)


NESTED = {
    "arrays": lambda depth: "[" * depth + "]" * depth,
    "objects": lambda depth: '{"a":' * depth + "1" + "}" * depth,
    "schemas": lambda depth: '{"type":"object","properties":{"a":' * depth + "{}" + "}}" * depth,
}
DEEP = [
    '{"model":"scripted","input":"x","unknown":%s}',
    '{"model":"scripted","input":%s}',
    '{"model":"scripted","input":[{"role":"user","content":"x","more":%s}]}',
    '{"model":"scripted","input":[{"role":"user","content":"x"},{"type":"web_search_call","action":%s}]}',
    '{"model":"scripted","input":[{"type":"shell_call","call_id":"c","action":%s}]}',
    '{"model":"scripted","input":[{"type":"function_call","call_id":"c","name":"f","arguments":%s}]}',
    '{"model":"scripted","input":"x","tools":[{"type":"function","name":"f","parameters":%s}]}',
    '{"model":"scripted","input":"x","tools":[{"type":"function","name":"f","strict":true,"parameters":%s}]}',
    '{"model":"scripted","input":"x","tools":[{"type":"web_search","more":%s}]}',
    '{"model":"scripted","input":"x","text":{"format":{"type":"json_schema","name":"n","schema":%s}}}',
    '{"model":"scripted","input":"x","structured_outputs":{"json":%s}}',
    '{"model":"scripted","input":"x","chat_template_kwargs":{"more":%s}}',
    '{"model":"scripted","input":"x","metadata":%s}',
    '{"model":"scripted","input":"x","tool_choice":%s}',
]


@pytest.mark.parametrize("shape", NESTED)
@pytest.mark.parametrize("depth", [5, 100, 200, 300, 400, 490, 700, 900, 980, 1000, 100_000])
def test_json_may_be_nested_as_deeply_as_it_likes(http: httpx.Client, shape: str, depth: int) -> None:
    for template in DEEP:
        body = template % NESTED[shape](depth)
        answered(http, "/responses", body.encode())
        answered(http, "/responses", (body[:-1] + ',"stream":true}').encode())
    items = f'{{"items":[{{"role":"user","content":"x","more":{NESTED[shape](depth)}}}]}}'
    answered(http, "/conversations", items.encode())
