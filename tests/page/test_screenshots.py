"""The pictures of `docs/page.md`: `make screenshots` draws them anew, and `make test-page` tries that it can.

The page is the real one, the words of the model are written here. Times, ids and dates differ each time.
"""

import io
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from PIL import Image

from antiphon.engines.scripted import ScriptedEngine
from tests.deciding import deciding, told
from tests.page.chromium import FOLDER, POLICY, Browser, Page, answered, ask, browser, checked, expect
from tests.server import Running, running

__all__ = ["browser"]  # a fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

INTO = Path(os.environ.get("ANTIPHON_SCREENSHOTS") or FOLDER or "")
MOST_BYTES = 150_000
"""Of a picture."""
COLOURS = 128
"""Of a picture: text and a few grounds need no more."""
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city, now and tonight.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Berlin"}}\n</tool_call>'
SCRIPT: list[dict[str, Any]] = [
    {
        "when": "And in Fahrenheit",
        "output": "Multiply by nine fifths and add 32. As a function:\n\n```python\n"
        "def fahrenheit(celsius: float) -> float:\n"
        '    """The same temperature in degrees Fahrenheit."""\n'
        '    return celsius * 9 / 5 + 32\n\n\nprint(f"{fahrenheit(7):.1f} °F")\n```\n\n'
        "So the 7 °C in Berlin are **44.6 °F**. Two more to remember:\n\n"
        "1. Water freezes at 0 °C, which is 32 °F.\n"
        "2. At 40 below zero both scales agree.\n",
    },
    {
        "when": "<tool_response>",
        "output": "Yes, take a **warm coat**, and an umbrella for the way there:\n\n"
        "| | Now | Tonight |\n|---|---|---|\n| Temperature | 7 °C | 3 °C |\n| Rain | light | none |\n\n"
        "The rain ends at about eight.",
    },
    {
        "when": "Do I need a coat",
        "output": "<think>It depends on the weather there. I have a tool for that, so I should not guess."
        f"</think>I look up the weather in Berlin. {CALL}",
    },
    {
        "when": "haiku",
        "output": "A line that grows long,\neach in turn is heard at last:\nthe queue is a song.",
    },
    {"when": "B-tree", "output": "A B-tree keeps sorted keys in wide, shallow pages."},
    {"when": "cat", "output": "**Insomnia**, **Midnight** or **Espresso**."},
    {"when": "A long story", "output": "And so on. ", "tokens": 100_000},
]
for _line in SCRIPT:
    _line["delay_ms"] = 12


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Running]:
    async with running(ScriptedEngine(SCRIPT, name="my-model"), debug_answers=20) as server:
        yield server


async def picture(page: Page, name: str) -> None:
    """A small PNG of what is seen."""
    await page.mouse.move(0, 0)
    await page.locator(".side, main").evaluate_all("all => all.forEach((each) => each.scrollTo(0, 0))")
    drawn = Image.open(io.BytesIO(await page.screenshot(animations="disabled", caret="hide")))
    small = drawn.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    path = INTO / f"page-{name}.png"
    small.save(path, optimize=True)
    assert path.stat().st_size < MOST_BYTES


def opened(browser: Browser, width: int, height: int, **options: Any) -> Any:
    viewport = {"width": width, "height": height}
    return browser.new_context(
        viewport=viewport, device_scale_factor=1.5, locale="en-GB", timezone_id="UTC", **options
    )


async def coat(page: Page) -> None:
    """A conversation with reasoning, a call and its result."""
    await ask(page, "Do I need a coat in Berlin tonight?")
    await answered(page)
    await page.get_by_label("Result of get_weather").fill(
        '{"now": "7 °C, light rain", "tonight": "3 °C, dry"}'
    )
    await page.get_by_role("button", name="Send the results").click()
    await answered(page, 2)


async def set_tools(page: Page) -> None:
    await page.get_by_label("Tools as JSON").fill(json.dumps(WEATHER, indent=2))


async def test_a_conversation(server: Running, browser: Browser) -> None:
    context = await opened(browser, 1280, 860, color_scheme="light")
    async with checked(context, *POLICY) as page:
        await page.goto(server.url)
        await set_tools(page)
        for text in (
            "Name a cat that never sleeps",
            "Explain a B-tree in one sentence",
            "A haiku about queues",
        ):
            await ask(page, text)
            await answered(page)
            await page.get_by_role("button", name="New conversation").click()
        await coat(page)
        await page.locator(".turns").evaluate("log => log.scrollTo(0, 0)")
        await picture(page, "chat")
        await ask(page, "And in Fahrenheit?")
        await answered(page, 3)
        await page.get_by_role("button", name="Switch to dark colours").click()
        await picture(page, "dark")
        await page.get_by_role("button", name="Switch to light colours").click()
        await page.get_by_role("button", name="A haiku about queues", exact=True).click()
        await expect(page.get_by_text("A line that grows long,")).to_be_visible()
        await page.get_by_role("button", name="Details").click()
        await expect(page.locator(".special").first).to_be_visible()
        await picture(page, "details")
    await context.close()


async def test_a_phone(server: Running, browser: Browser) -> None:
    context = await opened(browser, 375, 720, color_scheme="dark", is_mobile=True, has_touch=True)
    async with checked(context, *POLICY) as page:
        await page.goto(server.url)
        await page.locator("summary", has_text="Settings").click()
        await set_tools(page)
        await page.locator("summary", has_text="Settings").click()
        await coat(page)
        await page.evaluate("scrollTo(0, 0)")
        await picture(page, "phone")
    await context.close()


async def test_decisions(server: Running, browser: Browser) -> None:
    context = await opened(browser, 1280, 860, color_scheme="light")
    async with checked(context, *POLICY) as page:
        await page.goto(server.url)
        await page.get_by_role("tab", name="Decisions").click()
        with deciding(told((0.94, 0.04, 0.02), (0.03, 0.19, 0.78), (0.88, 0.12))):
            await page.get_by_role("button", name="Decide").click()
            await expect(page.locator(".answer")).to_have_count(3)
        await picture(page, "decisions")
    await context.close()


async def test_batches(server: Running, browser: Browser) -> None:
    context = await opened(browser, 1280, 480, color_scheme="light")
    async with checked(context, *POLICY) as page:
        await page.goto(server.url)
        await page.get_by_role("tab", name="Batches").click()
        first = page.get_by_role("listitem").filter(has_text="batch_").first
        for file, until in ((requests(12), "completed"), (requests(28, 12), "28 of 40 answered")):
            await page.get_by_label("Send a file").set_input_files(file)
            await expect(first).to_contain_text(until)
        await picture(page, "batches")
        await first.get_by_role("button", name="Cancel").click()
    await context.close()


def requests(short: int, long: int = 0) -> Any:
    """A file for a batch, with so many requests that are soon answered, and some that are not."""
    asked = ["Explain a B-tree in one sentence"] * short + ["A long story"] * long
    bodies = [{"model": "my-model", "messages": [{"role": "user", "content": each}]} for each in asked]
    lines = [
        {"custom_id": f"{at}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for at, body in enumerate(bodies)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    return {"name": "lines.jsonl", "mimeType": "application/jsonl", "buffer": content}
