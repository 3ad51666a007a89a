"""Images, audio and documents for tests, made in memory."""

import base64
import struct
import wave
import zlib
from io import BytesIO
from typing import Any

from PIL import Image


def png(width: int = 3, height: int = 2, colour: tuple[int, int, int] = (200, 40, 10)) -> bytes:
    """A PNG of one colour."""
    return image("PNG", Image.new("RGB", (width, height), colour))


def image(format_: str, picture: Image.Image, **options: Any) -> bytes:
    """A picture as a file of some format."""
    out = BytesIO()
    picture.save(out, format_, **options)
    return out.getvalue()


def turned(width: int, height: int) -> bytes:
    """A JPEG whose left half is white, which says that it is to be turned by a quarter, clockwise."""
    picture = Image.new("RGB", (width, height))
    picture.paste((255, 255, 255), (0, 0, width // 2, height))
    exif = Image.Exif()
    exif[0x0112] = 6
    return image("JPEG", picture, exif=exif, quality=95)


def bomb(width: int = 60_000, height: int = 60_000) -> bytes:
    """A small PNG of very many pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


def wav(samples: int = 80) -> bytes:
    """Silent audio at 8 kHz."""
    out = BytesIO()
    with wave.open(out, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(2 * samples))
    return out.getvalue()


WAV = wav()
MP4 = b"\0\0\0\x18ftypmp42" + bytes(16)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{encoded(data)}"
