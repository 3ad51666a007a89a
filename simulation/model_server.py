"""A hostile server of the model at a URL, of vLLM's kind: it breaks off, floods and talks nonsense.

It takes the place of the engine in the servers of some simulations: these reach it by their own engine for
URLs. The answers are those of `engine.line_of`; a way in which each of them is sent is drawn. After a failure
nothing may be kept of it: no connection, no key in an answer, no text of one answer in another.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextvars import Context
from itertools import chain
from random import Random
from typing import Any

import httptools

from antiphon.core.limits import Limits
from antiphon.engines.engine import GenerationRequest, Receiver, Work
from antiphon.engines.script import Line, pieces_of
from antiphon.engines.scripted import TEMPLATE
from antiphon.engines.upstream import Options, UpstreamEngine
from simulation.engine import EngineLaws, line_of
from simulation.laws import law
from simulation.loop import PROCESS, Process, SimulatedLoop
from simulation.network import LATENCY, Transport

HOST = "model.example"
KEY = "secret-of-the-operator"
"""The key for it, which no client may see. The server quotes it in its errors."""
SILENCE = 4.0
"""Seconds after which servers give up waiting for it."""
ROOM = 65536
"""Bytes that wait for a process that does not read."""
CONTEXT = 8192
MARK = "<|im_start|>assistant\n"
"""After the last of them, the answer begins."""

WAYS = ("plain", "plain", "merged", "drip", "more", "twice", "flood", "comments", "cut")
"""How an answer is sent: in one piece, in many, with something after its end, or without its usage."""
FAILURES = ("lost", "ended", "error", "garbage", "endless", "silent")
"""How an answer fails after it has begun."""
REFUSALS = ("error", "status", "garbage", "compressed", "no http")
"""How one fails that never begins."""
FLOOD = 256 * 1024
"""Bytes of a line that are too many, and of what is sent after an end."""
LIMITS = Limits(upstream_line_bytes=FLOOD)


class ModelServer:
    """The server, which all servers of a simulation share. `away`: it refuses connections until then."""

    def __init__(self, seed: int, loop: SimulatedLoop) -> None:
        self.rng = Random(f"model server {seed}")
        self.loop = loop
        self.away = 0.0
        self._ids: dict[str, int] = {}
        self._texts: dict[int, str] = {}
        self._connections: dict[Connection, None] = {}

    async def accept(self, make_protocol: Callable[[], Any]) -> tuple[Transport, Any]:
        """A connection of the calling process. Raises OSError while it is away."""
        process = PROCESS.get()
        assert process is not None
        await asyncio.sleep(self.rng.random() * LATENCY)
        if self.away > self.loop.time():
            raise ConnectionRefusedError
        transport = Transport(self.loop, process, self._delay, ROOM, 80)
        transport.exchange = connection = Connection(self, transport)
        self._connections[connection] = None
        protocol = make_protocol()
        transport.made(protocol)
        return transport, protocol

    def open(self, process: Process) -> list["Connection"]:
        """The connections of a process."""
        return [each for each in self._connections if each.transport.process is process]

    def lose(self, process: Process) -> None:
        """A process was killed."""
        for connection in self.open(process):
            connection.transport.die()
            connection.lose()

    def leave(self, seconds: float) -> None:
        """Be away for a while: all connections are lost."""
        self.away = self.loop.time() + seconds
        for connection in [*self._connections]:
            connection.leave()

    def forget(self, connection: "Connection") -> None:
        """A connection is closed."""
        self._connections.pop(connection, None)

    def _delay(self, most: float) -> float:
        return self.rng.random() * most

    # Tokens: each byte of a prompt, each piece of an answer

    def token(self, piece: str) -> int:
        """The id of a piece."""
        number = self._ids.setdefault(piece, 256 + len(self._ids))
        self._texts[number] = piece
        return number

    def text(self, ids: list[int]) -> str:
        """The text of tokens."""
        raw = b"".join(bytes([each]) if each < 256 else self._texts[each].encode() for each in ids)
        return raw.decode(errors="replace")

    # What it answers

    def answer(self, path: str, body: Any) -> Any:
        """The answer to a request that is not for an answer of the model; None if there is no such path."""
        match path:
            case "/v1/models":
                return {"data": [{"id": "scripted", "owned_by": "vllm", "max_model_len": CONTEXT}]}
            case "/tokenizer_info":
                return {"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}
            case "/tokenize":
                return {"tokens": [*body["prompt"].encode()]}
            case "/detokenize":
                return {"prompt": self.text(body["tokens"])}
            case "/health":
                return {}
        return None

    def line(self, ids: list[int]) -> tuple[Line, list[str]]:
        """What is said after this prompt, and the pieces that are left of it."""
        prompt, mark, begun = self.text(ids).rpartition(MARK)
        if not mark:  # a prompt without turns
            prompt, begun = begun, ""
        line = line_of(prompt)
        whole = pieces_of(line.output)
        said = pieces_of(begun)
        law(said == whole[: len(said)], f"an answer is continued after {begun!r}, which was not said")
        return line, whole[len(said) :]


class Connection:
    """A connection to it: requests are answered one by one."""

    reads = True

    def __init__(self, server: ModelServer, transport: Transport) -> None:
        self.transport = transport
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._url = self._body = b""
        self._steps: Iterator[tuple[float, bytes]] = iter(())
        self._over = False
        self._ahead = 0  # bytes that the other side has not taken

    # Called by the transport

    def receive(self, data: bytes) -> None:
        """See `Peer`."""
        if not self._over:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserCallbackError as error:
                raise error.__context__ or error from None

    def lose(self) -> None:
        """See `Peer`."""
        self._over = True
        self._server.forget(self)

    def leave(self) -> None:
        """Close it, or lose it."""
        self.lose()
        self.transport.leave()

    # Called by the parser

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        path, body = self._url.decode(), json.loads(self._body or b"null")
        self._url = self._body = b""
        self._parser = httptools.HttpRequestParser(self)
        if path == "/v1/completions":
            self._steps = self._answer(body)
        else:
            found = self._server.answer(path, body)
            self._steps = iter([(0.0, _response(404 if found is None else 200, found))])
        self._step()

    def _step(self) -> None:
        """Send the next piece, if the connection is there."""
        if self._over:
            return
        seconds, piece = next(self._steps, (0.0, b""))
        if not piece:
            return
        self._ahead = 0 if self.transport.reading else self._ahead + len(piece)
        if self._ahead < ROOM:
            self.transport.send(piece)
        else:  # wait until there is room for it
            self._steps = chain([(seconds, piece)], self._steps)
            seconds = LATENCY
        self._server.loop.call_later(seconds, self._step, context=Context())

    def _answer(self, body: Any) -> Iterator[tuple[float, bytes]]:
        """The pieces of an answer of the model, and the seconds after each of them."""
        rng = self._server.rng
        line, left = self._server.line(body["prompt"])
        fails = line.fail_after
        if fails == 0:
            yield from self._refuse(rng.choice(REFUSALS))
            return
        way = rng.choice(WAYS)
        events = [self._event(piece, None) for piece in left[:-1]]
        events.append(self._event(left[-1] if left else "", "stop"))
        if fails is not None:
            events = events[:fails]
        pieces = [_chunk(event) for event in events]
        pieces[0] = _HEAD + pieces[0]
        if way == "merged":
            pieces = [b"".join(pieces)]
        for piece in pieces:
            if way == "drip":
                yield from ((0.0, piece[at : at + 7]) for at in range(0, len(piece), 7))
            else:
                yield line.delay_ms / 1000, piece
        if fails is not None:
            yield from self._fail(rng.choice(FAILURES))
        else:
            yield from self._end(way, len(left))

    def _event(self, piece: str, reason: str | None) -> bytes:
        ids = [self._server.token(piece)] if piece else []
        choice = {"text": piece, "token_ids": ids, "finish_reason": reason}
        return b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode()

    def _end(self, way: str, count: int) -> Iterator[tuple[float, bytes]]:
        """The end of an answer, and what comes after it, which nobody may read."""
        usage = {"choices": [], "usage": {"completion_tokens": count}}
        end = _chunk(b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(usage).encode())
        late = _chunk(self._event("late", None))
        match way:
            case "more":
                yield 0.0, end + late + _LAST
            case "twice":
                yield 0.0, end + _LAST + _HEAD + late + end + _LAST
            case "flood":
                yield 0.0, end
                yield from self._flood(late * 200)
            case "comments":
                yield from self._flood(_chunk(b": wait\n\n" * 1000))
            case "cut":
                self.leave()
            case _:
                yield 0.0, end
                yield 0.0, _LAST

    def _flood(self, piece: bytes) -> Iterator[tuple[float, bytes]]:
        """The same again and again, until somebody has enough."""
        for _ in range(2 * FLOOD // len(piece)):
            yield 0.01, piece
        law(False, "a flood is read to its end")

    def _fail(self, failure: str) -> Iterator[tuple[float, bytes]]:
        match failure:
            case "lost":
                self.leave()
            case "ended":
                yield 0.0, _LAST
            case "error":
                yield 0.0, _chunk(b'data: {"error": {"message": "It failed with %b"}}\n\n' % KEY.encode())
            case "garbage":
                yield 0.0, _chunk(b'data: {"choices": [{"text": [%b\n\n' % KEY.encode())
            case "endless":
                yield 0.0, _chunk(b"data: ")
                yield from self._flood(_chunk(b"x" * 8192))

    def _refuse(self, refusal: str) -> Iterator[tuple[float, bytes]]:
        said = {"error": {"message": f"Your key is {KEY}"}}
        match refusal:
            case "error":
                yield 0.0, _HEAD + _chunk(b"data: %b\n\n" % json.dumps(said).encode()) + _LAST
            case "status":
                yield 0.0, _response(self._server.rng.choice((400, 401, 404, 500, 503)), said)
            case "garbage":
                yield 0.0, _HEAD + _chunk(b"data: nothing\n\n") + _LAST
            case "compressed":
                yield 0.0, _HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n") + _chunk(b"\x1f")
            case "no http":
                yield 0.0, b"It works!\r\n\r\n"


_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_LAST = b"0\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _response(status: int, body: Any) -> bytes:
    encoded = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} .\r\ncontent-type: application/json\r\ncontent-length: {len(encoded)}\r\n\r\n"
    return head.encode() + encoded


class UrlEngine(UpstreamEngine):
    """The engine for its URL, whose work is checked."""

    def __init__(self, laws: EngineLaws) -> None:
        options = Options(f"http://{HOST}", upstream_kind="vllm", upstream_key=KEY, idle_seconds=SILENCE)
        super().__init__(options, LIMITS)
        self._laws = laws

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        """See `Engine`."""
        work = super().generate(request, receiver)
        self._laws.check(request, work)
        return work
