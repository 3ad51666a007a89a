"""Requests to System One: what of them the model is asked, and what is refused."""

from typing import Any

import msgspec
import pytest
from hypothesis import given

from antiphon.apis.questions import read
from antiphon.apis.systemone.accept import accept
from antiphon.apis.systemone.errors import encode_error, status
from antiphon.apis.systemone.schema import SystemOneRequest
from antiphon.core.decision import Decision, Option, Question, QuestionKind
from antiphon.core.errors import RequestError
from antiphon.core.items import Attachment, FunctionCall, MediaKind, Message, Role, TextPart, text_in
from antiphon.core.limits import DEFAULTS, LIMIT_EXCEEDED, Limits
from tests.apis.decision_requests import IMAGE, PNG, SYSTEMONE, Json, spoiled

NOUL = {"type": "noul", "instructions": "Is it?"}


def accepted(limits: Limits = DEFAULTS, uploads: Any = None, **fields: Any) -> Decision:
    body = {name: value for name, value in {**SYSTEMONE, **fields}.items() if value is not ...}
    request, _ = read(msgspec.json.encode(body), SystemOneRequest, limits)
    return accept(request, limits, "me", uploads or {})


def asked(question: Json, **fields: Any) -> Question:
    [asked] = accepted(questions={"q": question}, **fields).questions
    return asked


def refused(limits: Limits = DEFAULTS, uploads: Any = None, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as refusal:
        accepted(limits, uploads, **fields)
    return refusal.value


def test_the_questions_in_their_order() -> None:
    route, urgency, angry = accepted().questions
    assert (route.kind, route.options) == (
        QuestionKind.CHOICE,
        (Option("billing", "payments"), Option("shipping")),
    )
    assert (urgency.kind, urgency.options) == (
        QuestionKind.SCORE,
        (Option("can wait"), Option("today"), Option("now")),
    )
    assert (angry.kind, angry.options) == (QuestionKind.PREDICATE, (Option(""), Option("")))
    assert [question.source for question in (route, urgency, angry)] == [
        f"questions.{id_}" for id_ in SYSTEMONE["questions"]
    ]


def test_order_is_that_of_the_body() -> None:
    options = dict.fromkeys(("z", "b", "y", "10", "9"))
    assert [option.name for option in asked({**NOUL, "type": "choice", "criteria": options}).options] == [
        *options
    ]


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("Hi", "Hi"),
        ({"a": [1, None], "b": "é"}, '{"a": [1, null], "b": "é"}'),
        (["a", {"role": "user"}], '["a", {"role": "user"}]'),
        ([{"role": "user", "content": "a", "at": 3}], '[{"role": "user", "content": "a", "at": 3}]'),
        ([{"role": "clerk", "content": "a"}], '[{"role": "clerk", "content": "a"}]'),
        ({}, "{}"),
    ],
)
def test_a_state_is_a_text_of_the_user(state: Json, text: str) -> None:
    assert accepted(state=state).items == (Message(Role.USER, (TextPart(text),)),)


def test_a_state_of_messages_is_a_conversation() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    state = [
        {"role": "system", "content": "Be strict."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": IMAGE}}],
        },
        {"role": "assistant", "content": "b", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "c"},
    ]
    system, user, answer, called, _ = accepted(state=state).items
    assert system == Message(Role.SYSTEM, (TextPart("Be strict."),))
    assert isinstance(user, Message)
    assert isinstance(user.parts[1], Attachment)
    assert user.parts[1].param == "state[1].content[1]"
    assert answer == Message(Role.ASSISTANT, (TextPart("b"),))
    assert called == FunctionCall("1", "f", "{}")


@pytest.mark.parametrize(
    ("question", "options"),
    [
        (NOUL | {"criteria": None}, ("", "")),
        (NOUL | {"criteria": {}}, ("", "")),
        (NOUL | {"criteria": {"true": "spam", "false": None}}, ("spam", "")),
        (NOUL | {"criteria": {"false": ["mail", 1]}}, ("", '["mail", 1]')),
        ({"type": "noul", "criteria": {"true": {"a": 1}}}, ('{"a": 1}', "")),
        ({"type": "noul", "instructions": None, "criteria": {"false": "mail"}}, ("", "mail")),
    ],
)
def test_the_sides_of_a_noul(question: Json, options: tuple[str, str]) -> None:
    assert tuple(option.description for option in asked(question).options) == options


def test_json_in_instructions_and_criteria() -> None:
    question = asked({"type": "score", "instructions": {"scale": "é"}, "criteria": [{"a": 1}, ["b"], "c"]})
    assert question.instructions == (TextPart('{"scale": "é"}'),)
    assert [option.name for option in question.options] == ['{"a": 1}', '["b"]', "c"]


def test_a_choice_may_have_one_option() -> None:
    assert asked({"type": "choice", "instructions": "?", "criteria": {"a": None}}).options == (Option("a"),)


# Images


ASSET = {"type": "image", "format": "png", "data_base64": PNG}


def test_placeholders_become_images_where_they_stand() -> None:
    decision = accepted(
        state={"photo": "before <image:1> after"},
        questions={
            "q": {
                "type": "choice",
                "instructions": "Like <2>?",
                "criteria": {"a": "as <3> and <3>", "b": {"c": "<3>"}},
            }
        },
        assets={"<image:1>": ASSET, "<2>": ASSET, "<3>": ASSET},
    )
    [message], [question] = decision.items, decision.questions
    assert isinstance(message, Message)
    before, image, after = message.parts
    assert (before, after) == (TextPart('{"photo": "before '), TextPart(' after"}'))
    assert image == Attachment(MediaKind.IMAGE, "assets.<image:1>", data=PNG)
    assert question.options == (Option("a", "as [image 1] and [image 1]"), Option("b", '{"c": "[image 1]"}'))
    assert text_in(question.instructions) == "Like ?\n[image 1]: "
    assert [part.param for part in question.instructions if isinstance(part, Attachment)] == [
        "assets.<2>",
        "assets.<3>",
    ]


def test_placeholders_in_json_are_found_as_json_writes_them() -> None:
    for name in ('a "quoted" one', "back\\slash", "line\nbreak", "é🙂"):
        [message] = accepted(state=[name], assets={name: ASSET}).items
        assert isinstance(message, Message)
        assert len(message.parts) == 3


def test_the_longest_placeholder_counts() -> None:
    [message] = accepted(state="img10 img1", assets={"img1": ASSET, "img10": ASSET}).items
    assert isinstance(message, Message)
    params = [part.param for part in message.parts if isinstance(part, Attachment)]
    assert params == ["assets.img10", "assets.img1"]


def test_images_of_a_form() -> None:
    decision = accepted(
        uploads={"asset-0": PNG}, state="x", assets={"x": {"type": "image", "part": "asset-0"}}
    )
    [message] = decision.items
    assert message == Message(Role.USER, (Attachment(MediaKind.IMAGE, "assets.x", data=PNG),))


def test_lists_of_images_and_videos_come_first() -> None:
    decision = accepted(images=[IMAGE], videos=["data:video/mp4;base64,AA=="], instructions="Be strict.")
    system, user = decision.items
    assert system == Message(Role.SYSTEM, (TextPart("Be strict."),))
    assert isinstance(user, Message)
    kinds = [part.kind for part in user.parts if isinstance(part, Attachment)]
    assert kinds == [MediaKind.IMAGE, MediaKind.VIDEO]
    assert isinstance(user.parts[2], TextPart)
    assert accepted(images=[], videos=None) == accepted()


# Refusals


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"state": ...}, "state"),
        ({"state": None}, "state"),
        ({"state": 3}, "state"),
        ({"questions": ...}, "questions"),
        ({"questions": {}}, "questions"),
        ({"questions": [NOUL]}, "questions"),
        ({"questions": {"": NOUL}}, "questions"),
        ({"questions": {"q": "Is it?"}}, "questions.q"),
        ({"questions": {"q": {"instructions": "Is it?"}}}, "questions.q.type"),
        ({"questions": {"q": NOUL | {"type": "boolean"}}}, "questions.q.type"),
        ({"questions": {"q": {"type": "box", "instructions": "The dog"}}}, "questions.q.type"),
        ({"questions": {"q": NOUL | {"weight": 1}}}, "questions.q.weight"),
        ({"questions": {"q": NOUL | {"criteria": {"yes": "a"}}}}, "questions.q.criteria.yes"),
        ({"questions": {"q": {"type": "noul"}}}, "questions.q.instructions"),
        ({"questions": {"q": {"type": "noul", "criteria": {"true": None}}}}, "questions.q.instructions"),
        *(
            ({"questions": {"q": {"type": type_, "instructions": empty, "criteria": criteria}}}, "questions.q.instructions")
            for type_, criteria in (("choice", {"a": None, "b": None}), ("score", ["a", "b"]))
            for empty in ("", "  ", {}, [], 0, None)
        ),
        *(({"questions": {"q": NOUL | {"instructions": empty}}}, "questions.q.instructions") for empty in ("", {}, [], 0)),
        ({"questions": {"q": {"type": "choice", "criteria": {"a": None}}}}, "questions.q.instructions"),
        ({"questions": {"q": NOUL | {"type": "choice"}}}, "questions.q.criteria"),
        ({"questions": {"q": NOUL | {"type": "choice", "criteria": {}}}}, "questions.q.criteria"),
        ({"questions": {"q": NOUL | {"type": "choice", "criteria": ["a", "b"]}}}, "questions.q.criteria"),
        ({"questions": {"q": NOUL | {"type": "choice", "criteria": {"a\u0007": None, "b": None}}}}, "questions.q.criteria"),
        ({"questions": {"q": NOUL | {"type": "choice", "criteria": {"": None, "b": None}}}}, "questions.q.criteria"),
        ({"questions": {"q": NOUL | {"type": "score", "criteria": {"0": "a", "1": "b"}}}}, "questions.q.criteria"),
        ({"questions": {"q": NOUL | {"type": "score", "criteria": ["a"]}}}, "questions.q.criteria"),
        ({"questions": {"q": NOUL | {"type": "score", "criteria": ["a", None]}}}, "questions.q.criteria[1]"),
        ({"questions": {"q": NOUL | {"type": "score", "criteria": ["a", ""]}}}, "questions.q.criteria[1]"),
        ({"assets": {}}, "assets"),
        ({"assets": {"a": {}}}, "assets.a.data_base64"),
        ({"assets": {" ": ASSET}}, "assets"),
        ({"assets": {"nowhere": ASSET}}, "assets.nowhere"),
        ({"state": "a", "assets": {"a": {"part": "asset-0"}}}, "assets.a.part"),
        ({"assets": {"a": ASSET | {"format": "gif"}}}, "assets[...].format"),
        ({"images": ["/etc/passwd"]}, "images[0]"),
        ({"stream": True}, "stream"),
        ({"temperature": 0.5}, "temperature"),
    ],
)  # fmt: skip
def test_what_is_refused(fields: Json, param: str) -> None:
    error = refused(**fields)
    assert error.param == param
    assert status(error) == 422
    body = msgspec.json.decode(encode_error(error))
    assert body["error"] == {"message": error.message, "type": "unprocessable_entity_error", "code": 422}
    [problem] = body["detail"]
    assert problem.keys() == {"loc", "msg", "type"}
    assert problem["loc"][0] == "body"


def test_the_place_of_a_problem() -> None:
    error = refused(questions={"q": NOUL | {"type": "score", "criteria": ["a", None]}})
    assert msgspec.json.decode(encode_error(error))["detail"][0]["loc"] == [
        "body",
        "questions",
        "q",
        "criteria",
        1,
    ]
    missing = refused(state=...)
    assert msgspec.json.decode(encode_error(missing))["detail"] == [
        {"loc": ["body", "state"], "msg": "Missing required parameter: 'state'.", "type": "missing"}
    ]


def test_a_part_of_a_form_that_no_asset_names() -> None:
    assert refused(uploads={"asset-1": PNG}).param == "assets"


def nested(levels: int) -> Json:
    value: Json = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "fields",
    [
        {"state": nested(40)},
        {"questions": {"q": NOUL | {"instructions": nested(40)}}},
        {"questions": {"q": NOUL | {"criteria": {"true": nested(40)}}}},
    ],
)
def test_deep_values_are_refused_as_wrong(fields: Json) -> None:
    error = refused(**fields)
    assert (error.code, status(error)) == (LIMIT_EXCEEDED, 422)


@pytest.mark.parametrize(
    ("fields", "limit", "expected"),
    [
        ({"questions": dict.fromkeys("abc", NOUL)}, "questions", 413),
        ({"questions": {"q": NOUL | {"type": "choice", "criteria": dict.fromkeys("abc")}}}, "reads", 413),
        ({"state": "a" * 12}, "read_tokens", 413),
        ({"questions": {"q": NOUL | {"type": "choice", "criteria": dict.fromkeys("abc")}}}, "options", 422),
        ({"questions": {"q": NOUL | {"type": "score", "criteria": [*"abc"]}}}, "levels", 422),
    ],
)
def test_limits(fields: Json, limit: str, expected: int) -> None:
    fields = {"state": "a", "questions": {"q": NOUL}, **fields}
    accepted(**fields)
    error = refused(Limits(**{limit: 2}), **fields)
    assert (error.code, status(error)) == (LIMIT_EXCEEDED, expected)
    assert f"'{limit}'" in error.message


@pytest.mark.parametrize(
    "place", [b'"q":{"type":"noul"},"q"', b'"q":{"type":"noul","type"', b'"q":{"criteria":{"a":1,"a"']
)
def test_a_name_twice_is_refused(place: bytes) -> None:
    end = b"}" * (place.count(b"{") - place.count(b"}"))
    body = b'{"state":"a","questions":{' + place + b":null" + end + b"}}"
    with pytest.raises(RequestError, match="twice") as refusal:
        read(body, SystemOneRequest, Limits())
    assert (refusal.value.param, status(refusal.value)) == ("questions", 422)


@given(spoiled(SYSTEMONE | {"assets": {"Charged": ASSET}, "images": [IMAGE], "instructions": "a"}))
def test_any_request_is_accepted_or_refused(body: Json) -> None:
    """Nothing else is raised: there is no 5xx for a bad request."""
    refusal = None
    try:
        request, _ = read(msgspec.json.encode(body), SystemOneRequest, Limits())
        decision = accept(request, Limits())
    except RequestError as error:
        refusal = error
    if refusal is None:
        assert len(decision.questions) == len(body["questions"])
    else:
        assert status(refusal) in (400, 413, 422)
        assert msgspec.json.decode(encode_error(refusal))["error"]["code"] == status(refusal)
