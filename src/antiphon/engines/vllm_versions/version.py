"""Chooses the module of this package for the version of vLLM that is installed.

The engine uses vLLM's own interfaces, which may change with any version. `VllmVersion` has all that did: the
rest of the engine names no version. A module is found by its name, `v0_33`. To add a version of vLLM: see
docs/vllm-versions.md, which has what had to change so far.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol, cast

import structlog

from antiphon.core.errors import EngineError
from antiphon.engines import vllm_versions

log = structlog.get_logger()

_MODULE = re.compile(r"v(\d+)_(\d+)")


class VllmVersion(Protocol):
    """A version of vLLM."""

    def beam_length(self, prompt: int, written: int, *, ended: bool) -> int:
        """The number of tokens that the log probability of a beam is divided by.

        `written` tokens follow `prompt` tokens; with `ended` the last of them ends the answer.
        """
        ...

    def pair(self, processor: Any, query: str, document: str) -> Mapping[str, Any]:
        """The prompt of a query and a document, by vLLM's processor of such pairs."""
        ...

    def forget_media(self, renderer: Any, hashes: Iterable[str]) -> None:
        """Have vLLM's renderer send these media again: its core has dropped them from its cache."""
        ...


def known() -> Sequence[tuple[int, int]]:
    """The versions that have a module here, the oldest first."""
    matches = (_MODULE.fullmatch(module.name) for module in iter_modules(vllm_versions.__path__))
    return sorted((int(match[1]), int(match[2])) for match in matches if match)


def version_for(installed: str, *, untested: bool) -> VllmVersion:
    """The module for the installed version; with `untested`, for one that is not known, that of the nearest.

    Raises EngineError, with the remedies, for a version that is not known.
    """
    versions = known()
    match = re.match(r"(\d+)\.(\d+)", installed)
    version = (int(match[1]), int(match[2])) if match else None
    if version is None or version not in versions:
        named = " and ".join(f"{major}.{minor}" for major, minor in versions)
        if not untested:
            (_, first), (major, last) = versions[0], versions[-1]
            raise EngineError(
                f"vLLM {installed} is installed, and this Antiphon knows {named}. Install one of these: "
                f"pip install 'vllm>={major}.{first},<{major}.{last + 1}'. Or try this one: --vllm-untested. "
                "Or run `vllm serve`, and give Antiphon its URL."
            )
        log.warning("this version of vLLM was never tested", vllm=installed, tested=named)
        version = versions[0] if version is not None and version < versions[0] else versions[-1]
    major, minor = version
    return cast(VllmVersion, import_module(f"{vllm_versions.__name__}.v{major}_{minor}"))
