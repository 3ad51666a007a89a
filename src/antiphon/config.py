"""The server's options: one frozen table, `Settings`, and the places that its values come from.

A field here is an option of `antiphon serve` (`--model-name`), a variable
(`ANTIPHON_MODEL_NAME`) and a key of the TOML file (`model_name`); its docstring
is the help text. The command line wins over the environment, that over the
file, that over the default. `SOURCES` holds that order for cyclopts.

A value that cannot be used is a `CycloptsError`, one line for people. What only
the running server can know (is there such a model?) is not checked here.
"""

import difflib
import os
import tomllib
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, ArgumentCollection, CycloptsError, Parameter, Token
from cyclopts.config import Dict, Env
from cyclopts.validators import Number


def read_keys(_type: object, tokens: Sequence[Token]) -> tuple[str, ...]:
    """API keys from values that are each a key, or `@FILE` with one key per line.

    Raises ValueError, whose message never holds a key.
    """
    keys: list[str] = []
    for token in tokens:
        keys += _key_file(token.value[1:]) if token.value.startswith("@") else [token.value]
    if not all(_is_key(key) for key in keys):
        raise ValueError("a key must be printable ASCII without spaces, and not empty.")
    return tuple(keys)


def _is_key(text: str) -> bool:
    """Whether a client can send `text` after `Authorization: Bearer`."""
    return text.isascii() and text.isprintable() and text != "" and " " not in text


def _key_file(path: str) -> list[str]:
    """The keys in a file. One without any is refused: it would leave the server open."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the API keys in {path}: {_why(error)}.") from error
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise ValueError(f"there are no API keys in {path}.")
    return keys


def is_date(_type: object, value: str | None) -> None:
    """Raise ValueError if it is none."""
    if value is not None:
        try:
            date.fromisoformat(value)
        except ValueError:
            raise ValueError("A date is written 2026-11-21.") from None


MAX_BODY_BYTES = 32 * 1024 * 1024
"""The default limit of a request body: room for long histories, not for floods."""

Keys = Annotated[tuple[str, ...], Parameter(converter=read_keys, show_default=False)]
Count = Annotated[int, Parameter(validator=Number(gte=1))]


@dataclass(frozen=True)
class Settings:
    """Every option of the server."""

    model: str | None = None
    """The model: a GGUF file, or hf:ORG/REPO[:FILE.gguf] from the Hugging Face hub
    (needs the extra `hub`). Without one, the small bundled model."""

    _: KW_ONLY

    host: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 for every interface."""

    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 8000
    """The port to listen on; 0 picks a free one."""

    model_name: Annotated[tuple[str, ...], Parameter(show_default=False)] = ()
    """A name that clients may use for the model; repeat it for aliases. The first
    is the one in answers. Without any, the model's own name."""

    engine: Literal["llama_cpp", "scripted"] = "llama_cpp"
    """What runs the model: llama_cpp, or scripted, which plays back a file."""

    script: Path | None = None
    """The file that the scripted engine plays back."""

    dialect: str | None = None
    """The format of the model's reasoning and tool calls. Without one, chosen from
    the chat template."""

    chat_template: Path | None = None
    """A Jinja chat template to use instead of the model's own."""

    date: Annotated[str | None, Parameter(validator=is_date)] = None
    """The date that prompts tell, 2026-11-21, where the model's format tells one. Without it,
    that of the start. It stays the same while the server runs, so that prompts stay cached."""

    context: Count | None = None
    """The most tokens that a prompt and its answer may have together. Without it,
    what the model was trained for, within the engine's default."""

    parallel: Count = 4
    """How many answers are generated at the same time; further requests wait."""

    threads: Count | None = None
    """How many threads compute. Without it, one for each core that the server may use."""

    api_key: Keys = field(default=(), repr=False)
    """A key that clients must send, or @FILE with one key per line; repeat it for
    several. In the variable, separate them with spaces. Without any, the server is open."""

    store: str = "sqlite"
    """Where responses, conversations and stored completions are kept: sqlite, a file in
    the user's data folder; sqlite:///PATH; postgresql://USER@HOST/DATABASE, for several
    servers; or memory."""

    keep_days: Annotated[float, Parameter(validator=Number(gt=0))] = 30
    """How many days stored responses and completions are kept."""

    jobs: Count = 16
    """How many background responses are worked on at the same time; further ones wait."""

    lease_seconds: Annotated[float, Parameter(validator=Number(gt=0))] = 15
    """Seconds after which other servers take over the background responses of one that is
    not heard of any more."""

    secret: Keys = field(default=(), repr=False)
    """A secret that seals what clients keep for the server, such as encrypted reasoning,
    or @FILE with one per line. The first seals; all open, so that they can be changed.
    Without any, one is made and kept in the user's data folder."""

    reasoning_field: Literal["both", "reasoning_content", "reasoning"] = "both"
    """The field of chat answers that holds what the model thought."""

    reasoning_events: Literal["openai", "open-responses"] = "openai"
    """The names of the events of the Responses API that tell what the model thought: OpenAI's,
    response.reasoning_text.…, or those of Open Responses, response.reasoning.…"""

    code_interpreter: bool = False
    """Run Python for models that ask for it, in a sandbox (needs the extra `code-interpreter`)."""

    web_search: str | None = None
    """The address of a SearXNG server, to search the web with for models that ask for it
    (needs the extra `web-search`): http://127.0.0.1:8888"""

    shell: str | None = None
    """The command that begins a shell in a sandbox, to run commands in for models that ask for
    it. {workspace} in it stands for a folder that is made for each answer."""

    trust_chat_templates: bool = False
    """Let requests bring chat templates of their own."""

    force_include_usage: bool = False
    """End every chat stream with its usage, asked for or not."""

    keep_alive: Annotated[float, Parameter(validator=Number(gt=0))] = 15
    """Seconds of silence after which a stream sends a comment."""

    max_body_bytes: Count = MAX_BODY_BYTES
    """The largest request body, in bytes."""

    config: Path | None = None
    """A TOML file with these options, each by its name: port = 8000."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """How much to log."""


def check(settings: Settings) -> None:
    """What no single value tells. Raises ValueError."""
    if settings.engine == "scripted" and settings.script is None:
        raise ValueError("--engine scripted needs --script FILE.")


class Environment(Env):
    """Fills in what the command line left open from `ANTIPHON_…` variables.

    One that is set but empty is refused: an `ANTIPHON_API_KEY` whose secret did
    not arrive must not leave the server open.
    """

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Read the variables; raises CycloptsError for an empty one."""
        for option in fields(Settings):
            name = self.prefix + option.name.upper()
            if not os.environ.get(name, "set").strip():
                raise CycloptsError(msg=f"{name} is set but empty. Unset it, or give it a value.")
        super().__call__(app, commands, arguments)


def from_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fill in what is still open from the TOML file that `config` names, if it does."""
    for path in [token.value for token in arguments["--config"].tokens]:
        source = Dict(_load(path), source=path, use_commands_as_keys=False)
        source(app, commands, arguments)


SOURCES = (Environment("ANTIPHON_", command=False), from_file)
"""Where options come from beside the command line, the stronger first."""


def _load(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            data = tomllib.load(file)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CycloptsError(msg=f"cannot read {path}: {_why(error)}.") from error
    known = {option.name for option in fields(Settings)} - {"config"}
    for key in data:
        if key.replace("-", "_") not in known:
            raise CycloptsError(msg=_unknown(key, known, path))
    return data


def _unknown(key: str, known: set[str], path: str) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f'unknown option "{key}" in {path}.{hint}'


def _why(error: Exception) -> str:
    """An error's reason, without its type and the path that it repeats."""
    return (isinstance(error, OSError) and error.strerror) or str(error)
