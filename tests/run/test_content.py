"""Answers of reasoning alone, with `force_nonempty_content`."""

import pytest

from antiphon.core.accumulator import Accumulator
from antiphon.core.items import FunctionCall, Item, Message, Reasoning, Role, TextPart
from antiphon.core.turn import Turn
from antiphon.run.content import asks_for_content, content_of

THOUGHT, MORE = Reasoning("Hm."), Reasoning("More.")
SAID = Message(Role.ASSISTANT, (TextPart("Hi."),))
CALL = FunctionCall("call_1", "f", "{}")


@pytest.mark.parametrize(
    ("items", "content"),
    [
        ([THOUGHT], "Hm."),
        ([THOUGHT, MORE], "Hm.\n\nMore."),
        ([CALL, THOUGHT], "Hm."),
        ([], ""),
        ([SAID], ""),
        ([THOUGHT, SAID], ""),
        ([SAID, THOUGHT], ""),
        ([THOUGHT, CALL], ""),
    ],
)
def test_the_content_of_an_answer_of_reasoning_alone_is_its_reasoning(
    items: list[Item], content: str
) -> None:
    built = Accumulator()
    built.extend(content_of(items))

    assert "".join(item.text for item in built.items if isinstance(item, Message)) == content
    assert len(built.items) == bool(content)


@pytest.mark.parametrize(("value", "asks"), [(True, True), (False, False), ("true", False), (None, False)])
def test_only_true_asks_for_it(value: object, asks: bool) -> None:
    assert asks_for_content(Turn("", (), variables={"force_nonempty_content": value})) is asks
