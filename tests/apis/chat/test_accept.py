"""What a chat request becomes: every field lands in the turn or in the presentation, or is refused by name."""

from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.apis.chat.accept import AcceptedChat
from antiphon.apis.envelope import PresentationOptions, UsageReports
from antiphon.core.constraint import JsonObject
from antiphon.core.errors import RequestError
from antiphon.core.turn import CallMode, PromptEnding, Sampling, ToolChoice, Turn
from tests.apis.chat.requests import accepted, asked, turn

ASKED = [{"role": "user", "content": "Hi"}]
SAID = [*ASKED, {"role": "assistant", "content": "So"}]
IN_PARTS = [*ASKED, {"role": "assistant", "content": [{"type": "text", "text": text} for text in "AB"]}]


def drawn(**sampling: Any) -> Turn:
    return asked(sampling=Sampling(**sampling))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, asked()),
        ({"model": "other"}, asked("other")),
        ({"temperature": 0}, drawn(temperature=0)),
        ({"temperature": 1.5}, drawn(temperature=1.5)),
        ({"top_p": 0.5}, drawn(top_p=0.5)),
        ({"top_k": 5}, drawn(top_k=5)),
        ({"top_k": -1}, drawn(top_k=-1)),
        ({"top_k": 0}, drawn(top_k=-1)),
        ({"min_p": 0.1}, drawn(min_p=0.1)),
        ({"presence_penalty": -2}, drawn(presence_penalty=-2)),
        ({"frequency_penalty": 2}, drawn(frequency_penalty=2)),
        ({"repetition_penalty": 1.1}, drawn(repetition_penalty=1.1)),
        ({"logit_bias": {"5": -100, "6": 0.5}}, drawn(logit_bias={5: -100, 6: 0.5})),
        ({"seed": 0}, drawn(seed=0)),
        ({"seed": -5}, drawn(seed=-5)),
        ({"max_tokens": 3}, drawn(max_tokens=3)),
        ({"max_completion_tokens": 4}, drawn(max_tokens=4)),
        ({"max_tokens": -1}, drawn()),
        ({"max_tokens": 0}, drawn()),
        ({"max_tokens": 3, "max_completion_tokens": -1}, drawn()),
        ({"top_p": 0}, drawn(top_p=0)),
        ({"temperature": 5}, drawn(temperature=5)),
        ({"tools": []}, asked()),
        ({"tools": [], "tool_choice": "auto", "functions": []}, asked()),
        ({"stop": ""}, asked()),
        ({"stop": ["", "a"]}, asked(stop=("a",))),
        ({"typical": 0.5, "mirostat_mode": 2}, drawn(typical_p=0.5, mirostat=2)),
        ({"banned_tokens": [3, 4]}, drawn(banned_tokens=(3, 4))),
        ({"banned_tokens": "3, 4"}, drawn(banned_tokens=(3, 4))),
        ({"dry_sequence_breakers": ["a"]}, drawn(dry_sequence_breakers=("a",))),
        ({"dry_sequence_breakers": '["a", "b"]'}, drawn(dry_sequence_breakers=("a", "b"))),
        ({"banned_strings": "no"}, drawn(bad_words=("no",))),
        ({"max_completion_tokens": 4, "max_tokens": 3}, drawn(max_tokens=4)),
        ({"min_tokens": 2, "max_tokens": 3}, drawn(min_tokens=2, max_tokens=3)),
        ({"stop_token_ids": [7, 8]}, drawn(stop_token_ids=(7, 8))),
        ({"ignore_eos": True}, drawn(ignore_eos=True)),
        ({"ignore_eos": False, "min_tokens": 0}, drawn()),
        ({"bad_words": ["darn"]}, drawn(bad_words=("darn",))),
        ({"logprobs": True}, drawn(logprobs=0)),
        ({"logprobs": True, "top_logprobs": 3}, drawn(logprobs=3)),
        ({"logprobs": False, "top_logprobs": 0}, drawn()),
        ({"prompt_logprobs": 2}, drawn(prompt_logprobs=2)),
        ({"priority": 3}, drawn(priority=3)),
        ({"cache_salt": "mine"}, drawn(cache_salt="mine")),
        ({"use_beam_search": True, "length_penalty": 0.5}, drawn(beam_width=1, length_penalty=0.5)),
        ({"stop": "a"}, asked(stop=("a",))),
        ({"stop": ["a", "b"]}, asked(stop=("a", "b"))),
        ({"stop": []}, asked()),
        ({"stop": "a", "include_stop_str_in_output": True}, asked(stop=("a",), stop_shown=True)),
        ({"n": 3}, asked(choices=3)),
        ({"tool_choice": "none"}, asked(tool_choice=ToolChoice(CallMode.NONE))),
        ({"tool_choice": "auto"}, asked()),
        ({"parallel_tool_calls": False}, asked(tool_choice=ToolChoice(parallel=False))),
        ({"response_format": {"type": "text"}}, asked()),
        ({"response_format": {"type": "json_object"}}, asked(format=JsonObject())),
        ({"chat_template": "{{ x }}"}, asked(template="{{ x }}")),
        ({"chat_template_kwargs": {"a": 1}}, asked(variables={"a": 1})),
        ({"template_vars": {"a": 1}}, asked(variables={"a": 1})),
        ({"documents": [{"text": "t"}]}, asked(variables={"documents": [{"text": "t"}]})),
        ({"verbosity": "low"}, asked(variables={"verbosity": "low"})),
        ({"reasoning_effort": "high"},
         asked(variables={"reasoning_effort": "high", "enable_thinking": True, "thinking": True})),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"thinking": 1}},
         asked(variables={"reasoning_effort": "none", "enable_thinking": False, "thinking": 1})),
        ({"thinking_token_budget": 9}, asked(reasoning_limit=9)),
        ({"truncate_prompt_tokens": 100, "truncation_side": "left"}, asked(prompt_limit=100)),
        ({"truncate_prompt_tokens": -1}, asked(prompt_limit=-1)),
        ({"response_prefix": "Sure"}, asked(prefix="Sure")),
        ({"add_generation_prompt": False}, asked(ending=PromptEnding.TRANSCRIPT)),
        ({"add_generation_prompt": True}, asked()),
    ],
)  # fmt: skip
def test_each_field_lands_in_the_turn(more: dict[str, Any], expected: Turn) -> None:
    assert replace(turn(**more), parameters=expected.parameters) == expected


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"max_tokens": 3}, "max_tokens"),
        ({"max_completion_tokens": 4}, "max_completion_tokens"),
        ({"max_completion_tokens": 4, "max_tokens": 3}, "max_completion_tokens"),
    ],
)
def test_a_limit_of_tokens_is_blamed_by_the_name_that_counts(more: dict[str, Any], name: str) -> None:
    assert turn(**more).parameter("max_tokens") == name


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, PresentationOptions()),
        ({"logprobs": True}, PresentationOptions(logprobs=0)),
        ({"logprobs": True, "top_logprobs": 20}, PresentationOptions(logprobs=20)),
        ({"prompt_logprobs": 0}, PresentationOptions(prompt_logprobs=True)),
        ({"return_token_ids": True}, PresentationOptions(token_ids=True)),
        ({"return_tokens_as_token_ids": True}, PresentationOptions(tokens_as_ids=True)),
        ({"return_prompt_text": True}, PresentationOptions(prompt_text=True)),
        ({"include_reasoning": False}, PresentationOptions(reasoning=())),
        ({"include_reasoning": True}, PresentationOptions()),
        ({"stream": True, "stream_options": {}}, PresentationOptions()),
        ({"stream": True, "stream_options": {"include_usage": True}}, PresentationOptions(usage=UsageReports.LAST)),
        ({"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
         PresentationOptions(usage=UsageReports.EACH)),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}},
         PresentationOptions(usage=UsageReports.EACH)),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, PresentationOptions(padded=True)),
        ({"service_tier": "flex"}, PresentationOptions(service_tier="default")),
        ({"metadata": {"a": "b"}}, PresentationOptions(metadata={"a": "b"})),
        ({"echo": True}, PresentationOptions()),
        ({"echo": True, "messages": SAID}, PresentationOptions(echo="So")),
        ({"echo": True, "messages": IN_PARTS}, PresentationOptions(echo="A\nB")),
        ({"echo": True, "add_generation_prompt": False}, PresentationOptions(echo="Hi", role="user")),
        ({"echo": True, "response_prefix": "Sure"}, PresentationOptions(echo="Sure")),
        ({"functions": [{"name": "f"}]}, PresentationOptions(legacy=True)),
        ({"tools": [{"type": "custom", "custom": {"name": "sh"}}]}, PresentationOptions(custom=frozenset({"sh"}))),
    ],
)  # fmt: skip
def test_what_is_shown_lands_in_the_presentation(more: dict[str, Any], expected: PresentationOptions) -> None:
    assert accepted(**more).presentation == expected


def test_the_presentation_begins_with_the_servers_own() -> None:
    defaults = PresentationOptions(reasoning=("reasoning",), usage=UsageReports.LAST, tokens_as_ids=True)

    assert accepted(defaults).presentation == defaults
    assert accepted(
        defaults, return_tokens_as_token_ids=False, include_reasoning=False
    ).presentation == PresentationOptions(reasoning=(), usage=UsageReports.LAST)
    each = {"include_usage": True, "continuous_usage_stats": True}
    assert accepted(defaults, stream=True, stream_options=each).presentation.usage is UsageReports.EACH


def test_an_answer_may_go_on_with_the_last_message() -> None:
    assert turn(messages=SAID, continue_final_message=True).ending is PromptEnding.CONTINUED
    assert (
        turn(messages=SAID, continue_final_message=True, add_generation_prompt=False).ending
        is PromptEnding.CONTINUED
    )


def test_what_the_client_wishes_beside_the_answer_is_kept() -> None:
    plain, wishes = accepted(), accepted(store=True, request_id="r1")

    assert (plain.store, plain.request_id) == (False, None)
    assert (wishes.store, wishes.request_id) == (True, "r1")
    assert isinstance(wishes, AcceptedChat)


IMAGE = {"type": "image_url", "image_url": {"url": "data:,x"}}


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"messages": [{"role": "wizard"}]}, "messages[0].content"),
        ({"messages": [*ASKED, {"role": "user"}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].image_url"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]}]},
         "messages[0].content[0].image_url.url"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
         "messages[0].content[0].image_url"),
        ({"messages": [{"role": "user", "content": [{**IMAGE, "image_url": {"url": "data:,x", "detail": "all"}}]}]},
         "messages[0].content[0].image_url.detail"),
        ({"messages": [{"role": "user", "content": [{"type": "file", "file": {"filename": "a"}}]}]},
         "messages[0].content[0].file"),
        ({"messages": [{"role": "tool", "content": [{"type": "text", "text": "a"}, {"type": "input_audio"}]}]},
         "messages[0].content[1].input_audio"),
        ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "c2"}]}]}, "messages[0].tool_calls[0].function"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 3, "logprobs": False}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 5, "truncation_side": "right"}, "truncation_side"),
        ({"continue_final_message": True}, "messages[0]"),
        ({"continue_final_message": True, "messages": [*SAID, {"role": "assistant", "content": ""}]}, "messages[2]"),
        ({"continue_final_message": True, "add_generation_prompt": True, "messages": SAID}, "continue_final_message"),
        ({"logit_bias": {"5": 101}}, "logit_bias[...]"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"cache_salt": "a@b"}, "cache_salt"),
        ({"cache_salt": "a" * 129}, "cache_salt"),
        ({"seed": 2**63}, "seed"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"verbosity": "loud"}, "verbosity"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: ""}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata[...]"),
        ({"metadata": {"k": 1}}, "metadata[...]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"banned_tokens": "3, x"}, "banned_tokens"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x", "format": "wav"}}, "audio"),
        ({"moderation": {"model": ""}}, "moderation.model"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_name(more: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as raised:
        turn(**more)

    assert raised.value.param == param
    assert raised.value.status == 400
    assert raised.value.message.endswith(".")


def test_what_nobody_knows_is_ignored() -> None:
    assert accepted(wibble={"a": [1]}) == accepted()


@pytest.mark.parametrize(
    ("more", "variables", "limit"),
    [
        ({"thinking": {"type": "enabled"}}, {"enable_thinking": True, "thinking": True}, None),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False, "thinking": False}, None),
        ({"thinking": {"type": "adaptive"}}, {}, None),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 7}},
            {"enable_thinking": True, "thinking": True},
            7,
        ),
        ({"thinking": True}, {"enable_thinking": True, "thinking": True}, None),
        ({"thinking": False}, {"enable_thinking": False, "thinking": False}, None),
        ({"thinking_token_budget": 3, "thinking": {"type": "auto", "budget_tokens": 7}}, {}, 3),
        ({"think": True}, {"enable_thinking": True, "thinking": True}, None),
        ({"think": False}, {"enable_thinking": False, "thinking": False}, None),
        ({"think": "low"}, {"reasoning_effort": "low", "enable_thinking": True, "thinking": True}, None),
        (
            {"think": "low", "reasoning_effort": "high"},
            {"reasoning_effort": "high", "enable_thinking": True, "thinking": True},
            None,
        ),
        (
            {"think": False, "chat_template_kwargs": {"enable_thinking": True}},
            {"enable_thinking": True, "thinking": False},
            None,
        ),
    ],
)
def test_switches_of_other_servers(
    more: dict[str, Any], variables: dict[str, Any], limit: int | None
) -> None:
    made = turn(**more)
    assert (dict(made.variables), made.reasoning_limit) == (variables, limit)


def test_usage_may_be_asked_for_as_elsewhere() -> None:
    for more in ({"stream": True}, {}):
        shown = accepted(usage={"include": True}, **more).presentation
        assert shown == PresentationOptions(usage=UsageReports.LAST)
