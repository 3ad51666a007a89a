"""Images that are pasted, dropped and chosen in a real Chromium: few, small, and only what the server reads."""

import base64
import io

import pytest
from PIL import Image

from tests.page.chromium import (
    NAMES,
    Page,
    answered,
    ask,
    browser,
    check_accessible,
    expect,
    page,
    server,
    shot,
)
from tests.server import Running

__all__ = ["browser", "page", "server"]  # fixtures

pytestmark = pytest.mark.asyncio(loop_scope="module")

GIVE = """([selector, type, files, text]) => {
  const given = new DataTransfer();
  for (const [name, kind, data] of files) {
    const content = Uint8Array.from(atob(data), (each) => each.charCodeAt(0));
    given.items.add(new File([content], name, { type: kind }));
  }
  if (text) given.setData("text/plain", text);
  const options = { bubbles: true, cancelable: true };
  const event = type === "paste"
    ? new ClipboardEvent(type, { ...options, clipboardData: given })
    : new DragEvent(type, { ...options, dataTransfer: given });
  document.querySelector(selector).dispatchEvent(event);
  return event.defaultPrevented;
}"""
"""What the browser does when a user pastes or drops files; returns if the page has taken it."""
NOISE_SIDE = 900
"""Pixels of a picture of noise, which is a PNG of more than 512 KiB."""


def png(width: int = 8, height: int = 8, colour: str = "red") -> bytes:
    with io.BytesIO() as into:
        Image.new("RGB", (width, height), colour).save(into, "PNG")
        return into.getvalue()


def noise() -> bytes:
    with io.BytesIO() as into:
        Image.effect_noise((NOISE_SIDE * 2, NOISE_SIDE), 90).convert("RGB").save(into, "PNG")
        return into.getvalue()


async def give(
    page: Page, kind: str, *files: tuple[str, str, bytes], to: str = "#message", text: str = ""
) -> bool:
    """Paste or drop files, each with its name, type and content."""
    named = [(name, type_, base64.b64encode(content).decode()) for name, type_, content in files]
    return bool(await page.evaluate(GIVE, [to, kind, named, text]))


@pytest.mark.parametrize("api", NAMES)
@pytest.mark.parametrize("kind", ["paste", "drop"])
async def test_images_are_pasted_and_dropped(server: Running, page: Page, api: str, kind: str) -> None:
    await page.get_by_role("radio", name=NAMES[api]).check()
    to = "#message" if kind == "paste" else ".turns"
    assert await give(
        page, kind, ("a.png", "image/png", png()), ("b.png", "image/png", png(colour="blue")), to=to
    )
    await expect(page.get_by_role("img", name="Image 2")).to_be_visible()
    await expect(page.locator(".composer [role=status]")).to_have_text("2 images are added.")
    await page.get_by_role("button", name="Remove image 1").click()
    await ask(page, "What is this?")
    await answered(page)
    (media,) = server.engine.seen[-1].prompt.media
    assert Image.open(io.BytesIO(media.data)).getpixel((0, 0)) == (0, 0, 255)
    await expect(page.get_by_role("article", name="You").get_by_role("img", name="Image 1")).to_be_visible()


async def test_an_image_is_enough_of_a_message_and_stays_in_its_conversation(page: Page) -> None:
    await give(page, "paste", ("a.png", "image/png", png()))
    await expect(page.get_by_role("img", name="Image 1")).to_be_visible()
    await shot(page, "image")
    await check_accessible(page)
    await page.get_by_role("button", name="Send").click()
    await answered(page)
    await page.reload()
    await page.get_by_role("button", name="Image", exact=True).click()
    assert await page.get_by_role("img", name="Image 1").evaluate("image => image.naturalWidth") == 8


async def test_a_large_image_is_reduced(server: Running, page: Page) -> None:
    content = noise()
    assert len(content) > 512 * 1024
    await give(page, "drop", ("noise.png", "image/png", content))
    await expect(page.get_by_role("img", name="Image 1")).to_be_visible()
    await ask(page, "What is this?")
    await answered(page)
    (media,) = server.engine.seen[-1].prompt.media
    assert Image.open(io.BytesIO(media.data)).size == (1536, 768)
    assert len(media.data) < len(content)


async def test_too_many_too_large_and_other_files_are_refused_with_the_reason(page: Page) -> None:
    said = page.locator(".composer [role=status]")
    await give(page, "drop", ("a.svg", "image/svg+xml", b"<svg/>"), ("b.txt", "text/plain", b"text"))
    await expect(said).to_have_text(
        "Not added: a.svg is not a PNG, JPEG, WebP, GIF or BMP image. b.txt is not a PNG, JPEG, WebP, GIF or BMP image."
    )
    await page.evaluate(
        """() => {
          const given = new DataTransfer();
          given.items.add(new File([new Uint8Array(21 * 1024 * 1024)], "large.png", { type: "image/png" }));
          document.querySelector("#message").dispatchEvent(new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: given }));
        }"""
    )
    await expect(said).to_have_text("Not added: large.png has 21 MiB; the most is 20 MiB.")
    await give(page, "drop", ("broken.png", "image/png", b"\x89PNG" + bytes(600 * 1024)))
    await expect(said).to_have_text("Not added: broken.png cannot be read.")
    await give(page, "drop", *[(f"{at}.png", "image/png", png()) for at in range(7)])
    await expect(page.locator(".images img")).to_have_count(5)
    await expect(said).to_contain_text(
        "5 images are added. Not added: 5.png is one too many; a message has at most 5"
    )
    await check_accessible(page)


async def test_a_text_with_a_picture_of_it_is_pasted_as_text(page: Page) -> None:
    assert not await give(page, "paste", ("a.png", "image/png", png()), text="a cell of a table")
    await expect(page.locator(".images")).to_have_count(0)


async def test_a_file_that_misses_the_conversation_does_not_replace_the_page(page: Page) -> None:
    for to in ("header", ".side", "body"):
        assert await give(page, "drop", ("a.png", "image/png", png()), to=to)
    await expect(page.locator(".images")).to_have_count(0)


async def test_dragged_files_mark_the_place(page: Page) -> None:
    await give(page, "dragover", ("a.png", "image/png", png()), to=".turns")
    await expect(page.locator(".conversation.dragged")).to_have_count(1)
    await give(page, "drop", ("a.png", "image/png", png()), to=".turns")
    await expect(page.locator(".conversation.dragged")).to_have_count(0)
