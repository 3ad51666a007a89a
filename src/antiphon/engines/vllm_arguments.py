"""Reads vLLM's engine arguments, which operators write as KEY=VALUE, with vLLM's own parser.

So all of them can be given, in any version of vLLM, but those that have no meaning here: `NOT_TAKEN`.
"""

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from antiphon.core.errors import EngineError
from antiphon.engines.vllm_imports import imported

NOT_TAKEN: Mapping[str, str] = {
    "model": "the model is the argument of `antiphon serve`",
    "enable_log_requests": "Antiphon logs requests",
    "disable_log_stats": "vLLM logs these figures in a part that Antiphon does not use",
    "stream_interval": "a stream sends text as soon as it is generated",
    "skip_tokenizer_init": "the tokenizer is needed",
}
"""Engine arguments of vLLM's that have no meaning here, and why."""

READ_TAGS = ("auto", "xgrammar")
"""The backends of vLLM's structured output that read structural tags of all kinds."""


def engine_args(model: str, assignments: Sequence[str], options: Mapping[str, int | None]) -> Any:
    """The `AsyncEngineArgs` for a model, of arguments that are written KEY=VALUE, and of our own `options`.

    Raises EngineError, with the remedy, for an argument that vLLM does not have or cannot read.
    """
    arguments = imported("vllm.engine.arg_utils").AsyncEngineArgs
    parser = _parser(arguments)
    actions = {action.dest: action for action in parser._actions}
    words = [f"--model={model}", "--disable-log-stats"]
    for assignment in assignments:
        key, _, value = assignment.partition("=")
        key = key.removeprefix("--").replace("-", "_")
        _check_key(key, actions)
        if options.get(key) is not None:
            raise EngineError(f"'{key}' is given by an option of Antiphon and by --vllm. Give one of them.")
        words += _words(actions[key], value)
    words += [f"--{key.replace('_', '-')}={number}" for key, number in options.items() if number is not None]
    try:
        args = arguments.from_cli_args(parser.parse_args(words))
    except (ValueError, OSError) as error:  # it looks for the model on the hub
        raise unloadable(model, error) from error
    _check_backend(getattr(args, "structured_outputs_config", None))
    return args


def _check_backend(config: Any) -> None:
    """Raise EngineError for a library of structured output that reads no structural tags."""
    backend = getattr(config, "backend", "auto")
    if backend not in READ_TAGS:
        raise EngineError(
            f"--vllm structured_outputs_config with the backend {backend} is not supported: it does not "
            f"support structural tags, which Antiphon needs. Use {' or '.join(READ_TAGS)}, or leave it out."
        )


def _parser(arguments: Any) -> Any:
    """The parser of vLLM's arguments, which raises EngineError where it would end the process."""
    base: Any = imported("vllm.utils.argparse_utils").FlexibleArgumentParser

    class Parser(base):  # type: ignore[misc]
        def error(self, message: str) -> NoReturn:
            raise EngineError(f"--vllm: {message}.")

    return arguments.add_cli_args(Parser(add_help=False))


def _check_key(key: str, actions: Mapping[str, Any]) -> None:
    if key in NOT_TAKEN:
        raise EngineError(f"--vllm {key} is not supported: {NOT_TAKEN[key]}. Leave it out.")
    if key not in actions:
        close = get_close_matches(key, actions, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise EngineError(f"vLLM has no engine argument '{key}'.{hint}")


def _words(action: Any, value: str) -> list[str]:
    """An argument as on vLLM's command line."""
    if action.nargs == 0:
        if value.lower() not in ("", "true", "false"):
            raise EngineError(f"--vllm {action.dest} is true or false, not '{value}'.")
        return _switch(action, on=value.lower() != "false")
    flag = next(name for name in action.option_strings if name.startswith("--"))
    if action.nargs in ("+", "*"):
        return [flag, *(json.loads(value) if value.startswith("[") else value.split(","))]
    return [f"{flag}={value}"]


def _switch(action: Any, *, on: bool) -> list[str]:
    """The word that turns a switch on or off; none for off if it has none, because it is off without it."""
    for option in action.option_strings:
        namespace = Namespace()
        action(None, namespace, [], option)
        if getattr(namespace, action.dest) is on:
            return [option]
    return []


def unloadable(model: str, error: Exception) -> EngineError:
    """The error for a model that vLLM cannot load."""
    why = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return EngineError(f"vLLM cannot load {model}: {why}")
