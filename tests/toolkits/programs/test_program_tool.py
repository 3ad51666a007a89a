"""Programs as the tool runs them: what they call, in which order, and that they do it again."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.core.limits import DEFAULTS
from antiphon.core.program_functions import described, python_name
from antiphon.core.programs import CallOutcome, clock_of, fingerprint
from antiphon.core.tool_result import ToolResult
from antiphon.core.turn import Function
from antiphon.toolkits.programs.awaiting import awaited_calls
from antiphon.toolkits.programs.tool import Programs
from antiphon.tools.tool import ProgramCall
from tests.contracts.tool import opened
from tests.search import examples

F, G = (Function(name, None, {"properties": {"key": {}}}) for name in "fg")


@pytest.fixture
async def tool() -> AsyncIterator[Programs]:
    tool = Programs(DEFAULTS)
    yield tool
    await tool.close()


def answered(calls: Sequence[ProgramCall]) -> list[CallOutcome]:
    return [CallOutcome(f"<{call.arguments}>", failed="-1" in call.arguments) for call in calls]


async def ran(tool: Programs, code: str) -> tuple[list[list[ProgramCall]], str]:
    """What a program calls, together, and its result."""
    program, steps = tool.begin(code, (F, G), "seed", 0), []
    try:
        step = await program.advance(())
        while not isinstance(step, ToolResult):
            steps.append([*step])
            step = await program.advance(answered(step))
    finally:
        await program.close()
    return steps, step.text


def calls(*keys: object) -> list[ProgramCall]:
    return [ProgramCall("f", json.dumps({"key": key}, separators=(",", ":"))) for key in keys]


@pytest.mark.parametrize(
    ("code", "steps"),
    [
        ("f(1); f(2)", [[1], [2]]),
        ("await f(1); await f(2)", [[1], [2]]),
        ("g = f\nprint(g(1), f(key=2))", [[1], [2]]),
        ("import asyncio\nawait asyncio.gather(f(1), f(2))", [[1, 2]]),
        ("import asyncio\nawait asyncio.gather(*(f(k) for k in (1, 2)))", [[1, 2]]),
        (
            "import asyncio\nts = []\nfor k in (1, 2): ts.append(f(k))\nprint(await asyncio.gather(*ts))",
            [[1, 2]],
        ),
        ("import asyncio\nts = {k: f(k) for k in (1, 2)}\nawait asyncio.gather(*ts.values())", [[1, 2]]),
        ("import asyncio\nasync def h(k): return await f(k)\nawait asyncio.gather(h(1), h(2))", [[1, 2]]),
        ("import asyncio\nasync def h(k): return f(k)\nawait asyncio.gather(h(1), h(2))", [[1], [2]]),
        ("import asyncio\ndef h(k): return f(k)\nawait asyncio.gather(h(1), h(2))", [[1, 2]]),
        ("t = f(1)\nx = f(2)\nprint(x, await t)", [[1, 2]]),
        ("ts = [f(1), f(2)]\nfor t in ts: print(await t)", [[1, 2]]),
        ("é = 'ü'; x = await f(1); y = f(2)", [[1], [2]]),
    ],
)
async def test_a_call_may_be_awaited_or_not(tool: Programs, code: str, steps: list[list[int]]) -> None:
    made, text = await ran(tool, code)
    assert made == [calls(*step) for step in steps], text
    assert "Error" not in text


async def test_what_goes_on_together_goes_on_in_the_order_of_the_calls(tool: Programs) -> None:
    code = BEGIN + "await asyncio.gather(*[twice(k) for k in range(8)])"
    (first, second), _ = await ran(tool, code)
    assert first == calls(*range(8))
    assert [call.arguments for call in second] == [
        json.dumps({"key": f"<{call.arguments}>"}, separators=(",", ":")) for call in first
    ]


STEP = st.sampled_from([
    "x = f({n})", "x = await f({n})", "x = await asyncio.gather(*[f(i) for i in range({n})])",
    "x = await asyncio.gather(twice({n}), twice({n} + 1), g({n}))", "t = g({n})\nx = f(2)\nx = await t",
    "print(x)", "x = f(random.randint(0, 9))", "x = f(list(dict(a=1, b={n})))", "try: f(-1)\nexcept RuntimeError: x = g(1)",
])  # fmt: skip
PROGRAM = st.lists(st.tuples(STEP, st.integers(1, 4)), max_size=5)
BEGIN = "import asyncio, random\nasync def twice(k):\n    a = await f(k)\n    return await g(a)\n"


@settings(
    max_examples=examples(15),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)
@given(PROGRAM)
async def test_a_program_makes_the_same_calls_again(tool: Programs, steps: list[tuple[str, int]]) -> None:
    code = BEGIN + "\n".join(step.replace("{n}", str(n)) for step, n in steps)
    first, second = await asyncio.gather(ran(tool, code), ran(tool, code))
    assert first == second


@given(st.text(alphabet="fg()[]{},.:=* \nawit1xdefor", max_size=60) | st.text(max_size=20))
def test_any_text_may_be_a_program(code: str) -> None:
    starts = awaited_calls(code, {"f", "g"})
    text = code.encode(errors="replace")
    assert all(text[start : start + 1] in (b"f", b"g") for start in starts)


async def test_without_an_answer_it_runs_programs_without_functions(tool: Programs) -> None:
    async with opened(tool) as session:
        assert (await session.run("run", {"code": "print(6 * 7)"})).text == "42\n"
        assert "NameError" in (await session.run("run", {"code": "f(1)"})).text
        assert (await session.run("run", {})).failed
        assert (await session.run("wibble", {"code": ""})).failed


@given(st.text(max_size=20), st.integers(0, 2**40))
def test_a_fingerprint_is_of_one_code_and_one_time(code: str, clock: int) -> None:
    assert clock_of(code, fingerprint(code, clock)) == clock
    assert clock_of(code + " ", fingerprint(code, clock)) is None
    assert clock_of(code, "py1_0_") is None


@given(st.text(min_size=1, max_size=10))
def test_every_function_has_a_name_in_python(name: str) -> None:
    assert python_name(name).isidentifier()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("type", "properties", "x y", "required", "enum")) | st.text(max_size=5), inner, max_size=3),
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(("type", "properties", "required")), JSON), JSON)
def test_any_schema_can_be_described(parameters: dict[str, object], output: object) -> None:
    function = Function("a-b", "What it does.\nMore.", parameters, more={"output_schema": output})
    text = described([function])
    assert "def a_b(" in text
    assert "    More." in text
