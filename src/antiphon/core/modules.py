"""Parts that are found by name: a module of one of our packages, or of another package by its full name."""

import importlib
from importlib.util import find_spec
from typing import Any


def find_part(package: str, name: str, part: str) -> Any | None:
    """What the module `name` of a package has as `part`, else what the module with this full name has.

    None if neither has it. Raises ImportError if the module cannot be imported.
    """
    for module in (f"{package}.{name}", name):
        if _exists(module) and (value := getattr(importlib.import_module(module), part, None)) is not None:
            return value
    return None


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a part of a dotted name is missing, or invalid
        return False
