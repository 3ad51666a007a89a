"""The real `antiphon serve`, as a process: what it prints, where it takes its options from, how it ends."""

import json
import os
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect

from tests.server import NO_TLS
from tests.server_process import EXIT_SECONDS, START_SECONDS, serving

ANTIPHON = Path(sys.executable).with_name("antiphon")

SCRIPT: list[dict[str, Any]] = [
    {
        "when": "sleep",
        "output": '<tool_call>{"name": "shell", "arguments": {"commands": ["echo $$ > pid; sleep 600"], "timeout_ms": 600000}}</tool_call>',
    },
    {"when": "short", "output": "word ", "tokens": 60, "delay_ms": 20},  # a word and a space are two
    {"when": "endless", "output": "word ", "tokens": 100_000, "delay_ms": 20},
    {"output": "Hello there, friend!"},
]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in SCRIPT))
    return path


@pytest.fixture
def scripted(script: Path) -> tuple[str, ...]:
    """The options of a scripted server."""
    return ("--port", "0", "--engine", "scripted", "--script", str(script))


def ask(content: str, model: str = "scripted", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": content}], **more}


def chat(url: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.post(
        f"{url}/v1/chat/completions", json=body, headers=headers, timeout=START_SECONDS, verify=NO_TLS
    )


def said(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    content: str = response.json()["choices"][0]["message"]["content"]
    return content


def refusal(response: httpx.Response) -> tuple[int, str, str | None, str | None]:
    """The status, and what the body says of the error."""
    error = response.json()["error"]
    return response.status_code, error["type"], error["code"], error["param"]


UNKNOWN_MODEL = (404, "not_found_error", "model_not_found", "model")
NO_KEY = (401, "authentication_error", "invalid_api_key", None)

# Starting


def test_it_says_where_it_listens_and_answers_there(tmp_path: Path, scripted: tuple[str, ...]) -> None:
    with serving(tmp_path, *scripted) as server:
        assert said(chat(server.url, ask("Hi"))) == "Hello there, friend!"
        assert httpx.get(f"{server.url}/health", verify=NO_TLS).json()["status"] == "ready"
        assert server.stderr == ""


def test_it_speaks_websocket(tmp_path: Path, scripted: tuple[str, ...]) -> None:
    with serving(tmp_path, *scripted, "--store", "memory", "--limit", "body_bytes=1000") as server:
        url = server.url.replace("http", "ws") + "/v1/responses"
        with connect(url) as client:
            client.send(json.dumps({"type": "response.create", "model": "scripted", "input": "Hi"}))
            events = [json.loads(client.recv())]
            while events[-1]["type"] != "response.completed":
                events.append(json.loads(client.recv()))
            [message] = events[-1]["response"]["output"]
            assert message["content"][0]["text"] == "Hello there, friend!"
            client.send("x" * 1001)
            with pytest.raises(ConnectionClosedError, match="1009"):
                client.recv()
        assert server.stderr == ""


def test_events_of_thoughts_have_the_names_that_were_chosen(
    tmp_path: Path, scripted: tuple[str, ...]
) -> None:
    script = tmp_path / "thoughts.jsonl"
    script.write_text(json.dumps({"output": "<think>\nHm.\n</think>\n\nHello!"}))
    options = ("--script", str(script), "--store", "memory", "--reasoning-events", "open-responses")
    with serving(tmp_path, *scripted[:-2], *options) as server:
        body = {"model": "scripted", "input": "Hi", "stream": True}
        stream = httpx.post(
            f"{server.url}/v1/responses", json=body, timeout=START_SECONDS, verify=NO_TLS
        ).text
        assert "event: response.reasoning.delta" in stream
        assert "reasoning_text.delta" not in stream


@pytest.mark.parametrize("name", ["scripted", "org/model-1.5", 'it\'s a "model" \\ ünder'])
def test_the_line_to_try_can_be_run(tmp_path: Path, scripted: tuple[str, ...], name: str) -> None:
    with serving(tmp_path, *scripted, "--model-name", name) as server:
        url = server.url
        [_, line, *_] = server.stdout.splitlines()

        try_, curl, target, header_flag, header, data_flag, data = shlex.split(line)
        assert (try_, curl, header_flag, data_flag) == ("try:", "curl", "-H", "-d")
        assert target == f"{url}/v1/chat/completions"
        assert json.loads(data)["model"] == name
        key, _, value = header.partition(": ")
        response = httpx.post(target, content=data.encode(), headers={key: value}, verify=NO_TLS)
        assert said(response) == "Hello there, friend!"


def test_options_come_from_the_file_and_the_environment(tmp_path: Path, script: Path) -> None:
    config = tmp_path / "antiphon.toml"
    options = {
        "engine": "scripted",
        "script": str(script),
        "port": 1,
        "model_name": ["file"],
        "limit": ["body_bytes=300"],
    }
    config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in options.items()))

    with serving(
        tmp_path,
        "--config",
        str(config),
        "--port",
        "0",
        ANTIPHON_MODEL_NAME="variable",
        ANTIPHON_API_KEY="k1 k2",
    ) as server:
        key = {"authorization": "Bearer k2"}
        assert said(chat(server.url, ask("Hi", "variable"), **key)) == "Hello there, friend!"
        assert refusal(chat(server.url, ask("Hi", "file"), **key)) == UNKNOWN_MODEL
        assert refusal(chat(server.url, ask("Hi", "variable"))) == NO_KEY
        too_large = chat(server.url, ask("x" * 300, "variable"), **key)
        assert refusal(too_large) == (413, "invalid_request_error", "limit_exceeded", None)


def test_a_model_has_all_its_names(tmp_path: Path, scripted: tuple[str, ...]) -> None:
    with serving(tmp_path, *scripted, "--model-name", "org/big", "--model-name", "alias") as server:
        listed = httpx.get(f"{server.url}/v1/models", verify=NO_TLS).json()["data"]
        assert [model["id"] for model in listed] == ["org/big", "alias"]
        for name in ("org/big", "alias"):
            assert chat(server.url, ask("Hi", name)).json()["model"] == name
        assert refusal(chat(server.url, ask("Hi", "scripted"))) == UNKNOWN_MODEL


def test_a_key_protects(tmp_path: Path, scripted: tuple[str, ...]) -> None:
    keys = tmp_path / "keys"
    keys.write_text("second\nthird\n")
    with serving(tmp_path, *scripted, "--api-key", "first", "--api-key", f"@{keys}") as server:
        assert refusal(chat(server.url, ask("Hi"))) == NO_KEY
        assert refusal(chat(server.url, ask("Hi"), authorization="Bearer wrong")) == NO_KEY
        for key in ("first", "second", "third"):
            assert said(chat(server.url, ask("Hi"), authorization=f"Bearer {key}"))
        assert "first" not in server.stdout + server.stderr


@contextmanager
def listening() -> Iterator[int]:
    """A port that is taken."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def refused(folder: Path, *args: str) -> str:
    """What a server that cannot start says: one line, and nothing of its inside."""
    with serving(folder, *args) as server:
        assert server.ended(START_SECONDS) == 1, server.stderr
        assert server.stdout == ""
        [line] = server.stderr.splitlines()
    assert line.startswith("antiphon: ")
    return line.removeprefix("antiphon: ")


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    line = refused(tmp_path, "--port", "0", "--engine", "scripted", "--script", "/nowhere/script.jsonl")
    assert line == "The script /nowhere/script.jsonl cannot be read (No such file or directory)."


def test_a_script_that_is_wrong(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text('{"output": "a"}\n{"outptu": "a"}\n')
    line = refused(tmp_path, "--port", "0", "--engine", "scripted", "--script", str(script))
    assert "script.jsonl, line 2" in line
    assert "outptu" in line


def test_a_dialect_that_does_not_exist(tmp_path: Path, scripted: tuple[str, ...]) -> None:
    line = refused(tmp_path, *scripted, "--dialect", "klingon")
    assert "klingon" in line
    assert "hermes" in line


def test_a_port_that_is_taken(tmp_path: Path, script: Path) -> None:
    with listening() as port:
        line = refused(tmp_path, "--port", str(port), "--engine", "scripted", "--script", str(script))
    assert f"127.0.0.1:{port}" in line
    assert "--port" in line


def test_a_host_that_is_none_of_ours(tmp_path: Path, scripted: tuple[str, ...]) -> None:
    for host in ("no-such-host.invalid", "192.0.2.1"):
        line = refused(tmp_path, *scripted, "--host", host)
        assert line.count(host) == 1
        assert "Choose another --host." in line


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    assert "/nowhere/model.gguf" in refused(tmp_path, "/nowhere/model.gguf", "--port", "0")


def test_a_model_that_is_none(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF, or is it?")
    assert str(model) in refused(tmp_path, str(model), "--port", "0")


def test_a_chat_template_that_is_not_there(tmp_path: Path, scripted: tuple[str, ...]) -> None:
    line = refused(tmp_path, *scripted, "--chat-template", "/nowhere/template.jinja")
    assert "/nowhere/template.jinja" in line


def test_a_chat_template_that_is_empty(tmp_path: Path, scripted: tuple[str, ...]) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("\n")
    assert "empty" in refused(tmp_path, *scripted, "--chat-template", str(template))


def test_a_chat_template_that_refuses_everything(tmp_path: Path, scripted: tuple[str, ...]) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ raise_exception('Only in Latin.') }}")
    line = refused(tmp_path, *scripted, "--chat-template", str(template))
    assert "Only in Latin" in line
    assert "chat template" in line
    assert "--chat-template" in line


def test_a_store_that_is_none(tmp_path: Path, script: Path) -> None:
    line = refused(
        tmp_path,
        "--engine",
        "scripted",
        "--script",
        str(script),
        "--port",
        "0",
        "--store",
        f"sqlite:///{script}",
    )
    assert "file is not a database" in line
    assert "--store" in line
    assert "http" not in line


def test_a_chat_template_that_has_a_name(tmp_path: Path, scripted: tuple[str, ...]) -> None:
    with serving(tmp_path, *scripted, "--chat-template", "chatml") as process:
        rendered = httpx.post(f"{process.url}/v1/chat/completions/render", json=ask("Hi"), verify=NO_TLS)
    assert "<|im_start|>user\\nHi<|im_end|>" in rendered.text


def test_a_chat_template_that_is_wrong(tmp_path: Path, scripted: tuple[str, ...]) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for message in messages %}{{ message.content }")
    assert "template" in refused(tmp_path, *scripted, "--chat-template", str(template)).lower()


# Stopping


@contextmanager
def streaming(url: str, content: str) -> Iterator[Iterator[str]]:
    """The payloads of a stream that has begun."""
    body = ask(content, stream=True)
    with httpx.stream(
        "POST", f"{url}/v1/chat/completions", json=body, timeout=START_SECONDS, verify=NO_TLS
    ) as response:
        assert response.status_code == 200
        lines = (line.removeprefix("data: ") for line in response.iter_lines() if line)
        assert "assistant" in next(lines)
        yield lines


def refuses(url: str) -> bool:
    """Whether no answers are begun any more: the server has seen the signal."""
    health = httpx.get(f"{url}/health", timeout=EXIT_SECONDS, verify=NO_TLS)
    assert health.json()["status"] == ("ready" if health.is_success else "draining")
    return health.status_code == 503


TOOLS = ("--code-interpreter", "--shell", "sh", "--web-search", "http://127.0.0.1:9")


def test_a_server_runs_the_tools_that_it_was_told_to(tmp_path: Path, scripted: tuple[str, ...]) -> None:
    asked = ask("Hi", tools=[{"type": type_} for type_ in ("code_interpreter", "shell", "web_search")])
    with serving(tmp_path, *scripted, *TOOLS) as server:
        assert said(chat(server.url, asked)) == "Hello there, friend!"
    with serving(tmp_path, *scripted, *TOOLS[1:]) as server:
        error = chat(server.url, asked).json()["error"]
        assert (error["param"], "'code_interpreter'" in error["message"]) == ("tools[0].type", True)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--shell", "sh 'open"), "The shell's command cannot be read"),
        (("--shell", " "), "The shell's command is empty"),
        (("--shell", "/none/sandbox sh"), "--shell cannot be used: /none/sandbox: No such file or directory"),
        (("--web-search", "nowhere"), "is not the URL of a search engine"),
    ],
)
def test_a_tool_that_cannot_be_run_is_told_at_once(
    tmp_path: Path, scripted: tuple[str, ...], args: tuple[str, ...], says: str
) -> None:
    assert says in refused(tmp_path, *scripted, *args)


CODES = {signal.SIGINT: {130}, signal.SIGTERM: {0, 143, -signal.SIGTERM}}
BOTH = pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=lambda signum: signum.name)


@BOTH
def test_a_signal_lets_a_running_stream_end(tmp_path: Path, scripted: tuple[str, ...], signum: int) -> None:
    with serving(tmp_path, *scripted) as server:
        url = server.url
        with streaming(url, "short") as payloads:
            server.send(signum)
            server.until(lambda: refuses(url))
            assert refusal(chat(url, ask("Hi")))[:3] == (503, "server_error", "engine_not_ready")
            *chunks, last, end = list(payloads)

        assert end == "[DONE]"
        assert json.loads(last)["choices"][0]["finish_reason"] == "stop"
        contents = [json.loads(chunk)["choices"][0]["delta"]["content"] for chunk in chunks]
        assert "".join(contents) == "word " * 30
        assert server.ended() in CODES[signal.Signals(signum)]
        assert server.stderr == ""


def test_a_client_that_leaves_is_no_error(tmp_path: Path, scripted: tuple[str, ...]) -> None:
    body = {"model": "scripted", "input": "endless", "stream": True}
    with serving(tmp_path, *scripted) as server:
        with httpx.stream("POST", f"{server.url}/v1/responses", json=body, verify=NO_TLS) as response:
            next(line for line in response.iter_lines() if "output_text.delta" in line)
        # Its item is closed, for the store: a closed transport raises for what is written to it.
        assert said(chat(server.url, ask("Hi"))) == "Hello there, friend!"
        server.send(signal.SIGTERM)
        assert server.ended() in CODES[signal.SIGTERM]
        assert server.stderr == ""


def children_of(process: int) -> list[int]:
    """The processes that a process has started."""
    found = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for each in found for child in each.read_text().split()]


def test_a_signal_while_files_are_indexed_leaves_them_to_the_next_server(
    tmp_path: Path, scripted: tuple[str, ...]
) -> None:
    """As supervisors send it: to all processes of the server."""
    with (
        serving(tmp_path, *scripted) as server,
        httpx.Client(base_url=f"{server.url}/v1", verify=NO_TLS) as http,
    ):
        ids = [
            http.post(
                "/files", files={"file": ("a.txt", b"word " * 80_000)}, data={"purpose": "assistants"}
            ).json()["id"]
            for _ in range(2)
        ]
        path = f"/vector_stores/{http.post('/vector_stores', json={'file_ids': ids}).json()['id']}"
        assert http.get(path).json()["file_counts"]["in_progress"]
        for process in children_of(server.pid):
            os.kill(process, signal.SIGTERM)
        server.send(signal.SIGTERM)
        assert server.ended() in CODES[signal.SIGTERM]
        assert server.stderr == ""
    with (
        serving(tmp_path, *scripted) as server,
        httpx.Client(base_url=f"{server.url}/v1", verify=NO_TLS) as http,
    ):
        server.until(lambda: not http.get(path).json()["file_counts"]["in_progress"])
        assert http.get(path).json()["file_counts"]["completed"] == len(ids)


def test_who_reads_what_it_prints_may_leave(scripted: tuple[str, ...]) -> None:
    """A terminal, or a pipe: its lines are lost then, and nothing else."""
    command = [str(ANTIPHON), "serve", "--store", "memory", *scripted]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:  # noqa: S603
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            url = process.stdout.readline().split()[-1].decode()
            process.stdout.close()
            process.stderr.close()
            assert said(chat(url, ask("Hi"))) == "Hello there, friend!"
            process.send_signal(signal.SIGTERM)
            assert process.wait(EXIT_SECONDS) in CODES[signal.SIGTERM]
        finally:
            process.kill()


def test_a_hangup_changes_nothing(tmp_path: Path, scripted: tuple[str, ...]) -> None:
    with serving(tmp_path, *scripted) as server:
        url = server.url
        server.send(signal.SIGHUP)
        assert said(chat(url, ask("Hi"))) == "Hello there, friend!"
        server.send(signal.SIGTERM)
        assert server.ended() in CODES[signal.SIGTERM]


def test_it_speaks_tls(tmp_path: Path, scripted: tuple[str, ...]) -> None:
    certificate, key = tmp_path / "tls.pem", tmp_path / "tls.key"
    write_certificate(certificate, key)
    options = ("--tls-certificate", str(certificate), "--tls-key", str(key))
    with serving(tmp_path, *scripted, *options) as server:
        server.until(lambda: server.stdout.count("\n") >= 2, START_SECONDS)
        url = re.search(r"listening on (https://127\.0\.0\.1:\d+)\n", server.stdout)
        assert url, server.stdout
        context = ssl.create_default_context(cafile=certificate)
        with httpx.Client(base_url=url[1], verify=context) as client:
            assert said(client.post("/v1/chat/completions", json=ask("Hi"))) == "Hello there, friend!"
            stream = client.post("/v1/chat/completions", json=ask("Hi", stream=True)).text
            assert stream.endswith("data: [DONE]\n\n")


def write_certificate(certificate: Path, key: Path) -> None:
    """One for 127.0.0.1, signed by itself."""
    private = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")]), datetime.now(UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, private.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(1))
    signed = builder.add_extension(address, critical=False).sign(private, hashes.SHA256())
    certificate.write_bytes(signed.public_bytes(Encoding.PEM))
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def test_the_command_to_try_is_one_that_the_model_answers(tmp_path: Path) -> None:
    with serving(tmp_path, "--port", "0", "--task", "embed") as server:
        url = server.url
        found = re.search(rf"^try: curl {url}(/\S+) .* -d '(.*)'$", server.stdout, re.MULTILINE)
        assert found, server.stdout
        assert found[1] == "/v1/embeddings"
        [vector] = httpx.post(
            url + found[1], json=json.loads(found[2]), timeout=START_SECONDS, verify=NO_TLS
        ).json()["data"]
        assert len(vector["embedding"]) > 100


def test_it_listens_on_a_unix_socket(tmp_path: Path, scripted: tuple[str, ...]) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))  # by a server that was killed
    with serving(
        tmp_path, *scripted, "--unix-socket", str(path), "--allow-host", "llm.example.com"
    ) as server:
        server.until(lambda: server.stdout.count("\n") >= 2, START_SECONDS)
        assert f"listening on unix:{path}\n" in server.stdout
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(base_url="http://localhost", transport=transport) as client:
            assert said(client.post("/v1/chat/completions", json=ask("Hi"))) == "Hello there, friend!"
            for host, status in (("llm.example.com", 200), ("evil.example.com", 403)):
                assert client.get("/v1/models", headers={"host": host}).status_code == status
            with serving(tmp_path, *scripted, "--unix-socket", str(path)) as other:
                assert other.ended() == 1
                assert f"Cannot listen on {path}: Address already in use." in other.stderr
        server.send(signal.SIGTERM)
        assert server.ended() in CODES[signal.SIGTERM]
        assert not path.exists()


def test_answers_have_so_long_to_end(tmp_path: Path, scripted: tuple[str, ...]) -> None:
    with serving(tmp_path, *scripted, "--drain-seconds", "1") as server:
        url = server.url
        with streaming(url, "endless") as payloads:
            server.send(signal.SIGTERM)
            server.until(lambda: refuses(url))
            *_, error, end = payloads
        assert "engine_not_ready" in error
        assert end == "[DONE]"
        assert server.ended() in CODES[signal.SIGTERM]
        assert "finishing 1 request within 1 seconds" in server.stdout
        assert "1 request did not end in time" in server.stdout


@pytest.mark.parametrize("given", [(), ("--api-key", "secret")])
def test_an_open_server_for_everybody_is_warned_of(
    tmp_path: Path, scripted: tuple[str, ...], given: tuple[str, ...]
) -> None:
    with serving(tmp_path, *scripted, "--host", "0.0.0.0", *given) as server:  # noqa: S104
        server.until(lambda: server.stdout.count("\n") >= 2, START_SECONDS)
        assert ("anyone who reaches this server may use it" in server.stderr) == (not given)


@pytest.mark.parametrize(
    ("options", "says"),
    [((), "go together"), (("--tls-key", "y"), "No such file")],
)
def test_tls_that_cannot_be(
    tmp_path: Path, scripted: tuple[str, ...], options: tuple[str, ...], says: str
) -> None:
    with serving(tmp_path, *scripted, "--tls-certificate", "x", *options) as server:
        assert server.ended() == 1
        assert server.stderr.startswith("antiphon: ")
        assert says in server.stderr


def test_an_answer_may_be_bounded_where_its_request_does_not_say(
    tmp_path: Path, scripted: tuple[str, ...]
) -> None:
    with serving(tmp_path, *scripted, "--max-tokens", "5") as server:
        url = server.url
        answers = [chat(url, ask("endless", **given)).json() for given in ({}, {"max_tokens": 9})]
        assert [answer["usage"]["completion_tokens"] for answer in answers] == [5, 9]
        assert answers[0]["choices"][0]["finish_reason"] == "length"


def test_a_hangup_reads_the_keys_again(tmp_path: Path, scripted: tuple[str, ...]) -> None:
    keys, old, new = tmp_path / "keys.toml", "Bearer old", "Bearer new"
    keys.write_text('[[keys]]\nname = "ann"\nvalue = "old"')
    with serving(tmp_path, *scripted, "--keys", str(keys)) as server:
        url = server.url
        with httpx.Client(verify=NO_TLS, base_url=url, headers={"authorization": old}) as client:
            assert client.get("/v1/models").status_code == 200
            assert refusal(chat(url, ask("Hi"), authorization=new)) == NO_KEY
            keys.write_text('[[keys]]\nname = "ann"\nvalue = ["old", "new"]')
            server.send(signal.SIGHUP)
            server.until(lambda: chat(url, ask("Hi"), authorization=new).status_code == 200)
            keys.write_text("broken")
            server.send(signal.SIGHUP)
            server.until(lambda: "the keys stay as they are" in server.stderr)
            assert client.get("/v1/models").status_code == 200


def test_it_says_what_ctrl_c_does_while_it_waits(tmp_path: Path, scripted: tuple[str, ...]) -> None:
    with serving(tmp_path, *scripted) as server, streaming(server.url, "endless"):
        server.send(signal.SIGINT)
        server.until(lambda: "within 300 seconds; Ctrl-C again to stop now" in server.stdout)


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path, scripted: tuple[str, ...]) -> None:
    with serving(tmp_path, *scripted) as server:
        url = server.url
        with streaming(url, "endless") as payloads:
            server.send(signal.SIGINT)
            server.until(lambda: refuses(url))
            assert "word" in next(payloads)
            server.send(signal.SIGINT)
            assert server.ended() == 130
            *_, error, end = payloads
            assert "engine_not_ready" in error  # and the client can see that its answer was cut
            assert end == "[DONE]"

        assert server.stderr == ""


@BOTH
def test_a_signal_ends_an_idle_server_at_once(tmp_path: Path, scripted: tuple[str, ...], signum: int) -> None:
    with serving(tmp_path, *scripted) as server, httpx.Client(base_url=server.url, verify=NO_TLS) as client:
        assert client.get("/health").json()["status"] == "ready"  # and the connection stays open
        assert said(client.post("/v1/chat/completions", json=ask("Hi")))
        server.send(signum)
        assert server.ended() in CODES[signal.Signals(signum)]
        assert server.stderr == ""


def test_a_tool_at_work_does_not_hold_a_server_that_is_stopped(
    tmp_path: Path, scripted: tuple[str, ...]
) -> None:
    """The first signal waits for it, the second ends it, and what came of the answer is stored."""
    asked = {"model": "scripted", "input": "sleep", "stream": True, "tools": [{"type": "shell"}]}
    options = (*scripted, "--dialect", "hermes", "--shell", f"sh -c 'cd {tmp_path} && exec sh'")
    with (
        serving(tmp_path, *options) as server,
        httpx.stream("POST", f"{server.url}/v1/responses", json=asked, timeout=20, verify=NO_TLS) as response,
    ):
        told = response.iter_bytes()  # to forget it would be to leave
        next(told)
        server.until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
        server.send(signal.SIGTERM)
        server.until(lambda: refuses(server.url))
        server.send(signal.SIGTERM)
        server.ended()
        assert server.stderr == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_client_that_left_does_not_hold_the_server(tmp_path: Path, scripted: tuple[str, ...]) -> None:
    with serving(tmp_path, *scripted) as server:
        with streaming(server.url, "endless"):
            pass
        server.send(signal.SIGINT)
        assert server.ended() == 130
        assert server.stderr == ""


# The bundled model

ALONE = ("--parallel", "1", "--threads", "1")
"""Two threads would wait for each other where tests run side by side."""


def test_the_bundled_model_answers_and_ends(tmp_path: Path) -> None:
    with serving(tmp_path, "--port", "0", "--context", "512", *ALONE) as server:
        url = server.url
        [model] = httpx.get(f"{url}/v1/models", verify=NO_TLS).json()["data"]
        body = ask("What is the capital of France?", model["id"], max_tokens=16, temperature=0)
        assert len(said(chat(url, body))) > 8
        server.send(signal.SIGINT)
        assert server.ended() == 130
        assert server.stderr == ""


def test_the_bundled_model_is_stopped_in_the_middle(tmp_path: Path) -> None:
    with serving(tmp_path, "--port", "0", *ALONE) as server:
        url = server.url
        [model] = httpx.get(f"{url}/v1/models", verify=NO_TLS).json()["data"]
        body = ask("Tell a very long story.", model["id"], stream=True, temperature=0, presence_penalty=2)
        with httpx.stream(
            "POST", f"{url}/v1/chat/completions", json=body, timeout=START_SECONDS, verify=NO_TLS
        ) as response:
            lines = response.iter_lines()  # to forget it would be to leave
            assert next(lines)
            server.send(signal.SIGINT)
            server.until(lambda: refuses(url))
            server.send(signal.SIGINT)
            assert server.ended() == 130
        assert server.stderr == ""


def test_a_server_is_stopped_while_its_model_loads(tmp_path: Path) -> None:
    with listening() as free:
        port = free
    with serving(tmp_path, "--port", str(port), *ALONE) as server:
        server.until(lambda: listens(port), START_SECONDS)  # which it does before it loads
        server.send(signal.SIGINT)
        assert server.ended(START_SECONDS) == 130
        assert server.stderr == ""


def listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0
