"""The examples and the README's Python run as they stand."""

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from tests.server import running

ROOT = Path(__file__).parent.parent
SCRIPT = [
    {"when": "It is sunny in Rome", "output": "Sunny, in Rome."},
    {
        "when": "weather in Rome",
        "output": '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>',
    },
    {"output": "<think>Rayleigh.</think>Because of the air."},
]


async def run(*command: str, url: str) -> str:
    """What a Python program prints. Fails with its stderr if it fails."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        env={**os.environ, "ANTIPHON_URL": f"{url}/v1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    return out.decode()


@pytest.mark.parametrize(
    ("example", "printed"),
    [
        ("stream.py", "Because of the air.\n"),
        ("tools.py", '-> get_weather({"city": "Rome"})\nSunny, in Rome.\n'),
    ],
)
async def test_example(example: str, printed: str) -> None:
    async with running(SCRIPT) as server:
        assert await run(str(ROOT / "examples" / example), url=server.url) == printed


def test_every_example_is_tested() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == {"stream.py", "tools.py"}


async def test_the_python_of_the_readme() -> None:
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    async with running(SCRIPT) as server:
        mine = code.replace("http://127.0.0.1:8000", server.url)
        assert mine != code
        assert await run("-c", mine, url=server.url) == "Because of the air."
