"""Decodes JSON bodies into wire types; a type error becomes a 400 that names the parameter."""

import re
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, inspect

from antiphon.apis.fields import ParameterNames, to_fields
from antiphon.core.errors import MalformedBodyError, RequestError
from antiphon.core.limits import DEFAULTS, Limits, check_body, is_small
from antiphon.core.surrogates import with_whole_characters

T = TypeVar("T")

_PATH = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]+)`")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<field>[^`]*)`")
_DIGITS = bytes(ord("0") if chr(byte).isdecimal() and byte < 128 else 0 for byte in range(256))
_SHOWN = 64
"""The most characters of an unknown name that an error shows."""
_LONG = b"0" * 19
"""As long as the largest 64-bit number, in a body where `_DIGITS` has turned all digits into zeros."""
_UNNAMED = (Raw(b"null"), Raw(b'""'))
_JSON_NAMES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}


_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode


def decode_request(  # noqa: PLR0913, PLR0917 - the options of decoding
    body: bytes,
    type_: type[T],
    names: ParameterNames,
    unnamed: Callable[[], str | None] = lambda: None,
    missing: str | None = None,
    limits: Limits = DEFAULTS,
    model: str | None = None,
) -> T:
    """The body as a request for an answer, whose parameters have several names; see `fields`.

    `names` gets those that were used. The model is the given one, else that of the body: null or empty, it
    becomes `unnamed`; a missing one `missing`. Raises RequestError, also above one of the `limits`.
    """
    body = with_whole_characters(body)
    try:
        values = members = _decode_members(body)
        fields = _fields(type_)  # type: ignore[arg-type]
        if not fields.issuperset(members):
            values = to_fields(members, fields, names)
    except msgspec.ValidationError as error:
        raise invalid(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _no_json(error) from error
    if model is None:
        model = missing if "model" not in values else unnamed() if values["model"] in _UNNAMED else None
    if model is not None:
        values = {**values, "model": Raw(msgspec.json.encode(model))}
    unchanged = values is members or values == members
    request = decode(body if unchanged else msgspec.json.encode(values), type_, limits)
    check_model(getattr(request, "model", None), limits)
    return request


def check_model(name: str | None, limits: Limits) -> None:
    """Raise RequestError if the name of a model is too long: the answer, errors and the log repeat it."""
    if name is not None:
        limits.check("name_characters", len(name), "model")


@cache
def _fields(type_: type[Any]) -> frozenset[str]:
    """The names of the fields of a request."""
    return frozenset(type_.__struct_fields__)


@cache
def _decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type_)


@cache
def prepare_types() -> None:
    """Make msgspec read the annotations of all types before there are other threads.

    It reads those of a type at the first decoding, and registers the type before it has read all: if another
    thread decodes then, the process crashes (a segmentation fault of msgspec 0.22).
    """
    kinds = [msgspec.Struct]
    for kind in kinds:
        kinds += kind.__subclasses__()
        with suppress(TypeError, NameError):  # types that cannot be read are never decoded
            msgspec.json.Decoder(kind)


def decode(body: bytes, type_: type[T], limits: Limits = DEFAULTS) -> T:
    """The body as `type_`, within the limits. Raises RequestError."""
    body = with_whole_characters(body)
    try:
        decoded: T = _decoder(type_).decode(body)  # type: ignore[arg-type]
        if not is_small(body, limits):
            check_body(decoded, limits)
        if body.translate(_DIGITS).find(_LONG) != -1:  # a regular expression takes twenty times as long
            _check_numbers(msgspec.json.decode(body), "")
    except msgspec.ValidationError as error:
        raise invalid(str(error), type_=type_) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _no_json(error) from error
    return decoded


def unknown_members(body: bytes, type_: type[Any]) -> list[str]:
    """The unknown top-level names of a body that was decoded as `type_`. Raises RequestError.

    They were skipped before, so they may not be valid UTF-8.
    """
    return sorted(members_of(body).keys() - {*type_.__struct_fields__})


def members_of(body: bytes) -> dict[str, Raw]:
    """The members of a body that is an object. Raises RequestError."""
    try:
        return _decode_members(with_whole_characters(body))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _no_json(error) from error


def _no_json(error: Exception) -> MalformedBodyError:
    why = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
    return MalformedBodyError(f"The body is not valid JSON: {why}.")


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


def typed_at(value: Any, type_: Any, where: str) -> Any:
    """A value of a body as `type_`. Raises RequestError, which names it by its place."""
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        raise invalid(str(error), where, type_) from error


def invalid(message: str, outer: str = "", type_: Any = None) -> RequestError:
    """An error that names the wrong parameter, in JSON's terms: `Expected integer, got string`.

    `outer` is the place of the value that msgspec's `message` is about, `type_` its expected type.
    """
    where = _PATH.search(message)
    path = where["path"] if where else ""
    what = message[: where.start()] if where else message
    if what.startswith("Invalid") and (known := _known_values(type_, path)):
        what = f"{what.removeprefix('Invalid enum value ').removeprefix('Invalid value ')} is none of {known}"
    path = f"{outer}.{path}".strip(".") if outer else path
    missing = _MISSING.match(what)
    if missing:
        path = f"{path}.{missing['field']}".lstrip(".")
        return RequestError(
            f"Missing required parameter: '{path}'.", param=path, code="missing_required_parameter"
        )
    if unknown := _UNKNOWN.match(what):
        path = f"{path}.{unknown['field'][:_SHOWN]}".lstrip(".")
        return RequestError(f"There is no parameter '{path}' here. Leave it out.", param=path)
    what = re.sub(r"`(\w+)", lambda match: "`" + _JSON_NAMES.get(match[1], match[1]), what)
    subject = f"Invalid value for '{path}'" if path else "The body is not what this path takes"
    return RequestError(f"{subject}: {what}.", param=path or None)


def _known_values(type_: Any, path: str) -> str:
    """The values that are possible at a path of a type, if they can be listed."""
    types = [inspect.type_info(type_)] if type_ is not None else []
    for step in re.findall(r"\w+|\[", path):
        types = [inner for type_info in types for inner in _inside(type_info, step)]
    values = dict.fromkeys(value for type_info in types for value in _values(type_info))
    return ", ".join(f"'{value}'" for value in values)


def _inside(info: inspect.Type, step: str) -> Iterator[inspect.Type]:
    """The type at one step of a path: a member, or `[` for the items of a list."""
    match info:
        case inspect.UnionType(types):
            for member in types:
                yield from _inside(member, step)
        case inspect.ListType(item) if step == "[":
            yield item
        case inspect.StructType():
            yield from (field.type for field in info.fields if field.encode_name == step)
            if info.tag_field == step:
                yield inspect.LiteralType((info.tag,))


def _values(info: inspect.Type) -> Iterator[Any]:
    match info:
        case inspect.UnionType(types):
            for member in types:
                yield from _values(member)
        case inspect.LiteralType(values):
            yield from values
        case inspect.EnumType(cls):
            yield from (member.value for member in cls)
