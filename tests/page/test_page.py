"""The page in a real Chromium, over the scripted engine: `make test-page` installs what it takes.

With ANTIPHON_TEST_PAGE naming a folder that has axe-core in it, pictures of what is seen are left there.

To add something that the page shows: a module of `http/static/`, in plain JavaScript; a library goes into
`http/static/vendor/`, with its licence and a row in its `README.md`. Data of the server come from the API. It is tried in
a real Chromium (`make test-page`): also look at the screenshots.
"""

import asyncio
import base64
import json
import re
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.deciding import deciding, told
from tests.page.chromium import (
    FOLDER,
    NAMES,
    POLICY,
    SCRIPT,
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
from tests.server import NO_TLS, Running, running

__all__ = ["browser", "page", "server"]  # fixtures

pytestmark = pytest.mark.asyncio(loop_scope="module")

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)


@pytest.mark.parametrize("api", NAMES)
async def test_an_answer_is_streamed_and_shown_in_every_api(page: Page, api: str) -> None:
    await page.get_by_role("radio", name=NAMES[api]).check()
    await ask(page, "Hi")
    answer = page.get_by_role("article", name="Model")
    await expect(answer.get_by_role("heading", name="Hello")).to_be_visible()
    await expect(answer.get_by_role("listitem")).to_have_count(2)
    await expect(answer).to_contain_text("tokens/s")
    await expect(page.locator("[role=status].sr-only")).to_have_text("The answer is complete.")
    await shot(page, f"chat-{api}")


async def test_decisions_are_shown_as_bars(page: Page) -> None:
    with deciding(told((0.9, 0.08, 0.02), (0.2, 0.3, 0.5), (0.7, 0.3))) as asked:
        await page.get_by_role("tab", name="Decisions").click()
        await page.get_by_role("button", name="Decide").click()
        answers = page.locator(".answer")
        await expect(answers).to_have_count(3)
        team = page.get_by_role("article", name="Which team should handle this?")
        await expect(team.get_by_role("meter", name="billing")).to_have_attribute("value", "0.9")
        await expect(team).to_contain_text("90.0 %")
        await expect(team).to_contain_text("confidence 0.85")
        await expect(answers.last).to_contain_text("30.0 %")
        assert [option.description for option in asked[0].questions[0].options] == [
            "payments and refunds",
            "parcels",
            "",
        ]
        await shot(page, "decisions")
        await check_accessible(page)


@pytest.mark.parametrize("api", NAMES)
async def test_calls_are_answered_and_the_model_goes_on(page: Page, api: str) -> None:
    await page.get_by_role("radio", name=NAMES[api]).check()
    await page.locator(".area", has_text="Tools as JSON").get_by_role("button", name="Example").click()
    await ask(page, "What is the weather?")
    await expect(page.locator(".call")).to_contain_text('"city": "Berlin"')
    if api != "messages":  # which shows reasoning where it is asked for
        await expect(page.locator(".reasoning")).to_contain_text("I need the weather.")
    await shot(page, f"call-{api}")
    await page.get_by_label("Result of get_weather").fill('{"celsius": 7}')
    await page.get_by_role("button", name="Send the results").click()
    await expect(page.get_by_role("article", name="Model").last.locator("strong")).to_have_text("7 °C")


@pytest.mark.parametrize("api", NAMES)
async def test_a_stream_stops_where_it_is_told_to(server: Running, page: Page, api: str) -> None:
    await page.get_by_role("radio", name=NAMES[api]).check()
    await ask(page, "Never end")
    answer = page.get_by_role("article", name="Model")
    await expect(answer).to_contain_text("on and on")
    await page.get_by_role("button", name="Stop").click()
    await expect(answer).to_contain_text("stopped")
    async with asyncio.timeout(5):
        while server.engine.load.running:
            await asyncio.sleep(0.01)


async def test_the_details_show_prompt_tokens_events_and_verdicts(page: Page) -> None:
    await page.locator(".area", has_text="Tools as JSON").get_by_role("button", name="Example").click()
    await ask(page, "What is the weather?")
    await page.get_by_role("button", name="Details").click()
    details = page.get_by_role("complementary", name="Details")
    await expect(details.locator(".special", has_text="<|im_start|>").first).to_be_visible()
    await expect(details.locator(".event.call_started")).to_contain_text("name=get_weather")
    await expect(details).to_contain_text("The markup has no errors")
    await details.locator("button.token").first.focus()
    await page.keyboard.press("ArrowRight")
    await expect(details.locator(".alternatives")).to_contain_text("%")
    await shot(page, "details")
    await check_accessible(page)
    await page.get_by_role("button", name="Close the details").click()
    await expect(details).to_have_count(0)
    await expect(page.get_by_role("button", name="Details")).to_be_focused()


async def test_verdicts_on_broken_markup_are_seen(page: Page) -> None:
    await page.locator(".area", has_text="Tools as JSON").get_by_role("button", name="Example").click()
    await ask(page, "Be broken")
    await page.get_by_role("button", name="Details").click()
    await expect(page.locator(".verdicts li")).to_have_count(1)
    await expect(page.locator(".event.malformed")).to_have_count(1)
    await shot(page, "verdict")


async def test_what_a_model_writes_runs_no_script_and_asks_nobody(server: Running, browser: Browser) -> None:
    context = await browser.new_context()
    async with checked(context, *POLICY) as page:  # which stops it once more
        requested: list[str] = []
        page.on("request", lambda request: requested.append(request.url))
        await page.goto(server.url)
        await ask(page, "Attack")
        answer = page.get_by_role("article", name="Model")
        await expect(answer.locator("b")).to_have_text("bold")
        assert await page.title() == "Antiphon"
        assert await answer.locator("script, style, img, [onerror], a[href^=javascript]").count() == 0
        await expect(page.get_by_role("textbox", name="Message", exact=True)).to_be_visible()
        assert [url for url in requested if "/page/" not in url and "/v1/" not in url] == [f"{server.url}/"]
    await context.close()


async def test_the_colours_change_and_stay_and_both_have_contrast(page: Page) -> None:
    await ask(page, "Hi")
    await answered(page)
    await check_accessible(page)
    await page.get_by_role("button", name="Switch to dark colours").click()
    await shot(page, "dark")
    await check_accessible(page)
    await page.get_by_role("button", name="Details").click()
    await expect(page.locator(".special").first).to_be_visible()
    await shot(page, "dark-details")
    await check_accessible(page)
    await page.reload()
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")


async def test_settings_make_the_request_that_the_code_shows(server: Running, page: Page) -> None:
    await page.get_by_role("slider", name="Temperature").fill("0.5")
    await page.locator(".area", has_text="Schema of the answer").get_by_role("button", name="Example").click()
    await page.get_by_label("System message").fill("Be brief.")
    await page.get_by_text("This request as code").click()
    code = page.locator(".code pre")
    await expect(code).to_contain_text('"temperature": 0.5')
    await page.get_by_role("button", name="Python").click()
    await expect(code).to_contain_text("from openai import OpenAI")
    compile(await code.inner_text(), "shown", "exec")
    await shot(page, "code")
    await ask(page, "Hi")
    await expect(page.get_by_role("article", name="Model")).to_contain_text("tokens")
    request = server.engine.seen[-1]
    assert request.sampling.temperature == 0.5
    assert "Be brief." in request.prompt.text
    await page.get_by_label("Schema of the answer").fill("{")
    await expect(page.get_by_role("button", name="Send")).to_be_disabled()


@pytest.mark.parametrize("api", NAMES)
async def test_images_are_sent_along(server: Running, page: Page, api: str) -> None:
    await page.get_by_role("radio", name=NAMES[api]).check()
    await page.get_by_label("Add images").set_input_files(
        {"name": "dot.png", "mimeType": "image/png", "buffer": PIXEL}
    )
    await expect(page.get_by_role("img", name="Image 1")).to_be_visible()
    await ask(page, "What is this?")
    await expect(page.get_by_role("article", name="Model")).to_contain_text("one")
    assert len(server.engine.seen[-1].prompt.media) == 1


async def test_background_responses_have_their_logs(server: Running, page: Page) -> None:
    """Those that the page has made, and those that others have with the same key."""
    async with httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http:
        body = {"model": "scripted", "input": "Never end", "background": True}
        other = (await http.post("/v1/responses", json=body)).json()["id"]
    await page.get_by_role("radio", name="Responses").check()
    await page.get_by_label("in the background").check()
    await ask(page, "Hi")
    await page.get_by_role("button", name="Log").first.click()
    await expect(page.locator(".log")).to_contain_text("response.completed")
    made_elsewhere = page.get_by_role("listitem").filter(has_text=other)
    await expect(made_elsewhere).to_contain_text("in_progress")
    await made_elsewhere.get_by_role("button", name="Log").click()
    await expect(page.locator(".log")).to_contain_text("on and on")
    await shot(page, "background")
    await check_accessible(page)
    await made_elsewhere.get_by_role("button", name="Cancel").click()
    await expect(made_elsewhere).to_contain_text("cancelled")


async def test_a_batch_is_sent_watched_and_fetched(page: Page) -> None:
    def lines(*said: str) -> Any:
        url = "/v1/chat/completions"
        bodies = [{"model": "scripted", "messages": [{"role": "user", "content": each}]} for each in said]
        made = [
            {"custom_id": f"{at}", "method": "POST", "url": url, "body": body}
            for at, body in enumerate(bodies)
        ]
        content = "\n".join(map(json.dumps, made)).encode()
        return {"name": "lines.jsonl", "mimeType": "application/jsonl", "buffer": content}

    await page.get_by_role("tab", name="Batches").click()
    await expect(page.get_by_text("None yet.")).to_be_visible()
    await page.get_by_label("Send a file").set_input_files(lines("Hi", "Ho"))
    first = page.get_by_role("listitem").filter(has_text="batch_").first
    await expect(first).to_contain_text("completed")
    await expect(first).to_contain_text("2 of 2 answered")
    await expect(first.get_by_role("progressbar")).to_have_attribute("value", "2")
    async with page.expect_download() as downloading:
        await first.get_by_role("button", name="Results").click()
    assert (await downloading.value).suggested_filename.endswith("_output.jsonl")
    await page.get_by_label("Send a file").set_input_files(lines("Hi", "Never end"))
    await expect(first).to_contain_text("1 of 2 answered")
    await shot(page, "batches")
    await check_accessible(page)
    await first.get_by_role("button", name="Cancel").click()
    await expect(first).to_contain_text("cancelled")
    wrong = {"name": "wrong.jsonl", "mimeType": "application/jsonl", "buffer": b"{"}
    await page.get_by_label("Send a file").set_input_files(wrong)
    await expect(first).to_contain_text("Line 1: The line is not valid JSON")


async def test_the_server_is_seen_working(page: Page) -> None:
    await ask(page, "Never end")
    await page.get_by_role("tab", name="Server").click()
    row = page.get_by_role("row", name="scripted")
    await expect(row.get_by_role("cell").nth(2)).to_have_text("1")
    # While it writes.
    await expect(row.get_by_role("cell").nth(7)).to_have_text(re.compile(r"^[1-9]\d*\.\d$"))
    await shot(page, "server")
    await check_accessible(page)
    await page.keyboard.press("Escape")
    await expect(row.get_by_role("cell").nth(2)).to_have_text("0")


async def test_with_keys_the_page_asks_for_one(browser: Browser) -> None:
    async with running(SCRIPT, api_key=("a-key-of-the-tests",)) as server:
        context = await browser.new_context()
        async with checked(context, "401") as page:
            await page.goto(server.url)
            await expect(page.get_by_role("dialog")).to_contain_text("This server requires a key.")
            await page.get_by_label("Key", exact=True).fill("a-key-of-the-tests")
            await shot(page, "key")
            await page.keyboard.press("Enter")
            await ask(page, "Hi")
            await expect(page.get_by_role("article", name="Model")).to_contain_text("tokens")
            kept = await page.evaluate("[JSON.stringify(localStorage), JSON.stringify(sessionStorage)]")
            assert "a-key" not in kept[0]
            assert "a-key" in kept[1]
        await context.close()


async def test_the_reference_works_without_the_web(server: Running, browser: Browser) -> None:
    context = await browser.new_context(viewport={"width": 1400, "height": 900})
    async with checked(context) as page:
        requested: list[str] = []
        page.on("request", lambda request: requested.append(request.url))
        await page.goto(f"{server.url}/docs")
        await page.locator("#operations-tag-messages").click(timeout=30_000)  # Swagger UI takes its time
        operation = page.locator("#operations-messages-post_v1_messages")
        await operation.click()
        await expect(operation.get_by_text("Answer a conversation.")).to_be_visible()
        await expect(operation.get_by_text("max_tokens").first).to_be_visible()
        await shot(page, "docs")
        assert [url for url in requested if not url.startswith((server.url, "data:"))] == []
    await context.close()


async def test_a_small_screen_shows_everything(server: Running, browser: Browser) -> None:
    context = await browser.new_context(viewport={"width": 400, "height": 800})
    async with checked(context) as page:
        await page.goto(server.url)
        await ask(page, "Hi")
        await expect(page.get_by_role("article", name="Model")).to_contain_text("tokens")
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await page.screenshot(path=Path(FOLDER or "") / "small.png", full_page=True)
    await context.close()
