"""A request for a message → a turn; what cannot be done is refused by the name of its field."""

from typing import Any

import pytest

from antiphon.apis.messages.accept import MessageContext
from antiphon.apis.messages.errors import encode_error
from antiphon.apis.messages.presentation import ThinkingShown
from antiphon.core.constraint import JsonSchema
from antiphon.core.errors import RequestError
from antiphon.core.hosts import Hosts
from antiphon.core.items import (
    Attachment,
    FunctionCall,
    FunctionOutput,
    MediaKind,
    Message,
    Reasoning,
    Role,
    TextPart,
)
from antiphon.core.turn import CallMode, Function, Hosted, PromptEnding, ToolChoice
from antiphon.toolkits.registry import built_in
from tests.apis.messages.support import accepted, items, request, unseal

VIEWS = built_in().message_views
WEATHER = {"name": "get_weather", "description": "Weather.", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Rome"}}
CALLED = FunctionCall("1", "get_weather", '{"city":"Rome"}')
SEARCH = Function("web_search", hosted=Hosted("web_search", "search"))
OPEN = Function("web_open", hosted=Hosted("web_search", "open"))
PYTHON = Function("python", hosted=Hosted("code_interpreter", "python"))


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": [*blocks]}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [*blocks]}


def text(said: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **fields}


def message(role: Role, *texts: str) -> Message:
    return Message(role, tuple(map(TextPart, texts)))


def result(content: Any = "sunny", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **fields}


# The conversation


def test_instructions_stay_where_they_are() -> None:
    said = items(
        [
            user(text("Hi")),
            {"role": "system", "content": "Be kind."},
            assistant(text("Yes?")),
            user(text("Go on")),
        ],
        system=[text("Be brief.", cache_control={"type": "ephemeral"}), text("Be good.")],
    )

    assert said == (
        message(Role.SYSTEM, "Be brief.", "Be good."),
        message(Role.USER, "Hi"),
        message(Role.SYSTEM, "Be kind."),
        message(Role.ASSISTANT, "Yes?"),
        message(Role.USER, "Go on"),
    )


def test_what_claude_code_writes_about_billing_is_not_shown() -> None:
    billing = "x-anthropic-billing-header: cc_version=2.1.197.a3f; cch=1f2e;"

    assert items("Hi", system=[text(billing), text("Be brief.")]) == items("Hi", system="Be brief.")
    assert items("Hi", system=f"{billing}\nBe brief.") == items("Hi", system="Be brief.")
    assert items("Hi", system=billing) == items("Hi")


def test_neighbours_of_one_role_are_one_message() -> None:
    said = items(
        [user(text("A"), text("B")), user(text("C")), assistant(text("D"), text("")), assistant(text("E"))]
    )

    assert said == (message(Role.USER, "A", "B", "C"), message(Role.ASSISTANT, "D", "E"))


def test_a_round_trip_of_a_tool() -> None:
    said = items([
        user(text("Weather?")),
        assistant({"type": "thinking", "thinking": "Hm.", "signature": "theirs"}, text("I look."), CALL),
        user(text("Well?"), result([text("sunny"), text("21")])),
    ])  # fmt: skip

    assert said[1:] == (
        Reasoning("Hm."),
        message(Role.ASSISTANT, "I look."),
        CALLED,
        FunctionOutput("1", (TextPart("sunny"), TextPart("21")), "get_weather"),
        message(Role.USER, "Well?"),
    )


def test_a_model_is_told_that_a_call_failed_and_what_it_cannot_see() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    reference = {"type": "tool_reference", "tool_name": "late"}
    [*_, failed] = items([user(text("?")), assistant(CALL), user(result("no such city", is_error=True))])
    [*_, seen] = items([user(text("?")), assistant(CALL), user(result([image, reference]))])

    assert failed.parts == (TextPart("Error:"), TextPart("no such city"))
    assert seen.parts == (
        Attachment(MediaKind.IMAGE, "messages[2].content[0].content[0]", data=""),
        TextPart("Found no functions."),
    )


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ({"type": "text", "media_type": "text/plain", "data": "A b."}, "A b."),
        ({"type": "content", "content": "A b."}, "A b."),
        ({"type": "content", "content": [text("A"), text("b.")]}, "A\nb."),
    ],
)
def test_a_document_is_shown_as_text(source: dict[str, Any], shown: str) -> None:
    document = {"type": "document", "title": "Of A", "context": "old", "source": source}

    [said] = items([user(document, text("What is it?"))])

    assert [part.text for part in said.parts] == [
        f"<document>\nOf A\nold\n{shown}\n</document>",
        "What is it?",
    ]


BASE64 = {"type": "base64", "media_type": "text/plain", "data": "QSBiLg=="}
SOURCES = [
    (BASE64, {"data": "QSBiLg=="}),
    ({"type": "url", "url": "https://a.example/b"}, {"url": "https://a.example/b"}),
    ({"type": "file", "file_id": "file-1"}, {"file_id": "file-1"}),
]


@pytest.mark.parametrize(("source", "given"), SOURCES)
def test_images_and_documents_are_attached_in_their_places(
    source: dict[str, Any], given: dict[str, Any]
) -> None:
    image, document = ({"type": type_, "source": source} for type_ in ("image", "document"))

    [said] = items([user(text("A"), image, {**document, "title": "Of B"})])

    assert said.parts == (
        TextPart("A"),
        Attachment(MediaKind.IMAGE, "messages[0].content[1]", **given),
        TextPart("<document>\nOf B"),
        Attachment(MediaKind.FILE, "messages[0].content[2]", **given),
        TextPart("</document>"),
    )


def test_a_document_may_hold_images() -> None:
    content = {"type": "content", "content": [text("A"), {"type": "image", "source": BASE64}]}

    [said] = items([user({"type": "document", "source": content})])

    image = Attachment(MediaKind.IMAGE, "messages[0].content[0].source.content[1]", data="QSBiLg==")
    assert said.parts == (TextPart("<document>"), TextPart("A"), image, TextPart("</document>"))


def test_a_search_result_is_shown_as_text() -> None:
    found = {"type": "search_result", "source": "u:1", "title": "Of A", "content": [text("A b.")]}

    [said] = items([user(found)])

    assert said.parts[0].text == "<search_result>\nOf A\nu:1\nA b.\n</search_result>"


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        ({"type": "thinking", "thinking": "Hm.", "signature": "sealed:Hm."}, [Reasoning("Hm.")]),
        ({"type": "thinking", "thinking": "", "signature": "sealed:Hm."}, [Reasoning("Hm.")]),
        ({"type": "thinking", "thinking": "Hm.", "signature": "theirs"}, [Reasoning("Hm.")]),
        ({"type": "thinking", "thinking": "", "signature": "theirs"}, []),
        ({"type": "redacted_thinking", "data": "sealed:Hm."}, [Reasoning("Hm.")]),
        ({"type": "redacted_thinking", "data": "theirs"}, []),
    ],
)
def test_reasoning_comes_back_by_what_was_sealed(block: dict[str, Any], shown: list[Reasoning]) -> None:
    assert list(items([user(text("?")), assistant(block), user(text("!"))])[1:-1]) == shown


SERVER_BLOCKS = [
    (
        {"name": "web_search", "input": {"query": "cats"}},
        {"type": "web_search_tool_result", "content": [
            {"type": "web_search_result", "url": "u:1", "title": "A", "encrypted_content": "sealed:1 2"},
            {"type": "web_search_result", "url": "u:2", "title": "B", "encrypted_content": "sealed:"},
        ]},
        ("web_search", '{"query":"cats"}', "1 2"),
    ),
    (
        {"name": "web_search", "input": {"query": "cats"}},
        {"type": "web_search_tool_result", "content": [
            {"type": "web_search_result", "url": "u:1", "title": "A", "encrypted_content": "theirs"},
        ]},
        ("web_search", '{"query":"cats"}', "A u:1"),
    ),
    (
        {"name": "web_fetch", "input": {"url": "u:1"}},
        {"type": "web_fetch_tool_result", "content": {
            "type": "web_fetch_result", "url": "u:1", "content": {"type": "document", "source": {"type": "text", "data": "A."}},
        }},
        ("web_open", '{"id":"u:1"}', "A."),
    ),
    (
        {"name": "code_execution", "input": {"code": "6 * 7"}},
        {"type": "code_execution_tool_result", "content": {
            "type": "code_execution_result", "stdout": "42", "stderr": "", "return_code": 0, "content": [],
        }},
        ("python", '{"code":"6 * 7"}', "42"),
    ),
    (
        {"name": "bash_code_execution", "input": {"command": "ls"}},
        {"type": "bash_code_execution_tool_result", "content": {"error_code": "unavailable"}},
        ("bash_code_execution", '{"commands":["ls"]}', "Error: unavailable"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("use", "done", "shown"), SERVER_BLOCKS)
def test_what_the_server_ran_is_shown_as_the_model_knows_it(
    use: dict[str, Any], done: dict[str, Any], shown: tuple[str, str, str]
) -> None:
    hosts = Hosts({"tools[0]": (SEARCH, OPEN), "tools[1]": (PYTHON,)})
    blocks = {"type": "server_tool_use", "id": "srvtoolu_7", **use}, {"tool_use_id": "srvtoolu_7", **done}
    tools = [
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "code_execution_20250522", "name": "code_execution"},
    ]

    said = items(
        [user(text("?")), assistant(*blocks)],
        context=MessageContext("", hosts, unseal, views=VIEWS),
        tools=tools,
    )

    name, arguments, answer = shown
    assert said[1:] == (FunctionCall("7", name, arguments), FunctionOutput("7", (TextPart(answer),), name))


@pytest.mark.parametrize("name", ["text_editor_code_execution", "tool_search"])
def test_what_tools_did_that_are_not_here_is_shown(name: str) -> None:
    call = {"type": "server_tool_use", "id": "srvtoolu_1", "name": name, "input": {"a": 1}}
    result = {"type": f"{name}_tool_result", "tool_use_id": "srvtoolu_1", "content": {"type": "seen", "b": 2}}

    *_, called, seen = items([user(text("?")), assistant(call, result)])

    assert called == FunctionCall("1", name, '{"a":1}')
    assert seen == FunctionOutput("1", (TextPart('{"type":"seen","b":2}'),), name)


def test_what_a_tool_of_an_mcp_server_did_is_shown() -> None:
    use = {"type": "mcp_tool_use", "id": "mcptoolu_7", "name": "roll", "server_name": "casino", "input": {}}
    done = {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_7", "is_error": False, "content": [text("4")]}

    said = items([user(text("?")), assistant(use, done)])

    assert said[1:] == (FunctionCall("7", "roll", "{}"), FunctionOutput("7", (TextPart("4"),), "roll"))


@pytest.mark.parametrize(
    ("last", "ending"),
    [
        (user(text("Hi")), PromptEnding.ANSWER),
        (assistant(text("Once upon")), PromptEnding.CONTINUED),
        ({"role": "assistant", "content": "Once upon"}, PromptEnding.CONTINUED),
        (assistant(CALL), PromptEnding.ANSWER),
        (assistant({"type": "thinking", "thinking": "Hm.", "signature": ""}), PromptEnding.ANSWER),
    ],
)
def test_a_text_of_the_assistant_at_the_end_is_continued(last: dict[str, Any], ending: PromptEnding) -> None:
    assert accepted([user(text("Tell")), last]).turn.ending is ending


# Tools


def test_tools_of_the_client() -> None:
    tools = [
        {**WEATHER, "strict": True, "input_examples": [{"city": "Rome"}]},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 9},
        {"type": "memory_20250818", "name": "memory"},
        {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"},
        {"type": "custom", "name": "late", "input_schema": {}, "defer_loading": True},
    ]
    weather, *others = accepted("Hi", tools=tools).turn.tools

    described = 'Weather.\nExamples of its input: [{"city":"Rome"}]'
    assert weather == Function("get_weather", described, {"type": "object"}, True, "tools[0].input_schema")
    assert [tool.name for tool in others] == ["bash", "str_replace_based_edit_tool", "memory", "late"]
    assert [*others[0].parameters["properties"]] == ["command", "restart"]


def test_tools_of_the_server() -> None:
    hosts = Hosts({"tools[0]": (SEARCH, OPEN), "tools[1]": (SEARCH, OPEN)})
    both = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
            {"type": "web_fetch_20250910", "name": "web_fetch", "max_uses": 2}]  # fmt: skip
    turn = accepted("Hi", MessageContext("", hosts, views=VIEWS), tools=both).turn
    fetching = accepted(
        "Hi", MessageContext("", Hosts({"tools[0]": (SEARCH, OPEN)}), views=VIEWS), tools=both[1:]
    ).turn

    assert turn.tools == (SEARCH, OPEN)
    assert turn.tool_limit == 5
    assert fetching.tools == (OPEN,)
    chosen = accepted(
        "Hi",
        MessageContext("", hosts, views=VIEWS),
        tools=both,
        tool_choice={"type": "tool", "name": "web_fetch"},
    ).turn
    assert chosen.tool_choice == ToolChoice(CallMode.REQUIRED, frozenset({"web_open"}), named=True)


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        (None, ToolChoice()),
        ({"type": "auto"}, ToolChoice()),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(parallel=False)),
        ({"type": "any"}, ToolChoice(CallMode.REQUIRED)),
        ({"type": "none"}, ToolChoice(CallMode.NONE)),
        (
            {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
            ToolChoice(CallMode.REQUIRED, frozenset({"get_weather"}), parallel=False, named=True),
        ),
    ],
)
def test_tool_choice(choice: Any, wanted: ToolChoice) -> None:
    assert accepted("Hi", tools=[WEATHER], tool_choice=choice).turn.tool_choice == wanted


# The rest


@pytest.mark.parametrize(
    ("thinking", "shown", "reasons", "limit"),
    [
        (None, ThinkingShown.NOTHING, False, None),
        ({"type": "disabled"}, ThinkingShown.NOTHING, False, None),
        ({"type": "enabled", "budget_tokens": 1024}, ThinkingShown.ALL, True, 1024),
        ({"type": "adaptive"}, ThinkingShown.ALL, True, None),
        ({"type": "adaptive", "display": "omitted"}, ThinkingShown.SIGNATURE, True, None),
        ({"type": "between_tools", "display": "summarized"}, ThinkingShown.ALL, True, None),
    ],
)
def test_thinking(thinking: Any, shown: ThinkingShown, reasons: bool, limit: int | None) -> None:
    request = accepted("Hi", thinking=thinking)

    assert request.presentation.thinking is shown
    assert request.turn.variables == {"enable_thinking": reasons, "thinking": reasons}
    assert request.turn.reasoning_limit == limit


@pytest.mark.parametrize("fields", [{"output_config": {"format": {}}}, {"output_format": {}}])
def test_structured_output(fields: dict[str, Any]) -> None:
    schema = {"type": "json_schema", "schema": {"type": "object"}}
    [(name, value)] = fields.items()
    turn = accepted("Hi", **{name: {"format": schema} if value else schema}).turn

    assert turn.format == JsonSchema({"type": "object"})


def test_parameters_of_sampling() -> None:
    turn = accepted(
        "Hi", temperature=0.5, top_p=0.9, top_k=5, seed=7, stop_sequences=["END"], chat_template_kwargs={"a": 1},
        output_config={"effort": "max"},
    ).turn  # fmt: skip

    assert (turn.sampling.temperature, turn.sampling.top_p, turn.sampling.top_k) == (0.5, 0.9, 5)
    assert (turn.sampling.seed, turn.sampling.max_tokens, turn.stop) == (7, 1000, ("END",))
    assert (turn.variables["reasoning_effort"], turn.variables["a"]) == ("max", 1)


def test_hints_change_nothing() -> None:
    hints = {
        "cache_control": {"type": "ephemeral"}, "service_tier": "auto", "speed": "fast", "inference_geo": "eu",
        "metadata": {"user_id": '{"device": 1}'}, "betas": ["unknown-2099-01-01"], "nobody_knows": 1,
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }  # fmt: skip

    assert accepted("Hi", **hints).turn == accepted("Hi").turn


REFUSED = [
    ("messages", {"messages": []}),
    ("max_tokens", {"max_tokens": -1}),
    ("max_tokens", {"max_tokens": None}),
    ("model", {"model": ""}),
    ("temperature", {"temperature": -1}),
    ("messages[0].role", {"messages": [{"role": "tool", "content": "x"}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": 1}]}),
    ("messages[0].content", {"messages": [user()]}),
    ("messages[0].content[0]", {"messages": [user(1)]}),
    ("messages[0].content[0].type", {"messages": [user({})]}),
    ("messages[0].content[0].type", {"messages": [user({"type": "video"})]}),
    ("messages[0].content[0].source.type", {"messages": [user({"type": "image", "source": {}})]}),
    ("messages[0].content[0].source.type", {"messages": [user({"type": "image", "source": {"type": "text"}})]}),
    ("messages[0].content[0].type", {"messages": [user(CALL)]}),
    ("messages[0].content[0].text", {"messages": [user({"type": "text"})]}),
    ("messages[0].content[0].source", {"messages": [user({"type": "document"})]}),
    (
        "messages[0].content[0].source.url",
        {"messages": [user({"type": "document", "source": {"type": "url", "url": "u:1"}})]},
    ),
    (
        "messages[0].content[0].source.data",
        {"messages": [user({"type": "document", "source": {"type": "base64", "media_type": "text/plain"}})]},
    ),
    (
        "messages[0].content[0].citations.enabled",
        {"messages": [user({"type": "document", "source": {"type": "content", "content": [{"type": "image", "source": BASE64}]}, "citations": {"enabled": True}})]},
    ),
    ("messages[0].content[0].tool_use_id", {"messages": [user(result())]}),
    ("messages[1].content[0].content[0].type", {"messages": [assistant(CALL), user(result([{"type": "x"}]))]}),
    (
        "messages[0].content[0].signature",
        {"messages": [assistant({"type": "thinking", "thinking": "Not so.", "signature": "sealed:Hm."})]},
    ),
    ("system[0].type", {"system": [{"type": "image"}]}),
    ("tools[0].input_schema", {"tools": [{"name": "f"}]}),
    ("tools[0].name", {"tools": [{"input_schema": {}}]}),
    ("tools[1].name", {"tools": [WEATHER, WEATHER]}),
    ("tools[0].type", {"tools": [{"type": "computer_use_preview", "name": "computer"}]}),
    ("tools[0].type", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    ("tools[0].allowed_callers", {"tools": [{**WEATHER, "allowed_callers": ["code_execution_20250825"]}]}),
    ("tool_choice", {"tool_choice": {"type": "any"}}),
    ("tool_choice.type", {"tools": [WEATHER], "tool_choice": {"type": "some"}}),
    ("tool_choice.name", {"tools": [WEATHER], "tool_choice": {"type": "tool"}}),
    ("tool_choice.name", {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "nobody"}}),
    ("thinking.type", {"thinking": {"type": "some"}}),
    ("thinking.budget_tokens", {"thinking": {"type": "enabled"}}),
    ("output_config.effort", {"output_config": {"effort": "much"}}),
    ("output_config.format.type", {"output_config": {"format": {"type": "xml", "schema": {}}}}),
    ("container", {"container": "container_1"}),
    ("thread", {"thread": {"type": "create"}}),
]  # fmt: skip


@pytest.mark.parametrize(("param", "fields"), REFUSED)
def test_what_is_wrong_is_refused_by_name(param: str, fields: dict[str, Any]) -> None:
    given = request() | fields

    with pytest.raises(RequestError) as error:
        accepted(given.pop("messages"), **given)

    assert error.value.param == param
    assert param in encode_error(error.value).decode()


def test_callers_other_than_the_model_are_noted() -> None:
    tool = {**WEATHER, "allowed_callers": ["direct", "code_execution_20250825"]}
    given = request() | {"tools": [tool]}
    notes = accepted(given.pop("messages"), **given).presentation.tools.notes
    assert [note.param for note in notes] == ["tools[0].allowed_callers"]


def test_uses_are_counted_for_all_tools_of_the_server_together() -> None:
    hosts = Hosts({"tools[0]": (SEARCH,), "tools[1]": (PYTHON,)})
    tools = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
             {"type": "code_execution_20250522", "name": "code_execution"}]  # fmt: skip

    for given, place in [(tools, "tools[0].max_uses"), ([{**tools[0], "max_uses": 0}], "tools[0].max_uses")]:
        with pytest.raises(RequestError) as error:
            accepted("Hi", MessageContext("", hosts, views=VIEWS), tools=given)
        assert error.value.param == place


def test_the_code_of_a_refused_thread_is_the_one_that_clients_know() -> None:
    with pytest.raises(RequestError) as error:
        accepted("Hi", thread={"type": "create"})

    assert b'"error_code":"thread_unsupported_request"' in encode_error(error.value)
