"""The program in the sandbox: runs cells of Python one after the other, and keeps their variables.

The server does not import it: its text is passed to the interpreter (`python -c`), so it uses the standard
library only. It reads requests from its standard input and answers on its standard output; each is a line of
JSON, some of which are followed by the number of bytes in their `size`.

    put    a file: the bytes follow          run    code to run
    drop   a file is deleted

Only `run` is answered: with `ran`, then each file that has changed (`file`), then `done`. The output of
programs, and of any processes that they start, goes to the standard error, as text. This program does not
protect anything: the sandbox does, and the server trusts no answer.
"""

from __future__ import annotations

import ast
import errno
import io
import json
import linecache
import os
import resource
import signal
import stat
import sys
import traceback
import warnings
from contextlib import suppress
from typing import Any, BinaryIO

Look = tuple[int, int, int]
"""Properties that change with a file: its time, its size, its inode."""

PIECE_BYTES = 256 * 1024
MOST_SEEN = 10_000
HOME, SCRATCH = "/mnt/data", "/tmp"  # noqa: S108 - in the sandbox


def main(settings: dict[str, Any]) -> None:
    """Answer requests until there are no more."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # Programs have no input, and one output.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    os.environ.update(
        HOME=SCRATCH, MPLBACKEND="Agg", MPLCONFIGDIR=SCRATCH, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"
    )
    warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")
    os.makedirs(HOME, exist_ok=True)
    os.chdir(HOME)
    sys.path.insert(0, HOME)
    limit(settings)
    Cells(settings, requests, answers).answer_all()


def limit(settings: dict[str, Any]) -> None:
    """Limits that no program can raise again."""
    memory = settings["memory_bytes"]
    for name, maximum in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, settings["cpu_seconds"]),
        (resource.RLIMIT_NPROC, settings["processes"]),
        (resource.RLIMIT_FSIZE, settings["disk_bytes"]),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(name)
        least = maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
        resource.setrlimit(name, (least, least))


class Cells:
    """The cells of one container, with their common state."""

    def __init__(self, settings: dict[str, Any], requests: BinaryIO, answers: BinaryIO) -> None:
        self.settings = settings
        self.requests = requests
        self.answers = answers
        self.names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
        self.known: dict[str, Look] = {}  # files that the server has: their name -> how they looked
        self.count = 0
        self.figures = 0
        self.process = os.getpid()

    def answer_all(self) -> None:
        """Process requests, one after the other."""
        while line := self.requests.readline():
            request = json.loads(line)
            if "put" in request:
                self.put(request["put"], request["size"])
            elif "drop" in request:
                self.drop(request["drop"])
            else:
                self.run(request)

    def put(self, name: str, size: int) -> None:
        """Write a file. If it does not fit, it is skipped, and reported when code is run."""
        path, file = os.path.join(HOME, name), None
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            file = open(path, "wb")  # noqa: SIM115
        except OSError as error:
            print(f"[{name} cannot be written: {error}]")
        while size > 0:
            piece = self.requests.read(min(size, PIECE_BYTES))
            if not piece:
                return
            size -= len(piece)
            try:
                if file is not None:
                    file.write(piece)
            except OSError as error:
                print(f"[{name} is incomplete: {error}]")
                file = None
        if file is not None:
            file.close()
            self.known[name] = look(os.lstat(path))

    def drop(self, name: str) -> None:
        """Delete a file."""
        self.known.pop(name, None)
        with suppress(OSError):  # the program may have deleted it, or put something in its place
            os.unlink(os.path.join(HOME, name))

    def run(self, request: dict[str, Any]) -> None:
        """Run a cell, and report its result."""
        self.count += 1
        failed = self.execute(request["run"])
        drawn = [] if failed else self.draw()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self.write({"ran": True})
        files, more = self.files()
        gone = [name for name in self.known if name not in files]
        left_out = ["…"] if more else []
        room = request["bytes"]
        changed = [name for name in files if self.known.get(name) != files[name]]
        # Figures first: they are the most important.
        for place, name in enumerate(sorted(changed, key=lambda name: name not in drawn)):
            if place >= request["files"] or files[name][1] > room:
                left_out.append(name)
                continue
            size = self.send(name)
            room -= size
        self.known = {name: how for name, how in files.items() if name not in left_out}
        self.write({"done": True, "gone": gone[:MOST_SEEN], "left_out": left_out[:20], "figures": drawn})

    def execute(self, code: str) -> bool:
        """Run code, show the value of its last expression; whether it raised something."""
        name = f"<cell {self.count}>"
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        try:
            tree = ast.parse(code, name)
            last = tree.body[-1] if tree.body else None
            last = last if isinstance(last, ast.Expr) else None
            tree.body = tree.body[:-1] if last else tree.body
            exec(compile(tree, name, "exec"), self.names)  # noqa: S102 - the purpose of this program
            if last is not None:
                shown = compile(ast.Expression(last.value), name, "eval")
                sys.displayhook(eval(shown, self.names))  # noqa: S307
        except BaseException as error:
            if os.getpid() != self.process:
                os._exit(1)
            self.print_error(error)
            return True
        if os.getpid() != self.process:
            os._exit(0)  # a forked process at the end of the cell
        return False

    def print_error(self, error: BaseException) -> None:
        """Print an exception of a cell, without the frames of this file, and with the remedy."""
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == "<string>":
            frames = frames.tb_next
        traceback.print_exception(type(error), error, frames)
        cause: BaseException | None = error
        while cause is not None:
            remedy = self.remedy(cause)
            if remedy:
                print(f"[{remedy}]", file=sys.stderr)
                return
            cause = cause.__cause__ or cause.__context__

    def remedy(self, error: BaseException) -> str | None:
        """The explanation of an error that a limit of the sandbox has caused; None for other errors."""
        settings, number = self.settings, getattr(error, "errno", None)
        denied = number in (errno.EACCES, errno.EPERM) and getattr(error, "filename", None)
        thread = "start new thread" in str(error)
        unreachable = (errno.ENETUNREACH, errno.EHOSTUNREACH)
        memory, disk = settings["memory_bytes"] >> 20, settings["disk_bytes"] >> 20
        met = {
            "Packages cannot be installed. Available: the standard library" + settings["libraries"] + ".":
                isinstance(error, ModuleNotFoundError),
            f"A program may have {memory} MiB of memory. Work in smaller parts.":
                isinstance(error, MemoryError) or number == errno.ENOMEM,
            f"Files may have {disk} MiB in all, and 64 MiB in {SCRATCH}. Delete some.":
                number in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT),
            f"Only {HOME} and {SCRATCH} can be written to.": number == errno.EROFS or denied,
            f"There may be {settings['processes']} processes and threads. Use fewer.":
                number == errno.EAGAIN or thread,
            f"There is no network. Continue with the files in {HOME}, or without.":
                number in unreachable or type(error).__name__ == "gaierror",
        }  # fmt: skip
        return next((remedy for remedy, is_met in met.items() if is_met), None)

    def draw(self) -> list[str]:
        """Save the figures that are open, as `plt.show()` would show them; their names."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return []
        names = []
        try:
            for number in pyplot.get_fignums():
                self.figures += 1
                name = f"figure-{self.figures}.png"
                pyplot.figure(number).savefig(name)
                names.append(name)
            pyplot.close("all")
        except Exception as error:
            self.print_error(error)
        return names

    def files(self) -> tuple[dict[str, Look], bool]:
        """The files with their properties; and whether there are too many to list."""
        files: dict[str, Look] = {}
        for folder, _, names in os.walk(HOME):
            for name in names:
                path = os.path.join(folder, name)
                try:
                    status = os.lstat(path)
                    os.fsencode(path).decode("utf-8")
                except (OSError, UnicodeDecodeError):
                    continue
                if len(files) >= MOST_SEEN:
                    return files, True
                if stat.S_ISREG(status.st_mode) and "__pycache__" not in folder:
                    files[os.path.relpath(path, HOME)] = look(status)
        return files, False

    def send(self, name: str) -> int:
        """Send a file in its current state; returns its size."""
        try:
            file = open(os.path.join(HOME, name), "rb")  # noqa: SIM115
        except OSError:
            return 0
        with file:
            size = os.fstat(file.fileno()).st_size
            self.write({"file": name, "size": size})
            left = size
            while left > 0:
                piece = file.read(min(left, PIECE_BYTES)) or b"\0" * min(left, PIECE_BYTES)
                self.answers.write(piece)
                left -= len(piece)
        return size

    def write(self, answer: dict[str, Any]) -> None:
        """Write a line."""
        self.answers.write(json.dumps(answer).encode() + b"\n")
        self.answers.flush()


def look(status: os.stat_result) -> Look:
    """The properties that change with a file."""
    return (status.st_mtime_ns, status.st_size, status.st_ino)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main(json.loads(sys.argv[1]))
