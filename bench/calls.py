"""`python bench/calls.py`: the number of calls, and of files, for one streamed token.

Calls of Python functions whose code is Antiphon's are counted, from the step of the engine to the write to
the transport. A server plays a script, in this process and on a real socket; the same answer is requested
short and long, and the difference of their calls is that of the tokens. These figures do not depend on the
machine or its load.
"""

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

if __name__ == "__main__":
    # For a script, Python's path begins with its folder; our modules are `bench.…`.
    sys.path[0] = str(Path(__file__).parent.parent)

import msgspec
import uvloop
from msgspec import Struct

import antiphon
from antiphon.core.tool_result import OutputCallback, ToolResult, ignore_output
from antiphon.core.turn import Function, Hosted
from antiphon.log import configure
from antiphon.tools.tool import RequestedTool, ToolOffer
from bench.report import Target, target_table
from bench.scenario import PLAIN, script_line
from tests.server import running

TOOL = "code_interpreter"
LENGTHS = (64, 576)
"""Tokens of the two answers."""
PACE_MS = 1
"""Between two tokens: the row of a response is there after few of them."""
SING, CHOOSE = "Sing %d words.", "Choose a song of %d."
"""Prompts: for an answer of a number of tokens, and for a call whose result leads to one."""
CALL = '<tool_call>\n{"name": "choose", "arguments": {"song": "%s"}}\n</tool_call>'

_ROOT = f"{Path(antiphon.__file__).parent}/"
_MIB = 1024 * 1024
_END = b"\r\n0\r\n\r\n"
_EACH = 0.5
"""Calls for each token, at least, of a function that is called for tokens: others run by the clock."""


Calls = Counter[tuple[str, str]]
"""How often each function of a file was called."""


class Mode(Struct, frozen=True):
    """A kind of request, and the most calls and files for one of its tokens."""

    name: str
    path: str
    body: dict[str, Any]
    prompt: str
    calls: int
    files: int

    def request(self, length: int) -> bytes:
        """The HTTP request for an answer of this number of tokens."""
        said = self.prompt % length
        asked = {"input": said} if "responses" in self.path else {"messages": [_user(said)]}
        body = msgspec.json.encode({"model": "scripted", "stream": True, **asked, **self.body})
        head = f"POST {self.path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def _user(said: str) -> dict[str, str]:
    return {"role": "user", "content": said}


MODES = (
    Mode("chat", "/v1/chat/completions", {}, SING, 15, 8),
    Mode("stored response", "/v1/responses", {}, SING, 22, 11),
    Mode(
        "chat, server tool", "/v1/chat/completions", {"tools": [{"type": "code_interpreter"}]}, CHOOSE, 18, 10
    ),
)


class Chooser:
    """A tool of the server that answers at once, and its session. See `tools.tool`."""

    type = TOOL
    aliases: tuple[str, ...] = ()

    async def offer(self, requested: RequestedTool) -> ToolOffer:
        """Take any settings."""
        return ToolOffer((Function("choose", "Chooses a song.", {}, hosted=Hosted(TOOL, "choose")),))

    def open(self, requested: RequestedTool) -> "Chooser":
        """Begin to work."""
        return self

    async def run(
        self, action: str, arguments: Mapping[str, Any], on_output: OutputCallback = ignore_output
    ) -> ToolResult:
        """Choose."""
        return ToolResult(arguments["song"])

    async def recall(self, action: str, arguments: Mapping[str, Any], result: ToolResult) -> None:
        """There is no state."""

    async def close(self) -> None:
        """There are no resources."""


class Called(Struct, frozen=True):
    """A function, and how often each token calls it."""

    file: str
    function: str
    calls: float


class Row(Struct, frozen=True):
    """The cost of a token in this mode: calls, in a number of files, of these functions."""

    mode: str
    calls: int
    files: int
    functions: list[Called]


class Report(Struct, frozen=True):
    """Everything that was counted."""

    targets: list[Target]
    rows: list[Row]


def main(arguments: Sequence[str] | None = None) -> int:
    """Count and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the figures for machines")
    options = parser.parse_args(arguments)
    configure("warning")  # only the report is printed
    rows = measure()
    report = Report([*targets(rows)], rows)
    lines = (*table(rows), *target_table(report.targets))
    print(msgspec.json.encode(report).decode() if options.json else "\n".join(lines))
    return 0


def targets(rows: list[Row]) -> Iterator[Target]:
    """The counts, and their limits."""
    for mode, row in zip(MODES, rows, strict=True):
        yield Target(f"5: calls per token, {mode.name}", row.calls, mode.calls)
        yield Target(f"5: files that they are in, {mode.name}", row.files, mode.files)


def measure(lengths: tuple[int, int] = LENGTHS) -> list[Row]:
    """Every mode, with answers of both lengths."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(lengths))


async def _measure(lengths: tuple[int, int]) -> list[Row]:
    script = [msgspec.json.decode(line) for line in _script(lengths)]
    async with running(script, tools=[Chooser()]) as server:
        port = int(server.url.rpartition(":")[2])
        rows = []
        for mode in MODES:
            await _count(mode, lengths[0], port)  # everything that is made once is made now
            short, long = [await _count(mode, length, port) for length in lengths]
            rows.append(_row(mode, short, long, lengths[1] - lengths[0]))
        return rows


def _script(lengths: tuple[int, int]) -> Iterator[bytes]:
    """With a song in the prompt, it is the answer; without one, the tool is called."""
    for length in lengths:
        yield script_line(PLAIN.tokens(length), SING % length, PACE_MS)
    for length in lengths:
        yield script_line([CALL % (SING % length)], CHOOSE % length)


async def _count(mode: Mode, length: int, port: int) -> Calls:
    """Calls by file and function, while such an answer is streamed."""
    calls: Calls = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_ROOT):
            calls[code.co_filename.removeprefix(_ROOT), code.co_qualname] += 1

    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=16 * _MIB)
    sys.setprofile(note)
    try:
        writer.write(mode.request(length))
        answer = await reader.readuntil(_END)
    finally:
        sys.setprofile(None)
        writer.close()
    # White space waits for the text after it, and the first tokens for the row of a response.
    if not answer.startswith(b"HTTP/1.1 200") or answer.count(b"\n\n\r\n") < 0.8 * length:
        raise RuntimeError(f"this is no answer of {length} tokens: {answer[:500]!r}")
    return calls


def _row(mode: Mode, short: Calls, long: Calls, more: int) -> Row:
    """`more` is by how many tokens the long answer is longer."""
    each = {key: round((count - short[key]) / more, 2) for key, count in long.items()}
    called = [Called(*key, calls) for key, calls in each.items() if calls >= _EACH]
    total = round(sum(function.calls for function in called))
    return Row(mode.name, total, len({function.file for function in called}), called)


def table(rows: list[Row]) -> Iterator[str]:
    """The lines for people."""
    for row in rows:
        yield from ("", f"{row.mode}: {row.calls} calls per token, in {row.files} files")
        for function in row.functions:
            yield f"  {function.file + ': ' + function.function:60}{function.calls:6.2f}"


if __name__ == "__main__":
    sys.exit(main())
