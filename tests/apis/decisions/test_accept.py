"""OpenAI's requests for decisions: what of them the model is asked, and what is refused."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given

from antiphon.apis.decisions.accept import accept
from antiphon.apis.decisions.schema import CreateDecision
from antiphon.apis.questions import read
from antiphon.core.decision import Decision, Option, QuestionKind
from antiphon.core.errors import RequestError
from antiphon.core.items import Attachment, FunctionCall, FunctionOutput, Message, Role, TextPart
from antiphon.core.limits import DEFAULTS, LIMIT_EXCEEDED, Limits
from antiphon.core.turn import Adapter, Sampling
from tests.apis.decision_requests import IMAGE, OPENAI, Json, spoiled

QUESTION = {"type": "predicate", "instructions": "Is it?"}
TEXT = {"type": "input_text", "text": "See: "}
PICTURE = {"type": "input_image", "image_url": IMAGE, "detail": "low"}
CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}", "namespace": "n", "id": "1"}
CUSTOM = {"type": "custom_tool_call", "call_id": "b", "name": "g", "input": "1+1", "status": "completed"}


def accepted(limits: Limits = DEFAULTS, **fields: Any) -> Decision:
    body = {name: value for name, value in {**OPENAI, **fields}.items() if value is not None}
    return accept(read(msgspec.json.encode(body), CreateDecision, limits)[0], limits, "me")


def refused(limits: Limits = DEFAULTS, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as refusal:
        accepted(limits, **fields)
    return refusal.value


def choice(*values: Any, **fields: Any) -> Json:
    options = [value if isinstance(value, dict) else {"value": value} for value in values]
    return {"type": "choice", "instructions": "Which?", "choices": options, **fields}


def score(*labels: str) -> Json:
    return {"type": "score", "instructions": "How much?", "levels": [{"label": label} for label in labels]}


def test_the_questions_in_their_order() -> None:
    route, urgency, angry = accepted().questions
    assert route.kind is QuestionKind.CHOICE
    assert route.instructions == (TextPart("Which team?"),)
    assert route.options == (Option("billing", "payments"), Option("shipping"))
    assert (urgency.kind, urgency.options[2]) == (QuestionKind.SCORE, Option("now", "within an hour"))
    assert (angry.kind, angry.options) == (QuestionKind.PREDICATE, (Option(""), Option("")))
    assert [question.source for question in (route, urgency, angry)] == [f"questions[{n}]" for n in range(3)]


def test_an_input_that_is_a_text() -> None:
    assert accepted(input="Hi").items == (Message(Role.USER, (TextPart("Hi"),)),)


def test_messages_of_every_role() -> None:
    decision = accepted(
        input=[
            {"type": "message", "role": "developer", "content": "Be strict."},
            {"role": "system", "content": [TEXT | {"prompt_cache_breakpoint": {"mode": "explicit"}}]},
            {"role": "user", "content": [TEXT, PICTURE, {"type": "input_json", "data": [{"a": 1}]}]},
            {"role": "assistant", "content": "No.", "phase": "final_answer"},
            {
                "role": "assistant",
                "content": [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "b"}],
            },
        ]
    )
    developer, system, user, answer, parts = decision.items
    assert developer == Message(Role.DEVELOPER, (TextPart("Be strict."),))
    assert system == Message(Role.SYSTEM, (TextPart("See: "),))
    assert isinstance(user, Message)
    text, image, data = user.parts
    assert (text, data) == (TextPart("See: "), TextPart('\n[{"a": 1}]'))
    assert isinstance(image, Attachment)
    assert (image.url, image.low, image.param) == (IMAGE, True, "input[2].content[1]")
    assert answer == Message(Role.ASSISTANT, (TextPart("No."),), phase="final_answer")
    assert parts == Message(Role.ASSISTANT, (TextPart("a"), TextPart("b")))


def test_calls_and_their_outputs() -> None:
    decision = accepted(
        input=[
            CALL,
            {"type": "function_call_output", "call_id": "a", "output": [TEXT]},
            CUSTOM,
            {"type": "custom_tool_call_output", "call_id": "b", "output": "2"},
        ]
    )
    assert decision.items == (
        FunctionCall("a", "n__f", "{}"),
        FunctionOutput("a", (TextPart("See: "),)),
        FunctionCall("b", "g", '{"input":"1+1"}'),
        FunctionOutput("b", (TextPart("2"),)),
    )


def test_an_output_needs_its_call() -> None:
    error = refused(input=[{"type": "function_call_output", "call_id": "a", "output": "1"}])
    assert error.param == "input[0].call_id"


def test_instructions_in_parts() -> None:
    parts = [{"type": "input_text", "text": "Compare "}, {"type": "input_json", "data": {"a": 1}}, PICTURE]
    [question] = accepted(questions=[QUESTION | {"instructions": parts}]).questions
    first, second, image = question.instructions
    assert (first, second) == (TextPart("Compare "), TextPart('\n{"a": 1}\n'))
    assert isinstance(image, Attachment)
    assert image.param == "questions[0].instructions[2]"


def test_fields_besides() -> None:
    decision = accepted(
        prompt_cache_key="k",
        prompt_cache_options={"mode": "explicit", "ttl": "30m"},
        safety_identifier="x" * 128,
        x_orders=3,
        lora=[{"name": "a"}],
        cache_salt="s",
        priority=2,
        media_fallback="note",
        chat_template_kwargs={"enable_thinking": False, "a": 1},
        stream=False,
    )
    assert decision.orders == 3
    assert decision.sampling == Sampling(lora=(Adapter("a"),), cache_salt="s", priority=2)
    assert (decision.media_fallback, decision.owner) == ("note", "me")
    assert decision.variables == {"enable_thinking": False, "a": 1}
    assert accepted(model=None).model == ""


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"questions": []}, "questions"),
        ({"questions": [QUESTION | {"weight": 1}]}, "questions[0].weight"),
        ({"questions": [QUESTION, {"type": "box", "instructions": "a"}]}, "questions[1].type"),
        ({"questions": [QUESTION | {"instructions": " \n"}]}, "questions[0].instructions"),
        ({"questions": [QUESTION | {"instructions": []}]}, "questions[0].instructions"),
        ({"questions": [QUESTION | {"instructions": [TEXT | {"prompt_cache_breakpoint": {"mode": "explicit"}}]}]}, "questions[0].instructions[0].prompt_cache_breakpoint"),
        ({"questions": [choice("a")]}, "questions[0].choices"),
        ({"questions": [choice("a", "a")]}, "questions[0].choices[1].value"),
        ({"questions": [choice(True, "true")]}, "questions[0].choices[1].value"),
        ({"questions": [choice("a", 1)]}, "questions[0].choices[1].value"),
        ({"questions": [choice("a", "b\nC: c")]}, "questions[0].choices[1].value"),
        ({"questions": [choice("a", "")]}, "questions[0].choices[1].value"),
        ({"questions": [choice("a", {"value": "b", "x": 1})]}, "questions[0].choices[1].x"),
        ({"questions": [score("low")]}, "questions[0].levels"),
        ({"questions": [score("low", " ")]}, "questions[0].levels[1].label"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "a"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "a"}]}]}, "input[0].content[0].image_url"),
        ({"input": [{"role": "user", "content": [PICTURE | {"image_url": "file:///a"}]}]}, "input[0].content[0].image_url"),
        ({"input": [{"role": "system", "content": [PICTURE]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_json", "data": [1]}]}]}, "input[0].content[0].data[0]"),
        ({"input": [CALL | {"name": ""}]}, "input[0].name"),
        ({"safety_identifier": "x" * 129}, "safety_identifier"),
        ({"prompt_cache_options": {"ttl": "1h"}}, "prompt_cache_options.ttl"),
        ({"stream": True}, "stream"),
        ({"temperature": 0}, "temperature"),
        ({"chat_template_kwargs": {"thinking": True}}, "chat_template_kwargs.thinking"),
        ({"x_orders": 0}, "x_orders"),
    ],
)  # fmt: skip
def test_what_is_refused(fields: Json, param: str) -> None:
    error = refused(**fields)
    assert (error.status, error.param) == (400, param)
    assert error.code != LIMIT_EXCEEDED


NESTED: Json = {"a": {"a": {"a": 1}}}


@pytest.mark.parametrize(
    ("fields", "limit", "param"),
    [
        ({"questions": [QUESTION] * 3}, "questions", "questions"),
        ({"questions": [choice("a", "b", "c")]}, "options", "questions[0].choices"),
        ({"questions": [score("a", "b", "c")]}, "levels", "questions[0].levels"),
        ({"questions": [choice("a", "b", "c")]}, "reads", "questions"),
        ({"input": "a" * 12}, "read_tokens", None),
        ({"questions": [choice("a", "x" * 3)]}, "name_characters", "questions[0].choices[1].value"),
        ({"input": [{"role": "user", "content": [{"type": "input_json", "data": NESTED}]}]}, "data_depth", "input[0].content[0].data"),
        ({"input": [{"role": "user", "content": [{"type": "input_json", "data": {"a": 1, "b": 2}}]}]}, "data_values", "input[0].content[0].data"),
        ({"input": [{"role": "user", "content": [{"type": "input_json", "data": {"a": "b"}}]}]}, "data_bytes", "input[0].content[0].data"),
    ],
)  # fmt: skip
def test_limits(fields: Json, limit: str, param: str | None) -> None:
    fields = {"input": "a", "questions": [QUESTION], **fields}
    accepted(**fields)
    error = refused(Limits(**{limit: 2}), **fields)
    assert (error.code, error.param) == (LIMIT_EXCEEDED, param)
    assert f"'{limit}'" in error.message


def test_documented_bounds_are_allowed() -> None:
    many = accepted(questions=[QUESTION] * 400)
    assert len(many.questions) == 400
    [wide] = accepted(questions=[choice(*(f"option {n}" for n in range(255)))]).questions
    assert len(wide.options) == 255
    [scale] = accepted(questions=[score(*"0123456789")]).questions
    assert len(scale.options) == 10


def test_a_name_twice_in_an_object_is_refused() -> None:
    body = msgspec.json.encode(OPENAI).replace(b'"name":"route"', b'"name":"route","name":"rout"')
    with pytest.raises(RequestError, match="'name' twice"):
        read(body, CreateDecision, Limits())


@given(spoiled(OPENAI))
def test_any_request_is_accepted_or_refused(body: Json) -> None:
    """Nothing else is raised: there is no 5xx for a bad request."""
    with suppress(RequestError):
        request, _ = read(msgspec.json.encode(body), CreateDecision, Limits())
        assert len(accept(request, Limits()).questions) == len(body["questions"])
