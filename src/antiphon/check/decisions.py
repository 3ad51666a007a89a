"""The checks of decisions: OpenAI's `/v1/decisions`, and System One's `/v1/systemone`."""

from typing import Any

from antiphon.check.chat import ERROR
from antiphon.check.checks import (
    COUNT,
    NAME,
    NULLABLE_STRING,
    NUMBER,
    PROBABILITY,
    STRING,
    Table,
    answered,
    array,
    conforms,
    constant,
    error_shape,
    expect,
    required,
)
from antiphon.check.client import Server

DECISIONS = Table("decisions")
SYSTEMONE = Table("systemone")

PATH = "/v1/decisions"
OTHER = "/v1/systemone"
OPENAI = "https://github.com/openai/openai-python (3.57), src/openai/types/decision.py"
TYPESAFE = "https://github.com/typesafe-ai/typesafe-sdk-python (0.7.5; its OpenAPI document 0.2.0)"

TEXT = "I was charged twice for order 4471."
CHOICES = ["billing", "shipping", "technical"]
LEVELS = ["calm", "annoyed", "angry"]
ROUNDED = 0.06
"""How far probabilities that are rounded to two decimals, and were added, may be from their sum."""

NAMED = {"name": NULLABLE_STRING, "type": NAME}
PREDICATE = required({**NAMED, "type": constant("predicate"), "probability": PROBABILITY})
CHOICE = required(
    {
        **NAMED,
        "type": constant("choice"),
        "choice": {"enum": CHOICES},
        "confidence": NUMBER,
        "probabilities": array(required({"value": {"enum": CHOICES}, "probability": PROBABILITY}), least=3),
    }
)
SCORE = required(
    {
        **NAMED,
        "type": constant("score"),
        "score": {"type": "number", "minimum": 0, "maximum": 2},
        "confidence": NUMBER,
        "probabilities": array(
            required({"value": COUNT, "label": {"enum": LEVELS}, "probability": PROBABILITY}), least=3
        ),
    }
)
USAGE = required(
    {
        "input_tokens": COUNT,
        "input_tokens_details": required({"cached_tokens": COUNT, "cache_write_tokens": COUNT}),
        "output_tokens": COUNT,
        "output_tokens_details": required({"reasoning_tokens": COUNT}),
        "total_tokens": COUNT,
    }
)
QUESTIONS: list[dict[str, Any]] = [
    {"type": "predicate", "name": "complaint", "instructions": "Is this a complaint?"},
    {
        "type": "choice",
        "name": "team",
        "instructions": "Which team should handle it?",
        "choices": [{"value": value} for value in CHOICES],
    },
    {
        "type": "score",
        "name": "mood",
        "instructions": "How upset is the writer?",
        "levels": [{"label": label} for label in LEVELS],
    },
]
IDS: dict[str, dict[str, Any]] = {
    "complaint": {"type": "noul", "instructions": "Is this a complaint?"},
    "team": {
        "type": "choice",
        "instructions": "Which team should handle it?",
        "criteria": dict.fromkeys(CHOICES),
    },
    "mood": {"type": "score", "instructions": "How upset is the writer?", "criteria": LEVELS},
}
ANSWERS = {
    "complaint": required({"type": constant("noul"), "noul": PROBABILITY}),
    "team": required(
        {
            "type": constant("choice"),
            "choice": {"enum": CHOICES},
            "confidence": NUMBER,
            "probabilities": required(dict.fromkeys(CHOICES, PROBABILITY)),
        }
    ),
    "mood": required(
        {
            "type": constant("score"),
            "score": {"type": "number", "minimum": 0, "maximum": 2},
            "confidence": NUMBER,
            "legend": required(dict.fromkeys("012", STRING)),
            "probabilities": required(dict.fromkeys("012", PROBABILITY)),
        }
    ),
}


async def decision(server: Server) -> Any:
    """The answers to all kinds of questions."""
    body = {"model": server.model, "input": TEXT, "questions": QUESTIONS}
    found = answered(await server.post(PATH, body), optional=True)
    conforms(found, required({"model": NAME, "answers": array(required({"type": NAME}))}))
    return found


@DECISIONS.check(
    "shape",
    "client.decisions raises, or takes one answer for that to another question.",
    OPENAI,
)
async def shape(server: Server) -> None:
    """Each question has its answer, in order, with its name, and the fields of its kind."""
    answers = (await decision(server))["answers"]
    expect(len(answers) == len(QUESTIONS), f"{len(answers)} answers to {len(QUESTIONS)} questions")
    for answer, question, schema in zip(answers, QUESTIONS, (PREDICATE, CHOICE, SCORE), strict=True):
        name = question["name"]
        expect(answer.get("name") == name, f"the answer to {name!r} has the name {answer.get('name')!r}")
        if answer["type"] != "refusal":
            conforms(answer, schema, f"the answer to {name!r}")


@DECISIONS.check(
    "probabilities",
    "Thresholds mean something else than programs take them for.",
    f"{OPENAI}; https://github.com/mandu5/jevcompat (0.1.1)",
)
async def probabilities(server: Server) -> None:
    """The probabilities of a question add up to 1, the choice is the most probable, the score their mean."""
    await shape(server)
    for answer in (await decision(server))["answers"]:
        if answer["type"] == "choice":
            found = {each["value"]: each["probability"] for each in answer["probabilities"]}
            check_choice(found, answer["choice"])
        elif answer["type"] == "score":
            levels = {each["value"]: each["probability"] for each in answer["probabilities"]}
            check_score(levels, answer["score"])


def check_sum(found: dict[Any, float]) -> None:
    """Fail unless these are the probabilities of all that may be."""
    expect(abs(sum(found.values()) - 1) <= ROUNDED, f"the probabilities are {found}")


def check_choice(found: dict[str, float], choice: str) -> None:
    """Fail unless the choice is one of the most probable."""
    check_sum(found)
    expect(found[choice] >= max(found.values()), f"the choice is {choice!r} of {found}")


def check_score(found: dict[int, float], score: float) -> None:
    """Fail unless the score is the mean of the levels."""
    check_sum(found)
    mean = sum(level * probability for level, probability in found.items())
    expect(abs(mean - score) <= ROUNDED, f"the score is {score}, and the mean {mean:.3f}")


@DECISIONS.check(
    "usage",
    "OpenAI's tool runner fails; costs are counted wrongly.",
    OPENAI,
)
async def usage(server: Server) -> None:
    """The usage has all five counts, and its total is the sum."""
    body = await decision(server)
    conforms(body, required({"usage": USAGE}))
    found = body["usage"]
    parts = found["input_tokens"], found["output_tokens"]
    expect(sum(parts) == found["total_tokens"], f"{parts} are not {found['total_tokens']} together")
    expect(parts[0], "no input tokens are counted")


@DECISIONS.check(
    "errors",
    "A wrong question gets an answer that means nothing.",
    f"{OPENAI}; src/openai/types/decision_create_params.py",
)
async def errors(server: Server) -> None:
    """A choice between one value is refused with an error."""
    await decision(server)
    question = {"type": "choice", "instructions": "Which?", "choices": [{"value": "one"}]}
    body = {"model": server.model, "input": TEXT, "questions": [question]}
    error_shape(await server.post(PATH, body), ERROR, [400, 422])


async def named(server: Server) -> Any:
    """The answers to all kinds of questions, in the form of System One."""
    body = {"model": server.model, "state": {"message": TEXT}, "questions": IDS}
    found = answered(await server.post(OTHER, body), optional=True)
    conforms(found, required({"model": NAME, "answers": {"type": "object"}}))
    return found


@SYSTEMONE.check(
    "shape",
    "typesafe-sdk raises.",
    TYPESAFE,
)
async def systemone_shape(server: Server) -> None:
    """Each question has its answer, by its id and in order, with the fields of its kind."""
    answers = (await named(server))["answers"]
    expect([*answers] == [*IDS], f"the answers have the ids {[*answers]}")
    conforms(answers, required(ANSWERS), "answers")


@SYSTEMONE.check(
    "probabilities",
    "Thresholds mean something else than programs take them for.",
    f"{TYPESAFE}; https://github.com/mandu5/jevcompat (0.1.1)",
)
async def systemone_probabilities(server: Server) -> None:
    """The probabilities of a question add up to 1, the choice is the most probable, the score their mean."""
    await systemone_shape(server)
    answers = (await named(server))["answers"]
    check_choice(answers["team"]["probabilities"], answers["team"]["choice"])
    levels = {int(level): each for level, each in answers["mood"]["probabilities"].items() if level in "012"}
    check_score(levels, answers["mood"]["score"])


@SYSTEMONE.check(
    "usage",
    "Costs are counted wrongly.",
    TYPESAFE,
)
async def systemone_usage(server: Server) -> None:
    """The usage has input_tokens and output_tokens."""
    shape_of_usage = required({"input_tokens": {**COUNT, "minimum": 1}, "output_tokens": COUNT})
    conforms(await named(server), required({"usage": shape_of_usage}))
