"""Reads JSON bodies into wire types; what does not fit becomes a 400 that names the parameter."""

import re
from array import array
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from antiphon.apis.fields import ParameterNames, to_fields
from antiphon.core.errors import RequestError
from antiphon.core.limits import DEFAULTS, Limits, check_body, is_small

T = TypeVar("T")

_PATH = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]+)`")
_DIGITS = bytes(ord("0") if chr(byte).isdecimal() and byte < 128 else 0 for byte in range(256))
_LONG = b"0" * 19
"""As long as the greatest number of 64 bits, in a body that `_DIGITS` has made zeros and nothing else of."""
_UNNAMED = (Raw(b"null"), Raw(b'""'))
_JSON_NAMES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}


_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode


def decode_request(  # noqa: PLR0913, PLR0917 - what a body is read with
    body: bytes,
    type_: type[T],
    names: ParameterNames,
    unnamed: str | None = None,
    missing: str | None = None,
    limits: Limits = DEFAULTS,
) -> T:
    """The body as a request for an answer, whose parameters have several names; see `fields`.

    `names` gets those that were used. A model that is null or empty is `unnamed`, one that is left out is
    `missing`. Raises RequestError, also above one of the `limits`.
    """
    try:
        given = _decode_members(body)
        found = to_fields(given, type_.__struct_fields__, names)  # type: ignore[attr-defined]
    except msgspec.ValidationError as error:
        raise invalid(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _no_json(error) from error
    model = missing if "model" not in found else unnamed if found["model"] in _UNNAMED else None
    if model is not None:
        found["model"] = Raw(msgspec.json.encode(model))
    return decode(body if found == given else msgspec.json.encode(found), type_, limits)


def decode(body: bytes, type_: type[T], limits: Limits = DEFAULTS) -> T:
    """The body as `type_`, within the limits. Raises RequestError."""
    try:
        decoded = msgspec.json.decode(body, type=type_)
        if not is_small(body, limits):
            check_body(decoded, limits)
        if _LONG in body.translate(_DIGITS):  # a regular expression takes twenty times as long
            _check_numbers(msgspec.json.decode(body), "")
    except msgspec.ValidationError as error:
        raise invalid(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _no_json(error) from error
    return decoded


def _no_json(error: Exception) -> RequestError:
    return RequestError(f"The body is not valid JSON: {error}.")


def _check_numbers(value: Any, where: str) -> None:
    """Refuse whole numbers of more than 64 bits: no JSON that we write could hold them."""
    if isinstance(value, dict):
        for name, part in value.items():
            _check_numbers(part, f"{where}.{name}".lstrip("."))
    elif isinstance(value, list):
        with suppress(TypeError, OverflowError):
            array("q", value)
            return  # there may be millions
        for index, part in enumerate(value):
            _check_numbers(part, f"{where}[{index}]")
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        message = f"The number {str(value)[:20]}… is too large: 64 bits are the most."
        raise RequestError(message, param=where)


def invalid(message: str, outer: str = "") -> RequestError:
    """The error names the parameter that is wrong, in JSON's words: `Expected integer, got string`.

    `outer` is where the value stands that msgspec's `message` is about.
    """
    where = _PATH.search(message)
    path = where["path"] if where else ""
    what = message[: where.start()] if where else message
    path = f"{outer}.{path}".strip(".") if outer else path
    missing = _MISSING.match(what)
    if missing:
        path = f"{path}.{missing['field']}".lstrip(".")
        return RequestError(
            f"Missing required parameter: '{path}'.", param=path, code="missing_required_parameter"
        )
    what = re.sub(r"`(\w+)", lambda match: "`" + _JSON_NAMES.get(match[1], match[1]), what)
    return RequestError(f"Invalid value for '{path}': {what}." if path else f"{what}.", param=path or None)
