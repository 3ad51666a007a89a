"""Accounts: what the holder of an API key may do on this server, and how much of the limits is left.

Each key has one `Account` as long as the server runs. It is found in the `Observation` of a request: `Models`
checks there which models the key may use, `AnswerSource` reserves a place and tokens, and when the request is
over, the reservation is replaced by the tokens really used. A request without a key has the account `ANYONE`,
which has no restrictions.

A limit per minute is a `Bucket`. It fills continuously, so nobody has to wait for the start of a minute.
Answers whose length was not known beforehand may overdraw it; later answers then wait.

The limits are those of this server, until `share` says where those of all servers of a database are. Then
`secure`, which may ask there, comes before `admit`, `reserve`, and a place.
"""

from collections.abc import AsyncIterator, Iterator, Set
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from math import ceil
from time import monotonic, time
from typing import Annotated, Literal

from msgspec import Meta, Struct

from antiphon.core.errors import RateLimitError, RequestError
from antiphon.core.limits import LIMIT_EXCEEDED
from antiphon.core.shared_limits import MINUTE, Ledger, SharedBucket, SharedPlaces

AccountScope = Literal["inference", "stored", "metrics", "admin"]
"""What a key may be used for: answers, stored objects, `/metrics`, changes of the server itself."""
CLIENT_SCOPES: frozenset[AccountScope] = frozenset({"inference", "stored"})
LIMIT_HEADERS = ("limit", "remaining", "reset")
"""The names that the headers have for each limit."""
LONGEST_WAIT = 60
"""The longest `Retry-After`, in seconds: OpenAI's give up above 120, Anthropic's wait for as long."""

_PerMinute = Annotated[int, Meta(ge=1)]


class Permissions(Struct, frozen=True):
    """The permissions and limits of a key.

    `models` are names and patterns, none for all; `expires` is in UNIX seconds.
    """

    models: tuple[str, ...] = ()
    scopes: Set[AccountScope] = CLIENT_SCOPES
    expires: float | None = None
    requests_per_minute: _PerMinute | None = None
    tokens_per_minute: _PerMinute | None = None
    concurrent: _PerMinute | None = None


class Bucket:
    """A limit per minute. Times are those of `monotonic`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._left = float(limit)
        self._at = monotonic()

    @property
    def left(self) -> float:
        """How much is left now; negative if it is overdrawn."""
        now = monotonic()
        self._left = min(self.limit, self._left + (now - self._at) * self.limit / MINUTE)
        self._at = now
        return self._left

    def take(self, amount: float) -> None:
        """Take an amount, available or not; a negative one is given back."""
        self._left = min(self.limit, self.left - amount)

    def seconds(self, amount: float) -> float:
        """The seconds until the amount is available; 0 if it is."""
        return max(0.0, (amount - self.left) * MINUTE / self.limit)


class Account:
    """The account of a key: its `name`, for people, and its `owner`, the identity of its stored objects.

    As a context manager it holds a place for one answer while a block runs.
    """

    def __init__(self, name: str, owner: str, permissions: Permissions) -> None:
        self.name = name
        self.owner = owner
        self._running = 0
        self._ledger: Ledger | None = None
        self._places: SharedPlaces | None = None
        self.requests: Bucket | SharedBucket | None = None
        self.tokens: Bucket | SharedBucket | None = None
        self.change(permissions)

    def change(self, permissions: Permissions) -> None:
        """Apply these permissions from now on. The use of a limit that stays the same is kept."""
        self.permissions = permissions
        self.requests = self._changed(self.requests, "requests", permissions.requests_per_minute)
        self.tokens = self._changed(self.tokens, "tokens", permissions.tokens_per_minute)
        if self._ledger is not None:
            self._places = self._changed_places(self._ledger, permissions.concurrent)

    def share(self, ledger: Ledger) -> None:
        """Share the limits with all servers of a database."""
        self._ledger = ledger
        self.requests = self.tokens = None
        self.change(self.permissions)

    def _changed(
        self, bucket: "Bucket | SharedBucket | None", kind: str, limit: int | None
    ) -> "Bucket | SharedBucket | None":
        if limit is None or (bucket is not None and bucket.limit == limit):
            return None if limit is None else bucket
        return Bucket(limit) if self._ledger is None else SharedBucket(self._ledger, self.owner, kind, limit)

    def _changed_places(self, ledger: Ledger, limit: int | None) -> SharedPlaces | None:
        if limit is None:
            return None
        places = self._places or SharedPlaces(ledger, self.owner, limit)
        places.limit = limit
        return places

    async def secure(self, *, requests: int = 0, tokens: int = 0, place: bool = False) -> None:
        """Ask for what is needed next, if the limits are shared, and this server has not as much.

        What needs it has to follow at once. It is refused there if it was not given.
        """
        if self._ledger is None:
            return
        if place and self._places is not None:
            await self._places.secure()
        if requests and isinstance(self.requests, SharedBucket):
            await self.requests.secure(requests)
        if tokens and isinstance(self.tokens, SharedBucket) and tokens <= self.tokens.limit:
            await self.tokens.secure(tokens)

    async def close(self) -> None:
        """Give back what is shared and not used."""
        if self._places is not None:
            self._places.close()
        for bucket in (self.requests, self.tokens):
            if isinstance(bucket, SharedBucket):
                await bucket.close()

    @property
    def expired(self) -> bool:
        """The time of the key is over."""
        return self.permissions.expires is not None and time() >= self.permissions.expires

    def may_use(self, *names: str) -> bool:
        """Whether the key may use a model with one of these names."""
        patterns = self.permissions.models
        return not patterns or any(fnmatchcase(name, pattern) for name in names for pattern in patterns)

    # Limits: each method raises RateLimitError if nothing is left

    def admit(self) -> None:
        """Count a request."""
        if self.requests is not None:
            self._check(self.requests, 1, "requests")
            self.requests.take(1)

    def __enter__(self) -> None:
        limit = self.permissions.concurrent
        if limit is not None and (self._running >= limit or not (self._places is None or self._places.free)):
            message = (
                f"The key '{self.name}' has {limit} answers under way, as many as it may have at a time."
            )
            raise RateLimitError(f"{message} Try again when one has ended.", retry_after=1)
        self._count(1)

    def __exit__(self, *_: object) -> None:
        self._count(-1)

    def _count(self, more: int) -> None:
        self._running += more
        if self._places is not None:
            self._places.count(self._running)

    def reserve(self, tokens: int) -> int:
        """Reserve the tokens that an answer may need; returns how many.

        Raises RequestError if it can never have them.
        """
        if self.tokens is None:
            return 0
        if tokens > self.tokens.limit:
            message = (
                f"The prompt and max_tokens have {tokens} tokens, more than the {self.tokens.limit} that the "
                f"key '{self.name}' may use per minute. Lower max_tokens, or shorten the conversation."
            )
            raise RequestError(message, param="max_tokens", code=LIMIT_EXCEEDED)
        self._check(self.tokens, tokens, "tokens")
        self.tokens.take(tokens)
        return tokens

    def settle(self, reserved: int, used: int) -> None:
        """Account for the tokens that were really used, in place of those that were taken."""
        if self.tokens is not None:
            self.tokens.take(used - reserved)

    @asynccontextmanager
    async def charge(self, tokens: int) -> AsyncIterator["Charge"]:
        """A place for work that takes about so many tokens, which says in the end how many it took.

        Work that failed took none; work that is cancelled was begun, and took what it was expected to. Raises
        RateLimitError, and RequestError as `reserve` does.
        """
        await self.secure(place=True)
        with self:
            await self.secure(tokens=tokens)
            reserved, charge = self.reserve(tokens), Charge(tokens)
            try:
                yield charge
            except Exception:
                charge.tokens = 0
                raise
            finally:
                self.settle(reserved, charge.tokens)

    def _check(self, bucket: Bucket | SharedBucket, amount: int, what: str) -> None:
        if wait := bucket.seconds(amount):
            wait = min(wait, LONGEST_WAIT)
            message = f"The key '{self.name}' may use {bucket.limit} {what} per minute."
            message += f" Try again in {ceil(wait)} seconds."
            raise RateLimitError(message, retry_after=wait)

    @property
    def in_background(self) -> "Account":
        """The account for background work: it is not refused, but its tokens are counted."""
        return _Background(self)

    @property
    def going_on(self) -> "Account":
        """The account for an answer that another process of the server has begun: it is not refused.

        It takes a place. Its tokens are counted as far as they are more than `taken_over`.
        """
        return _GoingOn(self)

    def taken_over(self, reserved: int) -> int:
        """Of the tokens that the other process has reserved, those that still count: if limits are shared."""
        return reserved if isinstance(self.tokens, SharedBucket) else 0

    # Headers

    def openai_headers(self) -> Iterator[tuple[str, str]]:
        """What is left, in the headers that OpenAI's clients read."""
        for what, bucket in self._buckets():
            yield f"x-ratelimit-limit-{what}", str(bucket.limit)
            yield f"x-ratelimit-remaining-{what}", str(max(0, int(bucket.left)))
            yield f"x-ratelimit-reset-{what}", _duration(bucket.seconds(bucket.limit))

    def anthropic_headers(self) -> Iterator[tuple[str, str]]:
        """The same for Anthropic's."""
        for what, bucket in self._buckets():
            full = datetime.now(UTC) + timedelta(seconds=bucket.seconds(bucket.limit))
            yield f"anthropic-ratelimit-{what}-limit", str(bucket.limit)
            yield f"anthropic-ratelimit-{what}-remaining", str(max(0, int(bucket.left)))
            yield f"anthropic-ratelimit-{what}-reset", full.strftime("%Y-%m-%dT%H:%M:%SZ")

    def _buckets(self) -> Iterator[tuple[str, Bucket | SharedBucket]]:
        if self.requests is not None:
            yield "requests", self.requests
        if self.tokens is not None:
            yield "tokens", self.tokens


class Charge(Struct):
    """The tokens that a piece of work takes."""

    tokens: int


class _Background(Account):
    """See `Account.in_background`."""

    def __init__(self, account: Account) -> None:
        super().__init__(
            account.name, account.owner, Permissions(account.permissions.models, account.permissions.scopes)
        )
        self._account = account

    def settle(self, reserved: int, used: int) -> None:
        self._account.settle(reserved, used)


class _GoingOn(_Background):
    """See `Account.going_on`."""

    def __enter__(self) -> None:
        self._account._count(1)

    def __exit__(self, *_: object) -> None:
        self._account._count(-1)

    def taken_over(self, reserved: int) -> int:
        return self._account.taken_over(reserved)

    def settle(self, reserved: int, used: int) -> None:
        super().settle(min(reserved, used), used)  # what was not used has come back in time


def _duration(seconds: float) -> str:
    """A duration as OpenAI writes it: `12ms`, `1s`, `6m0s`."""
    if seconds < 1:
        return f"{ceil(seconds * 1000)}ms"
    minutes, rest = divmod(ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


ANYONE = Account("", "anyone", Permissions())
"""The account of all requests to a server without keys."""
