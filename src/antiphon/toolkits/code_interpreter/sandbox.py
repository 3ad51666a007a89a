"""The Python for programs, and its sandbox: the command that starts it, and its version and libraries.

The operator configures the command of a Python, and optionally the one that makes a sandbox for it, as a
prefix. The default is Bubblewrap: the program sees nothing of the machine but `/usr` and the folders of its
Python, has no network, no privileges, and writes to memory only. A server that runs as root starts it as
`nobody`, because the kernel does not count the processes of root.
"""

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import msgspec
from msgspec import Struct

from antiphon.core.errors import ToolError
from antiphon.core.limits import Limits
from antiphon.tools.containers import WORKSPACE

START_SECONDS = 30.0
"""How long a Python may take to start."""

LIBRARIES = (
    "numpy", "pandas", "scipy", "matplotlib", "seaborn", "sklearn", "statsmodels", "sympy", "networkx", "PIL",
    "openpyxl", "docx", "pypdf", "bs4", "lxml", "requests",
)  # fmt: skip
"""Libraries whose presence is reported to models."""

NOBODY = "65534"
_SMALL = 64 * 2**20
_FOLDERS = ("/usr", "/etc/alternatives", "/etc/fonts")
_LINKS = ("bin", "sbin", "lib", "lib32", "lib64")

_ABOUT = """\
import importlib.util, json, sys
names = json.loads(sys.argv[1])
found = [name for name in names if importlib.util.find_spec(name)]
print(json.dumps({"version": list(sys.version_info[:3]), "libraries": found}))"""


class PythonProperties(Struct, frozen=True):
    """The properties of a Python in its sandbox."""

    version: tuple[int, int, int]
    libraries: tuple[str, ...]


class Sandbox:
    """A Python in a sandbox, within these limits. Raises ToolError if the commands do not work.

    The constructor starts it once.
    """

    def __init__(self, python: str, sandbox: str | None, limits: Limits) -> None:
        words = _split(python, "--python")
        self._limits = limits
        self._words = [
            *(_split(sandbox, "--python-sandbox") if sandbox else _bubblewrap(words[0], limits)),
            *words,
        ]
        self.properties = self._probe()

    @property
    def words(self) -> list[str]:
        """The command of an interpreter for one container."""
        libraries = "".join(f", {name}" for name in self.properties.libraries)
        settings = {
            "memory_bytes": self._limits.python_memory_bytes,
            "cpu_seconds": self._limits.python_cpu_seconds,
            "processes": self._limits.python_processes,
            "disk_bytes": self._limits.python_disk_bytes,
            "libraries": libraries,
        }
        return [*self._words, "-I", "-c", _RUNNER, msgspec.json.encode(settings).decode()]

    def _probe(self) -> PythonProperties:
        words = [*self._words, "-I", "-c", _ABOUT, msgspec.json.encode(LIBRARIES).decode()]
        try:
            done = subprocess.run(  # noqa: S603 - the operator's own command
                words,
                capture_output=True,
                check=False,
                timeout=START_SECONDS,
                env=environment(),
                stdin=subprocess.DEVNULL,
            )
        except OSError as error:
            raise _broken(str(error)) from error
        except subprocess.TimeoutExpired as error:
            raise _broken(f"it took more than {START_SECONDS:.0f} seconds") from error
        if done.returncode:
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise _broken(last[0] if last else f"it ended with {done.returncode}")
        try:
            return msgspec.json.decode(done.stdout, type=PythonProperties)
        except msgspec.MsgspecError as error:
            raise _broken("it is not Python 3.9 or newer") from error


def environment() -> dict[str, str]:
    """The environment of the command: other variables of the server, such as keys, are not for programs."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "HOME": WORKSPACE,
    }


def _split(command: str, option: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ToolError(f"The command of {option} cannot be read: {error}. Check its quotes.") from error
    if not words:
        raise ToolError(f"The command of {option} is empty.")
    return words


def _bubblewrap(python: str, limits: Limits) -> list[str]:
    """The default sandbox. Raises ToolError."""
    executable = shutil.which(python)
    if executable is None:
        raise ToolError(f"There is no Python {python}. Give --python the path of one.")
    if shutil.which("bwrap") is None:
        raise ToolError(
            "Python needs a sandbox, and Bubblewrap is not installed. Install it (the package `bubblewrap`), "
            "or give another with --python-sandbox."
        )
    words = (
        ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
        if os.getuid() == 0
        else []
    )
    words += ["bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"]
    words += ["--die-with-parent", "--new-session", "--clearenv"]
    words += ["--setenv", "PATH", "/usr/bin:/bin", "--setenv", "LANG", "C.UTF-8"]
    for link in _LINKS:
        path = Path("/", link)
        if path.is_symlink():
            words += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            words += ["--ro-bind", str(path), str(path)]
    words += ["--proc", "/proc", "--dev", "/dev"]
    for folder, size in {"/dev/shm": _SMALL, "/tmp": _SMALL, WORKSPACE: limits.python_disk_bytes}.items():  # noqa: S108
        words += ["--size", str(size), "--tmpfs", folder]
    for folder in (
        *_FOLDERS,
        *_folders_of(Path(executable)),
    ):  # last: they may be below one of those above
        words += ["--ro-bind-try", folder, folder]
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORKSPACE, "--"]


def _folders_of(python: Path) -> Iterator[str]:
    """The folders that a Python needs in addition to `/usr`: its own, and those of its symbolic links."""
    seen: list[Path] = []
    while True:
        folder = python.parent.parent
        if not folder.is_relative_to("/usr") and folder != Path("/") and folder not in seen:
            seen.append(folder)
            yield str(folder)
        if not python.is_symlink():
            return
        python = Path(os.path.normpath(python.parent / os.readlink(python)))


def _broken(why: str) -> ToolError:
    return ToolError(f"Python cannot be run in its sandbox: {why}. Look at --python and --python-sandbox.")


def _source() -> str:
    """The text of the runner."""
    return files(__package__).joinpath("runner.py").read_text(encoding="utf-8")


_RUNNER = _source()
