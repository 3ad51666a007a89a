"""`code_interpreter` as models use it: a notebook in a sandbox, of which each answer has its own."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.errors import RequestError
from antiphon.core.tool_result import ToolResult
from antiphon.toolkits.code_interpreter import processes
from antiphon.toolkits.code_interpreter.cell import MAX_PARSED, as_cell
from antiphon.toolkits.code_interpreter.details import ProgramDetails
from antiphon.toolkits.code_interpreter.monty import MAX_CHARS, MODULES, CodeInterpreter
from antiphon.tools.tool import RequestedTool, ServerTool, Session
from tests.contracts.tool import ToolContract, failure, successful
from tests.tools.processes import PATIENCE, alive

FOREVER = "while True: pass"


def code(text: str) -> tuple[str, dict[str, object]]:
    return "python", {"code": text}


@pytest.fixture
async def tool() -> AsyncIterator[CodeInterpreter]:
    tool = CodeInterpreter()
    yield tool
    await tool.close()


@pytest.fixture
async def hasty() -> AsyncIterator[CodeInterpreter]:
    """Gives programs little time."""
    tool = CodeInterpreter(seconds=0.3)
    yield tool
    await tool.close()


@pytest.fixture
async def session(tool: CodeInterpreter) -> AsyncIterator[Session]:
    session = tool.open(RequestedTool({}))
    yield session
    await session.close()


async def said(session: Session, text: str) -> str:
    """What the model reads; the client reads the same."""
    result = successful(await session.run(*code(text)))
    assert result.details == ProgramDetails(result.text)
    return result.text


class TestContract(ToolContract):
    asked = {"container": {"type": "auto"}}  # noqa: RUF012
    call = code("6 * 7")
    endless = code(FOREVER)
    telling = code(f"print('begun')\n{FOREVER}")
    lengthy = code("for i in range(10**5): print(i)")
    sets = code("choir = 'antiphon'")
    gets = code("choir")
    left = "antiphon"
    settings = ("type", "container")

    @pytest.fixture
    async def tool(self) -> AsyncIterator[ServerTool]:
        tool = CodeInterpreter()
        yield tool
        await tool.close()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("6 * 7", "42\n"),
        ("print('a')\n'b'", "a\n'b'\n"),
        ("1, 2", "(1, 2)\n"),
        ("x = 1; x + 1", "2\n"),
        ("x = 1\nx # one", "1\n"),
        ("(1 +\n 1)", "2\n"),
        ("'ü'; 'é' * 2", "'éé'\n"),
        ("x = 1\r\nx", "1\n"),
        ('"""\na\n"""', "'\\na\\n'\n"),
        ("_ = 3\n_", "3\n"),
        ("import asyncio\nasync def f(): return 5\nawait f()", "5\n"),
        ("class A:\n  def __repr__(self): return 'an A'\n[A()]", "[an A]\n"),
        ("import collections\ncollections.Counter('aab')", "Counter({'a': 2, 'b': 1})\n"),
        (r"import re; re.sub('\d', '', 'a1')", "'a'\n"),
    ],
)
async def test_it_shows_what_a_notebook_shows(session: Session, text: str, shown: str) -> None:
    assert await said(session, text) == shown


@pytest.mark.parametrize("text", ["", "# nothing", "x = 1", "None", "if True:\n  5", "def f(): return 1"])
async def test_what_shows_nothing_is_told_in_words(session: Session, text: str) -> None:
    result = successful(await session.run(*code(text)))
    assert "Nothing was printed" in result.text
    assert result.details == ProgramDetails("")


async def test_the_last_value_is_kept(session: Session) -> None:
    await said(session, "6 * 7")
    assert await said(session, "_ + 1") == "43\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("def f(", "SyntaxError"),
        ("%matplotlib inline", "SyntaxError"),
        ("import numpy", "ModuleNotFoundError"),
        ("open('/etc/passwd')", "PermissionError"),
        ("import os; os.environ", "os.environ"),
        ("raise TimeoutError('mine')", "TimeoutError: mine"),
        ("raise MemoryError('mine')", "MemoryError: mine"),
        ("'x' * 10**9", "MemoryError"),
        ("def f(): return f()\nf()", "RecursionError"),
        ("class A:\n  def __repr__(self): return str(1 / 0)\nA()", "ZeroDivisionError"),
        ("\0", "SyntaxError"),
        ("(" * 100_000, "SyntaxError"),
    ],
)
async def test_what_a_program_raises_is_told_and_no_failure(session: Session, text: str, error: str) -> None:
    await said(session, "x = 'still here'; print(x)")
    assert error in await said(session, text)
    assert await said(session, "x") == "'still here'\n"


async def test_a_traceback_names_the_line_behind_what_was_printed(session: Session) -> None:
    text = await said(session, "print('before', end='')\n\n1 / 0")
    assert text.startswith("before\nTraceback")
    assert "line 3" in text


async def test_a_program_that_takes_too_long_is_stopped(hasty: CodeInterpreter) -> None:
    session = hasty.open(RequestedTool({}))
    await said(session, "x = 'there'; print(x)")
    result = await session.run(*code(f"print('begun')\n{FOREVER}"))
    assert "too long" in failure(result)
    assert result.details == ProgramDetails(result.text)
    assert result.text.startswith("begun\n")
    assert "NameError" in await said(session, "x")
    await session.close()


@pytest.mark.parametrize(
    "text",
    [
        "while True: print('x' * 1000)",
        "while True:\n  try: open('/x')\n  except PermissionError: pass",
        "import asyncio, time\nwhile True: time.sleep(9)",
        "10 ** 10**7",
    ],
)
async def test_nothing_goes_on_for_ever(hasty: CodeInterpreter, text: str) -> None:
    session = hasty.open(RequestedTool({}))
    async with asyncio.timeout(PATIENCE):
        failure(await session.run(*code(text)))
    await session.close()


@pytest.mark.parametrize(
    "text", ["kept = []\nwhile True: kept.append('x' * 1000)", "[[i] for i in range(10**8)]"]
)
async def test_a_program_that_takes_too_much_memory_is_stopped(session: Session, text: str) -> None:
    await said(session, "x = 'there'; print(x)")
    assert "memory" in failure(await session.run(*code(text)))
    assert "NameError" in await said(session, "x")


async def test_a_process_that_dies_is_replaced(hasty: CodeInterpreter) -> None:
    others = alive("monty")
    session = hasty.open(RequestedTool({}))
    await said(session, "1")
    for process in alive("monty") - others:
        os.kill(process, signal.SIGKILL)
    assert "crashed" in failure(await session.run(*code("1")))
    assert await said(session, "2") == "2\n"
    await session.close()


@pytest.mark.parametrize(
    "value", ["list(range(10**6))", "{str(i): i for i in range(3 * 10**5)}", "'x' * 10**7"]
)
async def test_a_huge_value_is_shown_in_part(session: Session, value: str) -> None:
    text = await said(session, value)
    assert len(text) < MAX_CHARS + 100
    assert "characters are left out" in text


async def test_a_value_nested_without_end_stays_in_the_sandbox(session: Session) -> None:
    await said(session, "x = []\nfor i in range(10**6): x = [x]\nprint(i)")
    assert (await said(session, "x")).startswith("[[[[")


async def test_processes_are_gone_with_their_sessions(tool: CodeInterpreter) -> None:
    others = alive("monty")  # of servers of other tests
    session = tool.open(RequestedTool({}))
    running = asyncio.create_task(session.run(*code(FOREVER)))
    await until_there_are(1, others)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await session.close()
    await until_there_are(0, others)


async def test_python_ends_well_behind_it() -> None:
    program = """
import asyncio
from antiphon.toolkits.code_interpreter.monty import CodeInterpreter

async def main():
    tool = CodeInterpreter(seconds=0.2)
    session = tool.open(None)
    await session.run("python", {"code": "while True: pass"})
    await session.close()
    await tool.close()

asyncio.run(main())
"""
    begun = [await asyncio.create_subprocess_exec(sys.executable, "-c", program) for _ in range(6)]
    assert [await process.wait() for process in begun] == [0] * 6


async def test_more_sessions_than_processes_wait_or_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MAX_PROCESSES", 1)
    monkeypatch.setattr(processes, "QUEUE_SECONDS", 0.2)
    tool = CodeInterpreter()
    first, second = tool.open(RequestedTool({})), tool.open(RequestedTool({}))
    await said(first, "1")
    assert "Too many" in failure(await second.run(*code("2")))
    waiting = asyncio.create_task(second.run(*code("2")))
    await asyncio.sleep(0)
    await first.close()
    assert successful(await waiting).text == "2\n"
    await second.close()
    await tool.close()


async def test_what_was_done_elsewhere_is_done_again(tool: CodeInterpreter) -> None:
    session = tool.open(RequestedTool({}))
    await session.recall(*code("x = 2"), ToolResult("[Nothing was printed.]", ProgramDetails("")))
    await session.recall(*code("x = x * 3; print(x)"), ToolResult("6\n", ProgramDetails("6\n")))
    assert await said(session, "x") == "6\n"
    await session.recall(*code(FOREVER), ToolResult("stopped", ProgramDetails(""), failed=True))
    assert "NameError" in await said(session, "x")
    await session.close()


async def test_it_has_the_modules_that_it_names(session: Session) -> None:
    assert await said(session, "\n".join(f"import {name}" for name in MODULES) + "\n'all'") == "'all'\n"


def test_the_docs_name_them_too() -> None:
    docs = (Path(__file__).parents[3] / "docs" / "tools.md").read_text()
    (listed,) = re.findall(r"The available modules of the standard library are (.*?)\.\n", docs, re.DOTALL)
    assert tuple(re.findall("`(.*?)`", listed)) == MODULES


def test_it_works_in_the_loop_that_servers_use() -> None:
    async def work() -> str:
        tool = CodeInterpreter(seconds=0.2)
        session = tool.open(RequestedTool({}))
        running = asyncio.create_task(session.run(*code(FOREVER)))
        await asyncio.wait({running}, timeout=0.1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await session.close()
        session = tool.open(RequestedTool({}))
        failure(await session.run(*code(FOREVER)))
        text = await said(session, "6 * 7")
        await session.close()
        await tool.close()
        return text

    assert uvloop.run(work()) == "42\n"


@pytest.mark.parametrize(
    "container",
    [
        None,
        {"type": "auto"},
        {},
        {"type": "auto", "memory_limit": "4g", "file_ids": []},
        {"type": "auto", "network_policy": {"type": "disabled"}, "file_ids": None},
    ],
)
async def test_a_container_of_its_own_is_what_it_has(
    tool: CodeInterpreter, container: dict[str, object] | None
) -> None:
    offer = await tool.offer(RequestedTool({"type": "code_interpreter", "container": container}, "tools[0]"))

    assert offer.functions
    hint = container is not None and "memory_limit" in container
    assert [note.param for note in offer.notes] == ["tools[0].container.memory_limit"] * hint


@pytest.mark.parametrize(
    ("container", "param"),
    [
        ("cntr_1", ""),
        (7, ""),
        ({"type": "kept"}, ""),
        ({"type": "auto", "file_ids": ["file_1"]}, ".file_ids"),
        ({"type": "auto", "file_ids": "file_1"}, ".file_ids"),
        ({"type": "auto", "file_ids": [1]}, ".file_ids[0]"),
        ({"type": "auto", "memory_limit": "2g"}, ".memory_limit"),
        ({"type": "auto", "network_policy": {"type": "allowlist"}}, ".network_policy"),
        ({"type": "auto", "network_policy": {"type": 1}}, ".network_policy.type"),
        ({"type": "auto", "skills": [{}]}, ".skills"),
    ],
)
async def test_other_containers_are_refused(tool: CodeInterpreter, container: object, param: str) -> None:
    with pytest.raises(RequestError) as raised:
        await tool.offer(RequestedTool({"container": container}, "tools[0]"))
    assert raised.value.param == f"tools[0].container{param}"


@given(st.text(max_size=200))
def test_any_text_becomes_a_cell(text: str) -> None:
    as_cell(text).encode()


def test_code_that_is_too_long_to_look_at_runs_as_it_is() -> None:
    assert "_ =" not in as_cell("1\n" * MAX_PARSED)


async def until_there_are(count: int, others: frozenset[int]) -> None:
    """Wait until this number of processes of this one run sandboxes, `others` not counted."""
    async with asyncio.timeout(PATIENCE):
        while len(alive("monty") - others) != count:  # other processes give no notice of their end
            await asyncio.sleep(0.01)
