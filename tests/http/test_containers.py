"""Containers over HTTP, through the OpenAI SDK: their files, and programs of a model that work in them."""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio
from msgspec.structs import replace
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from antiphon.core.items import MediaKind
from antiphon.core.limits import Limits
from antiphon.engines.scripted import CAPABILITIES
from tests.http.api import check_body, client, sdk
from tests.http.harmony import Said
from tests.media import png
from tests.openai_schema import OPENAI_RESPONSES, validate
from tests.server import Running, running
from tests.tools.sandboxes import FIGURE, needs_bubblewrap, python_in_bubblewrap

pytestmark = needs_bubblewrap
LIMITS = Limits(python_seconds=20, python_disk_bytes=2**20)


def call(code: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'python', 'arguments': {'code': code}})}\n</tool_call>"


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Running]:
    async with running(
        Said(), python=python_in_bubblewrap(), api_key=("alice", "eve"), limit=LIMITS
    ) as server:
        yield server


async def respond(alice: AsyncOpenAI, container: Any, **more: Any) -> Any:
    tools: Any = [{"type": "code_interpreter", "container": container}]
    return await alice.responses.create(model="scripted", input="Hi", tools=tools, **more)


async def test_a_container_comes_and_goes(server: Running, alice: AsyncOpenAI, http: httpx.AsyncClient):
    uploaded = await alice.files.create(file=("a b.csv", b"1,2"), purpose="user_data")
    made = await alice.containers.create(name="sums", file_ids=[uploaded.id, uploaded.id])
    validate("ContainerResource", (await http.get(f"/containers/{made.id}")).json(), OPENAI_RESPONSES)
    assert (made.name, made.status, made.object) == ("sums", "running", "container")
    assert made.expires_after is not None
    assert made.expires_after.minutes == LIMITS.container_minutes
    other = await alice.containers.create(
        name="other", expires_after={"anchor": "last_active_at", "minutes": 2}
    )
    assert [each.id async for each in await alice.containers.list(order="asc")] == [made.id, other.id]
    validate("ContainerListResource", (await http.get("/containers")).json(), OPENAI_RESPONSES)
    named = (await http.get("/containers", params={"name": "other"})).json()["data"]
    assert [each["id"] for each in named] == [other.id]
    paths = [file.path async for file in await alice.containers.files.list(made.id, order="asc")]
    assert paths == ["/mnt/data/a b.csv", "/mnt/data/a b (2).csv"]
    await alice.containers.delete(made.id)
    for attempt in (alice.containers.retrieve, alice.containers.delete, alice.containers.files.list):
        with pytest.raises(NotFoundError):
            await attempt(made.id)
    assert (await alice.files.content(uploaded.id)).content == b"1,2"
    async with sdk(server, "eve") as eve:
        assert (await eve.containers.list()).data == []
        with pytest.raises(NotFoundError):
            await eve.containers.retrieve(other.id)


async def test_files_of_a_container(server: Running, alice: AsyncOpenAI, http: httpx.AsyncClient):
    made = await alice.containers.create(name="sums")
    files = alice.containers.files
    first = await files.create(made.id, file=("../ü.bin", bytes(range(256)) * 2000))
    assert (first.path, first.bytes, first.source) == ("/mnt/data/ü.bin", 512_000, "user")
    shown = (await http.get(f"/containers/{made.id}/files/{first.id}")).json()
    validate("ContainerFileResource", shown, OPENAI_RESPONSES)
    listed = (await http.get(f"/containers/{made.id}/files")).json()
    validate("ContainerFileListResource", listed, OPENAI_RESPONSES)
    answer = await files.content.retrieve(first.id, container_id=made.id)
    assert answer.content == bytes(range(256)) * 2000
    assert answer.response.headers["content-disposition"].endswith("%C3%BC.bin")
    again = await files.create(made.id, file=("ü.bin", b"new"))
    assert [file.id for file in (await files.list(made.id)).data] == [again.id]
    uploaded = await alice.files.create(file=("c.txt", b"copied"), purpose="user_data")
    body = {"file_id": uploaded.id}
    copied = (await http.post(f"/containers/{made.id}/files", json=body)).json()
    assert copied["path"] == "/mnt/data/c.txt"
    as_form = await http.post(f"/containers/{made.id}/files", files={"file_id": (None, uploaded.id)})
    assert as_form.json()["path"] == "/mnt/data/c.txt"
    await files.delete(again.id, container_id=made.id)
    for attempt in (files.retrieve, files.delete, files.content.retrieve):
        with pytest.raises(NotFoundError):
            await attempt(again.id, container_id=made.id)
    for wrong in ({"files": {"x": (None, "y")}}, {"json": {"file_id": "file-none"}}, {"json": {}}):
        refused = await http.post(f"/containers/{made.id}/files", **wrong)
        assert refused.status_code in {400, 404}
        assert refused.json()["error"]["param"] in {"file", "file_id"}


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"name": ""}, "name"),
        ({"expires_after": {"anchor": "last_active_at", "minutes": 21}}, "expires_after.minutes"),
        ({"expires_after": {"anchor": "created_at", "minutes": 1}}, "expires_after.anchor"),
        ({"file_ids": ["file-none"]}, "file_ids"),
        ({"memory_limit": "2g"}, "memory_limit"),
        ({"network_policy": {"type": "allowlist", "allowed_domains": ["a.example"]}}, "network_policy"),
        ({"skills": [{"type": "skill_reference", "skill_id": "x"}]}, "skills"),
    ],
)
async def test_containers_that_cannot_be_had(http: httpx.AsyncClient, wrong: dict[str, Any], param: str):
    refused = await http.post("/containers", json={"name": "a", **wrong})
    assert refused.status_code in {400, 404}
    assert refused.json()["error"]["param"] == param


async def test_without_an_interpreter_there_are_none():
    async with running([{"output": "Hi"}]) as server, sdk(server) as client:
        with pytest.raises(BadRequestError, match="--python"):
            await client.containers.create(name="a")
        assert (await client.containers.list()).data == []


async def test_a_model_works_in_a_container_of_the_client(server: Running, alice: AsyncOpenAI):
    made = await alice.containers.create(name="sums")
    await alice.containers.files.create(made.id, file=("n.txt", b"41"))
    server.engine.says(call("n = int(open('n.txt').read()) + 1; n"), "It is 42.")
    response = await respond(alice, made.id)
    check_body(json.loads(response.model_dump_json(exclude_unset=True)))
    ran = response.output[0]
    assert (ran.container_id, ran.status, ran.outputs[0].logs) == (made.id, "completed", "42\n")
    server.engine.says(call("n"), "Still 42.")
    response = await respond(alice, made.id)
    assert response.output[0].outputs[0].logs == "42\n"
    await alice.containers.delete(made.id)
    with pytest.raises(NotFoundError) as raised:
        await respond(alice, made.id)
    assert raised.value.param == "tools[0].container"


async def test_a_conversation_goes_on_in_its_container(server: Running, alice: AsyncOpenAI):
    uploaded, other = [
        await alice.files.create(file=("n.txt", content), purpose="user_data") for content in (b"41", b"7")
    ]
    auto = {"type": "auto", "file_ids": [uploaded.id]}
    asked: Any = {"model": "scripted", "tools": [{"type": "code_interpreter", "container": auto}]}
    server.engine.says(call("n = int(open('n.txt').read()) + 1; n"), "It is 42.")
    first = await alice.responses.create(input="Go!", **asked)

    server.engine.says(call("n"), "Still 42.")
    second = await alice.responses.create(input="And now?", previous_response_id=first.id, **asked)
    items = [{"role": "user", "content": "Go!"}, *(item.to_dict() for item in first.output)]
    server.engine.says(call("n"), "Still 42.")
    sent: Any = [*items, {"role": "user", "content": "And now?"}]
    third = await alice.responses.create(input=sent, store=False, **asked)
    server.engine.says(call("open('n.txt').read()"), "It is 7.")
    auto["file_ids"] = [other.id]
    fourth = await alice.responses.create(input="And now?", previous_response_id=first.id, **asked)
    await alice.containers.delete(first.output[0].container_id)
    auto["file_ids"] = []
    server.engine.says(call("'n' in globals()"), "No.")
    fifth = await alice.responses.create(input="And now?", previous_response_id=first.id, **asked)

    ran = [response.output[0] for response in (first, second, third, fourth, fifth)]
    assert [each.outputs[0].logs for each in ran] == ["42\n", "42\n", "42\n", "'7'\n", "False\n"]
    own = ran[0].container_id
    assert [each.container_id == own for each in ran] == [True, True, True, False, False]


async def test_files_that_an_answer_names_are_cited(server: Running, alice: AsyncOpenAI):
    uploaded = await alice.files.create(file=("n.txt", b"41"), purpose="user_data")
    text = "See [it](sandbox:/mnt/data/out/r.csv), not /mnt/data/none.csv."
    code = "import os; os.mkdir('out'); open('out/r.csv', 'w').write(open('n.txt').read())"
    server.engine.says(call(code), text)
    response = await respond(alice, {"type": "auto", "file_ids": [uploaded.id]})
    check_body(json.loads(response.model_dump_json(exclude_unset=True)))
    ran, message = response.output
    (citation,) = message.content[0].annotations
    assert citation.type == "container_file_citation"
    assert (citation.filename, citation.container_id) == ("r.csv", ran.container_id)
    assert text[citation.start_index : citation.end_index] == "sandbox:/mnt/data/out/r.csv"
    content = alice.containers.files.content
    answer = await content.retrieve(citation.file_id, container_id=citation.container_id)
    assert answer.content == b"41"
    async with client(server, "alice") as api:
        server.engine.says(call(code), text)
        tools = [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": [uploaded.id]}}]
        streamed = await api.streamed("Hi", tools=tools)
    (annotation,) = streamed["output"][1]["content"][0]["annotations"]
    assert annotation["filename"] == "r.csv"


@pytest.mark.parametrize("takes", [{MediaKind.IMAGE}, set()], ids=str)
async def test_a_model_that_can_see_is_shown_the_figures_of_its_program(takes: set[MediaKind]):
    engine = Said(capabilities=replace(CAPABILITIES, media=frozenset(takes)))
    engine.says(call(FIGURE), "A line.")
    async with running(engine, python=python_in_bubblewrap(), limit=LIMITS) as server, sdk(server) as anyone:
        response = await respond(anyone, {"type": "auto"})
    (ran, message), prompt = response.output, engine.seen[-1].prompt
    image = next(output for output in ran.outputs if output.type == "image")
    assert image.url == f"data:image/png;base64,{b64encode(png()).decode()}"
    assert [part.kind for part in prompt.media] == [*takes]
    assert "[Written: /mnt/data/figure-1.png." in prompt.text
    assert ("(An image, which this model cannot see.)" in prompt.text) == (not takes)
    assert message.content[0].text == "A line."


async def test_a_program_is_stopped_with_its_container(server: Running, alice: AsyncOpenAI):
    made = await alice.containers.create(name="sums")
    server.engine.says(call("import time; open('begun', 'w').close(); time.sleep(60)"), "Stopped.")
    answering = asyncio.create_task(respond(alice, made.id))
    interpreters = server.app.interpreters
    assert interpreters is not None
    async with asyncio.timeout(20):
        while made.id not in interpreters.containers:
            await asyncio.sleep(0.02)
    await alice.containers.delete(made.id)
    response = await answering
    assert response.output[0].status == "failed"
    assert response.output_text == "Stopped."


async def test_chats_have_programs_without_containers(server: Running, alice: AsyncOpenAI):
    server.engine.says(call("open('a', 'w').write('x'); 6 * 7"), "42.")
    tools: Any = [{"type": "code_interpreter", "container": {"type": "auto"}}]
    answer = await alice.chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "Hi"}], tools=tools
    )
    assert answer.choices[0].message.content == "42."
    assert "42" in server.engine.prompt
    assert (await alice.containers.list()).data == []
    made = await alice.containers.create(name="sums")
    await alice.containers.files.create(made.id, file=("n.txt", b"41"))
    server.engine.says(call("int(open('n.txt').read()) + 2"), "43.")
    tools[0]["container"] = made.id
    await alice.chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "Hi"}], tools=tools
    )
    assert "43" in server.engine.prompt
