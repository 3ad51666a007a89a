"""The metadata of a GGUF file, read without loading the model.

Only the header is read, through a memory map: scalars and strings are kept, arrays (the vocabulary, mostly)
are skipped. The layout is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and
3, little-endian.
"""

import mmap
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from antiphon.core.errors import EngineError
from antiphon.engines.engine import Task
from antiphon.engines.models import parts

Value = int | float | bool | str

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_ALIGNMENT = 32
"""That of the data of tensors, unless the file says another."""
_UINT32, _UINT64 = _SCALARS[4], _SCALARS[10]


def read_metadata(path: Path) -> Mapping[str, Value]:
    """The key-value pairs of the file's header, without arrays.

    Raises EngineError if there is no such file, or if its header is not valid GGUF.
    """
    with _opened(path) as data:
        return _Header(data).pairs()


@contextmanager
def _opened(path: Path) -> Iterator[mmap.mmap]:
    """The bytes of a file. Raises EngineError if it cannot be read, or if the block cannot read them."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data
    except OSError as error:
        raise EngineError(
            f"The model file {path} cannot be read ({error.strerror}). "
            "Give the path of a GGUF file, or `hf:org/repo` to fetch one."
        ) from error
    except (ValueError, KeyError, IndexError, OverflowError, struct.error) as error:
        raise EngineError(
            f"{path} is not a complete GGUF file. Download it again, or give the path of another."
        ) from error


def check_whole(path: Path) -> None:
    """Raise EngineError if the file cannot be read, is no GGUF, or ends before its last tensor begins."""
    with _opened(path) as data:
        header = _Header(data)
        header.pairs()
        if header.tensors and header.last_tensor() >= len(data):
            raise ValueError("the file ends before its last tensor")


def names(facts: Mapping[str, Value], path: Path) -> tuple[str, ...]:
    """The names of a model: its titles, its file and its architecture, without duplicates."""
    titles = (facts.get(f"general.{key}") for key in ("name", "basename", "architecture"))
    return tuple(dict.fromkeys([*(str(title) for title in titles if title), path.stem]))


SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "penalty_last_n": "repeat_last_n",
    "penalty_repeat": "repetition_penalty",
    "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
}
"""Keys under `general.sampling.` → the fields of `Sampling`."""


def sampling_of(facts: Mapping[str, Value]) -> dict[str, float]:
    """The sampling that the makers of the model recommend."""
    values = {name: facts.get(f"general.sampling.{key}") for key, name in SAMPLING.items()}
    # They have 32 bits: 0.8 is 0.800000011920929.
    return {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in values.items()
        if isinstance(value, int | float)
    }


def parts_size(path: Path) -> int:
    """The size of a model's file, or of all its parts. Raises EngineError."""
    try:
        return sum((path.parent / part).stat().st_size for part in parts(path.name))
    except OSError as error:
        message = f"A part of the model {path} cannot be read ({error.strerror}): {error.filename}."
        raise EngineError(message) from error


class _Header:
    """A cursor over the header's bytes. `tensors` is the number of tensors, after `pairs`."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0
        self.tensors = 0

    def pairs(self) -> dict[str, Value]:
        if self._take(4) != _MAGIC:
            raise ValueError("no GGUF magic")
        version = self._scalar(_UINT32)
        if version not in (2, 3):
            raise ValueError(f"GGUF version {version}")
        self.tensors = int(self._scalar(_UINT64))
        pairs: dict[str, Value] = {}
        for _ in range(int(self._scalar(_UINT64))):
            key = self._string()
            kind = int(self._scalar(_UINT32))
            if kind == _ARRAY:
                self._skip_array()
            else:
                pairs[key] = self._string() if kind == _STRING else self._scalar(_SCALARS[kind])
        self._alignment = int(pairs.get("general.alignment", _ALIGNMENT)) or _ALIGNMENT
        return pairs

    def last_tensor(self) -> int:
        """Where the data of the last tensor begin; their descriptions follow the pairs."""
        last = 0
        for _ in range(self.tensors):
            self._string()
            dimensions = int(self._scalar(_UINT32))
            self._at += dimensions * _UINT64.size + _UINT32.size  # the sizes, and the type
            last = max(last, int(self._scalar(_UINT64)))
        return self._at + -self._at % self._alignment + last

    def _take(self, size: int) -> bytes:
        piece = self._data[self._at : self._at + size]
        if len(piece) != size:
            raise ValueError("the file ends inside its header")
        self._at += size
        return piece

    def _scalar(self, form: struct.Struct) -> int | float | bool:
        value: int | float | bool = form.unpack_from(self._data, self._at)[0]
        self._at += form.size
        return value

    def _string(self) -> str:
        return self._take(int(self._scalar(_UINT64))).decode("utf-8", "replace")

    def _skip_array(self) -> None:
        kind = int(self._scalar(_UINT32))
        count = int(self._scalar(_UINT64))
        if kind == _STRING:
            for _ in range(count):
                size = int(self._scalar(_UINT64))
                self._at += size
        elif kind == _ARRAY:
            for _ in range(count):
                self._skip_array()
        else:
            self._at += count * _SCALARS[kind].size


_POOLING = {1: "MEAN", 2: "CLS", 3: "LAST", 4: "RANK"}
"""The pooling types of files: how the vectors of the tokens of a text become one. Others make several."""


def task_of(facts: Mapping[str, Value]) -> tuple[Task, str | None]:
    """The task of a model according to its file, and its pooling type."""
    pooling = _POOLING.get(int(facts.get(f"{facts.get('general.architecture')}.pooling_type", 0)))
    return Task.GENERATE if pooling is None else Task.RANK if pooling == "RANK" else Task.EMBED, pooling
