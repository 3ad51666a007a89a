"""Imports vLLM, which takes seconds and may fail: nothing of it is imported before an engine is made."""

import importlib
import os
from typing import Any

from antiphon.core.errors import EngineError, install_extra
from antiphon.engines.vllm_versions.version import VllmVersion, version_for

_ENVIRONMENT = {
    # Otherwise its processes would be copies of this one, with its sockets and its threads.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Environment variables for vLLM, unless the operator has set them."""


def imported(name: str) -> Any:
    """A module of vLLM's. Raises EngineError if vLLM is not installed, or cannot be imported."""
    for variable, value in _ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise EngineError(install_extra("The engine vllm", "vllm")) from error
    except ImportError as error:
        raise EngineError(f"vLLM cannot be imported: {error}.") from error


def installed_version(*, untested: bool) -> VllmVersion:
    """The differences of the vLLM that is installed. Raises EngineError for an unknown one, or for none."""
    return version_for(imported("vllm").__version__, untested=untested)
