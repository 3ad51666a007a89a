"""The terminal client against servers that answer well, badly, in pieces, or not at all."""

import io
import json
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.chat import ChatClient, MarkdownBlocks, ask_once
from antiphon.cli import main

MODELS = {"object": "list", "data": [{"id": "first", "object": "model"}, {"id": "second"}]}
Reply = list[bytes | Callable[[], object]]
"""What a scripted server sends, piece by piece; a callable is called in between."""


class Server:
    """Answers each connection with the next reply, and keeps the requests."""

    def __init__(self, replies: list[Reply]) -> None:
        self.replies = replies
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.left_early = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/v1"
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        for reply in self.replies:
            try:
                connection, _ = self.listener.accept()
            except OSError:  # the test is over
                return
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.read(connection)
                self.write(connection, reply)

    def read(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as file:
            line = file.readline().decode()
            headers = {}
            while header := file.readline().decode().strip():
                name, _, value = header.partition(": ")
                headers[name.lower()] = value
            body = file.read(int(headers.get("content-length", "0")))
        self.requests.append((" ".join(line.split()[:2]), headers, json.loads(body) if body else None))

    def write(self, connection: socket.socket, reply: Reply) -> None:
        with suppress(ConnectionError):  # the client may leave as soon as it has seen enough
            for piece in reply:
                if callable(piece):
                    self.wait_until_left(connection, piece)
                else:
                    connection.sendall(piece)

    def wait_until_left(self, connection: socket.socket, make_leave: Callable[[], object]) -> None:
        """Make the client hang up. Again and again: a signal just before a system call does not wake it."""
        connection.settimeout(0.3)
        for _ in range(20):
            make_leave()
            with suppress(TimeoutError):
                assert connection.recv(1) == b"", "the client sent more"
                self.left_early.set()
                return

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(5)
        assert not self.thread.is_alive()


@pytest.fixture
def scripted() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(*replies: Reply) -> Server:
        servers.append(Server(list(replies)))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def body(value: object, status: str = "200 OK") -> Reply:
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    return [f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n\r\n".encode(), content]


def chunk(**delta: str) -> bytes:
    value = {"id": "x", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def finish(reason: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"' + reason.encode() + b'"}]}\n\n'


DONE = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def stream(*events: bytes, size: int = 10**9, end: bytes = b"0\r\n\r\n") -> Reply:
    """A chunked answer, cut into pieces of `size` bytes regardless of their content."""
    text = b"".join(events)
    cuts = [text[at : at + size] for at in range(0, len(text), size)]
    return [HEAD, *(b"%x\r\n%b\r\n" % (len(cut), cut) for cut in cuts), end]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_one_shot(scripted: Callable[..., Server], capsys: pytest.CaptureFixture[str]) -> None:
    server = scripted(body(MODELS), stream(chunk(content="Hel"), chunk(content="lo"), finish("stop"), DONE))
    assert main(["chat", "--url", server.url, "--api-key", "k", "--system", "Be brief.", "say", "hello"]) == 0
    assert capsys.readouterr() == ("Hello\n", "")
    (list_line, list_headers, _), (line, headers, request) = server.requests
    assert list_line == "GET /v1/models"
    assert line == "POST /v1/chat/completions"
    assert headers["authorization"] == list_headers["authorization"] == "Bearer k"
    assert request == {
        "model": "first",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "say hello"}],
        "stream": True,
    }


def test_a_model_given_is_not_looked_up(scripted: Callable[..., Server]) -> None:
    server = scripted(stream(DONE))
    assert main(["chat", "--url", server.url + "/", "--model", "mine", "hi"]) == 0
    ((line, headers, request),) = server.requests
    assert line == "POST /v1/chat/completions"
    assert "authorization" not in headers
    assert request["model"] == "mine"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_bytes_cut_anywhere(
    scripted: Callable[..., Server], capsys: pytest.CaptureFixture[str], size: int
) -> None:
    noise = b": keep-alive\n\nevent: message\r\nid: 7\r\n"
    spread = b'data: {"choices":\ndata:[{"delta": {"content": "!"}}]}\r\n\r\n'
    no_choices = b'data: {"choices":[],"usage":{"total_tokens":3}}\n\n'
    events = (chunk(content="né"), noise, chunk(content="🙂\nx"), spread, no_choices, finish("stop"), DONE)
    server = scripted(stream(*events, size=size))
    ask_once(ChatClient(server.url, model="m"), "hi", None)
    assert capsys.readouterr().out == "né🙂\nx!\n"


def plain(text: str) -> str:
    """What was drawn, without colours and moves of the cursor."""
    return re.sub(r"\x1b\[\??[\d;]*[A-Za-z]", "", text)


def terminal_of(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """The terminal that is written to from now on; pytest takes the output again after each fixture."""
    for name, value in {"TERM": "xterm", "COLUMNS": "60", "LINES": "10"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", out := Terminal())
    return out


def test_reasoning_is_dimmed_and_markdown_is_rendered(
    scripted: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "It is **so**.\n\n```python\nprint(1)\n\nprint(2)\n```\n\n- one\n- two\n\n[here](http://there.example)"
    parts = [chunk(content=said[at : at + 3]) for at in range(0, len(said), 3)]
    calls = b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"name":"get"}}]}}]}\n\n'
    events = (chunk(reasoning_content="Hm"), chunk(reasoning_content="m."), *parts, calls)
    server = scripted(stream(*events, finish("length"), DONE))
    terminal = terminal_of(monkeypatch)
    ask_once(ChatClient(server.url, model="m"), "hi", None)
    out = terminal.getvalue()
    assert "\x1b[2mHm\x1b[0m" in out
    assert "\x1b[1mso\x1b[0m" in out
    drawn = plain(out)
    for line in ("Hmm.\n", "It is so.", "print(2)", "• two", "here (http://there.example)"):
        assert line in drawn
    assert "```" not in drawn.rpartition("print(2)")[2]
    assert drawn.endswith("(calls get, which is not run here)\n(the limit of tokens was reached)\n")


def test_a_block_that_is_higher_than_the_terminal_is_shown_whole_in_the_end(
    scripted: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "```\n" + "".join(f"line {number}\n" for number in range(40)) + "```\n"
    server = scripted(stream(*(chunk(content=line + "\n") for line in code.split("\n")), DONE))
    terminal = terminal_of(monkeypatch)
    ask_once(ChatClient(server.url, model="m"), "hi", None)
    lines = re.findall(r"line (\d+)", plain(terminal.getvalue()))
    assert [*map(int, lines[-40:])] == [*range(40)]


@given(st.lists(st.sampled_from(["a", "\n", "\n\n", "```", "~~~ x", " "]), max_size=40))
def test_blocks_are_the_text(pieces: list[str]) -> None:
    blocks = MarkdownBlocks()
    done = [block for piece in pieces for block in blocks.feed(piece)]
    whole = "".join([*done, blocks.end()])
    assert whole.replace("\n", "").replace(" ", "") == "".join(pieces).replace("\n", "").replace(" ", "")
    assert all(block.strip() and block.endswith("\n") for block in done)
    assert not len(blocks)


def test_a_pipe_gets_the_answer_only(
    scripted: Callable[..., Server], capsys: pytest.CaptureFixture[str]
) -> None:
    server = scripted(stream(chunk(reasoning_content="Hmm."), chunk(content="Yes."), finish("length"), DONE))
    ask_once(ChatClient(server.url, model="m"), "hi", None)
    assert capsys.readouterr().out == "Yes.\n"


def test_a_model_cannot_steer_the_terminal(
    scripted: Callable[..., Server], capsys: pytest.CaptureFixture[str]
) -> None:
    server = scripted(stream(chunk(content="a\x1b]0;title\x07\tb\x9b2J\r\nc"), DONE))
    ask_once(ChatClient(server.url, model="m"), "hi", None)
    assert capsys.readouterr().out == "a]0;title\tb2J\nc\n"


ERROR = {"error": {"message": "No such model: m.", "type": "not_found_error", "param": "model", "code": None}}


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (body(ERROR, "404 Not Found"), "No such model: m."),
        (body(b"<html>bad gateway</html>", "502 Bad Gateway"), "502 Bad Gateway"),
        (body({"detail": "?"}, "500 Internal Server Error"), "500 Internal Server Error"),
        (stream(chunk(content="a"), b"data: " + json.dumps(ERROR).encode() + b"\n\n"), "No such model: m."),
        (stream(chunk(content="a"), b"data: {broken\n\n"), "Chat Completions"),
        (stream(chunk(content="a"), b'data: {"choices": 3}\n\n'), "Chat Completions"),
        (stream(chunk(content="a")), "middle of the answer"),
        (stream(chunk(content="a"), end=b""), "middle of the answer"),
        (stream(chunk(content="a"), end=b"40\r\ndata: {"), "was lost"),
        ([b"SSH-2.0-OpenSSH\r\n"], "was lost"),
        ([], "was lost"),
    ],
)
def test_errors_are_one_line(
    scripted: Callable[..., Server], capsys: pytest.CaptureFixture[str], reply: Reply, says: str
) -> None:
    server = scripted(reply)
    assert main(["chat", "--url", server.url, "--model", "m", "hi"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("antiphon: ")
    assert err.count("\n") == 1
    assert says in err


@pytest.mark.parametrize(
    ("reply", "says"), [(body({"data": []}), "no model"), (body({"models": []}), "Chat Completions")]
)
def test_no_model(
    scripted: Callable[..., Server], capsys: pytest.CaptureFixture[str], reply: Reply, says: str
) -> None:
    assert main(["chat", "--url", scripted(reply).url, "hi"]) == 1
    assert says in capsys.readouterr().err


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    for prompt in (["hi"], []):
        assert main(["chat", "--url", url, *prompt]) == 1
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert url in err
        assert "antiphon serve" in err


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x/v1", "http://", "http://x:port/v1", "http://[x"])
def test_bad_url(capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert main(["chat", "--url", url, "hi"]) == 1
    assert url in capsys.readouterr().err


def test_a_conversation_keeps_its_history(
    scripted: Callable[..., Server], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = scripted(
        body(MODELS),
        stream(chunk(content="one"), DONE),
        body(ERROR, "404 Not Found"),
        stream(chunk(content="two"), DONE),
        stream(chunk(content="three"), DONE),
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO("1\n\nlost\n 2 \n/new\n3\n"))
    assert main(["chat", "--url", server.url, "--system", "S"]) == 0
    asked = [[m["content"] for m in request["messages"]] for _, _, request in server.requests[1:]]
    assert asked == [["S", "1"], ["S", "1", "one", "lost"], ["S", "1", "one", "2"], ["S", "3"]]
    out, err = capsys.readouterr()
    assert out.split() == ["one", "two", "three"]
    assert err == "antiphon: No such model: m.\n"


def test_commands(
    scripted: Callable[..., Server], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = scripted(
        *[body(MODELS)] * 4, stream(chunk(content="one"), DONE), stream(chunk(content="two"), DONE)
    )
    typed = "/model\n/model nobody\n/model second\n/tools\n/tools web_search shell\n/system\n1\n/system Be brief.\n/tools none\n2\n/nope\n/etc/passwd says\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed.rpartition("/etc")[0] + "/help\n"))
    assert main(["chat", "--url", server.url]) == 0
    out, err = capsys.readouterr()
    said, _, helped = out.partition("two\n")
    assert said.splitlines() == [
        "* first",
        "  second",
        "none",
        "web_search shell",
        "There is none.",
        "one",
        "none",
    ]
    assert "/system TEXT" in helped
    assert err.splitlines() == [
        "antiphon: there is no model nobody. There are: first, second.",
        "antiphon: there is no /nope. /help lists the commands.",
    ]
    first, second = (request for _, _, request in server.requests[-2:])
    assert (first["model"], first["tools"]) == ("second", [{"type": "web_search"}, {"type": "shell"}])
    assert [m["content"] for m in second["messages"]] == ["Be brief.", "2"]
    assert "tools" not in second


@pytest.mark.parametrize(
    ("variables", "key"),
    [
        ({"ANTIPHON_URL": "URL", "OPENAI_API_KEY": "theirs"}, None),
        ({"OPENAI_BASE_URL": "URL", "OPENAI_API_KEY": "theirs"}, "Bearer theirs"),
        ({"OPENAI_BASE_URL": "URL", "ANTIPHON_API_KEY": "ours", "OPENAI_API_KEY": "theirs"}, "Bearer ours"),
        ({"ANTIPHON_URL": "URL", "OPENAI_BASE_URL": "http://127.0.0.1:1", "OPENAI_API_KEY": "theirs"}, None),
    ],
)
def test_the_server_may_be_in_a_variable(
    scripted: Callable[..., Server],
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    key: str | None,
) -> None:
    server = scripted(stream(DONE))
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("URL", server.url.removesuffix("/v1")))
    assert main(["chat", "--model", "m", "hi"]) == 0
    ((line, headers, _),) = server.requests
    assert (line, headers.get("authorization")) == ("POST /v1/chat/completions", key)


def test_exit(
    scripted: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = scripted(body(MODELS))
    monkeypatch.setattr(sys, "stdin", io.StringIO("/exit\nnot asked\n"))
    assert main(["chat", "--url", server.url]) == 0
    assert len(server.requests) == 1
    assert capsys.readouterr() == ("", "")


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C interrupts, also where the tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    """Press Ctrl-C."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_stops_the_answer_hangs_up_and_stays(
    scripted: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = threading.Event()
    out = Terminal()

    class Watched(Terminal):
        def write(self, text: str) -> int:
            if "begun" in text:
                shown.set()
            return out.write(text)

    first: Reply = [*stream(chunk(content="begun"), end=b""), lambda: shown.wait(5) and interrupt()]
    server = scripted(body(MODELS), first, stream(chunk(content="again"), DONE))
    monkeypatch.setattr(sys, "stdin", io.StringIO("1\n2\n"))
    monkeypatch.setattr(sys, "stdout", Watched())
    assert main(["chat", "--url", server.url]) == 0
    assert server.left_early.is_set()
    assert "(stopped)" in out.getvalue()
    assert "again" in out.getvalue()
    assert [m["content"] for m in server.requests[-1][2]["messages"]] == ["1", "begun", "2"]


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_a_one_shot(scripted: Callable[..., Server]) -> None:
    server = scripted([*stream(chunk(content="begun"), end=b""), interrupt])
    assert main(["chat", "--url", server.url, "--model", "m", "hi"]) == 130
