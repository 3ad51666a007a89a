"""What a request may say of the container that its programs run in, as OpenAI's tools have it.

A sandbox lives as long as an answer and starts empty: containers with names,
files and a network cannot be had, so asking for them is an error.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from antiphon.tools.requested import read, wrong

MEMORY_LIMITS = ("1g", "4g", "16g", "64g")
"""What clients may ask for. It is a hint: sandboxes have a limit of their own."""

NO_NETWORK = "disabled"


class _Policy(Struct, frozen=True):
    type: str = NO_NETWORK


class _Container(Struct, frozen=True):
    file_ids: list[str] | None = None
    memory_limit: str | None = None
    network_policy: _Policy | None = None
    skills: list[Any] | None = None


def check_container(container: Mapping[str, Any], where: str) -> None:
    """Raise RequestError if the container described at `where` in a request is not the plain one."""
    given = read(container, _Container, where)
    if given.file_ids:
        raise wrong(
            f"{where}.file_ids", "There are no files here. Leave it out, and put texts into the input."
        )
    if given.memory_limit not in (None, *MEMORY_LIMITS):
        raise wrong(f"{where}.memory_limit", f"Use one of {', '.join(MEMORY_LIMITS)}.")
    if given.network_policy and given.network_policy.type != NO_NETWORK:
        raise wrong(f"{where}.network_policy", f"There is no network. Use {{'type': '{NO_NETWORK}'}}.")
    if given.skills:
        raise wrong(f"{where}.skills", "There are no skills here. Leave it out.")
