"""Text of files, by their content; chunks of it, and their terms."""

import sys
from io import BytesIO
from itertools import pairwise
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.errors import RequestError
from antiphon.core.limits import LIMIT_EXCEEDED, Limits
from antiphon.run.bounded import BoundedPool
from antiphon.run.documents import (
    DOCX,
    HTML,
    PDF,
    TEXT,
    TOKEN_BYTES,
    UNSUPPORTED,
    Chunking,
    Document,
    cut,
    read_chunks,
    read_document,
    terms_of,
)
from tests.files import docx_of, pdf_of

PAGE = b"""\
<!-- made by hand --> <!DOCTYPE html><html><head><title>The  title</title><style>p {}</style></head>
<body><p>One <b>bold</b> word.<p>Another.<table><tr><td>a<td>b</table><script>no()</script></body></html>"""


async def read(content: bytes, **limits: int) -> Document:
    return await read_document(BoundedPool(Limits(**limits)), content, "file_id")


async def refusal(content: bytes, **limits: int) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await read(content, **limits)
    assert caught.value.param == "file_id"
    return caught.value


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", Document(TEXT, ("",))),
        (b"# Title\n\tx < 1\f", Document(TEXT, ("# Title\n\tx < 1\f",))),
        (b"\xef\xbb\xbf\xc3\xa9", Document(TEXT, ("\xe9",))),
        ("héllo".encode("utf-16"), Document(TEXT, ("h\xe9llo",))),
        (b"caf\xe9", Document(TEXT, ("caf\xe9",))),
        (b"import html\n", Document(TEXT, ("import html\n",))),
        (PAGE, Document(HTML, ("The title\nOne bold word.\nAnother.\na\nb",))),
        (pdf_of("first page", "second page"), Document(PDF, ("first page", "second page"))),
        (docx_of("A heading", "Text.", rows=[["a", "b"]]), Document(DOCX, ("A heading\nText.\na\tb",))),
    ],
    ids=["nothing", "markdown", "bom", "utf-16", "latin", "code", "html", "pdf", "docx"],
)
async def test_what_a_file_is_its_content_decides(content: bytes, expected: Document):
    assert await read(content) == expected


def _zip(**members: bytes) -> bytes:
    buffer = BytesIO()
    with ZipFile(buffer, "w", ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/"), content)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
        b"\x7fELF\x02\x01\x01\0",
        _zip(a=b"1"),
        b"PK\x03\x04 no archive",
        b"%PDF-1.7 and nothing else",
        pdf_of("x")[:300],
        _zip(**{"word__document.xml": b"<no"}),
    ],
    ids=["png", "elf", "zip", "no-zip", "no-pdf", "half-a-pdf", "no-docx"],
)
async def test_a_file_that_cannot_be_read(content: bytes):
    assert (await refusal(content)).code == UNSUPPORTED


async def test_a_file_that_takes_too_much():
    text = await refusal(b"a" * 100_000, work_result_bytes=10_000)
    assert (text.code, "work_result_bytes" in text.message) == (LIMIT_EXCEEDED, True)
    bomb = _zip(**{"word__document.xml": b"<w>" + b" " * 300_000_000 + b"</w>"})
    assert len(bomb) < 1_000_000
    assert (await refusal(bomb, work_bytes=250 * 1024 * 1024)).code in (LIMIT_EXCEEDED, UNSUPPORTED)


@pytest.mark.parametrize("missing", ["pypdf", "docx"])
def test_without_the_extra(missing: str, monkeypatch: pytest.MonkeyPatch):
    from antiphon.run import documents  # noqa: PLC0415

    monkeypatch.setitem(sys.modules, missing, None)
    content = pdf_of("x") if missing == "pypdf" else docx_of("x")
    with pytest.raises(RequestError, match="`files`"):
        documents.document_of(content)


# Chunks


@given(st.text(), st.integers(1, 20), st.integers(0, 10))
def test_chunks_have_all_of_the_text(text: str, size: int, overlap: int):
    chunking = Chunking(size, min(overlap, size // 2))
    chunks = list(cut(text, chunking))
    for chunk in chunks:
        assert len(chunk.encode(errors="surrogatepass")) <= size * TOKEN_BYTES
    joined = "".join(chunks)
    for word in text.split():
        for start in range(0, len(word), size):
            assert word[start : start + size] in joined


@given(st.integers(1, 200), st.integers(2, 30), st.data())
def test_neighbours_share_as_much_as_they_should(count: int, size: int, data: st.DataObject):
    """Words of a token each, so that chunks and overlaps are whole words."""
    overlap = data.draw(st.integers(0, size // 2))
    words = [f"{number:03}" for number in range(count)]
    chunks = [chunk.split() for chunk in cut(" ".join(words), Chunking(size, overlap))]
    assert [word for chunk in chunks[:1] for word in chunk] == words[:size]
    for one, other in pairwise(chunks):
        assert len(one) == size
        assert one[size - overlap :] == other[:overlap]
        assert other[overlap:][:1] == [words[words.index(one[-1]) + 1]]
    assert chunks[-1][-1] == words[-1]


async def test_chunks_are_read_with_their_terms():
    pool = BoundedPool()
    words = " ".join(f"word{number}" for number in range(1000))
    chunks = await read_chunks(pool, words.encode(), Chunking(100, 50))
    assert len(chunks) > 20
    assert all(chunk.terms == chunk.text for chunk in chunks)
    assert await read_chunks(pool, b" \n ", Chunking()) == []


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The Refunds, refunded!", ["the", "refund", "refund"]),
        ("Café MÜNCHEN straße", ["cafe", "munchen", "strass"]),
        ("snake_case x86-64 3.14", ["snake", "case", "x86", "64", "3", "14"]),
        ("東京都", ["東京", "京都"]),
        ("한국어 語", ["한국어", "語"]),
        ("हिन्दी", ["हिन्दी"]),
        ("abc東京xyz", ["abc", "東京", "xyz"]),
        ("", []),
        ("…!", []),
        ("x" * 100, ["x" * 64]),
    ],
)
def test_terms(text: str, terms: list[str]):
    assert terms_of(text) == terms


@given(st.text())
def test_terms_have_nothing_that_ends_a_term(text: str):
    for term in terms_of(text):
        assert term
        assert not set(term) & set(" _\"'\0")
