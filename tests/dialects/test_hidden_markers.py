"""What is never shown, in every dialect: special tokens of calls that are not allowed, markers that close reasoning."""

import pytest

from antiphon.core.chunks import Finish, FinishReason
from antiphon.core.items import Message, Reasoning
from antiphon.decode.table import Table
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.registry import DIALECTS, find
from tests.contracts.dialect import TOOLS, answers, table_of
from tests.laws import check, decode, fold

STOP = Finish(FinishReason.STOP)
REASONING = [
    (dialect, close) for dialect in DIALECTS if dialect.reasoning for close in dialect.reasoning.closes
]


def named(value: object) -> str:
    return value.names[0] if isinstance(value, Dialect) else str(value)


def shown(items: object) -> str:
    assert isinstance(items, tuple)
    return "\n".join(item.text for item in items if isinstance(item, Message | Reasoning))


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("hermes", set()),
        ("glm45", set()),
        ("xlam", set()),  # its `[TOOL_CALLS]` is text
        ("mistral", {"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"}),
        ("gemma4", {"<|tool_call>", "<tool_call|>", "<|tool_response>", "<|channel>", "<channel|>", '<|"|>'}),
        ("functiongemma", {"<start_function_call>", "<end_function_call>", "<escape>"}),
        ("deepseek_v32", {"｜DSML｜"}),
        ("gigachat3", {"<|message_sep|>", "<|role_sep|>", "<|function_call|>", "</s>"}),
        ("kimi_k3", {"<|open|>", "<|close|>", "<|sep|>"}),
        ("minimax_m3", {"]<]minimax[>["}),
    ],
)
def test_special_tokens_are_told_from_tags(name: str, tokens: set[str]) -> None:
    assert find(name).grammar.special_tokens == tokens


@pytest.mark.parametrize("case", ["single", "parallel", "nested", "typed", "reasoning_then_call"])
@pytest.mark.parametrize("dialect", DIALECTS, ids=named)
def test_without_tools_special_tokens_of_calls_are_hidden_and_their_text_is_not(
    dialect: Dialect, case: str
) -> None:
    answer, grammar = answers(dialect.names[0])[case], dialect.grammar
    if "output" not in answer:
        return
    text = answer["output"]
    events = check(Table(grammar.without_calls()), text, state=answer.get("state"))

    said = shown(fold(events).items)
    assert not [token for token in grammar.special_tokens if token in said]
    calls = fold(decode(table_of(dialect.names[0]), [text], tools=TOOLS, state=answer.get("state"))).calls
    assert all(word in said for word in ("Rome", "CET", "0.5") if word in text)
    assert calls
    assert not fold(events).calls


@pytest.mark.parametrize(("dialect", "close"), REASONING, ids=named)
@pytest.mark.parametrize("between", ["", "\n\n", " and ", "One.", "One.\n"])
def test_a_closing_marker_after_reasoning_is_hidden(dialect: Dialect, close: str, between: str) -> None:
    assert dialect.reasoning is not None
    begun = f"{dialect.reasoning.opens[0]} Hm.{dialect.reasoning.closes[0]}"
    items = fold(check(table_of(dialect.names[0]), f"{begun}{between}{close} Two.{close}\n Three.")).items

    said = shown(items)
    assert close not in said
    assert [item.text for item in items if isinstance(item, Reasoning)] == ["Hm."]
    assert "Two." in said
    assert "Three." in said
    assert between.strip() in said


@pytest.mark.parametrize("dialect", [each for each in DIALECTS if each.reasoning], ids=named)
def test_a_quoted_pair_of_markers_is_text_where_it_does_not_open_reasoning(dialect: Dialect) -> None:
    assert dialect.reasoning is not None
    opens, closes = dialect.reasoning.opens[0], dialect.reasoning.closes[0]
    quoted = f"A {opens} and {closes} B {opens} C"
    table = table_of(dialect.names[0])

    if opens not in dialect.reasoning.reopens:
        assert fold(check(table, f"{opens} Hm.{closes}{quoted}")).text == quoted
    assert fold(check(table, f"A {opens} B")).text == f"A {opens} B"
