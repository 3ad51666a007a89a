"""What clients send to a server of tests: each request with its body, and each message of a WebSocket."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.core.encodings import Decoder


class Seen(Struct):
    """One request, or one WebSocket. `status` is that of its answer, once it has begun."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    status: int = 0
    body: bytes = b""
    messages: list[Any] = field(default_factory=list)

    @property
    def json(self) -> Any:
        """The body, decoded."""
        encoding = self.headers.get("content-encoding")
        body = b"".join(Decoder(encoding).decode(self.body)) if encoding else self.body
        return msgspec.json.decode(body)


class Recorder:
    """Stands before an application, and keeps what is asked of it, in order."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def of(self, path: str) -> list[Seen]:
        """The requests with this path."""
        return [each for each in self.seen if each.path == path]

    def asked(self, path: str) -> list[Any]:
        """What was asked at this path: bodies, and messages of WebSockets."""
        return [
            asked for each in self.of(path) for asked in (each.messages or ([each.json] if each.body else []))
        ]

    def before(self, app: ASGIApp) -> ASGIApp:
        """The application, recorded."""

        async def recorded(scope: Scope, receive: Receive, send: Send) -> None:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            seen = Seen(scope.get("method", "SOCKET"), scope["path"], scope["query_string"].decode(), headers)
            self.seen.append(seen)

            async def received() -> Message:
                message = await receive()
                if message["type"] == "http.request":
                    seen.body += message.get("body", b"")
                elif message["type"] == "websocket.receive":
                    seen.messages.append(msgspec.json.decode(message.get("text") or message["bytes"]))
                return message

            async def sent(message: Message) -> None:
                if message["type"] == "http.response.start":
                    seen.status = message["status"]
                await send(message)

            await app(scope, received, sent)

        return recorded
