"""Markdown of models in a real Chromium: what is shown, what is refused, and that long texts take linear time."""

import re
from typing import Any

import pytest

from antiphon.engines.scripted import ScriptedEngine
from tests.page.chromium import (
    POLICY,
    Browser,
    Page,
    Route,
    answered,
    ask,
    browser,
    check_accessible,
    checked,
    expect,
    shot,
)
from tests.server import running

__all__ = ["browser"]  # a fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

RICH = """# Title

Text with **bold**, `code` and a [link](https://example.com "its title").

- [x] done
- [ ] to do

1. one

   ```js
   inner()
   ```
2. two

| a | b |
|---|--:|
| 1 | 2 |

> quoted

```python
print("hi")

print("<b>ho</b>")
```

The end."""
ATTACKS = {
    "script": "<script>owned()</script>",
    "script in markdown": "**a <script>owned()</script> b**",
    "handler": "<img src=x onerror=owned()> <b onclick=owned() onpointerenter=owned()>bold</b>",
    "svg": "<svg onload=owned()><script>owned()</script><a xlink:href=javascript:owned()>x</a></svg>",
    "math": "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=owned()&gt;'>",
    "frame": "<iframe srcdoc='<script>parent.owned()</script>'></iframe><iframe src=javascript:parent.owned()></iframe>",
    "object": "<object data=javascript:owned()></object><embed src=javascript:owned()>",
    "link": "[a](javascript:owned()) [b](JaVaScRiPt:owned()) [c](java&#x09;script:owned()) [d](data:text/html,<script>owned()</script>)",
    "reference": "[a][1]\n\n[1]: javascript:owned()",
    "autolink": "<javascript:owned()> <a href='vbscript:owned()'>a</a> <a href=//evil.test>b</a>",
    "form": "<form action=https://evil.test><input autofocus onfocus=owned()><button>Send</button></form>",
    "style": "<style>* { display: none }</style><p style='position:fixed;inset:0'>over all</p>",
    "meta": "<meta http-equiv=refresh content='0;url=https://evil.test'><base href=https://evil.test>",
    "clobber": "<img name=app><a id=app>a</a><b id=message class=skip>b</b>",
    "image": "![a](https://evil.test/?secret) <img src=//evil.test/a srcset=https://evil.test/b>",
    "media": "<video autoplay src=https://evil.test></video><audio src=https://evil.test></audio>",
    "template": "<template><script>owned()</script></template><noscript><script>owned()</script></noscript>",
    "code": "```html\n<script>owned()</script>\n```",
    "language": '```"><img src=x onerror=owned()>\ncode\n```',
    "table": "|a|\n|-|\n|<script>owned()</script><img src=x onerror=owned()>|",
    "open fence": "```\n<img src=x onerror=owned()>",
    "inline": "`<img src=x onerror=owned()>` $<script>owned()</script>$",
}
FORBIDDEN = (
    "script, style, svg, math, iframe, object, embed, form, input, meta, base, video, audio, template, link, "
    "[id], [name], [style], [srcset], img:not([src^='data:']), a:not([href^='http']):is([href])"
)
LONG = 30_000
"""Characters of a text that is hard on a parser."""
HARD = {
    "emphasis": "_a" * (LONG // 2),
    "lines of emphasis": "_a\n" * (LONG // 3),
    "paragraphs of emphasis": ("_a" * 9900 + "\n\n") * 16,
    "quotes": ">" * LONG,
    "lists": "- " * (LONG // 2),
    "brackets": "[" * LONG,
    "tags": "<a " * (LONG // 3),
    "elements": "<b>" * (LONG // 3),
    "one line": "a" * LONG,
    "words": "word " * (LONG // 5),
    "table": "| a | b |\n|---|---|\n" + "| c | d |\n" * (LONG // 10),
    "row": "| a |\n|---|\n" + "| c " * (LONG // 4),
    "paragraphs": "a\n\n" * (LONG // 3),
    "code": "```\n" + "a = 1\n" * (LONG // 6),
    "fences": "```\na\n```\n" * (LONG // 10),
    "ticks": "`a" * (LONG // 2),
}
SHOWN = {"tags": 0, "elements": 0, "row": 0}
"""How much of the text is shown at least, for those where it is not all: a row has as many cells as its table."""
SECONDS = 60
"""For one of them, on a machine that does other things: most take a tenth of a second."""
MOST_LARGE = 8
"""Of sixteen blocks that take the parser a quarter of a second each, or more: after a second it gets no other."""


def attributes(page: Page) -> Any:
    return page.locator(".markdown *").evaluate_all(
        "all => all.flatMap(each => [...each.attributes].map(({name}) => name))"
    )


async def test_markdown_is_shown_with_code_that_is_copied(browser: Browser) -> None:
    async with running([{"output": RICH}]) as server:
        context = await browser.new_context(permissions=["clipboard-read", "clipboard-write"])
        async with checked(context) as page:
            await page.goto(server.url)
            await ask(page, "Hi")
            await answered(page)
            answer = page.get_by_role("article", name="Model")
            await expect(answer.get_by_role("heading", name="Title", level=2)).to_be_visible()
            await expect(answer.get_by_role("listitem")).to_contain_text(["☑ done", "☐ to do", "one", "two"])
            await expect(answer.get_by_role("table").get_by_role("cell")).to_have_text(["1", "2"])
            link = answer.get_by_role("link", name="link")
            await expect(link).to_have_attribute("href", "https://example.com")
            await expect(link).to_have_attribute("rel", "noopener noreferrer")
            await expect(link).to_have_attribute("target", "_blank")
            await expect(answer.locator("blockquote")).to_have_text("quoted")
            blocks = answer.locator(".code-block")
            await expect(blocks.locator("code")).to_have_text(
                ["inner()", 'print("hi")\n\nprint("<b>ho</b>")'], use_inner_text=True
            )
            await expect(blocks.locator(".code-head span")).to_have_text(["", "python"])
            await blocks.last.get_by_role("button").click()
            await expect(blocks.last.get_by_role("button")).to_have_text("Copied")
            copied = await page.evaluate("navigator.clipboard.readText()")
            assert copied.rstrip("\n") == 'print("hi")\n\nprint("<b>ho</b>")'
            await answer.get_by_role("button", name="Copy", exact=True).click()
            assert await page.evaluate("navigator.clipboard.readText()") == RICH
            await shot(page, "markdown")
            await check_accessible(page)
        await context.close()


async def test_what_is_streamed_is_what_is_loaded(browser: Browser) -> None:
    """Whatever the deltas are, in the end the text is shown as if it had come at once."""
    async with running([{"output": RICH, "delay_ms": 3}]) as server:
        context = await browser.new_context()
        async with checked(context) as page:
            await page.goto(server.url)
            await ask(page, "Hi")
            await answered(page)
            markdown = page.locator(".markdown")
            streamed = await markdown.inner_text()
            await page.reload()
            await page.get_by_role("button", name="Hi", exact=True).click()
            await answered(page)
            assert await markdown.inner_text() == streamed
        await context.close()


async def without_policy(route: Route) -> None:
    """The page, as if its server had forgotten the policy."""
    response = await route.fetch()
    headers = {name: value for name, value in response.headers.items() if name != "content-security-policy"}
    await route.fulfill(response=response, headers=headers)


# At once, and piece by piece: each beginning is markup, too. The sanitizer has to do without the policy.
@pytest.mark.parametrize(("delay_ms", "policy"), [(0, True), (0, False), (2, False)])
async def test_nothing_of_it_acts_or_asks_anybody(browser: Browser, delay_ms: int, policy: bool) -> None:
    script = [{"when": f"<{name}>", "output": text, "delay_ms": delay_ms} for name, text in ATTACKS.items()]
    async with running(script) as server:
        context = await browser.new_context(viewport={"width": 1400, "height": 900})
        await context.add_init_script("window.acted = 0; window.owned = () => (window.acted += 1);")
        if not policy:
            await context.route(f"{server.url}/", without_policy)
        async with checked(context, *(POLICY if policy else ())) as page:
            requested: list[str] = []
            page.on("request", lambda request: requested.append(request.url))
            await page.goto(server.url)
            await expect(page.get_by_role("combobox", name="Model")).to_have_value("scripted")
            for name in ATTACKS:
                await page.get_by_role("button", name="New conversation").click()
                await ask(page, f"<{name}>")
                await answered(page)
                assert await page.locator(".markdown").locator(FORBIDDEN).count() == 0, name
                assert not [each for each in await attributes(page) if each.startswith("on")], name
            assert await page.evaluate("window.acted") == 0
            assert await page.title() == "Antiphon"
            assert [url for url in requested if not url.startswith(server.url)] == []
            await expect(page.get_by_role("textbox", name="Message", exact=True)).to_be_visible()
        await context.close()


PARSED = """async () => {
  const { marked } = await import("./page/vendor/marked.js");
  const { parse } = marked;
  window.parsed = { times: 0, characters: 0, frames: 0, large: 0 };
  const count = () => requestAnimationFrame(() => { parsed.frames += 1; count(); });
  count();
  marked.parse = (text) => {
    parsed.times += 1;
    parsed.characters += text.length;
    parsed.large += text.length > 8000;
    return parse(text);
  };
}"""
"""Counts what the parser gets, and the frames."""
STREAM = """async ([text, pieces]) => {
  const { html, render } = await import("./page/html.js");
  const { Markdown } = await import("./page/markdown.js");
  const root = document.body.appendChild(document.createElement("div"));
  window.parsed.characters = 0;
  for (let at = 1; at <= pieces; at++)
    render(html`<${Markdown} text=${text.slice(0, Math.ceil((at * text.length) / pieces))} running=${at < pieces} />`, root);
  const plain = root.querySelectorAll(".plain").length;
  root.remove();
  return [window.parsed.characters, plain];
}"""
"""Renders a text piece by piece, as the page does with each frame: how much the parser got, and what has stayed text."""


GROWING = {
    "A sentence of a paragraph.\n\n": 4,
    "```\na = 1\n```\n": 4,
    "- a\n- b\n\ntext\n\n": 4,
    "a" * 1000: 50,  # one line: parsed until it is too long
}
"""Texts that are repeated, and how often each character of them may be parsed."""


async def test_no_block_is_parsed_again_for_what_comes_after_it(browser: Browser) -> None:
    async with running([{"output": "Hi"}]) as server:
        context = await browser.new_context()
        async with checked(context) as page:
            await page.goto(server.url)
            await page.evaluate(PARSED)
            for unit, times in GROWING.items():
                text = unit * (24_000 // len(unit))
                characters, plain = await page.evaluate(STREAM, [text, 800])
                assert characters <= times * len(text), unit
                assert plain == ("\n" not in unit), unit
        await context.close()


async def test_an_answer_is_rendered_once_a_frame(browser: Browser) -> None:
    async with running([{"output": "word " * 1000, "delay_ms": 1}]) as server:
        context = await browser.new_context()
        async with checked(context) as page:
            await page.goto(server.url)
            await page.evaluate(PARSED)
            await ask(page, "Hi")
            await answered(page)
            parsed = await page.evaluate("window.parsed")
            assert parsed["times"] <= parsed["frames"] + 1
        await context.close()


async def test_what_is_hard_on_a_parser_keeps_the_page_alive(browser: Browser) -> None:
    script = [{"when": f"<{name}>", "output": text} for name, text in HARD.items()]
    async with running(ScriptedEngine(script, context=8 * LONG)) as server:
        context = await browser.new_context(viewport={"width": 375, "height": 667})
        async with checked(context) as page:
            await page.goto(server.url)
            await expect(page.get_by_role("combobox", name="Model", include_hidden=True)).to_have_value(
                "scripted"
            )
            await page.evaluate(PARSED)
            for name, hard in HARD.items():
                await page.get_by_role("button", name="New conversation").click()
                await page.evaluate("window.parsed.large = 0")
                await ask(page, f"<{name}>")
                facts = page.locator(".facts-line", has_text="stop")  # looking for a role would take longer
                await expect(facts).to_be_visible(timeout=SECONDS * 1000)
                assert await page.evaluate("window.parsed.large") <= MOST_LARGE, name
                text = await page.locator(".markdown").inner_text()
                letters = len(re.findall(r"\w", hard))
                assert len(re.findall(r"\w", text)) >= SHOWN.get(name, 1) * letters, name
                assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        await context.close()
