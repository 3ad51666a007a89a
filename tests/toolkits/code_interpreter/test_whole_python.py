"""`code_interpreter` with a whole Python: real processes in Bubblewrap, containers in a real store."""

import asyncio
import os
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import uvloop

from antiphon.app.containers import ContainerKeeper
from antiphon.app.storage import Storage
from antiphon.core.errors import NotFoundError, RequestError, ToolError
from antiphon.core.limits import Limits
from antiphon.core.tool_result import ToolResult
from antiphon.store.open import open_store
from antiphon.store.records import Paging
from antiphon.toolkits.code_interpreter.details import ProgramDetails
from antiphon.toolkits.code_interpreter.sandbox import Sandbox
from antiphon.toolkits.code_interpreter.whole_python import TYPE, Interpreters, PythonInterpreter
from antiphon.toolkits.shell.details import CommandDetails
from antiphon.toolkits.shell.tool import Shell
from antiphon.tools.containers import container_id, paths_in
from antiphon.tools.tool import RequestedTool, ServerTool, Session
from tests.contracts.tool import KeptOutput, ToolContract, failure, opened, successful
from tests.run.support import until
from tests.toolkits.shell.test_shell import BWRAP
from tests.tools.processes import PATIENCE, Process, children
from tests.tools.sandboxes import ATTEMPTS, needs_bubblewrap, python_in_bubblewrap

pytestmark = needs_bubblewrap

MIB = 2**20
LIMITS = Limits(
    python_seconds=30,
    python_disk_bytes=8 * MIB,
    python_memory_bytes=512 * MIB,
    python_processes=16,
    container_files=5,
    python_interpreters=9,
)


def code(text: str) -> tuple[str, dict[str, object]]:
    return "python", {"code": text}


def interpreters(storage: Storage, limits: Limits = LIMITS) -> Interpreters:
    sandbox = Sandbox(python_in_bubblewrap() or "", None, limits)
    return Interpreters(sandbox, limits, ContainerKeeper(storage, limits))


@pytest.fixture
async def storage() -> AsyncIterator[Storage]:
    storage = Storage(partial(open_store, "memory", Limits(container_files=LIMITS.container_files)))
    await storage.start()
    yield storage
    await storage.stop()


@pytest.fixture
async def tool(storage: Storage) -> AsyncIterator[PythonInterpreter]:
    tool = PythonInterpreter(interpreters(storage))
    yield tool
    await tool.close()


@pytest.fixture
async def session(tool: PythonInterpreter) -> AsyncIterator[Session]:
    async with opened(tool) as session:
        yield session


async def said(session: Session, text: str) -> str:
    return successful(await session.run(*code(text))).text


def own(tool: ServerTool, answer: str = "resp_1", **settings: Any) -> Session:
    """The session of an answer that has an id."""
    return tool.open(RequestedTool({"type": TYPE, **settings}, owner="alice", answer=answer))


class TestContract(ToolContract):
    asked = {"container": {"type": "auto"}}  # noqa: RUF012
    call = code("6 * 7")
    endless = code("while True: pass")
    telling = code("print('begun')\nwhile True: pass")
    lengthy = code("for i in range(10**5): print(i)")
    sets = code("choir = 'antiphon'")
    gets = code("try: print(choir)\nexcept NameError: print('none')")
    left = "antiphon"
    settings = ("type", "container")

    @pytest.fixture
    async def tool(self, storage: Storage) -> AsyncIterator[ServerTool]:
        tool = PythonInterpreter(interpreters(storage))
        yield tool
        await tool.close()

    async def test_a_session_goes_on_with_what_another_did(self, tool: ServerTool) -> None:
        """Variables are lost with a server, and the model is told; files have another test."""
        first, second = own(tool), own(tool)
        await first.run(*self.sets)
        await second.recall(*self.sets, ToolResult("", ProgramDetails("")))
        assert "antiphon" in (await second.run(*self.gets)).text


@pytest.mark.parametrize("what", ATTEMPTS)
async def test_nothing_gets_out_of_the_sandbox_of_python(session: Session, what: str) -> None:
    assert "OUT" not in await said(session, ATTEMPTS[what].replace("{server}", str(os.getpid())))


@pytest.mark.parametrize("what", ATTEMPTS)
async def test_nothing_gets_out_of_the_shell_of_the_docs(what: str) -> None:
    program = ATTEMPTS[what].replace("{server}", str(os.getpid()))
    async with opened(Shell(BWRAP)) as session:
        script = f"/usr/bin/python3 - <<'END'\n{program}\nEND"
        result = await session.run("exec", {"commands": [script]})
    assert isinstance(result.details, CommandDetails)
    assert "OUT" not in result.details.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("open('/usr/x', 'w')", "Only /mnt/data and /tmp can be written to."),
        ("import urllib.request as u; u.urlopen('http://example.org')", "There is no network."),
        ("import os\nfor _ in range(99):\n  if not os.fork(): __import__('time').sleep(9)", "16 processes"),
        ("import threading as t\nfor _ in range(99): t.Timer(9, print).start()", "processes and threads"),
        ("x = 'x' * 10**9", "512 MiB of memory"),
        ("open('big', 'wb').write(b'x' * 10**7)", "8 MiB in all"),
        ("open('/dev/shm/big', 'wb').write(b'x' * 10**8)", "MiB in all"),
        ("import antiphon", "Packages cannot be installed."),
        ("1 / 0", "ZeroDivisionError"),
        ("def f(", "SyntaxError"),
        ("raise SystemExit(1)", "SystemExit"),
        ("def f(): return f()\nf()", "RecursionError"),
        ("input()", "EOFError"),
    ],
)
async def test_what_is_not_allowed_is_told_in_words_and_no_failure(
    session: Session, text: str, words: str
) -> None:
    await said(session, "x = 'still here'")
    assert words in await said(session, text)
    if "x =" not in text:
        assert await said(session, "x") == "'still here'\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("while True: pass", "more than 1 seconds"),
        ("while True: print('x' * 1000)", "more than 1 seconds"),
        ("import os; os.kill(os.getpid(), 9)", "interpreter has ended"),
        ("import os; os._exit(0)", "interpreter has ended"),
        ("import os; os.write(4, b'mine\\n')", "an unexpected answer"),
        ("import os; os.write(4, b'x' * 2**21)", "an unexpected answer"),
        ("import os; os.write(4, b'{\"ran\":true}\\n{\"file\":\"a\",\"size\":9999999999}\\n')", "an unexpected answer"),
        ("import signal, os; os.kill(os.getpid(), signal.SIGSTOP)", "more than 1 seconds"),
    ],
)  # fmt: skip
async def test_an_interpreter_that_is_lost_is_told_and_begun_anew(
    storage: Storage, text: str, words: str
) -> None:
    limits = Limits(python_seconds=1, python_disk_bytes=MIB)
    tool = PythonInterpreter(interpreters(storage, limits))
    session = own(tool)
    await said(session, "x = 1; open('a', 'w').write('kept')")
    result = await session.run(*code(f"print('begun')\nimport os\n{text}"))
    assert words in failure(result)
    assert "Its variables and the files of this call are lost" in result.text
    assert result.text.startswith("begun\n")
    after = await said(session, "print('x' in globals(), open('a').read())")
    assert after == "[The interpreter was restarted: variables are lost, files are kept.]\nFalse kept\n"
    assert await said(session, "6 * 7") == "42\n"
    await tool.close()


async def test_files_of_a_program_are_files_of_the_container(
    tool: PythonInterpreter, storage: Storage
) -> None:
    session = own(tool)
    result = await session.run(*code("import os; os.mkdir('d'); open('d/ü.txt', 'w').write('sung')"))
    container = container_id(TYPE, "resp_1")
    assert isinstance(result.details, ProgramDetails)
    assert result.details.container_id == container
    assert [(file.path, file.size) for file in result.details.files] == [("d/ü.txt", 4)]
    assert "[Written: /mnt/data/d/ü.txt." in result.text
    keeper = ContainerKeeper(storage, LIMITS)
    (file,) = await keeper.files("alice", container)
    assert b"".join([piece async for piece in keeper.content("alice", file)]) == b"sung"
    assert (await session.run(*code("1"))).details == ProgramDetails("1\n", container)  # it is told once
    await said(session, "open('d/ü.txt', 'a').write('!')")
    (file,) = await keeper.files("alice", container)
    assert file.size == 5
    await keeper.add("alice", container, "b.txt", _bytes(b"given"), "user")
    assert await said(session, "open('b.txt').read()") == "'given'\n"
    await keeper.remove("alice", container, file)
    assert await said(session, "os.path.exists('d/ü.txt')") == "False\n"
    await said(session, "os.remove('b.txt')")
    assert await keeper.files("alice", container) == []


async def _bytes(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def test_what_is_too_much_is_not_kept_and_told(tool: PythonInterpreter) -> None:
    session = own(tool)
    text = await said(session, "for i in range(9): open(f'{i}', 'w').write('x')")
    assert "[Not kept, because they are too many or too large: " in text
    result = await session.run(*code("import os; os.symlink('/etc/passwd', 'l'); os.mkfifo('p')"))
    assert isinstance(result.details, ProgramDetails)
    assert result.details.files == ()


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a\nb", "a" * 600, "./a", ""])
async def test_paths_that_are_none_are_refused(tool: PythonInterpreter, path: str) -> None:
    session = own(tool)
    await said(session, "1")
    forged = (
        "import os, json\n"
        f"line = json.dumps({{'ran': True}}) + '\\n' + json.dumps({{'file': {path!r}, 'size': 0}}) + '\\n'\n"
        "line += json.dumps({'done': True}) + '\\n'\n"
        "os.write(4, line.encode())"
    )
    result = await session.run(*code(forged))
    assert isinstance(result.details, ProgramDetails)
    assert result.details.files == ()


async def test_a_container_outlasts_its_answer_and_its_server(storage: Storage) -> None:
    first = PythonInterpreter(interpreters(storage))
    session = own(first)
    await said(session, "x = 1; open('a', 'w').write('kept')")
    await session.close()
    named = container_id(TYPE, "resp_1")
    later = own(first, "resp_2", container=named)
    assert await said(later, "x") == "1\n"
    second = PythonInterpreter(interpreters(storage))
    other = own(second, "resp_3", container=named)
    assert await said(other, "open('a').read()") == (
        "[The interpreter was restarted: variables are lost, files are kept.]\n'kept'\n"
    )
    # The first server has been overtaken: what its interpreter knows is old.
    assert "was restarted" in await said(later, "1")
    await first.close()
    await second.close()


async def test_a_container_that_nobody_can_ask_for_goes(storage: Storage, tool: PythonInterpreter) -> None:
    async with opened(tool) as session:
        text = await said(session, "open('a', 'w').write('x')")
        assert "The user cannot see files" in text
    assert not (await storage.store.containers.list("", None, Paging())).data
    assert not workers()


async def test_those_that_idle_make_room(storage: Storage) -> None:
    limits = Limits(python_interpreters=1)
    tool = PythonInterpreter(interpreters(storage, limits))
    first, second = own(tool), own(tool, "resp_2")
    await said(first, "x = 1")
    await said(second, "x = 2")
    assert "was restarted" in await said(first, "'x' in globals()")
    kept = KeptOutput()
    busy = asyncio.create_task(first.run(*code("print('begun'); import time; time.sleep(60)"), kept))
    await until(lambda: "begun" in kept.stdout)
    assert "Too many programs" in failure(await second.run(*code("1")))
    busy.cancel()
    await asyncio.gather(busy, return_exceptions=True)
    assert "was restarted" in await said(second, "1")
    await tool.close()
    assert not workers()


async def test_an_interpreter_that_idles_too_long_is_ended(storage: Storage) -> None:
    sandbox = Sandbox(python_in_bubblewrap() or "", None, LIMITS)
    pool = Interpreters(sandbox, Limits(container_minutes=0), ContainerKeeper(storage, LIMITS))
    tool = PythonInterpreter(pool)
    session = own(tool)
    await said(session, "x = 1")
    async with asyncio.timeout(PATIENCE):
        while pool.containers:
            await asyncio.sleep(0.01)
    assert "was restarted" in await said(session, "1")
    await tool.close()


async def test_containers_of_others_are_not_there(tool: PythonInterpreter) -> None:
    await said(own(tool), "x = 1")
    named = container_id(TYPE, "resp_1")
    wanted = RequestedTool({"type": TYPE, "container": named}, "tools[0]", owner="eve")
    with pytest.raises(NotFoundError) as raised:
        await tool.offer(wanted)
    assert raised.value.param == "tools[0].container"
    assert "expired" in failure(await tool.open(wanted).run(*code("x")))


@pytest.mark.parametrize(
    ("container", "param"),
    [
        (7, ""),
        ({"type": "kept"}, ""),
        ({"type": "auto", "file_ids": ["file-1"]}, ".file_ids"),
        ({"type": "auto", "memory_limit": "2g"}, ".memory_limit"),
        ({"type": "auto", "network_policy": {"type": "allowlist"}}, ".network_policy"),
        ({"type": "auto", "skills": [{}]}, ".skills"),
    ],
)
async def test_other_containers_are_refused(tool: PythonInterpreter, container: object, param: str) -> None:
    with pytest.raises(RequestError) as raised:
        await tool.offer(RequestedTool({"container": container}, "tools[0]"))
    assert raised.value.param == f"tools[0].container{param}"


async def test_figures_are_pictures(storage: Storage, session: Session) -> None:
    if "matplotlib" not in interpreters(storage).sandbox.properties.libraries:
        pytest.skip("the Python of this machine has no matplotlib")
    result = successful(await session.run(*code("import matplotlib.pyplot as p; p.plot([1, 2]); p.show()")))
    assert isinstance(result.details, ProgramDetails)
    (picture,) = result.media
    assert picture.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("python", "sandbox", "words"),
    [
        ("/none/python", None, "no Python"),
        ("python 'x", None, "cannot be read"),
        ("", None, "is empty"),
        ("python3", "/none/sandbox", "cannot be run"),
        ("python3", "false", "ended with 1"),
        ("python3", "echo", "not Python 3.9"),
    ],
)
def test_commands_that_do_not_work_are_errors_at_once(python: str, sandbox: str | None, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        Sandbox(python, sandbox, LIMITS)


def test_it_works_in_the_loop_that_servers_use() -> None:
    async def work() -> tuple[str, str]:
        storage = Storage(partial(open_store, "memory"))
        await storage.start()
        tool = PythonInterpreter(interpreters(storage))
        session = own(tool)
        first = await said(session, "import os; os.system('echo sung'); open('a', 'w').write('x' * 10**6)")
        second = await said(session, "print('x' * 100, end='')")
        await tool.close()
        await storage.stop()
        return first, second

    first, second = uvloop.run(work())
    assert first.startswith("sung\n")
    assert second == "x" * 100


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("See /mnt/data/a.csv.", [(4, 19, "a.csv")]),
        ("[it](sandbox:/mnt/data/d/b.png)!", [(5, 30, "d/b.png")]),
        ("`/mnt/data/x y`", [(1, 12, "x")]),
        ("/mnt/dat/a", []),
    ],
)
def test_files_that_a_text_names(text: str, found: list[tuple[int, int, str]]) -> None:
    assert list(paths_in(text)) == found


def workers() -> list[Process]:
    """The interpreters that this process has begun."""
    return [each for each in children("bwrap") if not each.zombie]
