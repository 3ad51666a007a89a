"""An API of another package, in one module: a little of Ollama's and of Gemini's conventions, and none of OpenAI's.

The model's name is in the path, streams are lines of JSON that blank lines keep alive, errors have a form of
their own, sampling is nested, and curl's content type will do. `ROW` is all that a server needs of it.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import Struct

from antiphon.apis.api import Api
from antiphon.apis.projection import SilentProjection
from antiphon.apis.request import AtLeastOne, SamplingParams
from antiphon.apis.sampling import shared_sampling
from antiphon.app.app import App
from antiphon.core.errors import AntiphonError
from antiphon.core.events import Event, Finished, TextDelta
from antiphon.core.items import Message, Role, TextPart
from antiphon.core.turn import Turn
from antiphon.engines.engine import Prompt
from antiphon.http.routes import answers
from antiphon.run.answer_source import AnswerSource
from antiphon.run.drive import Driver

# apis/<name>/: requests, answers, errors


class Options(SamplingParams, kw_only=True):
    num_predict: AtLeastOne | None = None


class Said(Struct):
    role: Literal["system", "user", "assistant"]
    content: str


class Talk(Struct, kw_only=True):
    """The conversation, the last message first asked for."""

    model: str
    said: list[Said]
    stream: bool = True
    options: Options = msgspec.field(default_factory=Options)


class Line(Struct):
    text: str
    done: bool = False


class Failure(Struct):
    reason: str
    field: str | None


def encode_error(error: AntiphonError) -> bytes:
    field = None if error.param is None else error.param.replace(".", "/")
    return msgspec.json.encode(Failure(error.message, field))


TOY = Api(
    name="Toy",
    encode_error=encode_error,
    error_type=Failure,
    parameters={"max_tokens": "options.num_predict", "min_tokens": "options.min_tokens"},
    media_type=b"application/x-ndjson",
    keep_alive=b"\n",
    model_in_path="model",
    any_content_type=True,
    limit_headers=lambda account: [("x-left", str(int(account.requests.left)))] if account.requests else [],
)


class Lines:
    """The stream: a line for each text."""

    def set_prompts(self, prompts: Iterable[Prompt]) -> None: ...

    def begin(self) -> list[bytes]:
        return []

    def push(self, choice: int, events: list[Event]) -> list[bytes]:
        lines = [Line(event.text) for event in events if isinstance(event, TextDelta)]
        lines += [Line("", done=True) for event in events if isinstance(event, Finished)]
        return [msgspec.json.encode(line) + b"\n" for line in lines]

    def delta_encoder(self, choice: int, delta: type[Event]) -> None:
        """Each event is pushed."""

    def finish(self) -> list[bytes]:
        return []

    def fail(self, error: AntiphonError) -> list[bytes]:
        return [encode_error(error) + b"\n"]

    def cancel(self) -> list[bytes]:
        return []

    def body(self) -> bytes:
        return b""


class Whole(SilentProjection):
    """The full answer: one line."""

    text = ""

    def set_prompts(self, prompts: Iterable[Prompt]) -> None: ...

    def push(self, choice: int, events: list[Event]) -> list[bytes]:
        self.text += "".join(event.text for event in events if isinstance(event, TextDelta))
        return []

    def body(self) -> bytes:
        return msgspec.json.encode(Line(self.text, done=True))


def accept(talk: Talk, owner: str) -> Turn:
    items = tuple(Message(Role(said.role), (TextPart(said.content),)) for said in talk.said)
    sampling = shared_sampling(talk.options, max_tokens=talk.options.num_predict, logprobs=None)
    return Turn(talk.model, items, sampling=sampling, owner=owner, parameters={"conversation": "said"})


# app/<name>.py


async def create(app: App, talk: Talk, owner: str, header_id: str | None) -> Driver:
    """Answer a talk. Raises RequestError."""
    model = await app.models.model(talk.model)
    projection = Lines() if talk.stream else Whole()
    return app.driver(AnswerSource([accept(talk, owner)], model), projection)


# http/app.py

ROW = answers("/toy/{model:path}/talk", Talk, create, Line, TOY)
