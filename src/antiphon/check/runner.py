"""Plays checks against a server, and writes what came of them: for a terminal, as JSON, and as Markdown.

Whatever a server sends, each check ends: its answers are bounded (`client.py`), and what no check can read is
a failure. All of them end, too: those for which no time is left are not done. What a check has stored on the
server is deleted when it has ended.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from antiphon import __version__
from antiphon.check.chat import CHAT, MODELS
from antiphon.check.checks import Check, Outcome, Unpassed, shown
from antiphon.check.client import Server
from antiphon.check.decisions import DECISIONS, SYSTEMONE
from antiphon.check.messages import MESSAGES
from antiphon.check.responses import CONVERSATIONS, RESPONSES
from antiphon.core.errors import AntiphonError
from antiphon.core.untrusted_json import UNREADABLE, decode_untrusted
from antiphon.engines.http_client import HttpError

TABLES = (MODELS, CHAT, RESPONSES, CONVERSATIONS, MESSAGES, DECISIONS, SYSTEMONE)
CHECKS = tuple(check for table in TABLES for check in table.checks)

UNEXPECTED = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError)
"""What reading an answer of a shape that nobody has thought of may raise."""


_NO_TIME = "the time for all checks was over (--total-timeout)"


class UnusableError(AntiphonError):
    """Nothing can be checked: the command line is wrong, or there is no server."""


class Options(Struct, kw_only=True):
    """The options of `antiphon check`."""

    url: str
    model: str | None = None
    key: str | None = None
    apis: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    seconds: float = 60
    total_seconds: float = 1800
    name: str | None = None
    json: Path | None = None
    markdown: Path | None = None


class Result(Struct):
    """What came of a check."""

    id: str
    api: str
    title: str
    outcome: Outcome
    evidence: str
    means: str
    source: str
    seconds: float


class Report(Struct):
    """What came of all checks of a server."""

    name: str
    url: str
    model: str
    date: str
    antiphon: str
    counts: dict[str, int]
    checks: list[Result]


def key_of(key: str | None, variable: str | None, environment: Mapping[str, str]) -> str | None:
    """The key, or that in an environment variable. Raises UnusableError."""
    if variable is None:
        return key
    if not environment.get(variable):
        raise UnusableError(f"--api-key-env: the environment has no {variable}.")
    return environment[variable]


def names_of(text: str | None) -> tuple[str, ...]:
    """The names in a list with commas."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def run(options: Options, out: TextIO) -> int:
    """Play the checks, print and write what came of them; 1 if one has failed, or is not done.

    Raises UnusableError.
    """
    if not options.url:
        raise UnusableError("Name the URL of a server, such as http://127.0.0.1:8000/v1.")
    for name, seconds in (("--timeout", options.seconds), ("--total-timeout", options.total_seconds)):
        if not 0 < seconds < math.inf:
            raise UnusableError(f"{name} has to be a number of seconds above 0.")
    chosen = select(options.apis, options.only)
    for path in filter(None, (options.json, options.markdown)):
        if path.is_dir() or not path.parent.is_dir():
            raise UnusableError(f"{path} cannot be written: name a file in a folder that exists.")
    report = asyncio.run(_checked(options, chosen))
    print("\n".join(lines(report)), file=out)
    _write(options.json, msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    _write(options.markdown, ("\n".join(markdown(report)) + "\n").encode())
    outcomes = {result.outcome for result in report.checks}
    if outcomes == {Outcome.NOT_OFFERED}:
        raise UnusableError(f"{options.url} has none of these APIs. The first answer: {_first(report)}")
    return 1 if outcomes & {Outcome.FAILED, Outcome.NOT_DONE} else 0


def _first(report: Report) -> str:
    return report.checks[0].evidence


def _write(path: Path | None, content: bytes) -> None:
    if path is not None:
        try:
            path.write_bytes(content)
        except OSError as error:
            raise UnusableError(f"{path} cannot be written: {error.strerror or error}.") from error


def select(apis: Sequence[str], only: Sequence[str]) -> list[Check]:
    """The checks of these APIs whose ids are, or begin with, one of `only`. Raises UnusableError."""
    known = [table.api for table in TABLES]
    for api in apis:
        if api not in known:
            raise UnusableError(f"--api: there is no {api!r}. There are {', '.join(known)}.")
    for name in only:
        if not any(_within(check.id, name) for check in CHECKS):
            raise UnusableError(f"--only: there is no check {name!r}. --list names them.")
    chosen = [
        check
        for check in CHECKS
        if (not apis or check.api in apis) and (not only or any(_within(check.id, name) for name in only))
    ]
    if not chosen:
        raise UnusableError("--only names no check of the APIs that --api names.")
    return chosen


def _within(check: str, name: str) -> bool:
    return check == name or check.startswith(f"{name}.")


async def _checked(options: Options, chosen: list[Check]) -> Report:
    try:
        server = Server(options.url, options.model or "", options.key, options.seconds)
    except ValueError as error:
        raise UnusableError(str(error)) from error
    try:
        await _reach(server, options.url)
        server.model = options.model or await _first_model(server)
        err = Console(stderr=True, highlight=False, markup=False)
        results = [result async for result in _played(server, chosen, err, options.total_seconds)]
    finally:
        server.close()
    counts = Counter(result.outcome for result in results)
    return Report(
        options.name or server.address.netloc,
        options.url,
        server.model,
        datetime.now(UTC).date().isoformat(),
        __version__,
        {outcome.value: counts[outcome] for outcome in Outcome},
        results,
    )


async def _reach(server: Server, url: str) -> None:
    try:
        await server.reachable()
    except (OSError, UnicodeError) as error:
        raise UnusableError(f"no server at {url} ({getattr(error, 'strerror', None) or error!r}).") from error


async def _first_model(server: Server) -> str:
    """The first model that the server lists. Raises UnusableError."""
    hint = "Name a model with --model."
    try:
        answer = await server.get("/v1/models")
    except HttpError as error:
        raise UnusableError(f"the server lists no models: {shown(error)}. {hint}") from error
    if answer.status in (401, 403):
        raise UnusableError(
            f"the server answers {answer.status}: {shown(answer.text())} Give a key with --api-key."
        )
    try:
        first = decode_untrusted(answer.body)["data"][0]["id"]
    except (*UNREADABLE, LookupError, TypeError) as error:
        said = f"{answer.status}: {shown(answer.text())}"
        raise UnusableError(f"the server lists no models ({said}). {hint}") from error
    if not isinstance(first, str) or not first:
        raise UnusableError(f"the first model of the server has the id {shown(first)}. {hint}")
    return first


async def _played(server: Server, chosen: list[Check], err: Console, seconds: float) -> AsyncIterator[Result]:
    end = time.perf_counter() + seconds
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, disable=not err.is_terminal, transient=True) as progress:
        bar = progress.add_task("", total=len(chosen))
        for check in chosen:
            progress.update(bar, description=check.id)
            yield await play(check, server, end - time.perf_counter())
            progress.advance(bar)


async def play(check: Check, server: Server, seconds: float | None = None) -> Result:
    """What comes of a check for which so much time is left."""
    begun = time.perf_counter()
    outcome, evidence = await _outcome(check, server, seconds)
    await server.clean_up()
    seconds = round(time.perf_counter() - begun, 3)
    row = check.id, check.api, check.title, outcome, shown(evidence), check.means, check.source, seconds
    return Result(*row)


async def _outcome(check: Check, server: Server, seconds: float | None) -> tuple[Outcome, str]:
    if seconds is not None and seconds <= 0:
        return Outcome.NOT_DONE, _NO_TIME
    try:
        async with asyncio.timeout(seconds):
            await check.play(server)
    except TimeoutError:
        return Outcome.NOT_DONE, _NO_TIME
    except Unpassed as unpassed:
        return unpassed.outcome, unpassed.evidence
    except HttpError as error:
        return Outcome.FAILED, f"no whole answer: {error}"
    except UNEXPECTED as error:
        return Outcome.FAILED, f"the answer cannot be read: {type(error).__name__}: {error}"
    return Outcome.PASSED, ""


def summary(report: Report) -> str:
    """The numbers."""
    counts = report.counts
    words = {
        Outcome.PASSED: "passed",
        Outcome.FAILED: "failed",
        Outcome.NOT_OFFERED: "not offered",
        Outcome.INCONCLUSIVE: "inconclusive",
    }
    if counts[Outcome.NOT_DONE]:
        words[Outcome.NOT_DONE] = "not done"
    return f"{len(report.checks)} checks: " + ", ".join(f"{counts[each]} {words[each]}" for each in words)


def lines(report: Report) -> Iterator[str]:
    """The report for a terminal."""
    yield f"{shown(report.name)}, model {shown(report.model)}"
    width = max(len(result.id) for result in report.checks)
    for result in report.checks:
        mark = "FAIL" if result.outcome is Outcome.FAILED else result.outcome.value
        yield f"  {mark:<12}  {result.id:<{width}}  {result.title}"
        if result.evidence:
            yield f"{'':<16}seen: {result.evidence}"
        if result.outcome is Outcome.FAILED:
            yield f"{'':<16}for clients: {result.means}"
            yield f"{'':<16}source: {result.source}"
    yield summary(report)


def markdown(report: Report) -> Iterator[str]:
    """The report as a page."""
    yield f"# {_cell(report.name)}"
    yield ""
    yield (
        f"{summary(report)}. Model `{_cell(report.model)}` at {_cell(report.url)}, {report.date}, "
        f"`antiphon check` {report.antiphon}."
    )
    yield ""
    yield "| check | result | what it is about | seen |"
    yield "|---|---|---|---|"
    for result in report.checks:
        outcome = f"**{result.outcome.value}**" if result.outcome is Outcome.FAILED else result.outcome.value
        yield f"| `{result.id}` | {outcome} | {_cell(result.title)} | {_cell(result.evidence)} |"
    failed = [result for result in report.checks if result.outcome is Outcome.FAILED]
    if failed:
        yield from ("", "## What the failures mean for clients", "")
        yield from ("| check | for clients | source |", "|---|---|---|")
        for result in failed:
            yield f"| `{result.id}` | {_cell(result.means)} | {_cell(result.source)} |"


_ESCAPES = str.maketrans({each: f"\\{each}" for each in "\\|`*_<>[]"})


def _cell(text: str) -> str:
    """Text of a server in a table: nothing of it is markup."""
    return shown(text).translate(_ESCAPES)


def listed() -> Iterator[str]:
    """All checks with their sources."""
    for check in CHECKS:
        yield f"{check.id}: {check.title}"
        yield f"    {check.source}"
