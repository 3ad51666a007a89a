"""typesafe-sdk, the client of System One: questions of each kind, an image, a compressed body, the models."""

import json
import sys
from base64 import b64decode
from typing import Any

from typesafe_sdk import Choice, Image, Noul, Score, TypeSafeAPIError, TypeSafeClient

URL, MODEL, WAY = sys.argv[1:]
PICTURE = b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
QUESTIONS: dict[str, Any] = {
    "route": Choice(instructions="Which team?", criteria={"billing": "payments", "shipping": None}),
    "urgency": Score(instructions="How urgent?", criteria=["can wait", {"label": "today"}, "now"]),
    "angry": Noul(criteria={"true": "The customer shouts."}),
}

client = TypeSafeClient(api_key="secret", base_url=URL.removesuffix("/v1"), timeout=60)


def facts(result: Any) -> dict[str, Any]:
    """What the client reads of a result: of each answer whether its figures are numbers from 0 on."""
    route, urgency = result.choices["route"], result.scores["urgency"]
    return {
        "model": result.model,
        "route": route.choice in route.probabilities and 0 <= route.confidence <= 1,
        "names": [*route.probabilities],
        "legend": {str(level): text for level, text in urgency.legend.items()},
        "score": 0 <= urgency.score <= 2,
        "angry": 0 <= result.nouls["angry"].noul <= 1,
        "counted": result.usage.input_tokens > 0 and result.usage.output_tokens == 0,
    }


def questions() -> Any:
    return facts(client.system_one(state={"ticket": "Charged twice."}, questions=QUESTIONS, model=MODEL))


def default_model() -> Any:
    return facts(client.system_one(state="Charged twice.", questions=QUESTIONS))


def compressed() -> Any:
    """A body that is long enough to be compressed."""
    zipped = TypeSafeClient(api_key="secret", base_url=URL.removesuffix("/v1"), compression="zstd")
    return facts(zipped.system_one(state="Charged twice. " * 100, questions=QUESTIONS, model=MODEL))


def image() -> Any:
    """Images in a state and in instructions, sent as a form."""
    asked = {**QUESTIONS, "angry": Noul(instructions=["Does it look like this?", Image(PICTURE)])}
    return facts(client.system_one(state={"photo": Image(PICTURE)}, questions=asked, model=MODEL))


def models() -> Any:
    return [[model.name, len(model.release_date)] for model in client.models.list().models]


def refused() -> Any:
    try:
        client.system_one(state="a", questions={"q": Choice(instructions="?", criteria={"bell\a": None})})
    except TypeSafeAPIError as error:
        return [error.status, "questions.q.criteria" in str(error)]


print(json.dumps(globals()[WAY]()))
