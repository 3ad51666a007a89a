"""The page in a real Chromium on a phone, in the dark, without a mouse, and what it says while it answers."""

import io

import pytest
from PIL import Image

from tests.page.chromium import (
    Browser,
    Page,
    answered,
    ask,
    browser,
    check_accessible,
    checked,
    expect,
    page,
    server,
    shot,
)
from tests.server import Running, running

__all__ = ["browser", "page", "server"]  # fixtures

pytestmark = pytest.mark.asyncio(loop_scope="module")

VIEWS = ("Chat", "Decisions", "Background", "Batches", "Server")
WIDE = f"""{"w" * 300}

```python
long = "{"x" * 300}"
```

| {" | ".join("column" for _ in range(12))} |
|{"---|" * 12}
| {" | ".join("a" * 20 for _ in range(12))} |

$ {"y" * 300}

https://example.com/{"z" * 300}
"""
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "' + "B" * 300 + '"}}</tool_call>'
DARK = "rgb(28, 32, 39)"
LIGHT = "rgb(255, 255, 255)"


@pytest.mark.parametrize("width", [320, 375])
async def test_a_phone_scrolls_in_one_direction(browser: Browser, width: int) -> None:
    script = [
        {"when": "weather", "output": f"<think>{'r' * 300}</think>Let me look. {CALL}"},
        {"output": WIDE},
    ]
    async with running(script, debug_answers=5) as server:
        context = await browser.new_context(
            viewport={"width": width, "height": 667}, has_touch=True, is_mobile=True
        )
        async with checked(context) as page:
            await page.goto(server.url)
            await fits(page, width)
            for view in VIEWS:
                await page.get_by_role("tab", name=view).click()
                await fits(page, width)
                await check_accessible(page)
            await page.get_by_role("tab", name="Chat").click()
            await ask(page, "w" * 300)
            await answered(page)
            await fits(page, width)
            await shot(page, f"phone-{width}")
            await page.locator("summary", has_text="Settings").click()
            await (
                page.locator(".area", has_text="Tools as JSON").get_by_role("button", name="Example").click()
            )
            await fits(page, width)
            await page.locator("summary", has_text="Settings").click()
            await ask(page, "And the weather?")
            await answered(page, 2)
            await page.locator("summary", has_text="Reasoning").last.click()
            await page.locator("summary", has_text="Conversations").click()
            await page.get_by_text("This request as code").click()
            await fits(page, width)
            await check_accessible(page)
            await page.get_by_role("button", name="Details").last.click()
            await expect(page.locator(".special").first).to_be_visible()
            await fits(page, width)
        await context.close()


async def fits(page: Page, width: int) -> None:
    """Nothing is wider than the screen, but for what scrolls in itself."""
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    assert await page.evaluate("visualViewport.width") == width  # phones zoom out if something is wider
    wider = "all => all.filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.className)"
    assert (
        await page.locator("main, #main, .turns, .turn, .markdown, .view, .side, .record").evaluate_all(wider)
        == []
    )


async def test_the_message_is_in_reach_of_a_phone_under_a_long_conversation(browser: Browser) -> None:
    async with running([{"output": "a\n\n" * 200}]) as server:
        context = await browser.new_context(viewport={"width": 375, "height": 667}, is_mobile=True)
        async with checked(context) as page:
            await page.goto(server.url)
            await ask(page, "Hi")
            await answered(page)
            await expect(page.get_by_text("a", exact=True).last).to_be_in_viewport()  # it has been followed
            await page.evaluate("scrollTo(0, 500)")
            await expect(page.get_by_role("textbox", name="Message", exact=True)).to_be_in_viewport(ratio=1)
            await expect(page.get_by_role("button", name="Send")).to_be_in_viewport(ratio=1)
        await context.close()


async def test_the_colours_follow_the_system(server: Running, browser: Browser) -> None:
    context = await browser.new_context(viewport={"width": 1400, "height": 900}, color_scheme="dark")
    async with checked(context) as page:
        colour = "getComputedStyle(document.querySelector('.top')).backgroundColor"
        await page.goto(server.url)
        await expect(page.get_by_role("combobox", name="Model")).to_have_value("scripted")
        assert await page.evaluate(colour) == DARK
        await ask(page, "Hi")
        await answered(page)
        for view in VIEWS:
            await page.get_by_role("tab", name=view).click()
            await check_accessible(page)
        await page.emulate_media(color_scheme="light")
        await expect(page.locator("html")).to_have_attribute("data-theme", "light")
        assert await page.evaluate(colour) == LIGHT
        await page.get_by_role("button", name="Switch to dark colours").click()
        await page.emulate_media(color_scheme="light")
        await page.reload()
        await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        await page.get_by_role(
            "button", name="Switch to light colours"
        ).click()  # as the system: followed again
        await page.emulate_media(color_scheme="dark")
        await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    await context.close()


async def test_no_light_flashes_in_the_dark(server: Running, browser: Browser) -> None:
    """Until the page's program runs, the ground has the colour of the system."""
    context = await browser.new_context(color_scheme="dark", java_script_enabled=False)
    page = await context.new_page()
    await page.goto(server.url)
    pixel = await page.screenshot(clip={"x": 5, "y": 300, "width": 1, "height": 1})
    assert max(brightness(pixel)) < 64
    await context.close()


def brightness(picture: bytes) -> tuple[int, ...]:
    colour = Image.open(io.BytesIO(picture)).convert("RGB").getpixel((0, 0))
    assert isinstance(colour, tuple)
    return tuple(map(int, colour))


async def test_all_is_done_without_a_mouse(page: Page) -> None:
    """A view, a setting, a question, a stop, a call's result, the details: each where Tab leads."""
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to the conversation")).to_be_focused()
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("tab", name="Chat")).to_be_focused()
    await page.keyboard.press("End")
    await expect(page.get_by_role("tabpanel", name="Server")).to_be_visible()
    await page.keyboard.press("ArrowRight")
    await expect(page.get_by_role("tabpanel", name="Chat")).to_be_visible()
    await reach(page, "Tools as JSON")
    await page.keyboard.type('{"name": "get_weather"}')
    await reach(page, "Message")
    await page.keyboard.type("Never end")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("article", name="Model")).to_contain_text("on and on")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("article", name="Model")).to_contain_text("stopped")
    await expect(page.get_by_role("textbox", name="Message", exact=True)).to_be_focused()
    await page.keyboard.type("What is the weather")
    await page.keyboard.press("Shift+Enter")
    await page.keyboard.type("today?")
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("Result of get_weather")).to_be_focused()
    await expect(page.get_by_role("article", name="You").last).to_contain_text("What is the weather\ntoday?")
    await page.keyboard.type("7")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("article", name="Model").last.locator("strong")).to_have_text("7 °C")
    await answered(page, 3)
    assert await page.evaluate("document.activeElement.id") == "message"
    await page.keyboard.press("Shift+Tab")
    await expect(page.get_by_role("button", name="Details").last).to_be_focused()
    await page.keyboard.press("Shift+Tab")
    await expect(page.get_by_role("button", name="Try again")).to_be_focused()
    await check_accessible(page)


async def reach(page: Page, label: str) -> None:
    """Press Tab until the element with this label has the focus."""
    for _ in range(40):
        name = await page.evaluate("document.activeElement.labels?.[0]?.textContent ?? ''")
        if name.strip() == label:
            return
        await page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not lead to {label}")


async def test_the_focus_stays_where_it_is_when_an_answer_ends(page: Page) -> None:
    await ask(page, "Hi")
    await page.get_by_label("System message").focus()
    await answered(page)
    await expect(page.get_by_label("System message")).to_be_focused()


async def test_reasoning_is_open_while_it_lasts_and_folded_after(browser: Browser) -> None:
    thoughts = "I think. " * 30
    script = [{"output": f"<think>{thoughts}</think>{'So it is. ' * 400}", "delay_ms": 8}]
    async with running(script) as server:
        context = await browser.new_context()
        async with checked(context) as page:
            await page.goto(server.url)
            await ask(page, "Hi")
            reasoning = page.locator(".reasoning")
            await expect(reasoning.locator("summary")).to_have_text("Reasoning …")
            await expect(reasoning.get_by_text("I think.")).to_be_visible()
            await expect(page.locator(".facts-line")).to_contain_text("tokens/s")  # while it is written
            await expect(page.locator(".facts-line")).to_contain_text("answering")
            await expect(reasoning.get_by_text("I think.")).to_be_hidden()
            await expect(page.locator(".facts-line")).to_contain_text("answering")
            await reasoning.locator("summary").click()  # and stays open, although the answer goes on
            await page.keyboard.press("Escape")
            await answered(page)
            await expect(reasoning.get_by_text("I think.")).to_be_visible()
        await context.close()


async def test_the_speed_is_that_of_the_server(browser: Browser) -> None:
    """A token every 20 ms: 50 a second, and no more than it."""
    async with running([{"output": "word " * 60, "delay_ms": 20}]) as server:
        context = await browser.new_context()
        async with checked(context) as page:
            await page.goto(server.url)
            await ask(page, "Hi")
            await answered(page)
            facts = await page.locator(".facts-line").inner_text()
            speed = float(facts.split("·")[-1].removesuffix("tokens/s"))
            assert 25 < speed < 55
        await context.close()


async def test_an_answer_is_tried_again(page: Page) -> None:
    await ask(page, "Never end")
    await expect(page.get_by_role("article", name="Model")).to_contain_text("on and on")
    await page.keyboard.press("Escape")
    await answered(page)
    await page.get_by_role("button", name="Try again").click()
    await expect(page.get_by_role("button", name="Stop")).to_be_visible()
    await expect(page.get_by_role("article", name="You")).to_have_count(1)
    await page.keyboard.press("Escape")
    await answered(page)


async def test_a_call_is_a_card_with_its_arguments_and_result(page: Page) -> None:
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.locator(".area", has_text="Tools as JSON").get_by_role("button", name="Example").click()
    await ask(page, "What is the weather?")
    card = page.get_by_role("region", name="Call get_weather")
    await expect(card.locator("pre")).to_have_text('{\n  "city": "Berlin"\n}', use_inner_text=True)
    await card.get_by_role("button", name="Copy").click()
    assert (
        await page.evaluate("navigator.clipboard.readText().then((text) => JSON.parse(text).city)")
        == "Berlin"
    )
    await page.get_by_label("Result of get_weather").fill('{"celsius": 7, "wind": []}')
    await page.get_by_role("button", name="Send the results").click()
    result = page.get_by_role("region", name="Result get_weather")
    await expect(result.locator("pre")).to_have_text(
        '{\n  "celsius": 7,\n  "wind": []\n}', use_inner_text=True
    )
    await answered(page, 2)
    await shot(page, "cards")
    await check_accessible(page)
