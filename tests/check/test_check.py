"""`antiphon check`: Antiphon passes, each check finds what is planted, and no server makes it crash or wait."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.check import client as check_client
from antiphon.check.checks import Outcome
from antiphon.check.client import Event, Server, events_of
from antiphon.check.runner import CHECKS, Report, Result, lines, markdown, play
from antiphon.cli import main
from tests.check.faults import FAULTS, Faulty, drop
from tests.deciding import deciding, told
from tests.search import share
from tests.server import Running, running

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
SCRIPT: list[dict[str, Any]] = [
    {"when": "Say good morning in one short sentence.<|im_end|>", "last": 80, "output": CALL},
    {"when": "Call the function get_weather.<|im_end|>", "last": 80, "output": CALL},
    {"when": "</tool_response><|im_end|>", "last": 80, "output": "It is sunny in Paris, at 24 degrees."},
    {"when": "Invent a person.", "output": '{"name": "Ada", "age": 36}'},
    {"when": "Count from 1 to 200", "output": "1\n", "tokens": 400},
    {"output": "The capital of France is Paris."},
]
BY_ID = {check.id: check for check in CHECKS}
SECONDS = 10


@asynccontextmanager
async def served(before: Any = None) -> AsyncIterator[Running]:
    """Antiphon, over a script that does what the checks ask for."""
    with deciding(told((0.9, 0.1), (0.7, 0.2, 0.1), (0.2, 0.3, 0.5))):
        async with running(SCRIPT, before=before, http=before and "httptools") as server:
            yield server


def client(url: str, seconds: float = SECONDS) -> Server:
    return Server(url, "scripted", "alice", seconds)


async def played(url: str, seconds: float = SECONDS) -> list[Result]:
    server = client(url, seconds)
    try:
        return [await play(check, server) for check in CHECKS]
    finally:
        server.close()


async def test_antiphon_passes_every_check() -> None:
    async with served() as server:
        results = await played(f"{server.url}/v1")
        stored = await client(server.url).get("/v1/chat/completions")

    assert {result.id: result.evidence for result in results if result.outcome is not Outcome.PASSED} == {}
    assert json.loads(stored.body)["data"] == []  # what was stored is deleted


@pytest.mark.parametrize("api", FAULTS)
async def test_each_fault_is_found(api: str) -> None:
    """Each answer is right until it is changed, and then the check has to fail."""
    faulty, missed = Faulty(), list[str]()
    async with served(faulty) as running_server:
        for at, (check_id, fault) in enumerate(share(FAULTS[api], 3)):
            faulty.plant(fault)
            server = client(running_server.url)
            result = await play(BY_ID[check_id], server)
            server.close()
            if result.outcome is not Outcome.FAILED:
                missed.append(f"{at}: {check_id}: {result.outcome} {result.evidence}")
            elif "cannot be read" in result.evidence or not faulty.changed:
                missed.append(
                    f"{at}: {check_id}: {result.evidence}"
                )  # the check, or the fault, does not look

    assert missed == []
    assert faulty.broken == []


@pytest.mark.parametrize(
    ("path", "field", "checks"),
    [
        ("/v1/chat/completions", "created", ["chat.shape"]),
        ("/v1/responses", "created_at", ["responses.fields", "responses.shape"]),
        ("/v1/messages", "stop_sequence", ["messages.endings.stop_sequence", "messages.shape"]),
    ],
)
async def test_a_field_that_is_missing_is_one_failure(path: str, field: str, checks: list[str]) -> None:
    """What a field is not about does not fail without it."""
    faulty = Faulty()
    faulty.plant(drop(field, path))
    async with served(faulty) as server:
        results = await played(f"{server.url}/v1")

    failed = [result.id for result in results if result.outcome is Outcome.FAILED]
    assert sorted(failed) == checks
    assert faulty.changed


def test_every_check_has_a_fault_that_it_finds() -> None:
    assert {check for faults in FAULTS.values() for check, _ in faults} == {*BY_ID}


def test_each_check_cites_its_source() -> None:
    for check in CHECKS:
        assert check.id.startswith(f"{check.api}."), check.id
        assert "https://" in check.source, check.id
        assert check.title, check.id
        assert check.means.endswith("."), check.id
    assert len(BY_ID) == len(CHECKS)


# Servers that answer with anything


def head(media_type: str = "application/json") -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {media_type}\r\n".encode()


ENDLESS = head("text/event-stream") + b"Connection: close\r\n\r\n"
HOSTILE: dict[str, tuple[bytes, bytes]] = {
    # what comes once, and what comes for ever
    "nothing": (b"", b""),
    "no HTTP": (b"\x00\xff hello\r\n\r\n", b""),
    "no end of the head": (b"HTTP/1.1 200 OK\r\n", b"X-More: 1\r\n" * 1000),
    "a cut body": (head() + b"Content-Length: 1000\r\n\r\n{", b""),
    "a huge length": (head() + b"Content-Length: 99999999999999\r\n\r\n", b"x" * 65536),
    "an endless stream": (ENDLESS, b'data: {"type": "ping"}\n\n' * 1000),
    "an endless line": (ENDLESS + b"data: ", b"x" * 65536),
    "deep": (head() + b"Connection: close\r\n\r\n" + b"[" * 200_000, b""),
    "no UTF-8": (head() + b'Content-Length: 12\r\n\r\n{"id": "\xff\xfe"}', b""),
    "empty events": (ENDLESS + b"data\n\n\n\nevent: x\ndata: {}\n\ndata: 7\n\n", b""),
    "a compressed body": (head() + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", b""),
    "a redirection to itself": (b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", b""),
    "numbers": (head() + b'Content-Length: 28\r\n\r\n{"id": 1e999, "choices": 99}', b""),
}
SOME = [
    check
    for check in CHECKS
    if check.id.endswith((".shape", ".order", ".stored", "lifecycle", "stream.usage"))
]


@asynccontextmanager
async def hostile(once: bytes, for_ever: bytes) -> AsyncIterator[str]:
    """A server that answers every request so, and then closes the connection."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(once)
            await writer.drain()
            while for_ever:
                writer.write(for_ever)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


@pytest.mark.parametrize("how", HOSTILE)
async def test_whatever_a_server_sends_each_check_ends_in_a_failure(how: str) -> None:
    async with hostile(*HOSTILE[how]) as url:
        server = client(url)
        results = [await play(check, server) for check in SOME]
        server.close()

    assert {result.outcome for result in results} == {Outcome.FAILED}
    assert all(result.evidence and result.evidence.isprintable() for result in results)


async def test_an_answer_without_an_end_ends_after_some_seconds() -> None:
    ended = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head("text/event-stream") + b"Connection: close\r\n\r\n")
        while not writer.is_closing():  # it says something again and again: it is never silent for long
            writer.write(b": wait\n\n")
            await asyncio.sleep(0.01)
        ended.set()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as listening:
        server = client(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", 0.1)
        result = await play(BY_ID["chat.stream.order"], server)
        again = await play(BY_ID["chat.stream.shape"], server)  # the same request: it is not sent again
        server.close()
        await ended.wait()  # the client has closed the connection

    assert result.outcome is Outcome.FAILED
    assert "no end after 0.1 seconds (--timeout)" in result.evidence
    assert again.evidence == result.evidence


KEYS = [
    "id",
    "object",
    "created",
    "created_at",
    "model",
    "choices",
    "index",
    "message",
    "delta",
    "content",
    "finish_reason",
    "tool_calls",
    "function",
    "name",
    "arguments",
    "usage",
    "total_tokens",
    "type",
    "role",
    "output",
    "status",
    "text",
    "part",
    "item",
    "response",
    "output_index",
    "content_index",
    "error",
    "sequence_number",
    "data",
    "answers",
    "probabilities",
    "probability",
    "value",
    "score",
    "choice",
    "stop_reason",
    "input",
    "content_block",
    "input_tokens",
    "output_tokens",
    "previous_response_id",
    "conversation",
    "incomplete_details",
    "metadata",
    "item_id",
    "annotations",
]
WORDS = [
    *(
        "chat.completion",
        "chat.completion.chunk",
        "response",
        "completed",
        "incomplete",
        "message",
        "assistant",
        "text",
    ),
    *(
        "output_text",
        "function_call",
        "tool_use",
        "stop",
        "length",
        "tool_calls",
        "end_turn",
        "max_tokens",
        "list",
    ),
    *("response.created", "response.completed", "response.output_item.added", "response.output_text.delta"),
    *(
        "message_start",
        "content_block_start",
        "content_block_delta",
        "message_delta",
        "message_stop",
        "get_weather",
    ),
    *("choice", "score", "predicate", "billing", "{}", "{", ""),
]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=25,
)


class Told(Server):
    """A server that has answered with these bodies, one after the other."""

    def __init__(self, answers: list[check_client.Answer]) -> None:
        super().__init__("http://127.0.0.1:9", "m")
        self.answers = answers

    async def _outcome(self, request: bytes) -> check_client.Answer:
        return self.answers.pop() if len(self.answers) > 1 else self.answers[0]


def answer_of(values: list[Any], streamed: bool, status: int) -> check_client.Answer:
    if streamed:
        body = "".join(f"data: {json.dumps(value)}\n\n" for value in values).encode()
        return check_client.Answer(status, "text/event-stream", body)
    return check_client.Answer(status, "application/json", json.dumps(values[0]).encode())


@given(
    st.sampled_from(CHECKS),
    st.lists(
        st.builds(
            answer_of,
            st.lists(ANYTHING, min_size=1, max_size=5),
            st.booleans(),
            st.sampled_from([200, 200, 200, 400, 404, 500]),
        ),
        min_size=1,
        max_size=3,
    ),
)
@settings(deadline=None)
def test_no_answer_breaks_a_check(check: Any, answers: list[check_client.Answer]) -> None:
    async def once() -> Result:
        return await play(check, Told(answers))

    result = asyncio.run(once())

    assert result.outcome in Outcome
    assert (result.outcome is Outcome.PASSED) == (result.evidence == "")
    report = Report("a", "b", "c", "d", "e", dict.fromkeys(Outcome, 1), [result])
    assert "".join([*lines(report), *markdown(report)]).isprintable()


@given(
    st.lists(
        st.sampled_from(["data: a", "data:b", "event: x", ":c", "", "id: 1", "data", "data: :"]), max_size=12
    )
)
def test_events_are_cut_alike_however_lines_end(raw: list[str]) -> None:
    """As the HTML standard says: lines end with any of the three ends, and events with an empty line."""
    events = [events_of(end.join([*raw, ""]).encode()) for end in ("\n", "\r\n", "\r")]
    assert events[0] == events[1] == events[2]
    assert sum(event.data.count("\n") + 1 for event in events[0]) <= sum(
        line.startswith("data") for line in raw
    )


def test_events_have_names_and_lines() -> None:
    assert events_of(b": hello\nevent: a\ndata: 1\ndata: 2\n\ndata: 3\n\nevent: b\n\ndata: cut") == [
        Event("a", "1\n2"),
        Event("", "3"),
    ]


# The command


async def command(*tokens: str) -> int:
    """Its exit code."""

    def run() -> int:
        try:
            return main(["check", *tokens])
        except SystemExit as end:
            return int(end.code or 0)

    return await asyncio.to_thread(run)


async def test_the_command_prints_and_writes_what_came_of_the_checks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"--json": tmp_path / "a.json", "--markdown": tmp_path / "a.md"}
    written = [str(each) for pair in files.items() for each in pair]
    async with served() as server:
        code = await command(f"{server.url}/v1", "--api", "chat,messages", "--name", "Mine | 1", *written)
    said = capsys.readouterr()

    assert code == 0, said.err
    report = json.loads(files["--json"].read_bytes())
    assert {each["api"] for each in report["checks"]} == {"chat", "messages"}
    others = dict.fromkeys(("fail", "not offered", "inconclusive", "not done"), 0)
    assert report["counts"] == {"pass": len(report["checks"]), **others}
    assert (report["name"], report["model"]) == ("Mine | 1", "scripted")
    assert "Mine \\| 1" in files["--markdown"].read_text()
    number = len(report["checks"])
    assert f"\n{number} checks: {number} passed, 0 failed, 0 not offered, 0 inconclusive\n" in said.out


async def test_checks_for_which_no_time_is_left_are_not_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one that waits for its answer: a server that takes its time does not keep the command for ever."""
    answering = []

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.append(asyncio.current_task())
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            if len(answering) > 3:  # the first has asked for nothing
                await reader.read()  # the client has left
            writer.write(head() + b"Connection: close\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    file = tmp_path / "a.json"
    async with await asyncio.start_server(slow, "127.0.0.1", 0) as listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        seconds = ("--timeout", "2", "--total-timeout", "0.5")
        code = await command(url, "--model", "m", "--api", "chat", *seconds, "--json", str(file))
        await asyncio.gather(*filter(None, answering))

    assert code == 1
    report = json.loads(file.read_bytes())
    outcomes = [each["outcome"] for each in report["checks"]]
    left = outcomes.index("not done")
    assert 0 < left < 10
    assert {*outcomes[left:]} == {"not done"}
    assert len(answering) == 4
    assert "not done      chat.tools.call" in (said := capsys.readouterr().out)
    assert "(--timeout)" not in said
    assert f"{report['counts']['not done']} not done\n" in said


async def test_a_failure_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faulty, page = Faulty(), tmp_path / "a.md"
    check_id, fault = FAULTS["chat"][-1]
    async with served(faulty) as server:
        faulty.plant(fault)
        code = await command(server.url, "--only", check_id, "--model", "scripted", "--markdown", str(page))
    said = capsys.readouterr().out

    assert code == 1
    assert f"FAIL          {check_id}" in said
    assert "seen: status 200 for a completion that was deleted" in said
    assert f"for clients: {BY_ID[check_id].means}" in said
    assert f"source: {BY_ID[check_id].source}" in said
    assert "What the failures mean for clients" in page.read_text()


async def test_a_key_that_a_server_repeats_is_in_no_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, files = "sk-0123456789abcdef", {"--json": tmp_path / "a.json", "--markdown": tmp_path / "a.md"}
    said = f'{{"error": {{"message": "Incorrect API key provided: {key}"}}}}'.encode()
    refused = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\n\r\n%s" % (len(said), said)
    written = [str(each) for pair in files.items() for each in pair]
    async with hostile(refused, b"") as url:
        code = await command(url, "--api-key", key, "--model", "m", "--only", "chat.shape", *written)

    shown = capsys.readouterr().out
    assert code == 1
    for text in (shown, *(file.read_text() for file in files.values())):
        assert "Incorrect API key provided: (the key)" in text
        assert key not in text


async def test_a_terminal_that_cannot_show_a_character_shows_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused, written = b"HTTP/1.1 400 Bad\r\nContent-Length: 6\r\n\r\n\xe2\x82\xac\xe4\xb8\xad", io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, "latin-1", write_through=True))
    async with hostile(refused, b"") as url:
        assert await command(url, "--model", "m", "--only", "chat.shape") == 1
    assert b"seen: status 400: \\u20ac\\u4e2d" in written.getvalue()


async def test_no_id_of_a_server_ends_the_line_of_a_request() -> None:
    lines: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.extend((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n"))
        body = b'{"id": "a b\\r\\nX-More: \\u20ac\\r\\n", "choices": [{}]}'
        writer.write(head() + b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        server = client(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        await play(BY_ID["chat.state.stored"], server)
        server.close()

    stored = b"/v1/chat/completions/a%20b%0D%0AX-More:%20%E2%82%AC%0D%0A HTTP/1.1"
    assert {b"GET " + stored, b"DELETE " + stored} <= {*lines}
    assert not any(line.startswith(b"X-More") for line in lines)


UNUSABLE: list[tuple[list[str], str]] = [
    ([], "Name the URL of a server"),
    (["ftp://a"], "is not the URL of a server"),
    (["http://127.0.0.1:1/v1"], "No server at http://127.0.0.1:1/v1"),
    (["http://no-such-host.invalid"], "No server at http://no-such-host.invalid"),
    (["{url}", "--api", "chat,soap"], "there is no 'soap'"),
    (["{url}", "--only", "chat.sh"], "there is no check 'chat.sh'"),
    (["{url}", "--only", "chat.shape", "--api", "messages"], "names no check of the APIs"),
    (["{url}", "--json", "/no/such/folder/a.json"], "cannot be written"),
    (["{url}", "--api-key-env", "NO_SUCH_VARIABLE"], "has no NO_SUCH_VARIABLE"),
    (["{url}", "--timeout", "0"], "--timeout"),
    (["{url}", "--total-timeout", "inf"], "--total-timeout"),
    (["{url}/elsewhere", "--model", "m", "--api", "decisions"], "has none of these APIs"),
    (["{url}/elsewhere"], "lists no models (404"),
]


async def test_what_cannot_be_checked_has_exit_code_2_and_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with served() as server:
        for tokens, why in UNUSABLE:
            code = await command(*(token.format(url=server.url) for token in tokens))
            said = capsys.readouterr().err
            assert (code, why in said) == (2, True), (tokens, code, said)


async def test_a_server_that_wants_a_key_is_asked_with_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "mine")
    async with running(SCRIPT, api_key=("mine",)) as server:
        assert await command(server.url) == 2
        assert "--api-key" in capsys.readouterr().err
        for given_key in (["--api-key", "mine"], ["--api-key-env", "MY_KEY"]):
            assert await command(server.url, "--only", "chat.shape,messages.shape", *given_key) == 0


async def test_the_checks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert await command("--list") == 0
    said = capsys.readouterr().out
    assert all(f"{check.id}: " in said and check.source in said for check in CHECKS)
