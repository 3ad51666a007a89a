"""The socket of a server, and what a server says while it ends."""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from antiphon.core.errors import AntiphonError

BACKLOG = 2048
"""Connections that may wait to be accepted."""
UNSENT = 128 * 1024
"""Bytes that the system buffers for a connection beyond the client's window.

By default it takes megabytes: then a client that does not read would be noticed, and the answer held back,
much too late.
"""
_PORT_ERRORS = frozenset({errno.EADDRINUSE, errno.EACCES})
"""Errors that are caused by the port; others are caused by the host."""


@contextmanager
def listening(host: str, port: int, path: Path | None) -> Iterator[socket.socket]:
    """A socket at this host and port or, if there is one, at this path, which is removed at the end.

    Raises AntiphonError.
    """
    if path is None:
        with _listen(host, port) as listener:
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # Linux and macOS; connections inherit it
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)
            yield listener
        return
    with _listen_unix(path) as listener:
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


def _listen_unix(path: Path) -> socket.socket:
    """A socket at this path, replacing one without a listener."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket() and not _answers(path):
            path.unlink()
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        why = error.strerror or str(error)
        raise AntiphonError(f"Cannot listen on {path}: {why}. Choose another --unix-socket.") from error
    return listener


def _answers(path: Path) -> bool:
    """Whether somebody listens there."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (while")[0]  # which repeats the address
        remedy = "--port (0 picks one)" if error.errno in _PORT_ERRORS else "--host"
        raise AntiphonError(f"Cannot listen on {host}:{port}: {why}. Choose another {remedy}.") from error


def url_of(listener: socket.socket, *, tls: bool) -> str:
    """Where it listens: a URL, or the path of a socket."""
    if listener.family is socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http{'s' * tls}://{f'[{host}]' if ':' in host else host}:{port}"


def finishing(running: int, seconds: float) -> str:
    """What a server waits for after the first signal, for so many seconds at most."""
    if not running:
        return "stopping: no requests are in progress"
    return f"finishing {requests(running)} within {seconds:g} seconds; Ctrl-C again to stop now"


def requests(count: int) -> str:
    """A number of requests, in words."""
    return "1 request" if count == 1 else f"{count} requests"
