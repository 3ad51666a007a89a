"""Finds engines by name: an engine is a module that has a class `Options`, see `EngineOptions`.

Its name is that of the module: a file in this package without a prefix, a module of another package in full.
There is no list of engines.
"""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from pkgutil import iter_modules
from typing import cast

from antiphon import engines
from antiphon.core.modules import find_part
from antiphon.core.nearest import did_you_mean
from antiphon.engines.engine import EngineOptions


def names() -> Sequence[str]:
    """The engines of this package. Imports all of its modules: for help and for messages."""
    modules = [module.name for module in iter_modules(engines.__path__)]
    return [name for name in modules if _options(f"{engines.__name__}.{name}")]


def options_of(name: str) -> type[EngineOptions]:
    """The options of the engine with this name.

    Raises ValueError, with a message for people, if there is none.
    """
    options = _options(name)
    if options is None:
        choices = ", ".join(f'"{engine}"' for engine in names())
        hint = did_you_mean(name, names())
        raise ValueError(
            f'There is no engine "{name}".{hint} Choose {choices}, or the module of another one.'
        )
    return options


def owners_of(option: str) -> Sequence[str]:
    """The engines of this package that have an option, by its name in a configuration file. Imports all."""
    return [name for name in names() if option in getattr(options_of(name), "__dataclass_fields__", ())]


DEFAULT = "llama_cpp"
"""The engine for files, and for the small model."""
UPSTREAM = "upstream"
"""The engine for URLs."""
SAFETENSORS = "vllm"
"""The engine for folders and repositories with models that are no GGUF files."""

_DESCRIPTIONS = ("config.json", "params.json")
"""The files that describe a model whose weights are safetensors: Hugging Face's, and Mistral's."""

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def engine_for(model: str | None, options: Iterable[str] = ()) -> str:
    """The name of the engine that fits a model: a file, a folder, a name on the hub, or a URL.

    `options` are the names of those that are set: they tell for a folder that has no weights.
    """
    if model is None or model.startswith("hf:"):
        return DEFAULT
    if model.startswith(("http://", "https://")):
        return UPSTREAM
    path = Path(model).expanduser()
    if os.path.exists(path):  # does not raise if the folder is not readable: the engine reports that
        return _engine_for_folder(path, options) if path.is_dir() else DEFAULT
    return SAFETENSORS if _REPOSITORY.fullmatch(model) and not model.endswith(".gguf") else DEFAULT


def _engine_for_folder(folder: Path, options: Iterable[str]) -> str:
    """Weights may also be elsewhere, or be made up (`load_format=dummy`)."""
    if any(folder.glob("*.safetensors")):
        return SAFETENSORS
    if any(folder.glob("*.gguf")):
        return DEFAULT
    described = any((folder / name).is_file() for name in _DESCRIPTIONS)
    return SAFETENSORS if described or any(owners_of(name) == [SAFETENSORS] for name in options) else DEFAULT


def _options(name: str) -> type[EngineOptions] | None:
    try:
        return cast("type[EngineOptions] | None", find_part(engines.__name__, name, "Options"))
    except ImportError as error:
        raise ValueError(f"The engine {name} cannot be imported: {error}.") from error
