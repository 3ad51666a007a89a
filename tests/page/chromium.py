"""What the tests in a real Chromium share: the browser, what the model says, a question.

Whoever imports it is skipped, unless `make test-page` says where to leave pictures.
"""

import importlib.util
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

FOLDER = os.environ.get("ANTIPHON_TEST_PAGE")
if not FOLDER:
    pytest.skip("`make test-page` runs these, with a browser of its own", allow_module_level=True)
if importlib.util.find_spec("playwright") is None:
    pytest.fail("Playwright is missing: `make test-page` installs it", pytrace=False)

from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect  # noqa: E402

__all__ = ["FOLDER", "NAMES", "SCRIPT", "Browser", "BrowserContext", "Page", "ask", "browser", "expect"]

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Berlin"}}\n</tool_call>'
SCRIPT: list[Mapping[str, Any]] = [
    {"when": "<tool_response>", "output": "It is **7 °C** in Berlin."},
    {"when": "What is the weather", "output": f"<think>I need the weather.</think>Let me look. {CALL}"},
    {"when": "Be broken", "output": "<tool_call>\n{nothing at all"},
    {"when": "Never end", "output": "on and on", "tokens": 100_000, "delay_ms": 10},
    {
        "when": "Attack",
        "output": "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
        "[link](javascript:document.title='owned') <b>bold</b> <style>body{display:none}</style>",
    },
    {"output": "# Hello\n\nA list:\n\n- one\n- two\n\n```python\nprint('hi')\n```\n", "delay_ms": 5},
]
NAMES = {"chat": "Chat Completions", "responses": "Responses", "messages": "Messages"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        yield browser
        await browser.close()


async def ask(page: Page, text: str) -> None:
    await page.get_by_role("textbox", name="Message", exact=True).fill(text)
    await page.keyboard.press("Enter")
