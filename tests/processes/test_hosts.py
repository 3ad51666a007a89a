"""The folders of engines that run for several processes: they are removed once nobody uses them."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.core.errors import AntiphonError
from antiphon.processes.hosts import PREFIX, Hosts, _create_memory, remove_abandoned
from antiphon.processes.start import Logging


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files. It has a short name, for sockets."""
    with tempfile.TemporaryDirectory(prefix="h") as folder, monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def killed(parent: Path) -> Path:
    """The folder of a server that was killed, with all of its processes."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    os.close(_create_memory(folder, 4096))
    return folder


def test_a_folder_goes_with_the_last_process_that_uses_the_engine(parent: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    memory = _create_memory(folder, 4096)
    with subprocess.Popen(
        (sys.executable, "-c", "input()"), stdin=subprocess.PIPE, pass_fds=[memory]
    ) as user:
        os.close(memory)  # the supervisor is killed
        remove_abandoned(parent)
        assert (folder / "memory").stat().st_size == 4096
        user.communicate(b"\n")
    remove_abandoned(parent)
    assert not folder.exists()


async def test_a_server_that_starts_removes_what_others_have_left(parent: Path) -> None:
    left = killed(parent)
    hosts = Hosts([None], 1, Logging("INFO", "console"), print)
    with pytest.raises(AntiphonError):  # that is no engine
        await hosts.start()
    (own,) = os.listdir(parent)
    assert own != left.name
    remove_abandoned(parent)
    assert own in os.listdir(parent)
    await hosts.close()
    assert not os.listdir(parent)


def test_what_is_no_folder_of_a_server_stays(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no memory yet, or is a link, or another user's."""
    (parent / f"{PREFIX}new").mkdir()
    (parent / f"{PREFIX}pipe").mkdir()
    os.mkfifo(parent / f"{PREFIX}pipe" / "memory")
    (parent / "elsewhere").mkdir()
    (parent / "elsewhere" / "memory").touch()
    (parent / f"{PREFIX}link").symlink_to(parent / "elsewhere")
    remove_abandoned(parent)
    assert (parent / f"{PREFIX}new").exists()
    assert (parent / "elsewhere" / "memory").exists()
    (parent / f"{PREFIX}other").mkdir()
    (parent / f"{PREFIX}other" / "memory").touch()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: os.geteuid() + 1)
        remove_abandoned(parent)
    assert (parent / f"{PREFIX}other").exists()
    remove_abandoned(parent)
    assert not (parent / f"{PREFIX}other").exists()
