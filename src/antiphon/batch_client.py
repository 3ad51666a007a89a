"""`antiphon batch`: sends a file of requests to a server, shows how far it is, and fetches the results.

The file is sent, and the results are written, in pieces. The client uses only the HTTP API of batches, and
decodes only the fields that it shows.
"""

import sys
import time
from functools import partial
from itertools import chain
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, TypeVar

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from antiphon.chat import WITHOUT_CONTROL_CHARACTERS, ChatClient
from antiphon.core.errors import AntiphonError

T = TypeVar("T")

POLL_SECONDS = 0.5
PIECE_BYTES = 64 * 1024
MOST_SHOWN = 20
"""The most errors of a file that are shown."""
_ENDINGS = {"failed": "has failed", "expired": "has expired", "cancelled": "was cancelled"}
"""What is said of a batch that has not completed."""


class BatchClientError(AntiphonError):
    """The batch has no results, or not all."""


class _Id(Struct):
    id: str


class _Counts(Struct):
    total: int = 0
    completed: int = 0
    failed: int = 0


class _LineError(Struct):
    message: str
    line: int | None = None

    def __post_init__(self) -> None:
        self.message = _plain(self.message)


class _Errors(Struct):
    data: list[_LineError] = []


class BatchNow(Struct):
    """A batch as it is now. What of it is shown has no control characters."""

    id: str
    status: str
    request_counts: _Counts = msgspec.field(default_factory=_Counts)
    errors: _Errors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None

    def __post_init__(self) -> None:
        self.id, self.status = _plain(self.id), _plain(self.status)

    @property
    def ended(self) -> bool:
        """It does not change any more."""
        return self.status in ("completed", "failed", "expired", "cancelled")


class _FirstLine(Struct):
    url: str


def run(
    client: ChatClient,
    file_or_id: str,
    *,
    endpoint: str | None = None,
    output: Path | None = None,
    watch: bool = True,
) -> None:
    """Send a file, or find a batch by its id; write its results to `output`. Raises AntiphonError."""
    path, err = Path(file_or_id), Console(stderr=True, highlight=False, markup=False)
    is_file = path.exists() or not file_or_id.startswith("batch_")
    results = output or (path if is_file else Path(f"{file_or_id}.jsonl")).with_suffix(".results.jsonl")
    for written in (results, _errors_beside(results)) if watch else ():
        if written.exists():
            raise BatchClientError(f"{written} exists already. Name another file with --output.")
    batch = _submitted(client, path, endpoint) if is_file else _get(client, file_or_id)
    if not watch:
        print(batch.id)
        return
    try:
        batch = _watched(client, batch, err)
    except KeyboardInterrupt:
        err.print(f"The batch goes on. To watch it again: antiphon batch {batch.id}", soft_wrap=True)
        raise
    _fetch(client, batch, results, err)


def _errors_beside(results: Path) -> Path:
    """The file of the lines that failed."""
    return results.with_suffix(".errors.jsonl")


def _submitted(client: ChatClient, path: Path, endpoint: str | None) -> BatchNow:
    """A new batch of the lines of a file."""
    try:
        with path.open("rb") as file:
            endpoint = endpoint or _endpoint(file)
            boundary = f"antiphon-{token_hex(16)}"
            head, tail = _form(boundary)
            headers = {
                "Content-Type": f"multipart/form-data; boundary={boundary}",
                "Content-Length": str(len(head) + path.stat().st_size + len(tail)),
            }
            content = chain([head], iter(partial(file.read, PIECE_BYTES), b""), [tail])
            with client.request("POST", "/files", content, **headers) as response:
                uploaded = _decoded(response.read(), _Id)
    except OSError as error:
        raise BatchClientError(f"{path} cannot be read: {error.strerror or error}.") from error
    wanted = {"input_file_id": uploaded.id, "endpoint": endpoint, "completion_window": "24h"}
    with client.request("POST", "/batches", msgspec.json.encode(wanted)) as response:
        return _decoded(response.read(), BatchNow)


def _endpoint(file: BinaryIO) -> str:
    """The endpoint of the first line; then the file is at its beginning again."""
    first = file.readline(PIECE_BYTES)
    file.seek(0)
    try:
        return msgspec.json.decode(first.removeprefix(b"\xef\xbb\xbf"), type=_FirstLine).url
    except msgspec.DecodeError:
        return "/v1/chat/completions"  # the server says what is wrong with the line


def _form(boundary: str) -> tuple[bytes, bytes]:
    """What is before the content of the file in the form, and after it."""
    name = 'Content-Disposition: form-data; name="{}"{}\r\n\r\n'
    purpose, file = name.format("purpose", ""), name.format("file", '; filename="batch.jsonl"')
    head = f"--{boundary}\r\n{purpose}batch\r\n--{boundary}\r\n{file}"
    return head.encode(), f"\r\n--{boundary}--\r\n".encode()


def _get(client: ChatClient, batch_id: str) -> BatchNow:
    return _decoded(client.get(f"/batches/{batch_id}"), BatchNow)


def _watched(client: ChatClient, batch: BatchNow, err: Console) -> BatchNow:
    """The batch when it has ended. Its progress is shown, if the terminal can show it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, disable=not err.is_terminal) as progress:
        bar = progress.add_task(batch.id, total=batch.request_counts.total, failed="")
        while True:
            counts = batch.request_counts
            failed = f"{counts.failed} failed" if counts.failed else ""
            done, shown = counts.completed + counts.failed, f"{batch.id} {batch.status}"
            progress.update(bar, completed=done, total=counts.total, description=shown, failed=failed)
            if batch.ended:
                return batch
            time.sleep(POLL_SECONDS)
            batch = _get(client, batch.id)


def _fetch(client: ChatClient, batch: BatchNow, results: Path, err: Console) -> None:
    """Write the files with the results. Raises BatchClientError if not all lines have an answer."""
    errors = _errors_beside(results)
    for file_id, path in ((batch.output_file_id, results), (batch.error_file_id, errors)):
        if file_id is not None:
            _download(client, file_id, path)
            err.print(f"{path}", soft_wrap=True)
    for error in (batch.errors.data if batch.errors else [])[:MOST_SHOWN]:
        where = "" if error.line is None else f"line {error.line}: "
        print(f"{where}{error.message}", file=sys.stderr)
    if batch.status != "completed" or batch.request_counts.failed:
        raise BatchClientError(_ending(batch))


def _ending(batch: BatchNow) -> str:
    """How a batch has ended in which not all lines have an answer."""
    counts, said = batch.request_counts, _ENDINGS.get(batch.status, "has ended")
    if not counts.completed + counts.failed:
        return f"the batch {said} before any line was answered."
    has, errors = "has" if counts.completed == 1 else "have", f", {counts.failed} an error"
    answered = f"{counts.completed} of {counts.total} lines {has} an answer"
    return f"the batch {said}: {answered}{errors if counts.failed else ''}."


def _download(client: ChatClient, file_id: str, path: Path) -> None:
    """Write a file of the server. It has its name when it is complete."""
    part = path.with_name(f"{path.name}.part")
    try:
        with client.request("GET", f"/files/{file_id}/content") as response, part.open("wb") as file:
            while piece := response.read(PIECE_BYTES):
                file.write(piece)
        part.replace(path)
    except OSError as error:
        raise BatchClientError(f"{path} cannot be written: {error.strerror or error}.") from error


def _decoded(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise BatchClientError(f"this server has no batches: {error}.") from error


def _plain(text: str) -> str:
    """Text of a server, which must not move the cursor."""
    return text.translate(WITHOUT_CONTROL_CHARACTERS)
