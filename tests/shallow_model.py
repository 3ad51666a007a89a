"""The bundled model with two of its layers, which says nonsense in a fifth of the time.

For tests of what surrounds a model: its tokens and its template are the same.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.engines.models import resolve

LAYERS = 2

_COUNT = b"llama.block_count"
_FIRST_TENSOR = b"token_embd.weight"
_ALIGNMENT = 32


@pytest.fixture(scope="session")
def shallow_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Its file."""
    whole = resolve(None)
    path = tmp_path_factory.mktemp("shallow") / whole.name
    path.write_bytes(_shallow(whole.read_bytes()))
    yield path
    path.unlink()  # pytest keeps folders for a while


def _shallow(data: bytes) -> bytes:
    """A GGUF file without its further layers; the layout is described where `engines/gguf.py` says."""
    begin = data.index(_FIRST_TENSOR) - 8  # where the length of its name is
    head = bytearray(data[:begin])
    entries, end = _entries(data, begin, struct.unpack_from("<Q", head, 8)[0])
    first = end + -end % _ALIGNMENT
    borders = [*(offset for _, _, offset in entries), len(data) - first]
    kept = [(entry, number) for number, (name, entry, _) in enumerate(entries) if _layer(name) < LAYERS]
    struct.pack_into("<Q", head, 8, len(kept))
    struct.pack_into("<I", head, head.index(_COUNT) + len(_COUNT) + 4, LAYERS)
    tensors = b""
    for entry, number in kept:
        head += entry + struct.pack("<Q", len(tensors))
        tensors += _padded(data[first + borders[number] : first + borders[number + 1]])
    return _padded(bytes(head)) + tensors


def _entries(data: bytes, at: int, number: int) -> tuple[list[tuple[str, bytes, int]], int]:
    """Each tensor: its name, its entry but for the offset, and the offset; and where the entries end."""
    entries = []
    for _ in range(number):
        name_end = at + 8 + struct.unpack_from("<Q", data, at)[0]
        end = name_end + 4 + 8 * struct.unpack_from("<I", data, name_end)[0] + 4
        entries.append(
            (data[at + 8 : name_end].decode(), data[at:end], struct.unpack_from("<Q", data, end)[0])
        )
        at = end + 8
    return entries, at


def _layer(tensor: str) -> int:
    """The number of its layer; 0 if it belongs to none."""
    return int(tensor.split(".")[1]) if tensor.startswith("blk.") else 0


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)
