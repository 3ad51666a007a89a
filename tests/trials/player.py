"""Plays a case against a server, and lists what is not as it should be.

A case has an `id`, its `kind`, what it is `about`, its `source`, and `server`: the options of `serve` (`dialect`, the
text of a `template`, more `args`, and `files` of a folder, which is `{dir}` in arguments and in .toml files; `{python}` is
a Python interpreter). Then it has either of two forms.

With `writes`, the text of a model (`stops: "length"`: it is cut there) is played whole, by words and by characters, and
asked for through each of the `apis`, whole and streamed, with these `tools` (name → arguments → type or schema) and more
fields of the `request`. Each has to give the same `answer`: `content` and `reasoning` (a text, or operators), `calls` as
[name, arguments] (`"$broken"`: they need not be JSON), and `finish` in the words of Chat Completions.

With `steps`, `script` has lines of the scripted engine (without `when`: for prompts with `{{key}}`, a word that occurs
nowhere else), and each step is a request (`method`, `path`, `headers`, `body` as JSON, or `text`; `encode`d; or `raw`
bytes; read for some `seconds` only), places of the answer to `save` for later steps, and what to `expect`: see `Answer`.
"""

import gzip
import http.client
import json
import re
import shlex
import socket
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

Json = Any

SPLITS = ("whole", None, "chars")
"""How the text of a model is cut into chunks; None is by words."""
APIS = ("chat", "responses", "messages")
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
SECONDS = 20
"""The longest wait for an answer."""


def key_of(case: Json, split: str | None = None) -> str:
    """The word of a case that its prompts have."""
    return f"key-{case['id']}-{split or 'words'}-"


def lines_of(cases: list[Json]) -> Iterator[Json]:
    """The script of a server for these cases."""
    for case in cases:
        if "writes" in case:
            finish = case.get("stops", "stop")
            for split in SPLITS:
                yield {
                    "when": key_of(case, split),
                    "output": case["writes"],
                    "split": split,
                    "finish": finish,
                }
        for line in case.get("script", ()):
            yield {"when": key_of(case), **_filled(line, {"key": key_of(case)})}
    yield {"output": "Fine."}


def options_of(server: Json, cases: list[Json], folder: Path) -> list[str]:
    """The options of the server for these cases, whose files are written into the folder."""
    script = folder / "script.jsonl"
    script.write_text("".join(json.dumps(line) + "\n" for line in lines_of(cases)))
    options = [
        "--port",
        "0",
        "--engine",
        "scripted",
        "--script",
        str(script),
        "--model-name",
        "trial",
        "--debug-answers",
        "50",
    ]
    options += ["--dialect", server["dialect"]]
    places = {"{dir}": str(folder), "{python}": sys.executable}

    quoted = {name: shlex.quote(place) for name, place in places.items()}  # .toml files have them in commands

    def placed(text: str, places: Mapping[str, str] = places) -> str:
        for name, place in places.items():
            text = text.replace(name, place)
        return text

    for name, text in server.get("files", {}).items():
        (folder / name).write_text(placed(text, quoted) if name.endswith(".toml") else text)
    if "template" in server:
        (folder / "template.jinja").write_text(server["template"])
        options += ["--chat-template", str(folder / "template.jinja")]
    args = [placed(arg) for arg in server.get("args", ())]
    return [*options, *([] if "--store" in args else ["--store", "memory"]), *args]


class Server(Struct):
    """A running server, and the file of its log."""

    url: str
    log: Path

    def logged(self) -> int:
        """The bytes that it has logged until now."""
        return self.log.stat().st_size

    def log_since(self, began: int) -> str:
        """What it has logged after so many bytes."""
        with self.log.open("rb") as file:
            file.seek(began)
            return file.read().decode()


class Answer:
    """The answer to a step. An expectation is an object with one of these, mostly a place and operators:

    `status`; `at` a place in the JSON body; `some` or `each` member of a list, `of` a place in it; `header`; `text`; the
    last `prompt`; `log`, the lines since the step began; the number of events of a type (`event`); `first_event`;
    `lengths_equal` of two places; `any` of several lists of expectations.
    """

    def __init__(
        self, server: Server, status: int, headers: Mapping[str, str], body: bytes, log: str
    ) -> None:
        self.status, self.headers, self._log = status, headers, log
        self.text = body.decode(errors="replace")
        self._server = server

    @property
    def json(self) -> Json:
        return json.loads(self.text)

    @property
    def events(self) -> list[Json]:
        """The data of the events of a stream."""
        data = (line[6:] for line in self.text.splitlines() if line.startswith("data: "))
        return [json.loads(each) for each in data if each != "[DONE]"]

    def prompt(self) -> str:
        """The prompt of the last answer."""
        kept = _fetch(self._server, "GET", "/v1/debug").json["data"]
        if not kept:
            return "(no answer is kept)"
        details = _fetch(self._server, "GET", f"/v1/debug/{kept[0]['id']}").json
        return "".join(each["prompt"]["text"] for each in details["generations"][:1])

    def faults(self, expected: list[Json]) -> list[str]:
        """What is not as it is expected."""
        return [fault for each in expected for fault in self._faults(each)]

    def _faults(self, expected: Json) -> list[str]:
        if "any" in expected:
            found = [self.faults(each) for each in expected["any"]]
            return [] if not all(found) else found[0]
        if "status" in expected:
            allowed = expected["status"] if isinstance(expected["status"], list) else [expected["status"]]
            return [] if self.status in allowed else [f"status {self.status}: {self.text[:300]}"]
        if "some" in expected or "each" in expected:
            quantified = any if "some" in expected else all
            where = expected.get("some", expected.get("each"))
            members = _place(self.json, where) or []
            values = [_place(member, expected["of"]) for member in members]
            held = quantified(not _broken(value, expected) for value in values)
            return [] if held else [f"{where}: {expected} in {values!r:.300}"]
        if "lengths_equal" in expected:
            first, second = (_place(self.json, place) for place in expected["lengths_equal"])
            same = first is not None and second is not None and len(first) == len(second)
            return [] if same else [f"{expected}: {first!r:.200}, {second!r:.200}"]
        if "event" in expected:
            number = sum(event.get("type") == expected["event"] for event in self.events)
            return _broken(number, expected)
        return [f"{expected}: {fault}" for fault in self._faults_of_value(expected)]

    def _faults_of_value(self, expected: Json) -> list[str]:
        for name, value in (("text", lambda: self.text), ("prompt", self.prompt), ("log", lambda: self._log)):
            if name in expected:
                return _broken(value(), expected[name])
        if "header" in expected:
            return _broken(self.headers.get(expected["header"].lower()), expected)
        if "first_event" in expected:
            return _broken(_place(self.events[0], expected["first_event"]), expected)
        return _broken(_place(self.json, expected["at"]), expected)


def _place(value: Json, path: str) -> Json:
    """The value at a place such as `choices.0.message`; None if there is none."""
    for step in path.split("."):
        if isinstance(value, list):
            value = value[int(step)] if int(step) < len(value) else None
        elif isinstance(value, dict):
            value = value.get(step)
        else:
            return None
    return value


def _broken(value: Json, operators: Mapping[str, Json]) -> list[str]:
    """Which operators do not hold of a value."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    tests: dict[str, Callable[[Json], bool]] = {
        "equals": lambda wanted: bool(value == wanted),
        "one_of": lambda wanted: value in wanted,
        "contains": lambda wanted: all(each in text for each in _listed(wanted)),
        "lacks": lambda wanted: not any(each in text for each in _listed(wanted)),
        "order": lambda wanted: bool(re.search(".*".join(map(re.escape, wanted)), text, re.DOTALL)),
        "matches": lambda wanted: re.search(wanted, text) is not None,
        "present": lambda _: value not in (None, []),
        "absent": lambda _: value in (None, []),
        "at_least": lambda wanted: value is not None and value >= wanted,
        "at_most": lambda wanted: value is not None and value <= wanted,
        "length": lambda wanted: value is not None and len(value) == wanted,
    }
    failed = (name for name, wanted in operators.items() if name in tests and not tests[name](wanted))
    return [f"{name} {operators[name]!r:.200}: it is {text!r:.400}" for name in failed]


def _listed(wanted: Json) -> list[str]:
    return wanted if isinstance(wanted, list) else [wanted]


def _filled(value: Json, names: Mapping[str, Json]) -> Json:
    """The value with the names of its `{{name}}`s filled in."""
    if isinstance(value, str):
        whole = re.fullmatch(r"\{\{(\w+)\}\}", value)
        if whole:
            return names[whole[1]]
        return re.sub(r"\{\{(\w+)\}\}", lambda found: str(names[found[1]]), value)
    if isinstance(value, list):
        return [_filled(each, names) for each in value]
    if isinstance(value, dict):
        return {name: _filled(each, names) for name, each in value.items()}
    return value


# Requests


def _fetch(server: Server, method: str, path: str, body: Json = None, **fields: Json) -> Answer:
    """One request; `fields` are those of a step."""
    began = server.logged()
    content = (
        fields["text"].encode() if "text" in fields else b"" if body is None else json.dumps(body).encode()
    )
    headers = {"Content-Type": "application/json"} if content else {}
    headers |= fields.get("headers", {})
    if encoding := fields.get("encode"):
        content = {"gzip": gzip.compress, "deflate": zlib.compress}[encoding](content)
        headers["Content-Encoding"] = encoding
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=SECONDS)
    try:
        connection.request(method, path, content or None, headers)
        response = connection.getresponse()
        read = _read_for(connection, response, fields["seconds"]) if "seconds" in fields else response.read()
        got = {name.lower(): value for name, value in response.getheaders()}
        return Answer(server, response.status, got, read, server.log_since(began))
    finally:
        connection.close()


def _read_for(
    connection: http.client.HTTPConnection, response: http.client.HTTPResponse, seconds: float
) -> bytes:
    """What has come after so many seconds."""
    end, read = time.monotonic() + seconds, b""
    try:
        while (left := end - time.monotonic()) > 0:
            connection.sock.settimeout(left)
            piece = response.read1(65536)
            if not piece:
                break
            read += piece
    except TimeoutError:
        pass
    return read


def _send_raw(server: Server, pieces: list[str]) -> Answer:
    """The bytes of a whole request, in several pieces."""
    began, address = server.logged(), urlsplit(server.url)
    with socket.create_connection((str(address.hostname), address.port or 80), timeout=SECONDS) as connection:
        for number, piece in enumerate(pieces):
            time.sleep(0.1 if number else 0)
            connection.sendall(piece.encode("latin-1"))
        response = http.client.HTTPResponse(connection)
        response.begin()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(server, response.status, headers, response.read(), server.log_since(began))


def _play_step(server: Server, step: Json, names: Mapping[str, Json]) -> Answer:
    step = _filled({name: step[name] for name in step if name not in ("expect", "save")}, names)
    if "raw" in step:
        return _send_raw(server, _listed(step["raw"]))
    method, path = step.pop("method", "POST"), step.pop("path")
    return _fetch(server, method, path, step.pop("body", None), **step)


def faults(server: Server, case: Json) -> list[str]:
    """What is not as the case has it."""
    return _faults_of_text(server, case) if "writes" in case else _faults_of_steps(server, case)


def _faults_of_steps(server: Server, case: Json) -> list[str]:
    names: dict[str, Json] = {"key": key_of(case)}
    found: list[str] = []
    for number, step in enumerate(case["steps"]):
        answer = _play_step(server, step, names)
        found += [f"step {number}: {fault}" for fault in answer.faults(_filled(step["expect"], names))]
        if found:
            break
        names |= {name: _place(answer.json, place) for name, place in step.get("save", {}).items()}
    return found


# What becomes of a model's text


class Shown(Struct):
    """What a client gets of an answer, in any API."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = []
    finish: str = "stop"


def _faults_of_text(server: Server, case: Json) -> list[str]:
    found = []
    for api in case.get("apis", APIS):
        for split in SPLITS:
            for stream in (False, True):
                answer = _fetch(server, "POST", PATHS[api], _request(api, case, split, stream))
                where = f"{api}, {split or 'words'}, {'streamed' if stream else 'whole'}"
                if answer.status != 200:
                    found.append(f"{where}: status {answer.status}: {answer.text[:300]}")
                    continue
                shown = _SHOWN[api, stream](answer.events if stream else answer.json)
                found += [f"{where}: {fault}" for fault in _differences(shown, case["answer"], api)]
    return found


def _request(api: str, case: Json, split: str | None, stream: bool) -> Json:
    key, more = key_of(case, split), case.get("request", {})
    tools = {name: _schema(arguments) for name, arguments in case.get("tools", {}).items()}
    body: Json = {"model": "trial", "stream": stream, **more}
    if api == "chat":
        body["messages"] = [{"role": "user", "content": key}]
        shaped = [{"type": "function", "function": {"name": n, "parameters": s}} for n, s in tools.items()]
    elif api == "responses":
        body |= {"input": key, "store": False}
        if (effort := body.pop("reasoning_effort", None)) is not None:
            body["reasoning"] = {"effort": effort}
        shaped = [{"type": "function", "name": n, "parameters": s} for n, s in tools.items()]
    else:
        body |= {"messages": [{"role": "user", "content": key}], "max_tokens": 4000}
        shaped = [{"name": n, "input_schema": s} for n, s in tools.items()]
    return body | ({"tools": shaped} if shaped else {})


def _schema(arguments: Json) -> Json:
    """The schema of a tool's arguments: name → type, or schema; or a whole schema."""
    if arguments.get("type") == "object" and "properties" in arguments:
        return arguments
    properties = {n: {"type": kind} if isinstance(kind, str) else kind for n, kind in arguments.items()}
    return {"type": "object", "properties": properties}


def _of_chat(body: Json) -> Shown:
    choice = body["choices"][0]
    message = choice["message"]
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or ()]
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    return Shown(message.get("content") or "", reasoning, calls, choice["finish_reason"])


def _of_chat_stream(events: list[Json]) -> Shown:
    shown, calls = Shown(), dict[int, list[str]]()
    for choice in (choice for event in events for choice in event["choices"]):
        delta = choice["delta"]
        shown.content += delta.get("content") or ""
        shown.reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
        for call in delta.get("tool_calls") or ():
            kept = calls.setdefault(call["index"], ["", ""])
            kept[0] += call["function"].get("name") or ""
            kept[1] += call["function"].get("arguments") or ""
        shown.finish = choice["finish_reason"] or shown.finish
    shown.calls = [(name, arguments) for name, arguments in calls.values()]
    return shown


def _of_response(body: Json) -> Shown:
    texts, thoughts, calls = [], [], []
    for item in body["output"]:
        if item["type"] == "message":
            texts.append("".join(part.get("text", "") for part in item["content"]))
        elif item["type"] == "reasoning":
            thoughts.append("".join(part["text"] for part in item.get("content") or ()))
        elif item["type"] == "function_call":
            calls.append((item["name"], item["arguments"]))
    finish = "length" if body["status"] == "incomplete" and body["incomplete_details"] else "stop"
    finish = "tool_calls" if calls and finish == "stop" else finish
    return Shown("\n\n".join(texts), "\n\n".join(thoughts), calls, finish)


def _of_response_stream(events: list[Json]) -> Shown:
    """The deltas of a stream; what its last event says of the end."""
    items: dict[int, Json] = {}
    for event in events:
        at, kind = event.get("output_index"), event["type"]
        if kind == "response.output_item.added":
            items[at] = {**event["item"], "shown": ""}
        elif kind.endswith(("output_text.delta", "reasoning_text.delta", "function_call_arguments.delta")):
            items[at]["shown"] += event["delta"]
    body = events[-1]["response"]
    texts = [item["shown"] for item in items.values() if item["type"] == "message"]
    thoughts = [item["shown"] for item in items.values() if item["type"] == "reasoning"]
    calls = [(item["name"], item["shown"]) for item in items.values() if item["type"] == "function_call"]
    return Shown("\n\n".join(texts), "\n\n".join(thoughts), calls, _of_response(body).finish)


_FINISH = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls", "max_tokens": "length"}
_FINISH["model_context_window_exceeded"] = "length"


def _of_message(body: Json) -> Shown:
    texts = [block["text"] for block in body["content"] if block["type"] == "text"]
    calls = [(b["name"], json.dumps(b["input"])) for b in body["content"] if b["type"] == "tool_use"]
    return Shown("\n\n".join(texts), "", calls, _FINISH[body["stop_reason"]])


def _of_message_stream(events: list[Json]) -> Shown:
    blocks: dict[int, Json] = {}
    finish = "stop"
    for event in events:
        if event["type"] == "content_block_start":
            blocks[event["index"]] = {**event["content_block"], "shown": ""}
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            blocks[event["index"]]["shown"] += delta.get("text", delta.get("partial_json", ""))
        elif event["type"] == "message_delta":
            finish = _FINISH[event["delta"]["stop_reason"]]
    texts = [block["shown"] for block in blocks.values() if block["type"] == "text"]
    calls = [(b["name"], b["shown"] or "{}") for b in blocks.values() if b["type"] == "tool_use"]
    return Shown("\n\n".join(texts), "", calls, finish)


_SHOWN: dict[tuple[str, bool], Callable[[Json], Shown]] = {
    ("chat", False): _of_chat,
    ("chat", True): _of_chat_stream,
    ("responses", False): _of_response,
    ("responses", True): _of_response_stream,
    ("messages", False): _of_message,
    ("messages", True): _of_message_stream,
}


def _differences(shown: Shown, answer: Json, api: str) -> Iterator[str]:
    """How what is shown differs from what has to come out."""
    for name in ("content", "reasoning"):
        if name in answer and not (name == "reasoning" and api == "messages"):
            wanted, value = answer[name], getattr(shown, name).strip()
            operators = wanted if isinstance(wanted, dict) else {"equals": wanted.strip()}
            yield from (f"{name}: {fault}" for fault in _broken(value, operators))
    finish = answer.get("finish", "tool_calls" if answer.get("calls", shown.calls) else "stop")
    if finish != shown.finish:
        yield f"finish: {shown.finish}, not {finish}"
    if "calls" in answer:
        names, wanted_names = [name for name, _ in shown.calls], [name for name, _ in answer["calls"]]
        if names != wanted_names:
            yield f"calls of {names}, not of {wanted_names}; content: {shown.content!r}"
            return
        for (name, written), (_, wanted) in zip(shown.calls, answer["calls"], strict=True):
            yield from (f"{name}: {fault}" for fault in _faults_of_arguments(written, wanted))


def _faults_of_arguments(written: str, wanted: Json) -> list[str]:
    if wanted.get("$broken"):
        return _broken(written, wanted)
    try:
        return [] if json.loads(written) == wanted else [f"{written}, not {wanted}"]
    except ValueError:
        return [f"not JSON: {written}"]
