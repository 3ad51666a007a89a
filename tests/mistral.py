"""Mistral's tokenizers for tests: each version of them, small, made of those that come with mistral-common."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import mistral_common
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

DATA = Path(mistral_common.__path__[0], "data")

TEKKEN = ("v3", "v7", "v11", "v13", "v15")
"""The versions that are read from a tekken.json."""

SENTENCEPIECE = ("v3", "v7")
"""Those that SentencePiece has, too."""

VOCABULARY = 3000
"""Tokens besides the special ones."""

LATER = ("[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "[MODEL_SETTINGS]", "[/MODEL_SETTINGS]")
"""Special tokens that came after the file of this package."""


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads((DATA / "tekken_240911.json").read_text())
    return table


def write_tekken(folder: Path, version: str) -> Path:
    """Write the tekken.json of a version; its path."""
    table = {"config": {**_table()["config"]}, "vocab": _table()["vocab"][:VOCABULARY]}
    special = [dict(token) for token in Tekkenizer.DEPRECATED_SPECIAL_TOKENS]
    special += [{"token_str": text, "is_control": True} for text in LATER]
    table["special_tokens"] = [token | {"rank": rank} for rank, token in enumerate(special)]
    table["config"] |= {"version": version, "default_vocab_size": 1000 + VOCABULARY}
    if version == "v15":
        table["model_settings_builder"] = {
            "reasoning_effort": {"values": ["none", "high"], "default": "none"}
        }
    path = folder / "tekken.json"
    path.write_text(json.dumps(table))
    return path


def write_sentencepiece(folder: Path, version: str) -> Path:
    """Write the SentencePiece file of a version; its path."""
    [source] = DATA.glob(f"*.model.{version}")
    path = folder / f"tokenizer.model.{version}"
    path.write_bytes(source.read_bytes())
    return path


WRITERS = {
    **{f"tekken {version}": (write_tekken, version) for version in TEKKEN},
    **{f"sentencepiece {version}": (write_sentencepiece, version) for version in SENTENCEPIECE},
}
