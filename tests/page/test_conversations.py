"""The list of conversations in a real Chromium: kept in the browser alone, bounded, and used without a mouse."""

import json

import httpx2 as httpx
import pytest

from tests.page.chromium import (
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

MOST = 300
"""Conversations that the browser keeps."""
STORED = """async () => {
  const opened = indexedDB.open("antiphon", 1);
  const database = await new Promise((done) => (opened.onsuccess = () => done(opened.result)));
  const all = (store) => new Promise((done) => {
    database.transaction(store).objectStore(store).getAll().onsuccess = (event) => done(event.target.result);
  });
  const kept = [await all("heads"), await all("turns")];
  database.close();
  return kept;
}"""
FILL = """async (count) => {
  const opened = indexedDB.open("antiphon", 1);
  const database = await new Promise((done) => (opened.onsuccess = () => done(opened.result)));
  const transaction = database.transaction(["heads", "turns"], "readwrite");
  for (let at = 0; at < count; at++) {
    transaction.objectStore("heads").put({ id: `old-${at}`, title: `Old ${at}`, changed: at + 1 });
    transaction.objectStore("turns").put({ id: `old-${at}`, turns: [{ role: "user", text: `Old ${at}`, images: [] }] });
  }
  await new Promise((done) => (transaction.oncomplete = done));
  database.close();
}"""
NO_ROOM = """() => {
  IDBObjectStore.prototype.put = () => { throw new DOMException("There is no room.", "QuotaExceededError"); };
}"""


async def converse(page: Page, *texts: str) -> None:
    """One conversation for each of the texts."""
    for text in texts:
        await page.get_by_role("button", name="New conversation").click()
        await ask(page, text)
        await answered(page)


async def titles(page: Page) -> list[str]:
    return await page.locator(".history .open").all_inner_texts()


async def test_conversations_are_listed_opened_and_continued(server: Running, page: Page) -> None:
    await converse(page, "The first", "The second")
    assert await titles(page) == ["The second", "The first"]
    await page.reload()
    await expect(page.locator(".history .open")).to_have_count(2)
    await page.get_by_role("button", name="The first", exact=True).click()
    await expect(page.get_by_role("article", name="You")).to_contain_text("The first")
    await expect(page.get_by_role("heading", name="Hello")).to_be_visible()
    await expect(page.get_by_role("button", name="The first", exact=True)).to_have_attribute(
        "aria-current", "true"
    )
    await ask(page, "And then?")
    await answered(page, 2)
    assert "The first" in server.engine.seen[-1].prompt.text
    assert "The second" not in server.engine.seen[-1].prompt.text
    assert await titles(page) == ["The first", "The second"]
    await shot(page, "conversations")
    await check_accessible(page)


async def test_an_answer_ends_where_another_conversation_is_opened(server: Running, page: Page) -> None:
    await converse(page, "Hi")
    await page.get_by_role("button", name="New conversation").click()
    await ask(page, "Never end")
    await expect(page.get_by_role("article", name="Model")).to_contain_text("on and on")
    await page.get_by_role("button", name="Hi", exact=True).click()
    await expect(page.get_by_role("heading", name="Hello")).to_be_visible()
    await expect(page.get_by_text("on and on")).to_have_count(0)
    await page.get_by_role("button", name="Never end", exact=True).click()
    await expect(page.get_by_role("article", name="Model")).to_contain_text("stopped")
    assert server.engine.load.running == 0


async def test_the_list_is_used_with_the_keyboard(page: Page) -> None:
    await converse(page, "One", "Two", "Three")
    await page.locator("summary", has_text="Conversations").focus()
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("button", name="Three", exact=True)).to_be_focused()
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("article", name="You")).to_contain_text("Two")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Tab")  # and not through the others
    await expect(page.get_by_role("button", name="Delete all")).to_be_focused()
    await page.get_by_role("button", name="Two", exact=True).focus()
    await page.keyboard.press("End")
    await expect(page.get_by_role("button", name="One", exact=True)).to_be_focused()
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("button", name="Delete One")).to_be_focused()
    await page.keyboard.press("Delete")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Delete “One”?")
    await check_accessible(page)
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    assert await titles(page) == ["Three", "Two", "One"]
    await expect(page.get_by_role("button", name="Delete One")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.locator(".history .open")).to_have_count(2)
    await expect(page.locator("summary", has_text="Conversations")).to_be_focused()


async def test_what_is_deleted_is_gone(page: Page) -> None:
    await converse(page, "One", "Two")
    await page.get_by_role("button", name="New conversation").click()
    await ask(page, "Never end")
    await expect(page.get_by_role("article", name="Model")).to_contain_text("on and on")
    await page.get_by_role("button", name="Delete One").dblclick()  # in haste: it only asks
    await page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert len(await titles(page)) == 3
    await page.get_by_role("button", name="Delete Never end").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("article")).to_have_count(0)  # it was open
    await page.wait_for_timeout(200)  # its answer has ended, and does not bring it back
    heads, turns = await page.evaluate(STORED)
    assert [each["title"] for each in heads] == [each["turns"][0]["text"] for each in turns]
    assert {each["title"] for each in heads} == {"One", "Two"}
    await page.get_by_role("button", name="Delete all").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.locator(".history .open")).to_have_count(0)
    assert await page.evaluate(STORED) == [[], []]


async def test_the_oldest_of_too_many_are_deleted(page: Page) -> None:
    await page.evaluate(FILL, MOST)
    await page.reload()
    await expect(page.locator(".history .open")).to_have_count(MOST)
    await converse(page, "The newest")
    heads, turns = await page.evaluate(STORED)
    assert len(heads) == len(turns) == MOST
    assert {"The newest", "Old 1"} <= {each["title"] for each in heads}
    assert "Old 0" not in {each["title"] for each in heads}
    assert (await titles(page))[0] == "The newest"


async def test_without_room_the_page_says_so_and_goes_on(page: Page) -> None:
    await page.evaluate(NO_ROOM)
    await ask(page, "Hi")
    await answered(page)
    await expect(page.get_by_role("alert")).to_contain_text("This conversation is not kept")
    await expect(page.get_by_role("alert")).to_contain_text("Delete others")
    await expect(page.get_by_role("heading", name="Hello")).to_be_visible()
    await check_accessible(page)


async def test_without_a_store_the_page_works(server: Running, browser: Browser) -> None:
    context = await browser.new_context()
    await context.add_init_script(
        "IDBFactory.prototype.open = () => { throw new Error('Forbidden here.'); };"
        "Storage.prototype.setItem = () => { throw new Error('Forbidden here.'); };"
    )
    async with checked(context) as page:
        await page.goto(server.url)
        await expect(page.get_by_role("alert")).to_contain_text("Forbidden here.")
        await page.get_by_role("radio", name="Responses").check()
        await page.get_by_role("button", name="Switch to dark colours").click()
        await ask(page, "Hi")
        await answered(page)
        await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    await context.close()


async def test_the_server_stores_nothing_unless_it_is_asked_to(browser: Browser) -> None:
    async with running(SCRIPT) as server:
        context = await browser.new_context(viewport={"width": 1400, "height": 900})
        async with checked(context) as page:
            sent: list[str] = []
            page.on("request", lambda request: sent.append(f"{request.method} {request.url}"))
            await page.goto(server.url)
            for api in ("Chat Completions", "Responses", "Messages"):
                await page.get_by_role("radio", name=api).check()
                await converse(page, f"A secret for {api}")
            await page.get_by_role("button", name="A secret for Responses", exact=True).click()
            await page.get_by_role("button", name="Delete A secret for Responses").click()
            await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
            posts = [each.removeprefix(f"POST {server.url}") for each in sent if not each.startswith("GET")]
            assert posts == ["/v1/chat/completions", "/v1/responses", "/v1/messages"]
        await context.close()
        async with httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http:
            for path in ("/v1/responses?background=false", "/v1/chat/completions", "/v1/files"):
                assert (await http.get(path)).json()["data"] == []


async def test_the_key_is_in_no_conversation(browser: Browser) -> None:
    async with running(SCRIPT, api_key=("a-key-of-the-tests",)) as server:
        context = await browser.new_context()
        async with checked(context, "401") as page:
            await page.goto(server.url)
            await page.get_by_label("Key", exact=True).fill("a-key-of-the-tests")
            await page.keyboard.press("Enter")
            await ask(page, "Hi")
            await answered(page)
            assert "a-key" not in json.dumps(await page.evaluate(STORED))
        await context.close()
