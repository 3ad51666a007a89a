"""Parts that are found by name: a module of one of our packages, or of another package by its full name."""

import importlib
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def find_part(package: str, name: str, part: str) -> Any | None:
    """What the module `name` of a package has as `part`, else what the module with this full name has.

    None if neither has it. Raises ImportError if the module cannot be imported.
    """
    for path in (f"{package}.{name}", name):
        module = _imported(path)
        if module is not None and (value := getattr(module, part, None)) is not None:
            return value
    return None


def _imported(path: str) -> ModuleType | None:
    """The module of this full name; None if there is none. Raises ImportError."""
    if path.startswith("."):  # it would be looked up from here
        return None
    try:
        return importlib.import_module(path) if find_spec(path) is not None else None
    except ModuleNotFoundError as error:
        if error.name is not None and f"{path}.".startswith(f"{error.name}."):
            return None  # it, or a package that it is named in
        raise
    except ImportError:
        raise
    except ValueError:  # no name of a module, such as ""
        return None
    except Exception as error:  # of its own code, as a slip in its syntax
        raise ImportError(f"{type(error).__name__}: {error}") from error
