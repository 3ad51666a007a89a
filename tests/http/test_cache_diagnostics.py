"""Why the cache missed: in both APIs that say so, in every way to answer, with the tokens that the engine was given."""

import json
from collections.abc import AsyncIterator
from itertools import pairwise, takewhile
from typing import Any

import pytest
import pytest_asyncio
from anthropic.types import Message
from openai.types.responses import Response
from structlog.testing import capture_logs

from antiphon.core.limits import Limits
from antiphon.log import with_request
from tests.http.api import Api, client, user
from tests.http.messages_api import MessagesApi, asking
from tests.http.test_socket import connected, heard, send
from tests.server import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCRIPT = [{"when": "Our conversation is getting long", "output": "We met."}, {"output": "Hello there!"}]
WORDS = "Some words of a long message. " * 12
TOOL = {"name": "f", "input_schema": {"type": "object"}}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def messages() -> AsyncIterator[MessagesApi]:
    async with asking(SCRIPT, dialect="glm45") as api:
        yield api


@pytest.fixture
def server(messages: MessagesApi) -> Running:
    return messages.server


@pytest_asyncio.fixture(loop_scope="module")
async def api(server: Running) -> AsyncIterator[Api]:
    async with client(server) as api:
        yield api


def common(server: Running) -> tuple[int, int, int]:
    """The lengths of the last two prompts, and of what they begin with alike."""
    earlier, now = (request.prompt.ids for request in list(server.engine.seen)[-2:])
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(earlier, now, strict=False)))
    return len(earlier), len(now), alike


# Messages


TURNS = [
    {"role": "user", "content": [{"type": "text", "text": WORDS, "cache_control": {"type": "ephemeral"}}]},
    {"role": "assistant", "content": "Hello there!"},
    {"role": "user", "content": WORDS},
]
BASE = {"system": "Be kind.", "tools": [TOOL]}


def compares(with_: str | None) -> dict[str, Any]:
    return {"diagnostics": {"previous_message_id": with_}}


def grown() -> list[Any]:
    """The next turn, with the mark of caches elsewhere."""
    plain = json.loads(json.dumps(TURNS))
    del plain[0]["content"][0]["cache_control"]
    return [*plain, {"role": "assistant", "content": "Hello there!"}, {"role": "user", "content": "More?"}]


def other(index: int) -> list[Any]:
    """The next turn, with another message."""
    turns = grown()
    turns[index] = {**turns[index], "content": WORDS[:-20] + "Other."}
    return turns


IN_MESSAGES: dict[str, tuple[list[Any], dict[str, Any], str | None, str | None]] = {
    "grown": (grown(), BASE, None, None),
    "again": (TURNS, BASE, None, None),
    "tools": (grown(), {**BASE, "tools": [TOOL, {**TOOL, "name": "g"}]}, "tools_changed", "tools"),
    "no tools": (grown(), {"system": "Be kind."}, "tools_changed", "tools"),
    "system": (grown(), {**BASE, "system": "Be unkind."}, "system_changed", "system"),
    "first": (other(0), BASE, "messages_changed", "messages[0]"),
    "answer": (other(1), BASE, "messages_changed", "messages[1]"),
    "last": (other(2), BASE, "messages_changed", "messages[2]"),
    "fewer": (TURNS[:1], BASE, "messages_changed", "messages[1]"),
    "tools, first": (other(0), {"system": "Be kind."}, "tools_changed", "tools"),
    "salt": (grown(), {**BASE, "cache_salt": "mine"}, "model_changed", "cache_salt"),
}


@pytest.mark.parametrize("case", IN_MESSAGES)
async def test_a_message_says_what_the_cache_missed(messages: MessagesApi, case: str) -> None:
    turns, fields, type_, part = IN_MESSAGES[case]
    first = await messages.full(TURNS, **BASE, **compares(None))
    assert first["diagnostics"] is None
    body = await messages.full(turns, **fields, **compares(first["id"]))
    earlier, _, alike = common(messages.server)
    if type_ is None:
        assert body["diagnostics"] is None
    else:
        lost = earlier if case == "salt" else earlier - alike
        parsed = Message.model_validate(body).diagnostics
        assert parsed is not None
        assert parsed.cache_miss_reason is not None
        assert parsed.cache_miss_reason.type == type_
        reason = {"type": type_, "cache_missed_input_tokens": lost, "part": part}
        assert body["diagnostics"] == {"cache_miss_reason": reason}
        assert lost > 0
    start, *_ = await messages.stream(turns, **fields, **compares(first["id"]))
    assert start["message"]["diagnostics"] == body["diagnostics"]
    assert "diagnostics" not in await messages.full(turns, **fields)


async def test_what_is_cleared_is_a_part_too(messages: MessagesApi) -> None:
    def talk(number: int) -> list[Any]:
        turns: list[Any] = [{"role": "user", "content": "Go."}]
        for index in range(number):
            use = {"type": "tool_use", "id": f"toolu_{index}", "name": "f", "input": {}}
            result = {"type": "tool_result", "tool_use_id": use["id"], "content": WORDS}
            turns += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        return turns

    edit = {"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 3}}
    fields = {**BASE, "context_management": {"edits": [edit]}}
    found = []
    last = None
    for number in range(1, 7):
        body = await messages.full(talk(number), **fields, **compares(last))
        found.append((len(body["context_management"]["applied_edits"]), body["diagnostics"]))
        last = body["id"]
    for (before, _), (after, diagnostics) in pairwise(found):
        if before == after == 0:
            assert diagnostics is None
        elif before < after:
            assert diagnostics["cache_miss_reason"]["type"] == "unavailable"
            assert diagnostics["cache_miss_reason"]["part"] == "context_management"
    assert found[-1][0] == 1


@pytest.mark.parametrize("other_key", [False, True])
async def test_an_unknown_message_is_not_found(messages: MessagesApi, other_key: bool) -> None:
    body = await messages.full("Hi", **compares("msg_nobody"))
    assert body["diagnostics"] == {"cache_miss_reason": {"type": "previous_message_not_found"}}
    assert "diagnostics" in (await messages.refused("Hi", diagnostics=3))["message"]
    if other_key:
        async with asking(SCRIPT, {"x-api-key": "a"}, api_key=("a", "b")) as api:
            mine = await api.full("Hi")
            api.http.headers["x-api-key"] = "b"
            body = await api.full("Hi", **compares(mine["id"]))
            assert body["diagnostics"] == {"cache_miss_reason": {"type": "previous_message_not_found"}}


# Responses

INPUT = [user(WORDS), {"role": "assistant", "content": "Hello there!"}, user(WORDS)]
MORE = [*INPUT, {"role": "assistant", "content": "Hello there!"}, user("More?")]
SAME = {"tools": [FUNCTION], "instructions": "Be kind."}
IN_RESPONSES: dict[str, tuple[Any, dict[str, Any], str | None, str | None]] = {
    "grown": (MORE, SAME, None, None),
    "again": (INPUT, SAME, None, None),
    "tools": (MORE, {**SAME, "tools": [{**FUNCTION, "name": "g"}]}, "tools_changed", "tools"),
    "instructions": (MORE, {**SAME, "instructions": "Be unkind."}, "input_changed", "instructions"),
    "input": ([user("Hi"), *MORE[1:]], SAME, "input_changed", "input[0]"),
    "last": ([*MORE[:2], user("Hi"), *MORE[3:]], SAME, "input_changed", "input[2]"),
    "fewer": (INPUT[:1], SAME, "input_changed", "input[1]"),
    "salt": (MORE, {**SAME, "cache_salt": "mine"}, "prompt_cache_key_changed", "cache_salt"),
    "key": (MORE, {**SAME, "prompt_cache_key": "mine"}, None, None),
    "format without effect": (MORE, {**SAME, "text": {"format": {"type": "json_object"}}}, None, None),
}


def compared(with_: str) -> dict[str, Any]:
    return {"prompt_cache_options": {"comparison_response_id": with_}}


@pytest.mark.parametrize("case", IN_RESPONSES)
async def test_a_response_says_what_the_cache_missed(api: Api, server: Running, case: str) -> None:
    given, fields, reason, part = IN_RESPONSES[case]
    first = await api.create(INPUT, **SAME)
    assert "prompt_cache_diagnostics" not in first
    body = await api.create(given, **fields, **compared(first["id"]))
    earlier, now, alike = common(server)
    if reason is None:
        assert body["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    else:
        alike = 0 if case == "salt" else alike
        assert body["prompt_cache_diagnostics"] == {
            "type": "cache_miss",
            "reason": reason,
            "cache_missed_tokens": now - alike,
            "comparison_reusable_tokens": alike,
            "part": part,
        }
        assert earlier > alike
    found = body["prompt_cache_diagnostics"]
    parsed = Response.model_validate(body).prompt_cache_diagnostics
    assert parsed is not None
    assert parsed.type == found["type"]
    streamed = await api.streamed(given, **fields, **compared(first["id"]))
    assert streamed["prompt_cache_diagnostics"] == found
    assert (await api.get(f"/responses/{body['id']}"))["prompt_cache_diagnostics"] == found
    queued = await api.create(given, **fields, **compared(first["id"]), background=True)
    assert (await api.finished(queued["id"]))["prompt_cache_diagnostics"] == found
    async with connected(server) as socket:
        await send(socket, given, **fields, **compared(first["id"]))
        *_, last = await heard(socket)
        assert json.loads(last)["response"]["prompt_cache_diagnostics"] == found


async def test_a_chain_is_compared_with_what_is_sent_whole(api: Api) -> None:
    first = await api.create(WORDS, **SAME)
    chained = await api.create("More?", previous_response_id=first["id"], **SAME, **compared(first["id"]))
    assert chained["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    whole = [user(WORDS), *first["output"], user("More?"), *chained["output"], user("And?")]
    body = await api.create(whole, **SAME, **compared(chained["id"]))
    assert body["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    whole[0] = user("Hi")
    body = await api.create(whole, **SAME, **compared(chained["id"]))
    assert body["prompt_cache_diagnostics"]["part"] == "input[0]"
    later = await api.create("Or?", previous_response_id=body["id"], **SAME, **compared(chained["id"]))
    assert later["prompt_cache_diagnostics"]["part"] == "history[0]"


async def test_settings_that_the_template_writes_are_named(tmp_path: Any) -> None:
    (path := tmp_path / "template.jinja").write_text(
        "{{ reasoning_effort }} {{ verbosity }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    )
    async with asking(SCRIPT, chat_template=path) as messages, client(messages.server) as api:
        first = await api.create(INPUT)
        for fields, reason, part in (
            ({"reasoning": {"effort": "high"}}, "reasoning_effort_changed", "reasoning.effort"),
            ({"text": {"verbosity": "low"}}, "verbosity_changed", "text.verbosity"),
        ):
            body = await api.create(MORE, **fields, **compared(first["id"]))
            found = body["prompt_cache_diagnostics"]
            assert (found["reason"], found["part"]) == (reason, part)


async def test_a_compaction_is_a_reason(api: Api) -> None:
    first = await api.create([user("Hi"), {"role": "assistant", "content": WORDS}, user(WORDS)])
    limit = {"context_management": [{"type": "compaction", "compact_threshold": 50}]}
    second = await api.create("More?", previous_response_id=first["id"], **compared(first["id"]), **limit)
    found = second["prompt_cache_diagnostics"]
    assert (found["reason"], found["part"]) == ("context_compacted", "context_management")
    third = await api.create("And?", previous_response_id=second["id"], **compared(first["id"]))
    found = third["prompt_cache_diagnostics"]
    assert (found["reason"], found["part"]) == ("context_compacted", "compaction")
    fourth = await api.create("And?", previous_response_id=second["id"], **compared(second["id"]))
    assert fourth["prompt_cache_diagnostics"] == {"type": "cache_hit"}


async def test_other_responses_are_not_found_or_not_compared(api: Api, server: Running) -> None:
    body = await api.create("Hi", **compared("resp_nobody"))
    assert body["prompt_cache_diagnostics"] == {"type": "comparison_response_not_found"}
    first = await api.create("Hi")
    server.app.traces.forget(
        first_owner(server, first["id"]), first["id"]
    )  # as a server that was started again
    body = await api.create("Hi", **compared(first["id"]))
    assert body["prompt_cache_diagnostics"] == {"type": "unavailable"}
    await api.http.delete(f"/responses/{body['id']}")
    after = await api.create("Hi", **compared(body["id"]))
    assert after["prompt_cache_diagnostics"] == {"type": "comparison_response_not_found"}


def first_owner(server: Running, answer: str) -> str:
    return next(owner for owner, id_ in server.app.traces._traces if id_ == answer)


# In the log, and within limits


async def test_the_log_has_it_too(api: Api, messages: MessagesApi) -> None:
    with capture_logs(processors=[with_request]) as lines:
        first = await api.create(WORDS, **SAME)
        await api.create("More?", previous_response_id=first["id"], **{**SAME, "instructions": "Be unkind."})
        found = await messages.full(TURNS, **BASE)
        await messages.full(other(0), **BASE, **compares(found["id"]))
    missed = [
        (line["cache_missed"], line["cache_missed_tokens"] > 0)
        for line in lines
        if line["event"] == "request" and "cache_missed" in line
    ]
    assert missed == [("instructions", True), ("messages[0]", True)]


async def test_the_oldest_are_forgotten() -> None:
    async with asking(SCRIPT, limit=Limits(traced_answers=2)) as api:
        ids = [(await api.full("Hi"))["id"] for _ in range(3)]
        found = [(await api.full("Hi", **compares(id_)))["diagnostics"] for id_ in (ids[0], ids[2])]
        assert found == [{"cache_miss_reason": {"type": "previous_message_not_found"}}, None]
        assert len(api.server.app.traces) == 2
