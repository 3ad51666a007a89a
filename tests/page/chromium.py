"""What the tests in a real Chromium share: the browser, a server and a page of it, what the model says, a question.

Whoever imports it is skipped, unless `make test-page` says where to leave pictures.
"""

import importlib.util
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

FOLDER = os.environ.get("ANTIPHON_TEST_PAGE")
if not FOLDER:
    pytest.skip("`make test-page` runs these, with a browser of its own", allow_module_level=True)
if importlib.util.find_spec("playwright") is None:
    pytest.fail("Playwright is missing: `make test-page` installs it", pytrace=False)

from playwright.async_api import Browser, BrowserContext, Page, Route, async_playwright, expect  # noqa: E402

from tests.server import Running, running  # noqa: E402

__all__ = [
    "FOLDER",
    "NAMES",
    "POLICY",
    "SCRIPT",
    "Browser",
    "BrowserContext",
    "Page",
    "Route",
    "ask",
    "browser",
    "expect",
]

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
POLICY = ("Content Security Policy", "TrustedScript")
"""What Chromium says of markup that the sanitizer parses, in a document that has the page's policy too."""
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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Running]:
    async with running(SCRIPT, debug_answers=20) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def page(server: Running, browser: Browser) -> AsyncIterator[Page]:
    context = await browser.new_context(viewport={"width": 1400, "height": 900}, color_scheme="light")
    async with checked(context) as page:
        await page.goto(server.url)
        await expect(page.get_by_role("combobox", name="Model")).to_have_value("scripted")
        yield page
    await context.close()


class checked:  # noqa: N801
    """A page on which nothing goes wrong unseen: errors, and what the policy refuses, but for what is `allowed`."""

    def __init__(self, context: BrowserContext, *allowed: str) -> None:
        self._context = context
        self._allowed = allowed
        self.wrong: list[str] = []

    async def __aenter__(self) -> Page:
        page = await self._context.new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("console", lambda said: self.wrong.append(said.text) if said.type == "error" else None)
        return page

    async def __aexit__(self, *exc: object) -> None:
        wrong = [each for each in self.wrong if not any(part in each for part in self._allowed)]
        assert wrong == [], wrong


async def shot(page: Page, name: str) -> None:
    await page.screenshot(path=Path(FOLDER or "") / f"{name}.png")


async def check_accessible(page: Page) -> None:
    """Axe finds nothing against WCAG 2.2 AA."""
    script = (Path(FOLDER or "") / "node_modules/axe-core/axe.min.js").read_text()
    await page.evaluate(script)
    found = await page.evaluate(
        "axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']})"
    )
    assert [
        (each["id"], [node["html"][:120] + " | " + node["failureSummary"][:200] for node in each["nodes"]])
        for each in found["violations"]
    ] == []


async def answered(page: Page, count: int = 1) -> None:
    """Wait for the end of the last of so many answers."""
    answers = page.get_by_role("article", name="Model")
    await expect(answers).to_have_count(count)
    await expect(answers.last.get_by_role("button", name="Try again")).to_be_visible()
