"""What bytes are, and images as engines read them; what is no image, or too large a one, is refused."""

from collections.abc import Callable
from io import BytesIO

import pytest
from PIL import Image as Pillow

from antiphon.core.errors import RequestError
from antiphon.core.items import MediaKind
from antiphon.core.limits import DEFAULTS, LIMIT_EXCEEDED, Limits
from antiphon.run.bounded import BoundedPool
from antiphon.run.media import Image, draw_page, format_of, frames_of, header_of, open_image
from tests.media import MP4, WAV, bomb, image, png, turned

PARAM = "messages[0].content[1]"
Reader = Callable[[bytes, bool, Limits, str], Image]


def opened(data: bytes, *, low: bool = False, limits: Limits = DEFAULTS, read: Reader = open_image) -> Image:
    return read(data, low, limits, PARAM)


def refused(
    data: bytes, *, low: bool = False, limits: Limits = DEFAULTS, read: Reader = open_image
) -> RequestError:
    with pytest.raises(RequestError) as error:
        opened(data, low=low, limits=limits, read=read)
    assert error.value.param == PARAM
    return error.value


def pixels(data: bytes) -> Pillow.Image:
    return Pillow.open(BytesIO(data)).convert("RGB")


PICTURE = Pillow.new("RGB", (5, 3), (10, 200, 30))


@pytest.mark.parametrize(
    ("data", "kind", "media_type"),
    [
        *(
            (image(name, PICTURE), MediaKind.IMAGE, f"image/{name.lower()}")
            for name in ("PNG", "JPEG", "GIF", "WEBP", "BMP")
        ),
        (WAV, MediaKind.AUDIO, "audio/wav"),
        (b"ID3\4", MediaKind.AUDIO, "audio/mpeg"),
        (b"\xff\xfb\x90", MediaKind.AUDIO, "audio/mpeg"),
        (b"\0\0\0\x18ftypM4A ", MediaKind.AUDIO, "audio/mp4"),
        (MP4, MediaKind.VIDEO, "video/mp4"),
        (b"%PDF-1.7", MediaKind.FILE, "application/pdf"),
        (b"<svg>", MediaKind.FILE, "application/octet-stream"),
        (b"", MediaKind.FILE, "application/octet-stream"),
    ],
)
def test_formats_are_told_by_content(data: bytes, kind: MediaKind, media_type: str) -> None:
    found = format_of(data)

    assert (found.kind, found.media_type) == (kind, media_type)


@pytest.mark.parametrize("data", [png(7, 4), image("JPEG", PICTURE)])
def test_what_engines_read_stays_as_it_came(data: bytes) -> None:
    assert opened(data).data is data


@pytest.mark.parametrize("read", [open_image, header_of])
@pytest.mark.parametrize("name", ["PNG", "JPEG", "GIF"])
def test_pixels_are_counted_with_and_without_decoding(name: str, read: Reader) -> None:
    found = opened(image(name, PICTURE), read=read)

    assert (found.width, found.height) == (5, 3)


@pytest.mark.parametrize("name", ["GIF", "WEBP", "BMP"])
def test_other_formats_are_written_once_more(name: str) -> None:
    found = opened(image(name, PICTURE))

    assert found.media_type == ("image/jpeg" if name == "WEBP" else "image/png")
    shown = pixels(found.data).getpixel((2, 1))
    assert all(abs(a - b) < 12 for a, b in zip(shown, (10, 200, 30), strict=True))


def test_an_image_is_turned_as_it_is_seen() -> None:
    found = opened(turned(64, 32))

    shown = pixels(found.data)
    assert (found.width, found.height) == shown.size == (32, 64)
    assert shown.getpixel((16, 8))[0] > 200  # the white half is above now
    assert shown.getpixel((16, 56))[0] < 50


def test_transparency_is_kept() -> None:
    found = opened(image("WEBP", Pillow.new("RGBA", (4, 4), (255, 0, 0, 0)), lossless=True))

    assert Pillow.open(BytesIO(found.data)).convert("RGBA").getpixel((0, 0))[3] == 0


@pytest.mark.parametrize("name", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_frames_are_left(name: str) -> None:
    data = moving(name, 10)
    first = opened(data)
    assert frames_of(first, DEFAULTS) == [0, 3, 6, 9]

    for frame in frames_of(first, DEFAULTS):
        found = open_image(data, False, DEFAULTS, PARAM, frame)
        assert abs(pixels(found.data).getpixel((4, 4))[0] - 20 * frame) < 12
        assert getattr(Pillow.open(BytesIO(found.data)), "n_frames", 1) == 1
        assert (found.frames, found.width) == (10, 8)


@pytest.mark.parametrize(
    ("limits", "frames"),
    [
        (Limits(image_frames=1), [0]),
        (Limits(image_frames=3), [0, 4, 9]),
        (Limits(image_frames=99), [*range(10)]),
        (Limits(image_pixels=3 * 64), [0, 1, 2]),
    ],
)
def test_so_many_frames_as_the_limits_say(limits: Limits, frames: list[int]) -> None:
    assert frames_of(opened(moving("GIF", 10), limits=limits), limits) == frames


def moving(name: str, count: int) -> bytes:
    """An animation that becomes more red from frame to frame."""
    frames = [Pillow.new("RGB", (8, 8), (20 * number, 0, 40)) for number in range(count)]
    return image(name, frames[0], save_all=True, append_images=frames[1:])


def test_pages_are_drawn() -> None:
    data = image("PDF", PICTURE, save_all=True, append_images=[Pillow.new("RGB", (20, 40), (0, 0, 255))])
    pages = [draw_page(data, number, PARAM) for number in (0, 1)]

    assert [(page.width, page.height) for page in pages] == [(1536, 922), (768, 1536)]
    assert pixels(pages[1].data).getpixel((300, 300))[2] > 240
    for broken, number in ((data[:200], 0), (data, 2)):
        with pytest.raises(RequestError, match=f"Page {number + 1}"):
            draw_page(broken, number, PARAM)


def test_little_detail_is_a_small_image() -> None:
    found = opened(png(1024, 256), low=True)

    assert (found.width, found.height) == pixels(found.data).size == (512, 128)


@pytest.mark.parametrize("read", [open_image, header_of])
def test_pixels_are_limited_before_any_is_decoded(read: Reader) -> None:
    error = refused(bomb(), read=read)

    assert error.code == LIMIT_EXCEEDED
    assert "60000 x 60000" in error.message
    assert "'image_pixels'" in error.message


@pytest.mark.parametrize("data", [png()[:40], image("JPEG", PICTURE)[:200], png(500, 500)[:600], b"GIF89a\1"])
def test_a_damaged_image_is_refused(data: bytes) -> None:
    assert refused(data)


@pytest.mark.parametrize(
    "data", [b"", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%!PS-Adobe-3.0 EPSF-3.0"]
)
def test_what_is_no_image_is_refused(data: bytes) -> None:
    assert "PNG" in refused(data).message


@pytest.mark.parametrize(
    ("data", "low"),
    [
        (image("WEBP", PICTURE), False),
        (b"GIF", False),
        (b"\xff\xd8\xff\xe0", False),
        (b"\x89PNG\r\n\x1a\n", False),
        (png(), True),
    ],
)
def test_without_pillow_what_a_header_does_not_tell_is_refused(data: bytes, low: bool) -> None:
    assert "`media`" in refused(data, low=low, read=header_of).message


def test_an_image_without_pixels_is_damaged() -> None:
    assert "damaged" in refused(bomb(0, 5), read=header_of).message


async def test_images_are_decoded_in_a_process_with_bounds() -> None:
    limits = Limits(work_bytes=512 * 1024 * 1024)
    pool = BoundedPool(limits)

    found = await pool.run(PARAM, open_image, png(9, 8), False, limits, PARAM)
    vast = image("PNG", Pillow.new("RGB", (7000, 7000)), compress_level=1)
    with pytest.raises(RequestError) as error:  # two of them take more than there is
        await pool.run(PARAM, open_image, vast, True, limits, PARAM)

    assert (found.width, found.height) == (9, 8)
    assert (error.value.code, error.value.param) == (LIMIT_EXCEEDED, PARAM)
