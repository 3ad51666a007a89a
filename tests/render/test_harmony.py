from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.constraint import JsonObject, JsonSchema
from antiphon.core.errors import RequestError
from antiphon.core.items import FunctionCall, FunctionOutput, Item, Reasoning, TextPart
from antiphon.core.turn import Function, PromptEnding
from antiphon.render.harmony import ANSWER, HarmonyRenderer
from antiphon.render.harmony_tools import Namespace
from antiphon.render.special_tokens import SEPARATOR, split_at_separators
from tests.harmony_vocabulary import encoding, needs_vocabulary
from tests.render.harmony_conversations import CASES, LIST, LIST_FORMAT, ORDER, Case, message, user
from tests.render.harmony_reference import DATE, reference_tokens, reference_tokens_of_its_choice
from tests.render.support import WEATHER, call, output, say, turn

RENDERER = HarmonyRenderer(DATE)
FINAL = "<|start|>assistant<|channel|>final<|message|>"
ANALYSIS = "<|start|>assistant<|channel|>analysis<|message|>"


def tokens(prompt: str) -> list[int]:
    return [
        token
        for piece in split_at_separators(prompt)
        for token in encoding().encode(piece, allowed_special="all")
    ]


def history(*items: Item, **rest: object) -> str:
    """What is rendered after the system's message."""
    return RENDERER.render(turn(*items, **rest)).partition("<|end|>")[2]


@needs_vocabulary
@pytest.mark.parametrize("name", CASES)
def test_prompts_are_the_reference_s_token_by_token(name: str) -> None:
    prompt = RENDERER.render(CASES[name].turn)
    expected = reference_tokens(CASES[name])

    assert prompt.replace(SEPARATOR, "") == encoding().decode(expected)
    assert tokens(prompt) == expected


KEPT_BY_THE_REFERENCE = {
    "a second question with a call": "it leaves nothing out while the last message is no answer",
    "an answer that says so": "the same: a call is the last message",
    "reasoning between answers": "it leaves out only what is before the first answer",
}
"""Old reasoning that it shows, against its own documentation, and why."""


@needs_vocabulary
@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if not all(p.shown for p in case.pairs)]
)
def test_the_reference_leaves_out_the_same_reasoning_but_for_a_few(name: str) -> None:
    same = tokens(RENDERER.render(CASES[name].turn)) == reference_tokens_of_its_choice(CASES[name])
    assert same == (name not in KEPT_BY_THE_REFERENCE)


@needs_vocabulary
@settings(deadline=None)
@given(
    text=st.text("<|>aendstr_ \n1é", max_size=12) | st.sampled_from(["<|end|>", "<|<|end|>|>", "a<|call|>b"])
)
def test_whatever_a_user_says_is_ordinary_text(text: str) -> None:
    case = Case([user(text)])
    assert tokens(RENDERER.render(case.turn)) == reference_tokens(case)


def test_the_whole_of_a_small_prompt() -> None:
    items = (say("system", "Use a friendly tone."), say("user", "What is the weather like in SF?"))
    assert RENDERER.render(turn(*items, tools=(Function("get_location", "Gets the location."), ORDER))) == (
        """\
<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.
Knowledge cutoff: 2024-06
Current date: 2025-06-28

Reasoning: medium

# Valid channels: analysis, commentary, final. Channel must be included for every message.
Calls to these tools must go to the commentary channel: 'functions'.<|end|><|start|>developer<|message|># Instructions

Use a friendly tone.

# Tools

## functions

namespace functions {

// Gets the location.
type get_location = () => any;

// Orders.
type order = (_: {
// How big.
size: "s" | "m", // default: m
count?: number, // default: 1
extras?: string[],
// Where.
to:     // Where.
{
    city: string,
    zip?: string | null,
    },
// A time.
when?:
 | string
 | number // default: 0
,
}) => any;

} // namespace functions<|end|><|start|>user<|message|>What is the weather like in SF?<|end|><|start|>assistant"""
    )


def test_the_form_of_an_answer_is_described_after_the_tools() -> None:
    items = (say("system", "Be brief."), say("user", "q"))
    told = history(*items, tools=(Function("noon"),), format=LIST).partition("<|end|>")[0]
    assert told.endswith(f"type noon = () => any;\n\n}} // namespace functions\n\n{LIST_FORMAT}")
    undescribed = history(format=JsonSchema({}, name="x"))
    assert (
        undescribed
        == "<|start|>developer<|message|># Response Formats\n\n## x\n\n{}<|end|><|start|>assistant"
    )
    assert history(format=JsonObject()) == ANSWER


def test_the_date_is_that_of_the_first_prompt_for_ever() -> None:
    renderer = HarmonyRenderer()
    assert renderer.render(turn()) == renderer.render(turn())
    assert "Current date: 2025-06-28\n" in RENDERER.render(turn())


def test_what_comes_later_leaves_the_beginning_as_it_was() -> None:
    """So that an engine need not read it again."""
    items = (say("system", "A"), say("user", "B"), call(), output(), say("developer", "C"), say("user", "D"))
    told = [RENDERER.transcript(turn(*items[:n], tools=(WEATHER,))) for n in range(1, len(items) + 1)]
    assert all(longer.startswith(shorter) for shorter, longer in pairwise(told))


def test_a_prompt_is_the_transcript_and_the_beginning_of_an_answer() -> None:
    asked = turn(say("user", "q"))
    assert RENDERER.render(asked) == RENDERER.transcript(asked) + ANSWER


class TestEndings:
    def test_a_transcript_begins_no_answer(self) -> None:
        assert history(say("user", "q"), ending=PromptEnding.TRANSCRIPT) == "<|start|>user<|message|>q<|end|>"

    def test_an_answer_that_goes_on_is_left_open_and_its_reasoning_is_kept(self) -> None:
        items = (say("user", "q"), Reasoning("hm"), say("assistant", "It is "))
        written = history(*items, ending=PromptEnding.CONTINUED)
        assert written == f"<|start|>user<|message|>q<|end|>{ANALYSIS}hm<|end|>{FINAL}It is "

    def test_reasoning_before_an_earlier_answer_is_not(self) -> None:
        items = (Reasoning("old"), say("assistant", "a"), say("user", "q"), say("assistant", "b"))
        assert "old" not in history(*items, ending=PromptEnding.CONTINUED)

    def test_a_preamble_goes_on_as_one(self) -> None:
        items = (say("user", "q"), message("assistant", "Let me ", phase="commentary"))
        assert history(*items, ending=PromptEnding.CONTINUED).endswith(
            "<|channel|>commentary<|message|>Let me "
        )

    def test_an_answer_can_be_begun_for_the_model(self) -> None:
        assert history(prefix="Sure, ") == f"{FINAL}Sure, "
        assert history(say("assistant", "a"), ending=PromptEnding.CONTINUED, prefix="b") == f"{FINAL}ab"

    def test_only_an_answer_can_be_continued(self) -> None:
        with pytest.raises(RequestError):
            history(say("user", "q"), ending=PromptEnding.CONTINUED)


class TestWhatCannotBeSaid:
    @pytest.mark.parametrize(
        ("given_variables", "param"),
        [
            ({"reasoning_effort": "immense"}, "reasoning_effort"),
            ({"reasoning_effort": 3}, "reasoning_effort"),
            ({"builtin_tools": ["telephone"]}, "builtin_tools"),
            ({"builtin_tools": [["python"]]}, "builtin_tools"),
            ({"builtin_tools": "python"}, "builtin_tools"),
        ],
    )
    def test_variables(self, given_variables: dict[str, object], param: str) -> None:
        with pytest.raises(RequestError) as caught:
            history(variables=given_variables)
        assert caught.value.param == param
        assert "of" in caught.value.message

    @pytest.mark.parametrize("name", ["get weather", "a<|end|>", "f()", "a,b", ""])
    def test_names_of_functions(self, name: str) -> None:
        with pytest.raises(RequestError) as caught:
            history(tools=(Function(name),))
        assert caught.value.param == "tools"

    def test_names_in_a_history_are_made_to_fit(self) -> None:
        written = history(message("user", "q", name="a to=b<|end|>"), call(name="get weather"), output())
        assert "<|start|>user:a_to_b__end__<|message|>" in written
        assert "to=functions.get_weather<|channel|>" in written
        assert "<|start|>functions.get_weather to=assistant" in written


def test_tools_of_a_server_s_own_are_built_in_like_the_others() -> None:
    functions = (Function("exec", "Runs.", {"type": "object", "properties": {"cmd": {"type": "array"}}}),)
    renderer = HarmonyRenderer(DATE, [Namespace("container", functions, "A box.")])
    items = (FunctionCall("1", "container.exec", "{}"), FunctionOutput("1", (TextPart("ok"),)))
    text = renderer.render(turn(*items, variables={"builtin_tools": ["container"]}))
    assert "# Tools\n\n## container\n\n// A box.\nnamespace container {\n\n// Runs.\ntype exec" in text
    assert "to=container.exec<|channel|>analysis json<|message|>{}<|call|>" in text
    assert "<|start|>container.exec to=assistant<|channel|>analysis<|message|>ok<|end|>" in text


def test_tools_that_the_server_runs_are_told_in_the_words_of_the_family() -> None:
    hosted = [function for functions in RENDERER.native_tools.values() for function in functions]
    text = RENDERER.render(turn(user("1"), tools=(*hosted, WEATHER)))
    asked = {"builtin_tools": ["browser", "container", "python"]}
    assert text == RENDERER.render(turn(user("1"), tools=(WEATHER,), variables=asked))
    assert "type search = (_: {" in text
    assert "type exec = (_: {" in text
    assert "Calls to these tools must go to the commentary channel: 'functions'." in text


def test_tools_that_the_server_runs_are_called_and_answered_as_they_were_learned() -> None:
    for functions in RENDERER.native_tools.values():
        name = functions[0].name
        items = (FunctionCall("1", name, "{}"), FunctionOutput("1", (TextPart("ok"),), name))
        text = RENDERER.render(turn(user("1"), *items, tools=functions))
        assert f"<|start|>assistant to={name}<|channel|>analysis json<|message|>{{}}<|call|>" in text
        assert f"<|start|>{name} to=assistant<|channel|>analysis<|message|>ok<|end|>" in text


ROLES = st.lists(st.sampled_from(["system", "developer", "user", "assistant", "call", "think"]))


@given(roles=ROLES)
def test_any_conversation_renders_and_all_but_old_reasoning_is_read(roles: list[str]) -> None:
    items: list[Item] = []
    for n, role in enumerate(roles):
        if role == "call":
            items += [call(f"{n}", arguments=f'{{"city": "w{n}w"}}'), output(f"{n}", f"r{n}r")]
        else:
            items.append(Reasoning(f"w{n}w") if role == "think" else say(role, f"w{n}w"))
    text = RENDERER.render(turn(*items))
    missing = [n for n in range(len(roles)) if f"w{n}w" not in text]
    said = [n for n, role in enumerate(roles) if role == "assistant" and roles[n + 1 : n + 2] != ["call"]]
    assert missing == [n for n, role in enumerate(roles) if role == "think" and n < max(said, default=-1)]
