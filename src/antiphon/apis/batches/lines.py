"""The lines of a batch's file: read in pieces, checked, and put in an order in which neighbours begin alike.

`LineScanner` takes the bytes of a file as they come, and keeps of each line only where it is, and checksums
of the beginnings of its prompt: of the first 64 characters, the first 256, and so on. Lines that have one in
common run next to each other, so that a model reads their common beginning once; a group stands where its
first line does. So the memory that a file needs depends on the number of its lines alone, some forty bytes
for each.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from os import urandom
from typing import Annotated, Any
from zlib import crc32

import msgspec
from msgspec import Meta, Raw, Struct

from antiphon.apis.batches.schema import BatchError
from antiphon.apis.wire import invalid

LEVELS = (64, 256, 1024, 4096, 16_384, 65_536)
"""Bytes of the beginnings of prompts that are compared."""
MOST_ERRORS = 10_000
"""The most errors of one file that are listed."""
MOST_LINES_READ = 2
"""So many times as many lines are read as a batch may have: empty and wrong ones take time, too."""
MOST_INPUTS = 50_000
"""The most texts whose vectors one batch may request, as in OpenAI's API."""
_BOM = b"\xef\xbb\xbf"
_SHOWN = 64
"""The most characters of a value of a file that an error repeats."""


class Line(Struct):
    """A line of a file. Its body is a request of the endpoint."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=512)]
    method: str
    url: str
    body: Raw


class _Body(Struct):
    """What of the body of a line says with which others it belongs."""

    model: str | None = None
    stream: Any = None
    background: Any = None
    tools: Raw = Raw()
    instructions: Raw = Raw()
    messages: Raw = Raw()
    prompt: Raw = Raw()
    input: Raw = Raw()


read_line = msgspec.json.Decoder(Line).decode
_read_body = msgspec.json.Decoder(_Body).decode
_read_list = msgspec.json.Decoder(list[Raw]).decode


class _WrongLineError(Exception):
    """Why a line cannot be run."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        self.error = BatchError(code, message, param)
        super().__init__()


class Expected(Struct, frozen=True):
    """What the lines of a file have to be: for this endpoint, at most so many, and of so many bytes each.

    `model` is that of lines that name none, if there is one. The lines of a file that was `checked` are not
    checked again: whatever the server expects now, each line keeps its index.
    """

    endpoint: str
    most_lines: int = 2**31
    line_bytes: int = 2**31
    model: str | None = None
    checked: bool = False


class LineScanner:
    """Reads the lines of a file. `errors` are those found so far; `models` has at most one name.

    Lines with errors are not in the index. When it is `full`, it takes no more bytes.
    """

    def __init__(self, expected: Expected) -> None:
        self.errors: list[BatchError] = []
        self.model: str | None = None
        self._expected = expected
        self._seen: set[int] = set()
        self._secret = urandom(16)  # so that nobody can choose ids with the same digest
        self._offsets = array("Q")
        self._lengths = array("I")
        self._sums = [array("I") for _ in LEVELS]
        self._inputs = 0
        self._rest = bytearray()  # the beginning of a line that is not complete yet
        self._skipping = False  # the rest of a line that is too long
        self._number = 0  # of lines so far, also empty ones
        self._offset = 0  # of the line that begins the rest
        self._wrong = 0
        self.full = False

    def __len__(self) -> int:
        return len(self._offsets)

    def feed(self, data: bytes) -> None:
        """The next bytes of the file."""
        *complete, rest = data.split(b"\n")
        for piece in complete:
            if self._number >= MOST_LINES_READ * self._expected.most_lines:  # empty, or wrong
                self.full = True
                return
            self._end_line(piece)
        self._begin_line(rest)

    def finish(self) -> None:
        """There are no more bytes."""
        if self._rest or self._skipping:
            self._end_line(b"")
        if self.full:
            message = f"After line {self._number} the file was not read: it has too many lines."
            self._refuse(BatchError("too_many_lines", message))
        if not self._number or not (len(self) or self._wrong):
            self._refuse(BatchError("empty_file", "The file has no lines. Write one for each request."))
        if (more := self._wrong - len(self.errors)) > 0:
            self.errors.append(BatchError("too_many_errors", f"{more} more lines are wrong."))

    def _begin_line(self, piece: bytes) -> None:
        """Keep the beginning of a line, if it is not too long already."""
        if self._skipping:
            self._offset += len(piece)
            return
        self._rest += piece
        if len(self._rest) > self._expected.line_bytes:
            self._offset += len(self._rest)
            self._rest.clear()
            self._skipping = True

    def _end_line(self, piece: bytes) -> None:
        """A line ends with this piece."""
        self._number += 1
        line = bytes(self._rest) + piece if self._rest else piece
        start, skipped = self._offset, self._skipping
        self._offset += len(line) + 1
        self._rest.clear()
        self._skipping = False
        if self._number == 1 and line.startswith(_BOM):
            line, start = line[len(_BOM) :], start + len(_BOM)
        try:
            if skipped or (line and not line.isspace()):
                self._take(line, start, too_long=skipped or len(line) > self._expected.line_bytes)
        except _WrongLineError as wrong:
            wrong.error.line = self._number
            self._refuse(wrong.error)

    def _refuse(self, error: BatchError) -> None:
        self._wrong += 1
        if len(self.errors) < MOST_ERRORS:
            self.errors.append(error)

    def _take(self, line: bytes, start: int, *, too_long: bool) -> None:
        """Check a line, and add it to the index."""
        if too_long:
            message = f"The line has more than {self._expected.line_bytes} bytes. Shorten it."
            raise _WrongLineError("line_too_long", message)
        parsed, body = _parsed(line)
        if not self._expected.checked:
            self._check(parsed, body)
        self._offsets.append(start)
        self._lengths.append(len(line))
        parts = (body.tools, body.instructions, body.messages, body.prompt, body.input)
        beginning = b"\n".join([bytes(part) for part in parts if part])
        total, before = 0, 0
        for level, sums in zip(LEVELS, self._sums, strict=True):
            if before < len(beginning):
                total = crc32(beginning[before:level], total)
            before = level
            sums.append(total)

    def _check(self, line: Line, body: _Body) -> None:
        expected = self._expected
        if line.method != "POST":
            raise _wrong("invalid_method", "method", line.method, "Use POST.")
        if line.url != expected.endpoint:
            remedy = f"The batch is for {expected.endpoint}: use that."
            raise _wrong("invalid_url", "url", line.url, remedy)
        if body.stream:
            raise _wrong(
                "invalid_request", "body.stream", body.stream, "Answers are in a file: leave it out."
            )
        if body.background:
            message = "A batch is in the background already: leave it out."
            raise _wrong("invalid_request", "body.background", body.background, message)
        self._check_model(body.model or expected.model)
        if len(self) >= expected.most_lines:
            message = f"There are more than {expected.most_lines} lines, the limit 'batch_lines'. "
            raise _WrongLineError("too_many_lines", message + "Make several batches of them.")
        digest = blake2b(line.custom_id.encode(), digest_size=8, key=self._secret).digest()
        if (mark := int.from_bytes(digest)) in self._seen:
            remedy = "Another line has it. Give each its own."
            raise _wrong("duplicate_custom_id", "custom_id", line.custom_id, remedy)
        self._seen.add(mark)
        if expected.endpoint == "/v1/embeddings":
            self._count_inputs(body)

    def _check_model(self, name: str | None) -> None:
        if name is None:
            raise _WrongLineError(
                "missing_required_parameter", "Missing required parameter: 'body.model'.", "body.model"
            )
        if self.model is None:
            self.model = name
        elif name != self.model:
            remedy = f"Lines before it are for '{self.model[:_SHOWN]}': a batch has one model."
            raise _wrong("mismatched_model", "body.model", name, remedy)

    def _count_inputs(self, body: _Body) -> None:
        given = bytes(body.input)
        inputs = _read_list(given) if given.startswith(b"[") else []
        several = bool(inputs) and bytes(inputs[0]).startswith((b'"', b"["))  # else the tokens of one text
        self._inputs += len(inputs) if several else 1
        if self._inputs > MOST_INPUTS:
            message = f"The batch has more than {MOST_INPUTS} inputs. Make several batches of them."
            raise _WrongLineError("too_many_inputs", message, "body.input")

    # The index

    def place(self, index: int) -> tuple[int, int]:
        """Where a line is in the file: its first byte, and the number of its bytes."""
        return self._offsets[index], self._lengths[index]

    def grouped(self) -> Sequence[int]:
        """The indexes of all lines: those that begin alike are neighbours, for as long as possible."""
        order = array("I", range(len(self)))
        for sums in reversed(self._sums):
            first: dict[int, int] = {}
            firsts = array("I", [first.setdefault(total, index) for index, total in enumerate(sums)])
            order = array("I", sorted(order, key=firsts.__getitem__))  # stable
        return order


def _parsed(line: bytes) -> tuple[Line, _Body]:
    """A line, and its body."""
    try:
        line.decode()  # texts that are skipped are not decoded
    except UnicodeDecodeError as error:
        message = f"The line is not UTF-8, from its byte {error.start} on."
        raise _WrongLineError("invalid_json_line", message) from error
    try:
        parsed = read_line(line)
    except msgspec.ValidationError as error:
        wrong = invalid(str(error))
        raise _WrongLineError(wrong.code or "invalid_line", wrong.message, wrong.param) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise _WrongLineError("invalid_json_line", f"The line is not valid JSON: {error}.") from error
    try:
        return parsed, _read_body(parsed.body)
    except (msgspec.DecodeError, RecursionError) as error:
        wrong = invalid(str(error), "body")
        raise _WrongLineError(wrong.code or "invalid_request", wrong.message, wrong.param) from error


def _wrong(code: str, param: str, value: Any, remedy: str) -> _WrongLineError:
    shown = str(value)[:_SHOWN]
    return _WrongLineError(code, f"Invalid value for '{param}': '{shown}'. {remedy}", param)
