"""Bodies that are compressed."""

import gzip
import json
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from functools import reduce
from typing import Any

import brotli
import httpx2 as httpx
import pytest
import pytest_asyncio
from backports import zstd
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.core import encodings
from antiphon.core.encodings import MOST_FRAMES, PIECE, decoders
from antiphon.core.errors import ContentEncodingError, RequestError
from antiphon.core.limits import Limits
from tests.server import NO_TLS, Running, running

HELLO = {"model": "scripted", "messages": [{"role": "user", "content": "Hello!"}]}
LIMITS = Limits(body_bytes=100_000, file_bytes=200_000)


def raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


COMPRESS: dict[str, list[Callable[[bytes], bytes]]] = {
    "gzip": [gzip.compress],
    "x-gzip": [gzip.compress],
    "deflate": [zlib.compress, raw_deflate],
    "zstd": [zstd.compress],
    "br": [brotli.compress],
}
WAYS = [(name, compress) for name, ways in COMPRESS.items() for compress in ways]
SEVERAL = ["gzip", "zstd"]
"""Those whose bodies may have several frames."""


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Running]:
    async with running([{"output": "Hi"}], limit=LIMITS) as server:
        yield server


async def asked(server: Running, encoding: str, body: bytes, path: str = "/v1/chat/completions") -> Any:
    headers = {"content-encoding": encoding, "content-type": "application/json"}
    async with httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client:
        return await client.post(path, content=body, headers=headers)


def decoded(encoding: str, parts: list[bytes]) -> bytes:
    def through(parts: Iterator[bytes], decoder: Any) -> Iterator[bytes]:
        for part in parts:
            for piece in decoder.decode(part):
                assert len(piece) <= 2 * PIECE
                yield piece
        decoder.end()

    return b"".join(reduce(through, decoders([encoding.encode()]), iter(parts)))


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({min(cut, len(data)) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@example(("br", brotli.compress), b"x" * 150_000, [])
@given(
    st.sampled_from(WAYS),
    st.one_of(st.binary(min_size=1), st.integers(1, 300_000).map(lambda size: b"ab" * size)),
    st.lists(st.integers(0, 1000)),
)
def test_however_it_is_split_it_decodes_to_the_same(
    way: tuple[str, Callable[[bytes], bytes]], data: bytes, cuts: list[int]
) -> None:
    encoding, compress = way
    assert decoded(encoding, split(compress(data), cuts)) == data


@given(st.lists(st.sampled_from(WAYS), min_size=2, max_size=3), st.binary(min_size=1))
def test_encodings_are_taken_off_in_the_opposite_order(ways: list[Any], data: bytes) -> None:
    body = reduce(lambda data, way: way[1](data), ways, data)
    assert decoded(" , ".join(name.upper() for name, _ in ways), [body]) == data


@given(st.sampled_from(WAYS), st.binary(min_size=100), st.data())
def test_what_is_cut_or_changed_is_an_error_or_decodes(way: Any, data: bytes, draw: st.DataObject) -> None:
    encoding, compress = way
    body = compress(data)
    at = draw.draw(st.integers(1, len(body) - 1))
    with pytest.raises(RequestError, match=f"not valid {encoding}"):
        decoded(encoding, [body[:at]])
    changed = body[:at] + draw.draw(st.binary(min_size=1, max_size=9)) + body[at + 1 :]
    try:
        decoded(encoding, [changed])
    except RequestError as error:
        assert error.status == 400  # noqa: PT017 - it may also be valid


@pytest.mark.parametrize("encoding", SEVERAL)
def test_several_frames(encoding: str) -> None:
    [compress] = COMPRESS[encoding]
    assert decoded(encoding, [compress(b"a") + compress(b"b"), compress(b"c")]) == b"abc"
    with pytest.raises(RequestError):
        decoded(encoding, [compress(b"") * (MOST_FRAMES + 1)])


@pytest.mark.parametrize("encoding", ["deflate", "br"])
def test_only_one_frame(encoding: str) -> None:
    body = COMPRESS[encoding][0](b"a")
    with pytest.raises(RequestError):
        decoded(encoding, [body + b"no frame"])


def test_a_window_of_zstd_that_takes_much_memory() -> None:
    wide = {zstd.CompressionParameter.window_log: 27, zstd.CompressionParameter.content_size_flag: 0}
    compressor = zstd.ZstdCompressor(options=wide)
    body = compressor.compress(b"a" * 100) + compressor.flush()
    with pytest.raises(RequestError):
        decoded("zstd", [body])


@pytest.mark.parametrize("fields", [[b"compress"], [b"gzip, exi"], [b"gzip", b"lzma"], [b"gzip," * 4]])
def test_other_encodings(fields: list[bytes]) -> None:
    with pytest.raises(ContentEncodingError, match="Use gzip, deflate, zstd, br, or none"):
        decoders(fields)


@pytest.mark.parametrize(("encoding", "compress"), WAYS)
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/chat/completions", HELLO),
        ("/v1/completions", {"prompt": "Hello"}),
        ("/v1/responses", {"input": "Hello"}),
        ("/v1/messages", {**HELLO, "max_tokens": 9}),
        ("/tokenize", {"prompt": "Hello"}),
        ("/v1/conversations", {"metadata": {"a": "b"}}),
    ],
)
async def test_a_compressed_request_is_answered(
    server: Running, encoding: str, compress: Callable[[bytes], bytes], path: str, said: Any
) -> None:
    body = json.dumps(said | {"model": "scripted"}).encode()
    assert (await asked(server, encoding, compress(body), path)).status_code == 200


@pytest.mark.parametrize(("encoding", "compress"), WAYS)
async def test_a_file_in_a_compressed_form(
    server: Running, encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    async with httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client:
        form = client.build_request(
            "POST", "/v1/files", data={"purpose": "user_data"}, files={"file": ("a.txt", b"x" * 150_000)}
        )
        headers = {"content-type": form.headers["content-type"], "content-encoding": encoding}
        answer = await client.post("/v1/files", content=compress(form.read()), headers=headers)
        large = form.read().replace(b"x" * 1000, b"x" * 2000)
        refused = await client.post("/v1/files", content=compress(large), headers=headers)
    assert (answer.status_code, answer.json()["bytes"]) == (200, 150_000)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "limit_exceeded")


@pytest.mark.parametrize(("encoding", "compress"), WAYS)
async def test_a_bomb_is_refused_before_it_is_in_memory(
    server: Running, encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    body = compress(b" " * 16 * 1024 * 1024)
    assert len(body) < LIMITS.body_bytes
    tracemalloc.start()
    try:
        answer = await asked(server, encoding, body)
        assert tracemalloc.get_traced_memory()[1] < 4 * 1024 * 1024
    finally:
        tracemalloc.stop()
    assert answer.status_code == 413
    assert "the limit 'body_bytes'" in answer.json()["error"]["message"]


async def test_a_bomb_in_a_bomb(server: Running) -> None:
    body = gzip.compress(gzip.compress(b" " * 64 * 1024 * 1024))
    assert (await asked(server, "gzip, gzip", body)).status_code == 413


async def test_errors_of_encodings(server: Running) -> None:
    unknown = await asked(server, "compress", b"x")
    assert unknown.status_code == 415
    assert unknown.headers["accept-encoding"] == "gzip, deflate, zstd, br"
    corrupt = await asked(server, "gzip", b"no gzip")
    assert (corrupt.status_code, "Content-Encoding" in corrupt.json()["error"]["message"]) == (400, True)
    for encoding in ("identity", "", "gzip, identity"):
        body = json.dumps(HELLO).encode()
        sent = gzip.compress(body) if "gzip" in encoding else body
        assert (await asked(server, encoding, sent)).status_code == 200
    assert (await asked(server, "gzip", b"")).status_code == 400


async def test_without_the_extra(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encodings, "_library", lambda name: None if name in ("zstd", "br") else zlib)
    for name in ("zstd", "br"):
        answer = await asked(server, name, b"x")
        assert answer.status_code == 415
        assert answer.headers["accept-encoding"] == "gzip, deflate"
        assert "without the extra `encodings`" in answer.json()["error"]["message"]
    assert (await asked(server, "gzip", gzip.compress(json.dumps(HELLO).encode()))).status_code == 200
