"""The kind and format of media, recognised by content, and images in a form that engines can read.

Names and claimed types are ignored. Images are opened in a bounded process (see `bounded`) and with Pillow,
if that is installed: their pixels are counted before any is decoded, damaged ones are refused, those with an
orientation are turned, and of animated ones some frames are taken. Without Pillow only the header is read,
and the engine gets the original bytes. Pages of a PDF are drawn by pypdfium2. Of audio, tinytag reads the
headers, in such a process: audio without headers or duration is refused. Video is not checked here.

To add media that an engine takes: the kinds in the `media` of its `Capabilities`; `Prompt.media` are what a
prompt has, `Prompt.around` the texts between them, and its first chunk has their `media_tokens`. Tests:
`tests/contracts/engine.py`; `tests/vision_encoder.py` makes a vision encoder for a small model.
"""

import asyncio
import struct
from collections.abc import Callable
from hashlib import sha256
from importlib.util import find_spec
from io import BytesIO
from typing import Any, TypeVar

from msgspec import Struct

from antiphon.core.errors import RequestError, missing_extra
from antiphon.core.items import MediaKind, MediaPart
from antiphon.core.limits import Limits
from antiphon.run.bounded import BoundedPool

T = TypeVar("T")

LARGE = 64 * 1024
"""Data of at least this number of bytes are decoded and hashed in a thread."""

LOW_PIXELS = 512
"""Pixels of the longer side of an image with low detail."""

PAGE_PIXELS = 1536
"""Pixels of the longer side of a page that is drawn: enough to read small print."""

NOTES = {
    MediaKind.IMAGE: "(An image, which this model cannot see.)",
    MediaKind.AUDIO: "(Audio, which this model cannot hear.)",
    MediaKind.VIDEO: "(A video, which this model cannot see.)",
}
"""The text for the model in place of media that it does not take."""
_JPEG_QUALITY = 95
_FORMATS = {
    "PNG": "image/png",
    "JPEG": "image/jpeg",
    "GIF": "image/gif",
    "WEBP": "image/webp",
    "BMP": "image/bmp",
}
_READ_BY_ENGINES = frozenset({"PNG", "JPEG"})
_ORIENTATION = 0x0112
_SILENT = "The audio is damaged, or has no duration. Send the complete file."
_KNOWN = "PNG, JPEG, GIF, WebP or BMP"
_SIZES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})  # markers of JPEG with a size


class Image(Struct, frozen=True):
    """An image as engines read it: in its final orientation. `frames` is the number of frames of its file."""

    data: bytes
    media_type: str
    width: int
    height: int
    frames: int = 1


class Format(Struct, frozen=True):
    """The kind and format of media."""

    kind: MediaKind
    media_type: str


def format_of(data: bytes) -> Format:
    """The format of these bytes, by their beginning; a file of any type if it is unknown."""
    for start, kind, media_type in _STARTS:
        if data.startswith(start):
            return Format(kind, media_type)
    inner = data[8:12]
    if data.startswith(b"RIFF") and inner in _RIFF:
        return _RIFF[inner]
    if data[4:8] == b"ftyp":
        audio = inner in (b"M4A ", b"M4B ")
        return Format(MediaKind.AUDIO, "audio/mp4") if audio else Format(MediaKind.VIDEO, "video/mp4")
    if len(data) > 1 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2:  # a frame of MPEG audio, layer 2 or 3
        return Format(MediaKind.AUDIO, "audio/mpeg")
    return Format(MediaKind.FILE, "application/octet-stream")


_IMAGE, _AUDIO, _VIDEO = MediaKind.IMAGE, MediaKind.AUDIO, MediaKind.VIDEO
_STARTS = (
    (b"\x89PNG\r\n\x1a\n", _IMAGE, "image/png"),
    (b"\xff\xd8\xff", _IMAGE, "image/jpeg"),
    (b"GIF87a", _IMAGE, "image/gif"),
    (b"GIF89a", _IMAGE, "image/gif"),
    (b"BM", _IMAGE, "image/bmp"),
    (b"ID3", _AUDIO, "audio/mpeg"),
    (b"fLaC", _AUDIO, "audio/flac"),
    (b"OggS", _AUDIO, "audio/ogg"),
    (b"\x1a\x45\xdf\xa3", _VIDEO, "video/webm"),
    (b"%PDF-", MediaKind.FILE, "application/pdf"),
)
_RIFF = {
    b"WEBP": Format(_IMAGE, "image/webp"),
    b"WAVE": Format(_AUDIO, "audio/wav"),
    b"AVI ": Format(_VIDEO, "video/x-msvideo"),
}


def has_pillow() -> bool:
    """Images can be decoded here."""
    return find_spec("PIL") is not None


def header_of(data: bytes, low: bool, limits: Limits, param: str) -> Image:
    """The image, after reading only its header. Raises RequestError if that is not sufficient."""
    media_type = format_of(data).media_type
    size = _SIZE_READERS.get(media_type, _no_size)(data)
    if size is None or low:
        what = "Images with a low detail" if low else "Images other than PNG, JPEG and GIF"
        raise RequestError(missing_extra(what, "media"), param=param)
    _check_pixels(size, limits, param)
    return Image(data, media_type, *size)


def _no_size(_: bytes) -> None:
    return None


def _png_size(data: bytes) -> tuple[int, int] | None:
    size: tuple[int, int] | None = struct.unpack(">II", data[16:24]) if len(data) >= 24 else None
    return size


def _gif_size(data: bytes) -> tuple[int, int] | None:
    size: tuple[int, int] | None = struct.unpack("<HH", data[6:10]) if len(data) >= 10 else None
    return size


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        if data[at + 1] in _SIZES:
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


_SIZE_READERS = {"image/png": _png_size, "image/gif": _gif_size, "image/jpeg": _jpeg_size}


def _check_pixels(size: tuple[int, int], limits: Limits, param: str) -> None:
    width, height = size
    if not width * height:
        raise _damaged(param)
    if width * height > limits.image_pixels:
        limits.refuse("image_pixels", param, f"The image has {width} x {height} pixels")


def frames_of(image: Image, limits: Limits) -> list[int]:
    """The numbers of the frames to use: evenly over all that may be decoded, including the first."""
    count = min(image.frames, limits.image_frames)
    return [number * (image.frames - 1) // max(1, count - 1) for number in range(count)]


def open_image(data: bytes, low: bool, limits: Limits, param: str, frame: int = 0) -> Image:
    """The image, or a frame of it, decoded. For a process of its own.

    Raises RequestError, which blames `param`.
    """
    import PIL.Image  # noqa: PLC0415 - an optional extra

    PIL.Image.MAX_IMAGE_PIXELS = None  # we count them ourselves
    try:
        with PIL.Image.open(BytesIO(data), formats=[*_FORMATS]) as image:
            _check_pixels(image.size, limits, param)
            frames = min(getattr(image, "n_frames", 1), limits.image_pixels // (image.width * image.height))
            image.seek(frame)
            image.load()
            return _normalised(data, image, frames, low=low)
    except PIL.UnidentifiedImageError as error:
        message = f"This is not a readable image file. Send it as {_KNOWN}."
        raise RequestError(message, param=param) from error
    except (OSError, SyntaxError, ValueError, EOFError, struct.error) as error:  # Pillow raises any of them
        raise _damaged(param) from error


def check_audio(data: bytes, param: str) -> None:
    """Check by the headers whether audio can be played. For a bounded process.

    Raises RequestError, which blames `param`.
    """
    import tinytag  # noqa: PLC0415 - an optional extra

    try:
        seconds = tinytag.TinyTag.get(file_obj=BytesIO(data), tags=False).duration
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # libraries raise anything for files that are damaged on purpose
        raise RequestError(_SILENT, param=param) from error
    if not seconds:
        raise RequestError(_SILENT, param=param)


async def read_media(
    pool: BoundedPool, data: bytes, limits: Limits, param: str, *, low: bool = False
) -> list[MediaPart]:
    """The media in these bytes, as parts: several for an animation.

    Raises RequestError, which names `param`.
    """
    media_format = format_of(data)
    if media_format.kind is MediaKind.AUDIO and find_spec("tinytag") is not None:
        await pool.run(param, check_audio, data, param)
    if media_format.kind is not MediaKind.IMAGE:
        return [
            MediaPart(media_format.kind, await digest_of(data), media_format.media_type, data, param=param)
        ]
    if not has_pillow():
        return [await part_of(header_of(data, low, limits, param), param)]
    first = await pool.run(param, open_image, data, low, limits, param)
    parts = [await part_of(first, param)]
    for frame in frames_of(first, limits)[1:]:
        image = await pool.run(param, open_image, data, low, limits, param, frame)
        parts.append(await part_of(image, param))
    return parts


async def part_of(image: Image, param: str) -> MediaPart:
    """An image as a part."""
    digest = await digest_of(image.data)
    return MediaPart(MediaKind.IMAGE, digest, image.media_type, image.data, image.width, image.height, param)


async def digest_of(data: bytes) -> str:
    """The SHA-256 of data."""
    return (await in_thread_if_large(len(data), sha256, data)).hexdigest()


async def in_thread_if_large(size: int, work: Callable[[Any], T], argument: Any) -> T:
    """Do work on data of this size; large data are processed in a thread."""
    return work(argument) if size < LARGE else await asyncio.to_thread(work, argument)


def _damaged(param: str) -> RequestError:
    return RequestError("The image is damaged. Send the complete file.", param=param)


def _normalised(data: bytes, image: Any, frames: int, *, low: bool) -> Image:
    """The unchanged bytes, if engines read them correctly; else the decoded image, encoded again."""
    from PIL import ImageOps  # noqa: PLC0415 - an optional extra

    upright = image.getexif().get(_ORIENTATION, 1) == 1
    small = not low or max(image.size) <= LOW_PIXELS
    if image.format in _READ_BY_ENGINES and upright and small and frames == 1:
        return Image(data, _FORMATS[image.format], *image.size)
    lossy = image.format in ("JPEG", "WEBP") and not image.has_transparency_data
    picture = ImageOps.exif_transpose(image).convert("RGBA" if image.has_transparency_data else "RGB")
    if low:
        picture.thumbnail((LOW_PIXELS, LOW_PIXELS))
    return _encoded(picture, frames, lossy=lossy)


def _encoded(image: Any, frames: int = 1, *, lossy: bool) -> Image:
    out = BytesIO()
    image.save(out, "JPEG" if lossy else "PNG", **({"quality": _JPEG_QUALITY} if lossy else {}))
    width, height = image.size
    return Image(out.getvalue(), _FORMATS["JPEG" if lossy else "PNG"], width, height, frames)


def draws_pages() -> bool:
    """Pages of a PDF can be shown as images here."""
    return has_pillow() and find_spec("pypdfium2") is not None


def draw_page(data: bytes, number: int, param: str) -> Image:
    """A page of a PDF as an image. For a process of its own. Raises RequestError, which blames `param`."""
    import pypdfium2  # noqa: PLC0415 - an optional extra

    try:
        document = pypdfium2.PdfDocument(data)
        try:
            page = document[number]
            page_pixels = max(*page.get_size(), 1)
            drawn = page.render(scale=PAGE_PIXELS / page_pixels)
            return _encoded(drawn.to_pil().convert("RGB"), lossy=True)
        finally:
            document.close()
    except (pypdfium2.PdfiumError, ValueError, IndexError) as error:
        message = f"Page {number + 1} of this file cannot be shown as an image: it is damaged or encrypted."
        raise RequestError(message, param=param) from error
