"""Programs of models that call tools: of the client and of the server, streamed, stored, and from items alone."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.programs import fingerprint
from antiphon.core.tool_result import ToolResult
from antiphon.store.open import open_store
from antiphon.toolkits.programs.tool import Programs
from tests.acting import PYTHON, ActingTool, TakingTurns
from tests.app import support
from tests.http.api import Api, ask, check_stream, client, items_of, prompt_of, text_of, user
from tests.http.harmony import FINAL, Said, written
from tests.response_invariants import check
from tests.run.support import until
from tests.server import Running, running
from tests.tools.processes import alive

RUNNER = {"type": "programmatic_tool_calling"}
BOTH = ["direct", "programmatic"]
SERVER = {"type": "code_interpreter", "container": {"type": "auto"}, "allowed_callers": BOTH}


def function(name: str, callers: Sequence[str] | None = ("programmatic",), **more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"key": {}}, "required": ["key"]}
    tool = {"type": "function", "name": name, "parameters": parameters, **more}
    return tool if callers is None else {**tool, "allowed_callers": [*callers]}


STOCK = function("stock", output_schema={"type": "object", "properties": {"left": {"type": "integer"}}})
NAME = function("name_of")
TOOLS = [RUNNER, STOCK, NAME]


def program(code: str) -> str:
    arguments = {"code": code}
    return f"<tool_call>\n{json.dumps({'name': RUNNER['type'], 'arguments': arguments})}\n</tool_call>"


@asynccontextmanager
async def asking(
    *said: str, limits: Limits = DEFAULTS, others: Sequence[Any] = (), **options: Any
) -> AsyncIterator[tuple[Api, Running]]:
    """A client of a server that runs programs of a model that says this, turn by turn."""
    tool = Programs(limits)
    model = TakingTurns(*said)
    async with (
        running(model, tools=[tool, *others], limit=limits, **options) as server,
        client(server) as api,
    ):
        yield api, server


def answered(call: Mapping[str, Any], output: Any) -> dict[str, Any]:
    """What a client sends for a call."""
    text = output if isinstance(output, str) else json.dumps(output)
    type_ = f"{call['type']}_output"
    return {"type": type_, "call_id": call["call_id"], "output": text, "caller": call["caller"]}


class Client:
    """Answers calls of programs, and sends what they return in one of the ways that there are."""

    def __init__(self, api: Api, *, streamed: bool, stored: bool, **fields: Any) -> None:
        self._create = api.streamed if streamed else api.create
        self._stored = stored
        self._fields = {"store": stored, **fields}
        self._items: list[Any] = [user("Go!")]
        self.rounds: list[list[tuple[str, Any]]] = []
        """The calls of each response."""

    async def result(self, stock: Mapping[str, int]) -> dict[str, Any]:
        """The response after which nothing is left to call."""
        response = await self._create(self._items, **self._fields)
        while calls := items_of(response, "function_call"):
            self.rounds.append([(call["name"], json.loads(call["arguments"])["key"]) for call in calls])
            returned = [answered(call, self._value(call, stock)) for call in calls]
            if self._stored:
                fields = {**self._fields, "previous_response_id": response["id"]}
                response = await self._create(returned, **fields)
            else:
                self._items += [*response["output"], *returned]
                response = await self._create(self._items, **self._fields)
        return response

    @staticmethod
    def _value(call: Mapping[str, Any], stock: Mapping[str, int]) -> Any:
        key = json.loads(call["arguments"])["key"]
        return {"left": stock[key]} if call["name"] == "stock" else f"<{key}>"


STYLES = {
    "called": "rows = [(stock(k)['left'], k) for k in KEYS]\nname = name_of(min(rows)[1])\nprint(name)",
    "awaited": """rows = []
for k in KEYS:
    found = await stock(k)
    rows.append((found["left"], k))
print(await name_of(min(rows)[1]))""",
    "together": """import asyncio
found = await asyncio.gather(*[stock(k) for k in KEYS])
rows = [(one["left"], k) for one, k in zip(found, KEYS)]
text(await name_of(min(rows)[1]))""",
    "tasks": """import asyncio
async def left(k):
    return (await stock(key=k))["left"], k
async def main():
    tasks = [left(k) for k in KEYS]
    rows = await asyncio.gather(*tasks)
    print(await name_of(min(rows)[1]))
asyncio.run(main())""",
}
AT_ONCE = ("together", "tasks")
STOCKS = {"a": 3, "b": 1, "c": 2}


@pytest.mark.parametrize(
    ("style", "streamed", "stored"), [*itertools.product(STYLES, (False, True), (False, True))]
)
async def test_a_program_calls_tools_of_the_client(style: str, *, streamed: bool, stored: bool) -> None:
    code = STYLES[style].replace("KEYS", "['a', 'b', 'c']")
    async with asking(program(code), "It is b.") as (api, server):
        asker = Client(api, streamed=streamed, stored=stored, tools=TOOLS)
        response = await asker.result(STOCKS)

    stocks = [("stock", key) for key in STOCKS]
    assert asker.rounds == [
        *([stocks] if style in AT_ONCE else [[one] for one in stocks]),
        [("name_of", "b")],
    ]
    assert [item["type"] for item in response["output"]] == ["program_output", "message"]
    output = response["output"][0]
    assert (output["result"], output["status"]) == ("<b>\n", "completed")
    assert text_of(response) == "It is b."
    prompt = prompt_of(server)
    assert "<b>" in prompt
    assert '"left"' not in prompt.partition("<|im_start|>user")[2], "only what it printed"


async def test_the_items_of_a_program_say_which_it_is() -> None:
    async with asking(program("print(stock('a'))"), "Done.") as (api, _):
        response = await api.streamed("Go!", tools=TOOLS)
        sent, call = response["output"]
        ended = await api.create(
            [answered(call, {"left": 3})], tools=TOOLS, previous_response_id=response["id"]
        )
        listed = await api.get(f"/responses/{ended['id']}/input_items")

    assert response["status"] == "completed"
    assert (sent["type"], sent["code"]) == ("program", "print(stock('a'))")
    assert call["caller"] == {"type": "program", "caller_id": sent["call_id"]}
    assert ended["output"][0]["call_id"] == sent["call_id"]
    assert listed["data"][0]["caller"] == call["caller"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_tools_of_the_server_run_between_those_of_the_client(*, streamed: bool) -> None:
    code = """x = python(code="1")
y = stock(x)
print(x, y["left"], python(code="2"))"""
    acting = ActingTool(results=[ToolResult("one"), ToolResult("two")])
    for stored in (False, True):
        acting.results, acting.done = [ToolResult("one"), ToolResult("two")], []
        async with asking(program(code), "Done.", others=[acting]) as (api, _):
            asker = Client(api, streamed=streamed, stored=stored, tools=[*TOOLS, SERVER])
            response = await asker.result({"one": 7})
        ran = [arguments for action, arguments in acting.done if action == "python"]
        assert ran == [{"code": "1"}, {"code": "2"}], "each once, also if the program ran twice"
        called, output = response["output"][:2]
        assert called["type"] == "mcp_call"
        assert (called["output"], called["caller"]["type"]) == ("two", "program")
        assert output["result"] == "one 7 two\n"


async def test_a_failed_call_raises_in_the_program_and_again_when_it_goes_on() -> None:
    code = """try:
    python(code="1")
except RuntimeError as error:
    print(error, stock("a")["left"])"""
    acting = ActingTool(results=[ToolResult("broken", failed=True)])
    async with asking(program(code), "Done.", others=[acting]) as (api, _):
        asker = Client(api, streamed=False, stored=False, tools=[*TOOLS, SERVER])
        response = await asker.result({"a": 4})
    assert response["output"][0]["result"] == "broken 4\n"


async def test_programs_side_by_side_and_a_direct_call_go_on_together() -> None:
    direct = function("look", None)
    look = f"<tool_call>\n{json.dumps({'name': 'look', 'arguments': {'key': 'z'}})}\n</tool_call>"
    said = "\n".join((program("print(stock('a'))"), look, program("print(name_of('b'))")))
    async with asking(said, *["Done."] * 3) as (api, _):
        tools = [*TOOLS, direct]
        response = await api.create("Go!", tools=tools)
        calls = items_of(response, "function_call")
        assert sorted(call["name"] for call in calls) == ["look", "name_of", "stock"]
        outputs = [
            answered(call, {"left": 1})
            if "caller" in call
            else {**answered({**call, "caller": None}, "seen")}
            for call in calls
        ]
        ended = await api.create(outputs, tools=tools, previous_response_id=response["id"])
    assert [item["result"] for item in items_of(ended, "program_output")] == [
        "{'left': 1}\n",
        '{"left": 1}\n',
    ]
    assert text_of(ended) == "Done."


async def test_time_and_random_numbers_are_the_same_when_it_goes_on() -> None:
    code = """import random, datetime, time
before = (random.random(), str(datetime.datetime.now()), time.time())
stock("a")
print(before)
x = name_of(str(before))"""
    async with asking(program(code), "Done.") as (api, _):
        asker = Client(api, streamed=False, stored=True, tools=TOOLS)
        response = await asker.result(STOCKS)
    (_, told), printed = asker.rounds[1][0], response["output"][0]["result"]
    assert printed == f"{told}\n"


@pytest.mark.parametrize("stored", [False, True])
async def test_custom_tools_and_those_of_a_namespace_are_functions_too(*, stored: bool) -> None:
    custom = {"type": "custom", "name": "shout", "allowed_callers": ["programmatic"]}
    inner = {**NAME, "defer_loading": True}
    space = {"type": "namespace", "name": "shop", "description": "A shop.", "tools": [inner]}
    code = "print(shout('hey'), shop__name_of(1))"
    fields: dict[str, Any] = {"tools": [RUNNER, custom, space], "store": stored}
    async with asking(program(code), "Done.") as (api, _):
        given: list[Any] = [user("Go!")]
        response, seen = await api.streamed(given, **fields), []
        while response["output"][-1]["type"] != "message":
            call = response["output"][-1]
            seen.append((call["type"], call["name"], call.get("namespace"), call.get("input")))
            output = answered(call, "HEY")
            if stored:
                response = await api.streamed([output], previous_response_id=response["id"], **fields)
            else:
                given += [*response["output"], output]
                response = await api.streamed(given, **fields)
    assert seen == [("custom_tool_call", "shout", None, "hey"), ("function_call", "name_of", "shop", None)]
    assert response["output"][0]["result"] == "HEY HEY\n"


async def test_a_model_of_harmony_writes_programs() -> None:
    arguments = json.dumps({"code": "print(stock('a')['left'])"})
    to = f"<|channel|>commentary to=functions.{RUNNER['type']} <|constrain|>json<|message|>"
    engine = Said()
    engine.says(written(f"{to}{arguments}", end="<|call|>"), written(f"{FINAL}Done."))
    runner = Programs(DEFAULTS)
    async with running(engine, dialect="openai", tools=[runner]) as server, client(server) as api:
        response = await Client(api, streamed=True, stored=False, tools=TOOLS).result(STOCKS)
    assert [item["type"] for item in response["output"]] == ["program_output", "message"]
    assert response["output"][0]["result"] == "3\n"


# What goes wrong


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda items: items[1].update(name="name_of"), "name_of"),
        (lambda items: items[1].update(arguments='{"key":"q"}'), '"q"'),
        (lambda items: items.insert(2, {**items[1], "call_id": "other"}), "is none"),
    ],
)
async def test_a_program_that_goes_another_way_fails_and_says_so(change: Any, told: str) -> None:
    async with asking(program("stock('a')"), "Done.") as (api, server):
        response = await api.create("Go!", tools=TOOLS)
        items = [dict(item) for item in response["output"]]
        change(items)
        outputs = [answered(call, "{}") for call in items[1:]]
        ended = await api.create([user("Go!"), *items, *outputs], tools=TOOLS)
    output = ended["output"][0]
    assert output["status"] == "incomplete"
    assert "did not call what it had called before" in output["result"]
    assert told in output["result"]
    assert "did not call" in prompt_of(server)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        (lambda items: items[0].update(code="print(2)"), "input[1].fingerprint"),
        (lambda items: items[0].update(fingerprint="py1_zz_00"), "input[1].fingerprint"),
        (lambda items: items.pop(), "input"),
        (lambda items: items[-1].update(caller={"type": "program", "caller_id": "q"}), "input[5].caller"),
        (lambda items: items[-1].update(output=[{"type": "input_image", "image_url": "data:,"}]), None),
    ],
)
async def test_what_no_program_goes_on_from_is_refused(change: Any, param: str | None) -> None:
    code = STYLES["together"].replace("KEYS", "['a', 'b']")
    async with asking(program(code)) as (api, _):
        response = await api.create("Go!", tools=TOOLS)
        sent, *calls = [dict(item) for item in response["output"]]
        items = [sent, *calls, *[answered(call, "{}") for call in calls]]
        change(items)
        error = await api.refused([user("Go!"), *items], tools=TOOLS)
        assert error["param"] == (param or "input[5].output[0].type")
        untold = await api.refused(
            [user("Go!"), *[*items[:3], answered(calls[0], "{}")]], tools=[NAME | {"allowed_callers": None}]
        )
        assert untold["param"] == "tools"


ODD: tuple[Any, ...] = (None, "c", [], {"type": "program"}, {"type": "program", "caller_id": []})


@pytest.mark.parametrize("path", ["/responses", "/responses/input_tokens"])
async def test_no_items_of_programs_break_it(path: str) -> None:
    """Each field of each item has each odd value once."""
    sent = {
        "type": "program",
        "call_id": "p",
        "code": "name_of(1)",
        "fingerprint": fingerprint("name_of(1)", 1),
    }
    caller = {"type": "program", "caller_id": "p"}
    call = {"type": "function_call", "call_id": "c", "name": "name_of", "arguments": "{}", "caller": caller}
    remote = {
        "type": "mcp_call",
        "id": "m",
        "server_label": "s",
        "name": "n",
        "arguments": "{}",
        "caller": caller,
    }
    output = {"type": "function_call_output", "call_id": "c", "output": "x", "caller": caller}
    end = {"type": "program_output", "call_id": "p", "result": "r", "status": "completed"}
    items = [sent, call, remote, output, end]
    async with asking("Hm.", "Hm.", "Hm.", "Hm.") as (api, _):
        for number, item in enumerate(items):
            for field, value in itertools.product((*{*item, "error"} - {"type"},), ODD):
                given = [dict(item) for item in items[: max(4, number + 1)]]
                given[number][field] = value
                response = await api.http.post(path, json=ask([user("Go!"), *given], tools=TOOLS))
                assert response.status_code in (200, 400), response.text


async def test_a_program_whose_client_goes_on_without_it_has_no_result() -> None:
    async with asking(program("stock('a')"), "Never mind.") as (api, server):
        response = await api.create("Go!", tools=TOOLS)
        ended = await api.create("Forget it.", tools=TOOLS, previous_response_id=response["id"])
    assert text_of(ended) == "Never mind."
    assert "There is no result of this call." in prompt_of(server)


@pytest.mark.parametrize(
    ("code", "limits", "told"),
    [
        ("while True: pass", {"program_seconds": 1}, "more than 1 seconds"),
        ("[stock(i) for i in range(9)]", {"program_calls": 2}, "more than 2 calls"),
        ("stock('a' * 95)", {"program_bytes": 99}, "more than 99 bytes"),
        ("stock('a')", {"program_bytes": 60}, "more than 60 bytes"),
        (f"# {'x' * 99}", {"program_code_bytes": 99}, "more than 99 bytes"),
        ("x = 'a'\nwhile True: x += x", {}, "MemoryError"),
        ("z = 0\nfor _ in range(40): z = [z, z]\nstock(z)", {}, "too large"),
        ("stock('a' * 10**7)", {"program_bytes": 10**6}, "too large"),
        ("print('z' * 10**5)", {"program_characters": 1000}, "characters are left out"),
    ],
)
async def test_a_program_has_its_limits(code: str, limits: dict[str, int], told: str) -> None:
    async with asking(program(code), "Done.", limits=replace(DEFAULTS, **limits)) as (api, _):
        response = await Client(api, streamed=False, stored=True, tools=TOOLS).result(
            dict.fromkeys(range(9), 10**50) | {"a": 10**50}
        )
    output = items_of(response, "program_output")[0]
    assert told in output["result"]
    assert text_of(response) == "Done."


async def test_more_programs_than_allowed_do_not_go_on() -> None:
    said = program("stock('a')") + program("stock('b')")
    async with asking(said, limits=replace(DEFAULTS, programs=1)) as (api, _):
        response = await api.create("Go!", tools=TOOLS)
        outputs = [answered(call, "{}") for call in items_of(response, "function_call")]
        error = await api.refused(outputs, tools=TOOLS, previous_response_id=response["id"])
    assert error["code"] == "limit_exceeded"
    assert "'programs'" in error["message"]


@pytest.mark.parametrize(
    "said", ["<tool_call>\n" + json.dumps({"name": RUNNER["type"], "arguments": {}}) + "\n</tool_call>"]
    + [program(code) for code in ("def", "print(1/0)", "wibble()", "stock({1})", "stock(1, 2)", "stock(key=1, wibble=2)[0]")],
)  # fmt: skip
async def test_any_program_gets_an_answer(said: str) -> None:
    async with asking(said, "Done.") as (api, _):
        response = await Client(api, streamed=True, stored=False, tools=TOOLS).result({1: 1})  # type: ignore[dict-item]
    assert text_of(response) == "Done."
    assert items_of(response, "program_output")


# Who may call what


async def test_the_model_is_offered_what_it_may_call_and_told_what_programs_may() -> None:
    tools = [RUNNER, function("both", BOTH), NAME, function("own", None, description="Mine.")]
    async with asking("Hello.") as (api, server):
        response = await api.create("Hi", tools=tools)
    head = prompt_of(server)
    assert "def both(key: Any) -> str: ..." in head
    assert "def name_of(" in head
    assert "def own(" not in head
    assert '"name": "own"' in head
    assert '"name": "both"' in head
    assert '"name": "name_of"' not in head
    assert [tool.get("allowed_callers") for tool in response["tools"]] == [None, BOTH, ["programmatic"], None]
    assert "notes" not in response


async def test_a_direct_call_of_a_tool_for_programs_is_answered_by_the_server() -> None:
    call = f"<tool_call>\n{json.dumps({'name': 'stock', 'arguments': {'key': 'a'}})}\n</tool_call>"
    async with asking(call, "I see.") as (api, server):
        response = await api.create("Go!", tools=[*TOOLS, function("own", None)])
    assert "can be called by programs only" in prompt_of(server)
    assert not items_of(response, "function_call")


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([NAME], "tools[0].allowed_callers"),
        ([RUNNER, {**NAME, "allowed_callers": []}], "tools[1].allowed_callers"),
        ([RUNNER, {**NAME, "allowed_callers": ["wibble"]}], "tools[1].allowed_callers"),
        ([RUNNER, {**NAME, "allowed_callers": "direct"}], "tools[1].allowed_callers"),
        ([RUNNER, {"type": "apply_patch", "allowed_callers": ["programmatic"]}], "tools[1].allowed_callers"),
        ([RUNNER, function("print")], "tools[1].name"),
        ([RUNNER, function("a-b"), function("a_b")], "tools[2].name"),
        ([RUNNER, RUNNER], "tools[1]"),
    ],
)
async def test_tools_that_no_program_can_call_are_refused(tools: list[Any], param: str) -> None:
    async with asking("Hello.") as (api, _):
        assert (await api.refused("Hi", tools=tools))["param"] == param


@pytest.mark.parametrize(
    "tools",
    [[function("both", BOTH)], [RUNNER, {"type": "apply_patch", "allowed_callers": BOTH}]],
)
async def test_what_programs_cannot_call_is_noted(tools: list[Any]) -> None:
    async with asking("Hello.") as (api, _):
        response = await api.create("Hi", tools=tools)
    assert [note["param"] for note in response["notes"]] == [f"tools[{len(tools) - 1}].allowed_callers"]


async def test_a_program_can_be_demanded_and_then_may_call() -> None:
    acting = ActingTool(functions=(PYTHON,), results=[ToolResult("one")])
    async with asking(program("print(python(code='1'))"), "Done.", others=[acting]) as (api, _):
        response = await api.create("Go!", tools=[RUNNER, SERVER], tool_choice=RUNNER)
        stock = {"type": "function", "name": "stock"}
        error = await api.refused("Go!", tools=TOOLS, tool_choice=stock)
        for mode in ("auto", "required"):
            few = {"type": "allowed_tools", "mode": mode, "tools": [stock]}
            assert (await api.refused("Go!", tools=TOOLS, tool_choice=few))["param"] == "tool_choice.tools"
        allowed = {"type": "allowed_tools", "mode": "auto", "tools": [RUNNER]}
        body = ask("Go!", tools=[RUNNER, SERVER], tool_choice=allowed)
        narrow = (await api.http.post("/responses", json=body)).json()
    assert items_of(response, "program_output")[0]["result"] == "one\n"
    assert error["param"] == "tool_choice.name"
    assert "NameError" in items_of(narrow, "program_output")[0]["result"]


async def test_a_server_without_programs_names_the_remedy() -> None:
    async with running([{"output": "Hello."}]) as server, client(server) as api:
        error = await api.refused("Hi", tools=[RUNNER])
    assert "--programs" in error["message"]


@pytest.mark.parametrize("path", ["/chat/completions", "/messages"])
async def test_other_apis_refuse_programs_by_name(path: str) -> None:
    body = {
        "model": "scripted",
        "messages": [user("Hi") | {"type": None}],
        "max_tokens": 9,
        "tools": [RUNNER],
    }
    del body["messages"][0]["type"]  # type: ignore[index]
    async with asking("Hello.") as (api, _):
        response = await api.http.post(path, json=body)
    assert response.status_code == 400
    assert "programmatic_tool_calling" in response.text


async def test_a_program_that_waits_is_shown_to_a_summary_and_to_a_count() -> None:
    async with asking(program("stock('a')"), "A summary.") as (api, _):
        response = await api.create("Go!", tools=TOOLS)
        body = ask("Go on.", tools=TOOLS, previous_response_id=response["id"])
        counted = await api.post("/responses/input_tokens", body)
        error = await api.refused(
            [answered(response["output"][1], "{}")],
            tools=TOOLS,
            previous_response_id=response["id"],
            generate=False,
        )
    assert counted["input_tokens"] > 0
    assert error["param"] == "generate"


# In the background, interrupted, left


async def test_a_program_in_the_background_waits_and_goes_on() -> None:
    async with asking(program("print(stock('a')['left'])"), "Done.") as (api, _):
        fields = {"tools": TOOLS, "background": True}
        response = await api.finished((await api.create("Go!", **fields))["id"])
        outputs = [answered(call, {"left": 3}) for call in items_of(response, "function_call")]
        begun = await api.create(outputs, previous_response_id=response["id"], **fields)
        ended = await api.finished(begun["id"])
        assert check_stream(await api.events(begun["id"])) == ended
    assert items_of(ended, "program_output")[0]["result"] == "3\n"


@pytest.mark.parametrize("again", [True, False])
async def test_a_server_dies_in_the_middle_of_a_program(*, again: bool) -> None:
    hosted = PYTHON.hosted
    assert hosted is not None
    functions = (replace(PYTHON, hosted=replace(hosted, idempotent=again)),)
    first_tool = ActingTool(functions=functions, results=[ToolResult("one"), None])
    second_tool = ActingTool(functions=functions, results=[ToolResult("two")])
    code = """x = python(code="1")
try:
    print(x, python(code="2"))
except RuntimeError as error:
    print(error)"""
    said = program(code), "Done."
    store, runners = await open_store("memory"), [Programs(DEFAULTS), Programs(DEFAULTS)]
    try:
        tools = [runners[0], first_tool]
        async with support.serving(store, TakingTurns(*said), lease_seconds=0.05, tools=tools) as first:
            await support.queue(first.app, "Go!", tools=[RUNNER, SERVER])
            async with asyncio.timeout(20):
                await first_tool.running.wait()
                while '"output":"one"' not in str(await support.log_of(store)):
                    await asyncio.sleep(0.01)
            await first.die()
        tools = [runners[1], second_tool]
        async with support.serving(store, TakingTurns(*said), lease_seconds=0.05, tools=tools):
            assert (await support.ended(store)).status == "completed"
        response = check(await support.log_of(store))
    finally:
        await store.close()
        for runner in runners:
            await runner.close()
    ran = [arguments for action, arguments in second_tool.done if action == "python"]
    assert ran == ([{"code": "2"}] if again else [])
    [output] = items_of(response, "program_output")
    assert output["result"] == "one two\n" if again else "outcome of this call is unknown" in output["result"]


@pytest.mark.parametrize("code", ["while True: pass", "held = [python(code='1')]"])
async def test_a_client_that_leaves_frees_the_process_of_its_program(code: str) -> None:
    before, acting = alive("monty"), ActingTool(results=[None])
    async with asking(program(code), "Done.", others=[acting]) as (api, server):
        asking_for = asyncio.create_task(api.create("Go!", tools=[RUNNER, SERVER]))
        await until(lambda: alive("monty") - before)
        if "python" in code:
            await acting.running.wait()
        asking_for.cancel()
        await asyncio.gather(asking_for, return_exceptions=True)
        await until(lambda: alive("monty") == before)
        await until(lambda: not server.app.models.loads["scripted"].running)
