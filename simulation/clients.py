"""Clients that send requests, stream, disconnect, come back, cancel, approve and delete; what they expect.

The end that a client gets must match what is stored, according to the table of endings. The events that it
reads of a response must be those in its log, whichever server wrote them.
"""

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from simulation.engine import KINDS, RECALL, whole_text, wish
from simulation.files import index
from simulation.laws import RUNNING, History, law
from simulation.limits import REFUSED, check_running
from simulation.lines import lines
from simulation.model_server import KEY
from simulation.network import LATENCY, Exchange, Socket
from simulation.tools import TOOL, request_to_act, said_after

if TYPE_CHECKING:
    from simulation.world import World

PATIENCE = 120.0
"""Seconds after which a request counts as hanging: longer than a database may be unavailable."""
TROUBLE = {"store_error", "response_lost", "engine_not_ready", "not_found_error", "engine_busy"}
"""Errors that clients may get only if something was wrong with a server or the database."""
LATE = "deadline_exceeded"
TERMINAL = ("response.completed", "response.incomplete", "response.failed")

Line = dict[str, Any]

_STATES = ("response.queued", "response.in_progress")
"""Events that say only how far a response is."""


class Reading:
    """The events of a response that a client reads. `told` is the end that it got, or the error."""

    def __init__(self, after: int, *, live: bool) -> None:
        self.after = after
        self.live = live
        """It is answered to this client: events are sent before they are stored."""
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
        """Process further bytes; if they are read from the log, compare them with that."""
        end = body.rfind(b"\n\n")
        if end < self._parsed:
            return
        blocks, self._parsed = body[self._parsed : end].split(b"\n\n"), end + 2
        for block in blocks:
            if block.startswith(b"event: "):
                self.take_line(block.partition(b"\ndata: ")[2], histories)

    @property
    def text(self) -> str:
        """The text of the answer, as far as it was read."""
        return "".join(
            msgspec.json.decode(line)["delta"]
            for line in self.lines
            if line.startswith(b'{"type":"response.output_text.delta"')
        )

    def take_line(self, line: bytes, histories: dict[str, History]) -> None:
        """The next event, or an error in its place."""
        event = msgspec.json.decode(line)
        kind = event["type"]
        if "sequence_number" not in event or "status" in event:  # of this reader, not of the response
            self.told, self.code = "error", event["code"]
            return
        number = event["sequence_number"]
        if number == self.last and kind in _STATES:  # once more, for a client that waits
            return
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


class Wanted:
    """An answer that a client requests: of this kind, within `deadline` seconds, if that is not None."""

    def __init__(self, kind: str, sent: float, deadline: float | None) -> None:
        self.kind = kind
        self.sent = sent
        self.deadline = deadline

    @property
    def whole(self) -> bool:
        """The engine does not fail."""
        return KINDS[self.kind][2] is None

    def check_late(self, at: float, skew: float, what: str) -> None:
        """Check that its deadline passed before `at`, on clocks that differ by `skew`."""
        law(self.deadline is not None and at - self.sent >= self.deadline - skew, f"{what} is not late")


class Asked(Wanted):
    """A response that a client requested, and its allowed outcomes. Its `number` is its index among all."""

    def __init__(self, name: str, kind: str, number: int, sent: float, deadline: float | None) -> None:
        super().__init__(kind, sent, deadline)
        self.name = name
        self.number = number
        self.given: Any = wish(kind, name, number)
        self.text = whole_text(name, kind)
        """The text of the model, if nothing prevents it."""
        self.effect: str | None = None
        """The effect of its call."""
        self.sees: tuple[int, ...] = ()
        """The numbers of the responses before it in its conversation."""
        self.compactions = 0
        """The number of summaries before it, when it is complete."""
        self.fields: Line = {}
        """Fields of the request, in addition to the common ones."""
        self.background = False
        self.streamed = True
        self.stored = True
        self.response_id: str | None = None
        self.readings: list[Reading] = []
        self.cancelled = False
        self.steered = False
        """Its client has tried to give it more input."""
        self.follows: Asked | None = None
        """The response that was steered with its input."""
        self.deleted = False
        self.refused = False
        """The client got an error instead of an answer."""
        self.answer: Line | None = None
        """The full answer."""

    @property
    def whole(self) -> bool:
        return self.kind == RECALL or super().whole

    @property
    def completed(self) -> bool:
        """Its client was told that it is complete."""
        told = [reading.told for reading in self.readings]
        return "completed" in told or (self.answer or {}).get("status") == "completed"

    def reading(self, after: int, *, live: bool) -> Reading:
        """A stream that begins now."""
        reading = Reading(after, live=live)
        reading.response_id = self.response_id
        self.readings.append(reading)
        return reading


class Batch:
    """A batch of messages: the `kinds` of its requests, by their ids."""

    def __init__(self, name: str, kinds: dict[str, str]) -> None:
        self.name = name
        self.kinds = kinds
        self.path = ""
        self.cancelled = False

    @property
    def id(self) -> str:
        """Its id."""
        return self.path.rpartition("/")[2]

    def check(self, lines: Sequence[bytes]) -> None:
        """Each request has exactly one result, the expected one."""
        results = {line["custom_id"]: line["result"] for line in map(msgspec.json.decode, lines)}
        law(len(lines) == len(results), f"{self.id}: a request has two results")
        law(
            results.keys() == self.kinds.keys(),
            f"{self.id} has results of {[*results]}, not of {[*self.kinds]}",
        )
        for number, result in results.items():
            kind, fails = self.kinds[number], KINDS[self.kinds[number]][2] is not None
            expected = {"errored" if fails else "succeeded"} | ({"canceled"} if self.cancelled else set())
            law(result["type"] in expected, f"{self.id}: {kind} has the result {result}")
            if result["type"] == "succeeded":
                text = "".join(part["text"] for part in result["message"]["content"])
                law(text == whole_text(self.name, kind), f"{self.id}: {kind} says {text!r}")


class Client:
    """One client with a key. `name` is that of its owner."""

    def __init__(self, world: "World", name: str, key: str) -> None:
        self._world = world
        self._rng: Random = world.rng
        self._name = name
        self._key = key
        self._conversation: str | None = None
        self._said: list[int] = []
        """The numbers of the responses in it."""
        self._last: Asked | None = None
        """A response that can be gone on from."""

    async def run(self) -> None:
        """Perform a few actions, one after the other."""
        plan = self._world.plan
        await asyncio.sleep(self._rng.random() * 3)
        for name in self._rng.choices(plan.actions, k=self._rng.randint(1, plan.turns)):
            await (RARE.get(name) or ACTIONS[name][1])(self)
            await asyncio.sleep(self._rng.random())

    # Actions

    async def chat(self) -> None:
        """A chat completion, a message or a completion, whole or as a stream."""
        number = f"c{self._world.number()}"
        wanted = Wanted(self._kind(), self._world.loop.time(), self._deadline(number))
        path, body = self._rng.choice(_OTHERS)(wish(wanted.kind, self._name, number))
        streamed = self._rng.random() < 0.5
        if "store" in body:
            body["metadata"] = {"asked": number}
        body |= {} if wanted.deadline is None else {"deadline_seconds": wanted.deadline}
        exchange = await self._post(path, {**body, "stream": streamed}, 0.3, number)
        failed = exchange.whole and b'"error"' in exchange.body
        if exchange.whole and exchange.status == 200:
            self._check_other(bytes(exchange.body), wanted, failed=failed, streamed=streamed)
        else:
            self._check_failure(exchange, wanted)
        if "store" in body:
            self._world.chats[number] = None if not exchange.whole else not failed

    async def hurry(self) -> None:
        """Ask for more than a key with limits may have: several answers at a time, of any server."""
        for _ in range(self._rng.randint(1, 3)):
            await asyncio.gather(*(self._press() for _ in range(self._rng.randint(2, 5))))

    async def _press(self) -> None:
        number, sent = f"c{self._world.number()}", self._world.loop.time()
        wanted = Wanted(self._rng.choice(("short", "steady")), sent, None)
        path, body = self._rng.choice((_chat, _message, _completion))(wish(wanted.kind, self._name, number))
        exchange = await self._request("POST", path, body, number=number)
        check_running(self._world)
        if exchange.whole and exchange.status == 200:
            self._check_other(bytes(exchange.body), wanted, failed=False, streamed=False)
            if self._world.admitted is not None:
                self._world.admitted.add(self._name, sent, self._world.loop.time())
        else:
            self._check_failure(exchange, wanted)

    async def respond(self) -> None:
        """A response that it waits for, whole or as a stream."""
        asked = self._asked(background=False)
        self._go_on(asked)
        if await self._ask(asked) and self._rng.random() < 0.3:
            await self._look(asked)
        if asked.streamed and asked.completed and self._rng.random() < 0.3:
            await self._read_on(asked)
        self._last = asked if asked.completed else self._last

    async def background(self) -> None:
        """A background response: the client reads, disconnects, comes back, cancels, deletes."""
        asked = self._asked(background=True)
        self._go_on(asked)
        if self._rng.random() < 0.3:
            asked.compactions = 1
            asked.fields |= {"context_management": [{"type": "compaction", "compact_threshold": 1}]}
        if await self._ask(asked):
            cancels, deletes = self._rng.random() < 0.2, self._rng.random() < 0.15
            ended = await self._follow(asked, cancels=cancels, deletes=deletes)
            if ended is not None and ended["status"] == "completed":
                self._last = asked

    async def steer(self) -> None:
        """A background response that gets more input: another one follows it, whoever dies meanwhile."""
        first = self._asked(background=True, kind=self._rng.choice(("short", "steady", "slow")))
        first.streamed = self._rng.random() < 0.3
        if not await self._ask(first):
            return
        await asyncio.sleep(self._rng.random() * self._rng.choice((0.1, 1, 4)))
        second = self._asked(background=True, kind="short")
        second.follows, second.sees, first.steered = first, (first.number,), True
        path = f"/v1/responses/{first.response_id}/steer"
        exchange = await self._post(path, {"input": second.given})
        if exchange.whole and exchange.status == 200:
            second.response_id = msgspec.json.decode(exchange.body)["response_id"]
        elif b"response_already_completed" in exchange.body or b"response_not_active" in exchange.body:
            shown = await self._look(first)
            law(shown is None or shown["status"] not in RUNNING, f"{first.response_id} has not ended")
        else:
            self._check_failure(exchange, first)
        await self._follow(first, cancels=self._rng.random() < 0.2)
        if second.response_id is not None:
            await self._follow(second, cancels=self._rng.random() < 0.1)

    def _go_on(self, asked: Asked) -> None:
        """Have it go on from an earlier response, or not."""
        if self._last is not None and self._rng.random() < 0.5:
            asked.fields["previous_response_id"] = self._last.response_id
            asked.sees = (*self._last.sees, self._last.number)

    async def compact(self) -> None:
        """Have a conversation summarised, and go on from the summary."""
        first = self._asked(background=False, kind="short")
        if not await self._ask(first) or not first.completed:
            return
        body = {"model": "scripted", "previous_response_id": first.response_id}
        exchange = await self._post("/v1/responses/compact", body)
        if not exchange.whole or exchange.status != 200:
            self._check_failure(exchange)
            return
        output = msgspec.json.decode(exchange.body)["output"]
        kinds = [item["type"] for item in output]
        law(kinds == ["message", "compaction"], f"a conversation is summarised as {kinds}")
        self._world.compacted.append((self._name, output))
        second = self._asked(background=self._rng.random() < 0.4, kind=RECALL)
        second.given = [*output, {"role": "user", "content": second.given}]
        second.sees = (first.number,)
        if await self._ask(second):
            await self._follow(second, cancels=False)

    async def talk(self) -> None:
        """Turns on a WebSocket, each of which continues the one before, if that is complete."""
        server = await self._world.server()
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        transport = server.connect(self._world.delay)
        socket = Socket(transport, "/v1/responses", self._key, heard.put_nowait)
        await asyncio.wait([socket.opened], timeout=PATIENCE)
        law(socket.opened.done(), "a WebSocket is not opened")
        if socket.status not in (0, 101):
            self._check_error(socket.status, socket.body)
        socket.lost.add_done_callback(lambda _: heard.put_nowait(b""))
        before: Asked | None = None
        while not socket.lost.done() and self._rng.random() < 0.7:
            before = await self._turn(socket, heard, before)
            await asyncio.sleep(self._rng.random())
        socket.leave()

    async def _turn(
        self, socket: Socket, heard: "asyncio.Queue[bytes]", before: Asked | None
    ) -> Asked | None:
        """One turn; returns the one that the next may continue."""
        asked = self._asked(background=False)
        asked.streamed, asked.stored = True, self._rng.random() < 0.5
        if before is not None:
            asked.fields["previous_response_id"] = before.response_id
            asked.sees = (*before.sees, before.number)
        message = {"type": "response.create", **self._body(asked)}
        for field in ("stream", "background"):
            del message[field]
        socket.send(message)
        reading = asked.reading(-1, live=True)
        leaves = self._rng.randint(1, 40) if self._rng.random() < 0.2 else None
        if self._rng.random() < self._world.plan.pauses:
            socket.hold()
            self._world.loop.call_later(self._pause(), socket.read_on)
        while reading.told is None and not socket.lost.done():
            async with asyncio.timeout(PATIENCE):
                line = await heard.get()
            if line:
                self._check_mine(line)
                reading.take_line(line, self._world.histories)
                if reading.told == "error":
                    asked.readings.remove(reading)
                    asked.refused = True
                    event = msgspec.json.decode(line)
                    self._check_error(event["status"], line, asked)
            if leaves is not None and len(reading.lines) >= leaves:
                reading.left = True
                socket.leave()
                self._world.engine_laws.leave(str(asked.number))
        asked.response_id = reading.response_id
        return asked if reading.told == "completed" else None

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
        """Answer a request for an approval: a client may do so twice, or try again when it gets no answer."""
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
        """Send messages in a conversation: one response after the other, or two at the same time."""
        if self._conversation is None:
            exchange = await self._post("/v1/conversations", {})
            if not exchange.whole or exchange.status != 200:
                self._check_failure(exchange)
                return
            self._conversation = msgspec.json.decode(exchange.body)["id"]
        together = self._rng.random() < 0.3
        turns = [self._asked(background=self._rng.random() < 0.4, kind="short") for _ in range(2)]
        for asked in turns:
            asked.fields, asked.sees = {"conversation": self._conversation}, tuple(self._said)
        if together:
            await asyncio.gather(*map(self._ask, turns))
        for asked in turns:
            if not together:
                asked.sees = tuple(self._said)
            if (together and asked.response_id) or (not together and await self._ask(asked)):
                ended = await self._follow(asked, cancels=self._rng.random() < 0.1)
                self._said += [] if ended is None else [asked.number]
        path = f"/v1/conversations/{self._conversation}/items"
        exchange = await self._request("GET", f"{path}?limit=100&order=asc")
        if exchange.whole and exchange.status == 200:
            law(b'"has_more":false' in exchange.body, "a conversation is longer than what was said in it")
        else:
            self._check_failure(exchange)

    def _acting(self, effect: str, **fields: Any) -> Asked:
        asked = self._asked(background=self._rng.random() < 0.6, kind="short")
        asked.effect, asked.fields = effect, fields
        return asked

    async def _ask(self, asked: Asked, *, contested: bool = False) -> bool:
        """Request a response; returns whether it exists, or existed.

        If it is `contested` another response may have used the same approval first.
        """
        body = self._body(asked)
        if asked.streamed:
            exchange = await self._stream(asked, "POST", "/v1/responses", body, live=not asked.background)
        else:
            number = None if asked.background else str(asked.number)
            exchange = await self._post("/v1/responses", body, 0.1, number)
            if exchange.whole and exchange.status == 200:
                answer = msgspec.json.decode(exchange.body)
                asked.response_id = answer["id"]
                if not asked.background:
                    asked.answer = answer
        if exchange.whole and exchange.status != 200:
            asked.refused = True
            if not (contested and b"answered before" in exchange.body):
                self._check_failure(exchange, asked)
        return asked.response_id is not None

    async def _follow(self, asked: Asked, *, cancels: bool, deletes: bool = False) -> Line | None:
        """Read, disconnect, come back, until a response has ended; returns it in its final state."""
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
                await self._read_on(asked)
            elif (shown := await self._look(asked)) is not None and shown["status"] not in RUNNING:
                return shown
        return None

    async def _read_on(self, asked: Asked) -> None:
        """Read the events of a response: all, or those after one that was read before."""
        last = max((reading.last for reading in asked.readings), default=-1)
        after = self._rng.choice((-1, last, self._rng.randint(-1, last)))
        query = "?stream=true" + (f"&starting_after={after}" if after >= 0 else "")
        await self._stream(asked, "GET", f"/v1/responses/{asked.response_id}{query}", None, after)

    async def batch(self) -> None:
        """A batch of messages: it waits for the results, or cancels it."""
        batch = Batch(
            self._name, {f"r{self._world.number()}": self._kind() for _ in range(self._rng.randint(2, 12))}
        )
        requests = [
            {"custom_id": number, "params": _message(wish(kind, self._name, number))[1]}
            for number, kind in batch.kinds.items()
        ]
        exchange = await self._post("/v1/messages/batches", {"requests": requests}, leaves=0.1)
        if not exchange.whole or exchange.status != 200:
            self._check_failure(exchange)
            return
        batch.path = f"/v1/messages/batches/{msgspec.json.decode(exchange.body)['id']}"
        self._world.batches.append(batch)
        cancels = self._rng.random() < 0.3
        for _ in range(60):
            await asyncio.sleep(self._rng.random() * 2)
            if cancels and self._rng.random() < 0.5:
                batch.cancelled = True
                await self._post(f"{batch.path}/cancel", {})
            exchange = await self._request("GET", batch.path)
            if not exchange.whole or exchange.status != 200:
                self._check_failure(exchange)
            elif msgspec.json.decode(exchange.body)["processing_status"] == "ended":
                exchange = await self._request("GET", f"{batch.path}/results")
                if exchange.whole and exchange.status == 200:
                    batch.check(bytes(exchange.body).splitlines())
                return

    async def crowd(self) -> None:
        """Send several requests for bounded work in one turn of the loop; some of them leave in one turn."""
        server, at = await self._world.server(), self._rng.random() * LATENCY
        sent: list[tuple[str, Wanted, Exchange]] = []
        for _ in range(self._rng.randint(3, 7)):
            number = f"c{self._world.number()}"
            wanted = Wanted(self._kind(), self._world.loop.time(), self._deadline(number))
            exchange = Exchange(server.connect(lambda _: at))
            path, body = self._rng.choice(_BOUNDED)(wish(wanted.kind, self._name, number), number)
            body |= {} if wanted.deadline is None else {"deadline_seconds": wanted.deadline}
            exchange.request("POST", path, self._key, msgspec.json.encode(body))
            sent.append((number, wanted, exchange))
        await asyncio.sleep(self._rng.random() * self._rng.choice((0.05, 1.0)))
        for number, _, exchange in sent:
            if self._rng.random() < 0.6:
                self._leave(exchange, number)
        await asyncio.wait([exchange.over for *_, exchange in sent], timeout=PATIENCE)
        for _, wanted, exchange in sent:
            law(exchange.over.done(), "one of many requests is not answered")
            self._check_mine(exchange.body)
            if exchange.whole and exchange.status == 200:
                self._check_other(bytes(exchange.body), wanted, failed=False, streamed=False)
            elif exchange.status != 429:
                self._check_failure(exchange, wanted)

    async def spy(self) -> None:
        """Try to read objects of another key."""
        for batch in self._world.batches[:3]:
            if batch.name != self._name:
                exchange = await self._request("GET", batch.path + self._rng.choice(("", "/results")))
                law(exchange.status in (0, 404, 503), f"{batch.path} is shown to another key")
        for lines_of_another in self._world.line_batches[:3]:
            if lines_of_another.name != self._name:
                exchange = await self._request("GET", lines_of_another.path)
                law(exchange.status in (0, 404, 503), f"{lines_of_another.id} is shown to another key")
        for name, items in self._world.compacted[:2]:
            if name != self._name:
                body = {"model": "scripted", "input": items, "store": False}
                exchange = await self._post("/v1/responses", body)
                law(exchange.status in (0, 400, 503), f"a summary of {name} is taken from another key")
        others = [asked for asked in self._world.asked if asked.response_id and asked.name != self._name]
        for asked in others[:3]:
            path = f"/v1/responses/{asked.response_id}"
            exchange = await self._request("GET", path + self._rng.choice(("", "?stream=true")))
            law(exchange.status in (0, 404, 503), f"{asked.response_id} is shown to another key")
            for method, end in (("DELETE", ""), ("POST", "/cancel")):
                exchange = await self._request(method, path + end)
                law(exchange.status in (0, 404, 503), f"{asked.response_id} is changed by another key")

    async def _look(self, asked: Asked) -> Line | None:
        """A response in its current state."""
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
            self._check_failure(exchange, asked)
        return None

    async def _delete(self, asked: Asked) -> None:
        asked.deleted = True
        exchange = await self._request("DELETE", f"/v1/responses/{asked.response_id}")
        if exchange.status == 200 and exchange.whole:
            history = self._world.histories[str(asked.response_id)]
            law(history.deleted, f"{asked.response_id} is said to be deleted, but it is there")

    # How

    async def _object(self, method: str, path: str, body: Line | bytes | None = None) -> Line | None:
        """What is answered; None without an answer, or with an error that has a reason."""
        exchange = await self._request(method, path, body)
        if exchange.whole and exchange.status == 200:
            answer: Line = msgspec.json.decode(exchange.body)
            return answer
        self._check_failure(exchange)
        return None

    def _kind(self) -> str:
        return self._rng.choice(self._world.plan.kinds)

    def _asked(self, *, background: bool, kind: str | None = None) -> Asked:
        world = self._world
        number = len(world.asked)
        deadline = self._deadline(str(number)) if kind is None else None
        asked = Asked(self._name, kind or self._kind(), number, world.loop.time(), deadline)
        asked.background, asked.streamed = background, self._rng.random() < 0.6
        world.asked.append(asked)
        return asked

    def _deadline(self, number: str) -> float | None:
        """The deadline of a request in seconds."""
        if self._rng.random() >= self._world.plan.deadlines:
            return None
        deadline = self._world.deadlines[number] = self._rng.choice((0.02, 0.3, 1.0, 4.0))
        return deadline

    def _body(self, asked: Asked) -> Line:
        asked.sent = self._world.loop.time()
        return {
            **asked.fields,
            **({} if asked.deadline is None else {"deadline_seconds": asked.deadline}),
            "model": "scripted",
            "input": asked.given,
            "stream": asked.streamed,
            "background": asked.background,
            "store": asked.stored,
            "metadata": {"asked": str(asked.number)},
        }

    async def _post(self, path: str, body: Line, leaves: float = 0.0, number: str | None = None) -> Exchange:
        """Send a request, and with this probability disconnect, if the answer is for this request only."""
        leaves_after = None
        if self._rng.random() < leaves:
            leaves_after = self._rng.random() * 2
        return await self._request("POST", path, body, leaves_after=leaves_after, number=number)

    async def _stream(
        self, asked: Asked, method: str, path: str, body: Line | None, after: int = -1, *, live: bool = False
    ) -> Exchange:
        """Read a stream: to its end, or some of it; at once, or with pauses."""
        reading = asked.reading(after, live=live)
        leaves = self._rng.randint(1, 40) if self._rng.random() < 0.3 else None
        holds = self._rng.randint(1, 20) if self._rng.random() < self._world.plan.pauses else None

        def read(exchange: Exchange, data: bytes) -> None:
            nonlocal holds
            if exchange.status != 200:
                return
            reading.take(data, self._world.histories)
            if leaves is not None and len(reading.lines) >= leaves:
                reading.left = True
                exchange.leave()
                if live:
                    self._world.engine_laws.leave(str(asked.number))
            elif holds is not None and len(reading.lines) >= holds:
                holds = None
                exchange.hold()
                self._world.loop.call_later(self._pause(), exchange.read_on)

        exchange = await self._request(method, path, body, on_body=read)
        asked.response_id = asked.response_id or reading.response_id
        if exchange.status not in (0, 200):
            asked.readings.remove(reading)
            if method == "GET":
                self._check_failure(exchange, asked)
        return exchange

    async def _request(
        self,
        method: str,
        path: str,
        body: Line | bytes | None = None,
        on_body: Callable[[Exchange, bytes], None] | None = None,
        leaves_after: float | None = None,
        number: str | None = None,
    ) -> Exchange:
        server = await self._world.server()
        exchange = Exchange(server.connect(self._world.delay))
        if on_body is not None:
            exchange.on_data = on_body
        if isinstance(body, bytes):
            exchange.request(method, path, self._key, body, "multipart/form-data; boundary=cut")
        else:
            exchange.request(method, path, self._key, b"" if body is None else msgspec.json.encode(body))
        if leaves_after is not None:
            self._world.loop.call_later(leaves_after, self._leave, exchange, number)
        await asyncio.wait([exchange.over], timeout=PATIENCE)
        law(exchange.over.done(), f"{method} {path} is not answered")
        self._check_mine(exchange.body)
        return exchange

    def _leave(self, exchange: Exchange, number: str | None) -> None:
        if not exchange.over.done():
            exchange.leave()
            if number is not None:
                self._world.engine_laws.leave(number)

    def _pause(self) -> float:
        """Seconds for which a client reads nothing."""
        return self._rng.random() * self._rng.choice((4, 30))

    # Expectations

    def _check_mine(self, body: bytes | bytearray) -> None:
        for name in self._world.names:
            law(name == self._name or name.encode() not in body, f"{self._name} sees data of {name}")
        law(KEY.encode() not in body, f"{self._name} sees the key for the server of the model")

    def _check_failure(self, exchange: Exchange, wanted: Wanted | None = None) -> None:
        """An error, or no answer, must have a reason."""
        if exchange.whole:  # else a server died, or the client has left
            self._check_error(exchange.status, bytes(exchange.body), wanted)

    def _check_error(self, status: int, body: bytes, wanted: Wanted | None = None) -> None:
        error = msgspec.json.decode(body)["error"]
        code = error.get("code") or error.get("details", {}).get("error_code") or error["type"]
        what = f"a client is told {status} {code}: {error}"
        if code == "engine_error" or (code == "invalid_request_error" and self._world.model_server):
            law((wanted is not None and not wanted.whole) or self._world.engine_died, what)
        elif code == LATE:
            law(wanted is not None, what)
            assert wanted is not None
            wanted.check_late(self._world.loop.time(), self._world.skew, what)
        elif code == REFUSED:
            law(self._world.admitted is not None, what)
        else:
            law(code in TROUBLE and self._world.trouble, what)

    def _check_other(self, body: bytes, wanted: Wanted, *, failed: bool, streamed: bool) -> None:
        """The answer is complete, or says that it is not."""
        law(failed or wanted.whole, "an answer that broke off is told as whole")
        reason = not wanted.whole or wanted.deadline is not None or self._world.trouble
        law(reason or not failed, f"an answer fails without a reason: {body[-300:]!r}")
        if not failed and not streamed:
            law(whole_text(self._name, wanted.kind).encode() in body, "an answer is not whole")


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


def _constrained(text: str, number: str) -> tuple[str, Line]:
    """A format that this server has not compiled before."""
    path, body = _chat(text)
    return path, {**body, "structured_outputs": {"regex": f"{number}|([a-z]+[0-9]+ ?)+"}}


def _with_document(text: str, number: str) -> tuple[str, Line]:
    data = b64encode(f"This is document {number}.".encode()).decode()
    file = {"type": "file", "file": {"filename": "a.txt", "file_data": f"data:text/plain;base64,{data}"}}
    content = [file, {"type": "text", "text": text}]
    return "/v1/chat/completions", {"model": "scripted", "messages": [{"role": "user", "content": content}]}


_BOUNDED = (_constrained, _with_document)
_OTHERS = (_chat, _stored_chat, _message, _completion)
ACTIONS: Mapping[str, tuple[int, Callable[[Client], Awaitable[None]]]] = {
    "chat": (2, Client.chat),
    "respond": (4, Client.respond),
    "background": (6, Client.background),
    "approve": (4, Client.approve),
    "converse": (2, Client.converse),
    "batch": (3, Client.batch),
    "compact": (2, Client.compact),
    "talk": (3, Client.talk),
    "crowd": (3, Client.crowd),
    "index": (3, index),
    "spy": (2, Client.spy),
}
"""The actions of clients, and their frequencies."""

RARE: Mapping[str, Callable[[Client], Awaitable[None]]] = {
    "steer": Client.steer,
    "hurry": Client.hurry,
    "lines": lines,
}
"""Actions of some simulations only, which `world.py` chooses: so the others stay what they were."""
