"""What must be true of a server at any time: checked after each transaction, and by clients.

A history is the log of one response over time. It does not depend on how the store works: it is read from
the tables, and compared with their earlier state.
"""

import re
from collections.abc import Callable
from itertools import chain
from typing import Any

import msgspec

from antiphon.app.event_log import logged_events
from antiphon.store.records import LogEntry
from simulation.loop import Process, simulated_time

Execute = Callable[..., list[Any]]

RUNNING = ("queued", "in_progress")

_NUMBER = re.compile(rb", number (\w+)\.")


class LawError(AssertionError):
    """Something that must never happen."""


class History:
    """The log of one response. `worker` holds its lease until `until`; `process` is the worker's."""

    def __init__(self, response_id: str, owner: str, background: bool, created_at: float) -> None:
        self.id = response_id
        self.of_batch = response_id.startswith(("msgbatch_", "batch_"))
        """It is a batch of messages, or of the lines of a file, whose log has results."""
        self.results: dict[str, bytes] = {}
        """Of a batch, by the ids of the requests."""
        self.number = ""
        """Of the request."""
        self.owner = owner
        self.background = background
        self.created_at = created_at
        """By the clock of its server."""
        self.ended: float | None = None
        """When that was stored, by no server's clock."""
        self.status = "queued"
        self.worker: str | None = None
        self.until = 0.0
        self.cancel_requested = False
        self.lines: list[bytes] = []
        self.body = b""
        self.deleted = False

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The events of this type."""
        start = b'{"type":"%b"' % kind.encode()
        return [msgspec.json.decode(line) for line in self.lines if line.startswith(start)]

    @property
    def text(self) -> str:
        """Its text."""
        return "".join(event["delta"] for event in self.events("response.output_text.delta"))

    @property
    def compacted(self) -> bool:
        """It has a summary of earlier text."""
        return any(
            event["item"]["type"] == "compaction" for event in self.events("response.output_item.done")
        )

    @property
    def code(self) -> str | None:
        """That of its error."""
        return next((event["code"] for event in self.events("error")), None)


class Histories:
    """Of all responses that were ever stored."""

    def __init__(self, execute: Execute, now: Callable[[], float]) -> None:
        self._execute = execute
        self._now = now
        self.by_id: dict[str, History] = {}
        self.by_number: dict[str, History] = {}
        """Of responses, by the number of the request."""
        self.answered: dict[str, History] = {}
        """The batches that have results, by the ids of their requests."""
        self._workers: dict[str, Process] = {}

    def is_held(self, history: History, process: Process) -> bool:
        """Whether this process holds its lease, according to the tables."""
        return history.worker is not None and self._workers.get(history.worker) is process

    def check(self, process: Process) -> None:
        """A transaction of this process was committed: compare the tables with their earlier state."""
        rows = self._execute(
            "SELECT id, owner, background, created_at, status, worker, lease_until, last_seq,"
            " cancel_requested, body FROM responses"
        )
        there = {row[0] for row in rows}
        for response_id, history in self.by_id.items():
            if response_id not in there:
                history.deleted = True
        for row in rows:
            self._check(process, *row)
        self._check_orphans()

    def _check(
        self,
        process: Process,
        response_id: str,
        owner: str,
        background: bool,
        created_at: float,
        status: str,
        worker: str | None,
        until: float | None,
        last: int,
        cancel: bool,
        body: bytes,
    ) -> None:
        history = self.by_id.get(response_id)
        new = history is None
        if history is None:
            history = self._begin(response_id, owner, bool(background), created_at, body)
        before = history.worker
        if history.status not in RUNNING and not new:
            _law(status == history.status and body == history.body, response_id, "changed after its end")
        if worker is not None and worker != before:
            self._check_claim(process, history, response_id, worker)
        wrote = last + 1 > len(history.lines) or status != history.status
        if wrote and not new and before is not None:
            mine = self._workers.get(before) is process
            _law(mine, response_id, "was written by a server that does not hold its lease")
        if last + 1 != len(history.lines):
            self._read(response_id, history, last)
        if history.ended is None and status not in RUNNING:
            history.ended = self._now()
        history.status, history.worker, history.until = status, worker, until or 0.0
        history.cancel_requested, history.body = bool(cancel), body

    def _begin(
        self, response_id: str, owner: str, background: bool, created_at: float, body: bytes
    ) -> History:
        history = self.by_id[response_id] = History(response_id, owner, background, created_at)
        if not history.of_batch:
            history.number = msgspec.json.decode(body)["metadata"]["asked"]
            if history.number in self.by_number:  # it follows another, and has its settings
                history.number = self._named_in_input(response_id)
            _law(history.number not in self.by_number, response_id, "is stored twice")
            self.by_number[history.number] = history
        return history

    def _named_in_input(self, response_id: str) -> str:
        """The number of the request in the input of a response."""
        rows = self._execute("SELECT payload FROM items WHERE parent = ? AND NOT output", response_id)
        found = [name.decode() for (payload,) in rows for name in _NUMBER.findall(payload)]
        _law(len(found) == 1, response_id, "has the input of several requests, or none")
        return found[0]

    def _check_claim(self, process: Process, history: History, response_id: str, worker: str) -> None:
        """A server has claimed a response: no other may hold it."""
        _law(self._workers.setdefault(worker, process) is process, response_id, "was taken for another")
        if history.worker is not None:
            now = simulated_time()
            _law(history.until <= now, response_id, "was taken while another server held it")

    def _read(self, response_id: str, history: History, last: int) -> None:
        """The log continues without gaps."""
        rows = self._execute(
            "SELECT first_seq, last_seq, events FROM log WHERE response_id = ? AND last_seq >= ?"
            " ORDER BY last_seq",
            response_id,
            len(history.lines),
        )
        for first, end, events in rows:
            _law(first == len(history.lines), response_id, f"event {first} follows {len(history.lines) - 1}")
            lines = logged_events(LogEntry(first, end, events))
            history.lines += lines
            if history.of_batch:
                self._read_results(response_id, history, lines)
            _law(end == len(history.lines) - 1, response_id, "an entry has not all of its events")
        _law(last == len(history.lines) - 1, response_id, f"{last} events are counted")

    def _read_results(self, response_id: str, history: History, lines: list[bytes]) -> None:
        """Each request has one result."""
        for line in lines:
            read = msgspec.json.decode(line)
            if "result" in read:  # else the start of calls of its tools
                of_lines = "progress" in read
                name = (read["result"] if of_lines else read)["custom_id"]
                _law(name not in self.answered, response_id, f"has two results of {name}")
                self.answered[name], history.results[name] = history, line
            if "progress" in read:
                counted, there = sum(read["progress"][:2]), len(history.results)
                _law(counted == there, response_id, f"has {there} results, and counts {counted}")

    def _check_orphans(self) -> None:
        for table, column in (("log", "response_id"),):
            orphans = self._execute(
                f"SELECT {column} FROM {table} WHERE {column} NOT IN (SELECT id FROM responses) LIMIT 1"  # noqa: S608
            )
            _law(not orphans, str(orphans), f"is deleted, but its rows in '{table}' are not")

    def check_stored(self) -> None:
        """Every log still has all of its entries, unchanged and numbered."""
        for response_id, history in self.by_id.items():
            for number, line in enumerate([] if history.of_batch else history.lines):
                event = msgspec.json.decode(line)
                _law(event["sequence_number"] == number, response_id, f"event {number} has another number")
            if not history.deleted:
                rows = self._execute(
                    "SELECT first_seq, last_seq, events FROM log WHERE response_id = ? ORDER BY last_seq",
                    response_id,
                )
                stored = list(chain.from_iterable(logged_events(LogEntry(*row)) for row in rows))
                _law(stored == history.lines, response_id, "has another log than was written")


def _law(holds: bool, response_id: str, what: str) -> None:
    if not holds:
        raise LawError(f"{response_id} {what}")


def law(holds: bool, what: str) -> None:
    """Raise LawError unless it holds."""
    if not holds:
        raise LawError(what)
