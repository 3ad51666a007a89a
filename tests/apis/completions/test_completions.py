"""Completions without I/O: what a request becomes, and that a stream adds up to the full answer."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.apis.completions.accept import AcceptedCompletion, ChoiceLayout, accept
from antiphon.apis.completions.answer import CompletionBuilder
from antiphon.apis.completions.schema import CompletionRequest
from antiphon.apis.completions.stream import CompletionStream
from antiphon.apis.envelope import (
    DEFAULT_PRESENTATION,
    Envelope,
    PresentationOptions,
    RenderedPrompt,
    UsageReports,
)
from antiphon.apis.fields import ParameterNames
from antiphon.apis.wire import decode, decode_request
from antiphon.core.accumulator import Accumulator
from antiphon.core.chunks import Candidate, Chunk, Finish, FinishReason, PromptToken, Token
from antiphon.core.constraint import Regex
from antiphon.core.errors import RequestError
from antiphon.core.events import Event, Finished, Usage
from antiphon.core.turn import Sampling, Turn
from antiphon.decode.decoder import Decoder
from antiphon.decode.table import Table
from antiphon.dialects.plain import PLAIN
from tests.apis.chat.support import payloads_of, with_error
from tests.laws import cut, cuts
from tests.openai_schema import validate
from tests.search import examples

PLAIN_TABLE = Table(PLAIN.grammar)
PROMPTS = (
    RenderedPrompt(
        "One", (1, 2), (PromptToken(1, "On"), PromptToken(2, "e", -0.5, (Candidate(2, "e", -0.5),)))
    ),
    RenderedPrompt("Two", (3,), (PromptToken(3, "Two"),)),
)
ENVELOPE = Envelope("cmpl-1", "m", 1_700_000_000, PROMPTS)


def accepted(**more: Any) -> AcceptedCompletion:
    body = {"model": "m", "prompt": "Hi", **more}
    return accept(decode_request(json.dumps(body).encode(), CompletionRequest, ParameterNames()), "me")


def turn(prompt: Any = "Hi", format_source: str = "response_format", **more: Any) -> Turn:
    more.setdefault("sampling", Sampling(max_tokens=16))
    parameters = {"alternatives": "logprobs", "conversation": "prompt", "format": format_source}
    return Turn("m", prompt=prompt, owner="me", copies=2, parameters=parameters, **more)


def said(
    pieces: Iterable[str], reason: FinishReason = FinishReason.STOP, logprob: float = -0.5
) -> list[Event]:
    decoder = Decoder(PLAIN_TABLE)
    events: list[Event] = []
    for index, piece in enumerate(pieces):
        top = (Candidate(index, piece, logprob), Candidate(index + 1, "é", -1.5))
        events += decoder.feed(Chunk(piece, (Token(index, piece, logprob, top),)))
    return with_error(events + decoder.finish(Finish(reason)))


def answered(
    choices: Sequence[Sequence[Event]],
    layout: ChoiceLayout,
    presentation: PresentationOptions = DEFAULT_PRESENTATION,
) -> dict[str, Any]:
    builder = CompletionBuilder(ENVELOPE, layout, presentation)
    builder.set_prompts(PROMPTS)
    assert builder.begin() == []
    for index, events in enumerate(choices):
        assert builder.push(index, Accumulator().extend(events)) == []
    assert builder.finish() == []
    body: dict[str, Any] = json.loads(builder.body())
    validate("CreateCompletionResponse", body)
    return body


def streamed(
    choices: Sequence[Sequence[Event]],
    layout: ChoiceLayout,
    presentation: PresentationOptions = DEFAULT_PRESENTATION,
) -> list[dict[str, Any]]:
    """The chunks of a stream, one event at a time, choice after choice."""
    stream = CompletionStream(ENVELOPE, layout, presentation)
    stream.set_prompts(PROMPTS)
    sent = stream.begin()
    for index, events in enumerate(choices):
        for event in Accumulator().extend(events):
            sent += stream.push(index, [event])
    *payloads, end = payloads_of(sent + stream.finish())
    assert end == b"[DONE]"
    return [json.loads(payload) for payload in payloads]


def accumulated(chunks: list[dict[str, Any]], presentation: PresentationOptions) -> list[dict[str, Any]]:
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            choice = choices.setdefault(part["index"], {"index": part["index"], "text": "", "logprobs": None})
            assert choice.get("finish_reason") is None, "a chunk after the last"
            choice["text"] += part["text"]
            choice |= {
                key: part[key]
                for key in ("finish_reason", "stop_reason", "prompt_token_ids", "error")
                if key in part
            }
            if presentation.token_ids:
                choice["token_ids"] = choice.get("token_ids", []) + part["token_ids"]
            if presentation.logprobs is not None:
                lists = choice["logprobs"] or {
                    key: [] for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
                }
                choice["logprobs"] = {
                    key: old + (part["logprobs"] or lists | {key: []})[key] for key, old in lists.items()
                }
    return list(choices.values())


# What a request becomes


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Hi", ["Hi"]),
        ("", [""]),
        (["Hi"], ["Hi"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [(1, 2)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
    ],
)
def test_a_prompt_in_any_form_becomes_turns(prompt: Any, prompts: list[Any]) -> None:
    made = accepted(prompt=prompt)

    assert made.turns == tuple(turn(one) for one in prompts)
    assert made.layout == ChoiceLayout(len(prompts), 1, 1)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"max_tokens": 3}, turn(sampling=Sampling(max_tokens=3))),
        ({"max_tokens": -1}, turn(sampling=Sampling())),
        ({"stop": ""}, turn()),
        ({"temperature": 0, "seed": 1}, turn(sampling=Sampling(temperature=0, seed=1, max_tokens=16))),
        ({"stop": ["a"], "include_stop_str_in_output": True}, turn(stop=("a",), stop_shown=True)),
        ({"n": 2}, turn(choices=2)),
        ({"logprobs": 3}, turn(sampling=Sampling(max_tokens=16, logprobs=3))),
        (
            {"logprobs": 2, "echo": True},
            turn(sampling=Sampling(max_tokens=16, logprobs=2, prompt_logprobs=2)),
        ),
        ({"best_of": 3}, turn(choices=3, sampling=Sampling(max_tokens=16, logprobs=0))),
        ({"best_of": 2, "n": 2}, turn(choices=2)),
        ({"truncate_prompt_tokens": 9}, turn(prompt_limit=9)),
        ({"guided_regex": "a"}, turn(format=Regex("a"), format_source="structured_outputs.regex")),
    ],
)
def test_each_field_lands_in_the_turn(more: dict[str, Any], expected: Turn) -> None:
    assert accepted(**more).turns == (expected,)


def test_the_shape_and_the_presentation_of_an_answer() -> None:
    made = accepted(
        prompt=["a", "b"], n=2, best_of=4, echo=True, logprobs=1, return_token_ids=True, request_id="r"
    )

    assert made.layout == ChoiceLayout(2, 4, 2, echo=True)
    assert made.presentation == PresentationOptions(logprobs=1, token_ids=True)
    assert made.request_id == "r"
    assert accepted(best_of=2).presentation.logprobs is None


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a"] * 129}, "n"),
        ({"prompt": ["a"] * 10, "best_of": 20}, "best_of"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"logprobs": -1}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stream_options": {}}, "stream_options"),
        ({"temperature": -1}, "temperature"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(more: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as raised:
        accepted(**more)

    assert raised.value.param == param
    assert raised.value.message.endswith(".")


def test_a_request_without_a_prompt() -> None:
    with pytest.raises(RequestError) as raised:
        decode(b'{"model": "m"}', CompletionRequest)
    assert raised.value.param == "prompt"


# The answer


PRESENTATIONS = st.builds(
    PresentationOptions,
    logprobs=st.sampled_from([None, 0, 1]),
    tokens_as_ids=st.booleans(),
    token_ids=st.booleans(),
    usage=st.sampled_from(UsageReports),
    padded=st.booleans(),
)


@given(
    text=st.text(min_size=1), at=cuts, presentation=PRESENTATIONS, echo=st.booleans(), tried=st.integers(1, 2),
    reason=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
)  # fmt: skip
@settings(max_examples=examples(150))
def test_the_stream_adds_up_to_the_full_answer(
    *,
    text: str,
    at: list[int],
    presentation: PresentationOptions,
    echo: bool,
    tried: int,
    reason: FinishReason,
) -> None:
    layout = ChoiceLayout(2, tried, tried, echo)
    choices = [said(cut(text, at), reason), *[said([text]) for _ in range(2 * tried - 1)]]

    chunks = streamed(choices, layout, presentation)

    for chunk in chunks[:3]:
        validate("CreateCompletionResponse", chunk)
    body = answered(choices, layout, presentation)
    assert accumulated(chunks, presentation) == body["choices"]
    if presentation.usage is not UsageReports.NONE:
        assert chunks[-1]["usage"] == body["usage"]
        assert chunks[-1]["choices"] == []


def test_log_probabilities_as_lists() -> None:
    body = answered([said(["Hi", " é"])], ChoiceLayout(1, 1, 1, echo=True), PresentationOptions(logprobs=1))

    assert body["choices"][0]["text"] == "OneHi é"
    assert body["choices"][0]["logprobs"] == {
        "tokens": ["On", "e", "Hi", " é"],
        "token_logprobs": [None, -0.5, -0.5, -0.5],
        "top_logprobs": [None, {"e": -0.5}, {"Hi": -0.5}, {" é": -0.5}],
        "text_offset": [0, 2, 3, 5],
    }


def test_with_ids_each_token_has_a_log_probability() -> None:
    decoder = Decoder(PLAIN_TABLE, stop=("STOP",))
    events: list[Event] = []
    for number, piece in enumerate(["a", " S", "T", "OP!", ""]):
        events += decoder.feed(Chunk(piece, (Token(number, piece, -0.5),)))
    events += decoder.finish(Finish(FinishReason.STOP))
    layout, presentation = ChoiceLayout(1, 1, 1), PresentationOptions(logprobs=0, token_ids=True)

    body = answered([events], layout, presentation)
    [choice] = body["choices"]

    assert accumulated(streamed([events], layout, presentation), presentation) == body["choices"]
    assert choice["text"] == "a "
    assert choice["token_ids"] == [0, 1, 2, 3, 4]
    assert choice["logprobs"]["tokens"] == ["a", " S", "T", "OP!", ""]


def test_the_token_that_was_drawn_is_among_the_likely_ones() -> None:
    events = said(["x"], logprob=-3.0)
    unlikely = Token(9, "y", -4.0, (Candidate(1, "x", -0.1),))
    decoder = Decoder(PLAIN_TABLE)
    events = [*decoder.feed(Chunk("y", (unlikely,))), *decoder.finish(Finish(FinishReason.STOP))]

    [choice] = answered([events], ChoiceLayout(1, 1, 1), PresentationOptions(logprobs=1))["choices"]

    assert choice["logprobs"]["top_logprobs"] == [{"y": -4.0, "x": -0.1}]


def test_the_best_are_shown_best_first_and_all_are_counted() -> None:
    layout = ChoiceLayout(2, 3, 2)
    choices = [said([name, "!"], logprob=score) for name, score in
               [("bad", -3.0), ("best", -0.1), ("good", -1.0), ("A", -0.2), ("B", -0.1), ("C", -0.3)]]  # fmt: skip

    body = answered(choices, layout)

    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [
        (0, "best!"), (1, "good!"), (2, "B!"), (3, "A!"),
    ]  # fmt: skip
    assert body["usage"]["completion_tokens"] == 12
    assert "token_ids" not in body["choices"][0]


def test_a_choice_that_failed_says_so() -> None:
    events: list[Event] = [Finished(FinishReason.ERROR, Usage(), error="It failed.")]
    layout = ChoiceLayout(1, 1, 1)

    for choice in (answered([events], layout)["choices"][0], streamed([events], layout)[0]["choices"][0]):
        assert (choice["finish_reason"], choice["error"]["message"]) == ("error", "It failed.")


def test_the_prompts_tokens_are_shown_if_the_client_wants() -> None:
    presentation = PresentationOptions(token_ids=True, prompt_logprobs=True)

    first, second = answered([said(["a"]), said(["b"])], ChoiceLayout(2, 1, 1), presentation)["choices"]

    assert (first["prompt_token_ids"], second["prompt_token_ids"]) == ([1, 2], [3])
    assert first["token_ids"] == [0]
    assert first["prompt_logprobs"] == [None, {"2": {"logprob": -0.5, "rank": 1, "decoded_token": "e"}}]


def test_the_stream_of_an_answer_that_is_given_up_has_no_finish_reason() -> None:
    layout, choices = ChoiceLayout(1, 2, 2), [said(["a"])[:-1], said(["b"])[:-1]]
    end = Finished(FinishReason.ERROR, Usage())

    chunks = streamed([[*choice, end] for choice in choices], layout)

    assert {part["finish_reason"] for chunk in chunks for part in chunk["choices"]} == {None}
