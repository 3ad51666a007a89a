"""Writes LoRA adapters for the bundled model, which make it say something else."""

import json
import struct
from pathlib import Path
from random import Random

_STRING, _FLOAT = 8, 6
_ALIGNMENT = 32
_INPUTS, _OUTPUTS, _RANK = 1536, 576, 2


def write_lora(path: Path, seed: int, layer: int = 29) -> Path:
    """An adapter of one matrix of a layer, the last of thirty, filled by chance.

    One of an earlier layer also changes what is kept of a prompt.
    """
    matrix = f"blk.{layer}.ffn_down.weight"
    rng = Random(seed)
    facts = {
        "general.architecture": "llama",
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": float(_RANK),
    }
    sizes = {f"{matrix}.lora_a": (_INPUTS, _RANK), f"{matrix}.lora_b": (_RANK, _OUTPUTS)}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(sizes), len(facts))
    for key, value in facts.items():
        head += _text(key)
        if isinstance(value, str):
            head += struct.pack("<I", _STRING) + _text(value)
        else:
            head += struct.pack("<If", _FLOAT, value)
    data = b""
    for name, (width, height) in sizes.items():
        head += _text(name) + struct.pack("<IQQIQ", 2, width, height, 0, len(data))
        data += _padded(struct.pack(f"<{width * height}f", *(rng.gauss(0, 1) for _ in range(width * height))))
    path.write_bytes(_padded(head) + data)
    return path


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)


def write_peft_adapter(folder: Path) -> None:
    """An adapter as vLLM takes it, for the bundled model: it changes what is written."""
    from safetensors.torch import save_file  # noqa: PLC0415 - only where vLLM is
    from torch import Generator, randn  # noqa: PLC0415

    chance = Generator().manual_seed(1)
    weights = {}
    for layer in range(30):
        place = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{place}.lora_A.weight"] = randn(8, 576, generator=chance)
        weights[f"{place}.lora_B.weight"] = randn(576, 8, generator=chance)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
