"""Decoding is the inverse of rendering, and begins at the end of the prompt."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.items import FunctionCall, Item, Message, OutputItem, Reasoning
from antiphon.core.turn import PromptEnding
from antiphon.decode.decoder import state_after
from antiphon.decode.table import Table
from antiphon.dialects.openai import OPENAI
from antiphon.render.harmony import ANSWER, HarmonyRenderer
from antiphon.render.special_tokens import GENERIC_ESCAPER
from tests.laws import decode, fold
from tests.render.harmony_conversations import message
from tests.render.support import call, output, say, turn

RENDERER = HarmonyRenderer("2025-06-28")
TABLE = Table(OPENAI.grammar)
QUESTION = say("user", "q")

TEXT = (
    st.text("abc é漢🙂0.,:{}[]()<|>/\\\"'\n", min_size=1, max_size=30)
    .map(str.strip)
    .filter(
        # What spells a token is read as text, with separators.
        lambda text: bool(text) and GENERIC_ESCAPER.escape(text) == text
    )
)
OBJECT = st.dictionaries(TEXT, TEXT | st.integers() | st.lists(TEXT | st.booleans(), max_size=2), max_size=3)
ARGUMENTS = OBJECT.map(lambda value: json.dumps(value, ensure_ascii=False))
NAMES = st.sampled_from(["get_weather", "noon", "a.b-c", "browser.search"])
CALLS = st.builds(lambda name, arguments: FunctionCall("1", name, arguments), NAMES, ARGUMENTS)
PROGRAMS = TEXT.map(lambda code: FunctionCall("1", "python", json.dumps({"code": code})))
PREAMBLES = TEXT.map(lambda text: message("assistant", text, phase="commentary"))
STEPS = st.lists(TEXT.map(Reasoning) | PREAMBLES | CALLS | PROGRAMS, max_size=5)
ANSWERS = TEXT.map(lambda text: message("assistant", text, phase="final_answer"))


def written(*items: Item, ending: PromptEnding = PromptEnding.TRANSCRIPT) -> str:
    """What the model would have written after the question."""
    prompt = RENDERER.render(turn(QUESTION))
    text = RENDERER.render(turn(QUESTION, *items, ending=ending))
    assert text.startswith(prompt)
    return text.removeprefix(prompt)


def essence(items: tuple[Item, ...] | list[Item]) -> list[Any]:
    """Items without their ids, arguments as values."""
    return [
        (item.name, json.loads(item.arguments)) if isinstance(item, FunctionCall) else item for item in items
    ]


def decoded(text: str) -> tuple[OutputItem, ...]:
    return fold(decode(TABLE, [text])).items


@settings(deadline=None)
@given(steps=STEPS.filter(bool))
def test_steps_are_read_back(steps: list[Item]) -> None:
    assert essence(decoded(written(*steps))) == essence(steps)


@settings(deadline=None)
@given(steps=STEPS, answer=ANSWERS)
def test_an_answer_is_read_back_without_the_reasoning_that_led_to_it(steps: list[Item], answer: Item) -> None:
    kept = [item for item in steps if not isinstance(item, Reasoning)]
    assert essence(decoded(written(*steps, answer))) == essence([*kept, answer])


@settings(deadline=None)
@given(steps=STEPS, answer=ANSWERS)
def test_an_answer_that_goes_on_is_read_back_with_its_reasoning(steps: list[Item], answer: Item) -> None:
    text = written(*steps, answer, ending=PromptEnding.CONTINUED)
    assert essence(decoded(text)) == essence([*steps, answer])


def test_what_is_read_is_rendered_as_it_was() -> None:
    """A second turn begins with the first one's tokens."""
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>Wait.<|end|>"
        '<|start|>assistant to=functions.noon<|channel|>commentary json<|message|>{"a": [1,  2]}<|call|>'
    )
    assert written(*decoded(text)) == text


def test_a_result_is_found_by_the_id_that_the_decoder_gave() -> None:
    (called,) = decoded("<|channel|>commentary to=functions.noon <|constrain|>json<|message|>{}<|call|>")
    assert isinstance(called, FunctionCall)
    assert "<|start|>functions.noon to=assistant" in written(called, output(called.call_id))


@pytest.mark.parametrize(
    ("items", "kind"),
    [
        ((Reasoning("hm"), say("assistant", "It")), "final_answer"),
        ((message("assistant", "Let", phase="commentary"),), "commentary"),
        ((call(), output(), say("assistant", "It")), "final_answer"),
    ],
)
def test_an_answer_that_goes_on_is_read_on_from_where_it_was(items: tuple[Item, ...], kind: str) -> None:
    prompt = RENDERER.render(turn(QUESTION, *items, ending=PromptEnding.CONTINUED))
    state = state_after(TABLE, prompt.rpartition(ANSWER)[2])
    (said,) = fold(decode(TABLE, [" is", " so.<|end|>"], state=state)).items
    assert isinstance(said, Message)
    assert (said.text.strip(), said.phase) == ("is so.", kind)


def test_an_answer_begins_in_its_header() -> None:
    state = state_after(TABLE, RENDERER.render(turn(QUESTION)).rpartition(ANSWER)[2])
    assert state == OPENAI.grammar.start
