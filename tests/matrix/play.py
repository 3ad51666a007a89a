"""Plays the cases of one dialect over HTTP, in every API, streamed and whole, and collects what is wrong."""

import re
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx2 as httpx
from msgspec.structs import replace
from structlog.testing import capture_logs

from antiphon.engines.scripted import ScriptedEngine
from antiphon.run.models import Models
from tests.matrix import laws
from tests.matrix.apis import APIS, MODEL, Answer, Api, Call
from tests.matrix.batches import PATHS, answer_of_line
from tests.matrix.case import PARAMETERS, Case, Json
from tests.matrix.history import RESULTS
from tests.matrix.model import MatrixEngine
from tests.server import NO_TLS, running, served_model

GUARD = "guard"
"""The name of the model that checks texts."""


class Fault(NamedTuple):
    """What is wrong, in which API, and the case that shows it."""

    what: str
    way: str
    case: Case

    def __str__(self) -> str:
        return f"{self.way}: {self.what}\n    {self.case}"


class Played(NamedTuple):
    """The answers to a case in one API; `given` is what they depend on, but for the API.

    `wrong` is what is wrong with what the engine got.
    """

    answers: list[Answer]
    given: tuple[object, ...]
    wrong: list[str]
    begins_in_reasoning: bool


class Player:
    """Asks a server whose two models write in one dialect: one enforces constraints, the other does not."""

    def __init__(self, http: httpx.AsyncClient, engines: dict[str, MatrixEngine]) -> None:
        self._http = http
        self._engines = engines
        self.requests = 0

    async def faults(self, case: Case, *, batched: bool = False) -> list[Fault]:
        """What is wrong with the answers to a case; if it is `batched`, also with those of batches."""
        found: list[Fault] = []
        played: dict[str, Played] = {}
        for api in APIS.values():
            if (body := api.body(case)) is None:
                continue
            try:
                result = await self._play(api, body, case, batched)
                if result is not None:
                    played[api.name] = result
                    found += [Fault(what, api.name, case) for what in self._judged(result, case)]
            except (AssertionError, ValueError) as error:
                said = str(error) or traceback.format_exception(error)[-2]
                found.append(Fault(said, api.name, case))
        found += [Fault(what, "in two APIs", case) for what in _differences([*played.items()])]
        return found

    async def _play(self, api: Api, body: Json, case: Case, batched: bool) -> Played | None:
        """The full answers, which a stream adds up to as well; None if the case was refused."""
        told = await self._allowed(api, case) if case.engine == "checks" else None
        engine = self._engines[case.engine]
        engine.begin(case, told)
        full = await self._post(api, body, case)
        if full is None:
            return None
        found = api.full(full.json())
        wrote, closed = engine.wrote, engine.closed
        given = engine.requests[0].prompt.text[-80:], engine.requests[0].constraint, (*wrote, *closed)
        prompt = engine.requests[0].prompt.text
        engine.begin(case, told)
        stream = await self._post(api, body | {"stream": True}, case)
        assert stream is not None, "it is refused only when it is streamed"
        folded = api.folded(stream.content)
        wrong = [*_misplaced(prompt, case), *_unenforced(engine, case)]

        def compare(what: str, other: Json) -> None:
            """Where an answer that is cut is closed depends on the time: closed elsewhere, it has to be right."""
            assert sorted(engine.wrote) == sorted(wrote), (
                f"the engine is asked otherwise for {what}: {engine.wrote}, {wrote}"
            )
            if _closed(other) == _closed(found) and sorted(engine.closed) == sorted(closed):
                assert other == found, f"{what} adds up to\n    {other}\nnot to\n    {found}"
            else:
                wrong.extend(
                    fault for answer in api.answers(other, case) for fault in laws.faults(answer, case)
                )

        compare("the stream", folded)
        if batched and api.path in PATHS:
            engine.begin(case, told)
            compare("a line of a batch", api.full(await answer_of_line(self._http, api.path, body)))
        return Played(api.answers(found, case), given, wrong, prompt.endswith("<think>\n"))

    async def _allowed(self, api: Api, case: Case) -> list[str] | None:
        """What a model writes that is held to the demands of the case."""
        if not case.obeys:
            return None
        twin = replace(case, engine="enforces")
        engine = self._engines["enforces"]
        engine.begin(twin)
        await self._post(api, api.body(twin), twin)
        return engine.wrote

    async def _post(self, api: Api, body: Json, case: Case) -> httpx.Response | None:
        self.requests += 1
        response = await self._http.post(api.path, json=body)
        if response.status_code == 200:
            return response
        assert response.status_code < 500, f"{response.status_code}: {response.text}"
        assert api.refused(response.json()), f"a refusal without a parameter: {response.text}"
        if case.history in api.refuses:
            return None
        if case.limit is not None and case.demands:  # no answer in the demanded form is so short
            assert "at least" in response.text, response.text
            return None
        raise AssertionError(f"{response.status_code}: {response.text}")

    def _judged(self, played: Played, case: Case) -> Iterator[str]:
        if len(played.answers) not in (1, case.n):  # some APIs have one only
            yield f"it has {len(played.answers)} choices, not {case.n}"
        yield from played.wrong
        for answer in played.answers:
            yield from laws.faults(answer, case)
            if not played.begins_in_reasoning:
                yield from laws.unlike_known(answer, case)


def _closed(answer: Any) -> list[str]:
    """How many tokens have closed each part of an answer that was cut, and how many it has, if the API tells."""
    shown = str(answer)
    closed = sorted(re.findall(r"closed: its last (\d+) token", shown))
    return closed and closed + re.findall(r"'output_tokens': (\d+)", shown)


def _misplaced(prompt: str, case: Case) -> Iterator[str]:
    """Results are in the order of their calls."""
    if case.history == "parallel results":
        places = [prompt.find(text) for _, text in RESULTS]
        if -1 in places:
            yield f"a result is not in the prompt: {prompt}"
        elif places != sorted(places):
            yield f"results in another order than their calls, at {places}"


def _unenforced(engine: MatrixEngine, case: Case) -> Iterator[str]:
    """A form is enforced where the engine can."""
    if case.engine == "enforces" and case.format and not (case.must and laws.lacks_calls(case)):
        yield from ("the form is not enforced" for each in engine.requests if each.constraint is None)


def _differences(played: list[tuple[str, Played]]) -> Iterator[str]:
    """What two APIs say otherwise of what a model wrote on the same prompt."""
    for number, (name, one) in enumerate(played):
        for other_name, other in played[:number]:
            if one.given == other.given:
                for mine, theirs in zip(one.answers, other.answers, strict=False):
                    if mine.closed and theirs.closed:
                        continue  # perhaps elsewhere: each is judged by itself
                    if not _agree(mine, theirs):
                        yield f"{name} says {mine}, {other_name} {theirs}"


def _agree(one: Answer, other: Answer) -> bool:
    """Two APIs show the same. Reasoning is not compared, which some show only if they are asked for it."""
    shown = [(each.text, each.finish, each.unmet != (), len(each.calls)) for each in (one, other)]
    return shown[0] == shown[1] and all(map(_agree_on, one.calls, other.calls))


def _agree_on(one: Call, other: Call) -> bool:
    """Two APIs show the same call. Messages have an object in the place of arguments that are none."""
    mine, theirs = (laws.json_value(call.arguments) for call in (one, other))
    broken = isinstance(mine, dict) != isinstance(theirs, dict)
    return one.name == other.name and (broken or mine == theirs)


@asynccontextmanager
async def playing(dialect: str) -> AsyncIterator[Player]:
    """A server of the models of one dialect."""
    engines = {
        engine: MatrixEngine(MODEL.format(dialect=dialect, engine=engine), enforces=engine == "enforces")
        for engine in PARAMETERS["engine"]
    }
    guard = ScriptedEngine([{"output": "safe"}], name="Llama-Guard")
    guards = [served_model(guard, model_name=(GUARD,), dialect="plain")]
    models = Models([*(served_model(engine, dialect=dialect) for engine in engines.values()), *guards])
    with capture_logs():  # nobody reads thousands of lines
        async with (
            running([], models=models, moderation=GUARD, moderation_window=8) as server,
            httpx.AsyncClient(verify=NO_TLS, base_url=server.url, timeout=60) as http,
        ):
            yield Player(http, engines)


async def faults_of(dialect: str, cases: list[Case], batched: int | None = 0) -> list[Fault]:
    """What is wrong with the answers to the cases of a dialect. The first so many are lines of batches, too."""
    async with playing(dialect) as player:
        lines = len(cases) if batched is None else batched
        found = [await player.faults(case, batched=number < lines) for number, case in enumerate(cases)]
        return [fault for faults in found for fault in faults]
