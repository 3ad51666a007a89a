"""Programs of models that call tools in the Messages API, as code execution: whole, streamed, from blocks alone."""

import itertools
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient, beta_async_tool
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message
from msgspec.structs import replace

from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.programs import fingerprint
from antiphon.core.tool_result import ToolResult
from antiphon.toolkits.programs.tool import Programs
from tests.acting import ActingTool, TakingTurns
from tests.apis.messages.support import request
from tests.http import messages_api, test_message_batches
from tests.http.harmony import FINAL, Said, written
from tests.http.messages_api import MessagesApi, texts
from tests.http.test_programs import AT_ONCE, STOCKS, STYLES, program
from tests.server import NO_TLS

CALLER = "code_execution_20260120"
RUNNER = {"type": CALLER, "name": "code_execution"}
BOTH = ["direct", CALLER]


def tool(name: str, callers: Sequence[str] | None = (CALLER,), **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"key": {}}, "required": ["key"]}
    made = {"name": name, "input_schema": schema, **more}
    return made if callers is None else {**made, "allowed_callers": [*callers]}


STOCK = tool("stock", output_schema={"type": "object", "properties": {"left": {"type": "integer"}}})
NAME = tool("name_of")
TOOLS = [RUNNER, STOCK, NAME]
GO = {"role": "user", "content": "Go!"}


@asynccontextmanager
async def asking(
    *said: str, limits: Limits = DEFAULTS, others: Sequence[Any] = (), **options: Any
) -> AsyncIterator[MessagesApi]:
    """A client of a server that runs programs of a model that says this, turn by turn."""
    tools = [Programs(limits), *others]
    async with messages_api.asking(TakingTurns(*said), tools=tools, limit=limits, **options) as api:
        yield api


@asynccontextmanager
async def anthropic(api: MessagesApi) -> AsyncIterator[AsyncAnthropic]:
    """Anthropic's own client."""
    http = DefaultAsyncHttpxClient(verify=NO_TLS)
    async with AsyncAnthropic(base_url=api.server.url, api_key="k", http_client=http) as sdk:
        yield sdk


def calls_in(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [block for block in message["content"] if block["type"] == "tool_use"]


def types_in(message: Mapping[str, Any]) -> list[str]:
    return [block["type"] for block in message["content"]]


def results(calls: Sequence[Mapping[str, Any]], *contents: Any) -> dict[str, Any]:
    """The message with which a client answers calls."""
    blocks = [
        {"type": "tool_result", "tool_use_id": call["id"], "content": content}
        for call, content in zip(calls, contents, strict=True)
    ]
    return {"role": "user", "content": blocks}


def said_by(message: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": message["content"]}


async def streamed(api: MessagesApi, messages: Any, **fields: Any) -> dict[str, Any]:
    """What Anthropic's SDK makes of a stream."""
    snapshot, buffers = None, {}  # type: ignore[var-annotated]
    for event in await api.stream(messages, **fields):
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    assert snapshot is not None
    return snapshot.to_dict(mode="json")


class Client:
    """Answers calls of programs until there are none."""

    def __init__(self, api: MessagesApi, *, stream: bool, **fields: Any) -> None:
        self._api = api
        self._stream = stream
        self._fields = {"tools": TOOLS, **fields}
        self.messages: list[Any] = [GO]
        self.answers: list[dict[str, Any]] = []
        self.rounds: list[list[tuple[str, Any]]] = []
        self.prompts: list[str] = []

    async def result(self, stock: Mapping[Any, int]) -> dict[str, Any]:
        message = await self._ask()
        while calls := calls_in(message):
            assert message["stop_reason"] == "tool_use"
            self.rounds.append([(call["name"], call["input"]["key"]) for call in calls])
            self.messages += [said_by(message), results(calls, *[self._value(call, stock) for call in calls])]
            message = await self._ask()
        assert message["stop_reason"] == "end_turn"
        return message

    async def _ask(self) -> dict[str, Any]:
        ask = streamed(self._api, self.messages, **self._fields) if self._stream else None
        message = await (ask or self._api.full(self.messages, **self._fields))
        self.answers.append(message)
        self.prompts.append(self._api.prompt)
        if message["container"] is not None:
            self._fields["container"] = message["container"]["id"]
        return message

    @staticmethod
    def _value(call: Mapping[str, Any], stock: Mapping[Any, int]) -> str:
        key = call["input"]["key"]
        return json.dumps({"left": stock[key]}) if call["name"] == "stock" else f"<{key}>"


@pytest.mark.parametrize(("style", "stream"), [*itertools.product(STYLES, (False, True))])
async def test_a_program_calls_tools_of_the_client(style: str, *, stream: bool) -> None:
    code = STYLES[style].replace("KEYS", "['a', 'b', 'c']")
    async with asking(program(code), "It is b.", "Bye.") as api:
        asker = Client(api, stream=stream)
        message = await asker.result(STOCKS)
        prompt = api.prompt
        asker.messages += [said_by(message), {"role": "user", "content": "Thanks."}]
        await asker._ask()

    stocks = [("stock", key) for key in STOCKS]
    assert asker.rounds == [
        *([stocks] if style in AT_ONCE else [[one] for one in stocks]),
        [("name_of", "b")],
    ]
    assert types_in(message) == ["code_execution_tool_result", "text"]
    assert message["content"][0]["content"] == {
        "type": "code_execution_result",
        "stdout": "<b>\n",
        "stderr": "",
        "return_code": 0,
        "content": [],
    }
    assert texts(message) == "It is b."
    assert "<b>" in prompt
    assert '"left"' not in prompt.partition("<|im_start|>user")[2], "only what it printed"
    assert api.prompt.startswith(f"{prompt}It is b."), "the prompt of the next turn begins with this one"


@pytest.mark.parametrize(
    ("version", "caller"),
    [
        ("code_execution_20250522", CALLER),
        ("code_execution_20250825", "code_execution_20250825"),
        (CALLER, CALLER),
        ("code_execution_20260521", CALLER),
    ],
)
async def test_the_blocks_of_a_program_say_which_it_is(version: str, caller: str) -> None:
    async with asking(program("print(stock('a'))"), "Done.") as api:
        tools = [{**RUNNER, "type": version}, STOCK]
        message = await api.full(tools=tools)
        other = await streamed(api, "Hi", tools=tools)
        ended = await api.full(
            [GO, said_by(message), results(calls_in(message), '{"left": 3}')],
            tools=tools,
            container=message["container"],
        )
    use, call = message["content"]
    assert (use["type"], use["name"], use["input"]) == (
        "server_tool_use",
        "code_execution",
        {"code": "print(stock('a'))"},
    )
    assert use["caller"] == {"type": "direct"}
    assert call["caller"] == {"type": caller, "tool_id": use["id"]}
    assert ended["content"][0]["tool_use_id"] == use["id"]
    assert message["container"]["id"].startswith("container_")
    assert ended["container"]["id"] == message["container"]["id"]
    Message.model_validate(message)
    for one in (message, other):
        one["content"][1]["caller"]["tool_id"] = one["content"][0]["id"] = one["content"][1]["id"] = ""
        one.pop("generations", None)
        one["id"] = one["container"]["id"] = one["container"]["expires_at"] = ""
    both = [
        Message.model_validate({**one, "container": None}).to_dict(mode="json") for one in (message, other)
    ]
    assert both[0] == both[1], "a stream adds up to the whole"


async def test_the_sdk_of_anthropic_answers_calls_of_programs() -> None:
    code = STYLES["together"].replace("KEYS", "['a', 'b']")
    async with asking(program(code), "It is b.") as api, anthropic(api) as sdk:
        messages: list[Any] = [GO]
        fields: dict[str, Any] = {"model": "scripted", "max_tokens": 999, "tools": [RUNNER, STOCK, NAME]}
        while True:
            async with sdk.messages.stream(messages=messages, **fields) as stream:
                message = await stream.get_final_message()
            calls = [block for block in message.content if block.type == "tool_use"]
            if not calls:
                break
            assert message.container is not None
            fields["container"] = message.container.id
            assert all(call.caller is not None and call.caller.type == CALLER for call in calls)
            given = [{"id": call.id} for call in calls]
            answers = ['{"left": 2}' if call.name == "stock" else "B" for call in calls]
            messages += [{"role": "assistant", "content": message.content}, results(given, *answers)]
    assert [block.type for block in message.content] == ["code_execution_tool_result", "text"]


async def test_programs_side_by_side_and_a_direct_call_go_on_together() -> None:
    look = f"<tool_call>\n{json.dumps({'name': 'look', 'arguments': {'key': 'z'}})}\n</tool_call>"
    said = "\n".join((program("print(stock('a'))"), look, program("print(name_of('b'))")))
    tools = [*TOOLS, tool("look", None)]
    async with asking(said, *["Done."] * 3) as api:
        message = await api.full([GO], tools=tools)
        calls = calls_in(message)
        assert sorted(call["name"] for call in calls) == ["look", "name_of", "stock"]
        answers = {"look": "seen", "name_of": "B", "stock": '{"left": 1}'}
        messages = [GO, said_by(message), results(calls, *[answers[call["name"]] for call in calls])]
        ended = await api.full(messages, tools=tools)
        prompt = api.prompt
        await api.full([*messages, said_by(ended), GO], tools=tools)
    printed = [block["content"]["stdout"] for block in ended["content"] if block["type"] != "text"]
    assert printed == ["{'left': 1}\n", "B\n"]
    assert texts(ended) == "Done."
    assert api.prompt.startswith(f"{prompt}Done."), "the prompt of the next turn begins with this one"


async def test_time_and_random_numbers_are_the_same_when_it_goes_on() -> None:
    code = """import random, datetime, time
before = (random.random(), str(datetime.datetime.now()), time.time())
x = name_of(str(before))
stock("a")
print(before)"""
    async with asking(program(code), "Done.") as api:
        asker = Client(api, stream=False)
        message = await asker.result(STOCKS)
    (_, told), printed = asker.rounds[0][0], message["content"][0]["content"]["stdout"]
    assert printed == f"{told}\n"


async def test_a_failed_call_raises_in_the_program() -> None:
    code = "try:\n    stock('a')\nexcept RuntimeError as error:\n    print('It says', error)"
    async with asking(program(code), "Done.") as api:
        message = await api.full([GO], tools=TOOLS)
        told = results(calls_in(message), [{"type": "text", "text": "sold out"}])
        told["content"][0]["is_error"] = True
        ended = await api.full([GO, said_by(message), told], tools=TOOLS)
    assert ended["content"][0]["content"]["stdout"] == "It says sold out\n"


async def test_a_model_of_harmony_writes_programs() -> None:
    arguments = json.dumps({"code": "print(stock('a')['left'])"})
    to = "<|channel|>commentary to=functions.programmatic_tool_calling <|constrain|>json<|message|>"
    engine = Said()
    engine.says(written(f"{to}{arguments}", end="<|call|>"), written(f"{FINAL}Done."))
    async with messages_api.asking(engine, dialect="openai", tools=[Programs(DEFAULTS)]) as api:
        message = await Client(api, stream=True).result(STOCKS)
    assert message["content"][0]["content"]["stdout"] == "3\n"


# What goes wrong


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda blocks: blocks[1].update(name="name_of"), "name_of"),
        (lambda blocks: blocks[1].update(input={"key": "q"}), '"q"'),
        (lambda blocks: blocks.append({**blocks[1], "id": "toolu_other"}), "is none"),
    ],
)
async def test_a_program_that_goes_another_way_fails_and_says_so(change: Any, told: str) -> None:
    async with asking(program("stock('a')"), "Done.", "Bye.") as api:
        message = await api.full([GO], tools=TOOLS)
        change(message["content"])
        calls = calls_in(message)
        messages = [GO, said_by(message), results(calls, *["{}"] * len(calls))]
        ended = await api.full(messages, tools=TOOLS)
        prompt = api.prompt
        await api.full([*messages, said_by(ended), GO], tools=TOOLS)
    content = ended["content"][0]["content"]
    assert (content["return_code"], content["stdout"]) == (1, "")
    assert "did not call what it had called before" in content["stderr"]
    assert told in content["stderr"]
    assert "did not call" in prompt
    assert api.prompt.startswith(f"{prompt}Done.")


def _of_no_program(messages: list[Any]) -> None:
    use, *calls = messages[1]["content"]
    use["id"] = "srvtoolu_other_" + fingerprint("print(2)", 1)
    for call in calls:
        call["caller"]["tool_id"] = use["id"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        (lambda messages: messages[1]["content"][0]["input"].update(code="1"), "messages[1].content[0].id"),
        (lambda messages: messages[1]["content"][0].update(input={}), "messages[1].content[0].id"),
        (_of_no_program, "messages[1].content[0].id"),
        (lambda messages: messages[2]["content"].pop(), "the results of all its calls together"),
        (lambda messages: messages[2]["content"][1].update(tool_use_id="toolu_q"), "messages[2].content[1].tool_use_id"),
        (
            lambda messages: messages[2]["content"][1].update(content=[{"type": "image", "source": {}}]),
            "messages[2].content[1].content[0].type",
        ),
    ],
)  # fmt: skip
async def test_what_no_program_goes_on_from_is_refused(change: Any, param: str) -> None:
    code = STYLES["together"].replace("KEYS", "['a', 'b']")
    async with asking(program(code)) as api:
        message = await api.full([GO], tools=TOOLS)
        messages = [GO, said_by(message), results(calls_in(message), "{}", "{}")]
        untold = await api.refused(messages, tools=[tool("name_of", None)])
        assert "tools" in untold["message"]
        change(messages)
        error = await api.refused(messages, tools=TOOLS)
    assert param in error["message"]


ODD: tuple[Any, ...] = (None, "c", [], {}, {"type": CALLER}, {"type": CALLER, "tool_id": []})


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/render"])
async def test_no_blocks_of_programs_break_it(path: str) -> None:
    """Each field of each block has each odd value once."""
    id_ = f"srvtoolu_p_{fingerprint('name_of(1)', 1)}"
    caller = {"type": CALLER, "tool_id": id_}
    use = {"type": "server_tool_use", "id": id_, "name": "code_execution", "input": {"code": "name_of(1)"}}
    call = {"type": "tool_use", "id": "c", "name": "name_of", "input": {"key": 1}, "caller": caller}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "x", "is_error": False}
    end = {"type": "code_execution_tool_result", "tool_use_id": id_, "content": {"stdout": "x", "stderr": ""}}
    async with asking("Hm.", "Hm.", "Hm.", "Hm.") as api:
        for last in (False, True):
            blocks = [use, call, result, end]
            for number, block in enumerate(blocks[: 3 + last]):
                for field, value in itertools.product({*block} - {"type"}, ODD):
                    given = [dict(block) for block in blocks]
                    given[number][field] = value
                    messages = [
                        GO,
                        {"role": "assistant", "content": given[:2]},
                        {"role": "user", "content": given[2:3]},
                        *([{"role": "assistant", "content": given[3:]}, GO] if last else []),
                    ]
                    body = {"model": "scripted", "max_tokens": 99, "messages": messages, "tools": TOOLS}
                    if path.endswith("count_tokens"):
                        del body["max_tokens"]
                    response = await api.http.post(path, json=body)
                    assert response.status_code in (200, 400), response.text


async def test_a_program_whose_client_goes_on_without_it_has_no_result() -> None:
    async with asking(program("stock('a')"), "Never mind.") as api:
        message = await api.full([GO], tools=TOOLS)
        ended = await api.full([GO, said_by(message), {"role": "user", "content": "Stop."}], tools=TOOLS)
    assert texts(ended) == "Never mind."
    assert "There is no result of this call." in api.prompt


async def test_a_program_of_an_earlier_turn_does_not_go_on() -> None:
    async with asking(program("stock('a')"), "Well.", "Done.") as api:
        message = await api.full([GO], tools=TOOLS)
        told = results(calls_in(message), "{}")
        ended = await api.full(
            [GO, said_by(message), told, {"role": "assistant", "content": "Well."}, GO], tools=TOOLS
        )
    assert types_in(ended) == ["text"]


async def test_a_call_whose_program_is_lost_is_one_of_the_model() -> None:
    async with asking(program("stock('a')"), "Done.") as api:
        message = await api.full([GO], tools=TOOLS)
        kept = {"role": "assistant", "content": message["content"][1:]}
        ended = await api.full([GO, kept, results(calls_in(message), "{}")], tools=TOOLS)
    assert [note["param"] for note in ended["notes"]] == ["messages[1].content[0].caller"]
    assert '"name": "stock"' in api.prompt


async def test_more_programs_than_allowed_do_not_go_on() -> None:
    said = program("stock('a')") + program("stock('b')")
    async with asking(said, limits=replace(DEFAULTS, programs=1)) as api:
        message = await api.full([GO], tools=TOOLS)
        error = await api.refused([GO, said_by(message), results(calls_in(message), "{}", "{}")], tools=TOOLS)
    assert "'programs'" in error["message"]


@pytest.mark.parametrize(
    "code", ["def", "print(1/0)", "wibble()", "stock({1})", "stock(1, 2)", "print('nothing to call')", None]
)
async def test_any_program_gets_an_answer(code: str | None) -> None:
    said = program(code) if code is not None else program("").replace('"code": ""', "")
    async with asking(said, "Done.") as api:
        message = await Client(api, stream=True).result({1: 1})
    assert texts(message) == "Done."
    assert "code_execution_tool_result" in types_in(message)


# Long conversations


async def test_a_conversation_with_a_program_that_waits_is_not_summarised() -> None:
    edits = {"edits": [{"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 1}}]}
    async with asking(program("print(stock('a'))"), "Done.", "Summary.") as api:
        message = await api.full([GO], tools=TOOLS)
        messages = [GO, said_by(message), results(calls_in(message), '{"left": 3}')]
        ended = await api.full(messages, tools=TOOLS, context_management=edits)
        error = await api.refused(messages, tools=TOOLS, compaction={"type": "summarize"})
    assert types_in(ended) == ["code_execution_tool_result", "text"]
    assert "no results yet" in error["message"]


async def test_old_output_of_programs_is_cleared_like_other_results() -> None:
    clear = {"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 0},
             "keep": {"type": "tool_uses", "value": 0}}  # fmt: skip
    async with asking(program("print(stock('a'))"), "Done.", "Bye.") as api:
        asker = Client(api, stream=False)
        message = await asker.result({"a": 77})
        messages = [*asker.messages, said_by(message), GO]
        await api.full(messages, tools=TOOLS)
        assert "77" in api.prompt
        await api.full(messages, tools=TOOLS, context_management={"edits": [clear]})
        assert "77" not in api.prompt
        counted = await api.post("/v1/messages/count_tokens",
                                 {"model": "scripted", "messages": messages, "tools": TOOLS})  # fmt: skip
    assert counted["input_tokens"] > 0


# Who may call what


async def test_the_model_is_offered_what_it_may_call_and_told_what_programs_may() -> None:
    async with asking("Hello.") as api:
        tools = [RUNNER, tool("both", BOTH), {**NAME, "defer_loading": True}, tool("own", None)]
        message = await api.full(tools=tools)
    head = api.prompt
    assert "def both(key: Any) -> str: ..." in head
    assert "def name_of(" in head
    assert "def own(" not in head
    assert '"name": "own"' in head
    assert '"name": "both"' in head
    assert '"name": "name_of"' not in head
    assert "notes" not in message
    assert message["container"] is None


@pytest.mark.parametrize("served", [False, True])
async def test_code_execution_runs_programs_only_for_tools_that_let_it(*, served: bool) -> None:
    python = f"<tool_call>\n{json.dumps({'name': 'python', 'arguments': {'code': '1'}})}\n</tool_call>"
    acting = ActingTool(results=[ToolResult("one")])
    direct = tool("stock", BOTH)
    runners = [Programs(DEFAULTS)] if served else []
    said = TakingTurns(python, "Done.")
    async with messages_api.asking(said, tools=[acting, *runners]) as api:
        plain = await api.full(tools=[RUNNER, tool("stock", None)])
        assert ("python", {"code": "1"}) in acting.done
        assert plain["container"] is None
        if not served:
            noted = await api.full(tools=[RUNNER, direct])
            assert [note["param"] for note in noted["notes"]] == ["tools[1].allowed_callers"]
            assert "--programs" in (await api.refused(tools=[RUNNER, NAME]))["message"]
        else:
            await api.full(tools=[RUNNER, direct])
            assert "def stock(" in api.prompt


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [NAME]}, "tools[0].allowed_callers"),
        ({"tools": [RUNNER, {**NAME, "allowed_callers": ["wibble"]}]}, "tools[1].allowed_callers"),
        ({"tools": [RUNNER, {**NAME, "allowed_callers": "direct"}]}, "tools[1].allowed_callers"),
        ({"tools": [RUNNER, tool("print")]}, "tools[1].name"),
        ({"tools": [RUNNER, tool("a-b"), tool("a_b")]}, "In programs it has the name of 'a-b'"),
        ({"tools": [RUNNER, NAME, tool("name_of", None)]}, "two tools with the name 'name_of'"),
        ({"tools": [{"type": "programmatic_tool_calling", "name": "p"}]}, "tools[0].type"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "stock"}}, "tool_choice.name"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            "tool_choice.disable_parallel_tool_use",
        ),
        ({"tools": TOOLS, "container": "container_1"}, "container"),
        ({"tools": TOOLS, "container": {"skills": [{"type": "custom"}]}}, "container.skills"),
        (
            {"messages": [GO, {"role": "system", "content": [
                {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "stock"}}]}, GO],
             "tools": TOOLS},
            "messages[1].content[0].tool",
        ),
        (
            {"messages": [{"role": "system", "content": [
                {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool("late")}}]}, GO],
             "tools": TOOLS},
            "messages[0].content[0].tool.definition.allowed_callers",
        ),
    ],
)  # fmt: skip
async def test_what_programs_cannot_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    async with asking("Hello.") as api:
        error = await api.refused(**{"messages": "Hi", **fields})
    assert param in error["message"]


@pytest.mark.parametrize(
    "tools",
    [
        [tool("stock", BOTH)],
        [{"type": "tool_search_tool_bm25", "name": "tool_search_tool_bm25", "allowed_callers": BOTH}],
    ],
)
async def test_notes_say_which_tools_programs_do_not_call(tools: list[Any]) -> None:
    async with asking("Hello.") as api:
        message = await api.full(tools=tools)
    assert "tools[0].allowed_callers" in [note["param"] for note in message["notes"]]


async def test_a_named_choice_has_the_model_write_a_program() -> None:
    async with asking(program("print(stock('a')['left'])"), "Done.") as api:
        message = await api.full([GO], tools=TOOLS, tool_choice={"type": "tool", "name": "code_execution"})
    assert types_in(message) == ["server_tool_use", "tool_use"]


async def test_what_the_user_says_beside_the_results_follows_the_output() -> None:
    async with asking(program("print(stock('a')['left'])"), "Done.", "Bye.") as api:
        message = await api.full([GO], tools=TOOLS)
        told = results(calls_in(message), '{"left": 77}')
        told["content"].append({"type": "text", "text": "Quickly!"})
        messages = [GO, said_by(message), told]
        ended = await api.full(messages, tools=TOOLS)
        prompt = api.prompt
        await api.full([*messages, said_by(ended), GO], tools=TOOLS)
    assert 0 < prompt.rindex("77") < prompt.index("Quickly!")
    assert api.prompt.startswith(f"{prompt}Done.")


async def test_a_batch_goes_on_with_a_program() -> None:
    async with asking(program("print(stock('a')['left'])"), "Done.") as api:
        message = await api.full([GO], tools=TOOLS)
        told = [GO, said_by(message), results(calls_in(message), '{"left": 77}')]
        entries = [
            {"custom_id": id_, "params": request(messages, tools=TOOLS)}
            for id_, messages in (("begins", [GO]), ("goes_on", told))
        ]
        batch = await test_message_batches.ended(api, await test_message_batches.made(api, *entries))
        found = await test_message_batches.results(api, batch)
    assert types_in(found["begins"]["message"]) == ["server_tool_use", "tool_use"]
    assert found["begins"]["message"]["container"]["id"].startswith("container_py1_")
    assert found["goes_on"]["message"]["content"][0]["content"]["stdout"] == "77\n"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_tool_runner_of_anthropic_runs_the_functions_of_programs(*, stream: bool) -> None:
    asked: list[str] = []

    @beta_async_tool(allowed_callers=[CALLER])
    async def stock(key: str) -> str:
        """How much there is."""
        asked.append(key)
        return str(len(asked))

    code = "import asyncio\nprint(await asyncio.gather(stock('a'), stock('b')), stock('c'))"
    async with asking(program(code), "Done.") as api, anthropic(api) as sdk:
        runner = sdk.beta.messages.tool_runner(
            model="scripted",
            max_tokens=999,
            tools=[cast("Any", RUNNER), stock],
            messages=cast("Any", [GO]),
            stream=cast("Any", stream),
        )
        last = await runner.until_done()
    assert asked == ["a", "b", "c"]
    result, text = last.content
    assert (result.type, text.type) == ("code_execution_tool_result", "text")
    assert result.to_dict()["content"]["stdout"] == "['1', '2'] 3\n"


def _removal(name: str) -> dict[str, Any]:
    reference = {"type": "tool_reference", "name": name}
    return {"role": "system", "content": [{"type": "tool_removal", "tool": reference}]}


@pytest.mark.parametrize(
    ("fields", "more", "stdout"),
    [
        ({"tool_choice": {"type": "none"}}, [], "77\n"),
        ({"tools": [{**RUNNER, "max_uses": 1}, STOCK]}, [], "77\n"),
        ({}, [_removal("code_execution")], "77\n"),
        ({"tools": [RUNNER, {**STOCK, "allowed_callers": BOTH}]}, [_removal("stock")], ""),
        ({"thinking": {"type": "adaptive"}}, [], "77\n"),
        ({}, [{"role": "assistant", "content": "It is"}], None),
    ],
)
async def test_a_program_goes_on_whatever_else_the_request_says(
    fields: dict[str, Any], more: list[Any], stdout: str | None
) -> None:
    async with asking(program("print(stock('a')['left'])"), "Done.") as api:
        message = await api.full([GO], tools=TOOLS)
        told = [GO, said_by(message), results(calls_in(message), '{"left": 77}'), *more]
        given = {"tools": TOOLS, **fields}
        ended = await api.full(told, **given)
        assert types_in(await streamed(api, told, **given)) == types_in(ended)
    printed = [block["content"]["stdout"] for block in ended["content"] if "tool_use_id" in block]
    assert printed == ([] if stdout is None else [stdout])


async def test_no_program_goes_on_to_warm_a_prompt() -> None:
    async with asking(program("print(stock('a')['left'])"), "Done.") as api:
        message = await api.full([GO], tools=TOOLS)
        told = [GO, said_by(message), results(calls_in(message), "{}")]
        error = await api.post("/v1/messages", request(told, tools=TOOLS) | {"max_tokens": 0}, 400)
    assert error["error"]["message"].startswith("With the results, a program continues")
