"""Tool choices and formats over a real socket: enforced where the engine can, checked where it cannot."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from antiphon.core.constraint import Gbnf, StructuralTag
from antiphon.core.turn import MAX_DEMANDED_CALLS
from antiphon.engines.scripted import CAPABILITIES, ScriptedEngine
from tests.constrain.language import language_of
from tests.http.chat_api import ChatApi, chatting, function

pytestmark = pytest.mark.asyncio(loop_scope="module")

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
HARD = {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 7}}, "required": ["n"]}


def call(name: str, arguments: str = '{"city": "Rome"}') -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


SCRIPT: list[dict[str, Any]] = [
    {"when": "both?", "output": f"Let me look.\n{call('f')}\n{call('g')}\nDone."},
    {"when": "thrice?", "output": "\n".join([call("f")] * 3)},
    {"when": "always?", "output": "\n".join([call("f")] * 100)},
    {"when": "weather?", "output": call("f")},
    {"when": "wrong?", "output": call("f", '{"city": 3}')},
    {"when": "think?", "output": f"<think>\nHm.\n</think>\n{call('f')}"},
    {"when": "number?", "output": '{"n": 8}'},
    {"when": "json?", "output": '{"city": "Rome"}'},
    {"when": "word?", "output": "red"},
    {"when": "long?", "output": "Hello. " * 40},
    {"when": "broken?", "output": '{"city": "Ro'},
    {"output": "Hello."},
]
F, G = function("f", CITY), function("g", CITY)
TOOLS = [F, G]
STRICT = [function("f", CITY, strict=True), G]
NAMED = {"type": "function", "function": {"name": "f"}}


def allowed(mode: str, *tools: dict[str, Any]) -> dict[str, Any]:
    named = [{"type": "function", "function": {"name": tool["function"]["name"]}} for tool in tools]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api() -> AsyncIterator[ChatApi]:
    """A server whose engine enforces nothing."""
    async with chatting(SCRIPT) as api:
        yield api


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def held() -> AsyncIterator[ChatApi]:
    """A server whose engine says that it enforces grammars."""
    able = replace(CAPABILITIES, constraints=(Gbnf,))
    async with chatting(ScriptedEngine(SCRIPT, capabilities=able)) as api:
        yield api


def called(choice: Any) -> list[str]:
    return [call["function"]["name"] for call in choice["message"].get("tool_calls", ())]


# Tool choice, where the engine enforces nothing


async def test_calls_that_must_come_and_come(api: ChatApi) -> None:
    for wanted in ("required", NAMED, allowed("required", F)):
        choice = await api.choice("weather?", tools=TOOLS, tool_choice=wanted)

        assert (called(choice), choice["finish_reason"]) == (["f"], "tool_calls")
        assert "unmet" not in choice


@pytest.mark.parametrize("wanted", ["required", NAMED, allowed("required", F, G)])
async def test_a_call_that_does_not_come_is_told(api: ChatApi, wanted: Any) -> None:
    choice = await api.choice("Hi", tools=TOOLS, tool_choice=wanted)

    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello.", "stop")
    assert choice["unmet"] == ["tool_choice: the model called no tool."]


async def test_a_call_of_another_function_is_not_the_one_that_was_named(api: ChatApi) -> None:
    wanted = {"type": "function", "function": {"name": "g"}}
    choice = await api.choice("weather?", tools=TOOLS, tool_choice=wanted)

    assert (called(choice), choice["finish_reason"]) == ([], "stop")
    assert choice["unmet"] == ["tool_choice: the model called no tool."]
    assert "tool_call" not in choice["message"]["content"]


async def test_calls_of_tools_that_are_not_allowed_are_hidden(api: ChatApi) -> None:
    choice = await api.choice("both?", tools=TOOLS, tool_choice=allowed("auto", G))

    assert (called(choice), choice["finish_reason"]) == (["g"], "tool_calls")
    assert choice["message"]["content"] == "Let me look.\n\nDone."
    assert "f" in api.seen.prompt.text


async def test_one_call_ends_the_answer_if_it_must_be_the_only_one(api: ChatApi) -> None:
    choice = await api.choice("both?", tools=TOOLS, parallel_tool_calls=False)

    assert (called(choice), choice["finish_reason"]) == (["f"], "tool_calls")
    assert choice["message"]["content"] == "Let me look."
    whole = (await api.ask("both?", tools=TOOLS))["usage"]["completion_tokens"]
    steps = api.server.engine.steps
    assert (await api.ask("both?", tools=TOOLS, parallel_tool_calls=False))["usage"][
        "completion_tokens"
    ] < whole
    assert api.server.engine.steps - steps < whole


@pytest.mark.parametrize("parallel", [True, False, None])
async def test_a_named_tool_is_called_once(api: ChatApi, held: ChatApi, parallel: bool | None) -> None:
    more = {} if parallel is None else {"parallel_tool_calls": parallel}
    for server in (api, held):
        choice = await server.choice("thrice?", tools=TOOLS, tool_choice=NAMED, **more)
        assert (called(choice), choice["finish_reason"]) == (["f"], "tool_calls")


async def test_a_model_that_must_call_is_stopped_if_it_repeats_itself(held: ChatApi) -> None:
    choice = await held.choice("thrice?", tools=TOOLS, tool_choice="required")
    assert called(choice) == ["f"] * 3
    choice = await held.choice("always?", tools=TOOLS, tool_choice="required")
    assert (called(choice), choice["finish_reason"]) == (["f"] * MAX_DEMANDED_CALLS, "tool_calls")


async def test_what_looks_like_a_call_that_may_not_be_is_text(api: ChatApi) -> None:
    choice = await api.choice("both?", tools=TOOLS, tool_choice="none")

    assert choice["message"]["content"] == f"Let me look.\n{call('f')}\n{call('g')}\nDone."
    assert (called(choice), choice["finish_reason"]) == ([], "stop")
    prompt = api.seen.prompt
    await api.ask("both?", tools=TOOLS)
    assert api.seen.prompt == prompt  # so it stays cached


async def test_tools_may_be_excluded_where_none_may_be_called() -> None:
    async with chatting(SCRIPT, exclude_tools_when_tool_choice_none=True) as api:
        choice = await api.choice("both?", tools=TOOLS, tool_choice="none")

        assert choice["message"]["content"] == "Let me look.\n\nDone."
        assert (called(choice), choice["finish_reason"]) == ([], "stop")
        assert "<tools>" not in api.seen.prompt.text
        await api.ask("both?", tools=TOOLS)
        assert "<tools>" in api.seen.prompt.text


async def test_length_wins_over_calls(api: ChatApi) -> None:
    tokens = (await api.ask("both?", tools=TOOLS))["usage"]["completion_tokens"]
    for limit in (tokens // 2, tokens - 2):
        choice = await api.choice("both?", tools=TOOLS, max_tokens=limit)
        assert choice["finish_reason"] == "length"


async def test_arguments_of_strict_functions_are_checked(api: ChatApi) -> None:
    choice = await api.choice("wrong?", tools=STRICT)

    assert (called(choice), choice["finish_reason"]) == (["f"], "tool_calls")
    assert choice["unmet"] == [
        "tools[0].function.parameters: the arguments of 'f' at /city: 3 is not of type \"string\"."
    ]
    assert "unmet" not in await api.choice("wrong?", tools=TOOLS)
    assert "unmet" not in await api.choice("weather?", tools=STRICT)


async def test_a_cut_answer_is_not_judged(api: ChatApi) -> None:
    choice = await api.choice("long?", tools=TOOLS, tool_choice="required", max_tokens=30)

    assert choice["finish_reason"] == "length"
    assert "unmet" not in choice


async def test_each_choice_is_judged(api: ChatApi) -> None:
    for choice in await api.choices("Hi", tools=TOOLS, tool_choice="required", n=2):
        assert choice["unmet"]


async def test_old_functions(api: ChatApi) -> None:
    choice = await api.choice("both?", functions=[F["function"], G["function"]], function_call="auto")

    assert choice["message"]["function_call"] == {"name": "f", "arguments": '{"city": "Rome"}'}
    assert choice["finish_reason"] == "function_call"


async def test_custom_tools() -> None:
    tool = {"type": "custom", "custom": {"name": "sh", "format": {"type": "text"}}}
    wanted = {"type": "custom", "custom": {"name": "sh"}}
    async with chatting([{"output": call("sh", '{"input": "ls \\"a\\"\\n"}')}]) as api:
        choice = await api.choice("Hi", tools=[tool], tool_choice=wanted)

    [made] = choice["message"]["tool_calls"]
    assert (made["type"], made["custom"]) == ("custom", {"name": "sh", "input": 'ls "a"\n'})


# Formats, where the engine enforces nothing


def schema(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **more}}


FORMATS: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"response_format": schema(CITY, strict=True)}, "response_format"),
    ({"response_format": schema(CITY, strict=False)}, "response_format"),
    ({"response_format": schema(CITY)}, "response_format"),
    ({"structured_outputs": {"json": CITY}}, "structured_outputs.json"),
    ({"structured_outputs": {"json_object": True}}, "structured_outputs.json_object"),
    ({"structured_outputs": {"regex": r'\{"city": "\w+"\}'}}, "structured_outputs.regex"),
    ({"structured_outputs": {"choice": ["a", '{"city": "Rome"}']}}, "structured_outputs.choice"),
    ({"structured_outputs": {"grammar": 'root ::= "{" [^}]* "}"'}}, "structured_outputs.grammar"),
    (
        {"structured_outputs": {"structural_tag": {
            "type": "structural_tag", "format": {"type": "json_schema", "json_schema": CITY}}}},
        "structured_outputs.structural_tag",
    ),
    ({"guided_json": CITY}, "structured_outputs.json"),
    ({"guided_regex": r"\{.*\}"}, "structured_outputs.regex"),
    ({"guided_choice": ['{"city": "Rome"}']}, "structured_outputs.choice"),
    ({"guided_grammar": 'root ::= "{" [^}]* "}"'}, "structured_outputs.grammar"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), FORMATS)
async def test_a_format_is_checked(api: ChatApi, fields: dict[str, Any], param: str) -> None:
    good, bad = await api.choice("json?", **fields), await api.choice("Hi", **fields)

    assert (good["message"]["content"], good["finish_reason"]) == ('{"city": "Rome"}', "stop")
    assert "unmet" not in good
    assert bad["message"]["content"] == "Hello."
    [unmet] = bad["unmet"]
    assert unmet.startswith(f"{param}: the answer")


@pytest.mark.parametrize(("fields", "param"), FORMATS)
async def test_an_engine_that_enforces_gets_the_format(
    held: ChatApi, fields: dict[str, Any], param: str
) -> None:
    choice = await held.choice("json?", **fields)

    assert "unmet" not in choice
    assert admits(held, '{"city": "Rome"}')
    assert not admits(held, "Hello.")
    assert not admits(held, '{"city": "Rome"')


async def test_keywords_that_no_engine_enforces_are_checked_unless_strict(held: ChatApi) -> None:
    choice = await held.choice("number?", response_format=schema(HARD, strict=False))
    assert choice["unmet"] == ["response_format: the answer at /n: 8 is not a multiple of 7."]
    assert admits(held, '{"n": 8}')
    assert not admits(held, '{"n": "8"}')


async def test_a_format_does_not_bind_calls(api: ChatApi) -> None:
    choice = await api.choice("weather?", tools=TOOLS, response_format=schema(CITY))

    assert called(choice) == ["f"]
    assert "unmet" not in choice


# Strict refusals

CHAT_REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [F, function("h", HARD, strict=True)]}, "tools[1].function.parameters", "/properties/n: multipleOf"),
    ({"functions": [{"name": "h", "parameters": HARD, "strict": True}]}, "functions[0].parameters", "/properties/n: multipleOf"),
    (
        {"tools": [F, {"type": "custom", "custom": {"name": "sh", "format": {
            "type": "grammar", "grammar": {"syntax": "regex", "definition": "(?=a)b"}}}}]},
        "tools[1].custom.format", "pattern",
    ),
    ({"response_format": schema(HARD, strict=True)}, "response_format", "/properties/n: multipleOf"),
    ({"structured_outputs": {"json": HARD}}, "structured_outputs.json", "/properties/n: multipleOf"),
    ({"guided_json": HARD}, "guided_json", "/properties/n: multipleOf"),
    ({"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs.regex", "looks around"),
    ({"guided_regex": "("}, "guided_regex", "not closed"),
    ({"structured_outputs": {"grammar": 'root ::= root "a" | "b"'}}, "structured_outputs.grammar", "left-recursive"),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, "structured_outputs.grammar", "GBNF"),
    ({"structured_outputs": {"structural_tag": {"type": "structural_tag"}}}, "structured_outputs.structural_tag", "format"),
    ({"response_format": schema({"type": "string", "enum": []}, strict=True)}, "response_format", "contradicts itself"),
    ({"response_format": schema({"properties": {"a": {"type": "nothing"}}})}, "response_format", "not a valid JSON Schema"),
    ({"response_format": schema({"properties": {"a": {"$ref": "file:///etc/hostname"}}})}, "response_format", "not in the schema"),
    ({"response_format": schema({"properties": {"a": {"$ref": "http://127.0.0.1:1/x"}}})}, "response_format", "not in the schema"),
    ({"tools": [F], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice.function.name", "no tool"),
    ({"tool_choice": "required"}, "tool_choice", "tools"),
    ({"response_format": schema(CITY), "guided_choice": ["a"]}, "guided_choice", "response_format"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "told"), CHAT_REFUSALS)
async def test_what_cannot_be_is_refused_in_the_clients_words(
    api: ChatApi, fields: dict[str, Any], param: str, told: str
) -> None:
    error = await api.refused("Hi", **fields)

    assert error["param"] == param
    assert told in error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "told"),
    [
        ({"tools": [{"type": "function", "name": "h", "parameters": HARD, "strict": True}]}, "tools[0].parameters", "/properties/n"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": HARD, "strict": True}}}, "text.format", "/properties/n"),
        ({"structured_outputs": {"json": HARD}}, "structured_outputs.json", "/properties/n"),
        ({"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs.regex", "looks around"),
    ],
)  # fmt: skip
async def test_the_same_in_responses(api: ChatApi, fields: dict[str, Any], param: str, told: str) -> None:
    body = {"model": "scripted", "input": "Hi", **fields}
    error = (await api.post("/v1/responses", body, 400))["error"]

    assert error["param"] == param
    assert told in error["message"]


# Tool choice, where the engine enforces


def admits(api: ChatApi, text: str) -> bool:
    """Whether the engine may write this as the whole answer."""
    constraint = api.seen.constraint
    assert isinstance(constraint, Gbnf)
    return text in language_of(constraint.text)


GOOD, OTHER, WRONG = call("f"), call("g"), call("f", '{"city": 3}')


@pytest.mark.parametrize(
    ("wanted", "admitted", "barred"),
    [
        ("required", [GOOD, OTHER, f"{GOOD}\n{OTHER}", f"<think>\nHm.\n</think>\n{GOOD}"], ["Hello.", WRONG]),
        (NAMED, [GOOD], ["Hello.", WRONG, OTHER, f"{GOOD}\n{GOOD}"]),
        (allowed("required", G), [OTHER], ["Hello.", GOOD]),
    ],
)
async def test_required_calls_are_enforced_from_the_first_token(
    held: ChatApi, wanted: Any, admitted: list[str], barred: list[str]
) -> None:
    choice = await held.choice("weather?", tools=TOOLS, tool_choice=wanted)

    assert "unmet" not in choice
    assert not held.seen.constraint.triggers
    assert all(admits(held, text) for text in admitted)
    assert not any(admits(held, text) for text in barred)


async def test_one_call_is_enforced(held: ChatApi) -> None:
    await held.choice("weather?", tools=TOOLS, tool_choice="required", parallel_tool_calls=False)

    assert admits(held, GOOD)
    assert not admits(held, f"{GOOD}\n{OTHER}")


@pytest.mark.parametrize(
    ("fields", "admitted", "barred"),
    [
        ({"tools": STRICT}, [GOOD, OTHER], [WRONG]),
        ({"tools": TOOLS, "tool_choice": allowed("auto", G)}, [OTHER], [GOOD]),
        ({"tools": TOOLS, "parallel_tool_calls": False}, [GOOD, WRONG], [f"{GOOD}\n{OTHER}"]),
    ],
)
async def test_calls_that_may_come_are_enforced_once_they_begin(
    held: ChatApi, fields: dict[str, Any], admitted: list[str], barred: list[str]
) -> None:
    choice = await held.choice("Hi", **fields)

    assert choice["message"]["content"] == "Hello."
    assert "unmet" not in choice
    assert held.seen.constraint.triggers == ("<",)
    assert all(admits(held, text) for text in admitted)
    assert not any(admits(held, text) for text in barred)


async def test_a_call_that_the_client_begins_is_enforced_from_there_on(held: ChatApi) -> None:
    begun = '<tool_call>\n{"name": "f", '
    for fields in ({}, {"tool_choice": "required"}):
        await held.ask("Hi", tools=STRICT, response_prefix=begun, **fields)
        assert not held.seen.constraint.triggers
        assert admits(held, GOOD.removeprefix(begun))
        assert not admits(held, WRONG.removeprefix(begun))
        assert not admits(held, "Hello.")

    error = await held.refused("Hi", tools=STRICT, response_prefix='<tool_call>\n{"name": "h"')
    assert error["param"] == "response_prefix"
    assert (await held.choice("Hi", tools=TOOLS, response_prefix="<tool_call>"))["message"][
        "content"
    ] == "Hello."


async def test_nothing_is_enforced_where_nothing_is_demanded(held: ChatApi) -> None:
    for fields in (
        {},
        {"tools": TOOLS},
        {"tools": STRICT, "tool_choice": "none"},
        {"response_format": {"type": "text"}},
    ):
        await held.choice("Hi", **fields)
        assert held.seen.constraint is None


async def test_a_thought_is_free_before_what_is_demanded(held: ChatApi) -> None:
    await held.choice("json?", response_format=schema(CITY, strict=True))
    assert admits(held, '<think>\nAnything { goes "\n</think>\n\n{"city": "Rome"}')

    await held.choice(
        "json?", response_format=schema(CITY, strict=True), chat_template_kwargs={"enable_thinking": True}
    )
    assert admits(held, 'Anything { goes "\n</think>\n\n{"city": "Rome"}')
    assert not admits(held, '{"city": "Rome"}')


async def test_engines_get_what_they_take() -> None:
    able = replace(CAPABILITIES, constraints=(StructuralTag,))
    async with chatting(ScriptedEngine(SCRIPT, capabilities=able)) as api:
        await api.choice("weather?", tools=TOOLS, tool_choice="required")
        assert isinstance(api.seen.constraint, StructuralTag)
