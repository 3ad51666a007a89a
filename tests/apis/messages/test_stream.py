"""Messages without I/O: a stream adds up to the full answer by Anthropic's own accumulator."""

import json

import anthropic
import pytest
from anthropic.types import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from jiter import from_json
from msgspec.structs import replace

from antiphon.apis.chat.stream import ChatCompletionStream
from antiphon.apis.cut_objects import object_so_far
from antiphon.apis.envelope import PresentationOptions
from antiphon.apis.messages.context import ContextPlan
from antiphon.apis.messages.presentation import Presentation, ThinkingShown
from antiphon.apis.messages.stream import MessageStream
from antiphon.apis.messages.tools import Tools
from antiphon.core.accumulator import Accumulator
from antiphon.core.chunks import FinishReason
from antiphon.core.errors import EngineBusyError, EngineError
from antiphon.core.events import (
    CallEnded,
    CallStarted,
    Event,
    Finished,
    ToolCallsPending,
    ToolResultReceived,
    Usage,
)
from antiphon.core.tool_result import ToolResult
from antiphon.core.turn import Function, Hosted
from antiphon.dialects.registry import DIALECTS
from antiphon.toolkits.code_interpreter.details import ProgramDetails
from antiphon.toolkits.registry import built_in
from antiphon.toolkits.shell.details import CommandDetails
from antiphon.toolkits.web_search.details import FindDetails, OpenDetails, SearchDetails
from tests.apis.chat.support import said
from tests.apis.messages.support import (
    ALL,
    ANTHROPIC,
    ENVELOPE,
    accumulated,
    answered,
    check_stream,
    essence,
    sdk,
    seal,
    streamed,
)
from tests.contracts.dialect import TOOLS, answers, table_of
from tests.counting import lines
from tests.laws import cut, cuts, model_text
from tests.openai_schema import validate
from tests.response_invariants import read_events
from tests.search import examples

PIECES = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "\n", " ", "hello", "<", "👋", "STOP",
    '{"name": "f", "arguments": {"a": 1}}', '{"name": "f"', '"arguments": {', '{"arguments":{},"name":"g"}',
    '<tool_call>{"name": "f"}</tool_call>', '<tool_call>{"name": "g", "arguments": {"a": ["b", 1.5', '"}', "]}",
    "<think>hm</think>", "{", "}", "[", "]", ",", ":", '"', "null", "\\", "é",
]  # fmt: skip
SHOWN = st.builds(
    Presentation, thinking=st.sampled_from(ThinkingShown), max_tokens=st.sampled_from([1, 1000])
)
CALL = '<tool_call>\n{"name": "f", "arguments": {"city": "Rome"}}\n</tool_call>'


def check(events: list[Event], presentation: Presentation = ALL, *, valid: bool = True) -> dict[str, object]:
    """The full answer. The stream is in order, does not depend on batches, and adds up to it."""
    payloads = streamed(events, presentation)
    check_stream(payloads, valid=valid)
    assert streamed(events, presentation, batch=7) == payloads
    body = answered(events, presentation)
    if valid:
        validate("Message", body, ANTHROPIC)
    message = Message.model_validate(body).to_dict(mode="json")
    assert essence(accumulated(payloads)) == essence(message)
    return body


@given(
    text=model_text(PIECES),
    at=cuts,
    reason=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
    stop=st.sampled_from([(), ("STOP",)]),
    presentation=SHOWN,
)
@settings(max_examples=examples(100))
def test_the_stream_adds_up_to_the_full_answer(
    text: str, at: list[int], reason: FinishReason, stop: tuple[str, ...], presentation: Presentation
) -> None:
    check(said(cut(text, at), reason, stop=stop), presentation, valid=False)


WRITTEN = [
    (name, case["output"], case.get("state"))
    for name in (dialect.names[0] for dialect in DIALECTS)
    for case in answers(name).values()
    if "output" in case
]
"""Dialect, an answer in it, and where that begins."""


@given(
    written=st.sampled_from(WRITTEN),
    at=cuts,
    reason=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
    presentation=SHOWN,
)
@settings(max_examples=examples(100))
def test_the_answers_of_every_dialect_add_up(
    written: tuple[str, str, str | None], at: list[int], reason: FinishReason, presentation: Presentation
) -> None:
    dialect, text, state = written
    events = said(cut(text, at), reason, table=table_of(dialect), state=state, tools=TOOLS)
    check(events, presentation, valid=False)


@pytest.mark.parametrize(
    ("dialect", "between"),
    [
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>{}<parameter=b>\n2\n</parameter>\n</function>\n</tool_call>"),
        ("glm45", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>{}<arg_key>b</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"),
        ("minimax_m2", '<minimax:tool_call><invoke name="f"><parameter name="a">1</parameter>{}<parameter name="b">2</parameter></invoke></minimax:tool_call>'),
        ("minimax_m3", ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="f">]<]minimax[>[<a>1]<]minimax[>[</a>{}]<]minimax[>[<b>2]<]minimax[>[</b>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>'),
        ("deepseek_v4", '<｜DSML｜tool_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>{}<｜DSML｜parameter name="b" string="false">2</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>'),
    ],
    ids=lambda value: value if value.isidentifier() or value.isalnum() else "",
)  # fmt: skip
def test_text_between_arguments_is_skipped_and_later_ones_arrive(dialect: str, between: str) -> None:
    integers = {"type": "object", "properties": {key: {"type": "integer"} for key in "ab"}}
    events = said([between.format("\nand also\n")], table=table_of(dialect), tools={"f": integers})

    content = check(events)["content"]
    assert [block["input"] for block in content] == [{"a": 1, "b": 2}]  # type: ignore[attr-defined]


@given(text=model_text(PIECES), at=cuts, presentation=SHOWN)
@settings(max_examples=examples(100))
def test_what_is_said_does_not_depend_on_how_it_was_cut(
    text: str, at: list[int], presentation: Presentation
) -> None:
    whole, pieces = answered(said([text]), presentation), answered(said(cut(text, at)), presentation)

    assert pieces["content"] == whole["content"]


LONG = "word " * 200
CALLED = (
    f'<tool_call>\n{{"name": "f", "arguments": {{"city": "{LONG}", "at": [{"1, " * 200}0]}}}}\n</tool_call>'
)


@pytest.mark.parametrize("text", [LONG, f"<think>{LONG}</think>", CALLED])
def test_a_token_takes_no_more_work_than_in_chat(text: str) -> None:
    events = Accumulator().extend(said(list(text)))

    def work(stream: MessageStream | ChatCompletionStream) -> int:
        stream.begin()
        return lines(lambda: [stream.push(0, [event]) for event in events])

    in_chat = ChatCompletionStream(ENVELOPE, 1, PresentationOptions())
    assert work(MessageStream(ENVELOPE, ALL, seal)) <= 1.1 * work(in_chat)


# The end


@pytest.mark.parametrize(
    ("text", "end", "reason", "sequence"),
    [
        ("Hi", Finished(FinishReason.STOP, Usage(1)), "end_turn", None),
        ("Hi", Finished(FinishReason.STOP, Usage(1), 7), "end_turn", None),
        ("Hi", Finished(FinishReason.STOP, Usage(1), "\n\n"), "stop_sequence", "\n\n"),
        ("Hi", Finished(FinishReason.CONTENT_FILTER, Usage(1)), "refusal", None),
        (CALL, Finished(FinishReason.TOOL_LIMIT, Usage(1)), "pause_turn", None),
        ("Hi", Finished(FinishReason.LENGTH, Usage(1000)), "max_tokens", None),
        ("Hi", Finished(FinishReason.LENGTH, Usage(999)), "model_context_window_exceeded", None),
        (CALL, Finished(FinishReason.STOP, Usage(1)), "tool_use", None),
        (CALL, Finished(FinishReason.LENGTH, Usage(1000)), "max_tokens", None),
        (CALL[:-20], Finished(FinishReason.STOP, Usage(1)), "tool_use", None),
        (CALL[:-20], Finished(FinishReason.LENGTH, Usage(1000)), "max_tokens", None),
    ],
)
def test_why_an_answer_ended(text: str, end: Finished, reason: str, sequence: str | None) -> None:
    body = check([*said([text])[:-1], end])

    assert (body["stop_reason"], body["stop_sequence"]) == (reason, sequence)
    details = {"type": "refusal", "category": None, "explanation": None}
    assert body["stop_details"] == (details if reason == "refusal" else None)


def test_usage_counts_what_the_engine_had_cached_apart() -> None:
    end = Finished(
        FinishReason.STOP, Usage(completion_tokens=10, reasoning_tokens=4, cached_tokens=3, prompt_tokens=9)
    )
    events = [*said(["Hi"])[:-1], end]

    usage = check(events)["usage"]

    assert isinstance(usage, dict)
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (8, 3)  # of 2 + 9
    assert (usage["output_tokens"], usage["output_tokens_details"]["thinking_tokens"]) == (10, 4)
    start, *_ = check_stream(streamed(events))
    assert start["message"]["usage"]["input_tokens"] == 2


def test_unmet_demands_are_told() -> None:
    events = [*said(["Hi"])[:-1], Finished(FinishReason.STOP, Usage(), unmet=("tool_choice: …",))]

    assert check(events)["unmet"] == ["tool_choice: …"]
    assert check_stream(streamed(events))[-2]["delta"]["unmet"] == ["tool_choice: …"]


def test_an_answer_of_nothing_has_no_content() -> None:
    assert check(said([""]))["content"] == []


def test_who_wants_to_know_is_told_that_no_edits_were_made() -> None:
    body = check(said(["Hi"]), Presentation(max_tokens=9, context=ContextPlan(reports=True)))

    assert body["context_management"] == {"applied_edits": []}
    assert "context_management" not in answered(said(["Hi"]))


# Reasoning


@pytest.mark.parametrize(
    ("shown", "block"),
    [
        (ThinkingShown.ALL, [{"type": "thinking", "thinking": "Hm.", "signature": seal("Hm.")}]),
        (ThinkingShown.SIGNATURE, [{"type": "thinking", "thinking": "", "signature": seal("Hm.")}]),
        (ThinkingShown.NOTHING, []),
    ],
)
def test_reasoning_is_shown_as_it_is_wanted(shown: ThinkingShown, block: list[object]) -> None:
    body = check(said(["<think>", "Hm.", "</think>", "Hi"]), Presentation(shown, 1000))

    assert body["content"] == [*block, {"type": "text", "text": "Hi", "citations": []}]
    stream = b"".join(streamed(said(["<think>", "Hm.", "</think>", "Hi"]), Presentation(shown, 1000)))
    assert (b'thinking":"Hm."' in stream) == (shown is ThinkingShown.ALL)


# Calls


def test_a_call_is_the_clients_under_an_id_with_a_prefix() -> None:
    [block] = check(said(list(CALL)))["content"]  # type: ignore[misc]

    assert block == {
        "type": "tool_use",
        "id": "toolu_0",
        "name": "f",
        "input": {"city": "Rome"},
        "caller": {"type": "direct"},
    }


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('["city"', {}),
        ("nonsense", {}),
        ('{"a": Rome}', {}),
        ('{"a": 1, "b": "x" y}', {"a": 1, "b": "x"}),
        ('{"a": "\\ud83d", "b": "\\ud83d\\ude00"}', {"a": "\ufffd", "b": "\U0001f600"}),
        ('{"a": 1, "b": "\\ud83d', {"a": 1}),
    ],
)
def test_clients_get_no_input_that_they_could_not_parse(arguments: str, shown: object) -> None:
    [block] = check(said(list(f'<tool_call>{{"name": "f", "arguments": {arguments}')))["content"]  # type: ignore[misc]

    assert block["input"] == shown


@given(text=st.text('{}[]",:\\ tru1.5-enul\n'))
@settings(max_examples=examples(300))
def test_of_a_cut_object_the_whole_members_are_shown(text: str) -> None:
    assert isinstance(object_so_far(text), dict)


@given(value=st.dictionaries(st.text(), st.recursive(
    st.none() | st.booleans() | st.integers(-999, 999) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)), end=st.integers(0, 200), spaces=st.booleans())  # fmt: skip
@settings(max_examples=examples(300))
def test_a_cut_object_is_what_the_sdk_makes_of_it(value: dict[str, object], end: int, spaces: bool) -> None:
    text = json.dumps(value, indent=1 if spaces else None)[: end + 1]
    whole = text.rstrip("0123456789-")  # a number may be cut anywhere

    assert object_so_far(whole) == from_json(whole.encode(), partial_mode=True)


RESULTS = [
    (
        Hosted("code_interpreter", "python"), '{"code": "6 * 7"}', ToolResult("42\n", ProgramDetails("42\n")),
        ("code_execution", {"code": "6 * 7"}),
        {"type": "code_execution_result", "stdout": "42\n", "stderr": "", "return_code": 0, "content": []},
    ),
    (
        Hosted("code_interpreter", "python"), '{"code": "x"}', ToolResult("No such name.", None, failed=True),
        ("code_execution", {"code": "x"}),
        {"type": "code_execution_result", "stdout": "", "stderr": "No such name.", "return_code": 1, "content": []},
    ),
    (
        Hosted("shell", "run"), '{"commands": ["ls", "pwd"]}', ToolResult("a", CommandDetails("a", "b", 2)),
        ("bash_code_execution", {"command": "ls\npwd"}),
        {"type": "bash_code_execution_result", "stdout": "a", "stderr": "b", "return_code": 2, "content": []},
    ),
    (
        Hosted("web_search", "search"), '{"query": "cats"}', ToolResult("1 2", SearchDetails("cats", ("u:1", "u:2"), ("A", ""))),
        ("web_search", {"query": "cats"}),
        [
            {"type": "web_search_result", "url": "u:1", "title": "A", "encrypted_content": "sealed:1 2", "page_age": None},
            {"type": "web_search_result", "url": "u:2", "title": "u:2", "encrypted_content": "sealed:", "page_age": None},
        ],
    ),
    (
        Hosted("web_search", "search"), "{", ToolResult("Give a query.", SearchDetails(""), failed=True),
        ("web_search", {}),
        {"type": "web_search_tool_result_error", "error_code": "unavailable"},
    ),
    (
        Hosted("web_search", "open"), '{"id": "u:1"}', ToolResult("A page.", OpenDetails("u:1")),
        ("web_fetch", {"id": "u:1", "url": "u:1"}),
        {
            "type": "web_fetch_result", "url": "u:1", "retrieved_at": None,
            "content": {
                "type": "document", "title": None, "citations": None,
                "source": {"type": "text", "media_type": "text/plain", "data": "A page."},
            },
        },
    ),
    (
        Hosted("web_search", "find"), '{"pattern": "a"}', ToolResult("Nothing.", FindDetails(None, "a"), failed=True),
        ("web_fetch", {"pattern": "a"}),
        {"type": "web_fetch_tool_result_error", "error_code": "unavailable"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("hosted", "arguments", "result", "call", "content"), RESULTS)
def test_a_call_that_the_server_ran_has_two_blocks(
    hosted: Hosted, arguments: str, result: ToolResult, call: tuple[str, object], content: object
) -> None:
    name, input_ = call
    body = check(ran(arguments, result), Presentation(max_tokens=999, tools=offering(hosted)))

    use, done = body["content"]  # type: ignore[misc]
    caller = {"type": "direct"}
    assert use == {
        "type": "server_tool_use",
        "id": "srvtoolu_1",
        "name": name,
        "input": input_,
        "caller": caller,
    }
    assert done == {
        "type": f"{name}_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": content,
        **({"caller": caller} if name.startswith("web") else {}),
    }
    searched, fetched = name == "web_search", name == "web_fetch"
    web = {"web_search_requests": int(searched), "web_fetch_requests": int(fetched)}
    assert body["usage"]["server_tool_use"] == (web if searched or fetched else None)  # type: ignore[index]


def test_other_tools_of_the_server_are_shown_as_those_of_an_mcp_server() -> None:
    tools = offering(Hosted("dice", "roll", label="casino"))
    body = answered(
        ran('{"sides": 6}', ToolResult("4", failed=True)), Presentation(max_tokens=9, tools=tools)
    )

    use, done = body["content"]
    assert use == {
        "type": "mcp_tool_use", "id": "mcptoolu_1", "name": "roll", "server_name": "casino", "input": {"sides": 6},
    }  # fmt: skip
    assert (done["type"], done["tool_use_id"], done["is_error"]) == ("mcp_tool_result", "mcptoolu_1", True)
    assert done["content"][0]["text"] == "4"


def offering(hosted: Hosted) -> Tools:
    return Tools(views=built_in().message_views, functions=(Function("tool", hosted=hosted),))


def ran(arguments: str, result: ToolResult) -> list[Event]:
    """The events of an answer in which the server runs a call."""
    call = said([f'<tool_call>{{"name": "tool", "arguments": {arguments}'])[:-1]
    marked = [
        replace(event, hosted=True, call_id="1") if isinstance(event, CallStarted) else event
        for event in call
    ]
    if not any(isinstance(event, CallEnded) for event in marked):
        marked.append(CallEnded(complete=False))
    end = Finished(FinishReason.STOP, Usage())
    return [*marked, ToolCallsPending(), ToolResultReceived("1", result), end]


# Errors


def test_the_sdk_raises_what_a_stream_that_failed_says() -> None:
    stream = MessageStream(ENVELOPE, ALL, seal)
    payloads = stream.begin() + stream.fail(EngineError("It broke."))

    with pytest.raises(anthropic.APIStatusError, match="It broke"), sdk(b"".join(payloads)) as client:
        list(client.messages.create(model="m", max_tokens=9, messages=[], stream=True))


def test_an_error_is_named_as_anthropic_does() -> None:
    stream = MessageStream(ENVELOPE, ALL, seal)

    [payload] = read_events(b"".join(stream.fail(EngineBusyError())))

    error = json.loads(payload)
    validate("ErrorResponse", error, ANTHROPIC)
    assert error["error"]["type"] == "rate_limit_error"
    assert error["error"]["details"] == {"error_code": "engine_busy"}
