"""What keys may use in a minute: buckets, reservations, and what is settled."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core import accounts
from antiphon.core.accounts import ANYONE, Account, Bucket, Permissions
from antiphon.core.errors import EngineError, RateLimitError, RequestError


class Clock:
    """A clock that is set."""

    now = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(accounts, "monotonic", lambda: clock.now)
    return clock


def test_a_bucket_fills_evenly(clock: Clock) -> None:
    bucket = Bucket(60)
    bucket.take(60)
    assert (bucket.left, bucket.seconds(1), bucket.seconds(30)) == (0, 1, 30)
    clock.now += 30
    assert (bucket.left, bucket.seconds(30)) == (30, 0)
    clock.now += 1000
    assert bucket.left == 60


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 50)), max_size=50))
def test_no_more_is_taken_than_there_was_time_for(steps: list[tuple[float, int]]) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accounts, "monotonic", lambda: clock.now)
        bucket, taken = Bucket(60), 0
        for pause, amount in steps:
            clock.now += pause
            if not bucket.seconds(amount):
                bucket.take(amount)
                taken += amount
            assert taken <= 60 + (clock.now - 100) + 1e-6


def test_what_was_reserved_is_settled(clock: Clock) -> None:
    account = Account("ann", "a", Permissions(tokens_per_minute=100))
    assert account.tokens is not None

    account.settle(account.reserve(80), 30)
    assert account.tokens.left == 70
    account.settle(account.reserve(10), 150)  # the length of the answer was unknown
    assert account.tokens.left == -80
    with pytest.raises(RateLimitError, match=r"'ann' may use 100 tokens per minute.*54 seconds") as refused:
        account.reserve(10)
    assert refused.value.retry_after == pytest.approx(54)
    clock.now += 54
    assert account.reserve(10) == 10


def test_nobody_is_told_to_wait_for_more_than_a_minute(clock: Clock) -> None:
    account = Account("ann", "a", Permissions(tokens_per_minute=10))
    account.settle(0, 1000)
    with pytest.raises(RateLimitError) as refused:
        account.reserve(1)
    assert refused.value.retry_after == 60


def test_what_can_never_be_is_no_matter_of_waiting() -> None:
    with pytest.raises(RequestError, match="Lower max_tokens") as refused:
        Account("ann", "a", Permissions(tokens_per_minute=10)).reserve(11)
    assert (refused.value.status, refused.value.param) == (400, "max_tokens")


def test_requests_and_answers_at_a_time(clock: Clock) -> None:
    account = Account("ann", "a", Permissions(requests_per_minute=2, concurrent=2))
    account.admit()
    account.admit()
    with pytest.raises(RateLimitError, match="2 requests per minute"):
        account.admit()
    with ExitStack() as answers:
        answers.enter_context(account)
        answers.enter_context(account)
        with pytest.raises(RateLimitError, match="2 answers under way"), account:
            pass
    with account:
        pass


def test_work_in_the_background_is_not_refused_but_counts() -> None:
    account = Account("ann", "a", Permissions(("small",), tokens_per_minute=100, concurrent=1))
    background = account.in_background
    with account, background:
        assert background.reserve(1000) == 0
    background.settle(0, 60)
    assert account.tokens is not None
    assert account.tokens.left == pytest.approx(40, abs=1)
    assert (background.may_use("small"), background.may_use("large")) == (True, False)


def test_new_rules_leave_what_was_used(clock: Clock) -> None:
    account = Account("ann", "a", Permissions(requests_per_minute=10))
    account.admit()
    account.change(Permissions(requests_per_minute=10, tokens_per_minute=5))
    assert dict(account.openai_headers()) == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "9",
        "x-ratelimit-reset-requests": "6s",
        "x-ratelimit-limit-tokens": "5",
        "x-ratelimit-remaining-tokens": "5",
        "x-ratelimit-reset-tokens": "0ms",
    }
    account.change(Permissions())
    assert dict(account.openai_headers()) == dict(ANYONE.anthropic_headers()) == {}


@pytest.mark.parametrize(("used", "written"), [(100, "1m40s"), (60, "1m0s"), (59, "59s"), (0.5, "500ms")])
def test_durations_are_written_as_openai_does(clock: Clock, used: float, written: str) -> None:
    account = Account("ann", "a", Permissions(tokens_per_minute=60))
    account.settle(0, used)  # type: ignore[arg-type]
    assert dict(account.openai_headers())["x-ratelimit-reset-tokens"] == written


def test_an_answer_that_goes_on_is_not_refused_and_counts(clock: Clock) -> None:
    account = Account("ann", "a", Permissions(concurrent=1, tokens_per_minute=100, requests_per_minute=1))
    account.admit()
    going_on = account.going_on
    going_on.admit()
    with account, going_on:
        pass
    with going_on, pytest.raises(RateLimitError):
        account.__enter__()
    assert account.tokens is not None
    assert (going_on.reserve(1000), going_on.taken_over(80)) == (0, 0)  # the bucket of another process
    for reserved, used, left in ((0, 30, 70), (80, 30, 70), (80, 90, 60)):
        going_on.settle(reserved, used)
        assert account.tokens.left == left


def test_anthropic_is_told_when(clock: Clock) -> None:
    headers = dict(Account("ann", "a", Permissions(requests_per_minute=5)).anthropic_headers())
    assert headers.pop("anthropic-ratelimit-requests-reset").endswith("Z")
    assert headers == {
        "anthropic-ratelimit-requests-limit": "5",
        "anthropic-ratelimit-requests-remaining": "5",
    }


def test_patterns_of_models() -> None:
    account = Account("ann", "a", Permissions(("small", "qwen*")))
    names = ["small", "qwen3", "large", "smaller"]
    assert [account.may_use(name) for name in names] == [True, True, False, False]
    assert account.may_use("large", "qwen3")
    assert ANYONE.may_use("whatever")


async def test_what_work_took_is_charged(clock: Clock) -> None:
    """What failed took nothing; what is cancelled was begun."""
    account = Account("ann", "a", Permissions(tokens_per_minute=100, concurrent=1))
    assert account.tokens is not None
    async with account.charge(40) as charge:
        assert account.tokens.left == 60
        charge.tokens = 10
    assert account.tokens.left == 90
    with pytest.raises(EngineError):
        async with account.charge(40):
            raise EngineError
    assert account.tokens.left == 90
    with pytest.raises(asyncio.CancelledError):
        async with account.charge(40):
            raise asyncio.CancelledError
    assert account.tokens.left == 50
    async with account.charge(1):
        with pytest.raises(RateLimitError, match="answers under way"):
            async with account.charge(1):
                pass
    with pytest.raises(RateLimitError):
        async with account.charge(60):
            pass
    async with account.charge(1):  # nothing keeps its place
        pass
