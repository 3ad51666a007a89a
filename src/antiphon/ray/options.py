"""The keys of `antiphon.ray:app`: the options of `antiphon serve`, as a TOML file names them, and Ray's own.

replicas=2        so many servers
autoscale=1..8    between so many, by the load of their engines (`scaling.py`)
gpus=4            the GPUs of each. Of vLLM, which the replica runs, the product of its parallel sizes

Keys become the tokens of the command line, which are read here, before anything is deployed, and again in
each replica, whose environment gets the `ANTIPHON_…` variables of the one that has deployed it. What Ray does
itself is refused.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from cyclopts import CycloptsError, UnknownOptionError
from msgspec import Struct

from antiphon.compose import secrets_of
from antiphon.config import Settings
from antiphon.core.errors import AntiphonError
from antiphon.core.nearest import did_you_mean
from antiphon.engines import vllm
from antiphon.option_sources import command, explained, variables

OWN = ("replicas", "autoscale", "gpus")
"""The keys that are Ray's."""
LISTENS = (
    "Ray's proxy listens for all replicas. Leave it out, and tell Ray: `serve start --http-host --http-port` "
    "or http_options in the configuration of Serve."
)
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("host", "port", "tls_certificate", "tls_key"), LISTENS),
    "unix_socket": LISTENS,
    **dict.fromkeys(
        ("processes", "api_server_count"),
        "The processes of this server are Ray's replicas. Use replicas=N or autoscale=A..B.",
    ),
    **dict.fromkeys(("help", "help_all", "h"), "`antiphon serve --help-all` prints every option."),
}
"""Options of `antiphon serve` that do not apply, each with the reason and the remedy."""
PAIRS = frozenset({"reasoning_tags"})
"""Options of two values."""
PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
"""The arguments of vLLM whose product is the number of its GPUs."""
_OPTION = re.compile(r"--([a-z][a-z0-9-]*)(?:=[^\s.\"]*)?")
_RANGE = re.compile(r"([1-9]\d*)\.\.([1-9]\d*)")


class Plan(Struct, frozen=True):
    """What is to be deployed: the options of each server, and how many there are.

    `tokens` are the command line of `antiphon serve`, of which `settings` were read, and `variables` the
    environment for it. There are `least` replicas, or as many as are needed, up to `most`. Each has `gpus`;
    if they are `spread`, these may be on several machines.
    """

    tokens: tuple[str, ...]
    settings: Settings
    variables: Mapping[str, str]
    least: int = 1
    most: int = 1
    gpus: float = 0
    spread: bool = False


def read(args: Mapping[str, Any]) -> Plan:
    """The plan of these keys. Raises AntiphonError, with the remedy, for one that is wrong."""
    given = {key.replace("-", "_"): value for key, value in args.items() if value is not None}
    for key in given:
        if key in REFUSED:
            raise AntiphonError(f"{key}: {REFUSED[key]}")
    least, most = _replicas(given)
    tokens = _tokens({key: value for key, value in given.items() if key not in OWN})
    settings = settings_of(tokens)
    if most > 1:
        _check_shared(settings)
    needed, spread = _gpus_of_vllm(settings)
    gpus = _gpus(given.get("gpus"), needed, spread=spread)
    return Plan(tokens, settings, _variables(settings, several=most > 1), least, most, gpus, spread)


def settings_of(tokens: Sequence[str]) -> Settings:
    """The settings that are in tokens, the environment and the file. Raises AntiphonError."""
    settings: list[Settings] = []
    try:
        command(tokens, settings.append, None, "antiphon.ray:app")(tokens)
    except CycloptsError as error:
        raise AntiphonError(_own_hint(error) or _in_keys(str(explained(error, tokens)))) from error
    return settings[0]


def _own_hint(error: CycloptsError) -> str | None:
    """The message for an unknown key that resembles one of Ray's."""
    if not isinstance(error, UnknownOptionError):
        return None
    key = (error.token.keyword or error.token.value).removeprefix("--").partition("=")[0].replace("-", "_")
    hint = did_you_mean(key, OWN)
    return f"Unknown option: {key}.{hint}" if hint else None


def _in_keys(message: str) -> str:
    """The message of the command line, with keys in the place of options."""
    return _OPTION.sub(lambda option: option[1].replace("-", "_"), " ".join(message.split()))


def _tokens(given: Mapping[str, Any]) -> tuple[str, ...]:
    """The command line: the model first, then options."""
    texts = {key: [*_texts(key, value)] for key, value in given.items()}
    line = texts.pop("model", [])
    for key, values in texts.items():
        option = f"--{key.replace('_', '-')}"
        line += [option, *values] if key in PAIRS else [f"{option}={value}" for value in values]
    return tuple(line)


def _texts(key: str, value: Any) -> Iterator[str]:
    """The values of an option as texts: several are a list, on the command line as JSON."""
    if isinstance(value, str) and value.startswith("["):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise AntiphonError(f'{key}: write several values as JSON: {key}=\'["one", "two"]\'.') from error
    for one in value if isinstance(value, list | tuple) else [value]:
        if isinstance(one, bool):
            yield str(one).lower()
        elif isinstance(one, str | int | float):
            yield str(one)
        else:
            raise AntiphonError(f"{key}: give a text, a number, true or false, or a list of these.")


def _replicas(given: Mapping[str, Any]) -> tuple[int, int]:
    """The least and the largest number of replicas."""
    if "autoscale" not in given:
        number = _number("replicas", given.get("replicas", 1))
        if number < 1 or number != int(number):
            raise AntiphonError("replicas: give a whole number from 1, as in replicas=2.")
        return int(number), int(number)
    if "replicas" in given:
        raise AntiphonError("replicas and autoscale exclude each other. Leave one of them out.")
    bounds = _RANGE.fullmatch(str(given["autoscale"]))
    if bounds is None or int(bounds[1]) > int(bounds[2]):
        raise AntiphonError(
            "autoscale: give the least and the largest number of replicas, as in autoscale=1..8."
        )
    return int(bounds[1]), int(bounds[2])


def _number(key: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise AntiphonError(f"{key}: give a number, not '{value}'.") from error


def _check_shared(settings: Settings) -> None:
    """Raise AntiphonError for a store that several replicas cannot share."""
    if settings.store != "none" and not settings.store.startswith("postgresql"):
        raise AntiphonError(
            "Several replicas may run on several machines, and need a database that all of them reach: "
            "store=postgresql://USER@HOST/DATABASE. With store=none they keep nothing."
        )


def _gpus_of_vllm(settings: Settings) -> tuple[int, bool]:
    """How many GPUs the models need that vLLM runs in the replica, and whether Ray runs its workers."""
    needed, spread = 0, False
    for model in settings.served:
        for options in model.engines:
            if isinstance(options, vllm.Options):
                arguments = dict(argument.partition("=")[::2] for argument in options.vllm)
                sizes = 1
                for name in PARALLEL:
                    sizes *= int(_number(name, arguments.get(name, 1)))
                needed += sizes
                spread |= arguments.get("distributed_executor_backend") == "ray"
    return needed, spread


def _gpus(given: Any, needed: int, *, spread: bool) -> float:
    """The GPUs of each replica. Raises AntiphonError for fewer than vLLM's workers in Ray need."""
    gpus = float(needed) if given is None else _number("gpus", given)
    if gpus < 0:
        raise AntiphonError("gpus: give a number from 0, as in gpus=1.")
    if spread and (gpus < needed or gpus != int(gpus)):
        raise AntiphonError(f"gpus: vLLM needs {needed} for its parallel sizes, a whole one for each worker.")
    return gpus


def _variables(settings: Settings, *, several: bool) -> Mapping[str, str]:
    """The environment of the replicas: the options that are set in this one, and a secret that all share."""
    names = variables(settings)
    given = {name: value for name, value in os.environ.items() if name in names}
    if several and not settings.secret:
        given["ANTIPHON_SECRET"] = " ".join(secrets_of(settings))
    return given
