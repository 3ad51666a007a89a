"""The messages that are found in texts in harmony: those that were written."""

from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.items import FunctionCall, FunctionOutput, Item, Message, Reasoning, Role, TextPart
from antiphon.core.turn import Function, Turn
from antiphon.render.harmony import HarmonyRenderer
from antiphon.render.harmony_messages import read_messages

ITEMS: tuple[Item, ...] = (
    Message(Role.DEVELOPER, (TextPart("Be brief."),)),
    Message(Role.USER, (TextPart("Rome?"),)),
    Reasoning("I ask."),
    FunctionCall("c1", "get_weather", '{"city": "Rome"}'),
    FunctionOutput("c1", (TextPart("Sun."),), "get_weather"),
)


def test_the_messages_of_a_prompt() -> None:
    prompt = HarmonyRenderer("2026-01-01").render(Turn("m", ITEMS, (Function("get_weather", "It."),)))
    system, developer, *said = read_messages(prompt)
    assert (system["role"], system["content"][0]["type"]) == ("system", "system_content")
    assert developer["content"] == [{"type": "developer_content", "instructions": "Be brief."}]
    assert said == [
        {"role": "user", "content": [{"type": "text", "text": "Rome?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "I ask."}], "channel": "analysis"},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": '{"city": "Rome"}'}],
            "channel": "commentary",
            "recipient": "functions.get_weather",
        },
        {
            "role": "tool",
            "name": "functions.get_weather",
            "content": [{"type": "text", "text": "Sun."}],
            "channel": "commentary",
            "recipient": "assistant",
        },
    ]


def test_the_messages_of_an_answer_of_several_generations() -> None:
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=browser.search<|channel|>analysis"
        "<|message|>{}<|call|><|channel|>final<|message|>Four."
    )
    assert [(each["role"], each.get("recipient"), each["channel"]) for each in read_messages(text)] == [
        ("assistant", None, "analysis"),
        ("assistant", "browser.search", "analysis"),
        ("assistant", None, "final"),
    ]
    assert read_messages("<|channel|>fin") == []


PIECES = [
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    " to=",
    "assistant",
    "a",
    " ",
    "<",
]


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_text_has_messages_with_a_role(text: str) -> None:
    assert all(message["role"] and message["content"] for message in read_messages(text))
