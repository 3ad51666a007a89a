"""Limits of a key that several servers share: no more than the limit, whatever they do, and whoever dies."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core import accounts, shared_limits
from antiphon.core.accounts import Account, Permissions
from antiphon.core.errors import RateLimitError, StoreError
from antiphon.core.shared_limits import FLUSH_SECONDS, Held, Question, SharedBucket, Taken
from antiphon.store.key_limits import answer
from tests.run.support import until
from tests.search import examples

LIMIT = 600
RATE = LIMIT / 60
EPOCH = 1_800_000_000.0
"""The database's time at the beginning."""


class Clock:
    now = 100.0


class Database:
    """A ledger in memory: `delay` is how long an answer takes each way, `away` whether there is one."""

    def __init__(self, clock: Clock, delay: float = 0.0) -> None:
        self.clock = clock
        self.delay = delay
        self.away = False
        self.asked: list[Question] = []
        self.full_at: dict[tuple[str, str], float] = {}
        self.servers = 1
        self.places = 100
        self.held = 0

    async def take(self, question: Question) -> Taken:
        if self.away:
            raise StoreError
        self.asked.append(question)
        self.clock.now += self.delay
        row = (question.owner, question.kind)
        now = EPOCH + self.clock.now
        self.full_at[row], taken = answer(self.full_at.get(row, 0.0), now, question)
        self.clock.now += self.delay
        return Taken(taken.amount, taken.start, taken.left, self.servers)

    async def hold(self, owner: str, limit: int, places: int, seconds: float) -> Held:
        if self.away:
            raise StoreError
        self.held = min(places, self.places)
        return Held(self.held, self.servers)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    patch(monkeypatch, clock)
    return clock


def patch(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    for module in (accounts, shared_limits):
        monkeypatch.setattr(module, "monotonic", lambda: clock.now)


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


async def settled(turns: int = 5) -> None:
    """Let what runs in the background ask."""
    for _ in range(turns):
        await asyncio.sleep(0)


def check_law(taken: list[tuple[float, float]], slack: float = 0.0) -> None:
    """In any time no more was taken than the limit, and what was refilled in it."""
    for first, (begin, _) in enumerate(taken):
        total = 0.0
        for moment, amount in taken[first:]:
            total += amount
            assert total <= LIMIT + RATE * (moment - begin + slack) + 1e-3, (begin, moment)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 3),  # which server
        st.sampled_from([0.0, 0.0, 0.1, 1.0, 2.0, 7.0, 30.0, 70.0]),  # the pause before
        st.sampled_from([1, 5, 40, 75, 80, 200, 599, LIMIT]),
        st.sampled_from([False] * 9 + [True]),  # it dies, and another starts
    ),
    max_size=60,
)


def play(steps: Any, delay: float, take: Callable[..., Any]) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patching:
        patch(patching, clock)
        asyncio.run(take(steps, clock, Database(clock, delay)))


@given(STEPS, st.sampled_from([0.0, 0.0, 0.01, 0.4]))
@settings(max_examples=examples(150), deadline=None)
def test_several_servers_never_take_more_than_the_limit(steps: Any, delay: float) -> None:
    async def take(steps: Any, clock: Clock, database: Database) -> None:
        servers = [server(database) for _ in range(4)]
        taken: list[tuple[float, float]] = []
        for index, pause, amount, dies in steps:
            clock.now += pause
            if dies:
                servers[index] = server(database)
            if await admitted(servers[index], amount):
                taken.append((clock.now, amount))
            await settled()
        check_law(taken, delay * 2)

    play(steps, delay, take)


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


async def test_a_server_whose_share_lies_at_another_asks_before_it_refuses(clock: Clock) -> None:
    database = Database(clock)
    one, other = server(database), server(database)
    assert await admitted(one, 5)  # with a lease of 75
    assert await admitted(other, 520)
    assert await admitted(one, 60)
    assert not await admitted(other, 60)


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


async def test_what_was_not_used_is_given_back_to_all(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_limits, "FLUSH_SECONDS", 0)
    assert FLUSH_SECONDS > 0
    database = Database(clock)
    one, other = server(database), server(database)
    assert await admitted(one, LIMIT)
    one.settle(LIMIT, 100)
    asked = len(database.asked)
    await until(lambda: len(database.asked) > asked)
    assert await admitted(other, 500)
    one.settle(0, 300)  # the length of the answer was not known
    asked = len(database.asked)
    await until(lambda: len(database.asked) > asked)
    assert other.tokens is not None
    await other.secure(tokens=1)
    assert other.tokens.left == pytest.approx(-300)
    assert dict(other.openai_headers())["x-ratelimit-reset-tokens"] == "1m30s"


async def test_without_the_database_each_server_goes_on_with_its_part(clock: Clock) -> None:
    database = Database(clock)
    database.servers = 3
    accounts_ = [server(database) for _ in range(3)]
    for account in accounts_:
        assert await admitted(account, 1)
        await settled()
    database.away = True
    taken = 0
    for second in range(240):
        clock.now += 1
        if second == 60:
            taken = 0
        for account in accounts_:
            while await admitted(account, 10):
                taken += 10
    assert 3 * LIMIT - 60 <= taken <= 3 * LIMIT + 60  # of three minutes
    database.away = False
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


async def test_places_are_asked_for_and_given_back(clock: Clock) -> None:
    database = Database(clock)
    database.places = 1
    account = server(database, concurrent=5)
    await account.secure(place=True)
    with account:
        await account.secure(place=True)
        with pytest.raises(RateLimitError, match="answers under way"), account:
            pass
        database.places = 5
        await account.secure(place=True)
        with account:
            assert database.held == 2
    await account.close()
    assert database.held == 0


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
