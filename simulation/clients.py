"""Clients that ask, stream, leave, come back, cancel, approve and delete; and what each of them may expect.

What a client is told must fit what is stored, by the table of endings. What it reads of a response must
be what its log has, whoever wrote it.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from simulation.laws import RUNNING, History, law
from simulation.network import Exchange
from simulation.tools import TOOL, request_to_act, said_after

if TYPE_CHECKING:
    from simulation.world import World

PATIENCE = 120.0
"""Seconds after which a request counts as one that hangs: more than a database may be away."""
TROUBLE = {"store_error", "response_lost", "engine_not_ready", "not_found_error", "engine_busy"}
"""Errors that clients may get only if something was wrong with a server or the database."""
TERMINAL = ("response.completed", "response.incomplete", "response.failed")

Line = dict[str, Any]


def script(names: tuple[str, ...]) -> list[Line]:
    """The answers of the engine: for each owner words of its own, numbered."""
    lines: list[Line] = []
    for name in names:
        for kind, (words, delay, fails) in KINDS.items():
            output = " ".join(f"{name}{number}" for number in range(words))
            lines.append(
                {"when": f"{kind} for {name}", "output": output, "delay_ms": delay}
                | ({} if fails is None else {"fail_after": fails})
            )
    return lines


KINDS: dict[str, tuple[int, int, int | None]] = {
    "short": (5, 0, None),
    "steady": (15, 30, None),
    "slow": (12, 200, None),
    "breaks": (10, 30, 5),
    "never": (3, 10, 0),
}
"""Kinds of answers: words, milliseconds between them, and after how many the engine fails."""


def whole_text(name: str, kind: str) -> str:
    """What the model says, if nothing keeps it from that."""
    return " ".join(f"{name}{number}" for number in range(KINDS[kind][0]))


class Reading:
    """The events of a response that a client reads. `told` is the end that it was told of, or the error."""

    def __init__(self, after: int, *, live: bool) -> None:
        self.after = after
        self.live = live
        """It is answered to this client: events come before they are stored."""
        self.lines: list[bytes] = []
        self.response_id: str | None = None
        self.told: str | None = None
        self.code: str | None = None
        self.left = False
        self._parsed = 0

    @property
    def last(self) -> int:
        """The number of the last event."""
        return self.after + len(self.lines)

    def take(self, body: bytes, histories: dict[str, History]) -> None:
        """Read on; what is read is in the log, if it is read from there."""
        end = body.rfind(b"\n\n")
        if end < self._parsed:
            return
        blocks, self._parsed = body[self._parsed : end].split(b"\n\n"), end + 2
        for block in blocks:
            if block.startswith(b"event: "):
                self._take(block.partition(b"\ndata: ")[2], histories)

    def _take(self, line: bytes, histories: dict[str, History]) -> None:
        event = msgspec.json.decode(line)
        kind = event["type"]
        if "sequence_number" not in event:  # of this reader, not of the response
            self.told, self.code = "error", event["code"]
            return
        number = event["sequence_number"]
        law(number == self.last + 1, f"{self.response_id}: a reader gets event {number} after {self.last}")
        self.lines.append(line)
        if "response" in event:
            self.response_id = event["response"]["id"]
        if kind in TERMINAL:
            self.told = event["response"]["status"]
        elif kind == "error":
            self.code = event["code"]
        if not self.live:
            self._check_stored(number, line, histories)

    def _check_stored(self, number: int, line: bytes, histories: dict[str, History]) -> None:
        history = histories[str(self.response_id)]
        law(number < len(history.lines), f"{self.response_id}: event {number} is read before it is stored")
        law(line == history.lines[number], f"{self.response_id}: event {number} is read otherwise")


class Asked:
    """A response that a client asked for, and what it may become."""

    def __init__(self, name: str, kind: str, *, background: bool, streamed: bool) -> None:
        self.name = name
        self.given: Any = f"{kind} for {name}"
        self.text = whole_text(name, kind)
        """What the model says, if nothing keeps it from that."""
        self.effect: str | None = None
        """What its call is to do."""
        self.fields: Line = {}
        """Of the request, beside what every one has."""
        self.kind = kind
        self.background = background
        self.streamed = streamed
        self.response_id: str | None = None
        self.readings: list[Reading] = []
        self.cancelled = False
        self.deleted = False
        self.refused = False
        """It was told an error in place of an answer."""
        self.answer: Line | None = None
        """The full answer."""

    @property
    def whole(self) -> bool:
        """The engine does not fail."""
        return KINDS[self.kind][2] is None

    def reading(self, after: int, *, live: bool) -> Reading:
        """A stream that begins now."""
        reading = Reading(after, live=live)
        reading.response_id = self.response_id
        self.readings.append(reading)
        return reading


class Client:
    """One client with a key. `name` is whose it is."""

    def __init__(self, world: "World", name: str, key: str) -> None:
        self._world = world
        self._rng: Random = world.rng
        self._name = name
        self._key = key
        self._conversation: str | None = None

    async def run(self) -> None:
        """Do a few things, one after the other."""
        await asyncio.sleep(self._rng.random() * 3)
        for _ in range(self._rng.randint(1, 2)):
            await self._rng.choice(_ACTIONS)(self)
            await asyncio.sleep(self._rng.random())

    # What it does

    async def chat(self) -> None:
        """A chat completion, a message or a completion, whole or as a stream."""
        kind = self._kind()
        path, body = self._rng.choice(_OTHERS)(f"{kind} for {self._name}")
        streamed = self._rng.random() < 0.5
        asked = f"chat {self._world.number()}"
        if "store" in body:
            body["metadata"] = {"asked": asked}
        exchange = await self._post(path, {**body, "stream": streamed}, leaves=0.3)
        failed = exchange.whole and b'"error"' in exchange.body
        if exchange.whole and exchange.status == 200:
            self._check_other(bytes(exchange.body), kind, failed=failed, streamed=streamed)
        else:
            self._check_failure(exchange, kind)
        if "store" in body:
            self._world.chats[asked] = None if not exchange.whole else not failed

    async def respond(self) -> None:
        """A response that it waits for, whole or as a stream."""
        asked = self._asked(background=False)
        if await self._ask(asked) and self._rng.random() < 0.3:
            await self._look(asked)

    async def background(self) -> None:
        """A response in the background: it reads, leaves, comes back, cancels, deletes."""
        asked = self._asked(background=True)
        if await self._ask(asked):
            await self._follow(asked, cancels=self._rng.random() < 0.2, deletes=self._rng.random() < 0.15)

    async def approve(self) -> None:
        """Ask for something that has an effect; approve it or not, once or twice at a time."""
        effects, guarded = self._world.effects, self._rng.random() < 0.8
        effect = f"{self._name}-{self._world.number()}"
        if guarded:
            effects.guarded.add(effect)
        tools = [{**TOOL, "require_approval": "always" if guarded else "never"}]
        asked = self._acting(effect, tools=tools)
        asked.given = request_to_act(effect)
        asked.text = "" if guarded else said_after(effect)
        if not await self._ask(asked):
            return
        body = await self._follow(asked, cancels=self._rng.random() < 0.1)
        if not guarded or body is None or body["status"] != "completed":
            return
        requests = [item for item in body["output"] if item["type"] == "mcp_approval_request"]
        law(len(requests) == 1, f"{asked.response_id} asks for {len(requests)} approvals")
        await self._decide(asked, effect, requests[0]["id"], tools)

    async def _decide(self, asked: Asked, effect: str, request_id: str, tools: list[Line]) -> None:
        """Answer a request for an approval: a client may do so twice, or try again when it hears nothing."""
        approves = self._rng.random() < 0.8
        if approves:
            self._world.effects.approved.add(effect)
        tries = [self._acting(effect, tools=tools, previous_response_id=asked.response_id) for _ in range(2)]
        for each in tries:
            each.text = said_after(effect)
            each.given = [
                {"type": "mcp_approval_response", "approval_request_id": request_id, "approve": approves}
            ]
        if self._rng.random() < 0.4:
            await asyncio.gather(*(self._ask(each, contested=True) for each in tries))
        elif not await self._ask(tries[0]):
            await self._ask(tries[1], contested=True)
        for each in tries:
            if each.response_id is not None:
                await self._follow(each, cancels=self._rng.random() < 0.1)

    async def converse(self) -> None:
        """Say something in a conversation, and again: one response after the other, or two at once."""
        if self._conversation is None:
            exchange = await self._post("/v1/conversations", {})
            if not exchange.whole or exchange.status != 200:
                self._check_failure(exchange, "short")
                return
            self._conversation = msgspec.json.decode(exchange.body)["id"]
        together = self._rng.random() < 0.3
        turns = [self._asked(background=self._rng.random() < 0.4, kind="short") for _ in range(2)]
        for asked in turns:
            asked.fields = {"conversation": self._conversation}
        if together:
            await asyncio.gather(*map(self._ask, turns))
        for asked in turns:
            if (together and asked.response_id) or (not together and await self._ask(asked)):
                await self._follow(asked, cancels=self._rng.random() < 0.1)
        path = f"/v1/conversations/{self._conversation}/items"
        exchange = await self._request("GET", f"{path}?limit=100&order=asc")
        if exchange.whole and exchange.status == 200:
            law(b'"has_more":false' in exchange.body, "a conversation is longer than what was said in it")
        else:
            self._check_failure(exchange, "short")

    def _acting(self, effect: str, **fields: Any) -> Asked:
        asked = self._asked(background=self._rng.random() < 0.6, kind="short")
        asked.effect, asked.fields = effect, fields
        return asked

    async def _ask(self, asked: Asked, *, contested: bool = False) -> bool:
        """Ask for a response. Whether it is known, because it is there, or was.

        If it is `contested` another one may have been faster to take the same approval.
        """
        body = self._body(asked)
        if asked.streamed:
            exchange = await self._stream(asked, "POST", "/v1/responses", body, live=not asked.background)
        else:
            exchange = await self._post("/v1/responses", body, leaves=0.1)
            if exchange.whole and exchange.status == 200:
                answer = msgspec.json.decode(exchange.body)
                asked.response_id = answer["id"]
                if not asked.background:
                    asked.answer = answer
        if exchange.whole and exchange.status != 200:
            asked.refused = True
            if not (contested and b"answered before" in exchange.body):
                self._check_failure(exchange, asked.kind)
        return asked.response_id is not None

    async def _follow(self, asked: Asked, *, cancels: bool, deletes: bool = False) -> Line | None:
        """Read, leave, come back, until a response has ended: it, as it is shown then."""
        for _ in range(60):
            if asked.background:
                await asyncio.sleep(self._rng.random())
            if cancels and self._rng.random() < 0.5:
                asked.cancelled = asked.cancelled or asked.background
                await self._post(f"/v1/responses/{asked.response_id}/cancel", {})
            if deletes and self._rng.random() < 0.3:
                await self._delete(asked)
                return None
            if asked.background and self._rng.random() < 0.6:
                after = self._rng.choice([-1, *(reading.last for reading in asked.readings)])
                query = "?stream=true" + (f"&starting_after={after}" if after >= 0 else "")
                await self._stream(asked, "GET", f"/v1/responses/{asked.response_id}{query}", None, after)
            elif (shown := await self._look(asked)) is not None and shown["status"] not in RUNNING:
                return shown
        return None

    async def batch(self) -> None:
        """A batch of messages: it waits for the results, or cancels it."""
        kinds = {f"r{number}": self._kind() for number in range(self._rng.randint(2, 5))}
        requests = [
            {"custom_id": name, "params": _message(f"{kind} for {self._name}")[1]}
            for name, kind in kinds.items()
        ]
        exchange = await self._post("/v1/messages/batches", {"requests": requests}, leaves=0.1)
        if not exchange.whole or exchange.status != 200:
            self._check_failure(exchange, "short")
            return
        path = f"/v1/messages/batches/{msgspec.json.decode(exchange.body)['id']}"
        self._world.batches.append((self._name, path))
        cancels, cancelled = self._rng.random() < 0.3, False
        for _ in range(60):
            await asyncio.sleep(self._rng.random() * 2)
            if cancels and self._rng.random() < 0.5:
                cancelled = True
                await self._post(f"{path}/cancel", {})
            exchange = await self._request("GET", path)
            if not exchange.whole or exchange.status != 200:
                self._check_failure(exchange, "short")
            elif msgspec.json.decode(exchange.body)["processing_status"] == "ended":
                exchange = await self._request("GET", f"{path}/results")
                if exchange.whole and exchange.status == 200:
                    self._check_results(path, bytes(exchange.body), kinds, cancelled=cancelled)
                return

    def _check_results(self, path: str, body: bytes, kinds: dict[str, str], *, cancelled: bool) -> None:
        """Each request has one result, and that which it must have."""
        results = {line["custom_id"]: line["result"] for line in map(msgspec.json.decode, body.splitlines())}
        law(len(body.splitlines()) == len(results), f"{path}: a request has two results")
        law(results.keys() == kinds.keys(), f"{path} has results of {[*results]}, not of {[*kinds]}")
        for name, result in results.items():
            kind, fails = kinds[name], KINDS[kinds[name]][2] is not None
            expected = {"errored" if fails else "succeeded"} | ({"canceled"} if cancelled else set())
            law(result["type"] in expected, f"{path}: {kind} has the result {result}")
            if result["type"] == "succeeded":
                text = "".join(part["text"] for part in result["message"]["content"])
                law(text == whole_text(self._name, kind), f"{path}: {kind} says {text!r}")

    async def spy(self) -> None:
        """Look at what belongs to another key."""
        for name, path in self._world.batches[:3]:
            if name != self._name:
                exchange = await self._request("GET", path + self._rng.choice(("", "/results")))
                law(exchange.status in (0, 404, 503), f"{path} is shown to another key")
        others = [asked for asked in self._world.asked if asked.response_id and asked.name != self._name]
        for asked in others[:3]:
            path = f"/v1/responses/{asked.response_id}"
            exchange = await self._request("GET", path + self._rng.choice(("", "?stream=true")))
            law(exchange.status in (0, 404, 503), f"{asked.response_id} is shown to another key")
            for method, end in (("DELETE", ""), ("POST", "/cancel")):
                exchange = await self._request(method, path + end)
                law(exchange.status in (0, 404, 503), f"{asked.response_id} is changed by another key")

    async def _look(self, asked: Asked) -> Line | None:
        """A response as it is shown now."""
        exchange = await self._request("GET", f"/v1/responses/{asked.response_id}")
        history = self._world.histories.get(str(asked.response_id))
        if exchange.status == 404:
            law(history is None or history.deleted, f"{asked.response_id} is not found, but it is there")
        elif exchange.status == 200 and exchange.whole:
            shown = msgspec.json.decode(exchange.body)
            assert history is not None
            ended = shown["status"] not in RUNNING
            law(not ended or shown["status"] == history.status, f"{asked.response_id} is shown otherwise")
            return shown  # type: ignore[no-any-return]
        else:
            self._check_failure(exchange, asked.kind)
        return None

    async def _delete(self, asked: Asked) -> None:
        asked.deleted = True
        exchange = await self._request("DELETE", f"/v1/responses/{asked.response_id}")
        if exchange.status == 200 and exchange.whole:
            history = self._world.histories[str(asked.response_id)]
            law(history.deleted, f"{asked.response_id} is said to be deleted, but it is there")

    # How

    def _kind(self) -> str:
        return self._rng.choice(("short", "short", "steady", "steady", "slow", "breaks", "never"))

    def _asked(self, *, background: bool, kind: str | None = None) -> Asked:
        streamed = self._rng.random() < 0.6
        asked = Asked(self._name, kind or self._kind(), background=background, streamed=streamed)
        self._world.asked.append(asked)
        return asked

    def _body(self, asked: Asked) -> Line:
        return {
            **asked.fields,
            "model": "scripted",
            "input": asked.given,
            "stream": asked.streamed,
            "background": asked.background,
            "store": True,
            "metadata": {"asked": str(self._world.asked.index(asked))},
        }

    async def _post(self, path: str, body: Line, leaves: float = 0.0) -> Exchange:
        leaves_after = None
        if self._rng.random() < leaves:
            leaves_after = self._rng.random() * 2
        return await self._request("POST", path, body, leaves_after=leaves_after)

    async def _stream(
        self, asked: Asked, method: str, path: str, body: Line | None, after: int = -1, *, live: bool = False
    ) -> Exchange:
        """Read a stream: to its end, or some of it; at once, or with pauses."""
        reading = asked.reading(after, live=live)
        leaves = self._rng.randint(1, 40) if self._rng.random() < 0.3 else None
        holds = self._rng.randint(1, 20) if self._rng.random() < 0.15 else None

        def read(exchange: Exchange, data: bytes) -> None:
            nonlocal holds
            if exchange.status != 200:
                return
            reading.take(data, self._world.histories)
            if leaves is not None and len(reading.lines) >= leaves:
                reading.left = True
                exchange.leave()
            elif holds is not None and len(reading.lines) >= holds:
                holds = None
                exchange.hold()
                self._world.loop.call_later(self._rng.random() * 4, exchange.read_on)

        exchange = await self._request(method, path, body, on_body=read)
        asked.response_id = asked.response_id or reading.response_id
        if exchange.status not in (0, 200):
            asked.readings.remove(reading)
            if method == "GET":
                self._check_failure(exchange, asked.kind)
        return exchange

    async def _request(
        self,
        method: str,
        path: str,
        body: Line | None = None,
        on_body: Callable[[Exchange, bytes], None] | None = None,
        leaves_after: float | None = None,
    ) -> Exchange:
        server = await self._world.server()
        exchange = Exchange(server.connect(self._world.delay))
        if on_body is not None:
            exchange.on_data = on_body
        exchange.request(method, path, self._key, b"" if body is None else msgspec.json.encode(body))
        if leaves_after is not None:
            self._world.loop.call_later(leaves_after, exchange.leave)
        await asyncio.wait([exchange.over], timeout=PATIENCE)
        law(exchange.over.done(), f"{method} {path} is not answered")
        self._check_own(exchange)
        return exchange

    # What it expects

    def _check_own(self, exchange: Exchange) -> None:
        for name in self._world.names:
            law(name == self._name or name.encode() not in exchange.body, f"{self._name} sees data of {name}")

    def _check_failure(self, exchange: Exchange, kind: str) -> None:
        """An error, or no answer, must have a reason."""
        if not exchange.whole:
            return  # a server died, or the client has left
        error = msgspec.json.decode(exchange.body)["error"]
        code = error.get("code") or error.get("details", {}).get("error_code") or error["type"]
        if code == "engine_error":
            law(KINDS[kind][2] is not None, f"the engine does not fail, but a client is told so: {error}")
        else:
            law(
                code in TROUBLE and self._world.trouble, f"a client is told {exchange.status} {code}: {error}"
            )

    def _check_other(self, body: bytes, kind: str, *, failed: bool, streamed: bool) -> None:
        """The answer is whole, or it says that it is not."""
        fails = KINDS[kind][2] is not None
        law(failed or not fails, "an answer that broke off is told as whole")
        law(fails or not failed or self._world.trouble, f"an answer fails without a reason: {body[-300:]!r}")
        if not failed and not streamed:
            law(whole_text(self._name, kind).encode() in body, "an answer is not whole")


def _chat(text: str) -> tuple[str, Line]:
    return "/v1/chat/completions", {"model": "scripted", "messages": [{"role": "user", "content": text}]}


def _stored_chat(text: str) -> tuple[str, Line]:
    path, body = _chat(text)
    return path, {**body, "store": True}


def _message(text: str) -> tuple[str, Line]:
    messages = [{"role": "user", "content": text}]
    return "/v1/messages", {"model": "scripted", "max_tokens": 1000, "messages": messages}


def _completion(text: str) -> tuple[str, Line]:
    return "/v1/completions", {"model": "scripted", "prompt": text, "max_tokens": 1000}


_OTHERS = (_chat, _stored_chat, _message, _completion)
_ACTIONS = (
    Client.chat,
    Client.respond,
    Client.respond,
    Client.background,
    Client.background,
    Client.background,
    Client.approve,
    Client.approve,
    Client.converse,
    Client.batch,
    Client.spy,
)
