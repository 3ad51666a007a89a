"""uvicorn's HTTP protocol with a way past its `send`: streams are written straight to the transport.

An ASGI `send` costs a coroutine, a dictionary and several checks, for every token of
every stream. Where this protocol serves a request, its scope has an extension,
`STREAM`: the connection itself. A response begins and ends by `send` as always, so
uvicorn knows its state (keep-alive, pipelining, shutting down); what lies between goes
through `write`, in the chunked framing that uvicorn announced in the head.
"""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

STREAM = "antiphon.stream"
"""The ASGI extension."""


class Listener:
    """Who writes the response that is under way."""

    def on_disconnect(self) -> None:
        """The client has left."""

    def on_pause(self) -> None:
        """The client does not read what was written."""

    def on_resume(self) -> None:
        """It reads on."""


class StreamProtocol(HttpToolsProtocol):
    """One connection. A connection has one response under way at a time, also if requests are pipelined."""

    listener: Listener | None = None

    def on_message_begin(self) -> None:
        """Offer the extension to the request that begins."""
        super().on_message_begin()
        self.scope["extensions"] = {STREAM: self}  # type: ignore[dict-item]

    @property
    def gone(self) -> bool:
        """The client has left."""
        return self.transport.is_closing()

    def write(self, body: bytes) -> None:
        """Write a part of the body of the response that is under way."""
        self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))

    def abort(self) -> None:
        """Close the connection, whatever was not read yet."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the listener, too."""
        super().connection_lost(exc)
        if self.listener is not None:
            self.listener.on_disconnect()

    def pause_writing(self) -> None:
        """Notify the listener, too."""
        super().pause_writing()
        if self.listener is not None:
            self.listener.on_pause()

    def resume_writing(self) -> None:
        """Notify the listener, too."""
        super().resume_writing()
        if self.listener is not None:
            self.listener.on_resume()
