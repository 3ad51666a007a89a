"""Transcriptions: passed on to a server that makes them, with OpenAI's own client."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx2 as httpx
import openai
import pytest
from openai import AsyncOpenAI
from starlette.requests import ClientDisconnect

from antiphon.engines.engine import Capabilities, Task
from antiphon.engines.scripted import ScriptedEngine
from antiphon.engines.upstream import Options
from antiphon.http import vectors
from tests.engines.canned import answer, canned
from tests.media import WAV
from tests.server import NO_TLS, Running, running

PATH = "/v1/audio/transcriptions"
SCOPE = {"type": "http", "asgi": {"spec_version": "2.4"}}
MODELS = [answer(200, {"data": [{"id": "whisper-1", "owned_by": "openai-internal"}]})]


@pytest.fixture
async def behind() -> AsyncIterator[Running]:
    able = Capabilities(tasks=frozenset({Task.TRANSCRIBE}))
    async with running(ScriptedEngine([{"output": "Hi"}], capabilities=able), dialect=None) as server:
        yield server


@pytest.fixture
async def client(behind: Running) -> AsyncIterator[AsyncOpenAI]:
    """Of a server that asks either of two others."""
    options = Options(behind.url, upstream_kind="chat", task=Task.TRANSCRIBE, replica=(behind.url,))
    http = httpx.AsyncClient(verify=NO_TLS)
    async with (
        running(options.build(), dialect=None, model_name=("hears",)) as server,
        AsyncOpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0, http_client=http) as client,
    ):
        yield client


async def test_sounds_are_passed_on_with_all_fields(client: AsyncOpenAI, behind: Running) -> None:
    said = f"a b.wav: {len(WAV)} bytes, Names: Ada."
    sound: dict[str, Any] = {"file": ("a b.wav", WAV), "model": "hears", "prompt": "Names: Ada."}
    whole = await client.audio.transcriptions.create(**sound)
    assert whole.text == said
    text = await client.audio.transcriptions.create(**sound, response_format="text")
    assert text == whole.text
    stream = await client.audio.transcriptions.create(**sound, stream=True)
    events: list[Any] = [event async for event in stream]
    assert [event.type for event in events[-2:]] == ["transcript.text.delta", "transcript.text.done"]
    assert events[-1].text == whole.text
    [model] = (await client.models.list()).data
    assert model.to_dict()["tasks"] == ["transcribe"]


async def test_who_leaves_before_its_transcript_begins_gives_the_slot_back() -> None:
    """The pieces are read by another task, which waits for room."""
    over = asyncio.Event()

    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"word "
        finally:
            over.set()

    async def left(_message: object) -> None:
        raise OSError

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    reading = vectors._Reading(pieces())
    first = await reading.next()
    for _ in range(vectors.MAX_QUEUED_PARTS + 2):
        await asyncio.sleep(0)
    with pytest.raises(ClientDisconnect):
        await vectors._Transcript(reading, first, vectors.EVENTS)(SCOPE, receive, left)
    async with asyncio.timeout(5):
        await over.wait()


async def test_what_cannot_be_written_down_is_refused_by_name(client: AsyncOpenAI, behind: Running) -> None:
    async with httpx.AsyncClient(verify=NO_TLS, base_url=behind.url) as http:
        missing = await http.post(PATH, files={"other": ("a.txt", b"a")}, data={"model": "scripted"})
        unnamed = await http.post(PATH, files={"file": ("a.wav", WAV)})
        unformed = await http.post(PATH, json={"model": "scripted"})
        unanswered = await http.post("/v1/completions", json={"model": "scripted", "prompt": "a"})
        fields = {"model": "scripted", "response_format": "text"}
        english = await http.post("/v1/audio/translations", files={"file": ("a.wav", WAV)}, data=fields)
    assert english.text == f"a.wav: {len(WAV)} bytes, no prompt"
    assert english.headers["content-type"].startswith("text/plain")
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "file")
    assert unnamed.json()["error"]["message"] == "Missing required parameter: 'model'."
    assert unformed.status_code == 415
    assert "/v1/audio/transcriptions" in unanswered.json()["error"]["message"]
    with pytest.raises(openai.NotFoundError):
        await client.audio.transcriptions.create(file=("a.wav", WAV), model="nobody")
    deaf = ScriptedEngine([{"output": "Hi"}], capabilities=Capabilities(token_ids=True))
    async with (
        running(deaf) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http,
    ):
        refused = await http.post(PATH, files={"file": ("a.wav", WAV)}, data={"model": "scripted"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_model")


@pytest.mark.parametrize(
    ("answered", "status", "said"),
    [
        (answer(404, {}), 400, "cannot do this with it"),
        (answer(400, {"error": {"message": "Too short"}}), 400, "Too short"),
        (answer(500, {"error": {"message": "secret"}}), 502, ""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", 502, ""),
    ],
)
async def test_what_the_other_server_refuses_is_told(answered: bytes, status: int, said: str) -> None:
    async with canned({"/v1/models": MODELS, PATH: [answered]}, close={PATH}) as other:
        engine = Options(other.url, upstream_kind="openai", task=Task.TRANSCRIBE).build()
        async with (
            running(engine, dialect=None) as server,
            httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http,
        ):
            refused = await http.post(PATH, files={"file": ("a.wav", WAV)}, data={"model": "whisper-1"})
    error = refused.json()["error"]
    assert refused.status_code in (status, 500, 503)
    assert said in error["message"]
    assert "secret" not in error["message"]
