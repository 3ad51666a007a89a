"""Answers with calls of a server tool: in every API, in every mode, interrupted and continued.

`ToolContract` inherits this, so a new tool is tested in all of it: the real tool, on a real server, called
by a scripted model.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
import msgspec
import pytest

from antiphon.apis.batches.schema import CreateBatch
from antiphon.apis.files.schema import CreateFile
from antiphon.apis.messages.batch import BatchRequest, CreateMessageBatch
from antiphon.app import batches, files, message_batches
from antiphon.app.app import App
from antiphon.core.tool_result import OutputCallback, ToolResult, ignore_output
from antiphon.store.open import open_store
from antiphon.toolkits.code_interpreter.presenter import LOGS
from antiphon.tools.tool import RequestedTool, ServerTool, Session, ToolOffer
from tests.acting import TakingTurns
from tests.apis.messages.support import ANTHROPIC, request
from tests.apis.messages.support import check_stream as check_message
from tests.app import support
from tests.http.api import Api, ask, check_stream, client, items_of, prompt_of, text_of
from tests.http.batches_api import BatchesApi, line, lines_of
from tests.http.chat_api import ChatApi
from tests.http.messages_api import MessagesApi, texts
from tests.openai_schema import validate
from tests.response_invariants import check, read_events
from tests.run.support import until
from tests.server import NO_TLS, Running, running
from tests.store.samples import OWNER

Call = tuple[str, dict[str, Any]]

DONE = "Done."


MODES = {
    "responses": ("whole", "streamed", "background", "batch"),
    "chat": ("whole", "streamed", "batch"),
    "messages": ("whole", "streamed", "background"),
}
"""API → how it can be asked. In the background, Messages has batches of its own."""
PRINTING = ("shell_call_output_content", "code_interpreter_call_logs")
BEGUN = [{"type": "logs", "logs": "begun\n"}]
BETA = ("mcp_tool_use", "mcp_tool_result")
"""Blocks that are in no published schema of Messages."""


class MessageBatch:
    """A batch of one message with these tools."""

    def __init__(self, tools: Any) -> None:
        self._request = request("Go!", tools=tools)

    async def begin(self, app: App) -> str:
        batch = CreateMessageBatch([BatchRequest("a", self._request)])
        return (await message_batches.create(app, batch, OWNER)).id

    async def said(self, app: App, batch_id: str) -> str | None:
        """What the model says in the end; None while the batch runs."""
        if not (await message_batches.retrieve(app, OWNER, batch_id)).status.terminal:
            return None
        found = await message_batches.results(app, OWNER, batch_id)
        [result] = b"".join([piece async for piece in found]).splitlines()
        return texts(json.loads(result)["result"]["message"])


class FileBatch:
    """A batch of one line of a file, for this endpoint."""

    def __init__(self, url: str, body: Any, text: Callable[[Any], str]) -> None:
        self._url = url
        self._content = lines_of(line("a", body, url))
        self._text = text

    async def begin(self, app: App) -> str:
        async def content() -> AsyncIterator[bytes]:
            yield self._content

        file = json.loads(await files.create(app, OWNER, CreateFile("batch"), "a.jsonl", content()))
        wire = msgspec.convert(
            {"input_file_id": file["id"], "endpoint": self._url, "completion_window": "24h"}, CreateBatch
        )
        return str(json.loads(await batches.create(app, OWNER, wire))["id"])

    async def said(self, app: App, batch_id: str) -> str | None:
        """What the model says in the end; None while the batch runs."""
        batch = json.loads(await batches.retrieve(app, OWNER, batch_id))
        if batch["status"] != "completed":
            return None
        _, content = await files.whole_content(app, OWNER, batch["output_file_id"], "file_id")
        return self._text(json.loads(content)["response"]["body"])


IN_BATCH: Mapping[str, Callable[[Any], MessageBatch | FileBatch]] = {
    "messages": MessageBatch,
    "chat": lambda tools: FileBatch(
        "/v1/chat/completions",
        {"model": "scripted", "messages": [{"role": "user", "content": "Go!"}], "tools": tools},
        lambda body: str(body["choices"][0]["message"]["content"]),
    ),
    "responses": lambda tools: FileBatch(
        "/v1/responses", {"model": "scripted", "input": "Go!", "tools": tools}, text_of
    ),
}
"""API → a batch of one request with these tools."""


class Watched:
    """A tool, with its calls recorded. One that `loses` results runs its calls, and never returns."""

    def __init__(self, tool: ServerTool, *, loses: bool = False) -> None:
        self.type, self.aliases = tool.type, tool.aliases
        self.begun = asyncio.Event()
        self.done = asyncio.Event()
        self.calls = self.failed = self.open_sessions = 0
        self.loses = loses
        self._tool = tool

    async def offer(self, requested: RequestedTool) -> ToolOffer:
        return await self._tool.offer(requested)

    def open(self, requested: RequestedTool) -> "WatchedSession":
        self.open_sessions += 1
        return WatchedSession(self, self._tool.open(requested))

    async def close(self) -> None:
        """Others may go on with the tool."""


class WatchedSession:
    def __init__(self, tool: Watched, session: Session) -> None:
        self._tool = tool
        self._session = session

    async def run(
        self, action: str, arguments: Mapping[str, Any], on_output: OutputCallback = ignore_output
    ) -> ToolResult:
        self._tool.calls += 1
        self._tool.begun.set()
        result = await self._session.run(action, arguments, on_output)
        self._tool.failed += result.failed
        self._tool.done.set()
        if self._tool.loses:
            await asyncio.Event().wait()
        return result

    async def recall(self, action: str, arguments: Mapping[str, Any], result: ToolResult) -> None:
        await self._session.recall(action, arguments, result)

    async def close(self) -> None:
        await self._session.close()
        self._tool.open_sessions -= 1


class Client:
    """Asks a server for answers in which the tool may be called."""

    def __init__(self, server: Running, http: httpx.AsyncClient, responses: Api, tool: Any) -> None:
        self.server = server
        self.http = http
        self.responses = responses
        self.chat = ChatApi(http, server)
        self.messages = MessagesApi(http, server)
        self.fields = {"tools": [tool]}

    async def answer(self, api: str, mode: str) -> str:
        """What the model says in the end. Bodies and events are checked against the specifications."""
        ways = {"responses": self._response, "chat": self._chat, "messages": self._message_text}
        return await ways[api](mode)

    async def _response(self, mode: str) -> str:
        if mode == "batch":
            line = {"model": "scripted", "input": "Go!", **self.fields}
            return text_of(await self._line("/v1/responses", line))
        if mode == "streamed":
            return text_of(await self.responses.streamed("Go!", **self.fields))
        begun = await self.responses.create("Go!", background=mode == "background", **self.fields)
        return text_of(await self.responses.finished(begun["id"]))

    async def _line(self, url: str, body: Any) -> Any:
        """The answer to the only line of a batch."""
        api = BatchesApi(self.http, self.server)
        [answer] = (await api.answers(await api.run(line("a", body, url), endpoint=url))).values()
        return answer

    async def _chat(self, mode: str) -> str:
        if mode == "batch":
            body = {"model": "scripted", "messages": [{"role": "user", "content": "Go!"}], **self.fields}
            answer = await self._line("/v1/chat/completions", body)
            return str(answer["choices"][0]["message"]["content"])
        if mode == "streamed":
            chunks = await self.chat.stream("Go!", **self.fields)
            said = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        else:
            said = [(await self.chat.ask("Go!", **self.fields))["choices"][0]["message"]]
        assert not any(part.get("tool_calls") for part in said)
        return "".join(part.get("content") or "" for part in said)

    async def _message_text(self, mode: str) -> str:
        if mode == "background":
            return texts((await self.batched(await self.begin_batch()))["message"])
        if mode == "streamed":
            response = await self._message(stream=True)
            events = check_message(read_events(response.content), valid=False)
            deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
            return "".join(delta.get("text", "") for delta in deltas)
        message = (await self._message()).json()
        known = [block for block in message["content"] if block["type"] not in BETA]
        validate("Message", {**message, "content": known}, ANTHROPIC)
        return texts(message)

    async def _message(self, **fields: Any) -> httpx.Response:
        response = await self.http.post("/v1/messages", json=request("Go!", **self.fields, **fields))
        assert response.status_code == 200, response.text
        return response

    async def begin_batch(self) -> str:
        """The path of a new batch of one request."""
        batch = {"requests": [{"custom_id": "a", "params": request("Go!", **self.fields)}]}
        return f"/v1/messages/batches/{(await self.messages.post('/v1/messages/batches', batch))['id']}"

    async def batched(self, path: str) -> Any:
        """The result of the request of a batch."""
        async with asyncio.timeout(20):
            while (await self.http.get(path)).json()["processing_status"] != "ended":
                await asyncio.sleep(0.01)
        return json.loads((await self.http.get(f"{path}/results")).text)["result"]

    async def left(self, api: str, begun: asyncio.Event, *, streamed: bool) -> None:
        """Ask for an answer, and leave in the middle of its call."""
        path = {"chat": "chat/completions"}.get(api, api)
        body = ask("Go!") if api == "responses" else request("Go!")
        asking = asyncio.create_task(
            self.http.post(f"/v1/{path}", json={**body, **self.fields, "stream": streamed})
        )
        async with asyncio.timeout(20):
            await begun.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


class ToolAnswers:
    """Inherit, with what `ToolContract` says of the tool."""

    call: Call
    endless: Call
    telling: Call | None
    asked: Mapping[str, Any] = {}
    """Settings of a request with which the model may make these calls, without approvals."""

    @asynccontextmanager
    async def calling(self, watched: Watched, action: str, arguments: Any) -> AsyncIterator[Client]:
        """A client of a server whose model makes this call."""
        said = await self._called(watched, action, arguments)
        async with (
            running(TakingTurns(said, DONE), tools=[watched]) as server,
            httpx.AsyncClient(verify=NO_TLS, base_url=server.url, timeout=20) as http,
            client(server) as responses,
        ):
            yield Client(server, http, responses, {"type": watched.type, **self.asked})

    async def _called(self, watched: Watched, action: str, arguments: Any) -> str:
        """A call, as a model writes it."""
        offer = await watched.offer(RequestedTool({"type": watched.type, **self.asked}))
        [name] = {each.name for each in offer.functions if each.hosted and each.hosted.action == action}
        call = json.dumps({"name": name, "arguments": arguments})
        return f"<tool_call>\n{call}\n</tool_call>"

    @pytest.mark.parametrize("api", MODES)
    async def test_a_model_calls_it(self, tool: ServerTool, api: str) -> None:
        watched = Watched(tool)
        async with self.calling(watched, *self.call) as asking:
            for calls, mode in enumerate(MODES[api], 1):
                assert await asking.answer(api, mode) == DONE, mode
                assert "<tool_response>" in prompt_of(asking.server)
                assert (watched.calls, watched.failed, watched.open_sessions) == (calls, 0, 0), mode

    @pytest.mark.parametrize("api", MODES)
    async def test_a_client_leaves_in_the_middle_of_a_call(self, tool: ServerTool, api: str) -> None:
        watched = Watched(tool)
        async with self.calling(watched, *self.endless) as asking:
            for answers, streamed in enumerate((False, True), 1):
                watched.begun.clear()
                await asking.left(api, watched.begun, streamed=streamed)
                await until(lambda: not watched.open_sessions)
                await until(lambda: not asking.server.app.models.loads["scripted"].running)
                assert len(asking.server.engine.seen) == answers  # the model was not asked again

    async def test_a_response_is_cancelled_in_the_middle_of_a_call(self, tool: ServerTool) -> None:
        watched = Watched(tool)
        async with self.calling(watched, *self.endless) as asking:
            queued = await asking.responses.create("Go!", background=True, **asking.fields)
            async with asyncio.timeout(20):
                await watched.begun.wait()
            await asking.responses.post(f"/responses/{queued['id']}/cancel", {})
            ended = await asking.responses.finished(queued["id"])
            assert ended["status"] == "cancelled"
            assert not items_of(ended, "message")
            await until(lambda: not watched.open_sessions)

    async def test_what_a_program_prints_is_streamed_while_it_runs(self, tool: ServerTool) -> None:
        if self.telling is None:
            pytest.skip("it runs no programs")
        watched = Watched(tool)
        async with self.calling(watched, *self.telling) as asking:
            api = asking.responses
            queued = await api.create("Go!", background=True, include=[LOGS], **asking.fields)
            path = f"/responses/{queued['id']}"
            async with api.http.stream("GET", path, params={"stream": "true"}) as stream:
                async for line in stream.aiter_lines():
                    if _tells(line) and "begun" in line:
                        break
            assert not watched.done.is_set()
            item = (await api.get(path))["output"][-1]
            assert item["status"] == "in_progress"
            assert item.get("outputs", BEGUN) == BEGUN
            await api.post(f"{path}/cancel", {})
            ended = await api.finished(queued["id"])
            assert check_stream(await api.events(queued["id"])) == ended
            assert "begun" in json.dumps(ended["output"][-1])
            assert ended["output"][-1]["status"] == "incomplete"

    async def test_a_batch_is_cancelled_in_the_middle_of_a_call(self, tool: ServerTool) -> None:
        watched = Watched(tool)
        async with self.calling(watched, *self.endless) as asking:
            path = await asking.begin_batch()
            async with asyncio.timeout(20):
                await watched.begun.wait()
            await asking.messages.post(f"{path}/cancel", {})
            assert await asking.batched(path) == {"type": "canceled"}
            await until(lambda: not watched.open_sessions)
            assert len(asking.server.engine.seen) == 1  # the model was not asked again

    @pytest.mark.parametrize("api", MODES)
    async def test_a_server_dies_in_the_middle_of_a_call_of_a_batch(self, tool: ServerTool, api: str) -> None:
        store = await open_store("memory")
        lost, whole = Watched(tool, loses=True), Watched(tool)
        said = await self._called(lost, *self.call)
        batch = IN_BATCH[api]([{"type": tool.type, **self.asked}])
        try:
            async with support.serving(
                store, TakingTurns(said, DONE), lease_seconds=0.05, tools=[lost]
            ) as first:
                batch_id = await batch.begin(first.app)
                async with asyncio.timeout(20):
                    await lost.done.wait()
                await first.die()
            async with support.serving(
                store, TakingTurns(said, DONE), lease_seconds=0.05, tools=[whole]
            ) as second:
                async with asyncio.timeout(20):
                    while (said := await batch.said(second.app, batch_id)) is None:
                        await asyncio.sleep(0.01)
                prompt = prompt_of(second)  # type: ignore[arg-type] - it has an engine, too
        finally:
            await store.close()
        assert said == DONE
        again = await self._again(tool)
        assert whole.calls == (1 if again else 0)
        assert ("outcome of this call is unknown" in prompt) == (not again)

    async def _again(self, tool: ServerTool) -> bool:
        """Whether a call may be run again."""
        offer = await tool.offer(RequestedTool({"type": tool.type, **self.asked}))
        [again] = {each.hosted.idempotent for each in offer.functions if _does(each, self.call[0])}
        return again

    async def test_a_server_dies_in_the_middle_of_a_call(self, tool: ServerTool) -> None:
        store = await open_store("memory")
        lost, whole = Watched(tool, loses=True), Watched(tool)
        said = await self._called(lost, *self.call)
        asked = {"tools": [{"type": tool.type, **self.asked}], "include": [LOGS]}
        try:
            async with support.serving(
                store, TakingTurns(said, DONE), lease_seconds=0.05, tools=[lost]
            ) as first:
                await support.queue(first.app, "Go!", **asked)
                async with asyncio.timeout(20):
                    await lost.done.wait()
                    while self.telling and not any(map(_tells, map(str, await support.log_of(store)))):
                        await asyncio.sleep(0.01)
                await first.die()
            async with support.serving(
                store, TakingTurns(said, DONE), lease_seconds=0.05, tools=[whole]
            ) as second:
                assert (await support.ended(store)).status == "completed"
                prompt = prompt_of(second)  # type: ignore[arg-type] - it has an engine, too
            response = check(await support.log_of(store))
        finally:
            await store.close()
        assert text_of(response) == DONE
        again = await self._again(tool)
        assert whole.calls == (1 if again else 0)
        assert ("outcome of this call is unknown" in prompt) == (not again)


def _tells(line: str) -> bool:
    """Whether a line of a stream is the event that a program has printed something."""
    return any(f"response.{what}.delta" in line for what in PRINTING)


def _does(function: Any, action: str) -> bool:
    return bool(function.hosted and function.hosted.action == action)
