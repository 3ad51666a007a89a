"""`antiphon chat`: a small terminal client of any Chat Completions server.

An answer is streamed and printed as it comes, reasoning dimmed. Stopping one
closes its connection, so that the server stops working on it. When the output
is not a terminal, it is the answer and nothing else.

It knows nothing of the server's inside: only the wire, and of that only what it shows.
"""

import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, TextIO, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from antiphon.core.errors import AntiphonError

CONNECT_SECONDS = 10
DIM, PLAIN = "\x1b[2m", "\x1b[0m"
# A model must not move the cursor or set the window's title: no control characters but \t and \n.
HARMLESS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)], None)


class ChatError(AntiphonError):
    """The server did not answer."""


class Delta(Struct):
    """What a chunk adds to a choice."""

    content: str | None = None
    reasoning_content: str | None = None


class Choice(Struct):
    """One answer's part of a chunk."""

    delta: Delta = msgspec.field(default_factory=Delta)
    finish_reason: str | None = None


class Failure(Struct):
    """What the server says went wrong."""

    message: str


class Chunk(Struct):
    """A streamed chunk, or an error in its place; also the body of an error."""

    choices: list[Choice] = []
    error: Failure | None = None


class Model(Struct):
    """One entry of the model list."""

    id: str


class Models(Struct):
    """The model list."""

    data: list[Model]


Message = dict[str, str]
T = TypeVar("T")


class Client:
    """One server, key and model. The model is looked up once, if not given."""

    def __init__(self, url: str, *, api_key: str | None = None, model: str | None = None) -> None:
        try:
            self.url = urlsplit(url.rstrip("/"))
            self.port = self.url.port
        except ValueError as error:
            raise ChatError(f"{url} is no URL: {error}.") from error
        if self.url.scheme not in {"http", "https"} or not self.url.hostname:
            raise ChatError(f"{url} is no http or https URL.")
        self.headers = {"Content-Type": "application/json"}
        if api_key:
            self.headers["Authorization"] = f"Bearer {api_key}"
        self._model = model

    def model(self) -> str:
        """The model to ask: the one given, or the first that the server lists."""
        if self._model is None:
            with self._request("GET", "/models") as response:
                models = _decode(response.read(), Models).data
            if not models:
                raise ChatError("the server has no model.")
            self._model = models[0].id
        return self._model

    def answer(self, messages: list[Message]) -> Generator[Choice, None, None]:
        """The parts of the answer as they come. Closing this closes the connection."""
        body = {"model": self.model(), "messages": messages, "stream": True}
        with self._request("POST", "/chat/completions", body) as response:
            for data in _events(response):
                if data == b"[DONE]":
                    return
                chunk = _decode(data, Chunk)
                if chunk.error:
                    raise ChatError(chunk.error.message)
                yield from chunk.choices[:1]
        raise ChatError("the connection ended in the middle of the answer.")

    def get(self, path: str) -> bytes:
        """What the server has at a path of its API. Raises ChatError."""
        with self._request("GET", path) as response:
            return response.read()

    @contextmanager
    def _request(self, method: str, path: str, body: Any = None) -> Iterator[HTTPResponse]:
        """A response with status 200; every other outcome is a ChatError."""
        kind = HTTPSConnection if self.url.scheme == "https" else HTTPConnection
        connection = kind(str(self.url.hostname), self.port, timeout=CONNECT_SECONDS)
        try:
            self._connect(connection)
            content = None if body is None else msgspec.json.encode(body)
            connection.request(method, self.url.path + path, content, self.headers)
            response = connection.getresponse()
            if response.status != 200:
                raise ChatError(_refusal(response))
            yield response
        except (OSError, HTTPException) as error:
            raise ChatError(f"the connection to {self.url.netloc} broke: {error!r}.") from error
        finally:
            connection.close()

    def _connect(self, connection: HTTPConnection) -> None:
        try:
            connection.connect()
        except OSError as error:
            raise ChatError(
                f"no server at {self.url.geturl()} ({error.strerror or error}). "
                "Start one with `antiphon serve`, or name another with --url."
            ) from error
        connection.sock.settimeout(None)  # a long prompt may take minutes until its first token


def _refusal(response: HTTPResponse) -> str:
    """Why the server refused, in its own words if it has any."""
    try:
        failure = msgspec.json.decode(response.read(), type=Chunk).error
    except msgspec.DecodeError:
        failure = None
    return failure.message if failure else f"the server answered {response.status} {response.reason}."


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise ChatError(f"this is no Chat Completions server: {error}.") from error


def _events(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The data of each server-sent event; other fields and comments say nothing to a chat."""
    data: list[bytes] = []
    for line in lines:
        field, _, value = line.rstrip(b"\r\n").partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif not field and not value and data:
            yield b"\n".join(data)
            data = []


class Screen:
    """One answer as it is shown; `text` is what it says so far, without the reasoning."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.terminal = out.isatty()
        self.text = ""
        self._style = ""

    def show(self, choice: Choice) -> None:
        """Show a part of the answer."""
        if choice.delta.reasoning_content and self.terminal:
            self._write(choice.delta.reasoning_content, DIM)
        if choice.delta.content:
            self.text += choice.delta.content
            self._write(choice.delta.content, PLAIN)
        if choice.finish_reason == "length":
            self.note("the limit of tokens was reached")

    def note(self, text: str) -> None:
        """Say something about the answer."""
        if self.terminal:
            self._write(f"({text})", DIM)

    def end(self) -> None:
        """Leave the cursor on a fresh line."""
        if self._style:
            self.out.write(PLAIN + "\n" if self.terminal else "\n")
            self.out.flush()

    def _write(self, text: str, style: str) -> None:
        """Write in a style; each change of style starts a line."""
        if style != self._style:
            self.out.write(("\n" if self._style else "") + (style if self.terminal else ""))
            self._style = style
        self.out.write(text.translate(HARMLESS))
        self.out.flush()


def say(client: Client, prompt: str, system: str | None) -> None:
    """Ask once and print the answer. Raises ChatError."""
    _stream(client, [*_opening(system), {"role": "user", "content": prompt}], Screen(sys.stdout))


def converse(client: Client, system: str | None) -> None:
    """Ask and answer until `/exit` or the end of the input. Raises ChatError if no server is there."""
    model = client.model()
    if sys.stdin.isatty():
        with suppress(ImportError):  # not everywhere; it gives `input` line editing and history
            import readline  # noqa: F401, PLC0415 (at the top it would cost every command)
        print(f"{model}. /new starts over, /exit leaves, Ctrl-C stops an answer.")
    history = _opening(system)
    while (line := _read_line()) is not None:
        match line.strip():
            case "":
                continue
            case "/exit":
                return
            case "/new":
                history = _opening(system)
            case text:
                history += _exchange(client, history, text)


def _exchange(client: Client, history: list[Message], text: str) -> list[Message]:
    """One question and its answer, as far as it came; nothing if none did."""
    question = {"role": "user", "content": text}
    screen = Screen(sys.stdout)
    with suppress(KeyboardInterrupt):
        try:
            _stream(client, [*history, question], screen)
        except ChatError as error:
            print("antiphon:", error.message, file=sys.stderr)
    return [question, {"role": "assistant", "content": screen.text}] if screen.text else []


def _stream(client: Client, messages: list[Message], screen: Screen) -> None:
    """Show an answer as it comes. However that ends, the connection closes."""
    try:
        with closing(client.answer(messages)) as choices:
            for choice in choices:
                screen.show(choice)
    except KeyboardInterrupt:
        screen.note("stopped")
        raise
    finally:
        screen.end()


def _opening(system: str | None) -> list[Message]:
    return [{"role": "system", "content": system}] if system else []


def _read_line() -> str | None:
    """The next line typed; None at the end. Ctrl-C here drops the line, as shells do."""
    try:
        return input("> " if sys.stdin.isatty() else "")
    except KeyboardInterrupt:
        print()
        return ""
    except EOFError:
        if sys.stdin.isatty():
            print()
        return None
