"""`antiphon chat`: a small terminal client of any Chat Completions server.

An answer is streamed and printed while it arrives, with rendered Markdown and dimmed reasoning. Stopping one
closes its connection, so that the server stops working on it. If the output is not a terminal, it is the
answer as the model wrote it, and nothing else. The client uses only the HTTP API, and decodes only the
fields that it shows.
"""

import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, TextIO, TypeVar
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct
from rich.console import Console, RenderableType
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text

from antiphon.core.errors import AntiphonError

CONNECT_SECONDS = 10
# A model must not move the cursor or set the window's title: no control characters but \t and \n.
WITHOUT_CONTROL_CHARACTERS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)], None)


class ChatError(AntiphonError):
    """The server did not answer."""


class FunctionName(Struct):
    """The function of a call."""

    name: str | None = None


class Call(Struct):
    """A part of a call: its first has the name."""

    function: FunctionName = msgspec.field(default_factory=FunctionName)


class Delta(Struct):
    """The addition of a chunk to a choice."""

    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None


class Choice(Struct):
    """A choice in a chunk."""

    delta: Delta = msgspec.field(default_factory=Delta)
    finish_reason: str | None = None


class Failure(Struct):
    """An error of the server."""

    message: str


class StreamChunk(Struct):
    """A streamed chunk, or an error in its place; also the body of an error."""

    choices: list[Choice] = []
    error: Failure | None = None


class ServerModel(Struct):
    """One entry of the model list."""

    id: str
    max_model_len: int | None = None


class ServerModels(Struct):
    """The model list."""

    data: list[ServerModel]


Message = dict[str, str]
T = TypeVar("T")


class ChatClient:
    """One server, key and model. The model is looked up once, if not given."""

    def __init__(self, url: str, *, api_key: str | None = None, model: str | None = None) -> None:
        try:
            self.url = urlsplit(url.rstrip("/"))
            self.port = self.url.port
        except ValueError as error:
            raise ChatError(f"{url} is not a URL: {error}.") from error
        if self.url.scheme not in {"http", "https"} or not self.url.hostname:
            raise ChatError(f"{url} is not an http or https URL.")
        if not self.url.path:
            self.url = self.url._replace(path="/v1")
        self.headers = {"Content-Type": "application/json"}
        if api_key:
            self.headers["Authorization"] = f"Bearer {api_key}"
        self._model = model
        self.tools: list[str] = []
        """The types of tools that the server runs for the model."""

    def model(self) -> str:
        """The selected model, or the first that the server lists."""
        if self._model is None:
            models = self.models()
            if not models:
                raise ChatError("the server has no model.")
            self._model = models[0]
        return self._model

    def models(self) -> list[str]:
        """The models that the server lists."""
        return [model.id for model in _decode(self.get("/models"), ServerModels).data]

    def context(self) -> int | None:
        """The most tokens of a prompt of the model with its answer; None if the server does not tell.

        Raises ChatError if the server has no such model.
        """
        return _decode(self.get(f"/models/{quote(self.model())}"), ServerModel).max_model_len

    def choose(self, model: str) -> None:
        """Ask this model from now on."""
        self._model = model

    def answer(self, messages: list[Message]) -> Generator[Choice, None, None]:
        """The parts of the answer as they arrive. Closing the generator closes the connection."""
        body: dict[str, Any] = {"model": self.model(), "messages": messages, "stream": True}
        if self.tools:
            body["tools"] = [{"type": tool} for tool in self.tools]
        with self.request("POST", "/chat/completions", msgspec.json.encode(body)) as response:
            for data in _events(response):
                if data == b"[DONE]":
                    return
                chunk = _decode(data, StreamChunk)
                if chunk.error:
                    raise ChatError(chunk.error.message)
                yield from chunk.choices[:1]
        raise ChatError("the connection ended in the middle of the answer.")

    def get(self, path: str) -> bytes:
        """The body at a path of the API. Raises ChatError."""
        with self.request("GET", path) as response:
            return response.read()

    @contextmanager
    def request(
        self, method: str, path: str, content: bytes | Iterable[bytes] | None = None, **headers: str
    ) -> Iterator[HTTPResponse]:
        """A response with status 200; every other outcome is a ChatError."""
        kind = HTTPSConnection if self.url.scheme == "https" else HTTPConnection
        connection = kind(str(self.url.hostname), self.port, timeout=CONNECT_SECONDS)
        try:
            self._connect(connection)
            connection.request(method, self.url.path + path, content, {**self.headers, **headers})
            response = connection.getresponse()
            if response.status != 200:
                raise ChatError(_refusal(response))
            yield response
        except (OSError, HTTPException) as error:
            raise ChatError(f"the connection to {self.url.netloc} was lost: {error!r}.") from error
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
        failure = msgspec.json.decode(response.read(), type=StreamChunk).error
    except msgspec.DecodeError:
        failure = None
    return failure.message if failure else f"the server answered {response.status} {response.reason}."


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise ChatError(f"this is not a Chat Completions server: {error}.") from error


def _events(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The data of each server-sent event; other fields and comments are ignored."""
    data: list[bytes] = []
    for line in lines:
        field, _, value = line.rstrip(b"\r\n").partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif not field and not value and data:
            yield b"\n".join(data)
            data = []


class AnswerPrinter:
    """Prints one answer; `text` is its text so far, without the reasoning.

    If the output is not a terminal, only the text is printed.
    """

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.text = ""

    def show(self, choice: Choice) -> None:
        """Show a part of the answer."""
        if choice.delta.reasoning_content:
            self._print_reasoning(choice.delta.reasoning_content.translate(WITHOUT_CONTROL_CHARACTERS))
        if choice.delta.content:
            self.text += choice.delta.content
            self._print_text(choice.delta.content.translate(WITHOUT_CONTROL_CHARACTERS))
        for call in choice.delta.tool_calls or ():
            if call.function.name:
                self.note(
                    f"calls {call.function.name.translate(WITHOUT_CONTROL_CHARACTERS)}, which is not run here"
                )
        if choice.finish_reason == "length":
            self.note("the limit of tokens was reached")

    def note(self, text: str) -> None:
        """Print a note on the answer."""

    def end(self) -> None:
        """Leave the cursor on a fresh line."""
        if self.text:
            self._print_text("\n")

    def _print_reasoning(self, text: str) -> None:
        """A part of the reasoning."""

    def _print_text(self, text: str) -> None:
        self.out.write(text)
        self.out.flush()


class MarkdownBlocks:
    """Splits text after each blank line outside of fences. `incomplete` is the text after the last split."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._rest = ""
        self._fenced = False

    @property
    def incomplete(self) -> str:
        """The incomplete block."""
        return "".join([*self._lines, self._rest])

    def last(self, count: int) -> str:
        """The last lines of it."""
        return "".join([*self._lines[-count:], self._rest])

    def __len__(self) -> int:
        """How many whole lines it has."""
        return len(self._lines)

    def feed(self, text: str) -> list[str]:
        """The blocks that are done with this text."""
        *lines, self._rest = (self._rest + text).split("\n")
        blocks = []
        for line in lines:
            self._lines.append(line + "\n")
            if line.lstrip().startswith(("```", "~~~")):
                self._fenced = not self._fenced
            elif not line.strip() and not self._fenced:
                blocks.append("".join(self._lines))
                self._lines = []
        return [block for block in blocks if block.strip()]

    def end(self) -> str:
        """The rest, at the end of the text."""
        rest, self._lines, self._rest, self._fenced = self.incomplete, [], "", False
        return rest


class Terminal(AnswerPrinter):
    """Prints to a terminal: reasoning is dimmed, Markdown is rendered, block by block.

    The current block is drawn again when it grows; a complete one is not drawn any more. So the size of a
    redraw is that of a paragraph, for an answer of any length.
    """

    def __init__(self, out: TextIO) -> None:
        super().__init__(out)
        self._console = Console(file=out, highlight=False, markup=False)
        self._blocks = MarkdownBlocks()
        self._live: Live | None = None
        self._thinking = False

    def note(self, text: str) -> None:
        """Print a note on the answer."""
        self._flush()
        self._console.print(f"({text})", style="dim")

    def end(self) -> None:
        """Leave the cursor on a fresh line."""
        self._flush()

    def _print_reasoning(self, text: str) -> None:
        self._print_block()
        self._thinking = True
        self._console.print(text, style="dim", end="", soft_wrap=True)

    def _print_text(self, text: str) -> None:
        self._end_reasoning()
        blocks = self._blocks.feed(text)
        if blocks:
            self._stop_live()
            for block in blocks:
                self._console.print(_markdown(block))
        if self._live is None:
            self._live = Live(
                console=self._console,
                transient=True,
                refresh_per_second=10,
                get_renderable=self._current_block,
            )
            self._live.start()

    def _current_block(self) -> RenderableType:
        """The current block; its end, if it is higher than the terminal."""
        lines = max(1, self._console.height - 2)
        if len(self._blocks) < lines:
            return _markdown(self._blocks.incomplete)
        return Text(self._blocks.last(lines))

    def _flush(self) -> None:
        self._end_reasoning()
        self._print_block()

    def _end_reasoning(self) -> None:
        if self._thinking:
            self._console.print()
            self._thinking = False

    def _print_block(self) -> None:
        """Print the current block for the last time."""
        self._stop_live()
        if (block := self._blocks.end()).strip():
            self._console.print(_markdown(block))

    def _stop_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _markdown(text: str) -> Markdown:
    # A link is printed with its URL: a hyperlink of a model could have a misleading text.
    return Markdown(text, hyperlinks=False)


def printer_for(out: TextIO) -> AnswerPrinter:
    """The printer of answers for `out`."""
    return Terminal(out) if out.isatty() else AnswerPrinter(out)


def ask_once(client: ChatClient, prompt: str, system: str | None) -> None:
    """Ask once and print the answer. Raises ChatError."""
    _stream(client, [*_first_messages(system), {"role": "user", "content": prompt}], printer_for(sys.stdout))


HELP = """\
/model         the models of the server; /model NAME asks another one from now on
/system        the system message; /system TEXT sets one, and starts over
/tools         what the server may run for the model; /tools code_interpreter web_search sets it, /tools none
/new           start over
/exit          leave, as Ctrl-D does
Ctrl-C stops an answer."""


class TerminalConversation:
    """A conversation in the terminal: a line is a message, or one of the commands in `HELP`."""

    def __init__(self, client: ChatClient, system: str | None) -> None:
        self._client = client
        self._system = system
        self._history = _first_messages(system)
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: print(HELP),
            "/new": lambda _: self._start_over(),
            "/model": self._choose_model,
            "/system": self._set_system,
            "/tools": self._set_tools,
        }

    def handle(self, line: str) -> bool:
        """Process a line; returns whether the conversation continues."""
        word, _, rest = line.strip().partition(" ")
        try:
            if word == "/exit":
                return False
            if word in self._commands:
                self._commands[word](rest.strip())
            elif re.fullmatch(r"/\w+", word):
                print(f"antiphon: there is no {word}. /help lists the commands.", file=sys.stderr)
            elif word:
                self._history += _ask(self._client, self._history, line.strip())
        except ChatError as error:
            print("antiphon:", error.message, file=sys.stderr)
        return True

    def _start_over(self) -> None:
        self._history = _first_messages(self._system)

    def _choose_model(self, name: str) -> None:
        names = self._client.models()
        if not name:
            print(*(f"{'*' if model == self._client.model() else ' '} {model}" for model in names), sep="\n")
        elif name not in names:
            raise ChatError(f"there is no model {name}. There are: {', '.join(names)}.")
        else:
            self._client.choose(name)

    def _set_system(self, text: str) -> None:
        if text:
            self._system = text
            self._start_over()
        else:
            print(self._system or "There is none.")

    def _set_tools(self, types: str) -> None:
        if types:
            self._client.tools = [] if types == "none" else [*types.split()]
        print(*self._client.tools or ["none"])


def converse(client: ChatClient, system: str | None) -> None:
    """Converse until `/exit` or the end of the input. Raises ChatError if there is no server."""
    model = client.model()
    if sys.stdin.isatty():
        with suppress(ImportError):  # not on every platform; it gives `input` line editing and history
            import readline  # noqa: F401, PLC0415 (at the top it would cost every command)
        print(f"{model}. /help lists the commands, /exit ends the chat, Ctrl-C stops an answer.")
    conversation = TerminalConversation(client, system)
    while (line := _read_line()) is not None and conversation.handle(line):
        pass


def _ask(client: ChatClient, history: list[Message], text: str) -> list[Message]:
    """One question and its answer, as far as it was received; nothing if none was."""
    question = {"role": "user", "content": text}
    printer = printer_for(sys.stdout)
    with suppress(KeyboardInterrupt):
        try:
            _stream(client, [*history, question], printer)
        except ChatError as error:
            print("antiphon:", error.message, file=sys.stderr)
    return [question, {"role": "assistant", "content": printer.text}] if printer.text else []


def _stream(client: ChatClient, messages: list[Message], printer: AnswerPrinter) -> None:
    """Print an answer while it arrives. The connection is closed in any case."""
    try:
        with closing(client.answer(messages)) as choices:
            for choice in choices:
                printer.show(choice)
    except KeyboardInterrupt:
        printer.note("stopped")
        raise
    finally:
        printer.end()


def _first_messages(system: str | None) -> list[Message]:
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
