"""Codex's catalogue: the models of the server, and what the installed Codex tells one that it does not know.

These instructions are in no file, and no command of Codex prints them. So it is run once, in an empty folder,
with a server that reads its first request and refuses it. That takes a second; nothing leaves this machine.
"""

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec

from antiphon import __version__
from antiphon.chat import ChatClient

SECONDS = 30
LARGEST = 4 * 1024 * 1024
"""Bytes of the request: it has tens of thousands."""
STRANGER = "a-model-that-codex-does-not-know"
REFUSAL = b'{"error": {"message": "This was only to see a request."}}'


class _Catalogue(msgspec.Struct):
    models: list[dict[str, Any]] = []


def codex_models(client: ChatClient) -> list[dict[str, Any]]:
    """The server's models as Codex reads them; none of another server. Raises ChatError."""
    body = client.get(f"/models?client_version={__version__}")
    try:
        models = msgspec.json.decode(body, type=_Catalogue).models
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    return [model for model in models if "slug" in model]


def codex_instructions(folder: Path) -> str | None:
    """The instructions; None if Codex is not here, or says none. Its files are below `folder` meanwhile."""
    program = shutil.which("codex")
    if program is None:
        return None
    with suppress(OSError):  # what is wrong with it is told when the agent's own files are written
        folder.mkdir(parents=True, exist_ok=True)
    if not folder.is_dir():
        return None
    with _Reader() as reader, tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as home:
        options = (f"model={_text(STRANGER)}", 'model_provider="antiphon"', "analytics.enabled=false")
        settings = [part for option in (*options, reader.provider) for part in ("-c", option)]
        command = [program, "exec", "--ephemeral", "--skip-git-repo-check", *settings, "Hi"]
        try:
            subprocess.run(  # noqa: S603 - the agent that the user names
                command,
                env={**os.environ, "CODEX_HOME": home},
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
    return reader.instructions


class _Reader(HTTPServer):
    """A server on this machine that keeps the instructions of the first request that has any."""

    instructions: str | None = None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._thread = Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def provider(self) -> str:
        """The option with which Codex asks it."""
        url = f"http://127.0.0.1:{self.server_port}/v1"
        retries = "request_max_retries=0,stream_max_retries=0"
        return f'model_providers.antiphon={{name="Antiphon",base_url="{url}",wire_api="responses",{retries}}}'

    def __enter__(self) -> "_Reader":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    """Reads the request, and refuses it."""

    timeout = SECONDS

    def do_POST(self) -> None:
        """Keep what the model would be told."""
        size = self.headers.get("content-length") or ""
        body = self.rfile.read(min(int(size), LARGEST) if size.isdecimal() else 0)
        reader: Any = self.server
        reader.instructions = reader.instructions or _instructions(body)
        self.send_response(400)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(REFUSAL)))
        self.end_headers()
        self.wfile.write(REFUSAL)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Nothing: the terminal is the agent's."""


class _Part(msgspec.Struct):
    text: str = ""


class _Item(msgspec.Struct):
    role: str = ""
    content: list[_Part] | str = ""


class _Request(msgspec.Struct):
    instructions: str | None = None
    input: list[_Item] | str = ""


def _instructions(body: bytes) -> str | None:
    """Those of a request: the parameter, or else the developer's first message."""
    try:
        request = msgspec.json.decode(body, type=_Request)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    first = request.input[0] if request.input else None
    if request.instructions or not isinstance(first, _Item) or first.role != "developer":
        return request.instructions or None
    text = first.content if isinstance(first.content, str) else "".join(part.text for part in first.content)
    return text or None


def _text(text: str) -> str:
    """A string in TOML: that of JSON."""
    return msgspec.json.encode(text).decode()
