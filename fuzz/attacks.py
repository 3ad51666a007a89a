"""Attacks of single clients that try to stop a server for everybody else.

    python fuzz/attacks.py [NAME …]

Starts `antiphon serve` with the scripted engine. While an attack runs, another client repeats a small
request; it sends the same to a server that is not attacked. The table shows for each attack the longest wait
of that client, and at the other server; the longest time for which the server's own work blocked its event
loop, and the total; the growth of the server's memory during the attack and after it, and the answers that
the attacker got. So a busy machine is recognised. Exits with 1 if the other client ever waited for longer
than `MAX_WAIT`, beyond its wait at the other server; if the server blocked its loop for longer than
`MAX_HELD`, if memory was not freed, or if anything was answered with 500 or above. `README.md` lists the
limits that stop each attack.

To add an attack: a function with `@attack`; a server in `hostile.py`. It fails where the mend is taken out.
"""

import argparse
import gzip
import json
import os
import re
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

if __name__ == "__main__":
    # For a script, Python's path begins with its folder; the benches are `bench.…`.
    sys.path[0] = str(Path(__file__).parent.parent)

import brotli
from backports import zstd
from fuzz import hostile
from sqlalchemy import create_engine
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from antiphon.core.accounts import ANYONE
from bench.lists import FIRST, fill

MAX_WAIT = 1.0
"""Seconds that another client may wait, beyond its wait at a server that is not attacked."""
MAX_HELD = 0.05
"""Seconds that the server may hold its event loop."""
WAITS = dict.fromkeys(("readers-that-do-not-read", "stored-answers-that-are-not-read"), 3.0 + MAX_WAIT)
"""When readers that do not read hold all slots, another client gets one when the first is cut off:
`--stall-seconds` after its buffers are full, unless it has `unread_chunks` before."""
MAX_KEPT = 50
"""MB that a server may keep."""
SECONDS = 12
"""The most seconds of an attack; requests without an answer then count as `no answer`."""
MEMORY = 6 * 1024**3
"""Bytes of address space that the server may use: an attack must not stop the machine."""
PARALLEL = 16
ATTACKER, OTHER = "127.0.0.1", "127.0.0.2"
"""Their addresses: without keys, a client is an address."""
SCRIPT = [
    {"when": "count", "output": "one two ", "tokens": 5000},
    {"when": "stop strings", "output": "a" * 4000, "split": 100},
    {"output": '{"a": 1}'},
]

ANTIPHON = """
import sys
from antiphon.app.metrics import LoopDelay
from antiphon.cli import main
LoopDelay.STEP = LoopDelay.LONGEST_STEP = 0.005
sys.exit(main(sys.argv[1:]))
"""
"""What a user runs, but for how often the server looks at how long its loop is held: by itself it looks too
seldom to tell 50 ms from 90."""

Answers = Counter[str]
Attack = Callable[["Server"], Answers]
ATTACKS: dict[str, Attack] = {}


class Server:
    """A server in a process of its own."""

    def __init__(self, folder: Path, *options: str, disk: int | None = None) -> None:
        """With a `disk`, its store is on one of this number of MB, which needs `unshare` and `mount`.

        If it has keys, the first is the attacker's, and the second the other's.
        """
        keys = [key for option, key in pairwise(options) if option == "--api-key"]
        self._keys = dict(zip((ATTACKER, OTHER), keys, strict=False))
        script = folder / "script.jsonl"
        script.write_text("\n".join(map(json.dumps, SCRIPT)))
        template = folder / "chat.jinja"
        template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
        config = folder / "config.toml"
        config.write_text(_models(script, template))
        small = folder / "disk"
        small.mkdir()
        self.store = f"sqlite:///{small / 'store.db'}"
        command = [sys.executable, "-c", ANTIPHON, "serve", "--port", "0", "--config", str(config)]
        command += ["--store", self.store, "--mcp-host", "127.0.0.1", *options]
        if disk is not None:
            mounted = f'mount -t tmpfs -o size={disk}m tmpfs "$0" && exec "$@"'
            command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mounted, str(small), *command]
        self._process = subprocess.Popen(  # noqa: S603
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"XDG_DATA_HOME": str(folder)},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),  # noqa: PLW1509
        )
        assert self._process.stdout  # noqa: S101
        line = self._process.stdout.readline().decode().split()
        parts = urlsplit(line[-1])
        self.host, self.port = parts.hostname or "", parts.port or 0

    def memory(self) -> float:
        """MB in use, with those of its own processes."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return sum(map(_resident, [str(self._process.pid), *children]))

    def held(self) -> tuple[float, float]:
        """The longest time in seconds that the event loop was held: by the server itself, and in all."""
        connection = HTTPConnection(self.host, self.port, timeout=SECONDS)
        connection.request("GET", "/metrics", headers=self.headers(OTHER))
        text = connection.getresponse().read().decode()
        connection.close()
        names = ("held", "delay")
        own, late = (
            float(text.partition(f"\nantiphon:loop_{name}_seconds ")[2].split()[0]) for name in names
        )
        return own, late

    def headers(self, address: str, **more: str) -> dict[str, str]:
        """Those of a request from this address: with its key, if the server has keys."""
        key = self._keys.get(address)
        return more if key is None else {**more, "authorization": f"Bearer {key}"}

    def connection(self, timeout: float = SECONDS) -> socket.socket:
        """A connection of its own."""
        return socket.create_connection((self.host, self.port), timeout)

    def post(self, path: str, body: Any, timeout: float = SECONDS, address: str = ATTACKER) -> str:
        """The status of the answer to this body, which is read to its end."""
        return self.request("POST", path, body, timeout=timeout, address=address)

    def request(  # noqa: PLR0913, PLR0917 - the parts of a request
        self,
        method: str,
        path: str,
        body: Any,
        content_type: str = "application/json",
        timeout: float = SECONDS,
        address: str = ATTACKER,
    ) -> str:
        """The status of the answer to this request, which is read to its end."""
        connection = HTTPConnection(self.host, self.port, timeout=timeout, source_address=(address, 0))
        try:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            with suppress(BrokenPipeError, ConnectionResetError):  # it may answer before it has read all
                headers = self.headers(address) | {"content-type": content_type}
                connection.request(method, path, data, headers)
            response = connection.getresponse()
            size = sum(len(piece) for piece in iter(lambda: response.read(65536), b""))
            return f"{response.status}" if size < 10_000_000 else f"{response.status} ({size >> 20} MB)"
        except (OSError, HTTPException) as error:
            return "no answer" if isinstance(error, TimeoutError) else "closed"
        finally:
            connection.close()

    def posts(self, path: str, *bodies: Any) -> Answers:
        """The same for several, at the same time."""
        answers = Answers()

        def one(body: Any) -> None:
            answers[self.post(path, body)] += 1

        threads = [threading.Thread(target=one, args=(body,), daemon=True) for body in bodies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS + 1)
        return answers

    def read(self, path: str, body: Any, address: str = ATTACKER) -> tuple[str, bytes]:
        """The status of the answer to this body, and all of it."""
        connection = HTTPConnection(self.host, self.port, timeout=SECONDS, source_address=(address, 0))
        try:
            headers = self.headers(address) | {"content-type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            return f"{response.status}", response.read()
        except TimeoutError:
            return "no answer", b""
        finally:
            connection.close()

    def got(self, path: str, address: str = ATTACKER) -> bytes:
        """The body at this path."""
        connection = HTTPConnection(self.host, self.port, timeout=SECONDS, source_address=(address, 0))
        connection.request("GET", path, headers=self.headers(address))
        body = connection.getresponse().read()
        connection.close()
        return body

    def created(self, path: str, body: Any, address: str = ATTACKER) -> Any:
        """The created object."""
        status, data = self.read(path, body, address)
        return json.loads(data) if status == "200" else None

    def send(self, *pieces: bytes, pause: float = 0.0, seconds: float = SECONDS) -> Answers:
        """The response to raw bytes: the first line, or that there was none."""
        deadline = time.monotonic() + seconds
        with self.connection(1) as connection:
            try:
                for piece in pieces:
                    connection.sendall(piece)
                    time.sleep(pause)
                    if time.monotonic() > deadline:
                        return Answers(["takes all"])
            except TimeoutError:
                pass  # it reads no more for now
            except OSError:
                return Answers(["closed"])
            connection.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                first = connection.recv(64)
            except TimeoutError:
                return Answers(["no answer"])
            except OSError:
                return Answers(["closed"])
        return Answers([first.split()[1].decode() if first.startswith(b"HTTP") else "closed"])

    def stop(self) -> None:
        """Stop it at once."""
        self._process.kill()
        self._process.wait()


def _models(script: Path, template: Path) -> str:
    """The models of a server: a scripted one, and those of the hostile server, loaded when needed."""
    tables = [f'name = "scripted"\nengine = "scripted"\nscript = "{script}"\nparallel = {PARALLEL}']
    for name in ("plain", *hostile.MODELS):
        place = f'model = "{hostile.url()}/{name}"'
        tables.append(f'name = "{name}"\n{place}\nupstream_kind = "chat"')
        told = f'context = 1000000\ndialect = "hermes"\nchat_template = "{template}"'
        tables.append(f'name = "{name}-text"\n{place}\nupstream_kind = "completions"\n{told}')
    return 'default_model = "scripted"\n' + "".join(f"[[models]]\n{table}\n" for table in tables)


def _resident(pid: str) -> float:
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except OSError:  # it has ended meanwhile
        return 0.0
    return int(pages) * resource.getpagesize() / 1e6


class Witness(threading.Thread):
    """Another client of a server, which is answered, and reads what it has stored.

    `longest` is the longest that it waited, `memory` the most that it saw.
    """

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._stored = f"/v1/conversations/{server.created('/v1/conversations', {}, OTHER)['id']}"
        self._over = threading.Event()
        self.longest = 0.0
        self.memory = 0.0

    def run(self) -> None:
        requests = (("POST", "/v1/chat/completions", ask("Hello")), ("GET", self._stored, b""))
        while not self._over.is_set():
            for method, path, body in requests:
                began = time.monotonic()
                status = self._server.request(method, path, body, timeout=2 * SECONDS, address=OTHER)
                waited = time.monotonic() - began if status == "200" else 2.0 * SECONDS
                self.longest = max(self.longest, waited)
            self.memory = max(self.memory, self._server.memory())
            self._over.wait(0.05)

    def end(self) -> None:
        self._over.set()
        self.join(3 * SECONDS)
        if self.is_alive():
            self.longest = 3.0 * SECONDS


def attack(function: Attack) -> Attack:
    """Note an attack under its name."""
    ATTACKS[function.__name__.replace("_", "-")] = function
    return function


def ask(content: Any = "Hello", **more: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": content}], **more}


def schema(body: Any, **more: Any) -> dict[str, Any]:
    """A request for an answer of this schema."""
    named = {"name": "answer", "schema": body, "strict": False}
    return ask(response_format={"type": "json_schema", "json_schema": named}, **more)


def respond(given: Any, **more: Any) -> dict[str, Any]:
    return {"model": "scripted", "input": given, **more}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


CHAT = "/v1/chat/completions"
OPTIONS = {
    "slow-header": ("--limit", "header_seconds=3"),
    "slow-body": ("--limit", "body_seconds=3"),
    "readers-that-do-not-read": ("--stall-seconds", "3"),
    "stored-answers-that-are-not-read": ("--stall-seconds", "3"),
    "much-stored": ("--limit", "stored_bytes=20000000"),
    "a-full-indexer": ("--api-key", "attacker", "--api-key", "other", "--limit", "work_processes=1"),
}
"""Less time and space than servers have by default, so that an attack takes seconds; and keys."""
DISKS = {"full-disk": 6}
"""MB of the disk that the store is on."""
MB = 1_000_000
STORED_ROWS, STORED_STEP = 200_000, 5_000
"""How many rows of each kind a full store has, and how many are written at a time."""


_NODE = {"oneOf": [{"$ref": "#"}, {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#"}]}]}
RECURSIVE = {
    "$defs": {"a": {"oneOf": [{"$ref": "#"}, {"type": "array", "items": {"$ref": "#"}}, _NODE]}},
    **_NODE,
}
"""A schema that is compiled for as long as the server lets it."""


@attack
def recursive_one_of(server: Server) -> Answers:
    return server.posts(CHAT, *[schema(RECURSIVE)] * 6)


@attack
def nested_one_of(server: Server) -> Answers:
    body: Any = {"$ref": "#"}
    for _ in range(6):
        body = {"oneOf": [body, {"type": "object", "properties": {"a": body}}]}
    return server.posts(CHAT, *[schema(body)] * 6)


@attack
def enum_values(server: Server) -> Answers:
    return server.posts(CHAT, schema({"enum": [f"value {i}" for i in range(300_000)]}))


@attack
def patterns(server: Server) -> Answers:
    body = {"patternProperties": {f"^(a|b|c{i}){{1,40}}x*$": {"type": "string"} for i in range(3900)}}
    return server.posts(CHAT, schema({"type": "object", **body}))


@attack
def one_of_branches(server: Server) -> Answers:
    return server.posts(
        CHAT, schema({"oneOf": [{"type": "object", "required": [f"a{i}"]} for i in range(5000)]})
    )


@attack
def closed_together(server: Server) -> Answers:
    """Requests whose schemas are compiled are closed, or end, in the same moment: the next is answered."""
    body = json.dumps(schema(RECURSIVE)).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    asked = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    for pause in (0.05, 0.2, 0.5, 1.0):
        asking = [server.connection() for _ in range(6)]
        for each in asking:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.sendall(asked)
        time.sleep(pause)
        for each in asking:
            each.close()
    ended = server.posts(CHAT, *[schema(RECURSIVE, deadline_seconds=0.5)] * 6)
    turn = {"type": "response.create", "model": "scripted", "input": "Hello"}
    turn |= {"text": {"format": {"type": "json_schema", "name": "a", "schema": RECURSIVE}}}
    url = f"ws://{server.host}:{server.port}/v1/responses"
    with ExitStack() as stack:
        sockets = [stack.enter_context(connect(url)) for _ in range(3)]
        for each in sockets:
            each.send(json.dumps(turn))
        time.sleep(0.3)
        for each in sockets:
            each.socket.shutdown(socket.SHUT_RDWR)
    late = sum(count for status, count in ended.items() if status.startswith("5"))  # what a deadline gives
    return Answers({"late": late}) + server.posts(CHAT, *[schema({"type": "object"})] * 3)


@attack
def wrong_schemas(server: Server) -> Answers:
    wrong = [
        {"required": True},
        {"prefixItems": True},
        {"properties": 1},
        {"enum": 1},
        {"type": 1},
        {"$ref": 1},
    ]
    return server.posts(CHAT, *map(schema, wrong), *(schema({"type": "object", **each}) for each in wrong))


@attack
def regular_expressions(server: Server) -> Answers:
    wide = ["(a|b)*a" + "(a|b)" * 24, "(" * 3000 + "a" + ")" * 3000, "[a-z]{1000}{1000}", "(a*)*" * 200]
    return server.posts(CHAT, *(ask(structured_outputs={"regex": each}) for each in wide))


@attack
def grammars(server: Server) -> Answers:
    rules = "root ::= " + " ".join(f"r{i}" for i in range(3000)) + "\n"
    rules += "\n".join(f'r{i} ::= "a" r{(i * 7 + 1) % 3000}? | r{(i + 1) % 3000} "b"?' for i in range(3000))
    return server.posts(CHAT, ask(structured_outputs={"grammar": rules}))


@attack
def allowed_tools(server: Server) -> Answers:
    tools = [tool(f"f{i}") for i in range(60_000)]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}}
    flat = [{"type": "function", "name": f"f{i}"} for i in range(60_000)]
    body = respond("Hello", tools=flat, tool_choice={"type": "allowed_tools", "mode": "auto", "tools": flat})
    return server.posts(CHAT, ask(tools=tools, tool_choice=choice)) + server.posts("/v1/responses", body)


@attack
def allowed_tools_within_limits(server: Server) -> Answers:
    tools = [tool(f"f{i}") for i in range(1000)]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}}
    return server.posts(CHAT, *[ask(tools=tools, tool_choice=choice)] * 2)


@attack
def long_conversation(server: Server) -> Answers:
    made = server.created("/v1/conversations", {})
    text = "word " * 480_000
    item = {"type": "message", "role": "user", "content": text}
    path = f"/v1/conversations/{made['id']}/items"
    answers = Answers(server.post(path, {"items": [item]}) for _ in range(15))
    body = {"model": "scripted", "conversation": made["id"], "input": "Hello"}
    answers += server.posts("/v1/responses", body, {**body, "truncation": "auto"})
    return answers + server.posts("/v1/responses/input_tokens", body)


@attack
def references(server: Server) -> Answers:
    made = server.created("/v1/responses", respond("word " * 250_000, store=True, truncation="auto"))
    made = made or server.created("/v1/responses", respond("word " * 20_000, store=True))
    listed = HTTPConnection(server.host, server.port, timeout=SECONDS)
    listed.request("GET", f"/v1/responses/{made['id']}/input_items")
    item = json.loads(listed.getresponse().read())["data"][0]["id"]
    return server.posts("/v1/responses", respond([{"type": "item_reference", "id": item}] * 2000, store=True))


@attack
def much_text(server: Server) -> Answers:
    return server.posts(CHAT, ask("word " * 6 * MB), ask("<|im_end|>" * 3 * MB)) + server.posts(
        "/tokenize", {"model": "scripted", "prompt": "word " * 5 * MB}
    )


@attack
def much_text_within_limits(server: Server) -> Answers:
    return server.posts(CHAT, ask("word " * 700_000), ask("<|im_end|>" * 350_000)) + server.posts(
        "/tokenize", {"model": "scripted", "prompt": "word " * 700_000, "return_token_strs": True}
    )


@attack
def many_parts(server: Server) -> Answers:
    return server.posts(
        CHAT, ask([{"type": "text", "text": ""}] * 900_000), ask([{"type": "text", "text": ""}] * 120_000)
    )


@attack
def many_items(server: Server) -> Answers:
    message = {"role": "user", "content": ""}
    return server.posts(CHAT, {"model": "scripted", "messages": [message] * 400_000}) + server.posts(
        "/v1/responses", respond([message] * 400_000), respond([message] * 100_000)
    )


@attack
def many_items_within_limits(server: Server) -> Answers:
    items = [{"role": "user", "content": "a"}] * 9000
    parts = [{"role": "user", "content": [{"type": "input_text", "text": "a"}] * 1000}] * 20
    message = {"model": "scripted", "max_tokens": 9, "messages": items}
    return (
        server.posts("/v1/responses", respond(items))
        + server.posts("/v1/responses", respond(parts))
        + server.posts("/v1/messages", message)
        + server.posts("/v1/messages/count_tokens", message)
        + server.posts("/api/chat", message)
        + server.posts("/v1/responses/compact", respond(items))
    )


@attack
def long_names(server: Server) -> Answers:
    """Also in the log."""
    return server.posts("/v1/responses", *[{"model": "x" * 3_900_000, "input": "Hello"}] * 3)


@attack
def many_texts(server: Server) -> Answers:
    """To be embedded, ranked and scored."""
    texts = ["word " * 80] * 2048
    return (
        server.posts("/v1/embeddings", {"model": "scripted", "input": texts})
        + server.posts("/v1/rerank", {"model": "scripted", "query": "a " * 50, "documents": texts})
        + server.posts("/score", {"model": "scripted", "text_1": ["a b"] * 2048, "text_2": texts})
    )


@attack
def many_decisions(server: Server) -> Answers:
    """Of as many questions, options and placeholders as there may be, or more."""
    names = {f"option {number}": "word " * 20 for number in range(255)}
    choice = {"type": "choice", "instructions": "Which?", "criteria": names}
    wide = {"state": "word", "questions": {str(number): choice for number in range(400)}}
    assets = {f"<{number}>": {"data_base64": "AAAA"} for number in range(100)}
    marked = {
        "state": "<1>a" * 500_000,
        "questions": {"q": {"type": "noul", "instructions": "?"}},
        "assets": assets,
    }
    twice = b'{"state": "a", "questions": {' + b'"q": {},' * 400_000 + b'"q": {}}}'
    predicate = {"type": "predicate", "instructions": "word " * 700}
    return server.posts("/v1/systemone", wide, marked, twice) + server.posts(
        "/v1/decisions", {"model": "scripted", "input": "word " * 1000, "questions": [predicate] * 400}
    )


@attack
def many_tools(server: Server) -> Answers:
    wide = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(20_000)}}
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": wide}} for i in range(4)]
    return server.posts(CHAT, ask(tools=tools), ask(tools=tools, tool_choice="required"))


@attack
def template_variables(server: Server) -> Answers:
    return server.posts(CHAT, ask(chat_template_kwargs={f"v{i}": "word " * 10 for i in range(400_000)}))


@attack
def many_choices(server: Server) -> Answers:
    return server.posts(CHAT, ask("count", n=128, logprobs=True, top_logprobs=20))


@attack
def echoes(server: Server) -> Answers:
    prompts = ["word " * 100_000] * 8
    return server.posts(
        "/v1/completions",
        {"model": "scripted", "prompt": prompts[0], "echo": True, "n": 128},
        {"model": "scripted", "prompt": prompts, "echo": True, "n": 16},
        {"model": "scripted", "prompt": "word " * 1000, "echo": True, "n": 128},
    )


@attack
def much_stored(server: Server) -> Answers:
    """Until there is no room; then each kind again, and requests that are not stored."""
    answers = _fill(server)
    for path, body in (("/v1/responses", respond("Hello")), (CHAT, ask(store=True))):
        answers[server.post(path, body)] += 1  # the last that may have room
    more = [respond("Hello"), respond("Hello", stream=True), respond("Hello", background=True)]
    stored = server.posts("/v1/responses", *more) + server.posts(CHAT, ask(store=True))
    assert stored == {"400": 4}, stored  # noqa: S101
    return answers + stored + server.posts("/v1/responses", respond("Hello", store=False))


def _fill(server: Server, *sizes: int) -> Answers:
    """Store until requests of these sizes are refused."""
    answers = Answers()
    for size in sizes or (1_000_000, 100_000, 10_000, 1_000, 1):
        item = {"type": "message", "role": "user", "content": "x" * size}
        while (status := server.post("/v1/conversations", {"items": [item]})) == "200":
            answers[status] += 1
    return answers


@attack
def full_disk(server: Server) -> Answers:
    """A stream that fills it, then requests with a full disk, and requests that are not stored."""
    streamed = respond("count", stream=True)
    _fill(server, 1_000_000, 100_000)
    answers = Answers([f"in a stream: {_end(server, streamed)}"])
    _fill(server)
    for what, body in (
        ("before a stream", streamed),
        ("whole", respond("count")),
        ("in the background", respond("count", background=True)),
        ("not stored", respond("Hello", store=False)),
    ):
        answers[f"{what}: {_end(server, body)}"] += 1
    full = [
        f"{what}: store_full" for what in ("in a stream", "before a stream", "whole", "in the background")
    ]
    assert answers == Answers([*full, "not stored: 200"]), answers  # noqa: S101
    return answers


def _end(server: Server, body: Any) -> str:
    """How a response ends: in the stream, or by its status."""
    status, text = server.read("/v1/responses", body)
    told = [code.decode() for code in re.findall(rb'"code":"([a-z_]+)"', text) if code != b"server_error"]
    return told[-1] if told else status


@attack
def stop_strings(server: Server) -> Answers:
    stops = ["a" * 20_000 + chr(98 + i) for i in range(16)]
    return server.posts(
        CHAT, ask("stop strings", stop=stops), ask("stop strings", stop=[s[:100] for s in stops])
    )


@attack
def endless_header(server: Server) -> Answers:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx: "
    return server.send(head, *[b"a" * MB] * 300)


@attack
def endless_url(server: Server) -> Answers:
    return server.send(b"GET /", *[b"a" * MB] * 300)


@attack
def many_headers(server: Server) -> Answers:
    return server.send(b"GET /health HTTP/1.1\r\n", *[b"x: y\r\n" * 100_000] * 50)


@attack
def many_hosts(server: Server) -> Answers:
    """Names of this server that clients make up, thousands and long ones; and as many pages of others."""
    hosts = (b"GET /health HTTP/1.1\r\nhost: h%d%s\r\n\r\n" % (i, b"x" * 30_000) for i in range(3_000))
    ours = b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n"
    pages = (ours + b"origin: http://h%d%s\r\n\r\n" % (i, b"x" * 30_000) for i in range(3_000))
    short = (b"GET /health HTTP/1.1\r\nhost: h%d\r\n\r\n" % i for i in range(50_000))
    return sum((server.send(*each) for each in (hosts, pages, short)), Answers())


@attack
def pipelined(server: Server) -> Answers:
    return server.send(*[b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n" * 20_000] * 100)


@attack
def slow_header(server: Server) -> Answers:
    return server.send(b"GET /health HTTP/1.1\r\n", *[b"x: y\r\n"] * 400, pause=0.1, seconds=25)


@attack
def slow_body(server: Server) -> Answers:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10000\r\n\r\n"
    return server.send(head, *[b" "] * 400, pause=0.1, seconds=40)


@attack
def socket_messages(server: Server) -> Answers:
    answers = Answers()
    texts = ["[" + "1," * 15_000_000 + "1]", "[" + " " * 3_000_000 + "]"]
    for compression in (None, "deflate"):
        for text in texts * 2:
            try:
                with connect(f"ws://{server.host}:{server.port}/v1/responses", compression=compression) as ws:
                    ws.send(text)
                    ws.recv(SECONDS)
                    answers["answered"] += 1
            except (WebSocketException, OSError) as error:
                code = getattr(getattr(error, "rcvd", None), "code", type(error).__name__)
                answers[f"closed {code}"] += 1
    return answers


@attack
def socket_fragments(server: Server) -> Answers:
    try:
        with connect(f"ws://{server.host}:{server.port}/v1/responses", compression=None) as ws:
            ws.send(" " for _ in range(300_000))
            ws.recv(SECONDS)
            return Answers(["answered"])
    except (WebSocketException, OSError) as error:
        return Answers([f"closed {getattr(getattr(error, 'rcvd', None), 'code', type(error).__name__)}"])


@attack
def scored_responses(server: Server) -> Answers:
    """All with the same end at the same time. One slot stays free: others wait for the server only."""
    scored = {"include": ["message.output_text.logprobs"], "top_logprobs": 20, "stream": True}
    return server.posts("/v1/responses", *[respond("count", **scored)] * (PARALLEL - 1))


@attack
def scored_completions(server: Server) -> Answers:
    """The same, whole and stored."""
    scored = ask("count", logprobs=True, top_logprobs=20, store=True)
    return server.posts(CHAT, *[scored] * (PARALLEL - 1))


@attack
def background_answers(server: Server) -> Answers:
    """The same in the background: polled until they are done, then all read again at once."""
    scored = respond("count", background=True, include=["message.output_text.logprobs"], top_logprobs=20)
    ids = [server.created("/v1/responses", scored)["id"] for _ in range(PARALLEL - 1)]
    for each in ids:
        while b'"status":"in_progress"' in server.got(f"/v1/responses/{each}"):
            time.sleep(0.1)
    answers = Answers()

    def read(each: str) -> None:
        answers[server.request("GET", f"/v1/responses/{each}?stream=true", b"")] += 1

    readers = [threading.Thread(target=read, args=(each,)) for each in ids]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(SECONDS)
    return answers


@attack
def readers_that_do_not_read(server: Server) -> Answers:
    """For twice as many slots as there are."""
    return _unread(server, 2 * PARALLEL, CHAT, ask("count", stream=True, logprobs=True, top_logprobs=20))


@attack
def stored_answers_that_are_not_read(server: Server) -> Answers:
    scored = {"include": ["message.output_text.logprobs"], "top_logprobs": 20, "stream": True}
    return _unread(server, PARALLEL, "/v1/responses", respond("count", **scored))


def _unread(server: Server, readers: int, path: str, asked: Any) -> Answers:
    """Readers that do not read their answers."""
    body = json.dumps(asked).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    connections = [server.connection() for _ in range(readers)]
    for each in connections:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        each.sendall(head + body)
    time.sleep(SECONDS)
    for each in connections:
        each.close()
    return Answers({"not read": len(connections)})


@attack
def connections(server: Server) -> Answers:
    """More idle connections than allowed."""
    opened = [server.connection() for _ in range(5000)]
    for each in opened:
        each.settimeout(0)
    time.sleep(1)
    left = sum(_is_open(each) for each in opened)
    for each in opened:
        each.close()
    return Answers({"open": left, "closed": len(opened) - left})


def _is_open(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"


@attack
def between_chunks(server: Server) -> Answers:
    """A trailer, trailers, and an extension of a chunk without end."""
    return (
        server.send(CHUNKED + b"2\r\n{}\r\n0\r\nx: ", *[b"a" * MB] * 200)
        + server.send(CHUNKED + b"2\r\n{}\r\n0\r\n", *[b"x: y\r\n" * 100_000] * 50)
        + server.send(CHUNKED + b"2;", *[b"a" * MB] * 200)
    )


@attack
def tiny_chunks(server: Server) -> Answers:
    return server.send(CHUNKED, *[b"1\r\n \r\n" * 200_000] * 10, b"0\r\n\r\n")


@attack
def bombs(server: Server) -> Answers:
    """Bodies that are small only as long as they are compressed, some of them twice."""
    large = b" " * 1_000 * MB
    bodies = {
        "gzip": gzip.compress(large, 9),
        "zstd": zstd.compress(large),
        "br": brotli.compress(large, quality=3),
    }
    bodies |= {f"{name}, gzip": gzip.compress(body) for name, body in bodies.items()}
    answers = [_encoded(server, *each) for each in bodies.items()]
    answers.append(_encoded(server, "gzip", gzip.compress(b"") * 190_000))
    answers.append(_encoded(server, "zstd", zstd.compress(b"") * 400_000))
    return sum(answers, Answers())


def _encoded(server: Server, encoding: str, body: bytes) -> Answers:
    fields = f"host: localhost\r\ncontent-encoding: {encoding}\r\ncontent-length: {len(body)}"
    return server.send(f"POST {CHAT} HTTP/1.1\r\n{fields}\r\n\r\n".encode() + body)


@attack
def offers(server: Server) -> Answers:
    """Requests that offer HTTP/2, many in one piece, and one whose head is read twice."""
    offer = b"connection: upgrade\r\nupgrade: h2c\r\n"
    long = b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\n" + offer + b"x: y\r\n" * 5_000
    many = [b"GET /health HTTP/1.1\r\nhost: localhost\r\n%s\r\n" % offer * 20_000] * 20
    return server.send(*many) + server.send(long, *[b"x: y\r\n" * 100_000] * 20)


@attack
def bodies_that_never_come(server: Server) -> Answers:
    """They are announced, and all their clients disconnect at once."""
    head = b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n"
    head += b"content-length: 1000\r\n\r\n"
    opened = [server.connection() for _ in range(300)]
    for each in opened:
        each.sendall(head)
    time.sleep(2)
    for each in opened:
        each.close()
    return Answers({"left": len(opened)})


@attack
def odd_requests(server: Server) -> Answers:
    lines = [
        *(
            "OPTIONS * HTTP/1.1",
            "GET http://a/health HTTP/1.1",
            "GET /health HTTP/1.0",
            "CONNECT a:1 HTTP/1.1",
        ),
        *("GET /page/%2e%2e/%2e%2e/etc/passwd HTTP/1.1", "HEAD /v1/files HTTP/1.1", "PRI * HTTP/2.0"),
        *(f"GET /v1/files?{'a=b;' * 7000} HTTP/1.1", f"GET /v1/files?after={'%F0%9F' * 4000} HTTP/1.1"),
        f"GET /page/app.js HTTP/1.1\r\nrange: bytes={'0-,' * 9000}",
    ]
    return sum(
        (server.send(f"{line}\r\nhost: localhost\r\n\r\n".encode(), seconds=3) for line in lines), Answers()
    )


@attack
def waiting_on_sockets(server: Server) -> Answers:
    """Each has as many large messages as may wait."""
    text = json.dumps({"type": "response.create", "store": False, **respond("count"), "x": "y" * 3_900_000})
    answers, sockets = Answers(), []
    for _ in range(40):
        ws = connect(f"ws://{server.host}:{server.port}/v1/responses", compression=None, legacy=True)
        sockets.append(ws)
        try:
            for _ in range(8):
                ws.send(text)
            answers["takes all of a socket"] += 1
        except WebSocketException:
            answers["closed"] += 1
    for ws in sockets:
        ws.socket.close()
    time.sleep(3)
    return answers


@attack
def pages_that_are_not_read(server: Server) -> Answers:
    made = server.created("/v1/conversations", {})
    item = {"type": "message", "role": "user", "content": "word " * 700_000}
    path = f"/v1/conversations/{made['id']}/items"
    for _ in range(8):
        server.post(path, {"items": [item]})
    head = f"GET {path}?limit=100 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    readers = [server.connection() for _ in range(100)]
    for each in readers:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        each.sendall(head)
    time.sleep(SECONDS / 2)
    for each in readers:
        each.close()
    return Answers({"not read": len(readers)})


@attack
def lists_of_a_full_store(server: Server) -> Answers:
    """Sixteen at a time, of filters that find nothing, or only what is last, in a store that is full."""
    engine = create_engine(server.store)
    for first in range(0, STORED_ROWS, STORED_STEP):  # between two of them, the server may write
        with engine.begin() as connection:
            fill(connection, first + STORED_STEP, first, ANYONE.owner)
    engine.dispose()
    files = f"/v1/vector_stores/vs_{FIRST}/files"
    paths = [
        *("/v1/responses?background=true", "/v1/files?purpose=vision", "/v1/containers?name=none"),
        *(f"{files}?filter=cancelled", f"{files}?filter=failed", "/v1/vector_stores?limit=100"),
        "/v1/chat/completions?metadata[half]=even&metadata[third]=odd",
        "/v1/chat/completions?model=m&metadata[half]=even&metadata[third]=odd",
        f"/v1/conversations/conv_{FIRST}/items?limit=100&after=item_{FIRST + STORED_ROWS // 2}",
    ]
    answers, wanted = Answers(), iter(paths * 16)
    deadline = time.monotonic() + SECONDS

    def one() -> None:
        for path in wanted:
            if time.monotonic() < deadline:
                answers[server.request("GET", path, b"", timeout=4 * SECONDS)] += 1

    threads = [threading.Thread(target=one, daemon=True) for _ in range(PARALLEL)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gone = ("conversations/conv", "vector_stores/vs", "chat/completions/chat")
    answers.update(server.request("DELETE", f"/v1/{each}_{FIRST}", b"") for each in gone)
    time.sleep(2)  # while what belongs to them is deleted
    return answers


@attack
def searches(server: Server) -> Answers:
    """Long queries, and filters with many values, and many filters, for each of some files."""
    made = server.created("/v1/vector_stores", {})
    path = f"/v1/vector_stores/{made['id']}"
    named = {f"a{number}": "x" * 500 for number in range(16)}
    files = [{"file_id": _uploaded(server, b"word"), "attributes": named} for _ in range(60)]
    server.post(f"{path}/file_batches", {"files": files})
    time.sleep(2)
    words = " ".join(f"{number * 7919:x}" for number in range(300_000))
    wide = {"type": "in", "key": "a1", "value": [f"v{number}" for number in range(90_000)]}
    one = {"type": "nin", "key": "a1", "value": [f"v{number}" for number in range(10)]}
    many = {"type": "and", "filters": [one] * 490}
    bodies = [{"query": words}, {"query": [words[:200_000]] * 20}, {"query": "a", "filters": wide}]
    answers = server.posts(f"{path}/search", *bodies)
    return answers + server.posts(f"{path}/search", *[{"query": ["word"] * 20, "filters": many}] * 4)


@attack
def large_files(server: Server) -> Answers:
    """Files to be searched, one of which is a single word."""
    ids = [_uploaded(server, content) for content in (b"word " * 6 * MB, b"w" * 30 * MB)]
    made = server.created("/v1/vector_stores", {"file_ids": ids})
    path = f"/v1/vector_stores/{made['id']}"
    while b'"status":"in_progress"' in server.got(path):
        time.sleep(0.5)
    return Answers(server.request("GET", f"{path}/files/{each}/content", b"") for each in ids)


@attack
def a_full_indexer(server: Server) -> Answers:
    """One key's hundred files wait to be indexed. A small file of another is indexed nevertheless."""
    ids = [_uploaded(server, b"word " * 50_000) for _ in range(100)]
    made = server.created("/v1/vector_stores", {"file_ids": ids})
    small = _uploaded(server, b"7 bytes", OTHER)
    path = f"/v1/vector_stores/{server.created('/v1/vector_stores', {'file_ids': [small]}, OTHER)['id']}"
    deadline = time.monotonic() + 2 * SECONDS
    while b'"in_progress":1' in server.got(path, OTHER) and time.monotonic() < deadline:
        time.sleep(0.1)
    done = b'"completed":1' in server.got(path, OTHER)
    first = b'"status":"in_progress"' in server.got(f"/v1/vector_stores/{made['id']}")
    server.request("DELETE", f"/v1/vector_stores/{made['id']}", b"")
    time.sleep(1)  # for those that are being indexed
    return Answers(["200" if done and first else "no answer"])


def _uploaded(server: Server, content: bytes, address: str = ATTACKER) -> str:
    """The id of a file."""
    form = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n--b\r\n'
    form += b'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + content + b"\r\n--b--\r\n"
    connection = HTTPConnection(server.host, server.port, timeout=SECONDS, source_address=(address, 0))
    headers = server.headers(address) | {"content-type": "multipart/form-data; boundary=b"}
    connection.request("POST", "/v1/files", form, headers)
    made = json.loads(connection.getresponse().read())
    connection.close()
    return str(made["id"])


@attack
def nested(server: Server) -> Answers:
    deep = [
        b'{"model": "scripted", "x": ' + b"[" * n + b"12345678901234567890" + b"]" * n + b"}"
        for n in (900, 990, 1500, 100_000)
    ]
    return sum(
        (server.posts(path, *deep) for path in (CHAT, "/v1/responses", "/v1/conversations")), Answers()
    )


def _generated(server: Server, name: str, tokens: int = 16) -> Answers:
    """Answers of a hostile server in each API, streamed and whole, of each kind of it."""
    answers = Answers()
    for model, streamed in product((name, f"{name}-text"), (False, True)):
        said = {"model": model, "stream": streamed, "messages": [{"role": "user", "content": "Hello"}]}
        asked = {"model": model, "stream": streamed, "input": "Hello", "max_output_tokens": tokens}
        answers += server.posts(CHAT, {**said, "max_tokens": tokens})
        answers += server.posts("/v1/messages", {**said, "max_tokens": tokens})
        answers += server.posts("/v1/responses", asked)
    return Answers({f"{name}: {answer}": count for answer, count in answers.items()})


@attack
def endless_lines_of_upstreams(server: Server) -> Answers:
    """A line of 62 MB, and a head without end."""
    return _generated(server, "line") + _generated(server, "head")


@attack
def large_chunks_of_upstreams(server: Server) -> Answers:
    """A text of 20 MB, and several that are as long as they may be."""
    return _generated(server, "chunk") + _generated(server, "texts", 200_000)


@attack
def floods_of_upstreams(server: Server) -> Answers:
    """More tokens than were asked for, without end, and lines without any."""
    return _generated(server, "flood") + _generated(server, "lines")


def _called(server: Server, *names: str) -> Answers:
    """Answers of a model that calls a tool of hostile MCP servers."""
    answers = Answers()
    for name in names:
        tool = {"type": "mcp", "server_label": name, "server_url": f"{hostile.url()}/{name}/mcp"}
        tool["require_approval"] = "never"
        status, body = server.read("/v1/responses", {"model": "plain", "input": "Hello", "tools": [tool]})
        limit = re.search(rb"the limit '(\w+)'|is compressed", body)
        answers[f"{name}: {status}{f' {limit[0].decode()}' if limit else ''}"] += 1
    return answers


@attack
def results_of_mcp_servers(server: Server) -> Answers:
    """80,000 parts; parts that are all wrong; one long text; more than a gigabyte, compressed."""
    return _called(server, "parts", "wrong", "text", "packed")


@attack
def tools_of_mcp_servers(server: Server) -> Answers:
    """60,000 properties of a tool, large enums, and many tools."""
    return _called(server, "properties", "enum", "enums", "many")


@attack
def requests_of_mcp_servers(server: Server) -> Answers:
    """2,000 requests to sample, at once."""
    return _called(server, "sampling")


@contextmanager
def started(*options: str, disk: int | None = None) -> Iterator[Server]:
    """A server, while the block runs."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), *options, disk=disk)
        try:
            yield server
        finally:
            server.stop()


def measure(name: str, idle: Server, *options: str) -> bool:
    """Print the line of an attack; returns whether the server passed. The `idle` one is not attacked."""
    with started(*options, *OPTIONS.get(name, ()), disk=DISKS.get(name)) as server:
        server.post(CHAT, schema({"type": "object"}))
        server.post(CHAT, ask())
        before = server.memory()
        witness, elsewhere = Witness(server), Witness(idle)
        witness.start()
        elsewhere.start()
        began = time.monotonic()
        answers = ATTACKS[name](server)
        seconds = time.monotonic() - began
        witness.end()
        elsewhere.end()
        time.sleep(3)  # free memory is returned every two seconds
        peak, kept = max(witness.memory - before, 0), server.memory() - before
        own, late = server.held()
    shown = ", ".join(f"{answer} x {count}" for answer, count in sorted(answers.items()))
    failed = any(answer.startswith("5") or answer in ("no answer", "takes all") for answer in answers)
    held = witness.longest <= WAITS.get(name, MAX_WAIT) + elsewhere.longest and kept <= MAX_KEPT
    held = held and own <= MAX_HELD and not failed
    print(
        f"{name:28} {seconds:5.1f} s  others wait {witness.longest:5.2f} s,"
        f" elsewhere {elsewhere.longest:4.2f} s;"
        f" loop held {own * 1000:3.0f} ms of {late * 1000:4.0f}; +{peak:4.0f} MB, keeps {kept:3.0f};"
        f"  {shown}{'' if held else '   <--'}",
        flush=True,
    )
    return held


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*ATTACKS, []], metavar="NAME", help=", ".join(ATTACKS))
    parser.add_argument("--option", action="append", default=[], help="an option for the server")
    arguments = parser.parse_args()
    with started() as idle:
        held = [measure(name, idle, *arguments.option) for name in arguments.names or ATTACKS]
    print(f"{sum(held)} of {len(held)} held")
    return int(not all(held))


if __name__ == "__main__":
    sys.exit(main())
