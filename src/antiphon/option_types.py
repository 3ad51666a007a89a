"""Types of options that every command may have, and the settings of the parser: quick to import.

The command line imports this for its help; `config.py`, and all that it needs, only for commands that serve.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from antiphon.core.located import Located, key_file

PARSING: dict[str, Any] = {
    "default_parameter": Parameter(negative=()),
    "result_action": "return_value",
    "exit_on_error": False,
    "print_error": False,
    "suppress_keyboard_interrupt": False,
}
"""Settings of the parser: `cli.main` prints errors, and sets the exit codes."""


def read_keys(_type: object, tokens: Sequence[Token]) -> tuple[str, ...]:
    """API keys from values that are each a key, or `@FILE` with one key per line.

    Raises ValueError, whose message never contains a key.
    """
    keys: list[str] = []
    for token in tokens:
        keys += _key_file(token.value[1:]) if token.value.startswith("@") else [_checked(token.value)]
    return tuple(keys)


def _checked(key: str, where: str = "") -> str:
    """The key, if it is one. Raises ValueError."""
    if not _is_key(key):
        raise ValueError(f"{where}a key must be printable ASCII without spaces, and not empty.")
    return key


def _is_key(text: str) -> bool:
    """Whether a client can send `text` after `Authorization: Bearer`."""
    return text.isascii() and text.isprintable() and text != "" and " " not in text


def _key_file(path: str) -> list[str]:
    """The keys in a file. One without any is refused: it would leave the server open."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the API keys in {path}: {why_of(error)}.") from error
    keys = [
        _checked(line.strip(), f"line {number} of {path}: ")
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not keys:
        raise ValueError(f"there are no API keys in {path}.")
    return keys


def is_url(model: str) -> bool:
    """The model is run by a server at this address."""
    return model.startswith(("http://", "https://"))


Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]
Keys = Annotated[tuple[str, ...], Parameter(converter=read_keys, show_default=False), Located(key_file)]


def why_of(error: Exception) -> str:
    """An error's reason, without its type and the path that it repeats."""
    return (isinstance(error, OSError) and error.strerror) or str(error)
