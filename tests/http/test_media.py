"""Images and other media in requests of all APIs: what the engine is given, and what is refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from io import BytesIO
from typing import Any

import httpx2 as httpx
import pytest
from msgspec.structs import replace
from PIL import Image
from pypdf import PdfWriter

from antiphon.app.attachments import AttachmentReader
from antiphon.core.accounts import ANYONE
from antiphon.core.items import MediaPart
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.engines.scripted import CAPABILITIES, ScriptedEngine
from antiphon.store.records import ResponseKind
from antiphon.tools.web.domains import Domains
from antiphon.tools.web.fetch import Downloader, Fetcher
from tests.files import pdf_of
from tests.http.api import Api, client
from tests.http.chat_api import ChatApi
from tests.http.messages_api import MessagesApi
from tests.media import MP4, WAV, bomb, data_url, encoded, image, png, turned, wav
from tests.server import NO_TLS, Running, running
from tests.tools.web.site import Site, elsewhere, loopback, page, web
from tests.tools.web.site import bomb as gzip_bomb

RED, WIDE, OTHER = png(3, 2), png(56, 28), png(5, 5)
"""One token, and two."""
LINES = [{"output": "I see."}]
BLIND = replace(CAPABILITIES, media=frozenset())


def text_only() -> ScriptedEngine:
    return ScriptedEngine(LINES, capabilities=BLIND)


class Apis:
    """Clients of one server, one for each API."""

    def __init__(self, server: Running, http: httpx.AsyncClient, responses: Api) -> None:
        self.server = server
        self.chat = ChatApi(http, server)
        self.messages = MessagesApi(http, server)
        self.responses = responses

    @property
    def prompt(self) -> Any:
        """The last prompt."""
        return self.server.engine.seen[-1].prompt

    @property
    def media(self) -> list[bytes]:
        """What the engine was given with it."""
        return [part.data for part in self.prompt.media]


@asynccontextmanager
async def apis(engine: Any = None, **options: Any) -> AsyncIterator[Apis]:
    async with (
        running(engine or LINES, **options) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url, timeout=20) as http,
        client(server) as responses,
    ):
        yield Apis(server, http, responses)


@pytest.fixture
async def seeing() -> AsyncIterator[Apis]:
    async with apis() as all_of_them:
        yield all_of_them


def in_chat(*parts: Any) -> Any:
    return [{"role": "user", "content": [_chat_part(part) for part in parts]}]


def _chat_part(part: Any) -> Any:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return part if isinstance(part, dict) else {"type": "image_url", "image_url": {"url": data_url(part)}}


def in_responses(*parts: Any) -> Any:
    return [{"role": "user", "content": [_response_part(part) for part in parts]}]


def _response_part(part: Any) -> Any:
    if isinstance(part, str):
        return {"type": "input_text", "text": part}
    return part if isinstance(part, dict) else {"type": "input_image", "image_url": data_url(part)}


def in_messages(*parts: Any) -> Any:
    return [{"role": "user", "content": [_block(part) for part in parts]}]


def _block(part: Any) -> Any:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    source = (
        {"type": "base64", "media_type": "image/png", "data": encoded(part)}
        if isinstance(part, bytes)
        else part
    )
    return {"type": "image", "source": source}


SHOWN = "<|im_start|>user\nFirst\n<image>\nthen\n<image><|im_end|>\n<|im_start|>assistant\n"


async def test_every_api_gives_the_engine_images_in_their_order(seeing: Apis) -> None:
    said = ("First", RED, "then", WIDE)
    for asking in (
        seeing.chat.choice(in_chat(*said)),
        seeing.responses.streamed(in_responses(*said)),
        seeing.messages.ask(in_messages(*said)),
    ):
        await asking
        assert seeing.prompt.text == SHOWN
        assert seeing.media == [RED, WIDE]
        assert seeing.prompt.around == (
            ("<|im_start|>user\nFirst\n",),
            ("\nthen\n",),
            (SHOWN.rpartition("<image>")[2],),
        )


async def test_tokens_of_media_are_counted(seeing: Apis) -> None:
    said = ("First", RED, "then", WIDE)
    whole = await seeing.chat.ask(in_chat(*said), n=2)
    text = len(seeing.prompt.ids)
    *_, last = await seeing.chat.stream(in_chat(*said), stream_options={"include_usage": True})
    response = await seeing.responses.create(in_responses(*said))
    message = await seeing.messages.ask(in_messages(*said))

    for usage in (whole["usage"], last["usage"]):
        assert usage["prompt_tokens"] == text + 3
        assert usage["prompt_tokens_details"] == {"cached_tokens": 0, "text_tokens": text, "image_tokens": 3}
    assert response["usage"]["input_tokens"] == message["usage"]["input_tokens"] == text + 3


async def test_text_alone_is_counted_as_before(seeing: Apis) -> None:
    assert (await seeing.chat.ask("Hi"))["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_the_turns_of_a_batch_have_their_own_images(seeing: Apis) -> None:
    body = {"model": "scripted", "messages": [in_chat("One", RED), in_chat(WIDE)]}

    answer = await seeing.chat.post("/v1/chat/completions/batch", body)

    assert [request.prompt.media[0].data for request in seeing.server.engine.seen] == [RED, WIDE]
    assert answer["usage"]["prompt_tokens_details"]["image_tokens"] == 3


async def test_sounds_and_films_are_given_by_content(seeing: Apis) -> None:
    sound = {"type": "input_audio", "input_audio": {"data": encoded(WAV), "format": "mp3"}}
    film = {"type": "video_url", "video_url": {"url": data_url(MP4, "video/mp4")}}
    other = {"type": "audio_url", "audio_url": data_url(WAV, "audio/wav")}

    await seeing.chat.ask(in_chat(sound, film, other))

    parts: tuple[MediaPart, ...] = seeing.prompt.media
    assert [(part.kind, part.media_type) for part in parts] == [
        ("audio", "audio/wav"),
        ("video", "video/mp4"),
        ("audio", "audio/wav"),
    ]
    assert parts[0].digest == parts[2].digest != parts[1].digest


async def test_a_file_is_what_it_holds(seeing: Apis) -> None:
    await seeing.responses.create(
        in_responses(
            {"type": "input_file", "file_data": encoded("Grüße".encode())},
            {"type": "input_file", "file_data": data_url(b"a,b", "text/csv"), "filename": "t.csv"},
            {"type": "input_file", "file_data": "data:,plain%20text"},
            {"type": "input_file", "file_data": encoded(RED), "filename": "red.txt"},
        )
    )

    assert seeing.prompt.text.startswith(
        "<|im_start|>user\nGrüße\nt.csv:\na,b\nplain text\n<image><|im_end|>"
    )
    assert seeing.media == [RED]


async def test_pages_without_text_are_shown_as_images(seeing: Apis) -> None:
    scan = image("PDF", Image.new("RGB", (60, 80), (0, 0, 255)))
    writer = PdfWriter()
    for data in (pdf_of("One.", "Two."), scan, pdf_of("Four.")):
        writer.append(BytesIO(data))
    out = BytesIO()
    writer.write(out)
    mixed = out.getvalue()

    for data in (mixed, scan):
        file = {"type": "input_file", "file_data": encoded(data), "filename": "a.pdf"}
        await seeing.responses.create(in_responses("Read", file))
        if data is mixed:
            assert "user\nRead\na.pdf:\nOne.\n\nTwo.\n<image>\nFour.<|im_end|>" in seeing.prompt.text
        else:
            assert "user\nRead\na.pdf:\n<image><|im_end|>" in seeing.prompt.text
        [shown] = seeing.media
        assert Image.open(BytesIO(shown)).size == (1152, 1536)

    file = {"type": "input_file", "file_data": encoded(mixed)}
    async with apis(text_only()) as plain:
        await plain.responses.create(in_responses(file))
        assert "Two.\n\n(This page has no text.)\n\nFour." in plain.prompt.text
        unread = {"type": "input_file", "file_data": encoded(pdf_of(""))}
        assert "its pages are images" in (await plain.responses.refused(in_responses(unread)))["message"]
    async with apis(limit=Limits(document_pages=1)) as few:
        two = image("PDF", Image.new("RGB", (6, 8)), save_all=True, append_images=[Image.new("RGB", (6, 8))])
        error = await few.responses.refused(in_responses({"type": "input_file", "file_data": encoded(two)}))
    assert (error["param"], error["code"]) == ("input[0].content[0]", "limit_exceeded")


async def test_an_animation_is_shown_as_frames(seeing: Apis) -> None:
    frames = [Image.new("RGB", (4, 4), (40 * number, 0, 0)) for number in range(6)]
    data = image("GIF", frames[0], save_all=True, append_images=frames[1:])
    await seeing.chat.ask(in_chat("Look", data, "So?"))

    assert seeing.prompt.text.startswith("<|im_start|>user\nLook\n" + "<image>\n" * 4 + "So?")
    shown = [Image.open(BytesIO(each)).convert("RGB").getpixel((1, 1)) for each in seeing.media]
    assert [colour[0] for colour in shown] == [0, 40, 120, 200]


async def test_documents_stand_in_their_tags(seeing: Apis) -> None:
    source = {"type": "base64", "media_type": "text/plain", "data": encoded(b"A b.")}
    document = {"type": "document", "title": "Of A", "source": source}

    await seeing.messages.ask([{"role": "user", "content": [document]}])

    assert "<document>\nOf A\nA b.\n</document>" in seeing.prompt.text


async def test_an_image_is_given_as_it_is_seen(seeing: Apis) -> None:
    await seeing.chat.ask(in_chat(turned(64, 32)))

    [part] = seeing.prompt.media
    assert (part.width, part.height) == (32, 64)


async def test_results_of_tools_have_images(seeing: Apis) -> None:
    image = {"type": "input_image", "image_url": data_url(RED)}
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": [image]}
    await seeing.responses.create([{"role": "user", "content": "Look"}, call, result])
    assert "<tool_response>\n<image>\n</tool_response>" in seeing.prompt.text
    assert seeing.media == [RED]

    use = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    returned = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [_block(WIDE)]}
    said = [("user", "Look"), ("assistant", [use]), ("user", [returned])]
    await seeing.messages.ask([{"role": role, "content": content} for role, content in said])
    assert seeing.media == [WIDE]


async def test_a_conversation_keeps_its_images(seeing: Apis) -> None:
    first = await seeing.responses.create(in_responses("Look", RED))
    await seeing.responses.create(in_responses("And", WIDE), previous_response_id=first["id"])

    assert seeing.media == [RED, WIDE]
    assert seeing.prompt.text.startswith(
        "<|im_start|>user\nLook\n<image><|im_end|>\n<|im_start|>assistant\nI see."
    )

    path = await seeing.responses.conversation(*in_responses("Look", WIDE))
    await seeing.responses.create("So?", conversation=path.rpartition("/")[2])
    assert seeing.media == [WIDE]


async def test_a_background_response_and_a_compaction_see_images(seeing: Apis) -> None:
    queued = await seeing.responses.create(in_responses("Look", RED), background=True)
    assert (await seeing.responses.finished(queued["id"]))["status"] == "completed"
    assert seeing.media == [RED]

    await seeing.responses.post(
        "/responses/compact", {"model": "scripted", "input": in_responses("Look", WIDE)}
    )
    assert seeing.media == [WIDE]


async def test_prompts_can_be_counted_and_looked_at(seeing: Apis) -> None:
    body = {"model": "scripted", "messages": in_chat("First", RED)}
    prompt = await seeing.chat.post("/v1/chat/completions/render", body)
    tokens = await seeing.chat.post("/tokenize", body)
    counted = await seeing.responses.post(
        "/responses/input_tokens", {"model": "scripted", "input": in_responses("First", RED)}
    )

    assert prompt["prompt"] == "<|im_start|>user\nFirst\n<image><|im_end|>\n<|im_start|>assistant\n"
    assert tokens["count"] == counted["input_tokens"] == len(prompt["token_ids"])


async def uploaded(seeing: Apis, data: bytes, name: str) -> str:
    response = await seeing.chat.http.post(
        "/v1/files", files={"file": (name, data)}, data={"purpose": "user_data"}
    )
    file_id: str = response.json()["id"]
    return file_id


async def test_stored_files_are_read_in_every_api(seeing: Apis) -> None:
    red, paper = (
        await uploaded(seeing, RED, "red.png"),
        await uploaded(seeing, pdf_of("Tides rise."), "sea.pdf"),
    )
    parts: list[Any] = [{"type": "file", "file": {"file_id": name}} for name in (red, paper)]
    await seeing.chat.ask(in_chat(*parts))
    assert "<image>\nsea.pdf:\nTides rise.<|im_end|>" in seeing.prompt.text
    assert seeing.media == [RED]

    await seeing.responses.create(
        in_responses({"type": "input_image", "file_id": red}, {"type": "input_file", "file_id": paper})
    )
    assert "<image>\nsea.pdf:\nTides rise.<|im_end|>" in seeing.prompt.text

    document = {"type": "document", "source": {"type": "file", "file_id": paper}, "title": "Sea"}
    blocks = [_block({"type": "file", "file_id": red}), document]
    await seeing.messages.ask([{"role": "user", "content": blocks}])
    assert "<image>\n<document>\nSea\nsea.pdf:\nTides rise.\n</document><|im_end|>" in seeing.prompt.text


async def test_a_stored_file_is_its_owners() -> None:
    async with apis(api_key=("mine", "yours")) as seeing:
        mine = {"authorization": "Bearer mine"}
        file = await seeing.chat.http.post(
            "/v1/files", files={"file": ("a", RED)}, data={"purpose": "vision"}, headers=mine
        )
        body = {
            "model": "scripted",
            "messages": in_chat({"type": "file", "file": {"file_id": file.json()["id"]}}),
        }

        seen = await seeing.chat.http.post("/v1/chat/completions", json=body, headers=mine)
        unseen = await seeing.chat.http.post(
            "/v1/chat/completions", json=body, headers={"authorization": "Bearer yours"}
        )

    assert seen.status_code == 200
    assert (unseen.status_code, unseen.json()["error"]["param"]) == (404, "messages[0].content[0]")


# From the web


@asynccontextmanager
async def fetching(
    *allowed: str, limits: Limits = DEFAULTS, **pages: Any
) -> AsyncIterator[tuple[Apis, Site]]:
    """A server that fetches from a web where this machine is public."""
    reader = AttachmentReader(limits, "error", Downloader(Domains(allowed), Fetcher(loopback)))
    async with web(**pages) as site, apis(attachments=reader, limit=limits) as seeing:
        yield seeing, site


def at(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


async def test_images_and_files_are_fetched() -> None:
    pages = {
        "red": page(RED, "text/plain"),
        "notes": page("Low tide.", "text/plain"),
        "moved": elsewhere("/red"),
    }
    async with fetching(**pages) as (seeing, site):
        await seeing.chat.ask(in_chat(at(f"{site.url}/moved")))
        assert seeing.media == [RED]
        notes = {"type": "input_file", "file_url": f"{site.url}/notes"}
        await seeing.responses.create(
            in_responses(notes, {"type": "input_image", "image_url": f"{site.url}/red"})
        )
        assert "Low tide.\n<image>" in seeing.prompt.text
        await seeing.messages.ask(in_messages({"type": "url", "url": f"{site.url}/red"}))
        assert seeing.media == [RED]


async def test_what_is_fetched_is_bounded() -> None:
    limits = Limits(attachment_bytes=10_000)
    pages = {
        "large": page(b"x" * 10_001, "image/png"),
        "bomb": gzip_bomb(10**7),
        "round": elsewhere("/round"),
    }
    async with fetching(limits=limits, **pages) as (seeing, site):
        for name, said in (
            ("large", "more than 10000,"),
            ("bomb", "more than 10000,"),
            ("round", "redirects"),
            ("none", "404"),
        ):
            error = await seeing.chat.refused(in_chat("Look", at(f"{site.url}/{name}")))
            assert (error["param"], said in error["message"]) == ("messages[0].content[1]", True)


async def test_what_takes_too_long_is_given_up() -> None:
    async with fetching(limits=Limits(attachment_seconds=1)) as (seeing, site):
        error = await seeing.responses.refused(
            in_responses({"type": "input_file", "file_url": f"{site.url}/hang"})
        )

    assert (error["param"], error["code"]) == ("input", "limit_exceeded")


async def test_only_domains_that_are_allowed_are_asked() -> None:
    async with fetching("pictures.example", red=page(RED, "image/png")) as (seeing, site):
        error = await seeing.chat.refused(in_chat(at(f"{site.url}/red")))
        assert [request.url.path for request in site.asked] == []

    assert "not among the domains" in error["message"]


INNER = [
    "http://127.0.0.1:80/",
    "http://169.254.169.254/latest/meta-data",
    "http://[::1]/",
    "http://10.0.0.1/x.png",
]


@pytest.mark.parametrize(
    "url", [*INNER, "http://localhost/", "http://0x7f000001/", "http://user:secret@example.com/"]
)
async def test_the_servers_own_network_is_not_asked(url: str) -> None:
    async with apis(attachments=AttachmentReader(downloader=Downloader(Domains()))) as seeing:
        error = await seeing.chat.refused(in_chat("Look", at(url)))

    assert error["param"] == "messages[0].content[1]"
    assert "not a public web server" in error["message"] or "password" in error["message"]
    assert error["message"].endswith("Or send a data URL.")


async def test_without_the_extra_nothing_is_fetched(seeing: Apis) -> None:
    error = await seeing.chat.refused(in_chat(at("https://example.com/a.png")))

    assert "data URL" in error["message"]


async def test_a_stored_completion_keeps_its_parts(seeing: Apis) -> None:
    said = in_chat("Look", RED)
    body = await seeing.chat.ask(said, store=True)

    listed = await seeing.chat.get(f"/v1/chat/completions/{body['id']}/messages")

    assert listed["data"][0]["content_parts"] == said[0]["content"]


# What is stored


async def kept(seeing: Apis, *contents: bytes) -> None:
    """Of the pictures of this page, exactly these are stored of this owner."""
    store = seeing.server.app.storage.store
    for data in (RED, WIDE, OTHER):
        found = await store.blobs.get(ANYONE.owner, sha256(data).hexdigest())
        assert (found is not None) == (data in contents)


async def test_media_are_stored_once_by_their_content_and_go_with_what_has_them(seeing: Apis) -> None:
    said = in_responses("Look", RED, RED)
    first = await seeing.responses.create(said)
    second = await seeing.responses.create(said, stream=False)
    third = await seeing.responses.create(in_responses("And", WIDE), background=True)
    await seeing.responses.finished(third["id"])
    await seeing.responses.create(in_responses("Not this", OTHER), store=False)
    await kept(seeing, RED, WIDE)
    record = await seeing.server.app.storage.store.responses.get(ANYONE.owner, first["id"])
    items = await seeing.server.app.storage.store.responses.history(ANYONE.owner, first["id"])
    assert encoded(RED) not in (record.request + b"".join(item.payload for item in items)).decode()

    listed = await seeing.responses.get(f"/responses/{first['id']}/input_items")
    assert [part["image_url"] for part in listed["data"][0]["content"][1:]] == [data_url(RED)] * 2

    for response, left in ((first, [RED, WIDE]), (third, [RED]), (second, [])):
        await seeing.responses.delete(f"/responses/{response['id']}")
        await kept(seeing, *left)


async def test_a_batch_of_messages_has_its_media_as_long_as_it_is_there(seeing: Apis) -> None:
    paper = {"type": "text", "media_type": "text/plain", "data": "QUJD"}  # text, though it could be base64
    said = [
        {"role": "user", "content": "Draw."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "draw", "input": {}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": [_block(RED)]},
                _block(WIDE),
                _block({"type": "base64", "media_type": "image/png", "data": "!"}) | {"cache_control": None},
                {"type": "document", "source": paper},
                {"type": "document", "source": {"type": "content", "content": [_block(RED)]}},
            ],
        },
    ]
    good = [
        *said[:2],
        {"role": "user", "content": [part for part in said[2]["content"] if "cache_control" not in part]},
    ]
    asked = {
        "model": "scripted",
        "max_tokens": 9,
        "tools": [{"name": "draw", "input_schema": {"type": "object"}}],
    }
    requests = [
        {"custom_id": name, "params": asked | {"messages": messages}}
        for name, messages in (("good", good), ("bad", said), ("odd", ["no", {"content": 1}]))
    ]
    batch = await seeing.messages.post("/v1/messages/batches", {"requests": requests})
    store = seeing.server.app.storage.store
    record = await store.responses.get(ANYONE.owner, batch["id"], ResponseKind.MESSAGE_BATCH)
    for data in (RED, WIDE):
        assert encoded(data) not in record.request.decode()
    await kept(seeing, RED, WIDE)

    results = await ended(seeing.messages, batch)
    assert (results["good"]["type"], results["bad"]["type"]) == ("succeeded", "errored")
    assert "base64" in results["bad"]["error"]["error"]["message"]
    assert seeing.media == [RED, WIDE, RED]
    assert "QUJD" in seeing.prompt.text
    deleted = await seeing.messages.http.delete(f"/v1/messages/batches/{batch['id']}")
    assert deleted.status_code == 200
    await kept(seeing)


async def ended(messages: MessagesApi, batch: Any) -> Any:
    """The results of a batch, once it has ended, by the ids of their requests."""
    path = f"/v1/messages/batches/{batch['id']}"
    async with asyncio.timeout(20):
        while (await messages.http.get(path)).json()["processing_status"] != "ended":
            await asyncio.sleep(0.02)
    lines = (await messages.http.get(f"{path}/results")).text.splitlines()
    return {line["custom_id"]: line["result"] for line in map(json.loads, lines)}


async def test_items_that_are_referred_to_bring_their_media(seeing: Apis) -> None:
    first = await seeing.responses.create(in_responses("Look", RED))
    item = (await seeing.responses.get(f"/responses/{first['id']}/input_items"))["data"][0]
    second = await seeing.responses.create([{"type": "item_reference", "id": item["id"]}])
    assert seeing.media == [RED]
    await seeing.responses.delete(f"/responses/{first['id']}")
    listed = await seeing.responses.get(f"/responses/{second['id']}/input_items")
    assert listed["data"] == [item]
    compacted = await seeing.responses.post(
        "/responses/compact", {"model": "scripted", "previous_response_id": second["id"]}
    )
    assert compacted["output"][0] == item
    await kept(seeing, RED)


async def test_a_conversation_has_its_media_as_long_as_it_is_there(seeing: Apis) -> None:
    path = await seeing.responses.conversation(*in_responses("Look", RED))
    name = path.rpartition("/")[2]
    answer = await seeing.responses.create(in_responses("And", WIDE), conversation=name)
    assert seeing.media == [RED, WIDE]
    added = await seeing.responses.post(f"{path}/items", {"items": in_responses("Once more", RED)})
    listed = await seeing.responses.get(f"{path}/items")
    assert listed["data"][0] == added["data"][0]
    assert added["data"][0]["content"][1]["image_url"] == data_url(RED)
    one = await seeing.responses.get(f"{path}/items/{listed['data'][2]['id']}")
    assert one["content"][1]["image_url"] == data_url(WIDE)

    await seeing.responses.delete(f"/responses/{answer['id']}")
    await kept(seeing, RED, WIDE)
    await seeing.responses.delete(f"{path}/items/{one['id']}")
    await kept(seeing, RED)
    await seeing.responses.delete(path)
    await kept(seeing)


async def test_a_url_is_fetched_once_for_a_conversation() -> None:
    pages = {"red": page(RED, "image/png"), "notes": page("Low tide.", "text/plain")}
    async with fetching(**pages) as (seeing, site):
        url, notes = f"{site.url}/red", f"{site.url}/notes"
        said = in_responses(
            {"type": "input_image", "image_url": url}, {"type": "input_file", "file_url": notes}
        )
        first = await seeing.responses.create(said, background=True)
        await seeing.responses.finished(first["id"])
        second = await seeing.responses.create("And now?", previous_response_id=first["id"])
        assert seeing.media == [RED]
        assert "Low tide." in seeing.prompt.text
        path = await seeing.responses.conversation(*said)
        await seeing.responses.create("So?", conversation=path.rpartition("/")[2])
        assert seeing.media == [RED]
        listed = await seeing.responses.get(f"/responses/{first['id']}/input_items")
        shown = (await seeing.responses.get(f"{path}/items", order="asc"))["data"][0]["content"]
        assert second["status"] == "completed"
        assert [request.url.path for request in site.asked] == [
            "/red",
            "/notes",
        ] * 2  # for the response, and for the conversation

    for content in (listed["data"][0]["content"], shown):
        assert [part.get("image_url") or part["file_url"] for part in content] == [url, notes]


async def test_media_count_for_what_an_owner_may_store() -> None:
    noise = image("PNG", Image.effect_noise((200, 200), 80))
    async with apis(limit=Limits(stored_bytes=10_000)) as seeing:
        await seeing.responses.create(in_responses("Look", RED))
        for post in (
            seeing.responses.refused(in_responses("And", noise)),
            seeing.chat.refused(in_chat("And", noise), store=True),
        ):
            assert (await post)["code"] == "limit_exceeded"
        await kept(seeing, RED)


async def test_media_of_others_are_not_there() -> None:
    async with apis(api_key=("mine", "theirs")) as seeing:
        seeing.responses.http.headers["authorization"] = "Bearer mine"
        await seeing.responses.create(in_responses("Look", RED))
        stolen = {"type": "input_image", "image_url": f"blob:{sha256(RED).hexdigest()}:data:,"}
        await seeing.responses.create(in_responses(stolen))
        seeing.responses.http.headers["authorization"] = "Bearer theirs"
        error = await seeing.responses.refused(in_responses(stolen), status=404)

    assert error["param"] == "input[0].content[0]"


async def test_a_long_list_of_media_comes_in_pages() -> None:
    async with apis(limit=Limits(page_bytes=300)) as seeing:
        said = [*in_responses("Look", RED), *in_responses("And", WIDE)]
        answer = await seeing.responses.create(said)
        path = f"/responses/{answer['id']}/input_items"
        first = await seeing.responses.get(path, order="asc")
        rest = await seeing.responses.get(path, order="asc", after=first["last_id"])

    assert [len(first["data"]), first["has_more"], len(rest["data"]), rest["has_more"]] == [1, True, 1, False]


async def test_what_no_model_was_shown_stays_as_it_came(seeing: Apis) -> None:
    """Screenshots and broken data among the items that only clients read."""
    shots = [
        {"type": "computer_screenshot", "image_url": url}
        for url in (data_url(RED), "data:image/png;base64,!")
    ]
    calls = [
        {"type": "computer_call_output", "call_id": f"c{index}", "output": shot}
        for index, shot in enumerate(shots)
    ]
    path = await seeing.responses.conversation(*calls)
    listed = await seeing.responses.get(f"{path}/items", order="asc")

    assert [item["output"] for item in listed["data"]] == shots
    await kept(seeing, RED)


# What is refused


async def test_bad_media_are_refused_by_the_place_of_their_part(seeing: Apis) -> None:
    bad: list[tuple[Any, str]] = [
        (bomb(), "'image_pixels'"),
        (png(500, 500)[:600], "damaged"),
        (b"no image", "readable image"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,%%%"}}, "base64"),
        ({"type": "image_url", "image_url": {"url": "data:image/png"}}, "comma"),
        ({"type": "input_audio", "input_audio": {"data": encoded(RED), "format": "wav"}}, "readable audio"),
        ({"type": "input_audio", "input_audio": {"data": encoded(WAV[:12]), "format": "wav"}}, "damaged"),
        (
            {"type": "input_audio", "input_audio": {"data": encoded(wav(0)), "format": "wav"}},
            "has no duration",
        ),
        ({"type": "audio_url", "audio_url": data_url(b"fLaC")}, "damaged"),
        ({"type": "audio_url", "audio_url": data_url(b"OggS")}, "damaged"),
        ({"type": "file", "file": {"file_data": encoded(b"\0\1\2")}}, "text"),
        ({"type": "file", "file": {"file_data": encoded(pdf_of())}}, "no pages"),
        ({"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/a.png"}}, "does not fetch"),
    ]
    for part, said in bad:
        error = await seeing.chat.refused(in_chat("Look", RED, part))
        assert error["param"] == "messages[0].content[2]"
        assert said in error["message"]
    assert (await seeing.responses.refused(in_responses("Look", bomb())))["param"] == "input[0].content[1]"
    empty = await seeing.messages.refused(in_messages("Look", b""))
    assert empty["message"].startswith("messages[0].content[1]: This is not a readable image file. Send a")
    assert (
        "messages[0].content[1]" in (await seeing.messages.refused(in_messages("Look", RED[:40])))["message"]
    )


async def test_attachments_have_limits() -> None:
    limits = Limits(attachments=2, attachment_bytes=2 * len(RED) - 1)
    async with apis(limit=limits) as few:
        many = await few.chat.refused(in_chat(*[RED] * 3))
        large = await few.chat.refused(in_chat(*[RED] * 2))

    assert (many["code"], many["param"]) == ("limit_exceeded", "messages")
    assert "'attachments'" in many["message"]
    assert (large["code"], large["param"]) == ("limit_exceeded", "messages[0].content[1]")
    assert "'attachment_bytes'" in large["message"]


async def test_a_prompt_with_media_is_not_cut(seeing: Apis) -> None:
    error = await seeing.chat.refused(in_chat("Look", RED), truncate_prompt_tokens=2)

    assert error["param"] == "truncate_prompt_tokens"


# Models that take text only


async def test_a_model_that_takes_text_only_refuses_by_name_or_is_shown_a_note() -> None:
    async with apis(text_only()) as plain:
        refused = await plain.chat.refused(in_chat("Look", RED))
        assert (refused["param"], refused["code"]) == ("messages[0].content[1]", "unsupported_media")
        assert "image" in refused["message"]
        file = {"type": "input_file", "file_data": encoded(RED)}
        assert (await plain.responses.refused(in_responses(file)))["param"] == "input[0].content[0]"
        assert "media_fallback" in (await plain.messages.refused(in_messages(RED)))["message"]

        for asking in (
            plain.chat.ask(in_chat("Look", RED), media_fallback="note"),
            plain.responses.create(in_responses("Look", RED), media_fallback="note"),
            plain.messages.ask(in_messages("Look", RED), media_fallback="note"),
        ):
            await asking
            assert "Look\n(An image, which this model cannot see.)<|im_end|>" in plain.prompt.text
            assert plain.media == []


async def test_what_the_operator_can_do_is_said() -> None:
    unable = replace(BLIND, media_remedy="Start it with --more.")
    async with apis(ScriptedEngine(LINES, capabilities=unable)) as plain:
        refused = await plain.chat.refused(in_chat("Look", RED))

    assert refused["message"].endswith("set 'media_fallback' to 'note'. Start it with --more.")


async def test_a_server_may_always_note_what_its_model_cannot_see() -> None:
    async with apis(text_only(), attachments=AttachmentReader(fallback="note")) as plain:
        await plain.chat.ask(in_chat("Look", b"not even an image"))
        assert "(An image, which this model cannot see.)" in plain.prompt.text

        error = await plain.chat.refused(in_chat("Look", RED), media_fallback="error")
        assert error["code"] == "unsupported_media"


async def test_what_a_tool_has_returned_never_ends_a_conversation() -> None:
    async with apis(text_only()) as plain:
        use = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
        returned = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [_block(RED)]}
        said = [("user", "Look"), ("assistant", [use]), ("user", [returned])]
        await plain.messages.ask([{"role": role, "content": content} for role, content in said])

        assert "(An image, which this model cannot see.)" in plain.prompt.text


async def test_completions_have_no_media(seeing: Apis) -> None:
    error = await seeing.chat.not_completed("Look", media_fallback="note")

    assert error["param"] == "media_fallback"
