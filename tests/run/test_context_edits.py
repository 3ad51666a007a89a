"""Laws of edits: a cut depends on what comes before it alone, only grows, and is what exact counts say."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon.core.edits import (
    REMOVED_RESULT,
    ClearReasoning,
    ClearResults,
    Edit,
    reasoning_of_this_turn,
    requests_in,
    tool_uses,
    without_reasoning,
    without_results,
)
from antiphon.core.items import FunctionCall, FunctionOutput, Item, Message, Reasoning, Role, TextPart
from antiphon.core.turn import Turn
from antiphon.dialects.registry import find
from antiphon.dialects.tool_description import tool_prompt_of
from antiphon.engines.scripted import ScriptedEngine
from antiphon.render.renderer import ChatTemplateRenderer
from antiphon.run import context_edits
from antiphon.run.context_edits import edited
from antiphon.run.token_model import TokenModel

KEEPS = """{%- for m in messages -%}
<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}
{%- for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments }}</call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Shows all that there is."""
DROPS = KEEPS.replace("m.reasoning_content %}", "m.reasoning_content and loop.index0 > last.at %}").replace(
    "{%- for m in messages -%}",
    "{%- set last = namespace(at=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set last.at = loop.index0 %}{% endif %}{% endfor %}{%- for m in messages -%}",
    1,
)
"""Leaves out the reasoning of earlier turns."""


def model(template: str) -> TokenModel:
    dialect = find("hermes")
    engine = ScriptedEngine([{"output": "x"}])
    renderer = ChatTemplateRenderer(template, bos="", eos="", tool_prompt=tool_prompt_of(dialect))
    return TokenModel(engine, renderer, dialect)


MODELS = {"keeps": model(KEEPS), "drops": model(DROPS)}

Step = tuple[str, int]
LENGTHS = st.integers(0, 3) | st.integers(0, 60)
STEPS = st.lists(
    st.tuples(st.sampled_from(["user", "say", "reason", "use", "use", "two"]), LENGTHS),
    min_size=1,
    max_size=30,
)


def said(role: Role, words: int) -> Message:
    return Message(role, (TextPart("word " * words + "end"),))


def conversation(steps: list[Step]) -> tuple[Item, ...]:
    items: list[Item] = [said(Role.USER, 3)]
    for number, (kind, words) in enumerate(steps):
        ids = [f"c{number}", f"d{number}"][: 2 if kind == "two" else 1]
        match kind:
            case "user":
                items += [said(Role.ASSISTANT, 1), said(Role.USER, words)]
            case "say":
                items += [said(Role.ASSISTANT, words)]
            case "reason":
                items += [Reasoning("think " * words + "so")]
            case _:
                items += [FunctionCall(id_, "fg"[number % 2], f'{{"a": {words}}}') for id_ in ids]
                items += [FunctionOutput(id_, (TextPart("data " * words + "end"),)) for id_ in ids]
    return tuple(items)


CUTS = st.builds(
    ClearResults,
    tokens=st.integers(1, 600),
    keep=st.integers(0, 3),
    at_least=st.sampled_from([0, 0, 50, 200]),
    excluded=st.sampled_from([frozenset(), frozenset({"f"})]),
    arguments=st.sampled_from([False, True, frozenset({"g"})]),
) | st.builds(
    ClearResults, uses=st.integers(0, 4), keep=st.integers(0, 3), at_least=st.sampled_from([0, 100])
)


def turns_of(steps: list[Step]) -> list[Turn]:
    """The turns in which the model was asked, as clients send them: whole."""
    items = conversation(steps)
    return [Turn("m", items[:end]) for end in requests_in(items)]


def cut_of(turn: Turn) -> int:
    return sum(item.text == REMOVED_RESULT for item in turn.items if isinstance(item, FunctionOutput))


@pytest.mark.parametrize("name", MODELS)
@given(steps=STEPS, edit=CUTS)
@settings(max_examples=80, deadline=None)
async def test_a_prompt_begins_with_the_one_before_until_more_is_cut(
    name: str, steps: list[Step], edit: ClearResults
) -> None:
    model = MODELS[name]
    shown = [(await edited(turn, [edit], model)).turn for turn in turns_of(steps)]
    for before, after in pairwise(shown):
        assert cut_of(before) <= cut_of(after)
        if cut_of(before) == cut_of(after):
            assert after.items[: len(before.items)] == before.items


@given(steps=STEPS, edit=CUTS)
@settings(max_examples=80, deadline=None)
async def test_bounds_decide_as_counts_do(steps: list[Step], edit: ClearResults) -> None:
    model, turn = MODELS["keeps"], turns_of(steps)[-1]
    assert (await edited(turn, [edit], model)).turn.items == await counted(turn, edit, model)


async def counted(turn: Turn, edit: ClearResults, model: TokenModel) -> tuple[Item, ...]:
    """What is shown if every prompt is counted."""
    cut, uses = 0, tool_uses(turn.items)

    async def size(end: int, cut: int) -> int:
        items = without_results(turn.items[:end], edit, tool_uses(turn.items[:end])[:cut])
        return (await model.count(replace(turn, items=items))).tokens

    for end in requests_in(turn.items):
        there = len(tool_uses(turn.items[:end]))
        over = there - cut > edit.uses if edit.uses is not None else await size(end, cut) > (edit.tokens or 0)
        new = there - edit.keep
        if new > cut and over:
            frees = not edit.at_least or await size(end, cut) - await size(end, new) >= edit.at_least
            cut = new if frees else cut
    return without_results(turn.items, edit, uses[:cut])


@pytest.mark.parametrize("name", MODELS)
@given(steps=STEPS, cut=CUTS, turns=st.integers(1, 3), both=st.booleans())
@settings(max_examples=40, deadline=None)
async def test_tokens_are_those_by_which_the_prompt_is_shorter(
    name: str, steps: list[Step], cut: ClearResults, turns: int, both: bool
) -> None:
    model, turn = MODELS[name], turns_of(steps)[-1]
    edits: list[Edit] = [ClearReasoning(turns), cut][: 2 if both else 1]
    result = await edited(turn, edits, model)
    cleared = (await model.count(turn)).tokens - (await model.count(result.turn)).tokens
    assert sum(edit.tokens for edit in result.applied) == cleared
    assert [edit.edit for edit in result.applied if not edit.count] == []
    assert (result.turn.items != turn.items) is bool(result.applied)


@given(steps=STEPS, turns=st.integers(1, 3))
@settings(deadline=None)
def test_reasoning_of_the_last_turns_stays(steps: list[Step], turns: int) -> None:
    items = conversation(steps)
    shown = without_reasoning(items, ClearReasoning(turns))
    assert [item for item in shown if not isinstance(item, Reasoning)] == [
        item for item in items if not isinstance(item, Reasoning)
    ]
    thoughts = [item for item in items if isinstance(item, Reasoning)]
    kept = [item for item in shown if isinstance(item, Reasoning)]
    assert kept == thoughts[len(thoughts) - len(kept) :]
    assert bool(kept) is bool(thoughts)
    current = [item for item in reasoning_of_this_turn(items) if isinstance(item, Reasoning)]
    assert len(current) <= len(thoughts)
    assert current == thoughts[len(thoughts) - len(current) :]


async def test_few_prompts_are_counted_of_a_long_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[Any] = []
    count = context_edits._tokens

    async def counting(turn: Turn, model: Any) -> int:
        counts.append(turn)
        return await count(turn, model)

    monkeypatch.setattr(context_edits, "_tokens", counting)
    steps = [("use", 40)] * 400
    turn = Turn("m", conversation(steps))
    result = await edited(turn, [ClearResults(tokens=4000, at_least=1000)], MODELS["keeps"])
    assert cut_of(result.turn) > 300
    assert len(counts) < 100
