"""Options that name files: in a configuration file they are relative to its folder.

An option whose type is a `Path` names a file. One whose value may be a file or something else (a URL,
a name on a hub) says so in its type: `Annotated[str, Located(file_or_name)]`.

To add an option that names a file: a `Path`, or `Annotated[str, Located(…)]`, so that a configuration file
may name it from its folder; `tests/test_config.py`.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from msgspec import Struct

_NAME = re.compile(r"[A-Za-z0-9][\w-]*(?:/[\w.-]+(?<!\.gguf)(?<!\.jinja))?")
"""The pattern of a name, with or without ORG/; the name of a file has a suffix."""
_SQLITE = "sqlite:///"


class Located(Struct, frozen=True):
    """Marks an option. `place` makes a value that is relative to the folder of its file absolute."""

    place: Callable[[str, Path], str]


def file(value: str, folder: Path) -> str:
    """A file."""
    return str(folder / Path(value).expanduser())


def file_or_name(value: str, folder: Path) -> str:
    """A path, if the file exists or the value can be nothing else; a URL or a name stays as it is."""
    if "://" in value or value.startswith("hf:"):
        return value
    path = file(value, folder)
    return value if _NAME.fullmatch(value) and not Path(path).exists() else path


def toml_file(value: str, folder: Path) -> str:
    """A file with the suffix `.toml`; anything else is a name, and stays."""
    return "+".join(file(part, folder) if part.endswith(".toml") else part for part in value.split("+"))


def key_file(value: str, folder: Path) -> str:
    """`@FILE`; anything else is a key, and stays."""
    return "@" + file(value[1:], folder) if value.startswith("@") else value


def sqlite_file(value: str, folder: Path) -> str:
    """The file of `sqlite:///PATH`; another store stays."""
    path = value.removeprefix(_SQLITE)
    return value if path in {value, ":memory:"} else _SQLITE + file(path, folder)


def with_absolute_paths(data: Mapping[str, Any], options: type, folder: Path) -> dict[str, Any]:
    """The values of these options from a file in `folder`, with absolute paths.

    Keys may be written with `-`.
    """
    hints = get_type_hints(options, include_extras=True)
    return {key: _absolute(value, hints.get(key.replace("-", "_")), folder) for key, value in data.items()}


def _absolute(value: Any, hint: Any, folder: Path) -> Any:
    place = _absolute_path_of(hint)
    if place is None:
        return value
    if isinstance(value, list):
        return [place(item, folder) if isinstance(item, str) else item for item in value]
    return place(value, folder) if isinstance(value, str) else value


def _absolute_path_of(hint: Any) -> Callable[[str, Path], str] | None:
    """How a value of this type names a file, if it does."""
    if get_origin(hint) is Annotated:
        marks = [part for part in hint.__metadata__ if isinstance(part, Located)]
        return marks[0].place if marks else _absolute_path_of(hint.__origin__)
    return file if hint is Path or any(_absolute_path_of(part) is file for part in get_args(hint)) else None
