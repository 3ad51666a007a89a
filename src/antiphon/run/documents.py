"""Content of files → text, chunks of it, and the terms of their index.

The format of a file is recognised by its content, never by its name: a PDF, a Word document, an HTML page,
or plain text (including Markdown and source code). Reading one may take any time and memory, so it is done
in a bounded process; so are cutting and analysing its text.

    document = await read_document(pool, content, "file_id")     # parts of requests
    chunks = await read_chunks(pool, content, chunking)          # for vector stores

To add a kind of file whose text is read: its media type and its reader in `_READERS`; how it is recognised,
in `type_of`; `tests/run/test_documents.py`; the list in `docs/files.md`.
"""

import codecs
import logging
import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from io import BytesIO
from typing import cast
from zipfile import BadZipFile, ZipFile

from msgspec import Struct

from antiphon.core.errors import RequestError, missing_extra
from antiphon.run.bounded import BoundedPool, LargeBytes

PDF = "application/pdf"
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
HTML = "text/html"
TEXT = "text/plain"

UNSUPPORTED = "unsupported_file"
"""The code of errors for content that no text can be read from."""

TOKEN_BYTES = 4
"""Bytes of UTF-8 that count as a token: a chunk may be read by any model, so no tokenizer is used."""
TERM_CHARACTERS = 64

_BEGINNING = 1024
"""Bytes of a file that are searched for its format."""
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_HTML = re.compile(r"\s*+(?><!--.*?-->\s*+)*+<(?:!doctype html|html)\b", re.IGNORECASE | re.DOTALL)
_BLOCKS = tuple(
    """address article aside blockquote br dd div dl dt figcaption footer form h1 h2 h3 h4 h5 h6 header hr
    li main nav ol option p pre section table td th tr ul""".split()  # noqa: SIM905
)
_UNSHOWN = ("script", "style", "template", "noscript", "head")
_WORD = re.compile(r"\S+\s*")
_DIACRITICS = re.compile("[\u0300-\u036f\u0591-\u05c7\u064b-\u065f]")
_TERM = re.compile("(?:[^\\W_]|(?<=\\w)[\u0900-\u109f\u1780-\u17ff])+")
"""Letters and digits, with the vowel signs of scripts that write them as marks."""
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]+"
)
"""Letters of scripts that put no spaces between words: their terms are pairs of letters."""


class Document(Struct, frozen=True):
    """The text of a file: its media type, by its content, and the text of each page or of all."""

    media_type: str
    pages: tuple[str, ...]

    @property
    def text(self) -> str:
        """All pages."""
        return "\n\n".join(self.pages)


class Chunking(Struct, frozen=True):
    """How text is cut: the largest number of tokens of a chunk, and of those shared with the one before."""

    size: int = 800
    overlap: int = 400


class TextChunk(Struct, frozen=True):
    """A piece of text, and its terms, joined by spaces."""

    text: str
    terms: str


async def read_document(pool: BoundedPool, content: bytes | bytearray, param: str) -> Document:
    """The text of a file.

    Raises RequestError, which blames `param`: with the code `unsupported_file` if the format is not
    supported, with `limit_exceeded` if reading takes too much time or memory.
    """
    try:
        return await pool.run(param, document_of, _as_argument(content))
    except RequestError as error:
        error.param = param
        raise


async def read_chunks(pool: BoundedPool, content: bytes | bytearray, chunking: Chunking) -> list[TextChunk]:
    """The text of a file, cut. Raises RequestError as `read_document` does."""
    return await pool.run("file_id", _chunks, _as_argument(content), chunking)


def _as_argument(content: bytes | bytearray) -> bytes:
    """The content as an argument of the process."""
    return cast(bytes, LargeBytes(content))


# The functions below run in a bounded process


def document_of(content: bytes) -> Document:
    """The document in these bytes. Raises RequestError."""
    media_type = type_of(content)
    try:
        pages = tuple(_READERS[media_type](content))
    except ModuleNotFoundError as error:
        raise RequestError(missing_extra(f"Content of type {media_type}", "files")) from error
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # libraries raise anything for files that are damaged on purpose
        message = f"This file is damaged or encrypted: it begins like {media_type}, and cannot be read."
        raise RequestError(message, code=UNSUPPORTED) from error
    if not pages:
        raise RequestError("This file has no pages.", code=UNSUPPORTED)
    # A damaged font may map a character to half a surrogate pair.
    return Document(media_type, tuple(page.encode(errors="replace").decode() for page in pages))


def type_of(content: bytes) -> str:
    """The media type of a file, by its content. Raises RequestError if it has no text that can be read."""
    beginning = content[:_BEGINNING]
    if b"%PDF-" in beginning:  # PDF readers accept it anywhere in the first KiB
        return PDF
    if beginning.startswith(b"PK\x03\x04"):
        return _type_of_archive(content)
    text = _decoded(content)
    if _CONTROLS.search(text):
        raise _unsupported()
    return HTML if _HTML.match(text[:_BEGINNING]) else TEXT


def _type_of_archive(content: bytes) -> str:
    try:
        with ZipFile(BytesIO(content)) as archive:
            if "word/document.xml" in archive.namelist():
                return DOCX
    except BadZipFile as error:
        raise _unsupported() from error
    raise _unsupported()


def _unsupported() -> RequestError:
    message = "No text can be read from this file. Send plain text, Markdown, code, HTML, PDF or DOCX."
    return RequestError(message, code=UNSUPPORTED)


def _decoded(content: bytes) -> str:
    """Text in UTF-8, in UTF-16 with its mark, or else in windows-1252."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", errors="replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")


def _read_text(content: bytes) -> Iterator[str]:
    yield _decoded(content)


def _read_html(content: bytes) -> Iterator[str]:
    from lxml import html  # noqa: PLC0415 - an extra

    # As bytes: lxml refuses text that declares an encoding, as XHTML does.
    root = html.document_fromstring(_decoded(content).encode(), parser=html.HTMLParser(encoding="utf-8"))
    title = root.findtext(".//title") or ""
    for element in list(root.iter(*_UNSHOWN)):
        element.drop_tree()
    for element in root.iter(*_BLOCKS):  # otherwise `text_content` would join words of different blocks
        element.text = "\n" + (element.text or "")
        element.tail = "\n" + (element.tail or "")
    lines = (" ".join(line.split()) for line in (title, *str(root.text_content()).splitlines()))
    yield "\n".join(line for line in lines if line)


def _read_pdf(content: bytes) -> Iterator[str]:
    from pypdf import PdfReader  # noqa: PLC0415 - an extra

    logging.getLogger("pypdf").disabled = True  # it has a line for each fault of a damaged file
    for page in PdfReader(BytesIO(content)).pages:
        yield page.extract_text()


def _read_docx(content: bytes) -> Iterator[str]:
    from docx import Document as Docx  # noqa: PLC0415 - an extra
    from docx.table import Table  # noqa: PLC0415

    lines = []
    for block in Docx(BytesIO(content)).iter_inner_content():
        if isinstance(block, Table):
            lines += ["\t".join(cell.text for cell in row.cells) for row in block.rows]
        else:
            lines.append(block.text)
    yield "\n".join(lines)


_READERS: dict[str, Callable[[bytes], Iterator[str]]] = {
    TEXT: _read_text,
    HTML: _read_html,
    PDF: _read_pdf,
    DOCX: _read_docx,
}


def _chunks(content: bytes, chunking: Chunking) -> list[TextChunk]:
    text = document_of(content).text.replace("\0", "")  # PostgreSQL refuses texts with it
    return [TextChunk(piece, " ".join(terms_of(piece))) for piece in cut(text, chunking)]


def cut(text: str, chunking: Chunking) -> Iterator[str]:
    """Text in chunks that end between words; a word that is longer than a chunk is cut."""
    max_bytes, shared = chunking.size * TOKEN_BYTES, chunking.overlap * TOKEN_BYTES
    words = [piece for word in _WORD.findall(text) for piece in _pieces(word, max_bytes)]
    sizes = [len(word.encode()) for word in words]
    start = 0
    while start < len(words):
        end, size = start, 0
        while end < len(words) and size + sizes[end] <= max_bytes:
            size += sizes[end]
            end += 1
        yield "".join(words[start:end]).rstrip()
        if end == len(words):
            return
        back, overlap = end, 0
        while back - 1 > start and overlap + sizes[back - 1] <= shared:
            back -= 1
            overlap += sizes[back]
        start = back


def _pieces(word: str, max_bytes: int) -> Iterator[str]:
    """A word, split into pieces of at most this number of bytes."""
    step = max(1, max_bytes // TOKEN_BYTES)  # no character has more bytes than a token
    return (
        (word[start : start + step] for start in range(0, len(word), step))
        if len(word) > step
        else iter((word,))
    )


def terms_of(text: str) -> list[str]:
    """The search terms of a text: its words without case and diacritics, English ones as stems."""
    plain = _DIACRITICS.sub("", unicodedata.normalize("NFKD", text)).casefold()
    return [term for word in _TERM.findall(unicodedata.normalize("NFC", plain)) for term in _terms(word)]


def _terms(word: str) -> Iterator[str]:
    if word.isascii():
        yield _stem(word[:TERM_CHARACTERS])
        return
    end = 0
    for run in _UNSPACED.finditer(word):
        if run.start() > end:
            yield word[end : run.start()][:TERM_CHARACTERS]
        letters, end = run[0], run.end()
        yield from (letters[index : index + 2] for index in range(max(1, len(letters) - 1)))
    if end < len(word):
        yield word[end:][:TERM_CHARACTERS]


@lru_cache(100_000)
def _stem(word: str) -> str:
    stem: str = _stemmer()(word)
    return stem


@cache
def _stemmer() -> Callable[[str], str]:
    from snowballstemmer import stemmer  # noqa: PLC0415 - an extra

    stem_word: Callable[[str], str] = stemmer("english").stemWord
    return stem_word
