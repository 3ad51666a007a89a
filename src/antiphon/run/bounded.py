"""Runs work that might never end in separate processes, which are killed at limits of time and memory.

Schemas, patterns and grammars of clients are short, and may need any amount of time and memory. A process
does one piece of such work after the other; the operating system enforces the limits, in any code.

Clients get processes in turn, and one client never has all of them.
"""

import asyncio
import atexit
import io
import pickle
import resource
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

from antiphon.core.errors import RequestError
from antiphon.core.limits import DEFAULTS, LIMIT_EXCEEDED, Limits
from antiphon.core.permits import Permits

P = ParamSpec("P")
T = TypeVar("T")


class BoundedPool:
    """Runs work in processes, within the limits whose names begin with `work_…`."""

    def __init__(self, limits: Limits = DEFAULTS) -> None:
        self.limits = limits
        processes = limits.work_processes
        # If there are several, one is kept for other clients.
        self.permits = Permits(
            processes, owner_capacity=max(1, processes - 1), owner_queue=limits.work_waiting
        )

    async def run(self, param: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `call`, run in another process; its exception is raised here.

        Raises RequestError, which blames `param`, for work over a limit, and ClientBusyError for a client
        that has too much work waiting.
        """
        async with self.permits.hold():
            done, result = await self._run((call, args, kwargs, self.limits))
        if isinstance(result, _OverLimit):
            what = _TOO_MUCH[result.limit].format(getattr(self.limits, result.limit))
            raise RequestError(_MESSAGE.format(what, result.limit), param=param, code=LIMIT_EXCEEDED)
        if not done:
            raise result
        value: T = result
        return value

    async def _run(self, job: Any) -> tuple[bool, Any]:
        process = _next_process()
        try:
            done, result = await asyncio.to_thread(process.run, job)
        except BaseException:  # the client has left
            asyncio.get_running_loop().run_in_executor(None, process.kill)
            raise
        if not isinstance(result, _OverLimit):
            _idle.append(process)
        return done, result


class _OverLimit(Exception):
    """The work was over this limit."""

    def __init__(self, limit: str) -> None:
        super().__init__(limit)
        self.limit = limit


_TOO_MUCH = {
    "work_seconds": "takes more than {} seconds to compute",
    "work_bytes": "takes more than {} bytes of memory",
    "work_result_bytes": "compiles to more than {} bytes",
    "depth": "needs more than {} levels",
}
_MESSAGE = "This {}, the limit '{}' of this server. Make it simpler, or smaller."


class _Unsent:
    """Replaces a function that cannot be sent: a parser of a dialect, which writing does not need."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_: Any) -> Any:
        raise NotImplementedError(f"{self._name} was not sent")


class LargeBytes:
    """Wraps bytes that are sent separately: pickling would copy them, and block the interpreter."""

    def __init__(self, content: bytes | bytearray) -> None:
        self.content = content


_received: list[bytes] = []
"""In the process: the bytes that were sent separately."""


def _take(index: int) -> bytes:
    return _received[index]


class _Pickler(pickle.Pickler):
    def __init__(self, out: io.BytesIO) -> None:
        super().__init__(out)
        self.large: list[bytes | bytearray] = []

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, LargeBytes):
            self.large.append(value.content)
            return _take, (len(self.large) - 1,)
        if isinstance(value, FunctionType) and not _is_named(value):
            return _Unsent, (value.__qualname__,)
        return NotImplemented


def _is_named(function: FunctionType) -> bool:
    """Its name leads to it. The names of local functions do not, nor do those that a decorator took."""
    target: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        target = getattr(target, part, None)
    return target is function


def _pickled(job: Any) -> tuple[bytes, list[bytes | bytearray]]:
    """A job as it is sent, and the bytes that are sent separately."""
    pickler = _Pickler(out := io.BytesIO())
    pickler.dump(job)
    return out.getvalue(), pickler.large


class _Process:
    """A process that does work. It ends with this one."""

    def __init__(self) -> None:
        server_end, process_end = socket.socketpair()
        with server_end, process_end, _shielded_from_sigterm():
            self._process = subprocess.Popen(  # noqa: S603 - ourselves
                [sys.executable, "-m", __name__, str(process_end.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[process_end.fileno()],
                start_new_session=True,  # Ctrl-C is for the server
            )
            self._connection = Connection(server_end.detach())

    def run(self, job: Any) -> tuple[bool, Any]:
        """Whether a piece of work succeeded, and its result or exception.

        Over a limit, the process is ended.
        """
        try:
            pickled, large = _pickled(job)
            self._connection.send_bytes(b"%d" % len(large))
            for message in (*large, pickled):
                self._connection.send_bytes(message)
            answer: tuple[bool, Any] = pickle.loads(self._connection.recv_bytes())  # noqa: S301 - our own
        except (EOFError, OSError):
            # Its timer ends it by SIGPROF. Any other end is reported as a lack of memory.
            limit = "work_seconds" if self._process.wait() == -signal.SIGPROF else "work_bytes"
            return False, _OverLimit(limit)
        if isinstance(answer[1], _OverLimit):  # the process may never free the memory
            self.kill()
        return answer

    @property
    def alive(self) -> bool:
        """It was not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


@contextmanager
def _shielded_from_sigterm() -> Iterator[None]:
    """Processes that are started here do not end by SIGTERM.

    A supervisor may send it to all processes of a server that stops, whose work is no less valid for that.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


_idle: list[_Process] = []
"""Processes without work: for every pool."""


def _next_process() -> _Process:
    while _idle:
        if (process := _idle.pop()).alive:
            return process
    return _Process()


def warm() -> None:
    """Start a process, so that the first work does not wait for that."""
    if not _idle:
        _idle.append(_Process())


@atexit.register
def _kill_idle() -> None:
    while _idle:
        _idle.pop().kill()


# In the process


def work(connection: Connection) -> None:
    """Do all work that arrives, until the pipe is closed."""
    import antiphon.run.check  # noqa: F401, PLC0415 - so that no work has to wait for it

    with suppress(EOFError, OSError):
        while True:
            _received[:] = [connection.recv_bytes() for _ in range(int(connection.recv_bytes()))]
            connection.send_bytes(_answer(*pickle.loads(connection.recv_bytes())))  # noqa: S301 - our own
            _received.clear()


def _answer(call: Callable[..., Any], args: Any, kwargs: Any, limits: Limits) -> bytes:
    """The result or exception of a piece of work. The process ends if it takes too long."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (limits.work_bytes, hard))
    signal.setitimer(signal.ITIMER_PROF, limits.work_seconds)  # of computing, however busy the machine is
    try:
        answer = True, call(*args, **kwargs)
        encoded = pickle.dumps(answer)
    except MemoryError:
        encoded = pickle.dumps((False, _OverLimit("work_bytes")))
    except RecursionError:
        encoded = pickle.dumps((False, _OverLimit("depth")))
    except Exception as error:
        if not isinstance(error, RequestError):
            error.add_note(traceback.format_exc())
        encoded = _encoded(error)
    signal.setitimer(signal.ITIMER_PROF, 0)
    if len(encoded) > limits.work_result_bytes:
        return pickle.dumps((False, _OverLimit("work_result_bytes")))
    return encoded


def _encoded(error: Exception) -> bytes:
    """The error as it is sent: in words, if it cannot be sent itself."""
    try:
        pickle.loads(encoded := pickle.dumps((False, error)))  # noqa: S301 - our own
    except Exception:  # whatever its constructor or what it holds may raise
        words = "".join(traceback.format_exception(error))
        encoded = pickle.dumps((False, RuntimeError(words)))
    return encoded


if __name__ == "__main__":
    from antiphon.run.bounded import work as _work  # under the name that pickles refer to

    _work(Connection(int(sys.argv[1])))
