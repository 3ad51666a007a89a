"""Limits of a key that several servers share: no more than the limit, whatever they do, and whoever dies."""

import asyncio
from contextvars import ContextVar
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.core import accounts, shared_limits
from antiphon.core.accounts import Account, Permissions
from antiphon.core.errors import RateLimitError, StoreError
from antiphon.core.shared_limits import Held, Lease, Question, SharedBucket, SharedPlaces, Taken
from antiphon.store.key_limits import answer
from tests.search import examples

LIMIT = 600
RATE = LIMIT / 60
EPOCH = 1_800_000_000.0
"""The database's time at the beginning."""


answer_of = answer
OFFSET: ContextVar[float] = ContextVar("offset", default=0.0)
"""That of the clock of a server."""


class Clock:
    now = 100.0


class Database:
    """A ledger in memory: `delay` is how long an answer takes each way, `away` whether there is one.

    One that `hangs` is away after a second.
    """

    def __init__(self, clock: Clock, delay: float = 0.0) -> None:
        self.clock = clock
        self.delay = delay
        self.away = self.hangs = False
        self.asked: list[Question] = []
        self.full_at: dict[tuple[str, str], float] = {}
        self.servers = 1
        self.places = 100
        self.held = 0

    async def take(self, question: Question) -> Taken:
        self.asked.append(question)
        await asyncio.sleep(0)
        if self.hangs:
            self.clock.now += 1
            self.away = True
        if self.away:
            raise StoreError
        self.clock.now += self.delay
        row = (question.owner, question.kind)
        now = EPOCH + self.clock.now
        self.full_at[row], taken = answer_of(self.full_at.get(row, 0.0), now, question)
        self.clock.now += self.delay
        return Taken(taken.amount, taken.left, self.servers)

    async def hold(self, owner: str, limit: int, places: int, seconds: float) -> Held:
        await asyncio.sleep(0)
        if self.away:
            raise StoreError
        self.held = min(places, self.places)
        return Held(self.held, self.places - self.held, self.servers)

    async def leave(self) -> None:
        self.servers -= 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    patch(monkeypatch, clock)
    return clock


def patch(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    for module in (accounts, shared_limits):
        monkeypatch.setattr(module, "monotonic", lambda: clock.now + OFFSET.get())
    monkeypatch.setattr(shared_limits, "SETTLE_SECONDS", 0)  # of the real clock


def server(database: Database, limit: int = LIMIT, **rules: Any) -> Account:
    """The account of a key on another server."""
    account = Account("ann", "a", Permissions(tokens_per_minute=limit, **rules))
    account.share(database)
    return account


async def admitted(account: Account, tokens: int) -> bool:
    """Whether an answer with so many tokens may be given now. Then they are taken."""
    await account.secure(tokens=tokens)
    try:
        account.reserve(tokens)
    except RateLimitError:
        return False
    return True


async def settled(turns: int = 6) -> None:
    """Let what runs in the background ask."""
    for _ in range(turns):
        await asyncio.sleep(0)


class Servers:
    """Servers of one database, each with a clock of its own, and what all of them have taken."""

    def __init__(self, clock: Clock, delay: float = 0.0) -> None:
        self.clock = clock
        self.delay = delay
        self.database = Database(clock, delay)
        self.taken: list[tuple[float, float]] = []
        self.open: list[tuple[int, Account, int]] = []  # answers: their server, and what they have reserved
        self.accounts = [self._start(index) for index in range(4)]

    def _start(self, index: int) -> Account:
        OFFSET.set(index * 1000.0)
        return server(self.database)

    async def act(self, kind: str, index: int, amount: int) -> bool:
        """Play one act of a server; returns whether an answer was admitted."""
        OFFSET.set(index * 1000.0)
        done = False
        if kind == "take" and (done := await admitted(self.accounts[index], amount)):
            self.taken.append((self.clock.now, amount))
            self.open.append((index, self.accounts[index], amount))
        elif kind == "die":
            self.accounts[index] = self._start(index)
        elif kind == "stop":
            await self.accounts[index].close()
            self.accounts[index] = self._start(index)
        elif kind == "end" and self.open:
            index, account, reserved = self.open.pop(amount % len(self.open))
            OFFSET.set(index * 1000.0)
            account.settle(reserved, used := reserved // 3)
            self.taken.append((self.clock.now, used - reserved))
        await settled()
        return done

    def check(self) -> None:
        """In any time no more was taken than the limit, and what was refilled in it."""
        for first, (begin, _) in enumerate(self.taken):
            total = 0.0
            for moment, amount in self.taken[first:]:
                total += amount
                slack = moment - begin + self.delay * 2
                assert total <= LIMIT + RATE * slack + 1e-3, (begin, moment)


PAUSES = [0.0, 0.0, 0.1, 1.0, 2.0, 7.0, 7.5, 30.0, 70.0]
STEPS = st.lists(
    st.tuples(
        st.sampled_from([*["take"] * 8, *["end"] * 4, "die", "stop"]),
        st.integers(0, 3),  # which server
        st.sampled_from(PAUSES),  # before it
        st.sampled_from([1, 5, 40, 75, 80, 200, 500, 599, LIMIT]),
    ),
    max_size=60,
)


def play(steps: Any, delay: float = 0.0) -> list[bool]:
    """Play all steps, and check the law; returns which answers were admitted."""

    async def played() -> list[bool]:
        clock = Clock()
        with pytest.MonkeyPatch.context() as patching:
            patch(patching, clock)
            servers, done = Servers(clock, delay), []
            for kind, index, pause, amount in steps:
                clock.now += pause
                done.append(await servers.act(kind, index, amount))
            servers.check()
            return done

    return asyncio.run(played())


@given(STEPS, st.sampled_from([0.0, 0.0, 0.01, 0.4]))
@settings(max_examples=examples(150), deadline=None)
def test_several_servers_never_take_more_than_the_limit(steps: Any, delay: float) -> None:
    play(steps, delay)


LEASED_AND_EXPIRED = [("take", 0, 0.0, 1), ("take", 1, 7.5, LIMIT), ("take", 0, 0.0, 1)]
SOON_ENOUGH = [("take", 0, 0.0, 500), ("take", 1, 0.0, 5), ("take", 1, 0.0, 75)]
LATE_END = [("take", 0, 0.0, LIMIT), ("end", 0, 60.0, 0), ("take", 1, 0.0, LIMIT), ("take", 0, 0.0, 75)]
STOPPED = [("take", 0, 0.0, 1), ("stop", 0, 0.0, 0), ("take", 1, 0.0, 599), ("take", 0, 0.0, 1)]
SHORTER = [("take", 0, 0.0, LIMIT), ("end", 0, 0.0, 0), ("take", 1, 0.0, 300), ("take", 0, 0.0, 90)]
TWICE = [("take", 0, 0.0, 300)] * 3


@pytest.mark.parametrize(
    ("steps", "done"),
    [
        (LEASED_AND_EXPIRED, [True, True, False]),
        (SOON_ENOUGH, [True, True, True]),
        (LATE_END, [True, False, True, False]),
        (STOPPED, [True, False, True, False]),
        (SHORTER, [True, False, True, True]),
        (TWICE, [True, True, False]),
    ],
)
def test_what_is_admitted(steps: Any, done: list[bool]) -> None:
    assert play(steps) == done


class NeverExpires(Lease):
    @property
    def rest(self) -> float:
        return max(0.0, self._end - self._start) / self._each


class BeginsLate(Lease):
    def add(self, amount: float, at: float, spent: float) -> None:
        super().add(amount, at + 5, spent)


class RestoresWhatHasExpired(Lease):
    def restore(self, amount: float) -> None:
        self._start = monotonic_of(shared_limits)
        self._end = max(self._end, self._start + amount * self._each)


class KeepsWhatItGivesBack(Lease):
    def give_back(self, most: float) -> float:
        return min(most, self.rest)


def monotonic_of(module: Any) -> float:
    return float(module.monotonic())


@pytest.mark.parametrize(
    ("fault", "steps"),
    [
        (NeverExpires, LEASED_AND_EXPIRED),
        (BeginsLate, [("take", 0, 0.0, 1), ("take", 1, 11.0, LIMIT), ("take", 0, 0.0, 10)]),
        (RestoresWhatHasExpired, LATE_END),
        (KeepsWhatItGivesBack, [*SHORTER, ("take", 1, 0.0, 200), ("take", 0, 0.0, 200)]),
    ],
)
def test_the_law_finds_faults_of_leases(
    fault: type[Lease], steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(steps)
    monkeypatch.setattr(shared_limits, "Lease", fault)
    with pytest.raises(AssertionError):
        play(steps)


def test_the_law_finds_a_database_that_lends_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    def generous(full_at: float, now: float, question: Question) -> tuple[float, Taken]:
        return answer(full_at - 1, now, question)

    monkeypatch.setitem(globals(), "answer_of", generous)
    with pytest.raises(AssertionError):
        play([("take", 0, 0.0, LIMIT), ("take", 1, 0.0, 5)])


async def test_one_server_gets_all_of_the_limit(clock: Clock) -> None:
    """Also of one that is small, and what is refilled."""
    for limit in (1, 2, 7, 60, LIMIT, 1_000_003):
        account = server(Database(clock, 0.005), limit)
        count = 0
        while await admitted(account, 1) and count < LIMIT:
            count += 1
            await settled()
        assert count == min(limit, LIMIT)
        clock.now += 61
        assert await admitted(account, limit)


async def test_most_requests_ask_nobody(clock: Clock) -> None:
    database = Database(clock)
    account = server(database)
    for _ in range(500):
        assert await admitted(account, 1)
        await settled()
    assert len(database.asked) < 20
    before = len(database.asked)
    await account.secure(tokens=1)
    assert len(database.asked) == before


async def test_who_is_refused_is_told_when_it_may_come_back(clock: Clock) -> None:
    account = server(Database(clock))
    assert await admitted(account, LIMIT)
    await account.secure(tokens=100)
    with pytest.raises(RateLimitError) as refused:
        account.reserve(100)
    assert refused.value.retry_after == pytest.approx(10)
    clock.now += 9.9
    assert not await admitted(account, 100)
    clock.now += 0.1
    assert await admitted(account, 100)


async def test_what_was_not_used_is_given_back_to_all(clock: Clock) -> None:
    database = Database(clock)
    one, other = server(database), server(database)
    assert await admitted(one, LIMIT)
    one.settle(LIMIT, 100)
    await settled()
    assert len(database.asked) == 2
    assert await admitted(other, 400)
    one.settle(0, 300)  # the length of the answer was not known
    await settled()
    assert other.tokens is not None
    clock.now += 1
    await other.secure(tokens=1)
    assert other.tokens.left == pytest.approx(-200 + RATE)
    assert dict(other.openai_headers())["x-ratelimit-reset-tokens"] == "1m19s"


async def test_who_asks_again_and_again_does_not_make_the_database_work(clock: Clock) -> None:
    database = Database(clock)
    account = server(database, requests_per_minute=3)
    assert await admitted(account, LIMIT)
    asked = len(database.asked)
    for _ in range(100):
        assert not await admitted(account, 20)
        clock.now += 0.01
    assert len(database.asked) - asked <= 2
    clock.now += 1
    assert await admitted(account, 20)


async def test_an_idle_key_asks_nothing(clock: Clock) -> None:
    """And one that is used little, seldom: what is settled goes with the next question."""
    database = Database(clock)
    account = server(database)
    for _ in range(10):
        assert await admitted(account, 5)
        account.settle(5, 6)
        await settled()
    assert len(database.asked) == 2
    clock.now += 600
    await settled()
    assert len(database.asked) == 2


async def test_a_server_that_stops_gives_its_lease_back(clock: Clock) -> None:
    database = Database(clock)
    account = server(database)
    assert await admitted(account, 1)
    await account.close()
    assert await admitted(server(database), LIMIT - 1)


async def test_without_the_database_each_server_goes_on_with_its_part(clock: Clock) -> None:
    database = Database(clock)
    database.servers = 3
    accounts_ = [server(database) for _ in range(3)]
    for account in accounts_:
        assert await admitted(account, 1)
        await settled()
    leases = 3 * LIMIT // 8
    database.hangs = True
    taken = [0, 0, 0, 0]
    for second in range(240):
        clock.now += 1
        for account in accounts_:
            while await admitted(account, 10):
                taken[second // 60] += 10
    assert taken[0] <= LIMIT + leases + 60
    assert 3 * LIMIT - 60 <= sum(taken[1:]) <= 3 * LIMIT + 60
    assert len(database.asked) < 20  # in four minutes
    database.away = database.hangs = False
    clock.now += 2
    assert not await admitted(accounts_[0], LIMIT)  # it is told what was used


async def test_a_database_that_was_never_there(clock: Clock) -> None:
    database = Database(clock)
    database.away = True
    account = server(database, concurrent=2)
    await account.secure(place=True)
    with account:
        assert await admitted(account, LIMIT)
        assert not await admitted(account, LIMIT)
        clock.now += 30
        assert await admitted(account, LIMIT // 2)
    await account.close()


async def test_places_are_asked_for(clock: Clock) -> None:
    database = Database(clock)
    database.places = 1
    account = server(database, concurrent=5)
    await account.secure(place=True)
    with account:
        await account.secure(place=True)
        with pytest.raises(RateLimitError, match="answers under way"), account:
            pass
        database.places = 5
        clock.now += 1
        await account.secure(place=True)
        with account:
            assert database.held == 2
    await account.close()


class PlaceLedger(Database):
    """That of one server, whose places are in a table of all."""

    def __init__(self, clock: Clock, name: str, table: dict[str, tuple[int, float]]) -> None:
        super().__init__(clock)
        self.name = name
        self.table = table

    async def hold(self, owner: str, limit: int, places: int, seconds: float) -> Held:
        await asyncio.sleep(0)
        now = self.clock.now
        others = sum(held for name, (held, until) in self.table.items() if name != self.name and until > now)
        held = max(0, min(places, limit - others))
        self.table[self.name] = held, now + seconds
        await asyncio.sleep(0)
        return Held(held, max(0, limit - others - held), 3)


class Running:
    """Three servers with answers of one key, of which three may run at a time."""

    LIMIT = 3

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.table: dict[str, tuple[int, float]] = {}
        self.started = 0
        self.accounts = [self._start() for _ in range(3)]
        self.running = [0, 0, 0]

    def _start(self) -> Account:
        self.started += 1
        account = Account("ann", "a", Permissions(concurrent=self.LIMIT))
        account.share(PlaceLedger(self.clock, f"server {self.started}", self.table))
        return account

    async def begin(self, index: int) -> bool:
        """An answer begins, if it may."""
        account = self.accounts[index]
        await account.secure(place=True)
        if account is not self.accounts[index]:  # it has died
            return False
        try:
            account.__enter__()
        except RateLimitError:
            return False
        self.running[index] += 1
        assert sum(self.running) <= self.LIMIT, "more run than may"
        return True

    async def act(self, kind: str, index: int) -> None:
        """Play one act, beside which others happen."""
        if kind == "begin":
            await self.begin(index)
        elif kind == "end" and self.running[index]:
            self.running[index] -= 1
            self.accounts[index].__exit__()
        elif kind == "die":
            self.running[index] = 0
            await self.accounts[index].close()  # its tasks end
            self.accounts[index] = self._start()
        elif kind == "later":
            self.clock.now += 5
            for account in self.accounts:
                assert account._places is not None
                async with account._places._asking:
                    if account._places._held:
                        await account._places._hold(account._running)

    async def play(self, steps: Any) -> None:
        """Play all steps, two at a time. In the end all places are there again."""
        for one, other in steps:
            await asyncio.gather(self.act(*one), self.act(*other))
        for index in range(3):
            while self.running[index]:
                await self.act("end", index)
        await settled()
        for _ in range(4):
            await self.act("later", 0)
        assert [await self.begin(1) for _ in range(self.LIMIT)] == [True] * self.LIMIT, "places are lost"
        for account in self.accounts:
            await account.close()


PLACE_STEP = st.tuples(
    st.sampled_from(["begin", "begin", "begin", "end", "end", "die", "later"]), st.integers(0, 2)
)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_limits, "AGAIN_SECONDS", 0)


@given(st.lists(st.tuples(PLACE_STEP, PLACE_STEP), max_size=25))
@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_no_more_answers_run_than_may(at_once: None, steps: Any) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patching:
        patch(patching, clock)
        asyncio.run(_played(clock, steps))


async def _played(clock: Clock, steps: Any) -> None:
    await Running(clock).play(steps)


class KeepsWhileItGivesBack(SharedPlaces):
    """An answer may begin with a place that is just being given back."""

    async def _hold(self, places: int) -> None:
        held = self._held
        asking = asyncio.ensure_future(super()._hold(places))
        await asyncio.sleep(0)
        self._held = held
        await asking


class NeverGivesBack(SharedPlaces):
    """Places that are not used are kept."""

    async def _hold(self, places: int) -> None:
        await super()._hold(max(places, self._held))


@pytest.mark.parametrize("fault", [KeepsWhileItGivesBack, NeverGivesBack])
def test_the_law_finds_faults_of_places(
    at_once: None, monkeypatch: pytest.MonkeyPatch, clock: Clock, fault: type[SharedPlaces]
) -> None:
    monkeypatch.setattr(accounts, "SharedPlaces", fault)
    with pytest.raises(AssertionError):
        asyncio.run(_searched(clock))


async def _searched(clock: Clock) -> None:
    rng = Random(1)
    acts = ["begin", "begin", "begin", "end", "end", "later"]
    for _ in range(200):
        steps = [[(rng.choice(acts), rng.randrange(3)) for _ in range(2)] for _ in range(15)]
        await Running(clock).play(steps)


async def test_who_just_gives_a_place_back_lets_another_have_it(clock: Clock) -> None:
    """Also if its client asks another server at once."""
    table: dict[str, tuple[int, float]] = {}
    one, other = (Account("ann", "a", Permissions(concurrent=1)) for _ in range(2))
    for name, account in (("one", one), ("other", other)):
        account.share(PlaceLedger(clock, name, table))
    for _ in range(5):
        for account in (one, other):
            await account.secure(place=True)
            with account:
                pass
    for account in (one, other):
        await account.close()


async def test_a_share_changes_with_the_file_of_keys(clock: Clock) -> None:
    account = server(Database(clock), concurrent=5)
    kept = account.tokens
    account.change(Permissions(tokens_per_minute=LIMIT, requests_per_minute=3))
    assert account.tokens is kept
    assert isinstance(account.requests, SharedBucket)
    account.change(Permissions())
    assert account.tokens is account.requests is None
    await account.secure(tokens=5, requests=1, place=True)
    with account:
        pass
