"""Open WebUI's backend, as its page uses it: a streamed answer, a tool that it runs, and a file that it knows.

It is connected as users connect it: to the API of OpenAI, or to that of Ollama. It is started here, and driven by
its own API, with an administrator who signs up.
"""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

URL, MODEL, WAY = sys.argv[1:]
KEY = os.environ["OPENAI_API_KEY"]
OLLAMA = URL.removesuffix("/v1")
START_SECONDS = 150
SECONDS = 60
TOOL = '''
class Tools:
    def get_weather(self, city: str) -> str:
        """
        The weather in a city.

        :param city: Which.
        """
        return "sunny, 21 degrees" if city == "Rome" else "unknown"
'''


def started(port: int, home: Path) -> "subprocess.Popen[bytes]":
    """The backend, with everything off that would ask the network."""
    with (home / "server.log").open("wb") as log:
        return subprocess.Popen(  # noqa: S603
            [
                Path(sys.executable).with_name("open-webui"),
                "serve",
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
            ],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(home),
                "DATA_DIR": str(home / "data"),
                "WEBUI_SECRET_KEY": "secret",
                "HF_HUB_OFFLINE": "1",
                "ANONYMIZED_TELEMETRY": "False",
                "ENABLE_VERSION_UPDATE_CHECK": "False",
                "ENABLE_OPENAI_API": str(WAY == "openai"),
                "OPENAI_API_BASE_URL": URL,
                "OPENAI_API_KEY": KEY,
                "ENABLE_OLLAMA_API": str(WAY == "ollama"),
                "OLLAMA_BASE_URL": OLLAMA,
                "RAG_EMBEDDING_ENGINE": WAY,
                "RAG_EMBEDDING_MODEL": MODEL,
                "RAG_OPENAI_API_BASE_URL": URL,
                "RAG_OPENAI_API_KEY": KEY,
                "RAG_OLLAMA_BASE_URL": OLLAMA,
                "RAG_OLLAMA_API_KEY": KEY,
            },
            cwd=home,
            stdout=log,
            stderr=log,
        )


class Page:
    """What the page asks of the backend."""

    def __init__(self, port: int) -> None:
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=SECONDS)

    def wait(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait until it has started."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and process.poll() is None:
            try:
                if self.client.get("/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.3)
        raise RuntimeError("it does not start")

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """The answer to a request."""
        response = self.client.request(method, path, **options)
        if response.status_code != 200:
            raise RuntimeError(f"{method} {path}: {response.status_code} {response.text}")
        return response.json()

    def sign_up(self) -> None:
        """The first to do so is the administrator."""
        person = {"name": "A", "email": "a@example.com", "password": "a-Long-password-1"}
        token = self.ask("POST", "/api/v1/auths/signup", json=person)["token"]
        self.client.headers["Authorization"] = f"Bearer {token}"
        if WAY == "ollama":
            connection = {"0": {"enable": True, "key": KEY}}
            config = {
                "ENABLE_OLLAMA_API": True,
                "OLLAMA_BASE_URLS": [OLLAMA],
                "OLLAMA_API_CONFIGS": connection,
            }
            self.ask("POST", "/ollama/config/update", json=config)

    def chat(self, question: str, **more: Any) -> Any:
        """The answer in a new chat, as it is stored: the page is told its parts by another way meanwhile."""
        asked, answered = str(uuid4()), str(uuid4())
        message = {
            "id": asked,
            "role": "user",
            "content": question,
            "parentId": None,
            "childrenIds": [answered],
        }
        chat = self.ask(
            "POST",
            "/api/chat/completions",
            json={
                "model": MODEL,
                "stream": True,
                "messages": [{"role": "user", "content": question}],
                "parent_id": None,
                "user_message": {**message, "timestamp": int(time.time()), "models": [MODEL]},
                "id": answered,
                "session_id": "of-no-page",
                **more,
            },
        )["chat_id"]
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            told = self.ask("GET", f"/api/v1/chats/{chat}")["chat"]["history"]["messages"].get(answered, {})
            if told.get("done"):
                return told
            time.sleep(0.2)
        raise RuntimeError("the answer does not end")

    def streamed(self) -> Any:
        """What another program gets, that asks the backend as it would ask OpenAI."""
        asked = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
        pieces = []
        with self.client.stream("POST", "/api/chat/completions", json=asked) as response:
            for line in response.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    choices = json.loads(line.removeprefix("data: ")).get("choices") or [{}]
                    pieces.append(choices[0].get("delta", {}).get("content") or "")
        return ["".join(pieces), len([piece for piece in pieces if piece]) > 1]

    def tool(self) -> Any:
        """A tool that the administrator has written, which the model calls."""
        form = {"id": "weather", "name": "Weather", "content": TOOL, "meta": {"description": "Weather."}}
        self.ask("POST", "/api/v1/tools/create", json=form)
        native = {"tool_ids": ["weather"], "params": {"function_calling": "native"}}
        return self.chat("How is the weather in Rome?", **native)

    def knowledge(self) -> Any:
        """A file, of which it shows the model what fits the question."""
        base = self.ask("POST", "/api/v1/knowledge/create", json={"name": "Facts", "description": "Of cats."})
        content = {"file": ("facts.txt", b"The cat of the mayor is called Bismarck.", "text/plain")}
        file = self.ask("POST", "/api/v1/files/", params={"process_in_background": False}, files=content)
        self.ask("POST", f"/api/v1/knowledge/{base['id']}/file/add", json={"file_id": file["id"]})
        named = {"type": "collection", "id": base["id"], "name": "Facts"}
        legacy = {"function_calling": "default"}
        return self.chat("What is the mayor's cat called?", files=[named], params=legacy)


def main() -> None:
    home = Path.cwd() / "open-webui"
    home.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = started(port, home)
    try:
        page = Page(port)
        page.wait(process)
        page.sign_up()
        models = [model["id"] for model in page.ask("GET", "/api/models")["data"]]
        tool, knowledge = page.tool(), page.knowledge()
        fact = {
            "models": models,
            "streamed": page.streamed(),
            "tool": {"text": tool["content"], "parts": [part["type"] for part in tool["output"]]},
            "knowledge": {
                "text": knowledge["content"],
                "shown": [text for source in knowledge["sources"] for text in source["document"]],
            },
        }
        print(json.dumps(fact))
    except Exception:
        sys.stderr.write((home / "server.log").read_text(errors="replace")[-6000:])
        raise
    finally:
        process.terminate()
        process.wait()


main()
