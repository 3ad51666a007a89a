import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon.core.items import FunctionOutput, Message, Reasoning, Role, TextPart
from antiphon.render.capabilities import ArgumentFormat, TemplateCapabilities
from antiphon.render.messages import arrange, format_message, gather, parse_arguments, short_id
from antiphon.render.special_tokens import SEPARATOR
from tests.render.support import call, output, say


def test_one_go_of_the_assistant_is_one_message() -> None:
    items = [say("user", "q"), Reasoning("hm"), say("assistant", "wait"), call("a"), call("b"), output("a")]
    user, assistant, result = gather(items)
    assert user == {"role": "user", "content": "q"}
    assert assistant["content"] == "wait"
    assert assistant["reasoning"] == assistant["reasoning_content"] == assistant["thinking"] == "hm"
    assert [called["id"] for called in assistant["tool_calls"]] == ["a", "b"]
    assert result == {"role": "tool", "tool_call_id": "a", "content": "sunny", "name": "get_weather"}


def test_reasoning_belongs_to_what_follows_it() -> None:
    first, _, second, third = gather(
        [
            Reasoning("one"),
            call("a"),
            output("a"),
            Reasoning("two"),
            say("assistant", "so"),
            say("assistant", "x"),
        ]
    )
    assert (first["reasoning"], "tool_calls" in first) == ("one", True)
    assert (second["reasoning"], second["content"]) == ("two", "so")
    assert third == {"role": "assistant", "content": "x"}


def test_consecutive_reasoning_is_joined_and_kept_at_the_end() -> None:
    assert gather([Reasoning("a"), Reasoning("b"), say("user", "q")])[0]["reasoning"] == "a\nb"


def test_parts_are_lines_and_names_are_kept() -> None:
    item = Message(Role.USER, (TextPart("a"), TextPart("b")), name="ann")
    assert gather([item]) == [{"role": "user", "content": "a\nb", "name": "ann"}]


def test_the_name_of_an_output_is_its_own_or_that_of_its_call() -> None:
    own = FunctionOutput("call_1", (), name="mine")
    names = [message.get("name") for message in gather([call(), own, output(), output("stray")])[1:]]
    assert names == ["mine", "get_weather", None]


def test_no_message_has_an_empty_list_of_calls() -> None:
    messages = [
        format_message(message, TemplateCapabilities())
        for message in gather([say("assistant", "a"), say("user", "b")])
    ]
    assert not any("tool_calls" in message for message in messages)


@pytest.mark.parametrize(
    ("text", "wanted", "given_to_template"),
    [
        ('{"a": [1]}', ArgumentFormat.ANY, {"a": [1]}),
        ("", ArgumentFormat.OBJECT, {}),
        ("", ArgumentFormat.ANY, {}),
        ('{"a": ', ArgumentFormat.ANY, '{"a": '),
        ('{"a": ', ArgumentFormat.OBJECT, {}),
        ("[1]", ArgumentFormat.ANY, "[1]"),
        ("[" * 100_000, ArgumentFormat.OBJECT, {}),
        (r'{"a": "\ud800"}', ArgumentFormat.ANY, {"a": "\ufffd"}),
        (r'{"a": "\u003c|end|>"}', ArgumentFormat.ANY, {"a": f"<|{SEPARATOR}end|>"}),
    ],
)
def test_arguments_are_objects_if_they_can_be(
    text: str, wanted: ArgumentFormat, given_to_template: object
) -> None:
    assert parse_arguments(text, wanted) == given_to_template


def test_arguments_as_text_stay_as_the_model_wrote_them() -> None:
    (message,) = gather([call(arguments='{"a":1 }')])
    formatted = format_message(message, TemplateCapabilities(arguments=ArgumentFormat.TEXT))
    assert formatted["tool_calls"][0]["function"]["arguments"] == '{"a":1 }'


def test_calls_and_results_keep_the_same_short_id() -> None:
    called, result = [
        format_message(message, TemplateCapabilities(short_ids=True))
        for message in gather([call(), output()])
    ]
    assert called["tool_calls"][0]["id"] == result["tool_call_id"]
    assert short_id("abc123XYZ") == "abc123XYZ"


@given(st.text())
def test_a_short_id_is_nine_letters_or_digits_and_stays(text: str) -> None:
    short = short_id(text)
    assert len(short) == 9
    assert short.isalnum()
    assert short_id(short) == short


def test_one_call_each_is_followed_by_its_result() -> None:
    items = [say("assistant", "ok"), call("a"), call("b"), output("a"), output("b"), output("stray")]
    messages = arrange(gather(items), TemplateCapabilities(parallel_calls=False))
    ids = [m.get("tool_call_id") or m["tool_calls"][0]["id"] for m in messages]
    assert ids == ["a", "a", "b", "b", "stray"]
    assert [m["content"] for m in messages if "tool_calls" in m] == ["ok", ""]


def test_system_messages_move_to_where_they_are_read() -> None:
    items = [say("system", "one"), say("developer", "two"), say("user", "q"), say("system", "three")]
    merged = arrange(gather(items), TemplateCapabilities(developer=False, later_system=False))
    assert [(m["role"], m["content"]) for m in merged] == [
        ("system", "one\n\ntwo"),
        ("user", "q"),
        ("user", "three"),
    ]
    lost = arrange(gather(items), TemplateCapabilities(developer=False, later_system=False, system=False))
    assert [(m["role"], m["content"]) for m in lost] == [("user", "one\n\ntwo\n\nq"), ("user", "three")]


def test_a_new_system_message_leaves_the_beginning_as_it_was() -> None:
    before = [say("system", "one"), say("user", "q"), say("assistant", "a")]
    for template in (TemplateCapabilities(later_system=False), TemplateCapabilities(system=False)):
        first = arrange(gather(before), template)
        assert arrange(gather([*before, say("system", "new")]), template)[: len(first)] == first


WORDS = st.integers(0, 10**9).map(lambda n: f"w{n}w")
ITEMS = st.lists(
    st.one_of(
        st.builds(say, st.sampled_from(list(Role)), WORDS),
        st.builds(Reasoning, WORDS),
        st.builds(call, st.sampled_from(["a", "b", "c"]), arguments=WORDS),
        st.builds(output, st.sampled_from(["a", "b", "c"]), WORDS),
    ),
    max_size=12,
)
CAPABILITIES = st.builds(
    TemplateCapabilities,
    **{name: st.booleans() for name in TemplateCapabilities.__struct_fields__ if name != "arguments"},
)


@given(ITEMS, CAPABILITIES)
def test_nothing_that_was_said_is_lost(items: list, capabilities: TemplateCapabilities) -> None:
    before = gather(items)
    after = json.dumps([format_message(message, capabilities) for message in arrange(before, capabilities)])
    for item in items:
        match item:
            case Message() | FunctionOutput():
                assert item.parts[0].text in after
            case Reasoning():
                assert item.text in after
            case _:
                assert item.arguments in after


@given(ITEMS, CAPABILITIES)
def test_arranging_twice_changes_nothing(items: list, capabilities: TemplateCapabilities) -> None:
    # What splits messages undoes what merges them: no template wants both.
    capabilities = replace(capabilities, parallel_calls=True, text_with_calls=True)
    once = arrange(gather(items), capabilities)
    assert arrange(once, capabilities) == once
