"""JSON that other servers send, which may be anything."""

from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")


@overload
def decode_untrusted(data: bytes, *, strict: bool = True) -> Any: ...
@overload
def decode_untrusted(data: bytes, form: type[T], *, strict: bool = True) -> T: ...
def decode_untrusted(data: bytes, form: Any = Any, *, strict: bool = True) -> Any:
    """The value, of the type `form`. Raises msgspec.DecodeError, whatever is wrong with it.

    msgspec itself raises other errors for what is nested more deeply than a thousand levels, and for
    text that is not UTF-8.
    """
    try:
        return msgspec.json.decode(data, type=form, strict=strict)
    except (RecursionError, UnicodeDecodeError) as error:
        raise msgspec.DecodeError(str(error)) from error
