"""One simulation of a fleet: replicas, servers, clients, troubles and laws, all from one seed.

Most simulations have few replicas, so that each trouble matters; one in some has hundreds. A workload with
a mean load is drawn, and some troubles, which end before the clients do. Then all that was asked has to be
answered.
"""

import asyncio
import hashlib
import math
from collections.abc import Collection, Sequence
from random import Random
from typing import Any

import msgspec

from antiphon.core.shared_loads import LEASE_SECONDS, Drain
from antiphon.engines.block_index import EXPECTED_SECONDS
from antiphon.engines.pool import Choose, cheapest
from simulation.clocks import simulated_clocks
from simulation.database import Memory, SharedDatabase
from simulation.fleet.bus import Bus
from simulation.fleet.front import Front
from simulation.fleet.laws import NOTICED, SPREAD, Allowance, Answer, FleetLaws
from simulation.fleet.machine import Machine, Speed
from simulation.fleet.workloads import WORKLOADS
from simulation.loop import SimulatedLoop

TROUBLES = {"crash": 4, "drain": 3, "slow": 2, "clear": 2, "kill": 3, "away": 2}
"""The failures, and their frequencies: `World._trouble` causes them."""
KEYS = ("key-0", "key-1", "key-2")
LOOK = 0.5
"""Seconds between two looks at the whole."""
SETTLED = 120.0
"""Seconds after the last question in which all must be answered."""
CLAIMED = 1.0
"""Seconds after the last fault in which servers know what is in caches."""
SHARING = 0.6
"""The share of fleets whose servers share loads."""
LAST_PROMPTS = 10
"""The prompts that are looked up."""
TOLD = 1.0
"""Seconds until all servers of a database know of a change, if it answers."""
PATIENCE = 5.0
"""Seconds for which an operator waits for an answer."""
TRIES = 40
"""How often an operator tries: longer than the database is away."""
ROUNDS = 5_000_000
"""Rounds of a loop that are enough for any fleet."""


class Plan(msgspec.Struct):
    """The contents of a simulation."""

    machines: int
    fronts: int
    workload: str
    seconds: float
    load: float
    """Questions a second for each replica."""
    speed: Speed
    troubles: tuple[str, ...] = ()
    often: int = 0
    limits: dict[str, int] = {}
    batches: float = 0.0
    """The share of questions that nobody waits for."""
    delay: float | None = None
    """The most seconds that events of caches take; None: there are none."""
    loss: float = 0.0
    """The share of events that are lost while there are troubles."""
    choose: Choose = cheapest
    settled: float = SETTLED
    shares: bool = False
    """Servers tell each other their loads, and what is drained."""

    @property
    def foresees(self) -> bool:
        """A server can know what is in the caches: all that was computed, and for nobody else."""
        alone = self.fronts == 1 and not self.batches and self.delay is None
        return alone and self.speed.blocks > 100_000 and not {"crash", "clear"} & {*self.troubles}

    @property
    def is_exact(self) -> bool:
        """The database always answers: limits are exact."""
        return "away" not in self.troubles


def plan_of(seed: int) -> Plan:
    """What the simulation of a seed does."""
    rng = Random(f"fleet {seed}")
    troubles = tuple(dict.fromkeys(rng.choices([*TROUBLES], [*TROUBLES.values()], k=rng.randint(0, 3))))
    large = rng.random() < 0.03
    machines = rng.choice((100, 200)) if large else rng.choice((2, 3, 5, 8))
    speed = Speed(
        prefill=rng.choice((4_000.0, 12_000.0)),
        slots=rng.choice((2, 4, 16)),
        queue=rng.choice((4, 10_000, 10_000)),
        block=rng.choice((16, 32, 64, 128)),
        blocks=rng.choice((300, 3_000, 10**9)),
    )
    workload = rng.choice([*WORKLOADS])
    limited = rng.random() < 0.3
    return Plan(
        machines,
        rng.choice((1, 4, 16)) if large else rng.choice((1, 1, 2, 3)),
        workload,
        3.0 if large else rng.choice((4.0, 12.0)),
        rng.choice((2.0, 6.0)) if workload == "unique" else rng.choice((0.3, 0.8, 1.5)),
        speed if workload != "unique" else Speed(),
        troubles,
        rng.choice((1, 2, 4)) if troubles else 0,
        {key: rng.choice((2_000, 20_000, 200_000)) for key in KEYS} if limited else {},
        rng.choice((0.0, 0.0, 0.3)),
        rng.choice((None, 0.0, 0.2, 1.0)),
        rng.choice((0.0, 0.1)) if troubles else 0.0,
        shares=rng.random() < SHARING,
    )


def fits(wanted: Collection[str], seed: int) -> bool:
    """Whether all of this is in the simulation of a seed.

    Troubles, a workload, keys with `limits`, `batches`, a `large` fleet, several `fronts`, `events` of
    caches, one server that `foresees` what is cached, servers that `share` loads, or `quiet`: no troubles.
    """
    plan = plan_of(seed)
    more = {
        "limits": bool(plan.limits),
        "batches": plan.batches > 0,
        "events": plan.delay is not None,
        "foresees": plan.foresees,
        "large": plan.machines > 8,
        "fronts": plan.fronts > 1,
        "share": plan.shares and plan.fronts > 1,
        "quiet": not plan.troubles,
    }
    return {*wanted} <= {*plan.troubles, plan.workload, *(name for name, there in more.items() if there)}


class Report(msgspec.Struct):
    """The results of a simulation. `digest` differs if anything in it differs."""

    seed: int
    digest: str
    answers: int
    refused: int
    cached: float
    """The share of the tokens of prompts that were not computed."""
    seconds: float
    """Of virtual time."""


class World:
    """The state of one simulation."""

    def __init__(self, seed: int, plan: Plan, memory: Memory) -> None:
        self.rng = Random(seed)
        self.loop = SimulatedLoop(self.rng)
        self.loop.most_rounds = ROUNDS
        self.database = SharedDatabase(memory, self.rng, self.loop)
        self.plan = plan
        self.laws = FleetLaws(self.loop, foresees=plan.foresees, told=plan.delay is not None)
        self.bus = Bus(self.loop, self.rng, self.laws, plan.delay or 0.0)
        self.workload = WORKLOADS[plan.workload](Random(seed))
        names = [f"replica {number}" for number in range(plan.machines)]
        self.machines = [Machine(name, plan.speed, self.loop, self.laws, self.bus) for name in names]
        self.fronts: list[Front] = []
        self._dead: dict[Front, float] = {}  # and when they were killed
        self._started = 0
        self._gone: set[str] = set()  # names of servers that were killed
        self._over = False

    async def run(self) -> None:
        """Everything, from the first start to the last check."""
        now = self.loop.time()
        self.laws.allowances = {key: Allowance(limit, now) for key, limit in self.plan.limits.items()}
        await asyncio.gather(*(self._start_front() for _ in range(self.plan.fronts)))
        self.bus.loss = self.plan.loss
        looking = asyncio.ensure_future(self._look())
        troubles = [asyncio.ensure_future(self._trouble()) for _ in range(self.plan.often)]
        await self._ask()
        await asyncio.gather(*troubles)
        await self._settle()
        self.bus.loss = 0.0
        if self.plan.delay is not None:
            await self._check_claims()
        if self.plan.shares:
            await self._check_counts()
        self._over = True
        await looking
        self._check()
        for front in self.fronts:
            await front.stop()

    async def _start_front(self) -> None:
        self._started += 1
        front = Front(self, f"server {self._started}")
        await front.start()
        self.fronts.append(front)

    async def _ask(self) -> None:
        """Clients ask, at random times."""
        rate = self.plan.load * self.plan.machines
        end = self.loop.time() + self.plan.seconds
        while self.loop.time() < end:
            await asyncio.sleep(self.rng.expovariate(rate))
            if self.fronts:
                last = self.rng.random() < self.plan.batches
                self.rng.choice(self.fronts).ask(self.workload.question(), last=last)

    async def _look(self) -> None:
        while not self._over:
            await asyncio.sleep(LOOK)
            self.laws.look(self.machines, lambda front: front not in self._gone)
            self._look_at_the_dead()

    def _look_at_the_dead(self) -> None:
        """Servers that were killed count for as long as their lease."""
        for dead, killed in self._dead.items():
            late = self.loop.time() - killed
            for front in self.fronts if late > LEASE_SECONDS else ():
                counts = dead.shared.process in front.shared.counted
                self.laws.law(not counts, f"{front.name} counts {dead.name}, which died {late:.1f} s ago")

    @property
    def open(self) -> list[Answer]:
        """Answers that are to come."""
        return [
            answer
            for answer in self.laws.answers.values()
            if answer.ended is None and answer.front not in self._gone
        ]

    async def _settle(self) -> None:
        late = self.loop.time() + self.plan.settled
        while self.open and self.loop.time() < late:
            await asyncio.sleep(LOOK)

    async def _check_claims(self) -> None:
        """What servers expect in caches is what is there, once each replica has told something again."""
        for machine in self.machines:
            ids = self.workload.new(machine.speed.block)
            machine.cache.store(machine.cache.hashes(ids), ids)
        await asyncio.sleep(EXPECTED_SECONDS + self.bus.delay + CLAIMED)
        for answer in [*self.laws.answers.values()][-LAST_PROMPTS:]:
            ids, block = answer.question.ids, self.plan.speed.block
            hashes = self.machines[0].cache.hashes(ids)
            there = {machine.name: machine.cache.known(hashes) * block for machine in self.machines}
            for front in self.fronts:
                for name, claimed in front.claims(ids):
                    what = f"{front.name} expects {claimed} tokens at {name}, which has {there[name]}"
                    self.laws.law(claimed == there[name], what)

    async def _check_counts(self) -> None:
        """No server counts work that has ended."""
        await asyncio.sleep((TOLD if self.plan.is_exact else LEASE_SECONDS) + LOOK)
        for front in self.fronts:
            counts = f"{front.name} counts {front.counted} generations of others, and there are none"
            self.laws.law(not front.counted or bool(self.open), counts)

    def _check(self) -> None:
        for answer in self.open:
            self.laws.law(False, f"answer {answer.question.number} never ends")
        if self.plan.troubles:
            return
        if self.plan.workload == "unique":
            spread = self.laws.spread
            self.laws.law(spread <= SPREAD, f"a replica has {spread:.2f} times the mean work")
        for answer in self.laws.answers.values():
            failed = answer.outcome.startswith("failed") and self.plan.speed.queue > 100
            self.laws.law(not failed, f"answer {answer.question.number} is {answer.outcome}")

    # Failures

    async def _trouble(self) -> None:
        await asyncio.sleep(self.rng.random() * self.plan.seconds)
        machine = self.rng.choice(self.machines)
        seconds = self.rng.random() * self.rng.choice((0.5, 3, 8))
        match self.rng.choice(self.plan.troubles):
            case "crash":
                if machine.up:
                    machine.crash()
                    await asyncio.sleep(seconds)
                    machine.restart()
            case "drain":
                await self._drain(machine, seconds)
            case "slow":
                machine.slow = 5.0
                await asyncio.sleep(seconds)
                machine.slow = 1.0
            case "clear":
                machine.cache.clear()
            case "kill":
                await self._kill(seconds)
            case "away":
                for front in self.fronts:
                    front.database_faults.away = self.loop.time() + seconds

    async def _drain(self, machine: Machine, seconds: float) -> None:
        """An operator drains a replica, and resumes it: at one server or, if they share nothing, at each."""
        if machine.name in self.laws.drained:
            return
        self.laws.drained[machine.name] = math.inf
        await self._change(machine, drained=True)
        if self.plan.is_exact or not self.plan.shares:
            self.laws.drained[machine.name] = self.loop.time() + (TOLD if self.plan.shares else NOTICED)
        await asyncio.sleep(seconds)
        self.laws.drained.pop(machine.name)
        await self._change(machine, drained=False)

    async def _change(self, machine: Machine, *, drained: bool) -> None:
        """The operator tries until it is done."""
        if not self.plan.shares:
            for front in self.fronts:
                front.pool.drain(machine.name, Drain("operator", 0) if drained else None)
            return
        for _ in range(TRIES):
            front = self.rng.choice(self.fronts)
            changing = front.run(front.drain(machine.name, drained=drained))
            await asyncio.wait({changing}, timeout=PATIENCE)
            if changing.done() and changing.exception() is None:
                return
            await asyncio.sleep(LOOK)
        self.laws.law(False, f"{machine.name} cannot be drained or resumed")

    async def _kill(self, seconds: float) -> None:
        """A server is killed, and another one starts."""
        if len(self.fronts) < 2:
            return
        front = self.fronts.pop(self.rng.randrange(len(self.fronts)))
        self._dead[front] = self.loop.time()
        self._gone.add(front.name)
        front.kill()
        await asyncio.sleep(seconds)
        while self.laws.drained and not self.plan.shares:  # a new server knows nothing of it
            await asyncio.sleep(LOOK)
        await self._start_front()

    # Results

    def report(self, seed: int) -> Report:
        """The results."""
        digest = hashlib.sha256()
        answers = [*self.laws.answers.values()]
        for answer in answers:
            digest.update(f"{answer.front} {answer.asked} {answer.first} {answer.ended}".encode())
            digest.update(f"{answer.cached} {answer.text} {answer.outcome}\n".encode())
        digest.update(f"{self.loop.rounds} {self.loop.time()} {self.rng.random()}".encode())
        begun = [answer for answer in answers if answer.first is not None]
        prompts = sum(len(answer.question.ids) for answer in begun)
        return Report(
            seed,
            digest.hexdigest()[:16],
            len(answers),
            sum(answer.outcome == "refused" for answer in answers),
            round(sum(answer.cached for answer in begun) / max(1, prompts), 3),
            self.loop.time(),
        )


_memory: Memory | None = None


def run(seed: int, plan: Plan) -> World:
    """Run one simulation of this plan. Raises LawError if a law is violated, and any unexpected error."""
    global _memory  # noqa: PLW0603 - made once
    _memory = _memory or Memory()
    world = World(seed, plan, _memory)
    with simulated_clocks(Random(seed)):
        world.loop.run(world.run())
    return world


def simulate(seed: int) -> Report:
    """Run the simulation of a seed."""
    return run(seed, plan_of(seed)).report(seed)


def summary(reports: Sequence[Any]) -> str:
    """What many simulations did."""
    return (
        f"{sum(report.answers for report in reports)} answers,"
        f" {sum(report.refused for report in reports)} refused,"
        f" {sum(report.seconds for report in reports) / 3600:.1f} hours"
    )
