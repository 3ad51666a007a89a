"""One simulation: servers, clients, what goes wrong, and the laws, all from one seed."""

import asyncio
import hashlib
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from random import Random
from typing import Any

import msgspec

from simulation.clients import PATIENCE, Asked, Client, script
from simulation.database import Memory, SharedDatabase
from simulation.laws import RUNNING, History, law
from simulation.loop import SimulatedLoop, _real_time, simulated_time
from simulation.server import Server
from simulation.tools import Effects, call_of

NAMES = ("alpha", "beta")
TROUBLED = 12.0
"""Seconds in which something may go wrong."""
SETTLED = 90.0
"""Seconds after which everything must have come to its end."""


class Report(msgspec.Struct):
    """What a simulation did. `digest` differs if anything in it differs."""

    seed: int
    digest: str
    rounds: int
    transactions: int
    responses: int
    events: int
    seconds: float
    """Of virtual time."""


class World:
    """Everything there is in one simulation."""

    def __init__(self, seed: int, memory: Memory) -> None:
        self.rng = Random(seed)
        self.loop = SimulatedLoop(self.rng)
        self.database = SharedDatabase(memory, self.rng, self.loop)
        self.histories: dict[str, History] = self.database.histories.by_id
        self.names = NAMES
        self.asked: list[Asked] = []
        self.batches: list[tuple[str, str]] = []
        """Batches of messages: whose they are, and their paths."""
        self.effects = Effects(self.rng, self.loop)
        self.chats: dict[str, bool | None] = {}
        """Chat completions to be stored: whether the client was told that they are, or None."""
        self.servers: list[Server] = []
        self._dead: list[Server] = []
        self._started = self._numbered = 0
        self.trouble = self.rng.random() < 0.85
        """Something goes wrong in this simulation."""
        self.skew = self.rng.choice((0.0, 0.0, 1.0))

    def delay(self, most: float) -> float:
        """A time, chosen from the seed. See `network.Delay`."""
        return self.rng.random() * most

    def number(self) -> int:
        """The next of the stored chat completions."""
        self._numbered += 1
        return self._numbered

    async def server(self) -> Server:
        """A server that can be sent a request."""
        while not (ready := [server for server in self.servers if server.ready]):
            await asyncio.sleep(0.1)
        return self.rng.choice(ready)

    async def _start_server(self) -> Server:
        self._started += 1
        keys = tuple(f"key-{name}" for name in NAMES)
        skew = (self.rng.random() - 0.5) * self.skew
        server = Server(
            f"server {self._started}", self.database, self.rng, script(NAMES), keys, skew, self.effects
        )
        self.servers.append(server)
        await server.start()
        return server

    async def run(self) -> None:
        """Everything, from the first start to the last check."""
        for _ in range(self.rng.choice((1, 2, 2, 3))):
            await self._start_server()
        clients = [
            asyncio.ensure_future(Client(self, name, f"key-{name}").run())
            for name in (*NAMES, *self.rng.choices(NAMES, k=self.rng.randint(0, 2)))
        ]
        troubles = [asyncio.ensure_future(self._trouble()) for _ in range(self.rng.randint(1, 4))]
        if not self.trouble:
            for each in troubles:
                each.cancel()
        await asyncio.gather(*troubles, return_exceptions=not self.trouble)
        await self._all(clients)
        await self._settle()
        self._check()
        for server in self.servers:
            await server.stop()
            law(not server.process.tasks, f"{server.process.name} has stopped, but tasks of it run")
        for server in self._dead:
            await server.bury()

    async def _all(self, clients: "list[asyncio.Future[None]]") -> None:
        done, _ = await asyncio.wait(clients, timeout=10 * PATIENCE, return_when=asyncio.FIRST_EXCEPTION)
        for client in done:
            client.result()
        law(len(done) == len(clients), "a client never ends")

    # What goes wrong

    async def _trouble(self) -> None:
        await asyncio.sleep(self.rng.random() * TROUBLED)
        server = await self._victim()
        seconds = self.rng.random() * self.rng.choice((1, 4, 9))
        weather, until = server.weather, self.loop.time() + seconds
        match self.rng.choice(("kill", "kill", "hold", "hold", "away", "all away", "slow", "full", "unsure")):
            case "kill":
                await self._kill(server, seconds)
            case "hold":
                server.hold(self.rng.choice((seconds, 2 + 4 * self.rng.random())))  # about as long as a lease
            case "away":
                weather.away = self.loop.time() + self.rng.choice((seconds, 4 * seconds, 45))
            case "all away":
                for each in self.servers:
                    each.weather.away = until
            case "slow":
                weather.slow = until
            case "full":
                for each in self.servers:
                    each.weather.full = until
            case "unsure":
                weather.unsure = 0.5
                await asyncio.sleep(seconds)
                weather.unsure = 0.0

    async def _victim(self) -> Server:
        """A server to which something happens: mostly one that is writing a response."""
        for _ in range(self.rng.choice((0, 20))):
            if busy := [server for server in self.servers if server.ready and server.busy]:
                return self.rng.choice(busy)
            await asyncio.sleep(0.05)
        return self.rng.choice([await self.server()])

    async def _kill(self, server: Server, seconds: float) -> None:
        if not server.ready:
            return
        self.servers.remove(server)
        self._dead.append(server)
        server.kill()
        await asyncio.sleep(seconds)
        await self._start_server()

    async def _settle(self) -> None:
        """Nothing is wrong any more: wait until all work is done."""
        for server in self.servers:
            server.weather.clear()
        deadline = self.loop.time() + SETTLED
        # A request may still be under way whose client has left.
        while (
            self._running() or not all(server.idle for server in self.servers)
        ) and self.loop.time() < deadline:
            await asyncio.sleep(1)
        left = self._running()
        law(not left, f"{left} never end")

    def _running(self) -> list[str]:
        return [
            response_id
            for response_id, history in self.histories.items()
            if history.status in RUNNING and not history.deleted
        ]

    # The laws, at the end

    def _check(self) -> None:
        self.database.histories.check_stored()
        for server in self.servers:
            server.check_idle()
        self._check_rows()
        for asked in self.asked:
            self._check_asked(asked)
        self._check_chats()
        self._check_conversations()

    def _check_rows(self) -> None:
        """Each row belongs to a request, no two to the same one, and none to one that was refused."""
        seen = set()
        for response_id, history in self.histories.items():
            if history.of_batch:
                continue
            number = msgspec.json.decode(history.body)["metadata"]["asked"]
            asked = self.asked[int(number)]
            law(number not in seen, f"{response_id} is stored twice")
            seen.add(number)
            law(
                not asked.refused or asked.background or history.status != "completed",
                f"{response_id} is stored as completed, but its client was told an error",
            )
            asked.response_id = asked.response_id or response_id

    def _check_chats(self) -> None:
        rows = self.database.memory.execute("SELECT metadata FROM completions")
        stored = [msgspec.json.decode(metadata)["asked"] for (metadata,) in rows]
        law(len(stored) == len(set(stored)), "a chat completion is stored twice")
        for asked, told in self.chats.items():
            law(
                told is None or told == (asked in stored),
                f"{asked} is told as {told}, stored {asked in stored}",
            )

    def _check_conversations(self) -> None:
        """A conversation has all that was said in it, once, and each answer behind what it answers."""
        said: dict[str, list[str]] = {}
        for parent, position, item_id in self.database.memory.execute(
            "SELECT parent, position, id FROM items WHERE parent LIKE 'conv%' ORDER BY parent, position"
        ):
            known = said.setdefault(parent, [])
            law(position == len(known), f"{parent} has no item {len(known)}")
            law(item_id not in known, f"{parent} has {item_id} twice")
            known.append(item_id)
        for asked in self.asked:
            history = self.histories.get(str(asked.response_id))
            if "conversation" not in asked.fields or history is None or history.status != "completed":
                continue
            known = said[asked.fields["conversation"]]
            output = [item["id"] for item in msgspec.json.decode(history.body)["output"]]
            law(output[0] in known, f"{asked.response_id} is not in its conversation")
            start = known.index(output[0])
            law(
                start > 0 and known[start : start + len(output)] == output,
                f"{asked.response_id} is torn apart",
            )

    def _check_asked(self, asked: Asked) -> None:
        history = self.histories.get(str(asked.response_id))
        if history is None or history.deleted or not history.body:
            law(history is None or asked.deleted, f"{asked.response_id} is gone, and nobody deleted it")
            return
        if asked.background:
            self._check_background(asked, history)
        else:
            self._check_foreground(asked, history)
        self._check_text(asked, history)

    def _check_background(self, asked: Asked, history: History) -> None:
        expected = "completed" if asked.whole else "failed"
        allowed = {expected, "cancelled"} if asked.cancelled else {expected}
        law(history.status in allowed, f"{asked.response_id} is {history.status}, not {expected}")
        for reading in asked.readings:
            law(
                reading.told in (None, "error", _shown(history.status)),
                f"{asked.response_id} is {history.status}, but a reader is told {reading.told}",
            )

    def _check_foreground(self, asked: Asked, history: History) -> None:
        if asked.answer is not None:
            told = asked.answer["status"]
            law(told == history.status, f"{asked.response_id}: told {told}, stored {history.status}")
        for reading in asked.readings:
            if reading.live:
                self._check_live(asked, reading, history)

    def _check_live(self, asked: Asked, reading: Any, history: History) -> None:
        what = f"{asked.response_id}: a client was told {reading.told} {reading.code or ''}"
        sure = reading.told is not None and reading.code not in ("store_error", "response_lost")
        if sure:
            law(reading.told == _shown(history.status), f"{what}, but it is stored as {history.status}")
            law(reading.lines == history.lines, f"{what}, but the log has other events")
        else:
            # Its server has died, or could not write: others have ended it, with an error of their own.
            ending = 2 if history.status == "failed" else 1  # an end may be stored, unknown to its server
            common = len(history.lines) - ending if len(history.lines) > 3 else 0
            law(
                reading.lines[:common] == history.lines[: len(reading.lines)][:common],
                f"{what}: read otherwise",
            )
            law(reading.told is None or self.trouble, f"{what} without a reason")
        if not self.trouble:
            expected = {"completed" if asked.whole else "failed"}
            if reading.left or reading.told is None:
                expected.add("cancelled")
            law(history.status in expected, f"{asked.response_id} is {history.status}, not {expected}")

    def _check_text(self, asked: Asked, history: History) -> None:
        body = msgspec.json.decode(history.body)
        for item in body["output"]:
            if item["type"] == "mcp_call" and item["output"] is not None:
                law(
                    str(asked.effect) in self.effects.done,
                    f"{asked.response_id} tells of a call that was not run",
                )
        said = "".join(
            part["text"] for item in body["output"] if item["type"] == "message" for part in item["content"]
        )
        texts = [asked.text]
        if history.status == "completed":
            law(said == asked.text, f"{asked.response_id} says {said!r}")
        elif asked.effect is not None:
            texts.append(call_of(asked.effect))  # one that was cut has no name, and is text
        law(any(text.startswith(said) for text in texts), f"{asked.response_id} says {said!r}")
        if history.lines:
            deltas = "".join(
                event["delta"]
                for event in map(msgspec.json.decode, history.lines)
                if event["type"] == "response.output_text.delta"
            )
            law(
                any(text.startswith(deltas) for text in texts),
                f"the log of {asked.response_id} says {deltas!r}",
            )
            law(deltas == said or history.status != "completed", f"{asked.response_id}: {deltas!r} {said!r}")

    def report(self, seed: int) -> Report:
        """What was done."""
        digest = hashlib.sha256()
        for response_id, history in self.histories.items():
            digest.update(f"{response_id} {history.status}".encode())
            digest.update(b"\n".join(history.lines))
        for asked in self.asked:
            for reading in asked.readings:
                digest.update(f"{reading.after} {len(reading.lines)} {reading.told}".encode())
        digest.update(f"{self.loop.rounds} {self.loop.time()} {self.rng.random()}".encode())
        return Report(
            seed,
            digest.hexdigest()[:16],
            self.loop.rounds,
            self.database.transactions,
            len(self.histories),
            sum(len(history.lines) for history in self.histories.values()),
            self.loop.time(),
        )


def _shown(status: str) -> str:
    return status


_memory: Memory | None = None


def simulate(seed: int) -> Report:
    """Run one simulation. Raises LawError if a law does not hold, and whatever else was not expected."""
    global _memory  # noqa: PLW0603 - made once
    _memory = _memory or Memory()
    world = World(seed, _memory)
    with _simulated(Random(seed)):
        world.loop.run(world.run())
    return world.report(seed)


@lru_cache(1)
def _clock_users(_: int) -> list[Any]:
    """Modules that have imported `time.time` itself. The number of modules says when to look again."""
    return [
        module
        for name, module in sys.modules.items()
        if name.startswith("antiphon.") and getattr(module, "time", None) is _real_time
    ]


@contextmanager
def _simulated(rng: Random) -> Iterator[None]:
    """Clocks show the time of the simulation, and what is random comes from its seed."""
    real, holders = (time.time, secrets.token_hex), _clock_users(len(sys.modules))
    time.time, secrets.token_hex = simulated_time, lambda size=32: rng.randbytes(size).hex()  # type: ignore[assignment]
    for module in holders:
        module.time = simulated_time
    try:
        yield
    finally:
        time.time, secrets.token_hex = real
        for module in holders:
            module.time = _real_time
