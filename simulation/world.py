"""One simulation: servers, clients, failures, and the laws, all from one seed."""

import asyncio
import hashlib
import io
import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from random import Random
from typing import Any

import msgspec
import structlog

from antiphon.run import drive
from antiphon.tools.tool import ServerTool
from simulation.clients import ACTIONS, LATE, PATIENCE, Asked, Batch, Client, Reading
from simulation.clocks import simulated_clocks
from simulation.database import DatabaseFaults, Memory, SharedDatabase
from simulation.engine import EngineLaws
from simulation.files import IndexedFile, check_files, unfinished
from simulation.laws import RUNNING, History, law
from simulation.limits import Admitted, key_rules
from simulation.lines import LineBatch, check_held, check_lines
from simulation.loop import HOP, SimulatedLoop, Turns
from simulation.mcp_server import McpServer
from simulation.model_server import HOST, ModelServer
from simulation.processes import virtual_processes
from simulation.server import Server
from simulation.tools import Effects, EffectTool, call_of

NAMES = ("alpha", "beta")
SETTLED = 90.0
"""Seconds after which everything must have ended."""
TROUBLES = {
    "kill": 8,
    "hold": 4,
    "stop": 2,
    "away": 2,
    "all away": 1,
    "slow": 1,
    "full": 1,
    "unsure": 2,
    "replica": 4,
}
"""The failures, and their frequencies: `World._trouble` causes them."""
DYING = 0.15
"""The share of simulations with failures in which an engine dies."""
BY_URL = 0.15
"""The share of the others in which the model is at a URL."""
JUMPING = 0.15
"""The share of simulations with failures in which the clock of a server is set, once."""
JUMP = 8.0
"""The most seconds by which it is set, forwards or back."""
STEERING = 0.1
"""The share of simulations in which clients steer responses."""
LINES = 0.1
"""The share of simulations in which clients have the lines of files answered."""
HOSTILE_TOOL = 0.3
"""The share of simulations in which the tool with effects is that of an MCP server."""


class Plan:
    """The contents of a simulation: a few kinds of work and failures, or, sometimes, all of them.

    So the simulations differ, most are short, and faults that need many servers, clients and failures at
    once are found as well.
    """

    def __init__(self, rng: Random) -> None:
        long = rng.random() < 0.2
        self.servers = rng.choice((1, 2, 2, 3) if long else (1, 1, 2))
        self.clients = rng.randint(2, 4) if long else rng.randint(1, 2)
        self.turns = 2
        """The most that a client does."""
        actions = {name: often for name, (often, _) in ACTIONS.items()}
        self.actions = _some(rng, actions, len(actions) if long else rng.randint(1, 3))
        self.replicas = rng.choice((1, 1, 2, 3))
        """Of the engine of each server."""
        self.troubles: list[str] = []
        if rng.random() < 0.85:
            self.troubles = _some(rng, TROUBLES, len(TROUBLES) if long else rng.randint(1, 2))
        if self.replicas > 1 and rng.random() < 0.5:
            self.troubles = ["replica"]  # must not be noticeable
        self.often = rng.choice((1, 2, 3, 5))
        """How many troubles there are."""
        self.within = 12.0 if long else 5.0
        """Seconds in which they occur."""
        self.kinds: tuple[str, ...] = ("short", "short", "steady", "steady", "slow", "breaks", "never")
        if self.replicas > 1:  # a request that every replica fails at would have all of them fail
            self.kinds = self.kinds[:5]
        self.deadlines = rng.choice((0.0, 0.0, 0.5))
        """The share of requests that have a deadline."""
        self.skew = rng.choice((0.0, 0.0, 1.0))
        """Seconds by which the clocks of two servers differ at most."""
        self.pauses = rng.choice((0.15, 0.15, 0.15, 0.9))
        """The share of streams that a client stops to read for a while."""
        self.hop = rng.choice((HOP, HOP, 0.5))
        """The most seconds of work in a thread, and of bounded work."""
        self.late = rng.choice((0.0, 0.0, 0.02))
        """The share of rounds of the loop that take long."""

    @property
    def trouble(self) -> bool:
        """There are failures that clients may notice."""
        return any(trouble != "replica" for trouble in self.troubles)


def engine_dies(seed: int, plan: Plan) -> bool:
    """Whether an engine dies, once, besides the other failures of the simulation of this seed.

    Its own number decides: other simulations stay what they were.
    """
    return plan.trouble and plan.replicas == 1 and Random(f"engine {seed}").random() < DYING


def model_is_hostile(seed: int, plan: Plan) -> bool:
    """Whether the model is at a URL, and its server hostile. Its own number decides."""
    single = plan.trouble and plan.replicas == 1 and not engine_dies(seed, plan)
    return single and Random(f"url {seed}").random() < BY_URL


def jump_of(seed: int, plan: Plan) -> float:
    """The seconds by which a clock is set; 0: none is. Its own number decides."""
    rng = Random(f"jump {seed}")
    return (2 * rng.random() - 1) * JUMP if plan.trouble and rng.random() < JUMPING else 0.0


def tool_is_hostile(seed: int) -> bool:
    """Whether the tool with effects is that of a hostile MCP server. Its own number decides."""
    return Random(f"tool {seed}").random() < HOSTILE_TOOL


def client_steers(seed: int) -> bool:
    """Whether clients also steer responses. Its own number decides."""
    return Random(f"steer {seed}").random() < STEERING


def client_has_lines(seed: int) -> bool:
    """Whether clients also have the lines of files answered. Its own number decides."""
    return Random(f"lines {seed}").random() < LINES


def fits(wanted: Collection[str], seed: int) -> bool:
    """Whether all of this is in the simulation of a seed.

    Actions, troubles, `deadlines`, many `pauses`, the death of an `engine`, a hostile model at a `url`, a
    hostile tool of an `mcp` server, clients that `steer`, or have `lines`, keys with `limits`, and a clock
    that makes a `jump`.
    """
    plan = Plan(Random(seed))
    more = {
        "deadlines": plan.deadlines > 0,
        "pauses": plan.pauses > 0.5,
        "engine": engine_dies(seed, plan),
        "url": model_is_hostile(seed, plan),
        "mcp": tool_is_hostile(seed),
        "steer": client_steers(seed),
        "limits": key_rules(seed) is not None,
        "lines": client_has_lines(seed),
        "jump": bool(jump_of(seed, plan)),
    }
    return {*wanted} <= {*plan.actions, *plan.troubles, *(name for name, there in more.items() if there)}


def _some(rng: Random, often: Mapping[str, int], number: int) -> list[str]:
    """At most this number of these."""
    drawn = rng.choices([*often], [*often.values()], k=number)
    return [*dict.fromkeys(drawn)]


class Report(msgspec.Struct):
    """The results of a simulation. `digest` differs if anything in it differs."""

    seed: int
    digest: str
    rounds: int
    transactions: int
    responses: int
    events: int
    seconds: float
    """Of virtual time."""


class World:
    """The state of one simulation."""

    def __init__(self, seed: int, memory: Memory) -> None:
        self.rng = Random(seed)
        self.loop = SimulatedLoop(self.rng)
        self.database = SharedDatabase(memory, self.rng, self.loop)
        self.histories: dict[str, History] = self.database.histories.by_id
        self.names = NAMES
        self.plan = Plan(self.rng)
        if client_steers(seed):
            self.plan.actions += ["steer"] * 3
        self.key_rules = key_rules(seed)
        if self.key_rules is not None:
            self.plan.actions += ["hurry"] * 4
        if client_has_lines(seed):
            self.plan.actions += ["lines"] * 3
        self.engine_dies = engine_dies(seed, self.plan)
        self.jump = jump_of(seed, self.plan)
        self.model_server: ModelServer | None = None
        if model_is_hostile(seed, self.plan):
            self.model_server = ModelServer(seed, self.loop)
            self.loop.hosts[HOST] = self.model_server.accept
        self.loop.hop, self.loop.pauses = self.plan.hop, self.plan.late
        self.asked: list[Asked] = []
        self.batches: list[Batch] = []
        self.line_batches: list[LineBatch] = []
        self.compacted: list[tuple[str, list[Any]]] = []
        """Conversations that were summarised: their owners, and the items that replace them."""
        self.files: list[IndexedFile] = []
        """Those that clients put into vector stores."""
        self.effects = Effects(self.rng, self.loop)
        self.mcp_server = McpServer(seed, self.effects) if tool_is_hostile(seed) else None
        self.engine_laws = EngineLaws(self.database.histories, self.loop, self.asked)
        self.engine_laws.slack += abs(self.jump)
        self.deadlines = self.engine_laws.deadlines
        self.admitted: Admitted | None = None
        """What clients got, if keys have limits."""
        if self.key_rules is not None:
            self.admitted = Admitted(self.key_rules, self.plan, self.skew)
        self.chats: dict[str, bool | None] = {}
        """Chat completions to be stored: whether the client got confirmation, or None."""
        self.servers: list[Server] = []
        self._dead: list[Server] = []
        self._started = self._numbered = 0
        self._gone = 0
        """How often a server was killed or paused."""
        self.engine_died = False
        self.trouble = self.plan.trouble
        self._clients: list[asyncio.Future[None]] = []

    @property
    def skew(self) -> float:
        """Seconds by which clocks differ at most."""
        return self.plan.skew + abs(self.jump)

    def delay(self, most: float) -> float:
        """A time, chosen from the seed. See `network.Delay`."""
        return self.rng.random() * most

    def tool(self) -> ServerTool:
        """The tool with effects, of one server."""
        return EffectTool(self.effects) if self.mcp_server is None else self.mcp_server.tool()

    def number(self) -> int:
        """The next of the requests that are no responses."""
        self._numbered += 1
        return self._numbered

    async def server(self) -> Server:
        """A server that can be sent a request."""
        while not (ready := [server for server in self.servers if server.ready]):
            await asyncio.sleep(0.1)
        return self.rng.choice(ready)

    async def _start_server(self) -> None:
        self._started += 1
        while self.model_server is not None and self.model_server.away > self.loop.time():
            await asyncio.sleep(0.1)
        server = Server(self, f"server {self._started}", (self.rng.random() - 0.5) * self.plan.skew)
        self.servers.append(server)
        await server.start()

    async def run(self) -> None:
        """Everything, from the first start to the last check."""
        for _ in range(self.plan.servers):
            await self._start_server()
        names = (*NAMES, *self.rng.choices(NAMES, k=2))[: self.plan.clients]
        self._clients = [asyncio.ensure_future(Client(self, name, f"key-{name}").run()) for name in names]
        troubles = [asyncio.ensure_future(self._trouble()) for _ in range(self.plan.often)]
        if self.engine_dies:
            troubles.append(asyncio.ensure_future(self._kill_engine()))
        if self.jump:
            troubles.append(asyncio.ensure_future(self._set_clock()))
        if self.model_server is not None:
            troubles.append(asyncio.ensure_future(self._part_from_model(self.model_server)))
        await asyncio.gather(*troubles)
        await self._all(self._clients)
        await self._settle()
        self._check()
        for server in self.servers:
            await server.stop()
        for server in self._dead:
            await server.end_leftovers()

    @property
    def _busy(self) -> bool:
        """Something is under way, or will be."""
        return bool(self._running()) or not all(client.done() for client in self._clients)

    async def _all(self, clients: "list[asyncio.Future[None]]") -> None:
        done, _ = await asyncio.wait(clients, timeout=10 * PATIENCE, return_when=asyncio.FIRST_EXCEPTION)
        for client in done:
            client.result()
        law(len(done) == len(clients), "a client never ends")

    # Failures

    async def _trouble(self) -> None:
        if not self.plan.troubles:
            return
        await asyncio.sleep(self.rng.random() * self.plan.within)
        if not self._busy:
            return
        server = await self._victim()
        seconds = self.rng.random() * self.rng.choice((1, 4, 9))
        match self.rng.choice(self.plan.troubles):
            case "kill":
                await self._kill(server, seconds)
            case "stop":
                await self._stop(server, seconds)
            case "hold":
                self._gone += 1
                server.hold(self.rng.choice((seconds, 2 + 4 * self.rng.random())))  # about as long as a lease
            case "replica":
                await self._fail_replica(server, seconds)
            case "unsure":
                server.database_faults.unsure = 0.5
                await asyncio.sleep(seconds)
                server.database_faults.unsure = 0.0
            case of_the_database:
                self._change_database(of_the_database, server.database_faults, seconds)

    def _change_database(self, trouble: str, database_faults: DatabaseFaults, seconds: float) -> None:
        """Change the failures of the database, for one server or for all."""
        now = self.loop.time()
        match trouble:
            case "away":
                database_faults.away = now + self.rng.choice((seconds, 4 * seconds, 45))
            case "slow":
                database_faults.slow = now + seconds
            case "all away":
                for server in self.servers:
                    server.database_faults.away = now + seconds
            case "full":
                for server in self.servers:
                    server.database_faults.full = now + seconds

    async def _victim(self) -> Server:
        """A server for a failure: mostly one that is writing a response."""
        for _ in range(self.rng.choice((0, 40))):
            if not self._busy:
                break
            if busy := [server for server in self.servers if server.ready and server.busy]:
                return self.rng.choice(busy)
            await asyncio.sleep(0.05)
        return self.rng.choice([await self.server()])

    async def _kill(self, server: Server, seconds: float) -> None:
        if not server.ready:
            return
        self.servers.remove(server)
        self._dead.append(server)
        self._gone += 1
        server.kill()
        await asyncio.sleep(seconds)
        await self._start_server()

    async def _stop(self, server: Server, seconds: float) -> None:
        """Another server replaces it, now or when it has stopped."""
        if not server.ready:
            return
        self.servers.remove(server)
        stopping = asyncio.ensure_future(server.stop())
        await asyncio.sleep(seconds)
        await self._start_server()
        await stopping
        if {"away", "all away", "unsure", "full"} & {*self.plan.troubles}:  # it may have given nothing back
            self._gone += 1

    async def _kill_engine(self) -> None:
        """An engine dies, and is started again after a while."""
        await asyncio.sleep(self.rng.random() * self.plan.within)
        server = await self._victim()
        [engine] = server.replicas
        self.engine_died = True
        if server.process.alive and server.ready:
            dying, seconds = server.run(engine.die), self.rng.random() * 4
            await asyncio.wait([dying], timeout=PATIENCE)  # later, if the server is paused
            await asyncio.sleep(seconds)
            if dying.done() and server.process.alive:
                server.run(engine.start)

    async def _set_clock(self) -> None:
        """The clock of a server is set."""
        rng = Random(self.jump)
        await asyncio.sleep(rng.random() * self.plan.within)
        if self.servers:
            rng.choice(self.servers).process.skew += self.jump

    async def _part_from_model(self, model_server: ModelServer) -> None:
        """The server of the model cannot be reached for a while."""
        rng = model_server.rng
        await asyncio.sleep(rng.random() * self.plan.within)
        if rng.random() < 0.5:
            while not all(server.ready for server in self.servers):  # to begin, they need it
                await asyncio.sleep(0.1)
            self.engine_died = True
            model_server.leave(rng.random() * 4)

    async def _fail_replica(self, server: Server, seconds: float) -> None:
        """A replica of its engine is unavailable for a while. The first of them never is."""
        if len(server.replicas) > 1 and server.ready:
            replica = self.rng.choice(server.replicas[1:])
            server.run(replica.stop)
            await asyncio.sleep(seconds)
            if server.process.alive:
                server.run(replica.start)

    async def _settle(self) -> None:
        """Remove all failures, and wait until all work is done."""
        for server in self.servers:
            server.database_faults.clear()
        deadline = self.loop.time() + SETTLED
        # A request may still be under way whose client has left.
        while (
            self._running() or not all(server.idle for server in self.servers)
        ) and self.loop.time() < deadline:
            await asyncio.sleep(1)
        left = self._running()
        law(not left, f"{left} never end")

    def _running(self) -> list[str]:
        files = [file_id for (file_id,) in unfinished(self.database.memory)]
        return files + [
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
        for batch in self.batches:
            self._check_batch(batch)
        for lines in self.line_batches:
            check_lines(self.database.memory, lines, self.histories[lines.id])
            if not self.trouble:  # else it is held until its time is over
                check_held(self.database.memory, lines)
        for asked in self.asked:
            self._check_asked(asked)
        check_files(self.database.memory, self.files, self._gone)
        self._check_chats()
        self._check_conversations()

    def _check_rows(self) -> None:
        """Each row belongs to a request, and none to one that was refused or not to be stored."""
        for number, history in self.database.histories.by_number.items():
            asked, response_id = self.asked[int(number)], history.id
            law(asked.stored, f"{response_id} is stored, and should not be")
            law(
                not asked.refused or asked.background or history.status != "completed",
                f"{response_id} is stored as completed, but its client was told an error",
            )
            asked.response_id = asked.response_id or response_id

    def _check_batch(self, batch: Batch) -> None:
        history = self.histories[batch.id]
        law(history.status not in RUNNING, f"{batch.id} has not ended")
        batch.check([*history.results.values()])

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
        """A conversation has all of its messages, once, and each answer after its question."""
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
        for reading in asked.readings:
            self._check_read(asked, reading)
        history = self.histories.get(str(asked.response_id))
        if history is None or history.deleted or not history.body:
            law(history is None or asked.deleted, f"{asked.response_id} is gone, and nobody deleted it")
            return
        if asked.background:
            self._check_background(asked, history)
        else:
            self._check_foreground(asked, history)
        self._check_text(asked, history)

    def _check_read(self, asked: Asked, reading: Reading) -> None:
        """The text that a client has read is a prefix of the model's, or all of it."""
        if reading.live and asked.effect is None:
            whole = reading.told == "completed"
            fits = reading.text == asked.text if whole else asked.text.startswith(reading.text)
            law(fits, f"a client reads {reading.text!r} of {asked.text!r}")

    def _check_background(self, asked: Asked, history: History) -> None:
        expected = "completed" if asked.whole else "failed"
        allowed = {expected, "cancelled"} if asked.cancelled else {expected}
        if asked.steered:
            allowed.add("incomplete")
        if asked.follows is not None and (before := self.histories.get(str(asked.follows.response_id))):
            allowed |= {before.status} & {"failed", "cancelled"}
        if self.model_server is not None:  # it is continued, and may not fail again
            allowed.add("completed")
        if self._is_late(asked, history):
            allowed.add("failed")
        law(history.status in allowed, f"{asked.response_id} is {history.status}, not {expected}")
        for reading in asked.readings:
            law(
                reading.told in (None, "error", history.status),
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
            law(reading.told == history.status, f"{what}, but it is stored as {history.status}")
            law(reading.lines == history.lines, f"{what}, but the log has other events")
        else:
            # Its server has crashed, or could not write: others have ended it, with an error.
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
            if self._is_late(asked, history):
                expected.add("failed")
            law(history.status in expected, f"{asked.response_id} is {history.status}, not {expected}")

    def _is_late(self, asked: Asked, history: History) -> bool:
        """Whether it has failed for its deadline, which has to be true then."""
        if history.code != LATE:
            return False
        assert history.ended is not None
        asked.check_late(history.ended, self.skew, history.id)
        return True

    def _check_text(self, asked: Asked, history: History) -> None:
        body = msgspec.json.decode(history.body)
        if history.status == "completed":
            made = sum(item["type"] == "compaction" for item in body["output"])
            law(made == asked.compactions, f"{asked.response_id} has {made} summaries")
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
            texts.append(call_of(asked.effect))  # a call that was cut has no name, and is text
        law(any(text.startswith(said) for text in texts), f"{asked.response_id} says {said!r}")
        if history.lines:
            deltas = history.text
            law(
                any(text.startswith(deltas) for text in texts),
                f"the log of {asked.response_id} says {deltas!r}",
            )
            law(deltas == said or history.status != "completed", f"{asked.response_id}: {deltas!r} {said!r}")

    def report(self, seed: int) -> Report:
        """The results."""
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


def silence() -> None:
    """Hide the logs of servers: failures are expected."""
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


_memory: Memory | None = None


def simulate(seed: int) -> Report:
    """Run one simulation. Raises LawError if a law is violated, and any unexpected error."""
    global _memory  # noqa: PLW0603 - made once
    _memory = _memory or Memory()
    world = World(seed, _memory)
    with _simulated(Random(seed)), virtual_processes(), redirect_stdout(io.StringIO()):
        world.loop.run(world.run())
    return world.report(seed)


@contextmanager
def _simulated(rng: Random) -> Iterator[None]:
    """Clocks show the time of the simulation, and each process has its own turns."""
    turns, drive._turns = drive._turns, Turns()  # type: ignore[assignment]
    try:
        with simulated_clocks(rng):
            yield
    finally:
        drive._turns = turns
