"""A vision encoder of random weights for a small language model, as a GGUF file that llama.cpp loads.

It is of Gemma 3's kind: an image of any size becomes 64 by 64 pixels, 4 by 4 patches, and `TOKENS` tokens
between `BEFORE` and `AFTER`. The numbers mean nothing, but other pixels give other ones.
"""

from pathlib import Path

import gguf
import numpy as np

TOKENS = 4
BEFORE, AFTER = "<start_of_image>", "<end_of_image>"

_SIZE, _PATCH, _WIDTH, _INNER, _BLOCKS, _POOLED = 64, 16, 32, 64, 2, 2


def write(path: Path, width: int) -> Path:
    """Write the file, for a language model whose embeddings have this number of dimensions."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "gemma3")
    writer.add_bool("clip.use_gelu", True)
    numbers = {
        "image_size": _SIZE,
        "patch_size": _PATCH,
        "embedding_length": _WIDTH,
        "feed_forward_length": _INNER,
        "projection_dim": width,
        "block_count": _BLOCKS,
        "attention.head_count": 2,
        "projector.scale_factor": _POOLED,
    }
    for name, number in numbers.items():
        writer.add_uint32(f"clip.vision.{name}", number)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5] * 3)
    writer.add_array("clip.vision.image_std", [0.5] * 3)
    random = np.random.default_rng(1)
    for name, shape in _shapes(width).items():
        writer.add_tensor(name, (random.standard_normal(shape) * 0.1).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _shapes(width: int) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors."""
    shapes: dict[str, tuple[int, ...]] = {
        "v.patch_embd.weight": (_WIDTH, 3, _PATCH, _PATCH),
        "v.patch_embd.bias": (_WIDTH,),
        "v.position_embd.weight": ((_SIZE // _PATCH) ** 2, _WIDTH),
        "v.post_ln.weight": (_WIDTH,),
        "v.post_ln.bias": (_WIDTH,),
        "mm.input_projection.weight": (_WIDTH, width),
        "mm.soft_emb_norm.weight": (_WIDTH,),
    }
    for block in range(_BLOCKS):
        layers = {
            **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_out"), (_WIDTH, _WIDTH)),
            **dict.fromkeys(("ln1", "ln2"), (_WIDTH,)),
            "ffn_up": (_INNER, _WIDTH),
            "ffn_down": (_WIDTH, _INNER),
        }
        for name, shape in layers.items():
            shapes[f"v.blk.{block}.{name}.weight"] = shape
            shapes[f"v.blk.{block}.{name}.bias"] = shape[:1]
    return shapes
