"""The table of API keys: those of options, and those of a file that can be changed while the server runs.

    [[keys]]
    name = "ann"
    hash = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
    models = ["qwen*"]
    tokens_per_minute = 100_000

A key is identified by the SHA-256 of its value; nothing else of it is kept. Objects that a request stores
belong to the `owner` of its key, the beginning of the hash of its first value: so a value means the same in
options and in files, and a name with several values, for rotation, is one owner.

To add a setting of keys: a field of `KeyEntry`, and of `Rules` in `core/accounts.py`, checked where it
applies; `tests/app/test_keys.py`, `tests/http/test_keys.py`; the table in `docs/operations.md`.
"""

import tomllib
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, date, datetime, time
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import msgspec
import structlog
from msgspec import Meta, Struct

from antiphon.core.accounts import ANYONE, CLIENT_SCOPES, Account, AccountScope, Permissions
from antiphon.core.errors import AntiphonError, StoreError
from antiphon.core.shared_limits import Ledger

log = structlog.get_logger(__name__)

OPTION_SCOPES: frozenset[AccountScope] = CLIENT_SCOPES | {"metrics"}
"""The scopes of the keys of --api-key."""
ADMIN_SCOPES: frozenset[AccountScope] = frozenset({"admin"})
"""The scopes of the keys of --admin-key."""
OWNER = 32
"""Characters of an owner."""
_SHORT = 8
"""Characters of the hash that are the name of a key without one."""
_HASH = r"^(sha256:)?[0-9a-fA-F]{64}$"
_VALUE = r"^[!-~]+$"

_Text = Annotated[str, Meta(min_length=1)]
_Hash = Annotated[str, Meta(pattern=_HASH)]
_Value = Annotated[str, Meta(pattern=_VALUE)]
_Count = Annotated[int, Meta(ge=1)]


class KeyEntry(Struct, forbid_unknown_fields=True):
    """One key of the file. It has either `hash` or `value`, each of which may be a list of valid ones.

    `identity` is the hash of the first value of the key, which is no longer valid.
    """

    name: _Text
    hash: _Hash | list[_Hash] = []
    value: _Value | list[_Value] = []
    identity: _Hash | None = None
    models: tuple[_Text, ...] = ()
    scopes: frozenset[AccountScope] = CLIENT_SCOPES
    expires: Any = None  # msgspec supports no union of dates and times
    requests_per_minute: _Count | None = None
    tokens_per_minute: _Count | None = None
    concurrent: _Count | None = None

    def digests(self) -> list[str]:
        """The hashes of all values, in their order. Raises ValueError if there are none."""
        hashes = [text.removeprefix("sha256:").lower() for text in _listed(self.hash)]
        digests = hashes + [digest(text) for text in _listed(self.value)]
        if not digests:
            raise ValueError(f'the key "{self.name}" has neither a hash nor a value.')
        return digests

    def permissions(self) -> Permissions:
        """The permissions of the account. Raises ValueError."""
        until = self.expires
        if until is not None and not isinstance(until, date):
            raise ValueError(
                f'expires of the key "{self.name}" is not a date: write 2026-12-31, without quotes.'
            )
        if until is not None and not isinstance(until, datetime):
            until = datetime.combine(until, time())
        if until is not None and until.tzinfo is None:
            until = until.replace(tzinfo=UTC)
        return Permissions(
            self.models,
            self.scopes,
            None if until is None else until.timestamp(),
            self.requests_per_minute,
            self.tokens_per_minute,
            self.concurrent,
        )


class KeyFile(Struct, forbid_unknown_fields=True):
    """The file."""

    keys: list[KeyEntry]


class KeyTable:
    """Finds the account of a key. `guarded`: requests without a key are refused.

    Raises AntiphonError for a file that cannot be used.
    """

    def __init__(
        self, keys: Iterable[str] = (), admin_keys: Iterable[str] = (), file: Path | None = None
    ) -> None:
        keys = tuple(keys)
        self.guarded = bool(keys) or file is not None
        self._file = file
        self._ledger: Ledger | None = None
        self._fixed: dict[str, Account] = {}  # those of the options, by hash
        for values, scopes in ((keys, OPTION_SCOPES), (admin_keys, ADMIN_SCOPES)):
            for value in values:
                self._add(digest(value), scopes)
        self._by_name: dict[str, Account] = {}  # those of the file, by name
        self._by_hash = dict(self._fixed)
        if file is not None:
            self._read(file)

    def _add(self, hashed: str, scopes: frozenset[AccountScope]) -> None:
        owner = hashed[:OWNER]
        account = self._fixed.setdefault(
            hashed, Account(owner[:_SHORT], owner, Permissions(scopes=frozenset()))
        )
        account.change(Permissions(scopes=scopes | account.permissions.scopes))

    def share(self, ledger: Ledger) -> None:
        """Share the limits of all keys with the other servers of a database."""
        self._ledger = ledger
        for account in self._by_hash.values():
            account.share(ledger)

    async def close(self) -> None:
        """Give back what is shared and not used."""
        for account in dict.fromkeys(self._by_hash.values()):
            await account.close()
        if self._ledger is not None:
            with suppress(StoreError):  # it will be noticed that this server asks no more
                await self._ledger.leave()

    @property
    def administered(self) -> bool:
        """There is a key for changes of the server itself."""
        return any("admin" in account.permissions.scopes for account in self._by_hash.values())

    def find(self, value: str) -> Account | None:
        """The account of a key, None if it is unknown.

        The time that this takes depends on its hash at most.
        """
        return self._by_hash.get(digest(value))

    def of_owner(self, owner: str) -> Account:
        """The account of an owner; `ANYONE` if it has no key any more."""
        return next((account for account in self._by_hash.values() if account.owner == owner), ANYONE)

    def reload(self) -> None:
        """Read the file again. If it is invalid, nothing changes, and the reason is logged."""
        if self._file is None:
            return
        try:
            self._read(self._file)
        except AntiphonError as error:
            log.error("the keys stay as they are", why=error.message)  # noqa: TRY400 - one line is enough
        else:
            log.info("keys read", file=str(self._file), keys=len(self._by_name))

    def _read(self, file: Path) -> None:
        try:
            entries = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), KeyFile).keys
            identities, names_by_hash = self._entries_by_name(entries)
        except OSError as error:
            raise AntiphonError(f"Cannot read the keys in {file}: {error.strerror}.") from error
        except (ValueError, msgspec.ValidationError) as error:  # also of TOML, and of UTF-8
            raise AntiphonError(f"Cannot use the keys in {file}: {_explained(error)}") from error
        for name, (owner, permissions) in identities.items():
            account = self._by_name.get(name)
            if account is not None and account.owner != owner:
                log.warning("a key has another owner now, which cannot access what was stored", key=name)
            if account is None or account.owner != owner:
                self._by_name[name] = Account(name, owner, permissions)
                if self._ledger is not None:
                    self._by_name[name].share(self._ledger)
            else:
                account.change(permissions)
        self._by_name = {name: self._by_name[name] for name in identities}
        self._by_hash = self._fixed | {hashed: self._by_name[name] for hashed, name in names_by_hash.items()}

    def _entries_by_name(
        self, entries: Iterable[KeyEntry]
    ) -> tuple[dict[str, tuple[str, Permissions]], dict[str, str]]:
        """The owner and the permissions of each name, and the name of each hash. Raises ValueError."""
        identities: dict[str, tuple[str, Permissions]] = {}
        names_by_hash: dict[str, str] = {}
        for entry in entries:
            if entry.name in identities:
                raise ValueError(f'two keys have the name "{entry.name}". Give one several hashes instead.')
            hashes = entry.digests()
            identity = (entry.identity or hashes[0]).removeprefix("sha256:").lower()
            identities[entry.name] = identity[:OWNER], entry.permissions()
            for hashed in hashes:
                if hashed in names_by_hash or hashed in self._fixed:
                    raise ValueError(f'a value of the key "{entry.name}" is also a value of another key.')
                names_by_hash[hashed] = entry.name
        if not identities:
            raise ValueError("there are none.")
        return identities, names_by_hash


def digest(value: str) -> str:
    """The hash of a key."""
    return sha256(value.encode()).hexdigest()


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _explained(error: Exception) -> str:
    """The reason for an error, as a sentence."""
    text = str(error)
    text = text.replace(f"matching regex '{_HASH}'", "of 64 hexadecimal digits")
    text = text.replace(f"matching regex '{_VALUE}'", "of printable ASCII without spaces")
    return f"{text.rstrip('.')}."
