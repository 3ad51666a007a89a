"""Law: whatever a client asks for, it does not notice that servers of the model fail, after any of their events."""

from collections import deque
from collections.abc import AsyncIterator, Iterator, Set
from contextlib import asynccontextmanager
from itertools import count, cycle
from typing import Any

import httpx2 as httpx
import pytest
from msgspec.structs import replace

from antiphon.core.chunks import Chunk
from antiphon.core.errors import AntiphonError, EngineDiedError, ReplicaLostError
from antiphon.engines.engine import GenerationRequest, Receiver, Work
from tests.contracts.dialect import TOOLS, answers
from tests.engines.byte_servers import NAMING, TEXTUAL, ByteModel, engine_of, spelled
from tests.http.api import Api
from tests.http.chat_api import events
from tests.matrix.apis import APIS
from tests.run.test_cuts import CALLS
from tests.search import CI
from tests.server import NO_TLS, running

Json = Any

ASKED = "Look at 日本."
MODEL = "bytes"
FUNCTIONS = [{"name": name, "parameters": schema} for name, schema in TOOLS.items()]
MESSAGES = [{"role": "user", "content": ASKED}]

DRAWN = frozenset({"id", "item_id", "call_id", "created", "created_at", "completed_at", "signature"})
"""What two answers to a request differ in."""
STEPPED = frozenset({"token", "tokens", "top_logprobs", "text_offset", "reasoning_tokens"})
"""What depends on how many tokens come at a time."""
ESTIMATED = frozenset({"usage"})
"""What is estimated where the server takes text."""


class Failing:
    """An engine that fails after the numbers of its events in `cuts`, and then goes on elsewhere."""

    def __init__(self, kind: str, answer: str) -> None:
        self.cuts = deque[int]()
        self.lost = 0
        model = ByteModel(spelled(answer, 1), exact=kind in NAMING)
        self._engine = engine_of(kind, model, (3, 1, 4, 1, 5, 2) * 20, self._each_cut())

    def _each_cut(self) -> Iterator[int | None]:
        while True:
            yield self.cuts.popleft() if self.cuts else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @property
    def card(self) -> Any:
        card = self._engine.card
        return replace(card, capabilities=replace(card.capabilities, replicas=True))

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        return self._engine.generate(request, _Lost(self, receiver))


class _Lost:
    def __init__(self, engine: Failing, receiver: Receiver) -> None:
        self._engine = engine
        self._receiver = receiver

    def push(self, chunks: list[Chunk]) -> None:
        self._receiver.push(chunks)

    def fail(self, error: AntiphonError) -> None:
        died = isinstance(error, EngineDiedError)
        self._engine.lost += died
        self._receiver.fail(ReplicaLostError() if died else error)


def without(names: Set[str], value: Json) -> Json:
    """A body without these fields."""
    if isinstance(value, dict):
        return {name: without(names, each) for name, each in value.items() if name not in names}
    return [without(names, each) for each in value] if isinstance(value, list) else value


class Client:
    """Asks in every API: `ways` are the kinds of requests."""

    def __init__(self, http: httpx.AsyncClient, engine: Failing, kind: str) -> None:
        self._http = http
        self._engine = engine
        self._differing = DRAWN | STEPPED | (ESTIMATED if kind in TEXTUAL else set())
        functions = [{"type": "function", "function": each} for each in FUNCTIONS]
        tools = [{"type": "function", "strict": False, **each} for each in FUNCTIONS]
        schemas = [{"name": each["name"], "input_schema": each["parameters"]} for each in FUNCTIONS]
        self._bodies: dict[str, Json] = {
            "chat": {"messages": MESSAGES, "tools": functions},
            "responses": {"input": ASKED, "tools": tools},
            "messages": {"messages": MESSAGES, "tools": schemas, "max_tokens": 1000},
            "completions": {"prompt": f"{ASKED}assistant\n", "max_tokens": 1000},
        }
        if kind == "vllm":  # each token has a log probability here, those of markers, too
            self._bodies["completions"]["logprobs"] = 1
        self.ways = [(name, how) for name in self._bodies for how in ("whole", "streamed")]
        self.ways.append(("responses", "background"))

    async def answer(self, name: str, how: str, *cuts: int) -> Json:
        """What comes of a request whose first servers fail after these numbers of events."""
        self._engine.cuts.extend(cuts)
        body = {"model": MODEL, **self._bodies[name]}
        found = await getattr(self, f"_{how}")(name, body)
        self._engine.cuts.clear()
        return without(self._differing, found)

    async def _post(self, name: str, body: Json) -> httpx.Response:
        path = {"chat": "/chat/completions"}.get(name, f"/{name}")
        response = await self._http.post(path, json=body)
        assert response.status_code == 200, response.text
        return response

    async def _whole(self, name: str, body: Json) -> Json:
        found = (await self._post(name, body)).json()
        return found if name == "completions" else APIS[name].full(found)

    async def _streamed(self, name: str, body: Json) -> Json:
        content = (await self._post(name, {**body, "stream": True})).content
        if name != "completions":
            return APIS[name].folded(content)
        choices = [choice for event in events(content.decode())[:-1] for choice in event["choices"]]
        return ["".join(choice["text"] for choice in choices), choices[-1]["finish_reason"]]

    async def _background(self, name: str, body: Json) -> Json:
        asked = (await self._post(name, {**body, "background": True})).json()
        return await Api(self._http).finished(asked["id"])


@asynccontextmanager
async def asking(kind: str, dialect: str, answer: str) -> AsyncIterator[tuple[Client, Failing]]:
    engine = Failing(kind, answer)
    async with (
        running(engine, dialect=dialect, model_name=(MODEL,)) as server,  # type: ignore[arg-type]
        httpx.AsyncClient(base_url=f"{server.url}/v1", verify=NO_TLS) as http,
    ):
        yield Client(http, engine, kind), engine


def written(dialect: str) -> str:
    """An answer with text and a call, and characters of several tokens in both."""
    return CALLS if dialect == "hermes" else f"Sure 🎉 日本.\n{answers(dialect)['unicode']['output']}"


@pytest.mark.parametrize(
    ("kind", "dialect"),
    [
        *(("vllm", each) for each in ("hermes", "qwen3_coder", "deepseek_v31", "gemma4", "mistral")),
        *((each, "hermes") for each in ("sglang", "llama-server", "completions")),
    ],
)
async def test_no_client_notices_that_a_server_failed(kind: str, dialect: str) -> None:
    async with asking(kind, dialect, written(dialect)) as (client, engine):
        whole = {way: await client.answer(*way) for way in client.ways}
        for way, answer in whole.items():
            assert "日本" in str(answer), (way, answer)
        lost = -1
        for cut, way in zip(count(0, 3 if CI else 1), cycle(client.ways), strict=False):
            if lost == engine.lost:  # there are no more events
                break
            lost = engine.lost
            assert await client.answer(*way, cut, 2, 5) == whole[way], (way, cut)
        assert lost > 10
