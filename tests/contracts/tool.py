"""What every tool of the server must do: the contract in the docstrings of `antiphon.tools.tool`.

A test module inherits `ToolContract`, gives it a fixture `tool`, and says which
calls do what. A call is an action and its arguments.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.core.errors import NotFoundError, RequestError
from antiphon.core.tool_result import ToolResult
from antiphon.core.turn import Function
from antiphon.toolkits.code_interpreter.details import ProgramDetails
from antiphon.toolkits.file_search.query import FileResult
from antiphon.toolkits.registry import built_in
from antiphon.toolkits.shell.details import CommandDetails
from antiphon.tools.tool import RequestedTool, ServerTool, Session
from tests.contracts.answers import Call, ToolAnswers
from tests.run.support import until
from tests.search import examples

MAX_CHARS = 40_000
"""More characters than any tool shows the model at once."""

TEXT = st.text(max_size=20)
SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
JSON = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)

st.register_type_strategy(
    FileResult, st.builds(FileResult, TEXT, TEXT, st.floats(0, 1), st.dictionaries(TEXT, SCALAR), TEXT)
)
DETAILS = st.one_of(map(st.from_type, built_in().details.values())) | st.dictionaries(TEXT, JSON, max_size=2)
"""Details of any tool, or of one that is not known any more."""
RESULTS = st.builds(ToolResult, TEXT, st.none() | DETAILS, st.booleans())

anything = settings(
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)


def objects(names: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """JSON objects, many of which have fields of these names."""
    return st.dictionaries(st.sampled_from(names) | TEXT, JSON, max_size=5)


def successful(result: ToolResult) -> ToolResult:
    assert not result.failed, result.text
    return result


def failure(result: ToolResult) -> str:
    assert result.failed
    assert result.text.strip()
    return result.text


async def functions_of(tool: ServerTool) -> tuple[Function, ...]:
    """What it offers without further settings."""
    return (await tool.offer(RequestedTool({"type": tool.type}, "tools[0]"))).functions


async def refusal_of(tool: ServerTool, settings: Mapping[str, Any]) -> RequestError | None:
    try:
        await tool.offer(RequestedTool(settings, "tools[3]"))
    except RequestError as error:
        return error
    return None


@asynccontextmanager
async def opened(tool: ServerTool, **options: Any) -> AsyncIterator[Session]:
    session = tool.open(RequestedTool({"type": tool.type, **options}))
    try:
        yield session
    finally:
        await session.close()


class KeptOutput:
    """An `OutputCallback` that keeps the output."""

    def __init__(self) -> None:
        self.stdout = self.stderr = ""

    def __call__(self, stdout: str = "", stderr: str = "") -> None:
        self.stdout += stdout
        self.stderr += stderr


def printed(result: ToolResult) -> tuple[str, str]:
    """What clients are shown of what a program printed, on either output."""
    match result.details:
        case ProgramDetails(logs):
            return logs, ""
        case CommandDetails(stdout, stderr):
            return stdout, stderr
    return "", ""


class ToolContract(ToolAnswers):
    """Inherit, and give it a `tool`."""

    call: Call
    """Something that it does quickly."""

    endless: Call
    """A call that runs until it is stopped."""

    telling: Call | None = None
    """Prints `begun`, and runs until it is stopped. A tool that runs no programs has none."""

    lengthy: Call
    """A call whose output is longer than a model may read."""

    sets: Call
    """Sets a value in the session."""

    gets: Call
    """Returns `left`, in the same session only."""

    left: str

    keeps = True
    """What is left is in the session alone, not in a server elsewhere."""

    details = True
    """Clients get more of a result than its text."""

    arguments: tuple[str, ...] = ()
    """Names of arguments, in addition to those of the functions."""

    settings: tuple[str, ...] = ()
    """Names of settings that it reads."""

    @pytest.fixture
    def tool(self) -> ServerTool:
        raise NotImplementedError

    @pytest.fixture
    def harmless(self, tool: ServerTool) -> ServerTool:
        """The tool, in a form that can run any random input."""
        return tool

    @pytest.fixture
    async def session(self, tool: ServerTool) -> AsyncIterator[Session]:
        async with opened(tool) as session:
            yield session

    async def test_its_functions_are_its_own(self, tool: ServerTool) -> None:
        assert await functions_of(tool)
        for function in await functions_of(tool):
            assert function.hosted is not None
            assert function.hosted.type == tool.type
            assert function.description
            assert function.parameters["type"] == "object"
            assert set(function.parameters["required"]) <= set(function.parameters["properties"])

    async def test_it_does_what_it_is_asked_for(self, session: Session) -> None:
        result = successful(await session.run(*self.call))
        assert result.text
        assert not self.details or result.details is not None

    async def test_an_unknown_action_is_told_in_words(self, session: Session) -> None:
        failure(await session.run("dance" * 10_000, self.call[1]))
        successful(await session.run(*self.call))

    async def test_no_arguments_are_told_in_words(self, tool: ServerTool, session: Session) -> None:
        for function in await functions_of(tool):
            if function.hosted and function.parameters["required"]:
                failure(await session.run(function.hosted.action, {}))

    @given(st.data())
    @anything
    async def test_no_arguments_break_it(self, harmless: ServerTool, data: st.DataObject) -> None:
        async with opened(harmless) as session:
            for function in await functions_of(harmless):
                assert function.hosted is not None
                names = (*function.parameters["properties"], *self.arguments)
                result = await session.run(function.hosted.action, data.draw(objects(names)))
                assert len(result.text) <= MAX_CHARS
                result.text.encode()  # raises on half a surrogate pair

    @given(st.data())
    @anything
    async def test_nothing_that_was_done_breaks_it(self, harmless: ServerTool, data: st.DataObject) -> None:
        async with opened(harmless) as session:
            for function in await functions_of(harmless):
                assert function.hosted is not None
                arguments = data.draw(objects((*function.parameters["properties"], *self.arguments)))
                action = data.draw(st.sampled_from([function.hosted.action, "dance"]))
                await session.recall(action, arguments, data.draw(RESULTS))
            for function in await functions_of(harmless):
                assert function.hosted is not None
                assert (await session.run(function.hosted.action, {})).text.strip()

    @given(st.data())
    @anything
    async def test_no_settings_break_it(self, tool: ServerTool, data: st.DataObject) -> None:
        given: Mapping[str, Any] = data.draw(objects(self.settings or ("type",)))
        refusal = await refusal_of(tool, given)
        if refusal is None:
            if (await tool.offer(RequestedTool(given))).functions:  # else it is never opened
                await tool.open(RequestedTool(given)).close()
        else:
            # What a setting names may not be there, as a container.
            assert refusal.status == (404 if isinstance(refusal, NotFoundError) else 400)
            assert (refusal.param or "").startswith("tools[3]")

    async def test_what_it_tells_is_bounded(self, session: Session) -> None:
        result = await session.run(*self.lengthy)
        assert 100 < len(result.text) <= MAX_CHARS

    async def test_what_a_program_prints_is_told_while_it_runs(self, session: Session) -> None:
        if self.telling is None:
            pytest.skip("it runs no programs")
        kept = KeptOutput()
        running = asyncio.create_task(session.run(*self.telling, kept))
        await until(lambda: "begun" in kept.stdout)
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def test_all_that_is_told_is_how_the_output_begins(self, tool: ServerTool) -> None:
        for call in (self.call, self.lengthy, self.sets):
            kept = KeptOutput()
            async with opened(tool) as session:
                result = await session.run(*call, kept)
                await asyncio.sleep(0)
            stdout, stderr = printed(result)
            assert stdout.startswith(kept.stdout)
            assert stderr.startswith(kept.stderr)
            assert bool(kept.stdout) == bool(stdout and self.telling)

    @pytest.mark.parametrize("seconds", [0, 0.01, 0.5])
    async def test_a_call_can_be_cancelled_at_any_moment(self, tool: ServerTool, seconds: float) -> None:
        session = tool.open(RequestedTool({}))
        running = asyncio.create_task(session.run(*self.endless))
        await asyncio.wait({running}, timeout=seconds)
        assert not running.done()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await session.close()
        async with opened(tool) as another:
            successful(await another.run(*self.call))

    async def test_a_session_closes_in_the_middle_of_a_call_that_was_cancelled(
        self, tool: ServerTool
    ) -> None:
        session = tool.open(RequestedTool({}))
        running = asyncio.create_task(session.run(*self.endless))
        await asyncio.wait({running}, timeout=0.1)
        running.cancel()
        await session.close()
        with pytest.raises(asyncio.CancelledError):
            await running
        async with opened(tool) as another:
            successful(await another.run(*self.call))

    async def test_others_go_on_meanwhile(self, tool: ServerTool, session: Session) -> None:
        running = asyncio.create_task(session.run(*self.endless))
        async with opened(tool) as another:
            successful(await another.run(*self.call))
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def test_a_session_keeps_what_is_left(self, session: Session) -> None:
        successful(await session.run(*self.sets))
        assert self.left in successful(await session.run(*self.gets)).text

    async def test_sessions_are_apart(self, tool: ServerTool) -> None:
        if not self.keeps:
            pytest.skip("a server elsewhere keeps it")
        async with opened(tool) as mine, opened(tool) as yours:
            successful(await mine.run(*self.sets))
            assert self.left not in (await yours.run(*self.gets)).text
            assert self.left in successful(await mine.run(*self.gets)).text

    async def test_sessions_after_each_other_are_apart(self, tool: ServerTool) -> None:
        if not self.keeps:
            pytest.skip("a server elsewhere keeps it")
        async with opened(tool) as mine:
            successful(await mine.run(*self.sets))
        async with opened(tool) as yours:
            assert self.left not in (await yours.run(*self.gets)).text

    async def test_many_work_at_once(self, tool: ServerTool) -> None:
        async def work() -> ToolResult:
            async with opened(tool) as session:
                return await session.run(*self.call)

        results = await asyncio.gather(*(work() for _ in range(8)))
        assert not [result for result in results if result.failed]

    async def test_a_session_goes_on_with_what_another_did(self, tool: ServerTool) -> None:
        async with opened(tool) as first:
            calls = [self.call, self.sets, ("dance", {}), (self.call[0], {})]
            done = [(call, await first.run(*call)) for call in calls]
        async with opened(tool) as second:
            for call, result in done:
                await second.recall(*call, result)
            successful(await second.run(*self.call))

    async def test_a_session_closes_twice(self, tool: ServerTool) -> None:
        session = tool.open(RequestedTool({}))
        await session.close()
        await session.close()
        session = tool.open(RequestedTool({}))
        successful(await session.run(*self.call))
        await session.close()
        await session.close()

    async def test_it_closes_twice(self, tool: ServerTool) -> None:
        async with opened(tool) as session:
            successful(await session.run(*self.call))
        await tool.close()
        await tool.close()
